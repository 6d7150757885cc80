//! One run of a reconciler, within one term: from the first read of its gate to keeping what was applied.
//!
//! Owns        the phase, attempts and failures of one term.
//! Inputs      the newest view, answers, how actions ended, the end of the term.
//! Outputs     steps of the gate, waves of objects, actions to begin and to cancel; progress; resignation.
//! Invariants  RUN-2  it applies nothing unless the gate leads to its definition, as far as it knows: after a refused step it reads
//!                    a newer view, and does not act.
//!             RUN-3  one action at a time, and none once the term is over.
//!             RUN-4  a run that has succeeded is not repeated because an answer or a view comes late. A view from before the
//!                    term is ignored: one from after its beginning contains everything that earlier runners could write.
//! Why it stores so little: gate and definition record the rest. It is a value and can be cloned; an actor that crashed
//! continues from such a clone ([`Run::recover`]).

mod decide;
mod ended;
mod failures;
mod observed;
mod outcome;
mod recording;
mod report;
mod succession;
mod tally;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_messages::wire::RunnerView;
use muster_messages::{
    Action, ChainStep, Definition, ErrorBody, FencingToken, GateStep, Moment, NodeId, PhaseReason, Progress,
    ReconcilerPhase, Release, Revision, RunExit, RunOutcome, RunRecord, Triple, WallTime, in_short,
};
use serde::Deserialize;

pub use self::ended::{Ended, Outcome};
use self::failures::Failures;
use self::recording::{Kept, Recording};
use self::report::{Described, Reporting};
pub use self::succession::{Succession, TermStep, step_in_term};
pub use self::tally::Tally;

/// How long a view may stay older than our own last step before it is accepted anyway.
const MAX_VIEW_LAG: Duration = Duration::from_secs(30);
/// How long after a refusal an equally old view is evaluated again.
const REFUSAL_RECHECK_DELAY: Duration = Duration::from_secs(5);
/// A resignation has ended the term by then, on a busy machine, too. Afterwards it counts as lost.
pub(super) const RESIGNATION_LIMIT: Duration = Duration::from_secs(10);
/// How long after a condition was found unmet it is looked at again, if no newer view arrives.
const CONDITION_RECHECK_DELAY: Duration = Duration::from_secs(10);
/// Maximum length of a text from outside that is kept.
const MAX_ERROR_BYTES: usize = 2048;

#[derive(Clone, Debug, PartialEq)]
pub struct Runner {
    pub reconciler: String,
    pub node: NodeId,
    pub member: String,
    pub release: Release,
    /// The fencing token of its lease: its term.
    pub term: FencingToken,
}

/// The result of a wave.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Waved {
    /// A sample of the errors.
    #[serde(default)]
    pub errors: Vec<ObjectError>,
    #[serde(default)]
    pub errors_in_all: u32,
    /// Nothing was written: a condition of an earlier wave does not hold.
    #[serde(default)]
    pub waiting: Option<String>,
}
/// An object that could not be applied.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ObjectError {
    /// In the cluster's notation.
    pub key: serde_json::Value,
    pub message: String,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Stepped {
    pub epoch: u64,
    /// Its log index. 0: not reported.
    #[serde(default)]
    pub revision: Revision,
}

/// An action to carry out here.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// The release applied before, if any.
    pub from: Option<Release>,
    pub definition: Arc<Definition>,
    pub attempt: u32,
    /// The step of its chain, if it is one.
    pub step: Option<ChainStep>,
    /// The run's number in this term.
    pub of_term: u64,
}

/// The record of a chain's step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Recorded {
    /// Its log index.
    pub revision: Revision,
}

