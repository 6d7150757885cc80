//! Whether this candidate campaigns to run a reconciler.
//!
//! Owns        which candidates were there lately; how long this one keeps out.
//! Inputs      the view, whether this candidate is announced, its resignation.
//! Outputs     whether it campaigns, and why; when to check the clock again.
//! Invariants  RUN-1  a candidate that sees a better one stops campaigning within the debounce; one that has left, or whose node is
//!                    not selected any more, counts for a while, so that a restart of the newest member, or a change of its
//!                    labels, does not hand its work to an older release.
//! Why a decision is debounced: members that start together announce themselves one after the other, and each of them alone
//! would look like a reason to move. Two that campaign at once are harmless: one lease decides between them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use muster_messages::wire::{CandidateView, RunnerView};
use muster_messages::{DefinitionTiming, Moment, NodeId, RunnerChoice, Triple};
use serde::Serialize;

#[derive(Clone, Debug, PartialEq)]
pub struct Me {
    pub member: String,
    pub node: Option<NodeId>,
    pub release: Triple,
}

/// The durations of the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EligibilityTiming {
    /// How long a candidate that has left still counts. Bridges a restart.
    pub hold_for: Duration,
    /// How long a decision must stay the same before it takes effect.
    pub debounce: Duration,
    /// How long a candidate keeps out after it resigned.
    pub out_for: Duration,
}

impl EligibilityTiming {
    /// The same, with what the definition says.
    #[must_use]
    pub fn with(self, of: &DefinitionTiming) -> Self {
        Self { hold_for: of.hold(self.hold_for), out_for: of.resign_pause(self.out_for), ..self }
    }
}

impl Default for EligibilityTiming {
    fn default() -> Self {
        Self {
            hold_for: DefinitionTiming::DEFAULT_HOLD,
            debounce: Duration::from_secs(1),
            out_for: DefinitionTiming::DEFAULT_RESIGN_PAUSE,
        }
    }
}

/// Why it campaigns or does not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// No view has arrived yet.
    Unknown,
    /// Our release has no definition, or none that this process can carry out.
    NothingToRun,
    /// The cluster does not know this candidate.
    NotAnnounced,
    /// Another candidate comes first. `gone`: it has left, or its node's labels have changed, but it may come back.
    Better { member: String, release: Triple, gone: bool },
    /// Our node does not have these labels of the node selector.
    NotSelected { missing_labels: Vec<String> },
    /// Another node is pinned.
    Pinned { node: NodeId },
    /// It failed here too often, and an equal candidate can try.
    Resigned,
    /// No candidate is better.
    Best,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("no view of the reconciler has arrived yet"),
            Self::NothingToRun => f.write_str("there is no definition for this release that this node can run"),
            Self::NotAnnounced => f.write_str("this candidate is not announced"),
            Self::Better { member, release, gone: false } => write!(f, "{member} of release {release} comes first"),
            Self::Better { member, release, gone: true } => {
                write!(f, "{member} of release {release} comes first and may return")
            }
            Self::NotSelected { missing_labels } => {
                write!(f, "this node lacks labels of the node selector: {}", missing_labels.join(", "))
            }
            Self::Pinned { node } => write!(f, "node {node} is pinned"),
            Self::Resigned => f.write_str("it failed here too often, and another candidate can try"),
            Self::Best => f.write_str("no other candidate comes first"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Decision {
    pub stands: bool,
    pub why: Why,
}

#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// `runnable`: this process can carry out the definition.
    View {
        view: &'a RunnerView,
        runnable: bool,
    },
    Announced(bool),
    Resign,
    Woke,
}

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Eligibility {
    me: Me,
    /// Of this process, and with what the newest definition says.
    usual: EligibilityTiming,
    timing: EligibilityTiming,
    /// `None`: there is nothing to run.
    terms: Option<(RunnerChoice, Option<NodeId>)>,
    seen_any: bool,
    live: BTreeSet<(String, Triple)>,
    gone: BTreeMap<(String, Triple), Moment>,
    announced: bool,
    /// Of the node selector, on our node.
    missing_labels: Vec<String>,
    out_until: Option<Moment>,
    /// Operators' retries that were seen.
    retries: Option<u64>,
    decision: Decision,
    /// Since when the decision would differ.
    differs_since: Option<Moment>,
}

impl Eligibility {
    /// `stands`: whether a crashed incarnation already campaigned. `out_until`: until when it had resigned.
    pub fn new(me: Me, timing: EligibilityTiming, stands: bool, out_until: Option<Moment>) -> Self {
        Self {
            me,
            usual: timing,
            timing,
            terms: None,
            seen_any: false,
            live: BTreeSet::new(),
            gone: BTreeMap::new(),
            announced: false,
            missing_labels: Vec::new(),
            out_until,
            retries: None,
            decision: Decision { stands, why: Why::Unknown },
            differs_since: None,
        }
    }

