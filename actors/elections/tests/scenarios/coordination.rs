//! Coordinated election, step by step: Kubernetes' own cases, restated for a coordinator that trusts only its own clock.

use muster_elections::core::coordination::rules::{NEWEST_RELEASE, PRIORITY};
use muster_elections::core::coordination::{ElectionEvent, ElectionState};
use muster_messages::*;

use crate::stage::*;
use crate::world::ms;

fn edit(spec: impl FnOnce(&mut CandidateSpec)) -> impl FnOnce(&mut Object) {
    |object| {
        let ObjectBody::LeaseCandidate(body) = &mut object.body else { panic!("a candidate") };
        spec(body);
    }
}
fn foreign(strategy: &'static str) -> impl FnOnce(&mut Object) {
    edit(move |spec| spec.strategy = strategy.to_owned())
}
fn annotated(annotations: Vec<(&str, &str)>) -> impl FnOnce(&mut Object) {
    move |object| {
        foreign(PRIORITY)(object);
        object.meta.annotations = annotations.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
    }
}

#[test]
fn lease_without_candidates_is_left_alone() {
    // K68, K69.
    let mut s = Stage::new();
    s.pass(ms(10_000));
    assert!(s.election.is_none() && s.lease().is_none());
    s.held_by("other", 15_000);
    let before = s.lease();
    s.pass(ms(10_000));
    assert!(s.election.is_none());
    assert_eq!(s.lease(), before);
}

#[test]
fn a_single_candidate_is_elected_with_its_strategy() {
    // K70, K78.
    let mut s = Stage::new();
    s.start("a", "1.30", "1.30", Elector::None);
    s.until("elected", ms(1600), |s| s.holder().as_deref() == Some("a"));
    let spec = s.spec();
    assert_eq!(spec.strategy.as_deref(), Some("OldestEmulationVersion"));
    assert_eq!((spec.duration_ms, spec.transitions, spec.preferred_holder), (Some(5000), Some(0), None));
    assert!(spec.renewed.is_some() && spec.acquired.is_some(), "clients that read it by wall clock find all fields");
    assert_eq!(s.pings, 0, "it has just given a sign of life");
    s.pass(ms(1000));
    assert_eq!(s.election.as_ref().unwrap().election_state(), &ElectionState::Settled);
}

#[test]
fn better_candidate_is_preferred_and_holder_stays_until_yield() {
    // K71.
    let mut s = Stage::new();
    s.start("new", "1.19", "1.19", DEFAULT_ELECTOR);
    s.until("elected", ms(5000), |s| s.holder().is_some());
    s.pass(ms(5000));
    s.start("old", "1.18", "1.18", Elector::None);
    s.until("preferred", ms(100), |s| s.preferred().as_deref() == Some("old"));
    assert_eq!(s.holder().as_deref(), Some("new"));
    assert_eq!(s.spec().strategy.as_deref(), Some("OldestEmulationVersion"));
    let noted: Vec<_> = s
        .events
        .iter()
        .filter(|n| matches!(n, ElectionEvent::Preferred { .. } | ElectionEvent::SkewPrevented { .. }))
        .collect();
    assert_eq!(noted.len(), 2, "{noted:?}");
}

#[test]
fn better_candidate_that_does_not_answer_is_passed_over() {
    // K72.
    let mut s = Stage::new();
    s.held_by("other", 60_000);
    s.start("old", "1.19", "1.19", Elector::None);
    s.start("new", "1.20", "1.20", Elector::None);
    s.pass(ms(30_000));
    s.kill("old");
    let took = s.until("elected", ms(60_000), |s| s.holder().as_deref() == Some("new"));
    assert!(took > ms(30_000) && took < ms(33_200), "after the holder's time and one window: {took:?}");
    assert_eq!(s.holders_in_order(), ["other", "new"]);
}

