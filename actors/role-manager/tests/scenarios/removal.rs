use muster_messages::*;

use crate::world::*;

// S14, S15
#[test]
fn a_worker_that_is_not_down_is_removed_only_by_force() {
    let mut world = World::new(3, 1);
    let unknown = world.remove(9, false);
    let plain = world.remove(4, false);
    world.run_moment();
    assert_eq!(world.code(unknown), ErrorCode::NotFound);
    assert_eq!(world.code(plain), ErrorCode::NodeNotDown);
    assert!(world.tables.nodes.contains_key(&id(4)));
    let forced = world.remove(4, true);
    world.settle();
    assert_eq!(world.removal_answer(forced), Some(Ok(())));
    assert!(world.is_gone(4));
}

// S16, S18
#[test]
fn down_worker_is_removed_and_blocked_past_its_certificate() {
    let mut world = World::new(3, 1);
    let last = world.record(4).last_not_after;
    world.stop(4);
    let ask = world.remove(4, false);
    world.settle();
    assert_eq!(world.removal_answer(ask), Some(Ok(())));
    assert!(world.tables.blocklist[&id(4)].expires_at >= last.plus(secs(3600)));
}

// S17
#[test]
fn a_manager_must_be_demoted_first_unless_it_is_down_and_forced() {
    let mut world = World::new(3, 0);
    let plain = world.remove(3, false);
    let forced = world.remove(3, true);
    world.run_moment();
    for ask in [plain, forced] {
        assert_eq!(world.code(ask), ErrorCode::DemoteFirst);
    }
    assert!(world.error(forced).message.contains("only when it is down"));
    world.stop(3);
    let plain = world.remove(3, false);
    world.run_moment();
    assert_eq!(world.code(plain), ErrorCode::DemoteFirst);
    let forced = world.remove(3, true);
    world.settle();
    assert_eq!(world.removal_answer(forced), Some(Ok(())));
    assert!(world.is_gone(3));
    assert_eq!(world.voters(), 2);
}

// U1
#[test]
fn a_down_manager_is_not_removed_when_quorum_does_not_allow_it() {
    let mut world = World::new(4, 0);
    world.stop(4);
    world.hold_membership_changes = true;
    world.run_for(secs(1));
    // n3 is leaving: without n3 and n4 the two others continue.
    world.demote(3);
    world.run_for(TICK);
    let ask = world.remove(4, true);
    world.hold_membership_changes = false;
    world.settle();
    assert_eq!(world.removal_answer(ask), Some(Ok(())));
    let mut world = World::new(2, 0);
    world.stop(2);
    world.run_for(TICK);
    // No manager can lead: the API answers callers with that, and nothing is removed.
    let ask = world.remove(2, true);
    world.run_for(secs(5));
    assert!(!matches!(world.removal_answer(ask), Some(Ok(()))));
    assert_eq!(world.voters(), 2);
}

// E2
#[test]
fn removal_before_promoted_node_joins_leaves_nothing_behind() {
    let mut world = World::new(3, 1);
    world.hold_probes = true;
    world.promote(4);
    world.run_for(secs(1));
    assert_eq!(world.reason(4), Some(WaitReason::WaitingForJoin));
    world.stop(4);
    let ask = world.remove(4, true);
    world.hold_probes = false;
    world.settle();
    assert_eq!(world.removal_answer(ask), Some(Ok(())));
    assert!(world.is_gone(4));
    assert_eq!(world.tables.members.len(), 3);
}

// E2: the membership change is already proposed when the removal is accepted.
#[test]
fn node_being_removed_does_not_become_a_member() {
    let mut world = World::new(3, 1);
    world.hold_membership_changes = true;
    world.promote(4);
    world.run_for(TICK);
    assert_eq!(world.changes_in_flight(), 1);
    world.stop(4);
    world.remove(4, true);
    world.run_for(secs(1));
    world.hold_membership_changes = false;
    world.settle();
    assert!(world.is_gone(4));
    assert_eq!(world.tables.members.len(), 3);
}

// E1
#[test]
fn a_promoted_node_that_never_joined_is_removed_like_a_worker() {
    let mut world = World::new(3, 1);
    world.stop(4);
    world.promote(4);
    world.run_for(secs(1));
    let ask = world.remove(4, false);
    world.settle();
    assert_eq!(world.removal_answer(ask), Some(Ok(())));
    assert!(world.is_gone(4));
}

