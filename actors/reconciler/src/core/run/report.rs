//! The progress of a run, for people. Written at most once a second, and only when it changed.

use super::*;

/// Minimum interval between two reports.
const MIN_REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after a report that failed.
const FAILED_REPORT_PAUSE: Duration = Duration::from_secs(5);

/// What was reported, and what is pending.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reporting {
    reported: Option<Progress>,
    not_before: Moment,
    open: bool,
    failed: bool,
    /// Since when the phase and reason are the same.
    since: Option<(&'static str, String, WallTime)>,
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
}

impl Run {
    pub(super) fn report(&mut self, now: Moment, wall: WallTime, out: &mut Out) {
        if self.phase == Phase::Ended || self.view.is_none() {
            self.reporting.due = false;
            return;
        }
        let progress = self.progress(wall);
        let reporting = &mut self.reporting;
        if std::mem::take(&mut reporting.failed) {
            reporting.not_before = now + FAILED_REPORT_PAUSE;
        }
        reporting.due = reporting.reported.as_ref() != Some(&progress);
        if reporting.due && !reporting.open && reporting.not_before <= now {
            reporting.reported = Some(progress.clone());
            (reporting.open, reporting.due) = (true, false);
            reporting.not_before = now + MIN_REPORT_INTERVAL;
            out.push(Effect::Report(Box::new(progress)));
        }
    }

    pub fn progress(&mut self, wall: WallTime) -> Progress {
        let (phase, reason, message) = self.describe();
        let since = match &self.reporting.since {
            Some((known, why, since)) if (*known, why) == (phase, &reason) => *since,
            _ => wall,
        };
        self.reporting.since = Some((phase, reason.clone(), since));
        let next_retry_at = match &self.phase {
            Phase::Retrying { wall, .. } => Some(*wall),
            _ => None,
        };
        let objects = self.view.as_ref().and_then(|v| v.definition.as_ref()).is_some_and(is_object_set);
        let all = self.view.as_ref().map_or(1, |view| waves(view));
        let wave = self.job.as_ref().filter(|_| objects).map(|job| ((job.wave + 1).min(all), all));
        Progress {
            reconciler: self.who.reconciler.clone(),
            term: self.who.term,
            node: self.who.node,
            release: self.who.release.clone(),
            phase: phase.to_owned(),
            reason,
            message,
            since,
            attempt: self.job.as_ref().map_or(0, |job| job.attempt),
            consecutive_failures: self.failures,
            last_error: self.last_error.clone(),
            next_retry_at,
            wave,
            output: self.output.clone(),
        }
    }

    fn describe(&self) -> (&'static str, String, String) {
        let name = &self.who.reconciler;
        let described = |phase, reason: &str, message: String| (phase, reason.to_owned(), message);
        match &self.phase {
            Phase::Deciding { .. } | Phase::Ended => described("waiting", "reading", "reading the gate".to_owned()),
            Phase::Waiting(Wait { phase, reason, message }) => described(*phase, reason, message.clone()),
            Phase::Stepping { step: GateStep::Complete, .. } => {
                described("running", "completing", "applied; completing the gate".to_owned())
            }
            Phase::Stepping { .. } => described("waiting", "restricting", "advancing the gate".to_owned()),
            Phase::Settling { .. } => {
                described("settling", "settling", "writes of an earlier runner may still arrive".to_owned())
            }
            Phase::Waving { .. } => described("running", "objects", "applying objects".to_owned()),
            Phase::Acting { cancelled: None, .. } => described("running", "action", "the action is running".to_owned()),
            Phase::Acting { .. } => described("running", "stopping", "stopping the action".to_owned()),
            Phase::Retrying { why, .. } => described(
                "running",
                "retrying",
                format!("{why}; retrying automatically, `muster reconciler retry {name}` retries at once"),
            ),
            Phase::Kept { .. } => described("idle", "done", "applied".to_owned()),
            Phase::Failed { why } => {
                described("failed", "permanent", format!("{why}; `muster reconciler retry {name}` starts it again"))
            }
        }
    }
}