#[test]
fn expired_lease_of_a_noncandidate_goes_to_the_best_candidate() {
    // K73, K81.
    let mut s = Stage::new();
    s.held_by("stranger", 10_000);
    s.start("a", "1.30", "1.30", Elector::None);
    s.pass(ms(9_900));
    assert_eq!(s.holder().as_deref(), Some("stranger"), "its time has not run out");
    let took = s.until("elected", ms(1000), |s| s.holder().as_deref() == Some("a"));
    assert!(took <= ms(110), "elected by the expiry, not by a poll: {took:?}");
    assert_eq!((s.spec().transitions, s.preferred()), (Some(1), None));
}

#[test]
fn silent_candidate_is_not_elected_until_it_answers() {
    // K74.
    let mut s = Stage::new();
    s.start("a", "1.30", "1.30", Elector::None);
    s.mute("a");
    s.change_leader();
    s.pass(ms(10_000));
    assert_eq!((s.lease(), s.pings), (None, 1));
    assert_eq!(s.election.as_ref().unwrap().election_state(), &ElectionState::NoAnswer);
    // Its own renewal, every five minutes, also counts as an answer.
    s.until("elected", ms(300_000), |s| s.holder().is_some());
}

#[test]
fn candidate_without_a_recent_sign_is_pinged_first() {
    // K75, K76.
    let mut s = Stage::new();
    s.held_by("other", 20_000);
    s.start("a", "1.30", "1.30", Elector::None);
    // Not elected yet, hence pinged once, to be preferred.
    s.pass(ms(19_900));
    assert_eq!(s.pings, 0);
    s.mute("a");
    s.until("asked", ms(200), |s| s.pings == 1);
    assert!(s.holder().is_none());
    assert!(s.candidate("a").unwrap().pinged.is_some());
    s.pass(ms(1000));
    assert!(s.holder().is_none());
    assert_eq!(s.election.as_ref().unwrap().election_state(), &ElectionState::Asking { of: vec!["a".to_owned()] });
}

#[test]
fn foreign_strategy_elects_no_candidate_and_labels_the_lease() {
    // K77, K86, K88.
    let mut s = Stage::new();
    for n in 0..5 {
        s.start_with(&format!("c{n}"), DEFAULT_ELECTOR, 0, foreign("example.com/mine"));
    }
    s.pass(ms(30_000));
    assert_eq!((s.holder(), s.spec().holder), (None, None));
    assert_eq!(s.spec().strategy.as_deref(), Some("example.com/mine"));
    assert!(s.pings < 10, "no repeated pings: {}", s.pings);
    // An expired holder is not replaced.
    let mut s = Stage::new();
    s.held_by("stranger", 1000);
    s.start_with("a", DEFAULT_ELECTOR, 0, foreign("example.com/mine"));
    s.pass(ms(30_000));
    assert_eq!(s.spec().holder.as_deref(), Some("stranger"));
    assert_eq!(s.spec().strategy.as_deref(), Some("example.com/mine"));
    assert!(s.lease().unwrap().holding.expired);
}

#[test]
fn of_many_candidates_the_oldest_emulation_leads() {
    // K79, K87.
    let mut s = Stage::new();
    s.start("c", "1.20", "1.20", DEFAULT_ELECTOR);
    s.start("b", "1.19", "1.20", DEFAULT_ELECTOR);
    s.start("a", "1.19", "1.19", DEFAULT_ELECTOR);
    s.start("d", "1.19", "1.21", DEFAULT_ELECTOR);
    s.pass(ms(60_000));
    assert_eq!(s.holders_in_order(), ["a"]);
    assert!(s.preferred().is_none());
}

#[test]
fn deleted_contended_lease_is_elected_again() {
    // K80.
    let mut s = Stage::new();
    s.start("a", "1.30", "1.30", DEFAULT_ELECTOR);
    s.until("elected", ms(5000), |s| s.holder().is_some());
    let token = s.lease().unwrap().holding.token;
    s.pass(ms(60_000));
    s.change(Change::DeleteObject { key: key(), force: true }).unwrap();
    let took = s.until("elected again", ms(5000), |s| s.holder().as_deref() == Some("a"));
    assert!(took <= ms(510), "a lease that was held does not settle: {took:?}");
    assert!(s.lease().unwrap().holding.token > token);
}

