//! Scenarios, as an operator sees them.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_autopilot::core::Input;
use muster_messages::*;

use crate::world::{MINUTE, World, id};

pub fn three_of_five(change: impl FnOnce(&mut AutopilotPolicy)) -> World {
    let mut world = World::new(3, 2);
    world.declare(|policy| {
        policy.replace_after_ms = 60_000;
        change(policy);
    });
    world
}

/// The same, and the role manager refuses to give a node a role. Then node 3 dies.
pub fn three_of_five_refusing(node: NodeId, role: Role) -> World {
    let mut world = three_of_five(|_| {});
    world.refuses = Some((node, role));
    world.kill(id(3));
    world
}

/// AUTO-1.
#[test]
fn nothing_happens_without_a_declaration() {
    let mut world = World::new(3, 2);
    world.kill(id(3));
    world.pass(60 * MINUTE);
    assert_eq!((world.requests.len(), world.tables.autopilot.changes.len()), (0, 0));
}

#[test]
fn dead_manager_is_replaced_and_returns_as_a_candidate() {
    let mut world = three_of_five(|_| {});
    world.kill(id(3));
    world.pass(Duration::from_secs(59));
    assert!(world.requests.is_empty(), "not before it was silent for a minute: {:?}", world.decided);
    world.pass(Duration::from_secs(1));
    assert_eq!(
        world.requests,
        [(id(3), Role::Worker)],
        "it is known to be down for less, and counts from its last answer"
    );
    world.pass(Duration::from_secs(15));
    assert_eq!(world.requests, [(id(3), Role::Worker), (id(4), Role::Manager)]);
    assert_eq!(world.voters(), BTreeSet::from([id(1), id(2), id(4)]));
    assert_eq!(world.outcome(), Some(AutopilotOutcome::Settled));
    world.revive(id(3));
    world.pass(60 * MINUTE);
    assert_eq!((world.requests.len(), world.answering()), (2, 3), "nothing moves when it returns");
    assert!(world.standing(id(3)).is_ok());
}

/// P2 of the field's complaints: each manager is away for nine minutes, one after the other.
#[test]
fn rolling_restart_replaces_nothing() {
    let mut world = World::new(3, 2);
    world.declare(|_| {});
    for n in [2, 3, 1] {
        world.kill(id(n));
        world.pass(9 * MINUTE);
        world.revive(id(n));
        world.pass(MINUTE);
    }
    assert_eq!(world.requests, []);
}

/// P1: the cluster never shrinks.
#[test]
fn deaths_without_candidates_shrink_nothing() {
    let mut world = World::new(5, 0);
    world.declare(|policy| policy.managers = 5);
    for n in [5, 4] {
        world.kill(id(n));
        world.pass(60 * MINUTE);
    }
    assert_eq!((world.requests.len(), world.voters().len()), (0, 5));
    assert!(world.decided.last().unwrap().contains("no worker can take its place"), "{:?}", world.decided);
}

#[test]
fn declared_number_is_reached_from_one_manager() {
    let mut world = World::new(1, 4);
    world.declare(|policy| policy.managers = 5);
    world.pass(10 * MINUTE);
    assert_eq!((world.answering(), world.requests.len()), (5, 4));
}

/// AUTO-6.
#[test]
fn operator_who_demotes_a_manager_has_the_last_word() {
    let mut world = three_of_five(|_| {});
    assert!(world.asks(id(3), Role::Worker));
    world.pass(5 * MINUTE);
    assert_eq!(world.requests, [(id(4), Role::Manager)], "another node takes its place");
    world.kill(id(4));
    world.pass(30 * MINUTE);
    assert_eq!(world.voters(), BTreeSet::from([id(1), id(2), id(5)]), "the demoted one is passed over");
    world.operator(AutopilotStep::Prefer { node: id(3), preference: ManagerPreference::Prefer });
    // Two replacements within an hour would pause it.
    world.pass(61 * MINUTE);
    world.kill(id(5));
    world.pass(30 * MINUTE);
    assert!(world.voters().contains(&id(3)), "{:?}", world.decided);
}

