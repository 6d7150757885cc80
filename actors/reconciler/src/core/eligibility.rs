//! Whether this candidate stands for running a reconciler.
//!
//! Owns   who was a candidate lately; how long we keep out.   Hears  the view, whether we are announced, that we resign.
//! Keeps  RUN-1  whoever sees a better candidate stands no more within the debounce; one that has gone counts for a while,
//!               so that a restart of the newest member does not hand its work to an older release.
//! Why a decision is debounced: members that come up together announce themselves one after the other, and each of them
//! alone would look like a reason to move. Two that stand at once are harmless: one lease decides between them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_messages::wire::RunnerView;
use muster_messages::{Moment, NodeId, RunnerChoice, Triple};
use serde::Serialize;

/// Who we are.
#[derive(Clone, Debug, PartialEq)]
pub struct Me {
    pub member: String,
    pub node: Option<NodeId>,
    pub release: Triple,
}

/// The durations it works with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// How long a candidate that has gone still counts. Bridges a restart.
    pub hold_for: Duration,
    /// How long a decision must be the same before it is acted upon.
    pub debounce: Duration,
    /// How long somebody who resigned keeps out.
    pub out_for: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { hold_for: Duration::from_secs(30), debounce: Duration::from_secs(1), out_for: Duration::from_secs(60) }
    }
}

/// Why it stands or does not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Nothing has been heard yet.
    Unknown,
    /// There is no definition of our release, or none that this process can carry out.
    NothingToRun,
    /// The cluster does not know of us.
    NotAnnounced,
    /// Another one comes first. `gone`: it is not there any more, but may come back.
    Better { member: String, release: Triple, gone: bool },
    /// Somebody else is to do it.
    Pinned { node: NodeId },
    /// It failed here too often, and there is another one to try.
    Resigned,
    /// Nobody is better.
    Best,
}

/// What it has come to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    pub stands: bool,
    pub why: Why,
}

/// What it hears.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// `runnable`: this process can carry out its definition.
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
    patience: Patience,
    /// `None`: there is nothing to run.
    terms: Option<(RunnerChoice, Option<NodeId>)>,
    seen_any: bool,
    live: BTreeSet<(String, Triple)>,
    gone: BTreeMap<(String, Triple), Moment>,
    announced: bool,
    out_until: Option<Moment>,
    verdict: Verdict,
    /// Since when it would rather decide otherwise.
    otherwise: Option<Moment>,
}

impl Eligibility {
    /// `stands`: whether it does already, thanks to an incarnation that crashed. `out_until`: what that has resigned until.
    pub fn new(me: Me, patience: Patience, stands: bool, out_until: Option<Moment>) -> Self {
        Self {
            me,
            patience,
            terms: None,
            seen_any: false,
            live: BTreeSet::new(),
            gone: BTreeMap::new(),
            announced: false,
            out_until,
            verdict: Verdict { stands, why: Why::Unknown },
            otherwise: None,
        }
    }

    /// Takes news and decides anew.
    pub fn step(&mut self, now: Moment, input: Input<'_>) -> &Verdict {
        match input {
            Input::View { view, runnable } => self.look(now, view, runnable),
            Input::Announced(announced) => self.announced = announced,
            Input::Resign => self.out_until = Some(now + self.patience.out_for),
            Input::Woke => {}
        }
        self.gone.retain(|_, since| now.since(*since) < self.patience.hold_for);
        self.out_until = self.out_until.filter(|until| now < *until);
        self.decide(now)
    }

    /// What it has come to.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }
    /// Until when it keeps out.
    pub fn out_until(&self) -> Option<Moment> {
        self.out_until
    }
    /// When to look at the clock again.
    pub fn wake_at(&self) -> Option<Moment> {
        let gone = self.gone.values().map(|since| *since + self.patience.hold_for);
        let otherwise = self.otherwise.map(|since| since + self.patience.debounce);
        gone.chain(otherwise).chain(self.out_until).min()
    }

    fn look(&mut self, now: Moment, view: &RunnerView, runnable: bool) {
        self.terms = view.definition.as_ref().filter(|_| runnable).map(|_| (view.choice, view.pinned));
        let live: BTreeSet<_> = view.candidates.iter().map(|c| (c.member.clone(), c.release.triple)).collect();
        for left in self.live.difference(&live) {
            self.gone.insert(left.clone(), now);
        }
        // A member that is there has not gone, whatever its release was before.
        self.gone.retain(|(member, _), _| !live.iter().any(|(there, _)| there == member));
        self.live = live;
        self.seen_any = true;
    }

    fn decide(&mut self, now: Moment) -> &Verdict {
        let why = self.weigh();
        if why == Why::Unknown {
            return &self.verdict;
        }
        let stands = why == Why::Best;
        if stands == self.verdict.stands {
            self.otherwise = None;
            self.verdict.why = why;
            return &self.verdict;
        }
        // What does not depend on who else is there needs no second look.
        let at_once = matches!(why, Why::NothingToRun | Why::Resigned);
        let since = *self.otherwise.get_or_insert(now);
        if at_once || now.since(since) >= self.patience.debounce {
            self.otherwise = None;
            self.verdict = Verdict { stands, why };
        }
        &self.verdict
    }

    fn weigh(&self) -> Why {
        if !self.seen_any {
            return Why::Unknown;
        }
        let Some((choice, pinned)) = self.terms else { return Why::NothingToRun };
        if !self.announced {
            return Why::NotAnnounced;
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
