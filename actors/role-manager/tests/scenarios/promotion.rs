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
    let proposed: Vec<&String> = world.log.iter().filter(|line| line.contains(" proposes ")).collect();
    assert_eq!(proposed.len(), 3, "request and grant are one entry, then learner, then voter: {proposed:#?}");
    assert!(proposed[0].contains("SetDesiredRole") && proposed[0].contains("GrantRole"), "{proposed:#?}");
}

#[test]
fn fast_promotion_takes_less_than_two_ticks() {
    let mut world = World::new(1, 1);
    world.promote(2);
    world.run_for(TICK * 2);
    assert!(world.is_manager(2), "{:?}", world.pending());
}

#[test]
fn request_is_replicated_before_it_is_answered() {
    let mut world = World::new(3, 1);
    world.hold_commits = true;
    let ask = world.promote(4);
    world.run_for(secs(1));
    assert_eq!(world.role_answer(ask), None);
    world.hold_commits = false;
    world.run_moment();
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
fn pending_time_is_counted_once_across_reasons_and_crashes() {
    let mut world = World::new(3, 1);
    world.machine(4).no_certificates = true;
    world.promote(4);
    world.run_for(secs(10));
    world.machine(4).no_certificates = false;
    world.machine(4).no_membership_requests = true;
    world.run_for(secs(10));
    world.crash();
    world.machine(4).no_membership_requests = false;
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
fn promotion_waits_until_the_node_requests_membership() {
    let mut world = World::new(3, 1);
    world.machine(4).no_membership_requests = true;
    world.promote(4);
    world.run_for(secs(20));
    assert_eq!(world.reason(4), Some(WaitReason::WaitingForJoin));
    world.machine(4).no_membership_requests = false;
    world.settle();
    assert!(world.is_manager(4));
}

/// Between distant managers the request of a new manager is on its way meanwhile.
#[test]
fn certified_node_is_dialled_before_it_asks() {
    let mut world = World::new(3, 1);
    world.machine(4).no_membership_requests = true;
    world.promote(4);
    world.run_for(TICK * 2);
    assert_eq!((world.dials, world.membership(4)), (1, Membership::None), "it must ask nevertheless");
    assert_eq!(world.reason(4), Some(WaitReason::WaitingForJoin));
    world.machine(4).no_membership_requests = false;
    world.settle();
    assert!(world.is_manager(4));
    assert_eq!(world.dials, 1, "it need not be dialled again");
}

#[test]
fn nearby_node_asks_before_it_is_dialled() {
    let mut world = World::new(3, 1);
    world.promote(4);
    world.settle();
    assert!(world.is_manager(4));
    assert_eq!(world.dials, 1);
}

#[test]
fn failed_early_dial_is_neither_shown_nor_repeated() {
    let mut world = World::new(3, 1);
    let machine = world.machine(4);
    (machine.no_membership_requests, machine.firewalled) = (true, true);
    world.promote(4);
    world.run_for(secs(10));
    assert_eq!((world.dials, world.reason(4)), (1, Some(WaitReason::WaitingForJoin)));
    let machine = world.machine(4);
    (machine.no_membership_requests, machine.firewalled) = (false, false);
    world.settle();
    assert!(world.is_manager(4));
    assert_eq!(world.dials, 2);
}

/// The runtime was still starting when it was dialled.
#[test]
fn request_during_an_early_dial_that_fails_dials_again() {
    let mut world = World::new(3, 1);
    world.machine(4).no_membership_requests = true;
    world.hold_probes = true;
    world.promote(4);
    world.run_for(TICK);
    world.machine(4).no_membership_requests = false;
    world.run_moment();
    assert_eq!(world.dials, 1, "one at a time");
    world.fail_dials();
    world.hold_probes = false;
    world.settle();
    assert!(world.is_manager(4));
    assert_eq!(world.dials, 2);
}

#[test]
fn node_promoted_while_down_joins_when_it_returns() {
    let mut world = World::new(3, 1);
    world.stop(4);
    let ask = world.promote(4);
    world.run_for(secs(1));
    assert_eq!(world.role_answer(ask), Some(Ok(true)));
    assert_eq!(world.reason(4), Some(WaitReason::WaitingForNode));
    assert!(!world.holds(4), "no caller waits for a node that is down");
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

// E18: the joiner dies right after it was added as a learner.
#[test]
fn dead_learner_costs_no_vote_and_rejoins_when_it_returns() {
    let mut world = World::new(1, 1);
    world.hold_membership_changes = true;
    world.promote(2);
    world.run_for(TICK);
    assert_eq!(world.changes_in_flight(), 1);
    world.stop_unnoticed(2);
    world.hold_membership_changes = false;
    world.run_for(secs(5));
    assert_eq!(world.membership(2), Membership::Learner);
    assert_eq!(world.reason(2), Some(WaitReason::CatchingUp));
    assert_eq!(world.voters(), 1);
    world.set_liveness(2, Liveness::Down);
    world.run_for(secs(30));
    assert_eq!(world.membership(2), Membership::None);
    assert_eq!(world.reason(2), Some(WaitReason::WaitingForNode));
    world.start(2);
    world.settle();
    assert!(world.is_manager(2));
    assert_eq!(world.tables.member_of(id(2)).unwrap().raft_id, RaftId(3), "no raft id is used twice");
}

// E19
#[test]
fn two_promotions_at_once_are_served_in_turn() {
    let mut world = World::new(3, 2);
    world.hold_membership_changes = true;
    world.promote(4);
    world.promote(5);
    world.run_for(secs(1));
    assert_eq!(world.changes_in_flight(), 1);
    assert_eq!(world.reason(5), Some(WaitReason::MembershipBusy));
    world.hold_membership_changes = false;
    world.settle();
    assert!(world.is_manager(4) && world.is_manager(5));
}

// S32
#[test]
fn promote_unknown_node_not_found_and_manager_unchanged() {
    let mut world = World::new(3, 0);
    let unknown = world.promote(9);
    let again = world.promote(2);
    world.run_moment();
    assert_eq!(world.code(unknown), ErrorCode::NotFound);
    assert_eq!(world.role_answer(again), Some(Ok(false)));
}

// E17: inconsistent "already so" answers.
#[test]
fn demoting_a_worker_is_no_change() {
    let mut world = World::new(3, 1);
    let ask = world.demote(4);
    world.run_moment();
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
fn request_without_quorum_names_missing_voters() {
    use muster_role_manager::core::{Input, StepOutcome};
    let mut world = World::new(3, 1);
    world.hold_commits = true;
    world.promote(4);
    world.run_moment();
    let (step, _) = world.core.as_ref().unwrap().outbox().iter().next().unwrap();
    let missing = vec![id(2), id(3)];
    let input = Input::Committed { step, outcome: StepOutcome::NoQuorum { missing } };
    let mut effects = Vec::new();
    world.core.as_mut().unwrap().step(world.now, input, &mut effects);
    let text = format!("{effects:?}");
    assert!(text.contains("no quorum: waiting for n2, n3"), "{text}");
}