/// An operator promotes a fourth one: it stays.
#[test]
fn surplus_of_an_operator_stays_even_if_the_policy_shrinks() {
    let mut world = three_of_five(|policy| policy.shrink = true);
    assert!(world.asks(id(4), Role::Manager));
    world.pass(10 * MINUTE);
    assert!(world.voters().contains(&id(4)) && world.voters().len() == 3, "{:?}", world.requests);
}

/// Node 3 has died; node 4 is to take its place, and dies as soon as it is promoted.
fn promotion_of_a_dead_worker() -> World {
    let mut world = three_of_five(|_| {});
    world.kill(id(3));
    world.pass_until("node 4 is promoted", |world| world.requests.contains(&(id(4), Role::Manager)));
    world.kill(id(4));
    world
}

#[test]
fn promotion_that_does_not_settle_is_taken_back() {
    let mut world = promotion_of_a_dead_worker();
    world.pass(7 * MINUTE);
    let outcomes: Vec<_> = world.tables.autopilot.changes.iter().map(|change| (change.node, change.outcome)).collect();
    assert!(outcomes.contains(&(id(4), AutopilotOutcome::TakenBack)), "{outcomes:?}");
    assert_eq!(world.voters(), BTreeSet::from([id(1), id(2), id(5)]), "the next candidate: {:?}", world.requests);
}

/// The wall clocks of leaders differ by more than the time that a promotion has: it gets that time, and no more than that, from the one
/// that has just begun.
#[test]
fn promotion_has_its_time_whatever_the_clock_of_a_new_leader() {
    for hours in [1, -1] {
        let mut world = promotion_of_a_dead_worker();
        world.now.wall.0 += hours * 3_600_000;
        world.elect();
        world.pass(4 * MINUTE);
        assert_eq!(world.outcome(), Some(AutopilotOutcome::Begun), "{hours} h: {:?}", world.requests);
        world.pass(2 * MINUTE);
        assert!(world.requests.contains(&(id(4), Role::Worker)), "{hours} h: {:?}", world.requests);
    }
}

/// A pause prevents new changes; one that has begun is completed or taken back.
#[test]
fn promotion_is_taken_back_while_paused() {
    let mut world = promotion_of_a_dead_worker();
    world.pass(MINUTE);
    world.operator(AutopilotStep::Pause { why: "moving racks".into(), gave_up: false });
    world.pass(7 * MINUTE);
    assert_eq!(world.outcome(), Some(AutopilotOutcome::TakenBack), "{:?}", world.requests);
}

/// Its key may be stolen, until it presents the next certificate.
#[test]
fn worker_with_a_revoked_certificate_is_passed_over() {
    let mut world = three_of_five(|_| {});
    world.pass(MINUTE);
    let row = NodeCertificates { revoking: true, ..NodeCertificates::default() };
    world.tables.certificates.insert(id(4), std::sync::Arc::new(row));
    world.observe();
    assert_eq!((world.standing(id(4)), world.standing(id(5))), (Err(Exclusion::CertificateRevoked), Ok(1)));
}

/// The role manager refuses the request: the node is passed over for a while, and the next candidate is promoted.
#[test]
fn worker_whose_promotion_is_refused_is_passed_over() {
    let mut world = three_of_five_refusing(id(4), Role::Manager);
    world.pass(10 * MINUTE);
    assert_eq!(world.voters(), BTreeSet::from([id(1), id(2), id(5)]), "{:?}", world.decided);
}

/// The facts do not change meanwhile: without the pause the same change would begin again at once.
#[test]
fn refused_demotion_is_repeated_after_a_pause() {
    let mut world = three_of_five_refusing(id(3), Role::Worker);
    world.pass(10 * MINUTE);
    let begun = world.tables.autopilot.last_number;
    assert!((5..=10).contains(&begun), "{begun} times in nine minutes: {:?}", world.decided);
}

