use std::sync::Arc;
use std::time::Duration;

use muster_messages::{
    Autopilot, AutopilotAction, AutopilotChange, AutopilotOutcome, AutopilotPause, AutopilotPolicy, AutopilotReason,
    Exclusion, ManagerPreference, Moment, NodeId, Principal, Role, Tables, Triple, WallTime,
};

use super::*;
use crate::core::facts::{Doubt, Maintenance, Unsettled, Worker};

const NOW: Moment = Moment(100_000_000_000);
const WALL: WallTime = WallTime(1_800_000_000_000);
const MINUTE: Duration = Duration::from_secs(60);

fn id(n: u8) -> NodeId {
    NodeId::from_entropy(u128::from(n) << 64)
}
fn ago(time: Duration) -> Moment {
    NOW - time
}
fn policy(managers: u8) -> AutopilotPolicy {
    AutopilotPolicy::new(managers)
}
fn declared(policy: AutopilotPolicy) -> Autopilot {
    Autopilot { policy: Some(Arc::new(policy)), ..Autopilot::default() }
}
fn voter(n: u8) -> Voter {
    Voter {
        node: id(n),
        name: format!("n{n}"),
        answers: true,
        seen: Some(Seen::Ready(ago(60 * MINUTE))),
        zone: None,
        release: Triple::new(1, 0, 0),
        leads: n == 1,
        leaves: false,
        wanted_by_person: false,
        never: false,
        drain: None,
        awaited_until: None,
    }
}
/// Down and silent for this long.
fn down(n: u8, time: Duration) -> Voter {
    Voter { answers: false, seen: Some(Seen::Down(ago(time))), ..voter(n) }
}
fn dead(n: u8) -> Voter {
    down(n, 10 * MINUTE)
}
fn worker(n: u8) -> Worker {
    Worker {
        node: id(n),
        name: format!("n{n}"),
        seen: Some(Seen::Ready(ago(60 * MINUTE))),
        zone: None,
        release: Triple::new(1, 0, 0),
        eligible: true,
        preference: ManagerPreference::Allow,
        demoted_by_person: false,
        backoff_until: None,
        doubt: None,
        drained: false,
    }
}
fn facts(voters: Vec<Voter>, workers: Vec<Worker>) -> Facts {
    let is_down = |seen: &Option<Seen>| matches!(seen, Some(Seen::Down(_)));
    let down = voters.iter().filter(|voter| is_down(&voter.seen)).count()
        + workers.iter().filter(|worker| is_down(&worker.seen)).count();
    let nodes = voters.len() + workers.len();
    let leads_since = ago(24 * 60 * MINUTE);
    Facts {
        voters,
        workers,
        unsettled: Vec::new(),
        nodes,
        down,
        known: true,
        leads_since,
        progressed_at: None,
        now: NOW,
        wall: WALL,
    }
}
fn decide(autopilot: &Autopilot, facts: &Facts) -> Decision {
    plan(autopilot, facts, &Config::default()).decision
}
fn reason(autopilot: &Autopilot, facts: &Facts) -> AutopilotReason {
    match decide(autopilot, facts) {
        Decision::Wait(wait) => wait.reason,
        other => panic!("it acts: {other:?}"),
    }
}
fn act(autopilot: &Autopilot, facts: &Facts) -> (AutopilotAction, NodeId) {
    match decide(autopilot, facts) {
        Decision::Act(act) => (act.action, act.node),
        other => panic!("it does not act: {other:?}"),
    }
}
fn change(action: AutopilotAction, node: u8, replaces: Option<u8>, age: Duration) -> Arc<AutopilotChange> {
    Arc::new(AutopilotChange {
        number: 1,
        at: WallTime(WALL.0 - i64::try_from(age.as_millis()).unwrap()),
        action,
        node: id(node),
        replaces: replaces.map(id),
        outcome: AutopilotOutcome::Settled,
        why: String::new(),
    })
}
fn after(policy: AutopilotPolicy, changes: Vec<Arc<AutopilotChange>>) -> Autopilot {
    Autopilot { changes: changes.into(), ..declared(policy) }
}
use AutopilotAction::{Demote, Promote};

