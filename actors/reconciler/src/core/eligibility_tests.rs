//! Who stands, and when they change their mind.

use muster_messages::wire::{CandidateView, GateView};
use muster_messages::{Action, Definition, Release, Revision};

use super::*;

fn triple(text: &str) -> Triple {
    text.parse().unwrap()
}
fn definition() -> Definition {
    Definition::new("schema", "2.0.0".parse().unwrap(), "db", Triple::default(), Action::Handler)
}
fn node(n: u128) -> NodeId {
    NodeId::from_entropy(n)
}

/// Member `n1` at 2.0.0 among others, by a clock that the test moves.
struct Story {
    core: Eligibility,
    now: Moment,
    definition: Option<Definition>,
    candidates: Vec<(&'static str, &'static str)>,
}

impl Story {
    fn new() -> Self {
        let me = Me { member: "n1".into(), node: Some(node(1)), release: triple("2.0.0") };
        let core = Eligibility::new(me, Patience::default(), false, None);
        let mut story =
            Self { core, now: Moment(1_000_000), definition: Some(definition()), candidates: vec![("n1", "2.0.0")] };
        story.core.step(story.now, Input::Announced(true));
        story
    }
    fn see(&mut self) {
        let candidate = |(member, release): &(&str, &str)| CandidateView {
            node: None,
            member: (*member).to_owned(),
            release: release.parse::<Release>().unwrap(),
            revision: Revision(0),
        };
        let view = RunnerView {
            revision: Revision(1),
            definition: self.definition.clone(),
            gate: GateView::default(),
            candidates: self.candidates.iter().map(candidate).collect(),
            choice: self.definition.as_ref().map(|d| d.choice).unwrap_or_default(),
            pinned: self.definition.as_ref().and_then(|d| d.pinned),
            hold: None,
            path: None,
            blockers: vec![],
            blockers_in_all: 0,
            retries: 0,
            waves: 0,
        };
        self.core.step(self.now, Input::View { view: &view, runnable: true });
    }
    fn with(&mut self, candidates: &[(&'static str, &'static str)]) -> &Verdict {
        self.candidates = candidates.to_vec();
        self.see();
        self.core.verdict()
    }
    /// Lets time pass, waking it when it asks for it.
    fn pass(&mut self, secs: u64) -> &Verdict {
        let end = self.now + Duration::from_secs(secs);
        while let Some(at) = self.core.wake_at().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.core.step(self.now, Input::Woke);
        }
        self.now = end;
        self.core.step(self.now, Input::Woke)
    }
    fn stands(&self) -> bool {
        self.core.verdict().stands
    }
}

/// Scenario 4.
#[test]
fn nobody_stands_beside_a_newer_candidate() {
    let mut story = Story::new();
    story.with(&[("n2", "2.0.1"), ("n1", "2.0.0")]);
    let verdict = story.pass(3600).clone();
    assert_eq!(verdict.why, Why::Better { member: "n2".into(), release: triple("2.0.1"), gone: false });
    assert!(!verdict.stands);
}

#[test]
fn equals_stand_together_and_older_ones_are_no_reason() {
    let mut story = Story::new();
    story.with(&[("n1", "2.0.0"), ("n2", "2.0.0"), ("n3", "1.9.9")]);
    assert!(!story.stands(), "not before a second has passed");
    assert!(story.pass(1).stands);
}

/// I6.
#[test]
fn a_newer_candidate_displaces_an_older_one_within_a_second() {
    let mut story = Story::new();
    story.see();
    assert!(story.pass(1).stands);
    assert!(story.with(&[("n2", "3.0.0"), ("n1", "2.0.0")]).stands, "it may be gone again at once");
    assert!(!story.pass(1).stands);
}