#[derive(Clone, Debug)]
pub enum Input {
    View(Arc<RunnerView>),
    Stepped {
        number: u64,
        result: Result<Stepped, ErrorBody>,
    },
    Waved {
        number: u64,
        result: Result<Waved, ErrorBody>,
    },
    /// A step of a chain is on record.
    Recorded {
        number: u64,
        result: Result<Recorded, ErrorBody>,
    },
    Acted {
        number: u64,
        ended: Box<Ended>,
    },
    /// The record of a run is written, or was refused. Otherwise it is sent again.
    RunRecorded {
        decided: bool,
    },
    Reported {
        ok: bool,
    },
    Woke,
    /// The term is over.
    Ended,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// `release` and `digest`: of the definition that it concerns, here and below.
    Step {
        number: u64,
        release: Triple,
        digest: String,
        epoch: u64,
        step: GateStep,
    },
    Wave {
        number: u64,
        release: Triple,
        digest: String,
        wave: u32,
    },
    Act {
        number: u64,
        work: Box<Work>,
    },
    /// A step of a chain was carried out.
    Record {
        number: u64,
        release: Triple,
        digest: String,
        /// The definition's revision: a record of the time before it was deleted and applied again is refused.
        defined: Revision,
        step: String,
    },
    /// Answered by the end of the action.
    Cancel {
        number: u64,
    },
    Report(Box<Progress>),
    /// Answered by `RunRecorded`.
    RecordRun(Box<RunRecord>),
    /// Another candidate should try: it failed here too often.
    Resign,
    Log(LogLine),
}

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogLine {
    Info(String),
    Warn(String),
    Error(String),
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    /// Decides by the newest view, once that is newer than `after`, or `until` has passed.
    Deciding {
        after: Revision,
        until: Moment,
    },
    /// Waits for a change of the view.
    Waiting(Described),
    Stepping {
        number: u64,
        step: GateStep,
    },
    Settling {
        until: Moment,
    },
    Waving {
        number: u64,
    },
    /// The next wave waits for a condition. Requested again with each newer view, and at `again_at`.
    Awaiting {
        again_at: Moment,
        why: String,
    },
    Recording {
        number: u64,
    },
    Acting {
        number: u64,
        deadline: Option<Moment>,
        cancelled: Option<Cancelled>,
    },
    Retrying {
        at: Moment,
        wall: WallTime,
        why: String,
    },
    /// Gives up the term. Nothing begins meanwhile: the end of the term would interrupt it.
    Resigning {
        why: String,
        /// When the resignation counts as lost. None: it is not sent before the last failure is reported, because nothing of a term
        /// can be reported afterwards.
        lost_at: Option<Moment>,
    },
    /// Applied.
    Kept {
        next: Option<Moment>,
    },
    /// Failed permanently, until an operator retries.
    Failed {
        why: String,
    },
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Cancelled {
    TimedOut,
    /// Another definition has replaced it.
    Superseded,
}

/// One run, from the decision to its success.
#[derive(Clone, Debug, PartialEq)]
struct Job {
    digest: String,
    /// Of the definition: an earlier one than ours, if it applies to later ones.
    release: Triple,
    /// The definition's revision. Another one with the same digest: it was deleted and applied again.
    defined: Revision,
    from: Option<Release>,
    /// The gate's epoch after this term's step.
    stepped: Option<u64>,
    settled: bool,
    /// Whether the gate must be completed at the end.
    completes: bool,
    /// Repairs drift: after a failure it is retried when the next period is due.
    periodic: bool,
    wave: u32,
    /// When the wait for a condition before `wave` has lasted too long.
    awaited_until: Option<Moment>,
    /// How many steps of a chain are known to be on record: the next one.
    step: usize,
    /// This one was carried out, and may not be on record yet.
    carried_out: Option<usize>,
    attempt: u32,
    /// The action has succeeded, and the gate is to be completed.
    ran: bool,
    /// The gate was not in the expected state: a newer view shows whether the action counts.
    refused: bool,
}

impl Job {
    /// Whether this is its definition, not applied anew since.
    fn is_of(&self, definition: &Definition) -> bool {
        (self.digest.as_str(), self.defined) == (definition.digest.as_str(), definition.revision)
    }
}

/// What has been applied in this term, or found applied.
#[derive(Clone, Debug, PartialEq)]
struct Applied {
    digest: String,
    next: Option<Moment>,
}

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    who: Runner,
    phase: Phase,
    view: Option<Arc<RunnerView>>,
    job: Option<Job>,
    applied: Option<Applied>,
    /// The answer to our last step, and until when an older view is rejected.
    last_step: Option<(Stepped, Moment)>,
    /// The number of operators' retries that have been handled.
    retries: Option<u64>,
    /// An operator wants it applied, even if it already is.
    again: bool,
    failures: Failures,
    output: String,
    numbers: u64,
    /// The blocking releases that were logged last.
    named: BTreeSet<String>,
    reporting: Reporting,
    recording: Recording,
    /// The action that was running when the term ended.
    ending: Option<u64>,
    /// The record of a chain's step that was not answered when the term ended.
    last_record: Option<u64>,
    /// As of the last input.
    wall: WallTime,
    tally: Tally,
}

type Out = Vec<Effect>;

impl Run {
    /// The beginning of a term.
    pub fn new(who: Runner, seed: u64) -> Self {
        Self {
            who,
            phase: Phase::Deciding { after: Revision(0), until: Moment(0) },
            view: None,
            job: None,
            applied: None,
            last_step: None,
            retries: None,
            again: false,
            failures: Failures::new(seed),
            output: String::new(),
            numbers: 0,
            named: BTreeSet::new(),
            reporting: Reporting::default(),
            recording: Recording::default(),
            ending: None,
            last_record: None,
            wall: WallTime(0),
            tally: Tally::default(),
        }
    }

