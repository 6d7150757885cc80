//! Told stories: what happened once, somewhere, and must end well here.

use std::time::Duration;

use muster_messages::{ErrorCode, Membership, ParticipantPhase, Role, WaitReason};
use muster_universe::{Break, Link, Said, Universe};

const SECOND: Duration = Duration::from_secs(1);

/// All four facts of a node agree.
fn check(u: &Universe, name: &str, role: Role) {
    let membership = if role == Role::Manager { Membership::Voter } else { Membership::None };
    assert_eq!(
        (u.role_of(name), u.certificate_of(name), u.membership_of(name)),
        (Some(role), Some(role), membership),
        "{name}"
    );
}

#[test]
fn promotion_waits_for_its_certificate() {
    let mut u = Universe::seeded(7).with_nodes(3).with_workers(1);
    u.hold(Link::Certificates);
    let ask = u.promote("n4");
    u.run_until("the wish is accepted", |u| u.answer(ask).is_some());
    u.run_for(5 * SECOND);
    assert_eq!((u.membership_of("n4"), u.waits_for("n4")), (Membership::None, Some(WaitReason::WaitingForCertificate)));
    u.release(Link::Certificates);
    u.run_until_quiet();
    assert_eq!(u.answer(ask), Some(&Ok(true)));
    check(&u, "n4", Role::Manager);
}

/// Members {A,B,C}, C off; promote D, demote A, kill B, start C: quorum again by itself. C's copy is too old to know D.
fn returning_manager(seed: u64) {
    let mut u = Universe::seeded(seed).with_nodes(3).with_workers(1);
    u.kill("n3");
    u.run_for(6 * SECOND);
    let promote = u.promote("n4");
    u.run_until("n4 votes", |u| u.answer(promote).is_some() && u.voters().contains(&"n4"));
    u.run_for(SECOND);
    let demote = u.demote("n1");
    u.run_until("it is accepted", |u| u.answer(demote) == Some(&Ok(true)));
    u.run_until("n4 votes and n1 does not", |u| u.voters() == ["n2", "n3", "n4"]);
    u.run_until("n1 is a worker", |u| u.certificate_of("n1") == Some(Role::Worker));
    u.kill("n2");
    let before = u.writes_acknowledged();
    u.start_again("n3");
    u.run_until("writes go on", |u| u.writes_acknowledged() > before + 3);
    u.start_again("n2");
    u.run_until_quiet();
    for (name, role) in [("n1", Role::Worker), ("n2", Role::Manager), ("n3", Role::Manager), ("n4", Role::Manager)] {
        check(&u, name, role);
    }
}

#[test]
fn a_returning_manager_with_an_old_copy_restores_the_quorum() {
    // Ids are random: both orders of C and D occur among the seeds.
    let orders: std::collections::BTreeSet<bool> = (1..=12)
        .map(|seed| {
            let u = Universe::seeded(seed).with_nodes(3).with_workers(1);
            let order = u.id("n3") < u.id("n4");
            returning_manager(seed);
            order
        })
        .collect();
    assert_eq!(orders.len(), 2);
}

#[test]
fn the_last_wish_wins_at_any_interleaving() {
    for step in 0..70u64 {
        let mut u = Universe::seeded(step).with_nodes(3);
        let victim = ["n1", "n2", "n3"][(step % 3) as usize];
        let demote = u.demote(victim);
        u.run_until("the first is accepted", |u| u.answer(demote).is_some());
        u.run_for(Duration::from_micros(step * step * 90));
        let promote = u.promote(victim);
        u.run_until("the second is accepted", |u| u.answer(promote).is_some());
        u.run_until_quiet();
        check(&u, victim, Role::Manager);
    }
}

/// It was away while it was demoted and promoted again: nobody is left who would tell it that its seat is gone.
#[test]
fn a_manager_that_missed_a_flip_gets_its_new_seat() {
    let mut u = Universe::seeded(33).with_nodes(4);
    let old = u.seat_of("n4");
    u.hold(Link::of("n4"));
    let demote = u.demote("n4");
    u.run_until("it is out", |u| u.answer(demote).is_some() && u.role_of("n4") == Some(Role::Worker));
    let promote = u.promote("n4");
    u.run_until("it may come back", |u| u.answer(promote).is_some() && u.role_of("n4") == Some(Role::Manager));
    u.release(Link::of("n4"));
    u.run_until_quiet();
    check(&u, "n4", Role::Manager);
    assert!(u.seat_of("n4") > old);
}