/// The answer to the request that takes it back is lost: the state shows that it was applied.
#[test]
fn promotion_taken_back_is_recorded_as_such() {
    for restarts in [false, true] {
        let mut world = promotion_of_a_dead_worker();
        world.loses = true;
        world.pass_until("an answer is lost", |world| !world.loses);
        if restarts {
            world.restart();
        }
        world.pass(MINUTE);
        let of_4 = world.tables.autopilot.changes.iter().find(|change| change.node == id(4)).unwrap();
        assert_eq!(of_4.outcome, AutopilotOutcome::TakenBack, "restarts: {restarts}");
    }
}

/// A new leader counts only the time for which it has itself seen a manager down.
#[test]
fn leader_change_delays_and_never_hastens() {
    let mut world = three_of_five(|policy| policy.replace_after_ms = 600_000);
    world.kill(id(3));
    for _ in 0..12 {
        world.pass(5 * MINUTE);
        world.elect();
    }
    assert_eq!(world.requests, [], "no leader has seen it down for ten minutes");
    world.pass(12 * MINUTE);
    assert_eq!(world.requests, [(id(3), Role::Worker), (id(4), Role::Manager)]);
}

#[test]
fn flapping_managers_pause_it_until_an_operator_resumes() {
    let mut world = World::new(3, 6);
    world.declare(|policy| policy.replace_after_ms = 60_000);
    for _ in 0..6 {
        let victim = world.voters().into_iter().find(|node| *node != world.leader).unwrap();
        world.kill(victim);
        world.pass(8 * MINUTE);
        world.revive(victim);
        world.pass(MINUTE);
    }
    let policy = world.tables.autopilot.policy.clone().unwrap();
    assert!(policy.paused.as_ref().is_some_and(|pause| pause.gave_up), "{:?}", world.decided);
    let before = world.requests.len();
    assert_eq!(before, 2, "one replacement: {:?}", world.requests);
    world.pass(120 * MINUTE);
    assert_eq!(world.requests.len(), before);
    world.operator(AutopilotStep::Resume);
    let victim = world.voters().into_iter().find(|node| *node != world.leader).unwrap();
    world.kill(victim);
    world.pass(5 * MINUTE);
    assert_eq!((world.requests.len(), world.answering()), (before + 2, 3));
}

/// Replacements before the operator resumed it do not count for the next pause.
#[test]
fn resumed_autopilot_replaces_within_the_hour() {
    let mut world = World::new(3, 6);
    world.declare(|policy| policy.replace_after_ms = 60_000);
    for _ in 0..2 {
        let victim = world.voters().into_iter().rfind(|node| *node != world.leader).unwrap();
        world.kill(victim);
        world.pass(12 * MINUTE);
    }
    let gave_up = |world: &World| world.tables.autopilot.policy.as_ref().unwrap().paused.is_some();
    assert!(gave_up(&world) && world.answering() == 2, "{:?}", world.decided);
    world.operator(AutopilotStep::Resume);
    world.pass(2 * MINUTE);
    assert!(!gave_up(&world) && world.answering() == 3, "{:?}", world.decided);
}

#[test]
fn paused_autopilot_begins_nothing() {
    let mut world = three_of_five(|_| {});
    world.operator(AutopilotStep::Pause { why: "moving racks".into(), gave_up: false });
    world.kill(id(3));
    world.pass(60 * MINUTE);
    assert_eq!(world.requests, []);
    world.operator(AutopilotStep::Resume);
    world.pass(MINUTE);
    assert_eq!(world.answering(), 3);
}