    /// Continues the counters of an earlier term's run.
    #[must_use]
    pub fn counting_on(mut self, earlier: &Run) -> Self {
        self.tally = earlier.tally.continued();
        self
    }

    /// Continues after a crash. `acting`: the action that still runs. Open requests are repeated, which all of them allow.
    pub fn recover(&mut self, acting: Option<u64>) {
        self.reporting.forget();
        self.recording.forget();
        match &mut self.phase {
            // Whether the action received the cancellation is unknown: it is cancelled again.
            Phase::Acting { number, cancelled, .. } if acting == Some(*number) => *cancelled = None,
            Phase::Acting { .. } => {
                self.recording.not_begun();
                self.reconsider();
            }
            Phase::Stepping { .. } | Phase::Waving { .. } | Phase::Recording { .. } => self.reconsider(),
            // Sent again, after its report.
            Phase::Resigning { lost_at, .. } => *lost_at = None,
            _ => {}
        }
    }

    /// Applies an input and returns effects.
    pub fn step(&mut self, now: Moment, wall: WallTime, input: Input, out: &mut Out) {
        self.wall = wall;
        match input {
            Input::View(view) => self.observe(now, view, out),
            Input::Stepped { number, result } => self.stepped(now, wall, number, result, out),
            Input::Waved { number, result } => self.waved(now, wall, number, result, out),
            Input::Recorded { number, result } => self.recorded(now, wall, number, result, out),
            Input::Acted { number, ended } => self.acted(now, wall, number, *ended, out),
            Input::RunRecorded { decided } => {
                if let Some(dropped) = self.recording.answered(now, decided) {
                    out.push(Effect::Log(LogLine::Warn(dropped)));
                }
            }
            Input::Reported { ok } => {
                self.reporting.answered(ok);
                self.reported(now, ok, out);
            }
            Input::Woke => {}
            Input::Ended => self.end(now, out),
        }
        self.advance(now, out);
        self.report(now, wall, out);
        out.extend(self.recording.next(now).map(|record| Effect::RecordRun(Box::new(record))));
    }

    pub fn who(&self) -> &Runner {
        &self.who
    }
    /// Whether none of its work is running. Only after its term has ended.
    pub fn has_ended(&self) -> bool {
        self.phase == Phase::Ended
    }
    /// Whether no run is in progress, and nothing of this term is still to be recorded: no run, and no step of a chain.
    pub fn is_recorded(&self) -> bool {
        self.recording.is_complete() && self.last_record.is_none()
    }
    pub fn tally(&self) -> &Tally {
        &self.tally
    }
    /// When to check the clock again.
    pub fn wake_at(&self) -> Option<Moment> {
        let phase = match &self.phase {
            Phase::Deciding { until, .. } | Phase::Settling { until } => Some(*until),
            Phase::Acting { deadline, cancelled: None, .. } => *deadline,
            Phase::Retrying { at, .. } => Some(*at),
            Phase::Awaiting { again_at, .. } => Some(*again_at),
            Phase::Resigning { lost_at, .. } => *lost_at,
            Phase::Kept { next } => *next,
            _ => None,
        };
        // Without a view there is nothing to decide.
        let phase = phase.filter(|_| self.current().is_some());
        [phase, self.reporting.wake_at(), self.recording.wake_at()].into_iter().flatten().min()
    }

