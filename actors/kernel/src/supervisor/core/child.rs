//! The supervisor's state of one child.
//!
//! Owns        its policy, its run and phase, and its failures since it was last stable.

use std::time::Duration;

use muster_messages::Moment;

use crate::spec::{Backoff, Restart};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    pub restart: Restart,
    pub backoff: Backoff,
    /// From launch to healthy.
    pub start_deadline: Duration,
    pub stop_deadline: Duration,
    /// Its exits never escalate, and do not restart its siblings.
    pub contained: bool,
}

/// What follows once a stopping child has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Remove,
    Relaunch,
    /// What follows a failure: the child did not start in time.
    BackOff,
}

/// How far a child has been asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not yet: siblings started after it stop first.
    Due,
    Asked,
    Killed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// To be launched as soon as no sibling blocks it.
    Waiting,
    /// Launched, not healthy yet.
    Starting,
    Running {
        since: Moment,
    },
    Leaving {
        then: Then,
        stage: Stage,
    },
    BackingOff,
    /// Ended for good, still shown.
    Ended,
}

#[derive(Clone, Debug)]
pub(super) struct Child {
    pub order: u64,
    pub policy: Policy,
    /// Siblings that must be healthy before it is launched; only those started before it count.
    pub requires: Vec<String>,
    pub run: u64,
    pub incarnation: u64,
    pub phase: Phase,
    /// Failures since it was last stable.
    pub failures: u32,
    /// What it was last reported to wait for.
    pub waits_for: Vec<String>,
}

impl Child {
    pub fn new(order: u64, policy: Policy, requires: Vec<String>) -> Self {
        let (phase, waits_for) = (Phase::Waiting, Vec::new());
        Self { order, policy, requires, run: 0, incarnation: 0, phase, failures: 0, waits_for }
    }

    pub fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Leaving { .. })
    }
    /// Whether children that require it may start.
    pub fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Running { .. } | Phase::Ended)
    }

    /// Whether an exit of this kind brings a next incarnation.
    pub fn comes_back(&self, failed: bool) -> bool {
        match self.policy.restart {
            Restart::Permanent => true,
            Restart::Transient => failed,
            Restart::Temporary => false,
        }
    }

    /// What follows when it stops because a sibling failed: a temporary child is never started twice.
    pub fn with_its_group(&self) -> Then {
        if self.policy.restart == Restart::Temporary { Then::Remove } else { Then::Relaunch }
    }

    /// It stops running: a stable run clears the failures before it.
    pub fn settle(&mut self, now: Moment) {
        if let Phase::Running { since } = self.phase
            && now.since(since) >= self.policy.backoff.stable_after
        {
            self.failures = 0;
        }
    }
}
