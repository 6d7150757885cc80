//! Watching.

use std::time::Duration;

use muster_messages::*;
use muster_store::History;
use muster_store::history::{Changed, Expired, KEEP_AT_LEAST, KEEP_FOR};

use crate::world::*;

fn kinds(history: &History, seen: Revision) -> Vec<(u64, &'static str)> {
    let kind = |changed: &Changed| match changed {
        Changed::Cluster(_) => "cluster",
        Changed::Node { .. } => "node",
        Changed::Member { .. } => "member",
        Changed::Token { .. } => "token",
        Changed::User { .. } => "user",
        Changed::Blocked { .. } => "blocked",
        Changed::Event(_) => "event",
    };
    let since = history.since(seen).unwrap();
    since.map(|e| (e.revision.0, kind(&e.changed))).collect()
}

fn label(value: &str) -> Command {
    command([Change::UpdateLabels { node: id(1), add: [("a".to_owned(), value.to_owned())].into(), remove: vec![] }])
}

#[test]
fn a_watcher_sees_what_changed_in_order() {
    let mut history = History::starting_at(Tables::default());
    let mut world = World::founded();
    history.record(Moment(0), &world.tables);
    world.must(command([Change::PutToken(token("t", Role::Worker)), Change::PutUser(user("ann", "a1")), block(9, T0)]));
    history.record(Moment(1), &world.tables);
    world.must(label("x"));
    history.record(Moment(2), &world.tables);
    world.must(command([Change::Unblock(id(9))]));
    history.record(Moment(3), &world.tables);
    let all = kinds(&history, Revision(0));
    let expected = [
        (1, "cluster"),
        (1, "node"),
        (1, "member"),
        (1, "event"),
        (1, "event"),
        (2, "token"),
        (2, "user"),
        (2, "blocked"),
        (2, "event"),
        (2, "event"),
        (2, "event"),
        (3, "node"),
        (4, "blocked"),
        (4, "event"),
    ];
    assert_eq!(all, expected);
    assert_eq!(kinds(&history, Revision(2)), expected[11..]);
    assert_eq!(kinds(&history, Revision(4)), []);
    assert_eq!(kinds(&history, Revision(7)), [], "another member is ahead");
}

#[test]
fn several_changes_between_two_states_show_as_one_at_the_newest_revision() {
    let mut world = World::founded();
    let mut history = History::starting_at(world.tables.clone());
    world.must(label("x"));
    world.must(label("y"));
    history.record(Moment(0), &world.tables);
    history.record(Moment(0), &world.tables);
    assert_eq!(kinds(&history, Revision(1)), [(3, "node")]);
    // What came and went in between is unknown here.
    let oldest = Revision(3);
    assert_eq!(history.since(Revision(2)).err(), Some(Expired { oldest }));
    assert_eq!(kinds(&history, oldest), []);
}

#[test]
fn the_past_is_forgotten_by_age_and_number_whichever_keeps_more() {
    let mut world = World::founded();
    let mut history = History::starting_at(world.tables.clone());
    let start = Moment(0);
    let mut write = |history: &mut History, count: usize, now: Moment| {
        for n in 0..count {
            world.must(label(&n.to_string()));
            history.record(now, &world.tables);
        }
    };
    write(&mut history, KEEP_AT_LEAST + 20, start);
    assert_eq!(history.len(), KEEP_AT_LEAST + 20, "young");
    let later = start + KEEP_FOR + Duration::from_secs(1);
    write(&mut history, 1, later);
    assert_eq!(history.len(), KEEP_AT_LEAST, "old, hence by number");
    let oldest = Revision(1 + 21);
    assert_eq!(history.since(Revision(1)).err(), Some(Expired { oldest }));
    assert!(history.since(oldest).is_ok());
    let newest = history.newest();
    assert_eq!(history.since(newest).unwrap().count(), 0);
}

#[test]
fn the_past_is_bounded_by_bytes_above_all() {
    let mut world = World::founded();
    let mut history = History::bounded(world.tables.clone(), 100_000);
    for n in 0..1_000 {
        world.must(label(&format!("{n:01000}")));
        history.record(Moment(0), &world.tables);
    }
    assert!((20..100).contains(&history.len()), "{}", history.len());
    assert!(history.since(Revision(1)).is_err());
}
