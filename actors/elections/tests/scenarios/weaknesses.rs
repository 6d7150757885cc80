//! Known weaknesses of coordinated election elsewhere, one scenario each.

use muster_elections::core::coordination::{ElectionEvent, ElectionState};
use muster_messages::*;

use crate::stage::*;
use crate::world::ms;

const MUSTER: Elector = Elector::Muster { duration: 3000 };

#[test]
fn candidates_starting_within_a_second_cost_one_election() {
    for gap in [0, 1, 10, 100, 300, 500, 900, 999] {
        for (first, second) in [("1.29", "1.30"), ("1.30", "1.29")] {
            for elector in [DEFAULT_ELECTOR, MUSTER] {
                let mut s = Stage::new();
                s.start("a", first, first, elector);
                s.pass(ms(gap));
                s.start("b", second, second, elector);
                s.pass(ms(60_000));
                let best = if first == "1.29" { "a" } else { "b" };
                assert_eq!(s.holders_in_order(), [best], "{first} and {second} {gap} ms later, {elector:?}");
                assert_eq!(s.elected(), [best]);
            }
        }
    }
}

#[test]
fn fleet_restart_on_a_known_lease_costs_one_election() {
    let mut s = Stage::new();
    s.start("before", "1.29", "1.29", DEFAULT_ELECTOR);
    s.pass(ms(30_000));
    s.stop("before");
    s.pass(ms(60_000));
    for (n, version) in ["1.32", "1.31", "1.30"].into_iter().enumerate() {
        s.start(&format!("c{n}"), version, version, DEFAULT_ELECTOR);
        s.pass(ms(300));
    }
    s.pass(ms(60_000));
    assert_eq!(s.elected(), ["before", "c2"]);
}

#[test]
fn arriving_candidates_delay_the_election_within_a_bound() {
    let mut s = Stage::new();
    for n in 0..20 {
        s.start(&format!("c{n}"), "1.30", "1.30", DEFAULT_ELECTOR);
        s.pass(ms(500));
    }
    let (at, _) = s.holders.iter().find(|(_, holder)| holder.is_some()).unwrap();
    assert!(at.since(Moment(3_600_000_000)) <= ms(4510), "{at:?}");
    assert_eq!(s.elected(), ["c0"], "all are equally good: the leader stays");
}

#[test]
fn better_native_candidate_takes_over_in_half_a_second() {
    let mut s = Stage::new();
    s.start("new", "1.31", "1.31", MUSTER);
    s.pass(ms(20_000));
    let token = s.lease().unwrap().holding.token;
    s.start("old", "1.30", "1.30", MUSTER);
    let took = s.until("handed over", ms(500), |s| {
        s.lease().is_some_and(|l| l.spec.held_by() == Some("old") && l.holding.session.is_some())
    });
    assert!(took < ms(20), "{took:?}");
    assert!(s.lease().unwrap().holding.token > token);
    s.pass(ms(60_000));
    assert_eq!(s.holders_in_order(), ["new", "old"]);
}

#[test]
fn released_lease_is_passed_on_at_once() {
    let mut s = Stage::new();
    s.start("a", "1.30", "1.30", DEFAULT_ELECTOR);
    s.start("b", "1.31", "1.31", DEFAULT_ELECTOR);
    s.pass(ms(60_000));
    // It stops. Its candidate remains, is better than the other, and must neither be elected nor waited for long.
    s.stop("a");
    let took = s.until("passed on", ms(5000), |s| s.holder().as_deref() == Some("b"));
    assert!(took <= ms(510), "{took:?}");
    s.pass(ms(60_000));
    assert_eq!(s.holders_in_order(), ["a", "b"]);
}

#[test]
fn live_holder_that_released_gets_the_lease_back_if_best() {
    let mut s = Stage::new();
    s.start("a", "1.30", "1.30", DEFAULT_ELECTOR);
    s.start("b", "1.31", "1.31", DEFAULT_ELECTOR);
    s.pass(ms(60_000));
    s.put_lease(|spec| spec.holder = None);
    s.pass(ms(1000));
    assert_eq!(s.holder().as_deref(), Some("a"), "not by way of the other candidate");
    assert_eq!(s.elected(), ["a", "a"]);
}

#[test]
fn clocks_of_candidates_do_not_matter() {
    // Hours ahead, hours behind, and a dead one that looks fresh by its clock.
    for offset in [-7_200_000_000, -6_000_000, 6_000_000, 7_200_000_000] {
        let mut s = Stage::new();
        s.start_with("dead", Elector::None, 7_200_000_000, |object| {
            let ObjectBody::LeaseCandidate(spec) = &mut object.body else { panic!("a candidate") };
            (spec.emulation_version, spec.binary_version) = ("1.29.0".to_owned(), "1.29.0".to_owned());
        });
        s.kill("dead");
        s.pass(ms(20_000));
        s.start_with("a", DEFAULT_ELECTOR, offset, |_| {});
        s.change_leader();
        s.until("elected", ms(6000), |s| s.holder().as_deref() == Some("a"));
        let acknowledged = s.candidate("a").unwrap();
        assert!(acknowledged.renewed > acknowledged.pinged, "one answer suffices, whatever its clock shows");
        let revision = s.tables.revision;
        s.pass(ms(1000));
        assert!(s.tables.revision.0 <= revision.0 + 2, "no flood of answers");
    }
}

