//! Which candidate is best: the rules alone.

use std::cmp::Ordering;

use muster_elections::core::coordination::candidate::{Candidate, Version};
use muster_elections::core::coordination::rules::{
    NEWEST_RELEASE, OLDEST_EMULATION_VERSION, PRIORITY, Poll, PollResult, compare, electable, strategy,
};
use muster_messages::*;

fn candidate(name: &str, created: u64, emulation: &str, binary: &str) -> Candidate {
    Candidate {
        name: name.to_owned(),
        created: Revision(created),
        binary: Version::tolerant(binary),
        emulation: Version::tolerant(emulation),
        strategy: OLDEST_EMULATION_VERSION.to_owned(),
        priority: 0,
        priority_until: None,
    }
}
fn with_strategy(strategy: &str, mut candidate: Candidate) -> Candidate {
    candidate.strategy = strategy.to_owned();
    candidate
}
fn winner(candidates: &[Candidate], incumbent: Option<&str>) -> Option<String> {
    let forwards: Vec<&Candidate> = candidates.iter().collect();
    let backwards: Vec<&Candidate> = candidates.iter().rev().collect();
    let poll_result = Poll::of(&forwards, incumbent).poll_result();
    assert_eq!(poll_result, Poll::of(&backwards, incumbent).poll_result(), "ELECT-3: whatever the order");
    match poll_result.unwrap() {
        PollResult::Elect { name, .. } => Some(name),
        _ => None,
    }
}

#[test]
fn oldest_emulation_wins_then_binary_then_candidate() {
    // K40 to K44.
    assert_eq!(winner(&[], None), None);
    assert_eq!(winner(&[candidate("a", 1, "0.1", "0.1")], None).unwrap(), "a");
    assert_eq!(winner(&[candidate("a", 1, "0.1", "0.2"), candidate("b", 2, "0.2", "0.2")], None).unwrap(), "a");
    assert_eq!(winner(&[candidate("a", 1, "0.1", "0.2"), candidate("b", 2, "0.1", "0.1")], None).unwrap(), "b");
    assert_eq!(winner(&[candidate("b", 1, "0.1", "0.1"), candidate("a", 2, "0.1", "0.1")], None).unwrap(), "b");
}

#[test]
fn versions_are_read_tolerantly_and_compared_as_numbers() {
    // K45 to K49.
    let able = |emulation, binary| electable(OLDEST_EMULATION_VERSION, &candidate("a", 1, emulation, binary));
    assert!(able("1.30.0", "1.31.0"));
    assert!(!able("garbage", "1.31.0") && !able("1.30.0", "garbage") && !able("", "1.30"));
    for (text, version) in [
        ("1.30.2", Some([1, 30, 2])),
        ("v1.30", Some([1, 30, 0])),
        (" 2 ", Some([2, 0, 0])),
        ("1.30.0-rc.1+build.7", Some([1, 30, 0])),
        ("01.002.3", Some([1, 2, 3])),
        ("1.2.3.4", None),
        ("1..2", None),
        ("1.-2", None),
        ("+1.2", None),
        ("", None),
        ("99999999999999999999.0.0", None),
    ] {
        assert_eq!(Version::tolerant(text), version.map(Version), "{text:?}");
    }
    assert_eq!(Version([1, 2, 3]).to_string(), "1.2.3");
}

#[test]
fn lower_version_leads_and_an_unreadable_one_is_lowest() {
    // K50 to K57: emulation and binary alike.
    for (a, b, first) in [
        ("", "1.19", Ordering::Less),
        ("1.19", "", Ordering::Greater),
        ("xyz", "1.19", Ordering::Less),
        ("1.19", "xyz", Ordering::Greater),
        ("1.19", "1.20", Ordering::Less),
        ("1.20", "1.19", Ordering::Greater),
        ("1.2", "1.19", Ordering::Less),
        ("1.20.0", "1.20.0", Ordering::Equal),
    ] {
        let (left, right) = (candidate("a", 2, a, a), candidate("b", 1, b, b));
        assert_eq!(compare(OLDEST_EMULATION_VERSION, &left, &right), first, "{a:?} {b:?}");
    }
    assert_eq!(
        winner(&[candidate("a", 9, "1.20", "1.20"), candidate("b", 3, "1.20", "1.20")], None).unwrap(),
        "b",
        "K50"
    );
}

#[test]
fn leader_stays_unless_another_is_better() {
    // K58 to K60.
    let leader = candidate("leader", 9, "1.19", "1.19");
    let kept = |others: &[Candidate]| {
        let all: Vec<Candidate> = [std::slice::from_ref(&leader), others].concat();
        winner(&all, Some("leader")).unwrap() == "leader"
    };
    assert!(kept(&[candidate("newer", 1, "1.19", "1.20")]));
    assert!(kept(&[candidate("equal", 1, "1.19", "1.19")]));
    assert!(kept(&[]));
    assert!(!kept(&[candidate("older", 10, "1.18", "1.19")]));
}

