//! Scenarios: sequences that once failed, or that random runs reach too rarely.

use std::time::Duration;

use muster_messages::{ErrorCode, Membership, ParticipantPhase, Role, WaitReason};
use muster_simulation::{Bug, HoldPoint, Link, Simulation};

const SECOND: Duration = Duration::from_secs(1);

/// All four facts of a node agree.
fn check(u: &Simulation, name: &str, role: Role) {
    let membership = if role == Role::Manager { Membership::Voter } else { Membership::None };
    assert_eq!(
        (u.role_of(name), u.certificate_of(name), u.membership_of(name)),
        (Some(role), Some(role), membership),
        "{name}"
    );
}

#[test]
fn promotion_waits_for_its_certificate() {
    let mut u = Simulation::seeded(7).with_nodes(3).with_workers(1);
    u.hold(Link::Certificates);
    let ask = u.promote("n4");
    u.run_until("the request is accepted", |u| u.answer(ask).is_some());
    u.run_for(5 * SECOND);
    assert_eq!((u.membership_of("n4"), u.waits_for("n4")), (Membership::None, Some(WaitReason::WaitingForCertificate)));
    u.release(Link::Certificates);
    u.run_until_quiet();
    assert_eq!(u.answer(ask), Some(&Ok(true)));
    check(&u, "n4", Role::Manager);
}

/// Members {A,B,C}, C off; promote D, demote A, kill B, start C: quorum must return. C's replica is too old to know D.
fn returning_manager(seed: u64) {
    let mut u = Simulation::seeded(seed).with_nodes(3).with_workers(1);
    u.kill("n3");
    u.run_for(6 * SECOND);
    let promote = u.promote("n4");
    u.run_until("n4 votes", |u| u.answer(promote).is_some() && u.voters().contains(&"n4"));
    u.run_for(SECOND);
    let demote = u.demote("n1");
    u.run_until("the demotion is accepted", |u| u.answer(demote) == Some(&Ok(true)));
    u.run_until("n4 votes and n1 does not", |u| u.voters() == ["n2", "n3", "n4"]);
    u.run_until("n1 is a worker", |u| u.certificate_of("n1") == Some(Role::Worker));
    u.kill("n2");
    let before = u.writes_acknowledged();
    u.restart("n3");
    u.run_until("writes continue", |u| u.writes_acknowledged() > before + 3);
    u.restart("n2");
    u.run_until_quiet();
    for (name, role) in [("n1", Role::Worker), ("n2", Role::Manager), ("n3", Role::Manager), ("n4", Role::Manager)] {
        check(&u, name, role);
    }
}

#[test]
fn returning_stale_manager_restores_quorum() {
    // Ids are random: both orders of C and D occur among the seeds.
    let orders: std::collections::BTreeSet<bool> = (1..=12)
        .map(|seed| {
            let u = Simulation::seeded(seed).with_nodes(3).with_workers(1);
            let order = u.id("n3") < u.id("n4");
            returning_manager(seed);
            order
        })
        .collect();
    assert_eq!(orders.len(), 2);
}

#[test]
fn last_request_wins_at_any_interleaving() {
    for step in 0..70u64 {
        let mut u = Simulation::seeded(step).with_nodes(3);
        let victim = ["n1", "n2", "n3"][(step % 3) as usize];
        let demote = u.demote(victim);
        u.run_until("the first request is accepted", |u| u.answer(demote).is_some());
        u.run_for(Duration::from_micros(step * step * 90));
        let promote = u.promote(victim);
        u.run_until("the second request is accepted", |u| u.answer(promote).is_some());
        u.run_until_quiet();
        check(&u, victim, Role::Manager);
    }
}