/// A leader was replaced while it stood still. What it believes when it wakes is no answer.
#[test]
fn a_deposed_leader_does_not_say_that_it_is_so_already() {
    for seed in 1..=8 {
        let mut u = Universe::seeded(seed).with_nodes(3).with_workers(1);
        let old = u.leader().expect("a settled cluster has a leader").to_owned();
        u.hold(Link::of(&old));
        u.freeze(&old, 5 * SECOND);
        u.run_until("another leads", |u| u.leader().is_some_and(|l| l != old));
        let promote = u.promote("n4");
        u.run_until("n4 votes", |u| u.answer(promote) == Some(&Ok(true)) && u.voters().contains(&"n4"));
        let demote = u.wish_at(&old, "n4", Role::Worker);
        u.run_until("it is answered, and truly", |u| u.answer(demote).is_some());
        u.release(Link::of(&old));
        u.run_until_quiet();
        let done = u.answer(demote).is_some_and(|a| a.is_ok());
        check(&u, "n4", if done { Role::Worker } else { Role::Manager });
    }
}

/// E18: one manager grows to two, and the newcomer dies before it has caught up.
#[test]
fn one_manager_never_loses_its_quorum_to_a_newcomer() {
    for after in [1, 5, 20, 60, 100, 140, 180, 250] {
        let mut u = Universe::seeded(18).with_nodes(1).with_workers(1);
        let ask = u.promote("n2");
        u.run_for(Duration::from_millis(after));
        let voted = u.membership_of("n2") == Membership::Voter;
        u.kill("n2");
        let before = u.writes_acknowledged();
        if voted {
            u.run_for(SECOND); // two voters, one of them gone: nothing can be promised
        } else {
            u.run_until("writes go on", |u| u.writes_acknowledged() > before + 10);
        }
        u.start_again("n2");
        u.run_until_quiet();
        assert_eq!(u.answer(ask), Some(&Ok(true)), "killed after {after} ms");
        check(&u, "n2", Role::Manager);
    }
}

#[test]
fn a_leader_that_is_demoted_hands_over_even_if_the_first_heir_is_gone() {
    for seed in 1..=6 {
        let mut u = Universe::seeded(seed).with_nodes(5);
        let leader = u.leader().expect("a settled cluster has a leader").to_owned();
        // An heir falls silent in this very moment: a transfer to it fails.
        let heirs: Vec<String> = u.voters().into_iter().filter(|v| *v != leader).map(str::to_owned).collect();
        let ask = u.demote(&leader);
        for heir in heirs.iter().take(1) {
            u.kill(heir);
        }
        u.run_until("it is a worker", |u| u.certificate_of(&leader) == Some(Role::Worker));
        assert_eq!(u.answer(ask), Some(&Ok(true)));
        for heir in heirs.iter().take(1) {
            u.start_again(heir);
        }
        u.run_until_quiet();
        check(&u, &leader, Role::Worker);
        assert_ne!(u.leader(), Some(leader.as_str()));
    }
}

#[test]
fn the_last_manager_and_the_quorum_are_not_given_away() {
    let mut u = Universe::seeded(3).with_nodes(3);
    u.kill("n3");
    u.run_for(6 * SECOND);
    let ask = u.demote("n2");
    u.run_until("it is refused", |u| u.answer(ask).is_some());
    assert_eq!(u.answer(ask).unwrap().as_ref().map_err(|e| e.code), Err(ErrorCode::QuorumAtRisk));
    u.start_again("n3");
    u.run_for(SECOND);
    for name in ["n1", "n2"] {
        let ask = u.demote(name);
        u.run_until("it is a worker", |u| {
            u.answer(ask) == Some(&Ok(true)) && u.certificate_of(name) == Some(Role::Worker)
        });
    }
    let ask = u.demote("n3");
    u.run_until("it is refused", |u| u.answer(ask).is_some());
    assert_eq!(u.answer(ask).unwrap().as_ref().map_err(|e| e.code), Err(ErrorCode::LastManager));
    u.run_until_quiet();
}

