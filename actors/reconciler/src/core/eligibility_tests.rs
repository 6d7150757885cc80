//! Which candidates campaign, and when that changes.

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

/// Member `n1` at 2.0.0 among others, with a clock that the test moves.
struct Scenario {
    core: Eligibility,
    now: Moment,
    definition: Option<Definition>,
    candidates: Vec<(&'static str, &'static str)>,
    /// Whose nodes lack a label.
    unselected: Vec<&'static str>,
    /// The definition of this release selects no node.
    unselected_release: Option<&'static str>,
    retries: u64,
}

impl Scenario {
    fn new() -> Self {
        let me = Me { member: "n1".into(), node: Some(node(1)), release: triple("2.0.0") };
        let core = Eligibility::new(me, EligibilityTiming::default(), false, None);
        let mut scenario = Self {
            core,
            now: Moment(1_000_000),
            definition: Some(definition()),
            candidates: vec![("n1", "2.0.0")],
            unselected: vec![],
            unselected_release: None,
            retries: 0,
        };
        scenario.core.step(scenario.now, Input::Announced(true));
        scenario
    }
    fn observe(&mut self) {
        let missing = |member: &str, release: &str| {
            let missing = self.unselected.contains(&member) || self.unselected_release == Some(release);
            if missing { vec!["disk=ssd".to_owned()] } else { vec![] }
        };
        let candidate = |(member, release): &(&str, &str)| CandidateView {
            node: None,
            member: (*member).to_owned(),
            release: release.parse::<Release>().unwrap(),
            missing_labels: missing(member, release),
            revision: Revision(0),
        };
        let view = RunnerView {
            revision: Revision(1),
            definition: self.definition.clone(),
            gate: GateView::default(),
            candidates: self.candidates.iter().map(candidate).collect(),
            choice: self.definition.as_ref().map(|d| d.choice).unwrap_or_default(),
            timing: self.definition.as_ref().map(|d| d.options.timing).unwrap_or_default(),
            pinned: self.definition.as_ref().and_then(|d| d.pinned),
            hold: None,
            path: None,
            blockers: vec![],
            blockers_in_all: 0,
            retries: self.retries,
            waves: 0,
            steps_done: 0,
            records_runs: true,
        };
        self.core.step(self.now, Input::View { view: &view, runnable: true });
    }
    fn with(&mut self, candidates: &[(&'static str, &'static str)]) -> &Decision {
        self.candidates = candidates.to_vec();
        self.observe();
        self.core.decision()
    }
    /// Advances the clock, waking it when it asks for it.
    fn pass(&mut self, secs: u64) -> &Decision {
        let end = self.now + Duration::from_secs(secs);
        while let Some(at) = self.core.wake_at().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.core.step(self.now, Input::Woke);
        }
        self.now = end;
        self.core.step(self.now, Input::Woke)
    }
    fn stands(&self) -> bool {
        self.core.decision().stands
    }
}

#[test]
fn candidate_without_labels_neither_campaigns_nor_holds_back() {
    let mut scenario = Scenario::new();
    scenario.observe();
    assert!(scenario.pass(1).stands);
    scenario.unselected = vec!["n1"];
    scenario.observe();
    let why = Why::NotSelected { missing_labels: vec!["disk=ssd".to_owned()] };
    assert_eq!(*scenario.core.decision(), Decision { stands: false, why });
    scenario.unselected = vec![];
    scenario.observe();
    assert!(scenario.pass(1).stands);
    // A newer one without the labels is there, and has not left.
    scenario.unselected = vec!["n2"];
    scenario.with(&[("n1", "2.0.0"), ("n2", "2.1.0")]);
    assert!(scenario.pass(1).stands);
    scenario.unselected = vec![];
    scenario.observe();
    assert!(!scenario.pass(1).stands);
}

/// The incarnation before an upgrade is still there, until its lease is over: its definition selects other nodes.
#[test]
fn labels_of_an_earlier_incarnation_do_not_count() {
    for (earlier, at) in [("1.0.0", 1), ("3.0.0", 0)] {
        let mut scenario = Scenario::new();
        let mut both = [("n1", "2.0.0"), ("n1", "2.0.0")];
        both[at].1 = earlier;
        scenario.candidates = both.to_vec();
        scenario.unselected_release = Some(earlier);
        scenario.observe();
        scenario.pass(1);
        assert_eq!(scenario.core.decision().why, Why::Best, "{earlier}");
    }
}

/// Otherwise the older release would rewrite everything, and the newer one again once the label is back.
#[test]
fn newer_candidate_that_loses_its_label_counts_for_a_while() {
    let both = [("n1", "2.0.0"), ("n2", "2.1.0")];
    for comes_back in [true, false] {
        let mut scenario = Scenario::new();
        scenario.with(&both);
        scenario.pass(10);
        scenario.unselected = vec!["n2"];
        scenario.observe();
        assert!(!scenario.pass(29).stands);
        assert!(matches!(scenario.core.decision().why, Why::Better { gone: true, .. }));
        if comes_back {
            scenario.unselected = vec![];
            scenario.observe();
        }
        assert_eq!(scenario.pass(3).stands, !comes_back, "30 s and a second");
    }
}

/// Which of two equals runs it is decided at once.
#[test]
fn equal_candidate_that_loses_its_label_holds_nothing_back() {
    let mut scenario = Scenario::new();
    scenario.with(&[("n1", "2.0.0"), ("n2", "2.0.0")]);
    scenario.unselected = vec!["n2"];
    scenario.observe();
    assert!(scenario.pass(1).stands);
}

