use muster_messages::*;
use muster_role_manager::core::{Effect, Input, RoleManager};

use crate::world::*;

// S1
#[test]
fn demoted_follower_leaves_raft_and_becomes_worker_at_once() {
    let mut world = World::new(3, 0);
    let ask = world.demote(3);
    world.run_for(TICK);
    assert!(world.is_worker(3), "{:?}", world.pending());
    assert_eq!(world.voters(), 2);
    assert_eq!(world.role_answer(ask), Some(Ok(true)));
    assert!(world.pending().is_empty());
}

#[test]
fn member_is_removed_before_its_role_changes() {
    let mut world = World::new(3, 0);
    world.hold_membership_changes = true;
    world.demote(3);
    world.run_for(secs(3));
    assert_eq!(world.record(3).role, Role::Manager);
    assert_eq!(world.reason(3), Some(WaitReason::RemovingMember));
    world.hold_membership_changes = false;
    world.settle();
    assert!(world.is_worker(3));
}

// S2, S159
#[test]
fn a_worker_again_may_be_promoted_again() {
    let mut world = World::new(3, 0);
    world.demote(3);
    world.settle();
    world.machine(3).no_membership_requests = true;
    world.promote(3);
    world.run_for(secs(1));
    assert_eq!((world.record(3).role, world.voters()), (Role::Manager, 2), "it joins by itself, or not at all");
    world.machine(3).no_membership_requests = false;
    world.settle();
    assert!(world.is_manager(3));
    assert_eq!(world.tables.member_of(id(3)).unwrap().raft_id, RaftId(4));
}

// S3
#[test]
fn demotion_accepted_before_role_manager_start_is_carried_out() {
    let mut world = World::new(3, 0);
    world.apply_directly(Change::SetDesiredRole { node: id(3), role: Role::Worker });
    world.elect(id(2));
    world.settle();
    assert!(world.is_worker(3));
}

// S6, E14
#[test]
fn demotion_waits_for_quorum_with_a_reason_then_proceeds() {
    let mut world = World::new(3, 0);
    world.hold_commits = true;
    world.demote(3);
    world.run_moment();
    world.stop_unnoticed(2);
    world.run_for(secs(1));
    world.hold_commits = false;
    world.run_for(secs(12));
    assert_eq!(world.reason(3), Some(WaitReason::QuorumAtRisk));
    let pending = world.pending().remove(0);
    assert!(pending.message.contains("n2") && pending.retry_at.is_some(), "{pending:?}");
    assert!(pending.since < world.now.wall);
    assert_eq!(world.voters(), 3);
    world.machine(2).up = true;
    world.run_for(TICK * 2);
    assert!(world.is_worker(3), "{:?}", world.pending());
    let wakes = world.wakes;
    world.run_for(secs(30));
    assert!(world.wakes <= wakes + 1, "the ticker stops");
}

// S7
#[test]
fn node_deleted_during_queued_demotion_is_not_recreated() {
    let mut world = World::new(3, 0);
    world.hold_membership_changes = true;
    world.demote(3);
    world.run_moment();
    world.breaks_invariants = true;
    world.tables.nodes.remove(&id(3));
    world.hold_membership_changes = false;
    world.settle();
    assert!(!world.tables.nodes.contains_key(&id(3)));
    assert_eq!(world.voters(), 2);
}

// S9, S161
#[test]
fn self_demoting_leader_transfers_first_and_successor_finishes() {
    let mut world = World::new(3, 0);
    world.demote(1);
    world.settle();
    assert!(world.is_worker(1));
    assert_eq!(world.leader, Some(id(2)));
    world.promote(1);
    world.settle();
    assert!(world.is_manager(1));
}

// S162
#[test]
fn one_leader_after_the_other_may_be_demoted() {
    let mut world = World::new(3, 1);
    world.demote(1);
    world.settle();
    world.demote(2);
    world.settle();
    assert_eq!(world.leader, Some(id(3)));
    assert!(world.is_worker(1) && world.is_worker(2) && world.is_manager(3));
}