#[test]
fn nothing_is_done_without_a_declaration_or_while_paused() {
    let facts = facts(vec![voter(1), voter(2), dead(3)], vec![worker(4)]);
    assert_eq!(reason(&Autopilot::default(), &facts), AutopilotReason::Off);
    let paused = AutopilotPause { by: Principal::Operator, at: WALL, why: "moving racks".into(), gave_up: false };
    let paused = declared(AutopilotPolicy { paused: Some(paused), ..policy(3) });
    assert_eq!(reason(&paused, &facts), AutopilotReason::Paused);
    assert_eq!(plan(&paused, &facts, &Config::default()).wake_at, None);
}

/// A leader that has just begun knows no acknowledgements: silence is not death.
#[test]
fn new_leader_waits_until_it_knows() {
    let facts = Facts { known: false, ..facts(vec![voter(1), voter(2), dead(3)], vec![worker(4)]) };
    assert_eq!(reason(&declared(policy(3)), &facts), AutopilotReason::Settling);
    assert!(plan(&declared(policy(3)), &facts, &Config::default()).wake_at.is_some());
}

#[test]
fn nothing_is_done_without_a_quorum() {
    let facts = facts(vec![voter(1), dead(2), dead(3)], vec![worker(4), worker(5)]);
    assert_eq!(reason(&declared(policy(3)), &facts), AutopilotReason::NoQuorum);
}

#[test]
fn dead_manager_goes_before_its_successor_comes() {
    let autopilot = declared(policy(3));
    let before = facts(vec![voter(1), voter(2), dead(3)], vec![worker(4)]);
    assert_eq!(act(&autopilot, &before), (Demote, id(3)));
    let gone = Worker { seen: Some(Seen::Down(ago(10 * MINUTE))), ..worker(3) };
    let between = facts(vec![voter(1), voter(2)], vec![gone, worker(4)]);
    let half = after(policy(3), vec![change(Demote, 3, Some(3), Duration::from_secs(1))]);
    let Decision::Act(second) = decide(&half, &between) else { panic!() };
    assert_eq!((second.action, second.node, second.replaces), (Promote, id(4), Some(id(3))));
}

/// Five of which two are dead, and two candidates: one exchange, and the second one only after a pause. The tolerance never falls.
#[test]
fn dead_managers_are_replaced_one_after_the_other() {
    let autopilot = declared(policy(5));
    let five = facts(vec![voter(1), voter(2), voter(3), dead(4), dead(5)], vec![worker(6), worker(7)]);
    assert_eq!((five.tolerance(), act(&autopilot, &five)), (0, (Demote, id(4))));
    let four = facts(vec![voter(1), voter(2), voter(3), dead(5)], vec![worker(6), worker(7)]);
    let half = after(policy(5), vec![change(Demote, 4, Some(4), Duration::from_secs(1))]);
    assert_eq!((four.tolerance(), act(&half, &four)), (0, (Promote, id(6))));
    let again = facts(vec![voter(1), voter(2), voter(3), dead(5), voter(6)], vec![worker(7)]);
    let whole = |age| after(policy(5), vec![change(Demote, 4, Some(4), age), change(Promote, 6, Some(4), age)]);
    assert_eq!((again.tolerance(), reason(&whole(MINUTE), &again)), (1, AutopilotReason::Slowed));
    assert_eq!(act(&whole(10 * MINUTE), &again), (Demote, id(5)));
}