/// Scenario 4.
#[test]
fn no_candidate_campaigns_beside_a_newer_one() {
    let mut scenario = Scenario::new();
    scenario.with(&[("n2", "2.0.1"), ("n1", "2.0.0")]);
    let decision = scenario.pass(3600).clone();
    assert_eq!(decision.why, Why::Better { member: "n2".into(), release: triple("2.0.1"), gone: false });
    assert!(!decision.stands);
}

#[test]
fn equal_candidates_campaign_and_older_ones_do_not_matter() {
    let mut scenario = Scenario::new();
    scenario.with(&[("n1", "2.0.0"), ("n2", "2.0.0"), ("n3", "1.9.9")]);
    assert!(!scenario.stands(), "not before a second has passed");
    assert!(scenario.pass(1).stands);
}

/// I6.
#[test]
fn a_newer_candidate_displaces_an_older_one_within_a_second() {
    let mut scenario = Scenario::new();
    scenario.observe();
    assert!(scenario.pass(1).stands);
    assert!(scenario.with(&[("n2", "3.0.0"), ("n1", "2.0.0")]).stands, "it may leave again at once");
    assert!(!scenario.pass(1).stands);
}

#[test]
fn newer_candidate_must_persist_to_change_the_decision() {
    let mut scenario = Scenario::new();
    scenario.observe();
    scenario.pass(1);
    // Seen once and gone: it counts for a while, because it may be restarting.
    scenario.with(&[("n2", "3.0.0"), ("n1", "2.0.0")]);
    scenario.with(&[("n1", "2.0.0")]);
    assert!(!scenario.pass(2).stands);
    assert!(matches!(scenario.core.decision().why, Why::Better { gone: true, .. }));
    assert!(scenario.pass(30).stands);
}

#[test]
fn the_newest_member_is_waited_for_while_it_may_be_restarting() {
    let mut scenario = Scenario::new();
    scenario.with(&[("n2", "3.0.0"), ("n1", "2.0.0")]);
    scenario.pass(10);
    scenario.with(&[("n1", "2.0.0")]);
    assert!(!scenario.pass(29).stands);
    assert!(scenario.pass(3).stands, "30 s and a second");

    // It returns within that time as an older release: nothing to wait for.
    let mut scenario = Scenario::new();
    scenario.with(&[("n2", "3.0.0"), ("n1", "2.0.0")]);
    scenario.pass(10);
    scenario.with(&[("n1", "2.0.0")]);
    scenario.pass(5);
    scenario.with(&[("n1", "2.0.0"), ("n2", "1.0.0")]);
    assert!(scenario.pass(1).stands);
}

#[test]
fn oldest_release_can_be_chosen_instead() {
    let mut scenario = Scenario::new();
    scenario.definition.as_mut().unwrap().choice = RunnerChoice::Oldest;
    scenario.with(&[("n1", "2.0.0"), ("n2", "3.0.0")]);
    assert!(scenario.pass(1).stands);
    scenario.with(&[("n3", "1.0.0"), ("n1", "2.0.0")]);
    assert!(!scenario.pass(1).stands);
}

#[test]
fn pinned_reconciler_runs_only_on_its_node() {
    let mut scenario = Scenario::new();
    scenario.definition.as_mut().unwrap().pinned = Some(node(2));
    scenario.observe();
    assert_eq!(scenario.pass(60).why, Why::Pinned { node: node(2) });
    scenario.definition.as_mut().unwrap().pinned = Some(node(1));
    scenario.with(&[("n2", "3.0.0"), ("n1", "2.0.0")]);
    assert!(scenario.pass(1).stands, "whatever the others' releases");
}

#[test]
fn resigned_candidate_waits_a_minute_while_an_equal_lives() {
    let mut scenario = Scenario::new();
    scenario.with(&[("n1", "2.0.0"), ("n2", "2.0.0")]);
    scenario.pass(1);
    scenario.core.step(scenario.now, Input::Resign);
    assert!(!scenario.stands(), "at once");
    assert!(!scenario.pass(59).stands);
    assert!(scenario.pass(2).stands);

    scenario.core.step(scenario.now, Input::Resign);
    scenario.with(&[("n1", "2.0.0")]);
    assert!(scenario.pass(1).stands, "a failing runner is better than none");
}

#[test]
fn an_operators_retry_ends_the_time_that_it_keeps_out() {
    let mut scenario = Scenario::new();
    let both = [("n1", "2.0.0"), ("n2", "2.0.0")];
    scenario.with(&both);
    scenario.pass(1);
    scenario.core.step(scenario.now, Input::Resign);
    scenario.with(&both);
    assert!(!scenario.pass(10).stands);
    scenario.retries = 1;
    scenario.with(&both);
    assert!(scenario.pass(1).stands);
}

#[test]
fn nothing_to_run_ends_candidacy_at_once_but_unknown_does_not() {
    let mut scenario = Scenario::new();
    assert_eq!(scenario.core.decision().why, Why::Unknown);
    assert!(!scenario.pass(60).stands);
    scenario.observe();
    scenario.pass(1);
    scenario.definition = None;
    scenario.observe();
    assert_eq!(scenario.core.decision(), &Decision { stands: false, why: Why::NothingToRun });
}

#[test]
fn unannounced_candidate_does_not_campaign() {
    let mut scenario = Scenario::new();
    scenario.observe();
    scenario.pass(1);
    scenario.core.step(scenario.now, Input::Announced(false));
    assert!(!scenario.pass(1).stands);
    assert_eq!(scenario.core.decision().why, Why::NotAnnounced);
}

#[test]
fn candidacy_survives_a_crash_until_there_is_a_reason_to_end() {
    let me = Me { member: "n1".into(), node: None, release: triple("2.0.0") };
    let mut core = Eligibility::new(me, EligibilityTiming::default(), true, None);
    let now = Moment(5_000_000);
    assert!(core.step(now, Input::Woke).stands);
    assert!(core.step(now, Input::Announced(false)).stands);
}