    /// The newest view, unless it predates this term, whose token is its first log index.
    fn current(&self) -> Option<&Arc<RunnerView>> {
        self.view.as_ref().filter(|view| view.revision.0 >= self.who.term.0)
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
    /// Decides by the current view.
    fn reconsider(&mut self) {
        self.phase = Phase::Deciding { after: Revision(0), until: Moment(0) };
    }

    fn end(&mut self, now: Moment, out: &mut Out) {
        match self.phase {
            // How it ends is recorded, if the term still counts then.
            Phase::Acting { number, cancelled, .. } => {
                self.ending = Some(number);
                if cancelled.is_none() {
                    out.push(Effect::Cancel { number });
                }
            }
            Phase::Ended => {}
            Phase::Recording { number } => self.last_record = Some(number),
            _ => {
                self.recording.ends(now, RunOutcome::TermEnded, RunExit::default(), ("", ""));
                self.record_last(out);
            }
        }
        self.phase = Phase::Ended;
    }

    /// The effects of time. The only place that begins anything.
    fn advance(&mut self, now: Moment, out: &mut Out) {
        match &mut self.phase {
            Phase::Settling { until } if *until <= now => {
                if let Some(job) = &mut self.job {
                    job.settled = true;
                }
                self.reconsider();
            }
            Phase::Retrying { at, .. } | Phase::Awaiting { again_at: at, .. } if *at <= now => self.reconsider(),
            Phase::Kept { next: Some(next) } if *next <= now => self.reconsider(),
            // Another attempt, which may fail and resign again.
            Phase::Resigning { lost_at: Some(lost_at), .. } if *lost_at <= now => self.reconsider(),
            Phase::Acting { number, deadline: Some(deadline), cancelled: cancelled @ None } if *deadline <= now => {
                *cancelled = Some(Cancelled::TimedOut);
                out.push(Effect::Cancel { number: *number });
            }
            _ => {}
        }
        if let Phase::Deciding { after, until } = self.phase
            && let Some(view) = self.current().cloned()
            && (view.revision > after || until <= now)
        {
            self.decide(now, &view, out);
        }
    }

    fn report(&mut self, now: Moment, wall: WallTime, out: &mut Out) {
        if self.phase == Phase::Ended || self.view.is_none() {
            return self.reporting.pause();
        }
        let progress = self.progress(wall);
        if matches!(self.phase, Phase::Resigning { lost_at: None, .. }) {
            self.reporting.hurry(now);
        }
        out.extend(self.reporting.next(now, progress).map(|progress| Effect::Report(Box::new(progress))));
    }

    /// A report was answered. A cluster that refuses the last one, or does not answer, delays the resignation no further.
    fn reported(&mut self, now: Moment, ok: bool, out: &mut Out) {
        if let Phase::Resigning { lost_at: lost_at @ None, .. } = &mut self.phase
            && (!ok || self.reporting.is_complete())
        {
            *lost_at = Some(now + RESIGNATION_LIMIT);
            out.push(Effect::Resign);
        }
    }

    /// Its progress, for people.
    pub fn progress(&mut self, wall: WallTime) -> Progress {
        let described = self.phase.describe(&self.who.reconciler);
        let since = self.reporting.since(&described, wall);
        let next_retry_at = match &self.phase {
            Phase::Retrying { wall, .. } => Some(*wall),
            _ => None,
        };
        let objects = self.view.as_ref().and_then(|v| v.definition.as_ref()).is_some_and(is_object_set);
        let all = self.view.as_ref().map_or(1, |view| waves(view));
        let wave = self.job.as_ref().filter(|_| objects).map(|job| ((job.wave + 1).min(all), all));
        let Described { phase, reason, mut message } = described;
        let definition = self.view.as_ref().and_then(|view| view.definition.as_ref());
        if phase == ReconcilerPhase::Running
            && let Some(Action::Chain(steps)) = definition.map(|definition| &definition.action)
            && let Some(job) = &self.job
            && let Some(step) = steps.get(job.step)
        {
            message = format!("step {}, {} of {}: {message}", step.name, job.step + 1, steps.len());
        }
        // An earlier one than ours, if its definition applies to later ones.
        let applied = definition.map(|d| &d.release).filter(|release| release.triple != self.who.release.triple);
        Progress {
            reconciler: self.who.reconciler.clone(),
            term: self.who.term,
            node: self.who.node,
            release: applied.unwrap_or(&self.who.release).clone(),
            phase: phase.into(),
            reason,
            message,
            since,
            attempt: self.job.as_ref().map_or(0, |job| job.attempt),
            consecutive_failures: self.failures.in_a_row,
            last_error: self.failures.last_error.clone(),
            next_retry_at,
            wave,
            output: self.output.clone(),
        }
    }

    /// Whether an equal candidate could try instead. Of a pinned reconciler, none can.
    fn has_equal(&self) -> bool {
        let pinned = self.view.as_ref().is_some_and(|view| view.pinned.is_some());
        let ours = self.who.release.triple;
        let others = self.view.iter().flat_map(|view| &view.candidates);
        !pinned
            && others
                .into_iter()
                .any(|c| c.release.triple == ours && c.missing_labels.is_empty() && c.member != self.who.member)
    }
}

/// The number of waves, at least one: the last one also deletes unwanted objects.
fn waves(view: &RunnerView) -> u32 {
    view.waves.max(1)
}

fn is_object_set(definition: &Definition) -> bool {
    matches!(definition.action, Action::Objects(_))
}

#[cfg(test)]
#[path = "chain_tests.rs"]
mod chain_tests;
#[cfg(test)]
#[path = "run_scenario_tests.rs"]
mod scenario;
#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
#[cfg(test)]
#[path = "wave_tests.rs"]
mod wave_tests;