#[test]
fn dead_manager_stays_without_a_candidate() {
    let autopilot = declared(policy(3));
    let none = facts(vec![voter(1), voter(2), dead(3)], Vec::new());
    assert_eq!(reason(&autopilot, &none), AutopilotReason::NoCandidate);
    // Two of five dead and one candidate: the other one stays.
    let four = facts(vec![voter(1), voter(2), voter(3), voter(6), dead(5)], Vec::new());
    assert_eq!(reason(&declared(policy(5)), &four), AutopilotReason::NoCandidate);
    // Fewer managers than declared and too few candidates for all of them: those that are there do not stay idle.
    let managers = |n: u8| (1..n).map(voter).chain([dead(n)]).collect::<Vec<_>>();
    let workers = |n: u8| (10..10 + n).map(worker).collect::<Vec<_>>();
    for (voters, candidates, number) in [(3, 1, 5), (3, 2, 5), (5, 1, 7)] {
        let few = facts(managers(voters), workers(candidates));
        assert_eq!(act(&declared(policy(number)), &few), (Demote, id(voters)), "{voters} of {number}");
    }
    assert_eq!(act(&declared(policy(5)), &facts(managers(4), workers(1))), (Promote, id(10)), "four become five first");
}

/// A session that is down is not enough, nor a voter that is silent: both together, for long enough, as this leader has seen it.
#[test]
fn manager_is_dead_only_when_down_and_silent_for_long_enough() {
    let autopilot = declared(policy(3));
    let just = down(3, 10 * MINUTE - Duration::from_millis(1));
    let young = facts(vec![voter(1), voter(2), just], vec![worker(4)]);
    assert_eq!(reason(&autopilot, &young), AutopilotReason::NotDeadYet);
    assert_eq!(plan(&autopilot, &young, &Config::default()).wake_at, Some(NOW + Duration::from_millis(1)));
    let answers = Voter { answers: true, ..dead(3) };
    assert_eq!(
        reason(&autopilot, &facts(vec![voter(1), voter(2), answers], vec![worker(4)])),
        AutopilotReason::Content
    );
    // Silent, and its session is up, or this leader has not seen it: no time is counted, and it is not well either.
    for seen in [voter(3).seen, None] {
        let silent = facts(vec![voter(1), voter(2), Voter { answers: false, seen, ..voter(3) }], vec![worker(4)]);
        let Decision::Wait(waits) = decide(&autopilot, &silent) else { panic!("it acts") };
        assert_eq!((waits.reason, waits.not_before), (AutopilotReason::NotDeadYet, None));
    }
}

/// It leaves without the autopilot, as soon as the role manager can remove it.
#[test]
fn manager_that_leaves_is_not_replaced() {
    let left = facts(vec![voter(1), voter(2), Voter { leaves: true, ..dead(3) }], vec![worker(4)]);
    assert_eq!(reason(&declared(policy(3)), &left), AutopilotReason::Busy);
}

/// Its session is down, so it is not in `unsettled`, and it answers: four managers become three without the autopilot.
#[test]
fn no_other_manager_goes_while_one_leaves() {
    let leaves = || Voter { leaves: true, seen: Some(Seen::Down(ago(MINUTE))), ..voter(4) };
    let goes = Voter { drain: Some(Maintenance { replace: true }), ..voter(3) };
    for (third, shrink) in [(voter(3), true), (goes, false)] {
        let autopilot = declared(AutopilotPolicy { shrink, ..policy(3) });
        let four = facts(vec![voter(1), voter(2), third, leaves()], Vec::new());
        assert_eq!(reason(&autopilot, &four), AutopilotReason::Busy, "shrink: {shrink}");
    }
}

#[test]
fn step_that_would_cost_the_quorum_is_not_taken() {
    // By hand there are four, two of them dead: three must answer of four, two of three.
    let four = facts(vec![voter(1), voter(2), voter(3), dead(4)], vec![worker(5)]);
    assert_eq!(act(&declared(policy(5)), &four), (Promote, id(5)));
    let weak = facts(vec![voter(1), voter(2), Voter { answers: false, ..voter(3) }], vec![worker(5), worker(6)]);
    assert_eq!(reason(&declared(policy(5)), &weak), AutopilotReason::QuorumAtRisk);
}

