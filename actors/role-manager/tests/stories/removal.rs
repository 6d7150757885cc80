use muster_messages::*;

use crate::world::*;

// S14, S15
#[test]
fn a_worker_that_is_not_down_is_removed_only_by_force() {
    let mut world = World::new(3, 1);
    let unknown = world.remove(9, false);
    let plain = world.remove(4, false);
    world.turn();
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
fn a_worker_that_is_down_is_removed_and_blocked_beyond_its_last_certificate() {
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
    world.turn();
    for ask in [plain, forced] {
        assert_eq!(world.code(ask), ErrorCode::DemoteFirst);
    }
    assert!(world.error(forced).message.contains("only when it is down"));
    world.stop(3);
    let plain = world.remove(3, false);
    world.turn();
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
    world.hold_seats = true;
    world.run_for(secs(1));
    // n3 is leaving: without n3 and n4 the two others go on.
    world.demote(3);
    world.run_for(TICK);
    let ask = world.remove(4, true);
    world.hold_seats = false;
    world.settle();
    assert_eq!(world.removal_answer(ask), Some(Ok(())));
    let mut world = World::new(2, 0);
    world.stop(2);
    world.run_for(TICK);
    // Nobody can lead: whoever asks is told so by the API, and nothing is removed.
    let ask = world.remove(2, true);
    world.run_for(secs(5));
    assert!(!matches!(world.removal_answer(ask), Some(Ok(()))));
    assert_eq!(world.voters(), 2);
}

// E2
#[test]
fn a_promotion_followed_by_a_removal_before_the_join_leaves_nothing_behind() {
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

// E2: the seat change is proposed already when the removal is accepted.
#[test]
fn a_seat_under_way_is_not_given_to_a_node_that_is_being_removed() {
    let mut world = World::new(3, 1);
    world.hold_seats = true;
    world.promote(4);
    world.run_for(TICK);
    assert_eq!(world.seats_in_flight(), 1);
    world.stop(4);
    world.remove(4, true);
    world.run_for(secs(1));
    world.hold_seats = false;
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
fn a_removal_during_a_pending_demotion_takes_the_seat_first() {
    let mut world = World::new(3, 0);
    world.hold_seats = true;
    world.demote(3);
    world.run_for(secs(1));
    world.stop(3);
    let ask = world.remove(3, false);
    world.run_for(secs(6));
    assert!(world.tables.nodes.contains_key(&id(3)), "its record stays while it holds a seat");
    assert!(!world.tables.blocklist.contains_key(&id(3)));
    assert_eq!(world.removal_answer(ask), None);
    assert_eq!(world.core.as_ref().unwrap().queues().removal.len(), 1);
    world.hold_seats = false;
    world.settle();
    assert_eq!(world.removal_answer(ask), Some(Ok(())));
    assert!(world.is_gone(3));
}

// E15: a seat that quorum depends on stays until it does not.
#[test]
fn a_removal_waits_while_quorum_depends_on_the_seat() {
    let mut world = World::new(3, 0);
    world.hold_commits = true;
    world.demote(3);
    world.remove(3, true);
    world.turn();
    world.cut(2);
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
fn a_seat_whose_node_is_deleted_is_taken_back() {
    let mut world = World::new(3, 0);
    world.lawless = true;
    world.tables.nodes.remove(&id(3));
    world.run_for(secs(1));
    assert_eq!(world.tables.members.len(), 2);
    assert!(world.pending().is_empty());
}

// S5, E17
#[test]
fn orphan_seats_are_taken_back_when_a_leader_starts() {
    let mut world = World::new(3, 0);
    world.core = None;
    world.lawless = true;
    world.tables.nodes.remove(&id(2));
    world.elect(id(1));
    world.run_for(secs(1));
    let left: Vec<NodeId> = world.tables.members.values().map(|m| m.node).collect();
    assert_eq!(left, [id(1), id(3)]);
}

#[test]
fn a_removal_asked_twice_ends_once_and_answers_both() {
    let mut world = World::new(3, 1);
    world.stop(4);
    let first = world.remove(4, false);
    let request = world.last_request();
    let second = world.remove(4, false);
    world.settle();
    let late = world.wish_again(4, muster_role_manager::core::Wish::Remove { force: false }, request);
    let stranger = world.remove(4, false);
    world.turn();
    for ask in [first, second, late] {
        assert_eq!(world.removal_answer(ask), Some(Ok(())));
    }
    assert_eq!(world.code(stranger), ErrorCode::NotFound);
}

#[test]
fn a_node_being_removed_cannot_be_promoted() {
    let mut world = World::new(3, 0);
    world.hold_seats = true;
    world.demote(3);
    world.turn();
    world.remove(3, true);
    world.run_for(TICK);
    let ask = world.promote(3);
    world.turn();
    assert_eq!(world.code(ask), ErrorCode::Removed);
}

#[test]
fn too_many_waiters_of_one_removal_are_told_to_come_back() {
    let mut world = World::new(3, 0);
    world.hold_seats = true;
    world.demote(3);
    world.turn();
    let asks: Vec<_> = (0..20).map(|_| world.remove(3, true)).collect();
    world.run_for(TICK);
    assert_eq!(world.answers.len(), 5, "the demotion and the four too many");
    assert_eq!(world.code(asks[19]), ErrorCode::TooManyRequests);
}

// The leader may be removed once its demotion is accepted: the next leader finishes.
#[test]
fn a_leader_that_is_demoted_and_removed_hands_over_first() {
    let mut world = World::new(3, 0);
    world.hold_seats = true;
    world.demote(1);
    world.remove(1, true);
    world.run_for(TICK);
    world.hold_seats = false;
    world.settle();
    assert!(world.is_gone(1));
    assert_eq!(world.leader, Some(id(2)));
}