    /// Applies an input and decides again.
    pub fn step(&mut self, now: Moment, input: Input<'_>) -> &Decision {
        match input {
            Input::View { view, runnable } => self.observe(now, view, runnable),
            Input::Announced(announced) => self.announced = announced,
            Input::Resign => self.out_until = Some(now + self.timing.out_for),
            Input::Woke => {}
        }
        self.gone.retain(|_, since| now.since(*since) < self.timing.hold_for);
        self.out_until = self.out_until.filter(|until| now < *until);
        self.decide(now)
    }

    pub fn decision(&self) -> &Decision {
        &self.decision
    }
    /// Until when it keeps out.
    pub fn out_until(&self) -> Option<Moment> {
        self.out_until
    }
    /// When to check the clock again.
    pub fn wake_at(&self) -> Option<Moment> {
        let gone = self.gone.values().map(|since| *since + self.timing.hold_for);
        let differs_since = self.differs_since.map(|since| since + self.timing.debounce);
        gone.chain(differs_since).chain(self.out_until).min()
    }

    fn observe(&mut self, now: Moment, view: &RunnerView, runnable: bool) {
        if self.retries.replace(view.retries).is_some_and(|seen| view.retries > seen) {
            // An operator has resolved what it failed at, or wants to see it fail.
            self.out_until = None;
        }
        self.timing = self.usual.with(&view.timing);
        self.terms = view.definition.as_ref().filter(|_| runnable).map(|_| (view.choice, view.pinned));
        // An earlier incarnation of this member may still be there, with another release and so another definition.
        let is_ours = |c: &&CandidateView| c.member == self.me.member && c.release.triple == self.me.release;
        let ours = view.candidates.iter().find(is_ours);
        self.missing_labels = ours.map(|candidate| candidate.missing_labels.clone()).unwrap_or_default();
        // A candidate whose node is not selected does not campaign. One whose labels have changed counts as one that has left: they
        // may be put right at once, and an older release would have rewritten everything meanwhile.
        let eligible = view.candidates.iter().filter(|candidate| candidate.missing_labels.is_empty());
        let live: BTreeSet<_> = eligible.map(|c| (c.member.clone(), c.release.triple)).collect();
        for left in self.live.difference(&live) {
            self.gone.insert(left.clone(), now);
        }
        // A member that is present has not left, whatever its release was before.
        self.gone.retain(|(member, _), _| !live.iter().any(|(there, _)| there == member));
        self.live = live;
        self.seen_any = true;
    }

    fn decide(&mut self, now: Moment) -> &Decision {
        let why = self.evaluate();
        if why == Why::Unknown {
            return &self.decision;
        }
        let stands = why == Why::Best;
        if stands == self.decision.stands {
            self.differs_since = None;
            self.decision.why = why;
            return &self.decision;
        }
        // A reason that does not depend on other candidates needs no debounce.
        let at_once = matches!(why, Why::NothingToRun | Why::Resigned | Why::NotSelected { .. });
        let since = *self.differs_since.get_or_insert(now);
        if at_once || now.since(since) >= self.timing.debounce {
            self.differs_since = None;
            self.decision = Decision { stands, why };
        }
        &self.decision
    }

    fn evaluate(&self) -> Why {
        if !self.seen_any {
            return Why::Unknown;
        }
        let Some((choice, pinned)) = self.terms else { return Why::NothingToRun };
        if !self.announced {
            return Why::NotAnnounced;
        }
        if !self.missing_labels.is_empty() {
            return Why::NotSelected { missing_labels: self.missing_labels.clone() };
        }
        if let Some(node) = pinned {
            return if self.me.node == Some(node) { Why::Best } else { Why::Pinned { node } };
        }
        let ours = self.me.release;
        let is_better = |release: Triple| match choice {
            RunnerChoice::Newest => release > ours,
            RunnerChoice::Oldest => release < ours,
        };
        let live = self.live.iter().map(|who| (who, false));
        let gone = self.gone.keys().map(|who| (who, true));
        if let Some(((member, release), gone)) = live.chain(gone).find(|((_, release), _)| is_better(*release)) {
            return Why::Better { member: member.clone(), release: *release, gone };
        }
        let equal = |(member, release): &&(String, Triple)| *member != self.me.member && *release == ours;
        if self.out_until.is_some() && self.live.iter().any(|who| equal(&who)) {
            return Why::Resigned;
        }
        Why::Best
    }
}

#[cfg(test)]
#[path = "eligibility_tests.rs"]
mod tests;