/// C is behind; A and B have acknowledged writes; A's disk is replaced. If A took its old seat again, A and C would be a
/// majority that has never heard of those writes.
fn lost_disk(mut u: Universe) {
    u = u.with_nodes(3);
    let leader = u.leader().expect("a settled cluster has a leader").to_owned();
    let others: Vec<String> = u.voters().into_iter().filter(|v| *v != leader).map(str::to_owned).collect();
    let (lost, behind) = (others[0].clone(), others[1].clone());
    u.hold(Link::of(&behind));
    let before = u.writes_acknowledged();
    u.run_until("writes without it", |u| u.writes_acknowledged() > before + 20);
    u.unplug(&lost);
    u.replace_disk(&lost);
    u.start_again(&lost);
    u.run_until("it has heard of its leader", |u| u.runs_manager_half(&lost));
    u.run_for(Duration::from_millis(400));
    u.unplug(&leader);
    u.release(Link::of(&behind));
    u.run_for(5 * SECOND);
    assert_eq!(u.leader(), None, "only the leader that is off has everything");
    u.start_again(&leader);
    u.run_until_quiet();
    check(&u, &lost, Role::Manager);
}

#[test]
fn a_manager_that_lost_its_disk_does_not_vote_for_its_old_seat() {
    for seed in 1..=12 {
        lost_disk(Universe::seeded(seed));
    }
    let broken = |seed: &u64| {
        std::panic::catch_unwind(|| lost_disk(Universe::with_break(*seed, Some(Break::TakeLostSeat)))).is_err()
    };
    assert!((1..=12).any(|seed| broken(&seed)), "if it did, this story would show it");
}

/// A removed node's process still runs, with its old certificate.
#[test]
fn a_removed_node_is_told_and_never_returns() {
    let mut u = Universe::seeded(11).with_nodes(3).with_workers(1);
    let ask = u.remove("n4", true);
    u.run_until("it is gone", |u| u.answer(ask).is_some());
    assert_eq!(u.answer(ask), Some(&Ok(true)));
    u.run_until("it is told", |u| u.has_ended("n4"));
    u.run_until_quiet();
    assert_eq!(u.role_of("n4"), None);
}

#[test]
fn all_managers_lose_their_power_at_once() {
    for seed in 1..=8 {
        let mut u = Universe::seeded(seed).with_nodes(3);
        u.run_for(2 * SECOND);
        for name in ["n1", "n2", "n3"] {
            u.unplug(name);
        }
        u.run_for(SECOND);
        for name in ["n3", "n1", "n2"] {
            u.start_again(name);
        }
        let before = u.writes_acknowledged();
        u.run_until("writes go on", |u| u.writes_acknowledged() > before + 3);
        u.run_until_quiet();
    }
}

/// A member has read that the gate lets it in, and a runner that nobody is in the way of a floor above that member. Neither
/// has written yet; then both do, with another leader in between.
fn race(u: Universe, first: Said) {
    let mut u = u.with_nodes(3);
    u.define("1.0.0", "1.0.0");
    let _older = u.start_candidate("1.0.0");
    u.run_until("1.0.0 is applied", |u| u.is_done("1.0.0"));
    u.define("2.0.0", "2.0.0");
    let second = if first == Said::Admission { Said::Restriction } else { Said::Admission };
    u.hold_back(first);
    u.hold_back(second);
    let member = u.start_member("1.0.0", Some("1.0.0"));
    let _newer = u.start_candidate("2.0.0");
    u.run_until("both have read", |u| u.held_back(first) > 0 && u.held_back(second) > 0);
    assert_eq!((u.phase_of(member), u.is_done("1.0.0")), (Some(ParticipantPhase::Announced), true), "none has written");

    u.let_go(first);
    let written = |u: &Universe| match first {
        Said::Admission => u.phase_of(member) == Some(ParticipantPhase::Serving),
        Said::Restriction => !u.is_done("1.0.0"),
    };
    u.run_until("the first one's entry is applied", written);
    let deposed = u.leader().expect("whose entry it was").to_owned();
    u.kill(&deposed);
    u.run_until("another leads", |u| u.leader().is_some_and(|leader| leader != deposed));
    let refusals = ["steps refused for who serves", "admissions refused by a gate"];
    let refused = |u: &Universe| refusals.map(|what| u.happened(what));
    let before = refused(&u);
    u.let_go(second);
    match first {
        Said::Admission => {
            u.run_until("the restriction is refused", |u| refused(u)[0] > before[0]);
            u.run_until("the member knows that it serves", |u| u.serves(member));
            u.run_for(3 * SECOND);
            assert!(u.is_done("1.0.0") && u.serves(member), "the runner waits for the member");
            u.stop_process(member);
            u.run_until("2.0.0 is applied", |u| u.is_done("2.0.0"));
        }
        Said::Restriction => {
            u.run_until("the admission is refused", |u| refused(u)[1] > before[1]);
            u.run_until("2.0.0 is applied", |u| u.is_done("2.0.0"));
        }
    }
    let late = u.start_member("1.0.0", Some("1.0.0"));
    u.run_until("another one waits", |u| u.phase_of(late).is_some());
    u.run_for(3 * SECOND);
    assert!(!u.serves(late) && !u.serves(member), "nobody below the floor serves");
    u.start_again(&deposed);
    u.run_until_quiet();
}