/// Its answers are lost, and it crashes, at every step.
#[test]
fn lost_answers_and_crashes_cost_time_only() {
    for lost_at in 0..20 {
        let mut world = three_of_five(|_| {});
        world.kill(id(3));
        for tick in 0..120 {
            world.loses = tick % 20 == lost_at;
            world.pass(Duration::from_secs(1));
            if tick % 13 == lost_at % 13 {
                world.restart();
            }
        }
        world.loses = false;
        world.pass(10 * MINUTE);
        assert_eq!(world.voters(), BTreeSet::from([id(1), id(2), id(4)]), "lost at {lost_at}: {:?}", world.requests);
        assert!(!world.lost_quorum);
    }
}

/// A replica that was shown before contains nothing new: its acknowledgements have grown older since.
#[test]
fn acknowledgements_of_an_unchanged_replica_grow_old() {
    let mut world = three_of_five(|_| {});
    world.pass(MINUTE);
    let replica = world.replica();
    let shown_after = |world: &mut World, time: Duration| {
        let at = world.now.at + time;
        let input = Input::State { replica: replica.clone(), doubts: Default::default() };
        world.core.step(at, input, &mut Vec::new());
        world.core.facts(at).answering()
    };
    assert_eq!(shown_after(&mut world, Duration::ZERO), 3);
    assert_eq!(shown_after(&mut world, Duration::from_millis(500)), 3);
    assert_eq!(shown_after(&mut world, Duration::from_millis(700)), 1, "only the leader itself");
}

/// It acknowledges heartbeats, and its state differs from the leader's.
#[test]
fn manager_that_cannot_follow_does_not_answer() {
    let mut world = three_of_five(|_| {});
    world.pass(MINUTE);
    let mut replica = Replica::clone(&world.replica());
    let (kind, since) = (PeerProblemKind::StateDiverged, world.now.wall);
    replica.raft.progress[0].problem = Some(PeerProblem { kind, message: String::new(), since });
    let input = Input::State { replica: std::sync::Arc::new(replica), doubts: Default::default() };
    world.core.step(world.now.at, input, &mut Vec::new());
    assert_eq!(world.core.facts(world.now.at).answering(), 2);
}

/// Below the feature level that introduces it nothing is written, whatever the state contains.
#[test]
fn nothing_is_written_below_its_feature_level() {
    let mut world = three_of_five(|_| {});
    world.drain(id(2), Some(Duration::ZERO), false);
    let older = world.tables.cluster.as_deref().unwrap().clone();
    world.tables.cluster = Some(std::sync::Arc::new(ClusterRecord { feature_level: AUTOPILOT_LEVEL - 1, ..older }));
    let before = world.tables.autopilot.clone();
    world.kill(id(3));
    world.pass(60 * MINUTE);
    assert_eq!((world.requests.len(), &world.tables.autopilot), (0, &before));
    let policy = Box::new(AutopilotPolicy { generation: Generation(1), ..AutopilotPolicy::new(5) });
    let refused = world.apply(&Principal::Operator, Change::Autopilot(Box::new(AutopilotStep::Declare(policy))));
    assert!(matches!(refused, Err(CommandRefusal::FeatureLevel { needs: AUTOPILOT_LEVEL, .. })), "{refused:?}");
}

/// Test 13: away for longer than `replace-after` and not drained: it is replaced, and is a candidate when it is back.
#[test]
fn restart_that_takes_too_long_costs_a_manager_its_place() {
    let mut world = World::new(3, 2);
    world.declare(|_| {});
    for n in [2, 3, 1] {
        world.kill(id(n));
        world.pass(15 * MINUTE);
        world.revive(id(n));
        world.pass(60 * MINUTE);
        assert!(!world.lost_quorum && !world.voters().contains(&id(n)));
        assert_eq!((world.answering(), world.voters().len()), (3, 3), "{:?}", world.decided);
    }
}