#[test]
fn equal_candidates_never_alternate() {
    let mut s = Stage::new();
    for n in 0..10 {
        s.start(&format!("c{n}"), "1.30", "1.30", DEFAULT_ELECTOR);
    }
    s.pass(ms(30_000));
    let leader = s.holder().unwrap();
    for n in 10..20 {
        // Names before and after the leader's.
        s.start(&format!("{}{n}", if n % 2 == 0 { "a" } else { "z" }), "1.30", "1.30", DEFAULT_ELECTOR);
        s.change_leader();
        s.pass(ms(30_000));
    }
    assert_eq!((s.holders_in_order(), s.preferred()), (vec![leader.as_str()], None));
}

#[test]
fn preference_for_a_vanished_candidate_is_cleared() {
    let mut s = Stage::new();
    let stubborn = Elector::Classic { retry: 2000, duration: 15_000 };
    s.start("new", "1.31", "1.31", stubborn);
    s.pass(ms(10_000));
    s.start("old", "1.30", "1.30", Elector::None);
    s.pass(ms(1000));
    assert_eq!(s.preferred().as_deref(), Some("old"));
    s.delete_candidate("old");
    s.pass(ms(10));
    assert_eq!((s.holder().as_deref(), s.preferred()), (Some("new"), None));

    // Also when it was the very last candidate.
    let mut s = Stage::new();
    s.held_by("stranger", 60_000);
    s.start("only", "1.30", "1.30", Elector::None);
    s.pass(ms(1000));
    assert_eq!(s.preferred().as_deref(), Some("only"));
    s.delete_candidate("only");
    s.pass(ms(10));
    assert_eq!(s.preferred(), None);
    assert!(s.election.is_none());
}

#[test]
fn failed_command_is_retried_without_another_event() {
    let mut s = Stage::new();
    s.fail = true;
    s.start("a", "1.30", "1.30", Elector::None);
    s.pass(ms(20_000));
    assert!(s.holder().is_none());
    assert!(s.events.iter().filter(|n| matches!(n, ElectionEvent::Failed { .. })).count() > 10);
    s.fail = false;
    s.until("elected", ms(6000), |s| s.holder().is_some());
    // Pings too.
    let mut s = Stage::new();
    s.start("a", "1.30", "1.30", DEFAULT_ELECTOR);
    s.pass(ms(10_000));
    s.fail = true;
    s.kill("a");
    s.start("b", "1.30", "1.30", DEFAULT_ELECTOR);
    s.pass(ms(30_000));
    assert!(s.holder().is_none());
    s.fail = false;
    s.until("elected", ms(1000), |s| s.holder().as_deref() == Some("b"));
}

#[test]
fn contradicting_strategies_are_named_and_their_end_is_noticed() {
    let mut s = Stage::new();
    s.start("a", "1.30", "1.30", DEFAULT_ELECTOR);
    s.start_with("b", DEFAULT_ELECTOR, 0, |object| {
        let ObjectBody::LeaseCandidate(spec) = &mut object.body else { panic!("a candidate") };
        spec.strategy = "example.com/mine".to_owned();
    });
    s.pass(ms(20_000));
    assert!(s.holder().is_none());
    assert_eq!(s.election.as_ref().unwrap().election_state(), &ElectionState::Contradiction);
    let failures = s.events.iter().filter(|n| matches!(n, ElectionEvent::Failed { .. })).count();
    assert_eq!(failures, 1, "reported once");
    assert!(s.pings < 5, "{}", s.pings);
    s.delete_candidate("b");
    s.until("elected", ms(1000), |s| s.holder().as_deref() == Some("a"));
}

#[test]
fn foreign_strategy_that_disappears_is_not_final() {
    let mut s = Stage::new();
    s.start("a", "1.30", "1.30", DEFAULT_ELECTOR);
    s.start_with("b", DEFAULT_ELECTOR, 0, |object| {
        let ObjectBody::LeaseCandidate(spec) = &mut object.body else { panic!("a candidate") };
        (spec.strategy, spec.binary_version) = ("example.com/mine".to_owned(), "1.31.0".to_owned());
    });
    s.pass(ms(20_000));
    assert_eq!((s.holder(), s.spec().strategy.as_deref()), (None, Some("example.com/mine")));
    s.delete_candidate("b");
    s.until("elected", ms(1000), |s| s.holder().as_deref() == Some("a"));
    assert_eq!(s.spec().strategy.as_deref(), Some("OldestEmulationVersion"));
}