#[test]
fn the_newest_binary_chooses_the_strategy_and_equals_must_agree() {
    let of = |candidates: &[Candidate]| {
        let all: Vec<&Candidate> = candidates.iter().collect();
        strategy(&all).map(|s| s.map(str::to_owned)).map_err(|conflict| conflict.strategies)
    };
    let make = |strategy: &str, binary: &str| with_strategy(strategy, candidate(strategy, 1, "1.0", binary));
    let some = |s: &str| Ok(Some(s.to_owned()));
    // K61 to K67.
    assert_eq!(of(&[make("x/a", "1.31")]), some("x/a"));
    assert!(of(&[make("x/a", ""), make("x/b", "")]).is_err());
    assert_eq!(of(&[make("x/a", "1.32"), make("x/b", "1.31")]), some("x/a"));
    assert_eq!(of(&[make("x/b", "1.31"), make("x/a", "1.32")]), some("x/a"));
    assert_eq!(of(&[make("x/a", "1.1.10"), make("x/b", "1.1.2")]), some("x/a"));
    assert_eq!(of(&[make("x/a", "1.31"), make("x/a", "1.31")]), some("x/a"));
    let both = ["x/a".to_owned(), "x/b".to_owned()];
    assert_eq!(of(&[make("x/b", "1.31"), make("x/a", "1.31")]), Err(both));
    assert_eq!(of(&[]), Ok(None));
}

#[test]
fn the_newest_release_leads_where_candidates_want_it() {
    let make = |name: &str, created, binary| with_strategy(NEWEST_RELEASE, candidate(name, created, "", binary));
    let all = [make("a", 1, "1.9"), make("b", 3, "1.10"), make("c", 2, "1.10"), make("d", 4, "none")];
    assert_eq!(winner(&all, None).unwrap(), "c");
    assert_eq!(winner(&all, Some("b")).unwrap(), "b", "a tie goes to the leader");
}

#[test]
fn the_highest_priority_leads_where_candidates_want_it() {
    let make = |name: &str, created, priority, version| Candidate {
        priority,
        ..with_strategy(PRIORITY, candidate(name, created, version, version))
    };
    let all = [make("a", 1, 0, "1.31"), make("b", 2, 7, "1.31"), make("c", 3, 7, "1.31"), make("d", 4, -1, "1.31")];
    assert_eq!(winner(&all, None).unwrap(), "b");
    assert_eq!(winner(&all, Some("c")).unwrap(), "c");
    let unversioned = [make("a", 1, 0, ""), make("b", 2, 1, "")];
    assert_eq!(winner(&unversioned, None).unwrap(), "b", "a priority needs no version");
}

#[test]
fn priorities_end_at_their_date() {
    let object = |annotations: &[(&str, &str)]| {
        let mut meta = ObjectMeta::fresh(Uid(1));
        meta.annotations = annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let body = ObjectBody::LeaseCandidate(CandidateSpec::default());
        Object { namespace: "default".to_owned(), name: "a".to_owned(), meta, body }
    };
    let priority = |annotations: &[(&str, &str)]| {
        Candidate::of(&object(annotations), WallTime(1_700_000_000_000))
            .map(|c| (c.priority, c.priority_until))
            .unwrap()
    };
    assert_eq!(priority(&[]), (0, None));
    assert_eq!(priority(&[("muster.dev/priority", "5")]), (5, None));
    assert_eq!(priority(&[("muster.dev/priority", "five")]), (0, None));
    let until = |at| [("muster.dev/priority", "5"), ("muster.dev/priority-until", at)];
    assert_eq!(priority(&until("2023-11-14T22:13:21Z")), (5, Some(WallTime(1_700_000_001_000))));
    assert_eq!(priority(&until("2023-11-14T22:13:20Z")), (0, None));
    assert_eq!(priority(&until("soon")), (0, None), "a date that cannot be read has passed");
}

#[test]
fn poll_knows_which_candidates_would_change_it() {
    let all = [candidate("a", 1, "1.19", "1.20"), candidate("b", 2, "1.20", "1.20")];
    let poll = Poll::of(&[&all[0], &all[1]], None);
    assert!(poll.hinges_on(&candidate("c", 3, "1.18", "1.20")));
    assert!(!poll.hinges_on(&candidate("c", 3, "1.19", "1.20")));
    assert!(!poll.hinges_on(&candidate("c", 3, "none", "1.20")));
    assert!(poll.hinges_on(&with_strategy("x/y", candidate("c", 3, "1.20", "1.21"))));
    assert!(poll.hinges_on(&with_strategy("x/y", candidate("c", 3, "1.20", "1.20"))), "it would contradict");
    assert!(!poll.hinges_on(&with_strategy("x/y", candidate("c", 3, "1.20", "1.19"))));
    assert!(Poll::of(&[], None).hinges_on(&candidate("c", 3, "none", "none")));
}
