//! Workloads: their entries, and how long certificates of them may be valid.

use std::time::Duration;

use muster_messages::*;
use muster_store::workloads_end_after;

use crate::authorities::{activate, prepare, retire};
use crate::world::*;

pub fn entry(name: &str, uid: u32) -> WorkloadEntry {
    WorkloadEntry::new(name.parse().unwrap(), [WorkloadSelector::UnixUid(uid)])
}

pub fn set(entry: WorkloadEntry) -> Change {
    Change::Workload(Box::new(WorkloadChange::Set(entry)))
}

pub fn remove(name: &str) -> Change {
    Change::Workload(Box::new(WorkloadChange::Remove(name.parse().unwrap())))
}

fn lasting(name: &str, ttl: Duration) -> WorkloadEntry {
    WorkloadEntry { ttl, ..entry(name, 1) }
}

const FIVE_MINUTES: Duration = Duration::from_secs(300);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn world() -> World {
    World::founded_at(IDENTITY_LEVEL).with([(2, Role::Worker)])
}

fn get<'a>(world: &'a World, name: &str) -> &'a WorkloadEntry {
    &world.tables.workloads.entries[&name.parse::<WorkloadName>().unwrap()]
}

#[test]
fn workload_keeps_its_author_and_revision_until_it_changes() {
    let mut world = world();
    world.must(command([set(entry("a/b", 1))]));
    let first = get(&world, "a/b").clone();
    assert_eq!((first.revision, world.tables.workloads.changed), (world.tables.revision, first.revision));
    assert!(!first.created_by.is_empty());
    let events = world.tables.events.len();
    let again = WorkloadEntry { created_by: "someone".to_owned(), revision: Revision(1), ..entry("a/b", 1) };
    world.must(command([set(again)]));
    assert_eq!((get(&world, "a/b"), world.tables.events.len()), (&first, events), "the same again is no change");
    let by = Principal::Admin("ada".parse().unwrap());
    world.must(Command { by, ..command([set(entry("a/b", 2))]) });
    let second = get(&world, "a/b");
    assert_eq!((second.revision, &second.created_by), (world.tables.revision, &first.created_by));
    let event = world.tables.events.back().unwrap();
    assert_eq!(event.kind, EventKind::Workload);
    assert!(event.after.as_deref().unwrap().contains("workload a/b: 3600 s, unix:uid:2"), "{event:?}");
}

#[test]
fn removing_an_unknown_workload_is_refused() {
    let mut world = world();
    assert!(matches!(world.refused(command([remove("a/b")])), CommandRefusal::NotFound { .. }));
    world.must(command([set(entry("a/b", 1)), remove("a/b")]));
    assert!(world.tables.workloads.entries.is_empty());
}

#[test]
fn workloads_are_bounded_when_they_are_applied() {
    let mut world = world();
    let none = WorkloadEntry { selectors: [].into(), ..entry("a/b", 1) };
    let refusal = world.refused(command([set(none)]));
    assert!(matches!(refusal, CommandRefusal::Workload(WorkloadRefusal::Malformed(_))), "{refusal}");
    for n in 0..MAX_WORKLOADS {
        let name: WorkloadName = format!("a/w{n}").parse().unwrap();
        let entry = entry(&name.to_string(), 1);
        world.tables.workloads.entries.insert(name, std::sync::Arc::new(entry));
    }
    let refusal = world.refused(command([set(entry("a/b", 1))]));
    assert_eq!(refusal, CommandRefusal::Workload(WorkloadRefusal::TooMany));
    world.must(command([set(entry("a/w7", 2))]));
    world.must(command([remove("a/w8"), set(entry("a/b", 1))]));
}

#[test]
fn workloads_need_feature_level_three() {
    let mut world = World::founded_at(RECONCILERS_LEVEL);
    let refusal = world.refused(command([set(entry("a/b", 1))]));
    assert!(matches!(refusal, CommandRefusal::FeatureLevel { .. }), "{refusal}");
    assert_eq!(world.tables.workloads, Workloads::default());
}

/// SPIFFE-5.
#[test]
fn certificates_of_former_entries_are_remembered() {
    let mut world = world();
    assert_eq!(workloads_end_after(&world.tables, T0), None);
    world.must(command([set(lasting("a/b", FIVE_MINUTES)), set(lasting("a/c", DAY))]));
    assert_eq!(workloads_end_after(&world.tables, T0), Some(T0.plus(DAY)));
    let at = |secs: u64| T0.plus(Duration::from_secs(secs));
    world.must(Command { at: at(10), ..command([set(lasting("a/c", FIVE_MINUTES))]) });
    assert_eq!(workloads_end_after(&world.tables, at(10)), Some(at(10).plus(DAY)), "of its former lifetime");
    assert_eq!(workloads_end_after(&world.tables, T0), Some(T0.plus(DAY)), "of those signed up to then");
    world.must(Command { at: at(20), ..command([remove("a/b"), remove("a/c")]) });
    assert_eq!(workloads_end_after(&world.tables, at(20)), Some(at(10).plus(DAY)));
    world.must(Command { at: at(30), ..command([set(lasting("a/c", DAY))]) });
    world.must(Command { at: at(40), ..command([remove("a/c")]) });
    assert_eq!(workloads_end_after(&world.tables, at(40)), Some(at(40).plus(DAY)), "of the one that is deleted");
    assert_eq!(workloads_end_after(&world.tables, T0), Some(T0.plus(DAY)), "later changes put off nothing");
}

#[test]
fn a_root_is_not_retired_while_workloads_use_it() {
    let mut world = world();
    world.must(command([set(lasting("a/b", DAY))]));
    world.must(command([prepare(7, 8)]));
    world.must(command([activate(8)]));
    // No Raft member has a certificate of it: only workloads do.
    let members: Vec<RaftId> = world.tables.members.keys().copied().collect();
    for member in members {
        let node = world.tables.members[&member].node;
        world.tables.certificates.remove(&node);
    }
    let later = |time: Duration| Command { at: T0.plus(time), ..command([retire(7, false)]) };
    let activated = world.tables.authorities.active().unwrap().1.activated_at.unwrap();
    let refusal = world.refused(later(DAY / 2));
    let expected = activated.plus(DAY);
    assert!(
        matches!(refusal, CommandRefusal::Authority(AuthorityRefusal::Workloads { until, .. }) if until == expected),
        "{refusal}"
    );
    let by_force = command([retire(7, true)]);
    let mut forced = World { tables: world.tables.clone() };
    forced.must(by_force);
    world.must(later(DAY + FIVE_MINUTES));
}