/// It was away while it was demoted and promoted again; no peer can inform it that its member id was removed.
#[test]
fn manager_that_missed_a_role_flip_gets_new_member_id() {
    let mut u = Simulation::seeded(33).with_nodes(4);
    let old = u.member_of("n4");
    u.hold(Link::of("n4"));
    let demote = u.demote("n4");
    u.run_until("n4 is demoted", |u| u.answer(demote).is_some() && u.role_of("n4") == Some(Role::Worker));
    let promote = u.promote("n4");
    u.run_until("n4 is promoted again", |u| u.answer(promote).is_some() && u.role_of("n4") == Some(Role::Manager));
    u.release(Link::of("n4"));
    u.run_until_quiet();
    check(&u, "n4", Role::Manager);
    assert!(u.member_of("n4") > old);
}

/// A leader was replaced while it was frozen. What it believes after the thaw is no valid answer.
#[test]
fn deposed_leader_does_not_answer_from_stale_state() {
    for seed in 1..=8 {
        let mut u = Simulation::seeded(seed).with_nodes(3).with_workers(1);
        let old = u.leader().expect("a settled cluster has a leader").to_owned();
        u.hold(Link::of(&old));
        u.freeze(&old, 5 * SECOND);
        u.run_until("another node leads", |u| u.leader().is_some_and(|l| l != old));
        let promote = u.promote("n4");
        u.run_until("n4 votes", |u| u.answer(promote) == Some(&Ok(true)) && u.voters().contains(&"n4"));
        let demote = u.change_at(&old, "n4", Role::Worker);
        u.run_until("the request is answered", |u| u.answer(demote).is_some());
        u.release(Link::of(&old));
        u.run_until_quiet();
        let done = u.answer(demote).is_some_and(|a| a.is_ok());
        check(&u, "n4", if done { Role::Worker } else { Role::Manager });
    }
}

/// E18: one manager grows to two, and the second dies before it has caught up.
#[test]
fn single_manager_never_loses_quorum_to_a_learner() {
    for after in [1, 5, 20, 60, 100, 140, 180, 250] {
        let mut u = Simulation::seeded(18).with_nodes(1).with_workers(1);
        let ask = u.promote("n2");
        u.run_for(Duration::from_millis(after));
        let voted = u.membership_of("n2") == Membership::Voter;
        u.kill("n2");
        let before = u.writes_acknowledged();
        if voted {
            u.run_for(SECOND); // one of two voters is down: no quorum
        } else {
            u.run_until("writes continue", |u| u.writes_acknowledged() > before + 10);
        }
        u.restart("n2");
        u.run_until_quiet();
        assert_eq!(u.answer(ask), Some(&Ok(true)), "killed after {after} ms");
        check(&u, "n2", Role::Manager);
    }
}

#[test]
fn demoted_leader_hands_over_if_first_target_is_down() {
    for seed in 1..=6 {
        let mut u = Simulation::seeded(seed).with_nodes(5);
        let leader = u.leader().expect("a settled cluster has a leader").to_owned();
        // A transfer target falls silent at this moment: the transfer to it fails.
        let transfer_targets: Vec<String> =
            u.voters().into_iter().filter(|v| *v != leader).map(str::to_owned).collect();
        let ask = u.demote(&leader);
        for transfer_target in transfer_targets.iter().take(1) {
            u.kill(transfer_target);
        }
        u.run_until("the leader is a worker", |u| u.certificate_of(&leader) == Some(Role::Worker));
        assert_eq!(u.answer(ask), Some(&Ok(true)));
        for transfer_target in transfer_targets.iter().take(1) {
            u.restart(transfer_target);
        }
        u.run_until_quiet();
        check(&u, &leader, Role::Worker);
        assert_ne!(u.leader(), Some(leader.as_str()));
    }
}