/// A manager whose session is down is not dead while it follows in Raft. After a gap in its acknowledgements the time of its silence
/// begins anew with the last one, although no record changes.
#[test]
fn manager_without_a_session_is_dead_once_it_is_silent() {
    let mut world = World::new(3, 2);
    world.declare(|_| {});
    world.lose_session(id(3));
    world.pass(20 * MINUTE);
    world.kill(id(3));
    world.pass(Duration::from_millis(700));
    world.observe();
    world.follows_again(id(3));
    world.pass(20 * MINUTE);
    assert_eq!(world.requests, []);
    world.kill(id(3));
    world.pass(10 * MINUTE - Duration::from_secs(1));
    assert_eq!(world.requests, []);
    world.pass(Duration::from_secs(11));
    assert_eq!(world.requests, [(id(3), Role::Worker), (id(4), Role::Manager)]);
}

/// Its demotion has begun, and the request is lost. It returns before the request is repeated, by the same leader or by the next one.
#[test]
fn manager_that_returns_before_its_demotion_stays() {
    for elects in [false, true] {
        let mut world = three_of_five(|_| {});
        world.kill(id(3));
        world.loses_request = true;
        world.pass_until("a request is lost", |world| !world.loses_request);
        world.revive(id(3));
        if elects {
            world.elect();
        }
        world.pass(60 * MINUTE);
        assert_eq!((world.requests.len(), world.outcome()), (0, Some(AutopilotOutcome::Dropped)), "elects: {elects}");
    }
}

/// The same for a surplus manager: a higher number is declared before the request is repeated.
#[test]
fn surplus_manager_that_is_declared_meanwhile_stays() {
    let mut world = World::new(5, 0);
    world.loses_request = true;
    world.declare(|policy| (policy.managers, policy.shrink) = (3, true));
    world.pass_until("a request is lost", |world| !world.loses_request);
    world.declare(|policy| policy.managers = 5);
    world.pass(60 * MINUTE);
    assert_eq!((world.requests.len(), world.outcome()), (0, Some(AutopilotOutcome::Dropped)));
}

/// The same, and an operator demotes another one: the surplus one is not demoted as well.
#[test]
fn surplus_manager_stays_if_an_operator_demotes_another() {
    let mut world = World::new(4, 0);
    world.loses_request = true;
    world.declare(|policy| (policy.managers, policy.shrink) = (3, true));
    world.pass_until("a request is lost", |world| !world.loses_request);
    // The request is repeated 5 s after it was lost: before the other manager, which an operator demotes now, has left.
    world.pass(Duration::from_secs(3));
    assert!(world.asks(id(3), Role::Worker));
    world.pass(60 * MINUTE);
    assert_eq!((world.requests.len(), world.outcome()), (0, Some(AutopilotOutcome::Dropped)));
    assert_eq!(world.voters(), BTreeSet::from([id(1), id(2), id(4)]));
}

/// Test 12: one death an hour, and enough candidates: after each, as many managers answer as declared.
#[test]
fn deaths_an_hour_apart_are_all_replaced() {
    let mut world = World::new(5, 4);
    world.declare(|policy| policy.managers = 5);
    for n in [5, 4, 3, 2] {
        world.kill(id(n));
        world.pass(60 * MINUTE);
        assert_eq!((world.answering(), world.voters().len()), (5, 5), "{:?}", world.decided);
    }
}

/// Test 26: the leader stays, and the dead one is replaced once or not at all.
#[test]
fn dead_manager_returns_at_any_second_of_its_replacement() {
    for second in 60..90 {
        let mut world = three_of_five(|_| {});
        world.kill(id(3));
        world.pass(Duration::from_secs(second));
        world.revive(id(3));
        world.pass(60 * MINUTE);
        let replaced = [(id(3), Role::Worker), (id(4), Role::Manager)];
        assert!(world.requests.is_empty() || world.requests == replaced, "after {second} s: {:?}", world.requests);
        assert_eq!(world.answering(), 3, "after {second} s");
    }
}

