//! The progress of a run, for people. Written at most once a second, and only when it changed.
//!
//! Owns        the progress that was reported last, the report in flight, and the time of the next.

use muster_messages::{PhaseReason, ReconcilerPhase, Word};

use super::*;

/// Minimum interval between two reports.
const MIN_REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after a report that failed.
const FAILED_REPORT_PAUSE: Duration = Duration::from_secs(5);

/// A phase in the contract's words.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Described {
    pub phase: ReconcilerPhase,
    pub reason: Word<PhaseReason>,
    pub message: String,
}

/// What was reported, and what is pending.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reporting {
    reported: Option<Progress>,
    not_before: Moment,
    open: bool,
    failed: bool,
    /// Since when the phase and reason are the same.
    since: Option<(ReconcilerPhase, Word<PhaseReason>, WallTime)>,
    due: bool,
}

impl Reporting {
    /// The last report may not have arrived.
    pub fn forget(&mut self) {
        (self.reported, self.open) = (None, false);
    }
    pub fn answered(&mut self, ok: bool) {
        self.open = false;
        if !ok {
            self.reported = None;
            self.failed = true;
        }
    }
    pub fn wake_at(&self) -> Option<Moment> {
        (self.due && !self.open).then_some(self.not_before)
    }
    /// The next report is not delayed.
    pub fn hurry(&mut self, now: Moment) {
        self.not_before = self.not_before.min(now);
    }
    /// Whether everything that was due is reported.
    pub fn is_complete(&self) -> bool {
        !self.due && !self.open
    }
    /// There is nothing to report.
    pub fn pause(&mut self) {
        self.due = false;
    }
    /// Since when the phase and reason are these.
    pub fn since(&mut self, now: &Described, wall: WallTime) -> WallTime {
        let since = match &self.since {
            Some((phase, reason, since)) if (*phase, reason) == (now.phase, &now.reason) => *since,
            _ => wall,
        };
        self.since = Some((now.phase, now.reason.clone(), since));
        since
    }
    /// The report to send now, if any; otherwise it is due later, or nothing has changed.
    pub fn next(&mut self, now: Moment, progress: Progress) -> Option<Progress> {
        if std::mem::take(&mut self.failed) {
            self.not_before = now + FAILED_REPORT_PAUSE;
        }
        self.due = self.reported.as_ref() != Some(&progress);
        if !self.due || self.open || self.not_before > now {
            return None;
        }
        (self.open, self.due) = (true, false);
        self.not_before = now + MIN_REPORT_INTERVAL;
        self.reported = Some(progress.clone());
        Some(progress)
    }
}

impl Phase {
    pub(super) fn describe(&self, reconciler: &str) -> Described {
        use {PhaseReason as R, ReconcilerPhase as P};
        let described = |phase, reason: PhaseReason, message: &str| Described {
            phase,
            reason: reason.into(),
            message: message.to_owned(),
        };
        match self {
            Phase::Deciding { .. } | Phase::Ended => described(P::Waiting, R::Reading, "reading the gate"),
            Phase::Waiting(waiting) => waiting.clone(),
            Phase::Stepping { step: GateStep::Complete, .. } => {
                described(P::Running, R::Completing, "applied; completing the gate")
            }
            Phase::Stepping { .. } => described(P::Waiting, R::Restricting, "advancing the gate"),
            Phase::Settling { .. } => {
                described(P::Settling, R::Settling, "writes of an earlier runner may still arrive")
            }
            Phase::Recording { .. } => described(P::Running, R::Action, "carried out; recording it"),
            Phase::Waving { .. } => described(P::Running, R::Objects, "applying objects"),
            Phase::Awaiting { why, .. } => described(P::Waiting, R::Condition, why),
            Phase::Acting { cancelled: None, .. } => described(P::Running, R::Action, "the action is running"),
            Phase::Acting { .. } => described(P::Running, R::Stopping, "stopping the action"),
            Phase::Retrying { why, .. } => {
                let message =
                    format!("{why}; retrying automatically, `muster reconciler retry {reconciler}` retries at once");
                described(P::Running, R::Retrying, &message)
            }
            Phase::Resigning { why, .. } => {
                described(P::Running, R::Retrying, &format!("{why}; resigning: another node tries"))
            }
            Phase::Kept { .. } => described(P::Idle, R::Done, "applied"),
            Phase::Failed { why } => {
                let message = format!("{why}; `muster reconciler retry {reconciler}` starts it again");
                described(P::Failed, R::Permanent, &message)
            }
        }
    }
}