#[test]
fn last_manager_and_quorum_are_protected() {
    let mut u = Simulation::seeded(3).with_nodes(3);
    u.kill("n3");
    u.run_for(6 * SECOND);
    let ask = u.demote("n2");
    u.run_until("the demotion is refused", |u| u.answer(ask).is_some());
    assert_eq!(u.answer(ask).unwrap().as_ref().map_err(|e| e.code), Err(ErrorCode::QuorumAtRisk));
    u.restart("n3");
    u.run_for(SECOND);
    for name in ["n1", "n2"] {
        let ask = u.demote(name);
        u.run_until("the node is a worker", |u| {
            u.answer(ask) == Some(&Ok(true)) && u.certificate_of(name) == Some(Role::Worker)
        });
    }
    let ask = u.demote("n3");
    u.run_until("the demotion is refused", |u| u.answer(ask).is_some());
    assert_eq!(u.answer(ask).unwrap().as_ref().map_err(|e| e.code), Err(ErrorCode::LastManager));
    u.run_until_quiet();
}

/// C is behind; A and B have acknowledged writes; A's disk is replaced. If A kept its member id, A and C would be a
/// majority without those writes.
fn lost_disk(mut u: Simulation) {
    u = u.with_nodes(3);
    let leader = u.leader().expect("a settled cluster has a leader").to_owned();
    let others: Vec<String> = u.voters().into_iter().filter(|v| *v != leader).map(str::to_owned).collect();
    let (lost, behind) = (others[0].clone(), others[1].clone());
    u.hold(Link::of(&behind));
    let before = u.writes_acknowledged();
    u.run_until("writes continue without it", |u| u.writes_acknowledged() > before + 20);
    u.cut_power(&lost);
    u.replace_disk(&lost);
    u.restart(&lost);
    u.run_until("its manager runtime runs", |u| u.runs_manager_runtime(&lost));
    u.run_for(Duration::from_millis(400));
    u.cut_power(&leader);
    u.release(Link::of(&behind));
    u.run_for(5 * SECOND);
    assert_eq!(u.leader(), None, "only the stopped leader has all entries");
    u.restart(&leader);
    u.run_until_quiet();
    check(&u, &lost, Role::Manager);
}

#[test]
fn manager_without_disk_does_not_vote_as_old_member() {
    for seed in 1..=12 {
        lost_disk(Simulation::seeded(seed));
    }
    let broken = |seed: &u64| {
        std::panic::catch_unwind(|| lost_disk(Simulation::with_bug(*seed, Some(Bug::ReuseLostMemberId)))).is_err()
    };
    assert!((1..=12).any(|seed| broken(&seed)), "the injected bug is not detected");
}

/// A removed node's process still runs, with its old certificate.
#[test]
fn removed_node_is_informed_and_never_returns() {
    let mut u = Simulation::seeded(11).with_nodes(3).with_workers(1);
    let ask = u.remove("n4", true);
    u.run_until("the node is removed", |u| u.answer(ask).is_some());
    assert_eq!(u.answer(ask), Some(&Ok(true)));
    u.run_until("the node has learned it", |u| u.has_ended("n4"));
    u.run_until_quiet();
    assert_eq!(u.role_of("n4"), None);
}

#[test]
fn cluster_recovers_after_power_loss_of_all_managers() {
    for seed in 1..=8 {
        let mut u = Simulation::seeded(seed).with_nodes(3);
        u.run_for(2 * SECOND);
        for name in ["n1", "n2", "n3"] {
            u.cut_power(name);
        }
        u.run_for(SECOND);
        for name in ["n3", "n1", "n2"] {
            u.restart(name);
        }
        let before = u.writes_acknowledged();
        u.run_until("writes continue", |u| u.writes_acknowledged() > before + 3);
        u.run_until_quiet();
    }
}