#[test]
fn managers_are_added_in_pairs() {
    let one = |workers| facts(vec![voter(1)], workers);
    assert_eq!(reason(&declared(policy(3)), &one(vec![worker(2)])), AutopilotReason::NoPair);
    assert_eq!(act(&declared(policy(3)), &one(vec![worker(2), worker(3)])), (Promote, id(2)));
    // The second one follows at once: an even number needs one more to answer.
    let two = facts(vec![voter(1), voter(2)], vec![worker(3)]);
    let half = after(policy(3), vec![change(Promote, 2, None, Duration::from_secs(1))]);
    assert_eq!(act(&half, &two), (Promote, id(3)));
    let three = facts(vec![voter(1), voter(2), voter(3)], vec![worker(4)]);
    assert_eq!(reason(&declared(policy(5)), &three), AutopilotReason::NoPair);
    let lone = facts(vec![voter(1), voter(2), voter(3)], vec![worker(4), worker(5)]);
    let paced = after(policy(5), vec![change(Promote, 3, None, Duration::from_secs(59))]);
    assert_eq!(reason(&paced, &lone), AutopilotReason::Slowed);
}

#[test]
fn surplus_managers_go_only_if_the_policy_shrinks() {
    let five = facts((1..=5).map(voter).collect(), Vec::new());
    assert_eq!(reason(&declared(policy(3)), &five), AutopilotReason::MoreThanDeclared);
    let shrinks = declared(AutopilotPolicy { shrink: true, ..policy(3) });
    // Not the leader, and the last one that became ready.
    let mut late = five.clone();
    late.voters[2].seen = Some(Seen::Ready(ago(MINUTE)));
    assert_eq!(act(&shrinks, &late), (Demote, id(3)));
    let mut by_hand = late.clone();
    by_hand.voters[2].wanted_by_person = true;
    assert_ne!(act(&shrinks, &by_hand), (Demote, id(3)));
    // One that is silent may be the one that is surplus.
    let mut silent = five.clone();
    silent.voters[1].answers = false;
    assert_eq!(reason(&shrinks, &silent), AutopilotReason::MoreThanDeclared);
    let mut all_by_hand = five;
    all_by_hand.voters.iter_mut().for_each(|voter| voter.wanted_by_person = true);
    assert_eq!(reason(&shrinks, &all_by_hand), AutopilotReason::MoreThanDeclared);
}

#[test]
fn change_in_progress_goes_first() {
    let mut busy = facts(vec![voter(1), voter(2), dead(3)], vec![worker(4)]);
    busy.unsettled.push(Unsettled { node: id(9), name: "n9".into(), to: Role::Manager });
    assert_eq!(reason(&declared(policy(3)), &busy), AutopilotReason::Busy);
    let begun = AutopilotChange { outcome: AutopilotOutcome::Begun, ..(*change(Promote, 4, None, MINUTE)).clone() };
    let begun = after(policy(3), vec![Arc::new(begun)]);
    let quiet = facts(vec![voter(1), voter(2), dead(3)], vec![worker(4)]);
    assert_eq!(reason(&begun, &quiet), AutopilotReason::Busy);
}

/// More likely this manager's part of the network has failed.
#[test]
fn nothing_is_replaced_while_most_nodes_are_down() {
    let gone = |n| Worker { seen: Some(Seen::Down(ago(20 * MINUTE))), ..worker(n) };
    let mut workers: Vec<Worker> = (5..=9).map(gone).collect();
    workers.extend([worker(4), worker(10)]);
    let six_of_ten = facts(vec![voter(1), voter(2), dead(3)], workers);
    assert_eq!((six_of_ten.down, six_of_ten.nodes), (6, 10));
    assert_eq!(reason(&declared(policy(3)), &six_of_ten), AutopilotReason::TooManyDown);
}