#[test]
fn an_admission_and_a_restriction_at_once_exclude_each_other_in_both_orders_over_a_change_of_leaders() {
    for seed in 1..=12 {
        race(Universe::seeded(seed), Said::Admission);
        race(Universe::seeded(seed), Said::Restriction);
    }
    // Judged by what was read, either order would end with somebody who serves below the floor.
    for (broken, first) in [(Break::RestrictUnseen, Said::Admission), (Break::AdmitUnseen, Said::Restriction)] {
        let told = std::panic::catch_unwind(|| race(Universe::with_break(1, Some(broken)), first));
        let why = told.expect_err("it is noticed").downcast::<String>().expect("a story panics with a text");
        assert!(why.contains("RELEASE-1 is violated"), "{why}");
    }
}

/// S62: all managers were stopped. The first to come back waits; the second brings a leader, whichever they are.
#[test]
fn of_three_stopped_managers_the_second_to_start_brings_a_leader() {
    for (seed, order) in [[1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1]].into_iter().enumerate() {
        let mut u = Universe::seeded(seed as u64).with_nodes(3).with_workers(1);
        let [first, second, third] = order.map(|n| format!("n{n}"));
        for name in ["n1", "n2", "n3"] {
            u.kill(name);
        }
        u.run_for(SECOND);
        u.start_again(&first);
        u.run_for(20 * SECOND);
        assert_eq!(u.leader(), None, "{first} alone is no majority");
        let before = u.writes_acknowledged();
        u.start_again(&second);
        u.run_until("writes go on with two", |u| u.leader().is_some() && u.writes_acknowledged() > before + 3);
        u.run_for(SECOND);
        let (leader, term) = (u.leader().map(str::to_owned), u.term());
        u.start_again(&third);
        u.run_until_quiet();
        assert_eq!((u.leader().map(str::to_owned), u.term()), (leader, term), "the third disturbs nobody");
        for name in ["n1", "n2", "n3"] {
            check(&u, name, Role::Manager);
        }
    }
}

/// E23, S73: a manager was removed while it was down, and comes back at some moment of its removal or after it.
fn removed_manager(mut u: Universe, after: Duration, with_its_log: bool) {
    u = u.with_nodes(4);
    let gone = ["n2", "n3", "n4"].into_iter().find(|name| u.leader() != Some(*name)).expect("one of them follows");
    u.kill(gone);
    u.run_until("it is called down", |u| u.is_down(gone));
    let (leader, term, seat) = (u.leader().map(str::to_owned), u.term(), u.seat_of(gone));
    let ask = u.remove(gone, true);
    if after > SECOND {
        u.run_until("it is removed", |u| u.answer(ask) == Some(&Ok(true)) && u.role_of(gone).is_none());
    }
    u.run_for(after);
    let (knew, before) = (u.role_of(gone).is_none(), u.writes_acknowledged());
    if !with_its_log {
        u.replace_disk(gone);
    }
    u.start_again(gone);
    if knew {
        u.run_until("it is told", |u| u.has_ended(gone));
        assert!(!u.runs_manager_half(gone));
    }
    u.run_for(3 * SECOND);
    assert_eq!((u.leader().map(str::to_owned), u.term()), (leader, term), "{gone} deposes nobody");
    assert!(u.writes_acknowledged() > before + 3, "writes go on");
    u.run_until("the removal is answered", |u| u.answer(ask).is_some());
    u.run_until_quiet();
    if u.answer(ask) == Some(&Ok(true)) {
        assert_eq!((u.role_of(gone), u.membership_of(gone)), (None, Membership::None));
        assert!(seat.is_some() && u.has_ended(gone) && !u.runs_manager_half(gone));
    }
    assert_eq!(u.term(), term);
}

#[test]
fn a_removed_manager_that_comes_back_at_any_moment_is_told_and_deposes_nobody() {
    // Its removal takes some ten milliseconds.
    let moments = (0..12u64).map(|n| Duration::from_micros(n * n * 400)).chain([2 * SECOND, 30 * SECOND]);
    for (seed, after) in moments.enumerate() {
        for with_its_log in [true, false] {
            removed_manager(Universe::seeded(seed as u64), after, with_its_log);
        }
    }
}