/// A member has read that the gate admits it, and a runner that no member blocks a floor above that member. Neither
/// has written yet; then both write, with a change of leader in between.
fn race(u: Simulation, first: HoldPoint) {
    let mut u = u.with_nodes(3);
    u.define("1.0.0", "1.0.0");
    let _older = u.start_candidate("1.0.0");
    u.run_until("1.0.0 is applied", |u| u.is_done("1.0.0"));
    u.define("2.0.0", "2.0.0");
    let second = if first == HoldPoint::Admission { HoldPoint::Restriction } else { HoldPoint::Admission };
    u.hold_back(first);
    u.hold_back(second);
    let member = u.start_member("1.0.0", Some("1.0.0"));
    let _newer = u.start_candidate("2.0.0");
    u.run_until("both have read", |u| u.held_back(first) > 0 && u.held_back(second) > 0);
    assert_eq!(
        (u.phase_of(member), u.is_done("1.0.0")),
        (Some(ParticipantPhase::Announced), true),
        "neither has written"
    );

    u.release_held(first);
    let written = |u: &Simulation| match first {
        HoldPoint::Admission => u.phase_of(member) == Some(ParticipantPhase::Serving),
        HoldPoint::Restriction => !u.is_done("1.0.0"),
    };
    u.run_until("the first one's entry is applied", written);
    let deposed = u.leader().expect("whose entry it was").to_owned();
    u.kill(&deposed);
    u.run_until("another node leads", |u| u.leader().is_some_and(|leader| leader != deposed));
    let refusals = ["steps refused because of blockers", "admissions refused by a gate"];
    let refused = |u: &Simulation| refusals.map(|what| u.happened(what));
    let before = refused(&u);
    u.release_held(second);
    match first {
        HoldPoint::Admission => {
            u.run_until("the restriction is refused", |u| refused(u)[0] > before[0]);
            u.run_until("the member knows that it serves", |u| u.serves(member));
            u.run_for(3 * SECOND);
            assert!(u.is_done("1.0.0") && u.serves(member), "the runner waits for the member");
            u.stop_process(member);
            u.run_until("2.0.0 is applied", |u| u.is_done("2.0.0"));
        }
        HoldPoint::Restriction => {
            u.run_until("the admission is refused", |u| refused(u)[1] > before[1]);
            u.run_until("2.0.0 is applied", |u| u.is_done("2.0.0"));
        }
    }
    let late = u.start_member("1.0.0", Some("1.0.0"));
    u.run_until("another one waits", |u| u.phase_of(late).is_some());
    u.run_for(3 * SECOND);
    assert!(!u.serves(late) && !u.serves(member), "no member below the floor serves");
    u.restart(&deposed);
    u.run_until_quiet();
}

#[test]
fn admission_and_restriction_exclude_each_other_in_any_order() {
    for seed in 1..=12 {
        race(Simulation::seeded(seed), HoldPoint::Admission);
        race(Simulation::seeded(seed), HoldPoint::Restriction);
    }
    // Decided by what was read, either order would leave a member serving below the floor.
    for (broken, first) in
        [(Bug::RestrictWithoutCheck, HoldPoint::Admission), (Bug::AdmitWithoutCheck, HoldPoint::Restriction)]
    {
        let outcome = std::panic::catch_unwind(|| race(Simulation::with_bug(1, Some(broken)), first));
        let why = outcome
            .expect_err("the violation is detected")
            .downcast::<String>()
            .expect("a scenario panics with a text");
        assert!(why.contains("RELEASE-1 is violated"), "{why}");
    }
}

/// S62: all managers were stopped. The first one to start waits; the second brings a leader, in any order.
#[test]
fn second_of_three_restarted_managers_brings_a_leader() {
    for (seed, order) in [[1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1]].into_iter().enumerate() {
        let mut u = Simulation::seeded(seed as u64).with_nodes(3).with_workers(1);
        let [first, second, third] = order.map(|n| format!("n{n}"));
        for name in ["n1", "n2", "n3"] {
            u.kill(name);
        }
        u.run_for(SECOND);
        u.restart(&first);
        u.run_for(20 * SECOND);
        assert_eq!(u.leader(), None, "{first} alone has no majority");
        let before = u.writes_acknowledged();
        u.restart(&second);
        u.run_until("writes continue with two managers", |u| {
            u.leader().is_some() && u.writes_acknowledged() > before + 3
        });
        u.run_for(SECOND);
        let (leader, term) = (u.leader().map(str::to_owned), u.term());
        u.restart(&third);
        u.run_until_quiet();
        assert_eq!((u.leader().map(str::to_owned), u.term()), (leader, term), "the third node causes no election");
        for name in ["n1", "n2", "n3"] {
            check(&u, name, Role::Manager);
        }
    }
}