#[test]
fn replacements_in_a_row_pause_it() {
    let facts = facts(vec![voter(1), voter(2), dead(4)], vec![worker(5)]);
    let replaced = |age| vec![change(Demote, 3, Some(3), age), change(Promote, 4, Some(3), age)];
    assert!(matches!(decide(&after(policy(3), replaced(20 * MINUTE)), &facts), Decision::GiveUp(_)));
    assert_eq!(act(&after(policy(3), replaced(60 * MINUTE)), &facts), (Demote, id(4)));
    // Refused ones changed nothing.
    let refused = replaced(MINUTE)
        .into_iter()
        .map(|change| Arc::new(AutopilotChange { outcome: AutopilotOutcome::Refused, ..(*change).clone() }));
    assert_eq!(act(&after(policy(3), refused.collect()), &facts), (Demote, id(4)));
}

#[test]
fn every_exclusion_has_its_word() {
    let ready = |age| Some(Seen::Ready(ago(age)));
    let cases = [
        (Worker { preference: ManagerPreference::Never, ..worker(4) }, Exclusion::Never),
        (Worker { eligible: false, ..worker(4) }, Exclusion::NotEligible),
        (Worker { drained: true, ..worker(4) }, Exclusion::Drained),
        (Worker { demoted_by_person: true, ..worker(4) }, Exclusion::DemotedByOperator),
        (Worker { doubt: Some(Doubt::Duplicate), ..worker(4) }, Exclusion::Duplicate),
        (Worker { doubt: Some(Doubt::CertificateFailed), ..worker(4) }, Exclusion::CertificateFailed),
        (Worker { doubt: Some(Doubt::CertificateRevoked), ..worker(4) }, Exclusion::CertificateRevoked),
        (Worker { doubt: Some(Doubt::NoRelease), ..worker(4) }, Exclusion::ReleaseUnknown),
        (Worker { release: Triple::new(0, 9, 0), ..worker(4) }, Exclusion::OlderRelease),
        (Worker { backoff_until: Some(WallTime(WALL.0 + 1)), ..worker(4) }, Exclusion::Backoff),
        (Worker { seen: None, ..worker(4) }, Exclusion::NotReady),
        (Worker { seen: Some(Seen::Down(NOW)), ..worker(4) }, Exclusion::NotReady),
        (Worker { seen: ready(Duration::from_secs(29)), ..worker(4) }, Exclusion::NotStable),
    ];
    for (worker, exclusion) in cases {
        let facts = facts(vec![voter(1), voter(2)], vec![worker]);
        let plan = plan(&declared(policy(3)), &facts, &Config::default());
        assert_eq!(plan.candidates[0].standing, Err(exclusion));
        let Decision::Wait(wait) = plan.decision else { panic!("it acts on {exclusion}") };
        assert_eq!(wait.reason, AutopilotReason::NoCandidate);
        assert!(wait.message.contains(&exclusion.to_string()), "{}", wait.message);
    }
    let lifted = Worker { demoted_by_person: true, preference: ManagerPreference::Prefer, ..worker(4) };
    assert_eq!(act(&declared(policy(3)), &facts(vec![voter(1), voter(2)], vec![lifted])), (Promote, id(4)));
}

#[test]
fn candidates_have_one_order() {
    let zoned = |n, zone: &str| Worker { zone: Some(zone.into()), ..worker(n) };
    let mut voters = vec![voter(1), voter(2)];
    (voters[0].zone, voters[1].zone) = (Some("a".into()), Some("b".into()));
    let workers = vec![
        zoned(3, "a"),
        Worker { seen: Some(Seen::Ready(ago(5 * MINUTE))), ..zoned(4, "c") },
        zoned(5, "c"),
        Worker { release: Triple::new(1, 1, 0), ..zoned(6, "c") },
        Worker { preference: ManagerPreference::Prefer, ..zoned(7, "b") },
    ];
    let order = |workers: Vec<Worker>| -> Vec<NodeId> {
        let facts = facts(voters.clone(), workers);
        plan(&declared(policy(3)), &facts, &Config::default()).candidates.iter().map(|c| c.node).collect()
    };
    let expected: Vec<NodeId> = [7, 6, 5, 4, 3].map(id).into();
    assert_eq!(order(workers.clone()), expected);
    assert_eq!(order(workers.into_iter().rev().collect()), expected);
}

