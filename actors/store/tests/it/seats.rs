//! The Raft configuration.

use muster_messages::*;
use muster_store::{apply_seat, judge_seat};

use crate::world::*;

fn demand(n: u8, desired: Role, granted: Role) -> Command {
    command([Change::SetDesiredRole { node: id(n), role: desired }, Change::GrantRole { node: id(n), role: granted }])
}

#[test]
fn a_seat_is_for_a_node_that_exists_wants_manager_and_was_granted_it() {
    let (manager, worker) = (Role::Manager, Role::Worker);
    for (desired, granted, seated) in [(manager, manager, true), (manager, worker, false), (worker, manager, false)] {
        let mut world = World::founded().with([(2, worker)]);
        world.must(demand(2, desired, granted));
        assert_eq!(world.learner(2, 2).is_ok(), seated);
    }
    let mut world = World::founded().with([(3, manager)]);
    assert!(matches!(world.learner(2, 2), Err(CommandRefusal::NotFound { .. })));
    world.must(command([block(2, T0)]));
    assert!(matches!(world.learner(2, 2), Err(CommandRefusal::Blocked { .. })));
    world.must(command([Change::SetRemoving {
        node: id(3),
        removal: Removal { by: Principal::Operator, forced: false, at: T0 },
    }]));
    let leaving = Err(CommandRefusal::BeingRemoved { node: id(3) });
    assert_eq!(world.learner(3, 2), leaving);
}

#[test]
fn a_learner_demoted_meanwhile_does_not_become_a_voter() {
    let mut world = World::founded().with([(2, Role::Manager)]);
    world.learner(2, 2).unwrap();
    world.must(demand(2, Role::Worker, Role::Manager));
    assert!(matches!(world.promote(2, 2), Err(CommandRefusal::Stale { .. })));
    world.must(demand(2, Role::Manager, Role::Manager));
    world.promote(2, 2).unwrap();
    assert_eq!(world.tables.membership_of(id(2)), Membership::Voter);
    assert!(world.promote(2, 2).is_err(), "it votes already");
    assert!(world.promote(1, 2).is_err(), "another's seat");
}

#[test]
fn raft_ids_come_from_the_counter_and_never_come_back() {
    let mut world = World::founded().with([(2, Role::Manager)]);
    assert!(world.learner(2, 1).is_err());
    assert!(world.learner(2, 3).is_err());
    world.learner(2, 2).unwrap();
    let held = CommandRefusal::HasSeat { node: id(2), raft_id: RaftId(2) };
    assert_eq!(world.learner(2, 3), Err(held));
    world.unseat(2).unwrap();
    assert!(world.unseat(2).is_err(), "it is gone");
    assert!(world.learner(2, 2).is_err());
    world.learner(2, 3).unwrap();
    assert!(world.tables.removed_raft_ids.contains(&RaftId(2)));
    assert_eq!(world.tables.next_raft_id, RaftId(4));
}

#[test]
fn the_last_voter_stays() {
    let mut world = World::founded().with([(2, Role::Manager)]);
    world.learner(2, 2).unwrap();
    assert_eq!(world.unseat(1), Err(CommandRefusal::LastManager));
    world.promote(2, 2).unwrap();
    world.unseat(1).unwrap();
    assert_eq!(world.unseat(2), Err(CommandRefusal::LastManager));
}

#[test]
fn a_member_may_move() {
    let mut world = World::founded();
    let to = |raft_id| SeatChangeKind::SetAddress { raft_id: RaftId(raft_id), addr: "10.9.9.9:1".to_owned() };
    world.seat(to(1)).unwrap();
    assert_eq!(world.tables.members[&RaftId(1)].addr, "10.9.9.9:1");
    let events = world.tables.events.len();
    world.seat(to(1)).unwrap();
    assert_eq!(world.tables.events.len(), events, "it was there already");
    assert!(world.seat(to(2)).is_err());
}

#[test]
fn a_refused_seat_change_is_applied_as_nothing() {
    let mut world = World::founded();
    let before = world.tables.clone();
    let change = SeatChange { at: T0, by: Principal::Operator, kind: SeatChangeKind::Remove { raft_id: RaftId(1) } };
    let judged = judge_seat(&before, &change);
    let at = world.next();
    assert_eq!(apply_seat(&mut world.tables, at, &change), judged);
    assert_eq!(world.tables, Tables { revision: at, ..before });
}