#[test]
fn dead_candidate_with_another_strategy_blocks_no_election() {
    let mut s = Stage::new();
    s.start_with("b", DEFAULT_ELECTOR, 0, |object| {
        let ObjectBody::LeaseCandidate(spec) = &mut object.body else { panic!("a candidate") };
        (spec.strategy, spec.binary_version) = ("example.com/mine".to_owned(), "1.31.0".to_owned());
    });
    s.kill("b");
    s.change_leader();
    s.start("a", "1.30", "1.30", DEFAULT_ELECTOR);
    s.until("elected", ms(10_000), |s| s.holder().as_deref() == Some("a"));
}

#[test]
fn an_absent_holder_is_an_empty_one() {
    for holder in [None, Some(String::new())] {
        let mut s = Stage::new();
        s.put_lease(|spec| {
            spec.holder = holder;
            spec.strategy = Some("OldestEmulationVersion".to_owned());
        });
        s.start("a", "1.30", "1.30", DEFAULT_ELECTOR);
        s.until("elected", ms(2000), |s| s.holder().as_deref() == Some("a"));
    }
}

#[test]
fn holder_continues_without_coordinator_and_next_is_quick() {
    let mut s = Stage::new();
    s.start("a", "1.30", "1.30", DEFAULT_ELECTOR);
    s.start("b", "1.31", "1.31", DEFAULT_ELECTOR);
    s.pass(ms(20_000));
    s.no_leader();
    s.pass(ms(600_000));
    assert_eq!(s.holder().as_deref(), Some("a"));
    // The holder ends while there is no coordinator; unmodified electors take only a lease that they were given.
    s.stop("a");
    s.pass(ms(60_000));
    assert_eq!(s.holder(), None);
    s.change_leader();
    let took = s.until("elected", ms(5000), |s| s.holder().as_deref() == Some("b"));
    assert!(took <= ms(3010), "one window for the one that does not answer: {took:?}");
}

#[test]
fn strategy_lost_by_a_client_is_written_again() {
    let mut s = Stage::new();
    s.start("a", "1.30", "1.30", DEFAULT_ELECTOR);
    s.pass(ms(10_000));
    s.put_lease(|spec| spec.strategy = None);
    s.pass(ms(100));
    assert_eq!((s.spec().strategy.as_deref(), s.holder().as_deref()), (Some("OldestEmulationVersion"), Some("a")));
    s.stop("a");
    assert_eq!(s.spec().strategy, None, "a released lease has lost it");
    s.start("b", "1.30", "1.30", DEFAULT_ELECTOR);
    s.until("elected", ms(5000), |s| s.holder().as_deref() == Some("b"));
    assert_eq!(s.spec().strategy.as_deref(), Some("OldestEmulationVersion"));
}

#[test]
fn every_election_has_a_larger_fencing_token() {
    let mut s = Stage::new();
    let mut tokens = Vec::new();
    for n in 0..6 {
        let name = format!("c{n}");
        s.start(&name, "1.30", "1.30", if n % 2 == 0 { DEFAULT_ELECTOR } else { MUSTER });
        s.until("elected", ms(20_000), |s| s.holder().as_deref() == Some(&name));
        s.pass(ms(10_000));
        tokens.push(s.lease().unwrap().holding.token);
        s.kill(&name);
        s.until("vacant", ms(20_000), |s| s.holder().is_none());
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    assert!(s.spec().transitions >= Some(5), "changes are counted");
}

#[test]
fn elected_candidate_that_never_acquires_yields_to_the_next() {
    let mut s = Stage::new();
    // Alive, but its elector hangs.
    s.start("hangs", "1.29", "1.29", Elector::None);
    s.start("b", "1.30", "1.30", DEFAULT_ELECTOR);
    s.until("the next candidate", ms(12_000), |s| s.holder().as_deref() == Some("b"));
    s.pass(ms(30_000));
    assert_eq!((s.holder().as_deref(), s.preferred()), (Some("b"), None));
    // A single candidate that hangs is better than none.
    let mut s = Stage::new();
    s.start("hangs", "1.29", "1.29", Elector::None);
    s.pass(ms(60_000));
    assert!(s.elected().len() > 5);
}

#[test]
fn many_candidates_are_pinged_a_few_at_a_time() {
    let mut s = Stage::new();
    s.held_by("other", 20_000);
    for n in 0..300 {
        s.start(&format!("c{n:03}"), "1.30", "1.30", Elector::None);
    }
    s.pass(ms(10_000));
    s.change_leader();
    s.until("elected", ms(60_000), |s| s.holder().is_some_and(|name| name.starts_with('c')));
    assert!(s.pings <= 300, "{}", s.pings);
}