/// Test 3. By number of voters, from one on, and then of silent ones, from none on. An even number tolerates no more than the odd one below.
#[test]
fn tolerance_is_what_may_still_fail() {
    let expected: [&[usize]; 7] =
        [&[0], &[0, 0], &[1, 0, 0], &[1, 0, 0, 0], &[2, 1, 0, 0, 0], &[2, 1, 0, 0, 0], &[3, 2, 1, 0, 0]];
    for (voters, by_silent) in (1u8..).zip(expected) {
        for (silent, tolerance) in (0u8..).zip(by_silent) {
            let all = (1..=voters).map(|n| Voter { answers: n > silent, ..voter(n) });
            assert_eq!(facts(all.collect(), Vec::new()).tolerance(), *tolerance, "{silent} of {voters}");
        }
    }
}

/// Probably a mistake in the declaration: it is reported, also while nothing has to be done.
#[test]
fn labels_that_no_worker_has_are_named() {
    let rack = AutopilotPolicy { eligible: [("rack".into(), "a".into())].into(), ..policy(3) };
    let other = |n| Worker { eligible: false, ..worker(n) };
    let named = |workers: Vec<Worker>| {
        [vec![voter(1), voter(2), voter(3)], vec![voter(1), voter(2), dead(3)], vec![voter(1), voter(2)]].map(
            |voters| {
                let Decision::Wait(wait) = decide(&declared(rack.clone()), &facts(voters, workers.clone())) else {
                    return false;
                };
                wait.message.contains("no worker has the labels that eligible=rack=a requires")
            },
        )
    };
    assert_eq!(named(vec![other(4), other(5)]), [true; 3]);
    assert_eq!((named(vec![other(4), worker(5)]), named(Vec::new())), ([false; 3], [false; 3]));
}

/// The number that may fail one after the other, if each is replaced in time: none, if the first one would end the quorum.
#[test]
fn nothing_can_be_replaced_where_no_manager_may_fail() {
    let tolerances = |facts: &Facts| {
        let plan = plan(&declared(policy(3)), facts, &Config::default());
        let view = crate::view::view(&Tables::default(), Some(&policy(3)), facts, &plan);
        (view.tolerance, view.optimistic_tolerance)
    };
    let workers = vec![worker(4), worker(5)];
    assert_eq!(tolerances(&facts(vec![voter(1), voter(2), voter(3)], workers.clone())), (1, 3));
    assert_eq!(tolerances(&facts(vec![voter(1), voter(2), down(3, MINUTE)], workers)), (0, 0));
}