/// Test 27: the candidate dies at any second, and the next one follows.
#[test]
fn candidate_dies_at_any_second_of_a_replacement() {
    for second in 60..90 {
        let mut world = three_of_five(|_| {});
        world.kill(id(3));
        world.pass(Duration::from_secs(second));
        world.kill(id(4));
        world.pass(120 * MINUTE);
        world.operator(AutopilotStep::Resume);
        world.pass(60 * MINUTE);
        assert!(!world.lost_quorum, "after {second} s");
        assert_eq!(world.answering(), 3, "after {second} s: {:?}", world.decided);
    }
}

/// Test 33: paused and resumed at any second of a replacement; what has begun is finished, and nothing new begins meanwhile.
#[test]
fn pause_at_any_second_of_a_replacement() {
    for second in 60..80 {
        let mut world = three_of_five(|_| {});
        world.kill(id(3));
        world.pass(Duration::from_secs(second));
        let begun = world.tables.autopilot.last_number;
        world.operator(AutopilotStep::Pause { why: "test".into(), gave_up: false });
        world.pass(30 * MINUTE);
        world.elect();
        world.pass(30 * MINUTE);
        assert_eq!(world.tables.autopilot.last_number, begun, "after {second} s");
        assert!(world.tables.autopilot.outstanding().is_none(), "after {second} s");
        world.operator(AutopilotStep::Resume);
        world.pass(10 * MINUTE);
        assert_eq!(world.answering(), 3, "after {second} s: {:?}", world.decided);
    }
}

/// Test 30: the zone of one voter is lost; the spare comes from a zone without a manager, and nothing moves when it returns.
#[test]
fn spare_comes_from_a_zone_without_a_manager() {
    let mut world = World::new(3, 3);
    for (n, zone) in [(1, "a"), (2, "b"), (3, "c"), (4, "a"), (5, "c"), (6, "d")] {
        world.label(id(n), "rack", zone);
    }
    world.declare(|policy| (policy.zone_label, policy.replace_after_ms) = (Some("rack".into()), 60_000));
    world.pass(MINUTE);
    world.kill(id(3));
    world.kill(id(5));
    world.pass(2 * MINUTE);
    assert_eq!(world.voters(), BTreeSet::from([id(1), id(2), id(6)]));
    world.revive(id(3));
    world.revive(id(5));
    (1..=6).for_each(|n| world.label(id(n), "rack", "elsewhere"));
    world.pass(60 * MINUTE);
    assert_eq!(world.requests.len(), 2, "nothing moves for the sake of zones");
}

/// Test 24, seen from the small side: without a quorum nothing is written.
#[test]
fn cluster_without_quorum_is_left_alone() {
    let mut world = three_of_five(|_| {});
    world.pass(MINUTE);
    world.kill(id(2));
    world.kill(id(3));
    world.pass(60 * MINUTE);
    assert_eq!((world.requests.len(), world.tables.autopilot.changes.len()), (0, 0));
}

/// Test 2: a worker that is away for a moment is stable only after the whole time again. What else changes about it does not count.
#[test]
fn break_in_readiness_restarts_the_clock() {
    let mut world = three_of_five(|_| {});
    world.pass(Duration::from_secs(20));
    world.kill(id(4));
    world.pass(Duration::from_secs(11));
    world.revive(id(4));
    world.pass(Duration::from_secs(29));
    assert_eq!((world.standing(id(4)), world.standing(id(5))), (Err(Exclusion::NotStable), Ok(1)));
    world.label(id(4), "rack", "b");
    world.pass(Duration::from_secs(1));
    assert_eq!(world.standing(id(4)), Ok(1));
    // Neither up nor down for a moment is a break, too.
    for liveness in [Liveness::Unknown, Liveness::Ready] {
        world.liveness(id(5), liveness);
        world.observe();
    }
    assert_eq!((world.standing(id(4)), world.standing(id(5))), (Ok(1), Err(Exclusion::NotStable)));
}
