//! The Raft configuration.

use muster_messages::*;
use muster_store::{apply_membership, check_membership};

use crate::world::*;

fn demand(n: u8, desired: Role, granted: Role) -> Command {
    command([Change::SetDesiredRole { node: id(n), role: desired }, Change::GrantRole { node: id(n), role: granted }])
}

#[test]
fn membership_needs_an_existing_granted_manager() {
    let (manager, worker) = (Role::Manager, Role::Worker);
    for (desired, granted, accepted) in [(manager, manager, true), (manager, worker, false), (worker, manager, false)] {
        let mut world = World::founded().with([(2, worker)]);
        world.must(demand(2, desired, granted));
        assert_eq!(world.learner(2, 2).is_ok(), accepted);
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
    assert!(world.promote(2, 2).is_err(), "it is already a voter");
    assert!(world.promote(1, 2).is_err(), "another node's member id");
}

#[test]
fn raft_ids_are_counted_up_and_never_reused() {
    let mut world = World::founded().with([(2, Role::Manager)]);
    assert!(world.learner(2, 1).is_err());
    assert!(world.learner(2, 3).is_err());
    world.learner(2, 2).unwrap();
    let held = CommandRefusal::StillMember { node: id(2), raft_id: RaftId(2) };
    assert_eq!(world.learner(2, 3), Err(held));
    world.remove_member(2).unwrap();
    assert!(world.remove_member(2).is_err(), "it is already removed");
    assert!(world.learner(2, 2).is_err());
    world.learner(2, 3).unwrap();
    assert!(world.tables.removed_raft_ids.contains(&RaftId(2)));
    assert_eq!(world.tables.next_raft_id, RaftId(4));
}

#[test]
fn the_last_voter_stays() {
    let mut world = World::founded().with([(2, Role::Manager)]);
    world.learner(2, 2).unwrap();
    assert_eq!(world.remove_member(1), Err(CommandRefusal::LastManager));
    world.promote(2, 2).unwrap();
    world.remove_member(1).unwrap();
    assert_eq!(world.remove_member(2), Err(CommandRefusal::LastManager));
}

#[test]
fn a_member_may_move() {
    let mut world = World::founded();
    let to = |raft_id| MembershipChangeKind::SetAddress { raft_id: RaftId(raft_id), addr: "10.9.9.9:1".to_owned() };
    world.change_membership(to(1)).unwrap();
    assert_eq!(world.tables.members[&RaftId(1)].addr, "10.9.9.9:1");
    let events = world.tables.events.len();
    world.change_membership(to(1)).unwrap();
    assert_eq!(world.tables.events.len(), events, "it already has this address");
    assert!(world.change_membership(to(2)).is_err());
}

#[test]
fn refused_membership_change_changes_nothing() {
    let mut world = World::founded();
    let before = world.tables.clone();
    let change =
        MembershipChange { at: T0, by: Principal::Operator, kind: MembershipChangeKind::Remove { raft_id: RaftId(1) } };
    let checked = check_membership(&before, &change);
    let at = world.next();
    assert_eq!(apply_membership(&mut world.tables, at, &change), checked);
    assert_eq!(world.tables, Tables { revision: at, ..before });
}