/// n1, which led, and n2 have left; one transfer, no chain.
fn assert_offered_once_to_n3(world: &World) {
    let offers: Vec<_> = world.log.iter().filter(|l| l.contains("offers leadership")).collect();
    assert!(offers.len() == 1 && offers[0].contains("to n3"), "n2 leaves too: {offers:?}");
    assert!(world.is_worker(1) && world.is_worker(2));
}

// E12
#[test]
fn leadership_is_transferred_once_to_a_voter_that_stays() {
    let mut world = World::new(5, 0);
    world.hold_membership_changes = true;
    world.demote(2);
    world.run_moment();
    world.demote(1);
    world.hold_membership_changes = false;
    world.settle();
    assert_offered_once_to_n3(&world);
}

// E12
#[test]
fn node_with_unwritten_demotion_is_no_transfer_target() {
    let mut world = World::new(4, 0);
    world.hold_commits = true;
    world.demote(1);
    world.demote(2);
    world.run_moment();
    world.hold_commits = false;
    world.settle();
    assert_offered_once_to_n3(&world);
}

// E13, S9
#[test]
fn failed_transfer_is_followed_by_the_next_best_target() {
    let mut world = World::new(3, 0);
    world.machine(2).refuses_leadership = true;
    world.demote(1);
    world.settle();
    assert_eq!(world.leader, Some(id(3)));
    assert!(world.is_worker(1));
    assert!(!world.log.iter().any(|l| l.contains("Remove { raft_id: RaftId(1) }") && l.contains("term 1")));
}

// E13, S9
#[test]
fn leader_removes_itself_only_when_no_voter_took_leadership() {
    let mut world = World::new(3, 0);
    world.machine(2).refuses_leadership = true;
    world.machine(3).refuses_leadership = true;
    world.demote(1);
    world.settle();
    assert!(world.is_worker(1));
    let at = |text: &str| world.log.iter().position(|l| l.contains(text)).unwrap_or(usize::MAX);
    assert!(at("offers leadership to n2") < at("offers leadership to n3"));
    assert!(at("offers leadership to n3") < at("proposes Remove { raft_id: RaftId(1) }"));
}

#[test]
fn leadership_is_offered_to_most_caught_up_voter_and_shown() {
    let mut world = World::new(3, 0);
    let mut effects = Vec::new();
    world.apply_directly(Change::SetDesiredRole { node: id(1), role: Role::Worker });
    let mut core = RoleManager::new(id(1), world.config.clone(), None);
    let raft = RaftStatus {
        raft_id: Some(RaftId(1)),
        term: Term(7),
        leading: true,
        progress: (2..=3)
            .map(|n| PeerProgress {
                raft_id: RaftId(n),
                node: Some(id(n)),
                voter: true,
                matched: 10 + n,
                acked_ago: Some(TICK),
                in_snapshot: false,
                problem: None,
            })
            .collect(),
        ..RaftStatus::default()
    };
    let replica = std::sync::Arc::new(Replica { tables: world.tables.clone(), raft });
    core.step(world.now, Input::Seen(replica), &mut effects);
    assert!(
        effects.iter().any(|e| matches!(e, Effect::TransferLeadership { to, .. } if *to == id(3))),
        "the most caught-up one: {effects:?}"
    );
    assert_eq!(core.view().pending[0].reason, WaitReason::TransferringLeadership);
}

// E16
#[test]
fn a_slow_membership_change_is_reported_and_not_proposed_twice() {
    let mut world = World::new(5, 0);
    world.hold_membership_changes = true;
    world.demote(5);
    world.demote(4);
    world.run_for(secs(4));
    assert_eq!(world.reason(5), Some(WaitReason::RemovingMember));
    assert_eq!(world.reason(4), Some(WaitReason::MembershipBusy));
    world.run_for(secs(26));
    assert_eq!(world.reason(5), Some(WaitReason::ConfChangeSlow));
    let proposed = world.log.iter().filter(|l| l.contains("proposes Remove")).count();
    assert_eq!(proposed, 1);
    world.hold_membership_changes = false;
    world.settle();
    assert!(world.is_worker(4) && world.is_worker(5));
}