#[test]
fn a_better_candidate_follows_when_the_holder_yields() {
    // K82, K89, with 5/3/2 timers: within 25 s.
    let mut s = Stage::new();
    let quick = Elector::Coordinated { retry: 2000, deadline: 3000, duration: 5000, release: true };
    s.start("new", "1.20", "1.20", quick);
    s.until("elected", ms(5000), |s| s.holder().as_deref() == Some("new"));
    s.pass(ms(20_000));
    s.start("old", "1.19", "1.19", quick);
    let took = s.until("swapped", ms(25_000), |s| s.holder().as_deref() == Some("old"));
    assert!(took < ms(6000), "{took:?}");
    s.pass(ms(60_000));
    assert_eq!(s.holders_in_order(), ["new", "old"]);
}

#[test]
fn dead_candidates_are_deleted_and_the_others_stay() {
    // K83, K84, K91.
    let mut s = Stage::new();
    for name in ["a", "b", "c"] {
        s.start(name, "1.30", "1.30", DEFAULT_ELECTOR);
    }
    s.pass(ms(10_000));
    s.kill("b");
    s.kill("c");
    s.pass(ms(29 * 60_000));
    assert!(s.candidate("b").is_some());
    s.pass(ms(60_000));
    assert!(s.candidate("a").is_some() && s.candidate("b").is_none() && s.candidate("c").is_none());
    assert_eq!(s.holder().as_deref(), Some("a"));
    let gone = s.events.iter().filter(|n| matches!(n, ElectionEvent::CleanedUp { .. })).count();
    assert_eq!(gone, 2);
    s.pass(ms(3_600_000));
    assert!(s.candidate("a").is_some());
}

#[test]
fn last_candidate_to_leave_ends_the_election() {
    let mut s = Stage::new();
    s.start("a", "1.30", "1.30", Elector::None);
    s.pass(ms(2000));
    s.kill("a");
    s.pass(ms(31 * 60_000));
    assert!(s.election.is_none());
}

#[test]
fn unmodified_electors_lead_one_after_the_other() {
    // K85: each leader is killed, and the next one leads after its time and a round of pings.
    let mut s = Stage::new();
    for name in ["a", "b", "c"] {
        s.start(name, "1.30", "1.30", DEFAULT_ELECTOR);
    }
    for (dead, next) in [("a", "b"), ("b", "c")] {
        s.until("a leader", ms(10_000), |s| s.holder().as_deref() == Some(dead));
        s.pass(ms(60_000));
        s.kill(dead);
        let took = s.until("the next leader", ms(30_000), |s| s.holder().as_deref() == Some(next));
        assert!(took > ms(12_900) && took < ms(16_000), "{took:?}");
    }
    assert_eq!(s.holders_in_order(), ["a", "b", "c"]);
}

#[test]
fn uncoordinated_elector_keeps_its_lease_until_it_ends() {
    // K90.
    let mut s = Stage::new();
    s.held_by("legacy", 15_000);
    s.clients.clear();
    s.start_with("legacy", Elector::Classic { retry: 2000, duration: 15_000 }, 0, |_| {});
    s.delete_candidate("legacy");
    s.start("a", "1.30", "1.30", DEFAULT_ELECTOR);
    s.pass(ms(120_000));
    assert_eq!((s.holder().as_deref(), s.preferred().as_deref()), (Some("legacy"), Some("a")));
    assert!(s.pings < 3, "no repeated pings: {}", s.pings);
    s.stop("legacy");
    let took = s.until("elected", ms(1000), |s| s.holder().as_deref() == Some("a"));
    assert!(took < ms(10), "{took:?}");
    s.pass(ms(60_000));
    assert_eq!(s.holders_in_order(), ["legacy", "a"]);
}