/// For a while: it keeps its membership, and does not count as down before its time is over. For good: another node comes first, then it
/// goes, although it answers.
#[test]
fn drained_manager_is_awaited_or_relieved() {
    let drain = |replace| Some(Maintenance { replace });
    let awaited_until = Some(NOW + 5 * MINUTE);
    let away = Voter { drain: drain(false), awaited_until, ..down(3, 20 * MINUTE) };
    let awaited = facts(vec![voter(1), voter(2), away], vec![worker(4)]);
    let autopilot = declared(policy(3));
    assert_eq!(reason(&autopilot, &awaited), AutopilotReason::NotDeadYet);
    assert_eq!(plan(&autopilot, &awaited, &Config::default()).wake_at, Some(NOW + 15 * MINUTE));
    let Decision::Wait(waits) = decide(&autopilot, &awaited) else { panic!("it acts") };
    assert_eq!(waits.not_before, Some(NOW + 15 * MINUTE), "from the end of the maintenance on");
    let late = facts(vec![voter(1), voter(2), dead(3)], vec![worker(4)]);
    assert_eq!(act(&autopilot, &late), (Demote, id(3)));

    // One that is to be replaced is not awaited, whatever its time.
    let gone = Voter { drain: drain(true), ..dead(3) };
    let unawaited = facts(vec![voter(1), voter(2), gone], vec![worker(4)]);
    assert_eq!(act(&autopilot, &unawaited), (Demote, id(3)));

    let leaves = |n| Voter { drain: drain(true), ..voter(n) };
    // The only manager, by way of two.
    assert_eq!(act(&declared(policy(1)), &facts(vec![leaves(1)], vec![worker(4)])), (Promote, id(4)));
    assert_eq!(act(&declared(policy(1)), &facts(vec![leaves(1), voter(4)], Vec::new())), (Demote, id(1)));
    let full = facts(vec![leaves(1), voter(2), voter(3)], vec![worker(4)]);
    assert_eq!(act(&autopilot, &full), (Promote, id(4)));
    let relieved = facts(vec![leaves(1), voter(2), voter(3), voter(4)], Vec::new());
    assert_eq!(act(&autopilot, &relieved), (Demote, id(1)));
    let lone = facts(vec![leaves(1), voter(2), voter(3)], Vec::new());
    assert_eq!(reason(&autopilot, &lone), AutopilotReason::NoCandidate);
    let silent = Voter { answers: false, ..voter(3) };
    let weak = facts(vec![leaves(1), voter(2), silent], vec![worker(4)]);
    assert_eq!(reason(&autopilot, &weak), AutopilotReason::QuorumAtRisk);
}

proptest::proptest! {
    /// AUTO-3, AUTO-5 over all small clusters: no step lowers what may fail, except that of an operator who asked for fewer.
    #[test]
    fn no_step_lowers_the_tolerance(
        managers in proptest::sample::select(vec![1u8, 3, 5, 7]),
        states in proptest::collection::vec(0u8..4, 1..8),
        workers in 0u8..4,
        shrink in proptest::bool::ANY,
    ) {
        let mut voters: Vec<Voter> = states.iter().zip(1u8..).map(|(state, n)| match state {
            0 | 1 => voter(n),
            2 => dead(n),
            _ => Voter { answers: false, ..voter(n) },
        }).collect();
        voters[0].answers = true;
        let before = facts(voters, (20..20 + workers).map(worker).collect());
        let autopilot = declared(AutopilotPolicy { shrink, ..policy(managers) });
        if let Decision::Act(act) = decide(&autopilot, &before) {
            let mut after = before.clone();
            match act.action {
                Demote => {
                    let at = after.voters.iter().position(|voter| voter.node == act.node).unwrap();
                    let gone = after.voters.remove(at);
                    let surplus = shrink && before.voters.len() > usize::from(managers);
                    proptest::prop_assert!(surplus || (!gone.answers && matches!(gone.seen, Some(Seen::Down(_)))));
                    proptest::prop_assert!(surplus || after.tolerance() >= before.tolerance());
                }
                // The newcomer does not answer yet.
                Promote => after.voters.push(Voter { node: act.node, answers: before.voters.len() == 1, ..voter(9) }),
            }
            proptest::prop_assert!(after.answering() >= majority(after.voters.len()), "{act:?}");
        }
    }
}

/// Not a limit of time: ten thousand nodes are ordered once, and each is looked at a bounded number of times.
#[test]
fn ten_thousand_workers_are_planned() {
    let workers: Vec<Worker> =
        (0..10_000u32).map(|n| Worker { node: NodeId::from_entropy(u128::from(n) << 64), ..worker(4) }).collect();
    let facts = facts(vec![voter(1), voter(2)], workers);
    let plan = plan(&declared(policy(3)), &facts, &Config::default());
    assert_eq!(plan.candidates.len(), 10_000);
    assert!(matches!(plan.decision, Decision::Act(_)));
}
