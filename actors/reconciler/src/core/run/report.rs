//! How far a run is, for people. Written at most once a second, and only when there is something new.

use super::*;

/// Two reports are at least this far apart.
const BETWEEN: Duration = Duration::from_secs(1);
/// After one that did not arrive.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// What was reported, and what is to be.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reporting {
    told: Option<Progress>,
    not_before: Moment,
    open: bool,
    failed: bool,
    /// Since when it is where it is.
    since: Option<(&'static str, String, WallTime)>,
    due: bool,
}

impl Reporting {
    /// What was said last may not have arrived.
    pub fn forget(&mut self) {
        (self.told, self.open) = (None, false);
    }
    pub fn answered(&mut self, ok: bool) {
        self.open = false;
        if !ok {
            self.told = None;
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
            reporting.not_before = now + AFTER_FAILURE;
        }
        reporting.due = reporting.told.as_ref() != Some(&progress);
        if reporting.due && !reporting.open && reporting.not_before <= now {
            reporting.told = Some(progress.clone());
            (reporting.open, reporting.due) = (true, false);
            reporting.not_before = now + BETWEEN;
            out.push(Effect::Report(Box::new(progress)));
        }
    }

    /// Where it is.
    pub fn progress(&mut self, wall: WallTime) -> Progress {
        let (phase, reason, message) = self.words();
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

    fn words(&self) -> (&'static str, String, String) {
        let name = &self.who.reconciler;
        let said = |phase, reason: &str, message: String| (phase, reason.to_owned(), message);
        match &self.phase {
            Phase::Deciding { .. } | Phase::Ended => said("waiting", "reading", "it reads the gate".to_owned()),
            Phase::Waiting(Wait { phase, reason, message }) => said(*phase, reason, message.clone()),
            Phase::Stepping { step: GateStep::Complete, .. } => {
                said("running", "completing", "it has been applied; the gate is told".to_owned())
            }
            Phase::Stepping { .. } => said("waiting", "restricting", "the gate is led on".to_owned()),
            Phase::Settling { .. } => {
                said("settling", "settling", "what an earlier runner has sent may still arrive".to_owned())
            }
            Phase::Waving { .. } => said("running", "objects", "objects are applied".to_owned()),
            Phase::Acting { cancelled: None, .. } => said("running", "action", "its action runs".to_owned()),
            Phase::Acting { .. } => said("running", "stopping", "its action is told to end".to_owned()),
            Phase::Retrying { why, .. } => said(
                "running",
                "retrying",
                format!("{why}; it is tried again by itself, `muster reconciler retry {name}` tries at once"),
            ),
            Phase::Kept { .. } => said("idle", "done", "it has been applied".to_owned()),
            Phase::Failed { why } => {
                said("failed", "permanent", format!("{why}; `muster reconciler retry {name}` begins again"))
            }
        }
    }
}