#[test]
fn a_flicker_of_a_newer_candidate_changes_nothing_until_it_lasts() {
    let mut story = Story::new();
    story.see();
    story.pass(1);
    // Seen once and gone: it counts for a while, because it may be starting again.
    story.with(&[("n2", "3.0.0"), ("n1", "2.0.0")]);
    story.with(&[("n1", "2.0.0")]);
    assert!(!story.pass(2).stands);
    assert!(matches!(story.core.verdict().why, Why::Better { gone: true, .. }));
    assert!(story.pass(30).stands);
}

#[test]
fn the_newest_member_is_waited_for_while_it_may_be_restarting() {
    let mut story = Story::new();
    story.with(&[("n2", "3.0.0"), ("n1", "2.0.0")]);
    story.pass(10);
    story.with(&[("n1", "2.0.0")]);
    assert!(!story.pass(29).stands);
    assert!(story.pass(3).stands, "30 s and a second");

    // It comes back within that time, as an older release: nothing to wait for.
    let mut story = Story::new();
    story.with(&[("n2", "3.0.0"), ("n1", "2.0.0")]);
    story.pass(10);
    story.with(&[("n1", "2.0.0")]);
    story.pass(5);
    story.with(&[("n1", "2.0.0"), ("n2", "1.0.0")]);
    assert!(story.pass(1).stands);
}

#[test]
fn the_oldest_may_be_wanted_instead() {
    let mut story = Story::new();
    story.definition.as_mut().unwrap().choice = RunnerChoice::Oldest;
    story.with(&[("n1", "2.0.0"), ("n2", "3.0.0")]);
    assert!(story.pass(1).stands);
    story.with(&[("n3", "1.0.0"), ("n1", "2.0.0")]);
    assert!(!story.pass(1).stands);
}

#[test]
fn a_pinned_reconciler_is_one_nodes_alone() {
    let mut story = Story::new();
    story.definition.as_mut().unwrap().pinned = Some(node(2));
    story.see();
    assert_eq!(story.pass(60).why, Why::Pinned { node: node(2) });
    story.definition.as_mut().unwrap().pinned = Some(node(1));
    story.with(&[("n2", "3.0.0"), ("n1", "2.0.0")]);
    assert!(story.pass(1).stands, "whatever the others' releases");
}

#[test]
fn whoever_resigned_keeps_out_for_a_minute_while_an_equal_lives() {
    let mut story = Story::new();
    story.with(&[("n1", "2.0.0"), ("n2", "2.0.0")]);
    story.pass(1);
    story.core.step(story.now, Input::Resign);
    assert!(!story.stands(), "at once");
    assert!(!story.pass(59).stands);
    assert!(story.pass(2).stands);

    story.core.step(story.now, Input::Resign);
    story.with(&[("n1", "2.0.0")]);
    assert!(story.pass(1).stands, "better a failing one than none");
}

#[test]
fn without_anything_to_run_it_ends_at_once_and_unknown_is_no_reason() {
    let mut story = Story::new();
    assert_eq!(story.core.verdict().why, Why::Unknown);
    assert!(!story.pass(60).stands);
    story.see();
    story.pass(1);
    story.definition = None;
    story.see();
    assert_eq!(story.core.verdict(), &Verdict { stands: false, why: Why::NothingToRun });
}

#[test]
fn one_that_the_cluster_does_not_know_does_not_stand() {
    let mut story = Story::new();
    story.see();
    story.pass(1);
    story.core.step(story.now, Input::Announced(false));
    assert!(!story.pass(1).stands);
    assert_eq!(story.core.verdict().why, Why::NotAnnounced);
}

#[test]
fn what_a_crashed_incarnation_began_goes_on_until_something_speaks_against_it() {
    let me = Me { member: "n1".into(), node: None, release: triple("2.0.0") };
    let mut core = Eligibility::new(me, Patience::default(), true, None);
    let now = Moment(5_000_000);
    assert!(core.step(now, Input::Woke).stands);
    assert!(core.step(now, Input::Announced(false)).stands);
}
