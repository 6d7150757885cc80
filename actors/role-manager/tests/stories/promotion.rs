use muster_messages::*;

use crate::world::*;

#[test]
fn a_worker_is_promoted_until_it_votes() {
    let mut world = World::new(3, 1);
    let ask = world.promote(4);
    world.settle();
    assert!(world.is_manager(4));
    assert_eq!(world.role_answer(ask), Some(Ok(true)));
    assert_eq!(world.voters(), 4);
}

#[test]
fn a_promotion_takes_less_than_two_moments_when_everybody_is_quick() {
    let mut world = World::new(1, 1);
    world.promote(2);
    world.run_for(TICK * 2);
    assert!(world.is_manager(2), "{:?}", world.pending());
}

#[test]
fn a_wish_is_in_the_replicated_state_before_it_is_answered() {
    let mut world = World::new(3, 1);
    world.hold_commits = true;
    let ask = world.promote(4);
    world.run_for(secs(1));
    assert_eq!(world.role_answer(ask), None);
    world.hold_commits = false;
    world.turn();
    assert_eq!(world.role_answer(ask), Some(Ok(true)));
    assert_eq!(world.record(4).desired_role, Role::Manager);
}

#[test]
fn promotion_waits_for_its_certificate() {
    let mut world = World::new(3, 1);
    world.machine(4).no_certificates = true;
    world.promote(4);
    world.run_for(secs(20));
    assert_eq!(world.reason(4), Some(WaitReason::WaitingForCertificate));
    assert_eq!((world.record(4).role, world.membership(4)), (Role::Manager, Membership::None));
    assert!(world.holds(4));
    world.machine(4).no_certificates = false;
    world.settle();
    assert!(world.is_manager(4));
}

// E14
#[test]
fn how_long_a_change_was_pending_is_counted_once_whatever_it_waited_for_and_whoever_crashed() {
    let mut world = World::new(3, 1);
    world.machine(4).no_certificates = true;
    world.promote(4);
    world.run_for(secs(10));
    world.machine(4).no_certificates = false;
    world.machine(4).no_knocks = true;
    world.run_for(secs(10));
    world.crash();
    world.machine(4).no_knocks = false;
    world.settle();
    world.demote(4);
    world.settle();
    let settled = world.core.as_ref().unwrap().view().settled;
    assert_eq!(settled.keys().copied().collect::<Vec<_>>(), [Wants::Manager, Wants::Worker]);
    let (promoted, demoted) = (settled[&Wants::Manager], settled[&Wants::Worker]);
    assert_eq!((promoted.settled(), demoted.settled()), (1, 1));
    assert!((20_000..21_000).contains(&promoted.sum_ms), "for both reasons together: {promoted:?}");
    assert!(demoted.sum_ms < 1_000, "{demoted:?}");
}

#[test]
fn promotion_waits_for_the_node_to_ask_for_a_seat() {
    let mut world = World::new(3, 1);
    world.machine(4).no_knocks = true;
    world.promote(4);
    world.run_for(secs(20));
    assert_eq!(world.reason(4), Some(WaitReason::WaitingForJoin));
    world.machine(4).no_knocks = false;
    world.settle();
    assert!(world.is_manager(4));
}

#[test]
fn a_node_that_is_down_may_be_promoted_and_joins_when_it_returns() {
    let mut world = World::new(3, 1);
    world.stop(4);
    let ask = world.promote(4);
    world.run_for(secs(1));
    assert_eq!(world.role_answer(ask), Some(Ok(true)));
    assert_eq!(world.reason(4), Some(WaitReason::WaitingForNode));
    assert!(!world.holds(4), "nobody waits for a node that is down");
    let view = world.core.as_ref().unwrap().view();
    assert_eq!(view.conditions[&id(4)][0].reason, WaitReason::WaitingForNode);
    let wakes = world.wakes;
    world.run_for(secs(60));
    assert!(world.wakes <= wakes + 1, "nothing is retried for a node that is down");
    world.start(4);
    world.settle();
    assert!(world.is_manager(4));
}

