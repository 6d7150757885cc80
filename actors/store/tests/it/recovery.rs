//! A cluster goes on as one manager.

use muster_messages::*;
use muster_store::recovery::{CannotRecover, Recovery, next_incarnation, recover};
use muster_store::{invariants, snapshot};

use crate::world::*;

/// Three managers in seats 1 to 3, a fourth on its way, a worker.
fn three_managers() -> World {
    let manager = Role::Manager;
    let mut world = World::founded().with([(2, manager), (3, manager), (4, Role::Worker), (5, Role::Worker)]);
    for (n, seat) in [(2, 2), (3, 3)] {
        world.learner(n, seat).unwrap();
        world.promote(n, seat).unwrap();
    }
    world.must(command([Change::SetDesiredRole { node: id(4), role: manager }]));
    world
}

fn on(node: u8, tables: &Tables) -> Recovery {
    let at = WallTime(T0.0 + HOUR);
    Recovery {
        node: id(node),
        admit_as: None,
        addr: "10.9.9.9:4400".to_owned(),
        incarnation: next_incarnation(tables.cluster.as_ref().unwrap(), at),
        at,
        reason: "a test".to_owned(),
    }
}

#[test]
fn one_manager_goes_on_and_the_others_become_workers() {
    let World { tables: before } = three_managers();
    let mut tables = before.clone();
    let done = recover(&mut tables, &on(3, &before)).unwrap();
    invariants::check(&tables).unwrap();
    invariants::check_step(&before, &tables).unwrap();
    let names: Vec<&str> = done.lost.iter().map(|lost| lost.name.as_str()).collect();
    assert_eq!((names, done.workers), (vec!["n1", "n2", "n4"], 1));
    for n in [1, 2, 4, 5] {
        let record = &tables.nodes[&id(n)];
        assert_eq!((record.role, record.desired_role), (Role::Worker, Role::Worker), "n{n}");
        assert_eq!(tables.membership_of(id(n)), Membership::None, "n{n}");
    }
    let survivor = &tables.nodes[&id(3)];
    assert_eq!((survivor.role, survivor.addr.as_str()), (Role::Manager, "10.9.9.9:4400"));
    let seats: Vec<_> = tables.members.values().map(|m| (m.node, m.voter)).collect();
    assert_eq!(seats, [(id(3), true)]);
    assert!([1, 2, 3].iter().all(|seat| tables.removed_raft_ids.contains(&RaftId(*seat))), "even the survivor's own");
    let cluster = tables.cluster.as_ref().unwrap();
    assert_eq!((cluster.incarnation, cluster.id), (done.incarnation, before.cluster.as_ref().unwrap().id));
    assert!(tables.events.iter().any(|e| e.kind == EventKind::Cluster && e.revision == tables.revision));
    assert_eq!(snapshot::decode(&snapshot::encode(&tables)).unwrap(), tables);
}

/// A lost manager may have handed out tokens and seats that this copy has never seen.
#[test]
fn revisions_and_raft_ids_leap_ahead_of_what_a_lost_manager_may_have_given_out() {
    let World { tables: mut behind } = three_managers();
    let mut ahead = World { tables: behind.clone() };
    for n in 0..500_u32 {
        let label = [("n".to_owned(), n.to_string())].into();
        ahead.must(command([Change::UpdateLabels { node: id(5), add: label, remove: vec![] }]));
    }
    let recovery = on(1, &behind);
    let done = recover(&mut behind, &recovery).unwrap();
    assert!(behind.revision > ahead.tables.revision);
    assert!(done.raft_id > ahead.tables.next_raft_id && behind.next_raft_id > done.raft_id);
}

/// Two operators, two copies: the two clusters that they make must not take each other for the same.
#[test]
fn of_two_recoveries_the_later_one_has_the_higher_incarnation() {
    let World { tables } = three_managers();
    let cluster = tables.cluster.as_ref().unwrap();
    let at = |millis| next_incarnation(cluster, WallTime(millis));
    assert!(at(T0.0 + 1) > at(T0.0));
    assert!(at(-5) > cluster.incarnation && at(0) > cluster.incarnation, "also with a clock that knows nothing");
    let mut recovered = tables.clone();
    recover(&mut recovered, &on(1, &tables)).unwrap();
    let later = recovered.cluster.as_ref().unwrap();
    assert!(next_incarnation(later, WallTime(0)) > later.incarnation, "a clock that went back");
}

#[test]
fn a_survivor_that_was_on_its_way_out_stays() {
    let mut world = three_managers();
    let removal = Removal { by: Principal::Operator, forced: false, at: T0 };
    world.must(command([Change::SetDesiredRole { node: id(2), role: Role::Worker }]));
    world.must(command([Change::SetRemoving { node: id(2), removal }]));
    let recovery = on(2, &world.tables);
    recover(&mut world.tables, &recovery).unwrap();
    let record = &world.tables.nodes[&id(2)];
    assert_eq!((record.desired_role, record.removing.clone()), (Role::Manager, None));
    invariants::check(&world.tables).unwrap();
}

#[test]
fn a_new_machine_is_admitted_under_a_name_that_is_free() {
    let mut world = three_managers();
    let restored = Recovery { admit_as: Some(name("n1")), ..on(9, &world.tables) };
    let done = recover(&mut world.tables, &restored).unwrap();
    assert_eq!(done.name.as_str(), "n1-2");
    assert_eq!(world.tables.nodes[&id(9)].granted, world.tables.revision, "a certificate can be signed for it");
    assert_eq!(done.lost.len(), 4, "the machine that had the name is lost with the others");
    invariants::check(&world.tables).unwrap();
}

#[test]
fn what_cannot_be_recovered_is_refused_and_stays_as_it_was() {
    let mut world = three_managers();
    world.must(command([block(9, T0)]));
    let tables = &world.tables;
    let found = tables.cluster.as_ref().unwrap().incarnation;
    let again = Recovery { incarnation: found, ..on(1, tables) };
    for (from, recovery, why) in [
        (Tables::default(), on(1, tables), CannotRecover::Empty),
        (tables.clone(), on(8, tables), CannotRecover::Unknown(id(8))),
        (tables.clone(), on(9, tables), CannotRecover::Blocked(id(9))),
        (tables.clone(), again, CannotRecover::Incarnation { found, wanted: found }),
    ] {
        let mut after = from.clone();
        assert_eq!(recover(&mut after, &recovery), Err(why));
        assert_eq!(after, from);
    }
}
