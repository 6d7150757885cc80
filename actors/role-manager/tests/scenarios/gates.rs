use std::cell::Cell;
use std::sync::Arc;

use muster_messages::*;
use muster_role_manager::core::{Answer, AskId, Effect, Input, RequestedChange, RoleManager, RoleRequest};

use crate::world::*;

// S28
#[test]
fn with_one_of_three_silent_only_the_silent_one_may_leave() {
    let mut world = World::new(3, 0);
    world.stop_unnoticed(3);
    world.run_for(secs(1));
    let live = world.demote(2);
    world.run_moment();
    let error = world.error(live);
    assert_eq!(error.code, ErrorCode::QuorumAtRisk);
    assert!(error.message.contains("missing: n3") && error.message.contains("n2"), "{}", error.message);
    assert_eq!(error.details, r#"{"answering":1,"missing":["n3"],"needed":2}"#);
    assert_eq!(world.record(2).desired_role, Role::Manager, "nothing changed");
    world.set_liveness(3, Liveness::Down);
    let silent = world.demote(3);
    world.run_for(secs(1));
    assert_eq!(world.role_answer(silent), Some(Ok(true)));
    assert_eq!(world.voters(), 2);
}

// S29
#[test]
fn once_it_answers_again_it_may_be_demoted() {
    let mut world = World::new(3, 0);
    world.stop_unnoticed(3);
    world.run_for(secs(1));
    let refused = world.demote(2);
    world.run_moment();
    assert_eq!(world.code(refused), ErrorCode::QuorumAtRisk);
    world.machine(3).up = true;
    world.run_for(secs(1));
    world.demote(2);
    world.settle();
    assert!(world.is_worker(2));
    assert_eq!(world.voters(), 2);
}

// S30
#[test]
fn the_follower_of_two_live_managers_may_be_demoted() {
    let mut world = World::new(2, 0);
    world.demote(2);
    world.settle();
    assert_eq!(world.voters(), 1);
}

// S31
#[test]
fn last_manager_cannot_be_demoted() {
    let mut world = World::new(1, 1);
    let ask = world.demote(1);
    world.run_moment();
    let error = world.error(ask);
    assert_eq!(error.code, ErrorCode::LastManager);
    assert!(error.message.contains("n1 is the last manager"), "{}", error.message);
}

// S31: a manager that has not joined yet cannot take over.
#[test]
fn manager_that_has_not_joined_does_not_count() {
    let mut world = World::new(1, 1);
    world.machine(2).no_membership_requests = true;
    world.promote(2);
    world.run_for(secs(1));
    let ask = world.demote(1);
    world.run_moment();
    assert_eq!(world.code(ask), ErrorCode::LastManager);
}

// E7, E8, S35
#[test]
fn demotions_accepted_but_not_carried_out_are_counted() {
    let mut world = World::new(3, 0);
    world.hold_membership_changes = true;
    let asks = [world.demote(2), world.demote(3), world.demote(1)];
    world.run_for(secs(1));
    assert_eq!(world.role_answer(asks[0]), Some(Ok(true)));
    assert_eq!(world.role_answer(asks[1]), Some(Ok(true)));
    assert_eq!(world.code(asks[2]), ErrorCode::LastManager);
    world.hold_membership_changes = false;
    world.settle();
    assert!(world.is_manager(1) && world.is_worker(2) && world.is_worker(3));
}

// E7: also when all three are requested before the first is written.
#[test]
fn three_demotions_at_once_leave_one_manager() {
    let mut world = World::new(3, 0);
    world.hold_commits = true;
    let asks = [world.demote(1), world.demote(2), world.demote(3)];
    world.run_moment();
    assert_eq!(world.code(asks[2]), ErrorCode::LastManager);
    world.hold_commits = false;
    world.settle();
    assert!(world.is_manager(3));
    assert_eq!(world.voters(), 1);
}

// E8
#[test]
fn a_second_demotion_is_judged_against_what_the_first_leaves() {
    let mut world = World::new(4, 0);
    world.stop_unnoticed(4);
    world.run_for(secs(1));
    world.hold_membership_changes = true;
    // Four, one silent. Without n2: three, two of which answer. Without n2 and n3: two, one of which answers.
    let first = world.demote(2);
    let second = world.demote(3);
    world.run_for(secs(1));
    assert_eq!(world.role_answer(first), Some(Ok(true)));
    let error = world.error(second);
    assert_eq!(error.code, ErrorCode::QuorumAtRisk);
    assert!(error.message.contains("counting that n2 is already leaving"), "{}", error.message);
}

// E21
#[test]
fn dead_one_of_two_managers_cannot_be_demoted_with_reason() {
    let mut world = World::new(2, 0);
    // The leader has not stepped down yet: it still leads, but no member answers it.
    world.machine(2).last_ack = None;
    world.machine(2).up = true;
    let mut status = Vec::new();
    for (n, ago) in [(1, None), (2, Some(secs(3)))] {
        status.push(PeerProgress {
            raft_id: RaftId(n),
            node: Some(id(n)),
            voter: true,
            matched: 9,
            acked_ago: ago,
            in_snapshot: false,
            problem: None,
        });
    }
    let raft = RaftStatus {
        raft_id: Some(RaftId(1)),
        term: Term(9),
        leading: true,
        progress: status,
        ..RaftStatus::default()
    };
    let answers = judge(&world, raft, &[(2, Role::Worker)], secs(1));
    let error = answers[0].clone().unwrap_err();
    assert_eq!(error.code, ErrorCode::QuorumAtRisk);
    assert!(error.message.contains("2 of 2 managers must answer and 1 does; missing: n2"), "{}", error.message);
}

// E21: even sizes with half of them down, too.
#[test]
fn with_two_of_four_silent_nothing_can_change() {
    let world = World::new(4, 0);
    let progress = |n: u64| PeerProgress {
        raft_id: RaftId(n),
        node: Some(id(n)),
        voter: true,
        matched: 9,
        acked_ago: Some(if n <= 2 { TICK } else { secs(2) }),
        in_snapshot: false,
        problem: None,
    };
    let raft = RaftStatus {
        raft_id: Some(RaftId(1)),
        term: Term(9),
        leading: true,
        progress: (1..=4).map(progress).collect(),
        ..RaftStatus::default()
    };
    let answers = judge(&world, raft, &[(3, Role::Worker), (2, Role::Worker)], secs(1));
    assert!(answers.iter().all(|a| a.as_ref().is_err_and(|e| e.code == ErrorCode::QuorumAtRisk)), "{answers:?}");
}

// S90: a table of which managers may leave.
#[test]
fn permitted_demotions_depend_on_answering_voters() {
    // voters, silent ones, who leaves, allowed?
    let table: &[(u64, &[u64], u64, bool)] = &[
        (1, &[], 1, false),
        (2, &[], 2, true),
        (2, &[2], 2, false),
        (3, &[], 3, true),
        (3, &[2], 3, false),
        (3, &[2], 2, true),
        (4, &[4], 2, true),
        (4, &[4], 4, true),
        (4, &[3, 4], 4, false),
        (5, &[5], 2, true),
        (5, &[4, 5], 2, false),
        (5, &[4, 5], 5, true),
    ];
    for (voters, silent, leaver, may) in table {
        let world = World::new(*voters, 0);
        let progress = |n: u64| PeerProgress {
            raft_id: RaftId(n),
            node: Some(id(n)),
            voter: true,
            matched: 9,
            acked_ago: Some(if silent.contains(&n) { secs(2) } else { TICK }),
            in_snapshot: false,
            problem: None,
        };
        let raft = RaftStatus {
            raft_id: Some(RaftId(1)),
            term: Term(9),
            leading: true,
            progress: (1..=*voters).map(progress).collect(),
            ..RaftStatus::default()
        };
        let answers = judge(&world, raft, &[(*leaver, Role::Worker)], secs(1));
        let refused = answers.first().is_some_and(Result::is_err);
        assert_eq!(!refused, *may, "{voters} voters, {silent:?} silent, {leaver} leaves: {answers:?}");
    }
}

// E22
#[test]
fn a_fresh_leader_waits_for_acknowledgements_before_it_refuses() {
    let world = World::new(3, 0);
    let silent = RaftStatus { raft_id: Some(RaftId(1)), term: Term(9), leading: true, ..RaftStatus::default() };
    let early = judge(&world, silent.clone(), &[(3, Role::Worker)], TICK);
    assert!(early.is_empty(), "not refused yet: {early:?}");
    let late = judge(&world, silent, &[(3, Role::Worker)], secs(1));
    assert!(late[0].as_ref().is_err_and(|e| e.code == ErrorCode::QuorumAtRisk), "{late:?}");
}

// E22: nor does it accept based on acknowledgements to an older leader.
#[test]
fn new_leader_changes_nothing_without_quorum_acknowledgements() {
    let mut world = World::new(3, 0);
    world.apply_directly(Change::SetDesiredRole { node: id(3), role: Role::Worker });
    let mut effects = Vec::new();
    let mut core = muster_role_manager::RoleManager::new(id(1), world.config.clone(), None);
    let raft = RaftStatus { raft_id: Some(RaftId(1)), term: Term(9), leading: true, ..RaftStatus::default() };
    let replica = std::sync::Arc::new(Replica { tables: world.tables.clone(), raft });
    core.step(world.now, muster_role_manager::core::Input::Seen(replica), &mut effects);
    assert!(!effects.iter().any(|e| matches!(e, muster_role_manager::core::Effect::ProposeMembership { .. })));
    assert_eq!(core.view().pending[0].reason, WaitReason::RemovingMember);
}

/// Asks a leader with this status, `later` after it took over; its answers so far.
fn judge(
    world: &World,
    raft: RaftStatus,
    requests: &[(u64, Role)],
    later: std::time::Duration,
) -> Vec<Result<bool, ErrorBody>> {
    use muster_role_manager::core::*;
    let mut core = RoleManager::new(id(1), world.config.clone(), None);
    let mut effects = Vec::new();
    let replica = std::sync::Arc::new(Replica { tables: world.tables.clone(), raft });
    core.step(world.now, Input::Seen(replica.clone()), &mut effects);
    for (n, (node, role)) in (1..).zip(requests) {
        let role_request = RoleRequest {
            ask: AskId(n),
            node: id(*node),
            change: RequestedChange::Role(*role),
            by: Principal::Operator,
            request: RequestId(u128::from(n)),
        };
        core.step(world.now, Input::RoleRequested(role_request), &mut effects);
    }
    let now = Now { at: world.now.at + later, wall: world.now.wall.plus(later) };
    core.step(now, Input::Seen(replica), &mut effects);
    if let Some((step, members)) = effects.iter().find_map(reachability_check) {
        core.step(now, Input::ReachabilityChecked { step, reachable: Some(members) }, &mut effects);
    }
    let answer = |e| match e {
        Effect::Answer(_, Answer::Role(result)) => Some(result),
        _ => None,
    };
    effects.into_iter().filter_map(answer).collect()
}

/// Runs a scenario with the reachability check, which must keep the quorum, and with an injected bug, which must lose it.
fn safe_only_with_the_check(workers: u64, scenario: impl Fn(&mut World)) -> World {
    let run = |trust_recent_acks| {
        let mut world = World::new(3, workers);
        world.config.bugs.trust_recent_acks = trust_recent_acks;
        world.elect(id(1));
        world.run_for(secs(1));
        scenario(&mut world);
        world
    };
    let violation = run(true).violation;
    assert!(violation.as_ref().is_some_and(|b| b.contains("quorum is lost")), "{violation:?}");
    let world = run(false);
    assert_eq!((world.voters(), &world.violation), (3, &None), "{:#?}", world.log);
    world
}

fn refused_for_quorum(world: &World, asked: AskId) {
    let Some(Answer::Role(Err(error)) | Answer::Removed(Err(error))) = world.answers.get(&asked) else {
        panic!("{:?}", world.answers)
    };
    assert_eq!(error.code, ErrorCode::QuorumAtRisk, "{error:?}");
    assert!(error.message.contains("missing: n2"), "{error:?}");
}

#[test]
fn demotion_is_refused_right_after_another_voter_died() {
    let asked = Cell::new(AskId(0));
    let mut world = safe_only_with_the_check(0, |world| {
        world.stop_unnoticed(2);
        asked.set(world.demote(3));
        world.run_for(secs(1));
    });
    refused_for_quorum(&world, asked.get());
    world.start(2);
    world.run_for(TICK);
    world.demote(3);
    world.settle();
    assert_eq!((world.voters(), &world.violation), (2, &None), "allowed once the other voter is back");
}

#[test]
fn removal_is_refused_right_after_another_voter_died() {
    let asked = Cell::new(AskId(0));
    let world = safe_only_with_the_check(0, |world| {
        world.set_liveness(3, Liveness::Down); // by mistake: it runs
        world.run_moment();
        world.stop_unnoticed(2);
        asked.set(world.remove(3, true));
        world.run_for(secs(1));
    });
    refused_for_quorum(&world, asked.get());
}

#[test]
fn accepted_demotion_waits_if_another_voter_dies_meanwhile() {
    let mut world = safe_only_with_the_check(0, |world| {
        world.hold_commits = true;
        world.demote(3);
        world.run_moment();
        world.stop_unnoticed(2);
        world.hold_commits = false;
        world.run_for(secs(3));
    });
    assert_eq!(world.pending()[0].reason, WaitReason::QuorumAtRisk);
    world.start(2);
    world.settle();
    assert!(world.is_worker(3));
    assert_eq!((world.voters(), &world.violation), (2, &None));
}

/// Two of three voters run. A fourth voter that does not run would leave two of four.
#[test]
fn dead_learner_is_not_promoted_with_a_bare_majority() {
    safe_only_with_the_check(1, |world| {
        world.stop_unnoticed(3);
        world.promote(4);
        let caught_up = |world: &mut World| {
            let commit = world.tables.revision.0;
            let machine = world.machine(4);
            machine.last_ack.is_some() && machine.matched == commit
        };
        for _ in 0..500 {
            if caught_up(world) {
                break;
            }
            world.run_step_or_wait();
        }
        assert!(caught_up(world) && world.voters() == 3, "{:#?}", world.log);
        world.stop_unnoticed(4);
        world.run_for(TICK * 3);
    });
}

/// The leader loses leadership and regains it while the answer is in the mailbox.
#[test]
fn result_of_an_earlier_term_does_not_end_a_check() {
    let mut world = World::new(3, 0);
    world.run_for(secs(1));
    let mut core = world.core.take().unwrap();
    let check = |core: &mut RoleManager, replica: Replica, ask: u64| {
        let mut effects = Vec::new();
        core.step(world.now, Input::Seen(Arc::new(replica)), &mut effects);
        let (change, by, request) =
            (RequestedChange::Role(Role::Worker), Principal::Operator, RequestId(u128::from(ask)));
        let role_request = RoleRequest { ask: AskId(ask), node: id(3), change, by, request };
        core.step(world.now, Input::RoleRequested(role_request), &mut effects);
        effects.iter().find_map(reachability_check).expect("a check")
    };
    let status = |term, leading| {
        let raft = RaftStatus { term: Term(term), leading, ..world.raft_status() };
        Replica { tables: world.tables.clone(), raft }
    };
    let (old, everybody) = check(&mut core, status(7, true), 70);
    core.step(world.now, Input::Seen(Arc::new(status(8, false))), &mut Vec::new());
    let (new, _) = check(&mut core, status(9, true), 90);
    let proposes = |core: &mut RoleManager, step| {
        let mut effects = Vec::new();
        let reachable = Some(everybody.clone());
        core.step(world.now, Input::ReachabilityChecked { step, reachable }, &mut effects);
        effects.iter().any(|effect| matches!(effect, Effect::Propose { .. }))
    };
    assert!(!proposes(&mut core, old), "{old} of term 7 counts for term 9");
    assert!(proposes(&mut core, new));
}

#[test]
fn disabled_quorum_check_is_detected() {
    let mut world = World::new(3, 0);
    world.config.bugs.skip_quorum_gate = true;
    world.elect(id(1));
    world.run_for(secs(1));
    world.stop_unnoticed(2);
    world.run_for(secs(1));
    world.demote(3);
    world.run_for(secs(2));
    assert!(world.violation.is_some_and(|b| b.contains("quorum is lost")));
}