#[test]
fn a_failed_dial_back_is_shown_and_tried_again() {
    let mut world = World::new(3, 1);
    world.machine(4).firewalled = true;
    world.promote(4);
    world.run_for(secs(10));
    assert_eq!(world.reason(4), Some(WaitReason::DialBackFailed));
    assert!(world.message(4).contains("127.0.0.1:4404"), "{}", world.message(4));
    assert_eq!(world.membership(4), Membership::None);
    world.machine(4).firewalled = false;
    world.settle();
    assert!(world.is_manager(4));
}

// E18: the joiner dies right after its seat was given.
#[test]
fn a_learner_that_dies_costs_no_vote_and_is_dropped_and_retried_when_it_returns() {
    let mut world = World::new(1, 1);
    world.hold_seats = true;
    world.promote(2);
    world.run_for(TICK);
    assert_eq!(world.seats_in_flight(), 1);
    world.cut(2);
    world.hold_seats = false;
    world.run_for(secs(5));
    assert_eq!(world.membership(2), Membership::Learner);
    assert_eq!(world.reason(2), Some(WaitReason::CatchingUp));
    assert_eq!(world.voters(), 1);
    world.hear_liveness(2, Liveness::Down);
    world.run_for(secs(30));
    assert_eq!(world.membership(2), Membership::None);
    assert_eq!(world.reason(2), Some(WaitReason::WaitingForNode));
    world.start(2);
    world.settle();
    assert!(world.is_manager(2));
    assert_eq!(world.tables.seat_of(id(2)).unwrap().raft_id, RaftId(3), "no raft id is used twice");
}

// E19
#[test]
fn two_promotions_at_once_are_served_in_turn() {
    let mut world = World::new(3, 2);
    world.hold_seats = true;
    world.promote(4);
    world.promote(5);
    world.run_for(secs(1));
    assert_eq!(world.seats_in_flight(), 1);
    assert_eq!(world.reason(5), Some(WaitReason::MembershipBusy));
    world.hold_seats = false;
    world.settle();
    assert!(world.is_manager(4) && world.is_manager(5));
}

// S32
#[test]
fn promoting_an_unknown_node_is_not_found_and_a_manager_again_is_no_change() {
    let mut world = World::new(3, 0);
    let unknown = world.promote(9);
    let again = world.promote(2);
    world.turn();
    assert_eq!(world.code(unknown), ErrorCode::NotFound);
    assert_eq!(world.role_answer(again), Some(Ok(false)));
}

// E17: inconsistent "already so" answers.
#[test]
fn demoting_a_worker_is_no_change() {
    let mut world = World::new(3, 1);
    let ask = world.demote(4);
    world.turn();
    assert_eq!(world.role_answer(ask), Some(Ok(false)));
}

// E10
#[test]
fn a_certificate_for_an_older_grant_does_not_settle_a_node() {
    let mut world = World::new(3, 1);
    world.machine(4).no_certificates = true;
    world.promote(4);
    world.run_for(secs(1));
    world.demote(4);
    world.run_for(secs(1));
    let record = world.record(4);
    assert_eq!((record.role, record.certificate.as_ref().unwrap().role), (Role::Worker, Role::Worker));
    assert_eq!(world.reason(4), Some(WaitReason::WaitingForCertificate));
    world.machine(4).no_certificates = false;
    world.settle();
}

// E11
#[test]
fn a_certificate_that_comes_late_settles_the_node_at_once() {
    let mut world = World::new(3, 1);
    world.machine(4).no_certificates = true;
    world.promote(4);
    world.run_for(secs(600));
    world.machine(4).no_certificates = false;
    world.run_for(TICK * 4);
    assert!(world.is_manager(4), "{:?}", world.pending());
}

#[test]
fn a_request_without_quorum_says_who_is_missing() {
    use muster_role_manager::core::{Input, StepOutcome};
    let mut world = World::new(3, 1);
    world.hold_commits = true;
    world.promote(4);
    world.turn();
    let (step, _) = world.core.as_ref().unwrap().outbox().0.iter().next().unwrap();
    let missing = vec![id(2), id(3)];
    let input = Input::Committed { step: *step, outcome: StepOutcome::NoQuorum { missing } };
    let mut effects = Vec::new();
    world.core.as_mut().unwrap().step(world.now, input, &mut effects);
    let text = format!("{effects:?}");
    assert!(text.contains("no quorum: waiting for n2, n3"), "{text}");
}