/// E23, S73: a manager was removed while it was down, and returns during or after its removal.
fn removed_manager(mut u: Simulation, after: Duration, with_its_log: bool) {
    u = u.with_nodes(4);
    let gone = ["n2", "n3", "n4"].into_iter().find(|name| u.leader() != Some(*name)).expect("one of them follows");
    u.kill(gone);
    u.run_until("the node is declared down", |u| u.is_down(gone));
    let (leader, term, member_id) = (u.leader().map(str::to_owned), u.term(), u.member_of(gone));
    let ask = u.remove(gone, true);
    if after > SECOND {
        u.run_until("the node is removed", |u| u.answer(ask) == Some(&Ok(true)) && u.role_of(gone).is_none());
    }
    u.run_for(after);
    let (knew, before) = (u.role_of(gone).is_none(), u.writes_acknowledged());
    if !with_its_log {
        u.replace_disk(gone);
    }
    u.restart(gone);
    if knew {
        u.run_until("the node has learned it", |u| u.has_ended(gone));
        assert!(!u.runs_manager_runtime(gone));
    }
    u.run_for(3 * SECOND);
    assert_eq!((u.leader().map(str::to_owned), u.term()), (leader, term), "{gone} causes no election");
    assert!(u.writes_acknowledged() > before + 3, "writes continue");
    u.run_until("the removal is answered", |u| u.answer(ask).is_some());
    u.run_until_quiet();
    if u.answer(ask) == Some(&Ok(true)) {
        assert_eq!((u.role_of(gone), u.membership_of(gone)), (None, Membership::None));
        assert!(member_id.is_some() && u.has_ended(gone) && !u.runs_manager_runtime(gone));
    }
    assert_eq!(u.term(), term);
}

#[test]
fn removed_manager_returning_anytime_deposes_no_leader() {
    // Its removal takes about ten milliseconds.
    let moments = (0..12u64).map(|n| Duration::from_micros(n * n * 400)).chain([2 * SECOND, 30 * SECOND]);
    for (seed, after) in moments.enumerate() {
        for with_its_log in [true, false] {
            removed_manager(Simulation::seeded(seed as u64), after, with_its_log);
        }
    }
}

/// The autopilot replaces a manager that is cut off. That one runs on, and does not know it when it is back.
#[test]
fn replaced_manager_that_runs_on_causes_no_election() {
    for seed in 1..=6 {
        let mut u = Simulation::seeded(seed).with_autopilot().with_nodes(3).with_workers(1);
        u.declare_managers(3);
        let gone = ["n1", "n2", "n3"].into_iter().find(|name| u.leader() != Some(*name)).expect("one of them follows");
        let led_by = |u: &Simulation| (u.leader().map(str::to_owned), u.term());
        let before = led_by(&u);
        u.hold(Link::of(gone));
        // DOWN-1: a node that runs may be declared down only soon after a fault. It thaws when that is over, still cut off.
        u.freeze(gone, 15 * SECOND);
        u.run_until("another node takes its place", |u| u.membership_of("n4") == Membership::Voter);
        u.run_for(20 * SECOND);
        assert_eq!((u.membership_of(gone), u.certificate_of(gone)), (Membership::None, Some(Role::Manager)));
        assert!(u.runs_manager_runtime(gone), "it does not know that it was replaced");
        let writes = u.writes_acknowledged();
        u.release(Link::of(gone));
        u.run_for(3 * SECOND);
        assert!(u.writes_acknowledged() > writes + 3, "writes continue");
        u.run_until_quiet();
        assert_eq!(led_by(&u), before, "{gone} causes no election");
        check(&u, gone, Role::Worker);
        check(&u, "n4", Role::Manager);
    }
}