#[test]
fn a_new_leader_of_the_cluster_changes_no_holder() {
    // K92 concerns a coordinator with a lease of its own. This one is part of the cluster's leader.
    let mut s = Stage::new();
    s.start("a", "1.30", "1.30", DEFAULT_ELECTOR);
    s.start("b", "1.31", "1.31", DEFAULT_ELECTOR);
    s.pass(ms(20_000));
    let (token, pings) = (s.lease().unwrap().holding.token, s.pings);
    for _ in 0..5 {
        s.change_leader();
        s.pass(ms(20_000));
    }
    assert_eq!((s.holders_in_order(), s.lease().unwrap().holding.token), (vec!["a"], token));
    assert_eq!(s.pings, pings, "no ping, since the holder is best in any case");
}

#[test]
fn the_newest_release_leads_where_that_is_the_strategy() {
    let mut s = Stage::new();
    let version = |version: &'static str| {
        edit(move |spec| {
            spec.strategy = NEWEST_RELEASE.to_owned();
            spec.binary_version = version.to_owned();
            spec.emulation_version = String::new();
        })
    };
    let muster = Elector::Muster { duration: 3000 };
    s.start_with("a", muster, 0, version("1.9.0"));
    s.pass(ms(5000));
    s.start_with("b", muster, 0, version("1.10.0"));
    let took = s.until("the newer", ms(500), |s| s.holder().as_deref() == Some("b"));
    assert!(took < ms(20), "{took:?}");
    assert!(!s.events.iter().any(|n| matches!(n, ElectionEvent::SkewPrevented { .. })));
}

#[test]
fn a_priority_leads_until_its_date() {
    let mut s = Stage::new();
    let muster = Elector::Muster { duration: 3000 };
    // The scenario begins an hour into this process' time.
    let until = "2023-11-14T23:14:20Z";
    s.start_with("a", muster, 0, annotated(vec![("muster.dev/priority", "1")]));
    let annotations = vec![("muster.dev/priority", "3"), ("muster.dev/priority-until", until)];
    s.start_with("b", muster, 0, annotated(annotations));
    let start = serde_json::to_value(s.wall()).unwrap();
    assert_eq!(start, "2023-11-14T23:13:20.000Z");
    s.until("the one with a priority", ms(2000), |s| s.holder().as_deref() == Some("b"));
    s.pass(ms(50_000));
    assert_eq!(s.holder().as_deref(), Some("b"));
    s.until("the other", ms(10_000), |s| s.holder().as_deref() == Some("a"));
    assert_eq!(s.holders_in_order(), ["b", "a"]);
}

#[test]
fn native_holder_keeps_its_lease_and_sees_the_preference() {
    let mut s = Stage::new();
    s.start("a", "1.31", "1.31", Elector::Muster { duration: 3000 });
    s.until("held by its session", ms(5000), |s| s.lease().is_some_and(|l| l.holding.session.is_some()));
    s.clients.get_mut("a").unwrap().elector = Elector::None;
    s.start("b", "1.30", "1.30", Elector::None);
    s.pass(ms(100));
    assert_eq!((s.holder().as_deref(), s.preferred().as_deref()), (Some("a"), Some("b")));
}

#[test]
fn crashed_coordinator_continues_where_it_was() {
    let mut s = Stage::new();
    s.start("a", "1.30", "1.30", DEFAULT_ELECTOR);
    s.crash();
    s.pass(ms(1000));
    s.crash();
    s.until("elected", ms(600), |s| s.holder().is_some());
    s.pass(ms(10_000));
    s.kill("a");
    s.start("b", "1.30", "1.30", DEFAULT_ELECTOR);
    s.until("vacant", ms(20_000), |s| s.holder().is_none());
    s.crash();
    s.until("elected", ms(600), |s| s.holder().as_deref() == Some("b"));
    assert_eq!(s.holders_in_order(), ["a", "b"]);
}

#[test]
fn coordinator_crashing_between_ping_and_answer_pings_once() {
    let mut s = Stage::new();
    s.held_by("other", 10_000);
    s.start("a", "1.30", "1.30", Elector::None);
    s.pass(ms(9_000));
    s.mute("a");
    s.until("asked", ms(2000), |s| s.pings == 1);
    s.crash();
    s.pass(ms(2000));
    assert_eq!(s.pings, 1);
    s.pass(ms(2000));
    assert_eq!(s.election.as_ref().unwrap().election_state(), &ElectionState::NoAnswer);
}