// E16
#[test]
fn one_slow_node_never_delays_another() {
    let mut world = World::new(3, 3);
    // n4 never fetches its certificate, n5 cannot be dialled; n3's demotion and n6's promotion proceed regardless.
    world.machine(4).no_certificates = true;
    world.machine(5).firewalled = true;
    for n in [4, 5, 6] {
        world.promote(n);
    }
    world.demote(3);
    world.run_for(secs(1));
    assert!(world.is_manager(6) && world.is_worker(3), "{:?}", world.pending());
    assert_eq!(world.reason(4), Some(WaitReason::WaitingForCertificate));
    assert_eq!(world.reason(5), Some(WaitReason::DialBackFailed));
}

// E16
#[test]
fn demotion_waiting_for_quorum_lets_others_pass() {
    let mut world = World::new(5, 0);
    world.hold_commits = true;
    world.demote(5);
    world.demote(4);
    world.run_moment();
    world.stop_unnoticed(2);
    world.stop_unnoticed(4);
    world.run_for(secs(1));
    world.hold_commits = false;
    // n5 answers: without it three of four would have to answer and two do. n4 does not: it may leave, then n5.
    world.run_for(secs(2));
    assert_eq!(world.membership(4), Membership::None);
    world.machine(4).up = true;
    world.machine(2).up = true;
    world.settle();
    assert!(world.is_worker(4) && world.is_worker(5));
}

// S163, E50
#[test]
fn manager_demoted_while_down_settles_when_it_returns() {
    let mut world = World::new(3, 0);
    world.stop(3);
    let ask = world.demote(3);
    world.run_for(secs(2));
    assert_eq!(world.role_answer(ask), Some(Ok(true)));
    assert_eq!((world.membership(3), world.record(3).role), (Membership::None, Role::Worker));
    assert_eq!(world.reason(3), Some(WaitReason::WaitingForNode));
    assert!(!world.holds(3));
    world.start(3);
    world.settle();
    assert!(world.is_worker(3));
}

// S33, E1
#[test]
fn a_promoted_node_that_never_joined_can_be_demoted() {
    let mut world = World::new(3, 1);
    world.machine(4).no_membership_requests = true;
    world.promote(4);
    world.run_for(secs(1));
    assert_eq!(world.reason(4), Some(WaitReason::WaitingForJoin));
    let before = world.log.len();
    world.demote(4);
    world.settle();
    assert!(world.is_worker(4));
    assert!(!world.log[before..].iter().any(|l| l.contains("raft_id")), "no membership operation");
}

#[test]
fn demotion_retry_with_same_request_id_gets_first_outcome() {
    let mut world = World::new(3, 0);
    let ask = world.demote(3);
    let request = world.last_request();
    let twin = world.request_again(3, muster_role_manager::core::RequestedChange::Role(Role::Worker), request);
    world.settle();
    let late = world.request_again(3, muster_role_manager::core::RequestedChange::Role(Role::Worker), request);
    world.run_moment();
    for ask in [ask, twin, late] {
        assert_eq!(world.role_answer(ask), Some(Ok(true)), "the first outcome");
    }
    let other = world.demote(3);
    world.run_moment();
    assert_eq!(world.role_answer(other), Some(Ok(false)));
}

#[test]
fn conditions_follow_from_the_tables_without_a_leader() {
    let mut world = World::new(3, 1);
    world.machine(4).no_certificates = true;
    world.promote(4);
    world.run_for(secs(1));
    let conditions = muster_role_manager::conditions(&world.tables);
    assert_eq!(conditions.len(), 1);
    assert_eq!(conditions[&id(4)][0].reason, WaitReason::WaitingForCertificate);
    assert_eq!(conditions[&id(4)][0].kind, ConditionKind::RoleChange);
}