// E15
#[test]
fn removal_during_pending_demotion_removes_member_first() {
    let mut world = World::new(3, 0);
    world.hold_membership_changes = true;
    world.demote(3);
    world.run_for(secs(1));
    world.stop(3);
    let ask = world.remove(3, false);
    world.run_for(secs(6));
    assert!(world.tables.nodes.contains_key(&id(3)), "its record stays while it is a member");
    assert!(!world.tables.blocklist.contains_key(&id(3)));
    assert_eq!(world.removal_answer(ask), None);
    assert_eq!(world.core.as_ref().unwrap().queues().removal.len(), 1);
    world.hold_membership_changes = false;
    world.settle();
    assert_eq!(world.removal_answer(ask), Some(Ok(())));
    assert!(world.is_gone(3));
}

// E15: a member that quorum depends on stays until it no longer does.
#[test]
fn removal_waits_while_quorum_depends_on_the_member() {
    let mut world = World::new(3, 0);
    world.hold_commits = true;
    world.demote(3);
    world.remove(3, true);
    world.run_moment();
    world.stop_unnoticed(2);
    world.run_for(secs(1));
    world.hold_commits = false;
    world.run_for(secs(10));
    assert_eq!(world.reason(3), Some(WaitReason::QuorumAtRisk));
    assert_eq!(world.voters(), 3);
    world.machine(2).up = true;
    world.settle();
    assert!(world.is_gone(3));
}

// S4, E17
#[test]
fn member_of_a_deleted_node_is_removed() {
    let mut world = World::new(3, 0);
    world.breaks_invariants = true;
    world.tables.nodes.remove(&id(3));
    world.run_for(secs(1));
    assert_eq!(world.tables.members.len(), 2);
    assert!(world.pending().is_empty());
}

// S5, E17
#[test]
fn new_leader_removes_orphaned_members() {
    let mut world = World::new(3, 0);
    world.core = None;
    world.breaks_invariants = true;
    world.tables.nodes.remove(&id(2));
    world.elect(id(1));
    world.run_for(secs(1));
    let left: Vec<NodeId> = world.tables.members.values().map(|m| m.node).collect();
    assert_eq!(left, [id(1), id(3)]);
}

#[test]
fn removal_requested_twice_ends_once_and_answers_both() {
    let mut world = World::new(3, 1);
    world.stop(4);
    let first = world.remove(4, false);
    let request = world.last_request();
    let second = world.remove(4, false);
    world.settle();
    let late = world.request_again(4, muster_role_manager::core::RequestedChange::Remove { force: false }, request);
    let unknown_node = world.remove(4, false);
    world.run_moment();
    for ask in [first, second, late] {
        assert_eq!(world.removal_answer(ask), Some(Ok(())));
    }
    assert_eq!(world.code(unknown_node), ErrorCode::NotFound);
}

#[test]
fn a_node_being_removed_cannot_be_promoted() {
    let mut world = World::new(3, 0);
    world.hold_membership_changes = true;
    world.demote(3);
    world.run_moment();
    world.remove(3, true);
    world.run_for(TICK);
    let ask = world.promote(3);
    world.run_moment();
    assert_eq!(world.code(ask), ErrorCode::Removed);
}

#[test]
fn excess_waiters_of_one_removal_are_asked_to_retry() {
    let mut world = World::new(3, 0);
    world.hold_membership_changes = true;
    world.demote(3);
    world.run_moment();
    let asks: Vec<_> = (0..20).map(|_| world.remove(3, true)).collect();
    world.run_for(TICK);
    assert_eq!(world.answers.len(), 5, "the demotion and the four too many");
    assert_eq!(world.code(asks[19]), ErrorCode::TooManyRequests);
}

// The leader may be removed once its demotion is accepted: the next leader finishes.
#[test]
fn a_leader_that_is_demoted_and_removed_hands_over_first() {
    let mut world = World::new(3, 0);
    world.hold_membership_changes = true;
    world.demote(1);
    world.remove(1, true);
    world.run_for(TICK);
    world.hold_membership_changes = false;
    world.settle();
    assert!(world.is_gone(1));
    assert_eq!(world.leader, Some(id(2)));
}
