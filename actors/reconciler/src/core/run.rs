//! One time of running a reconciler: from the first look at its gate to keeping what was applied.
//!
//! Owns   the phase, attempts and failures of one term.
//! Hears  the newest view, answers, how actions ended, that the term is over.
//! Says   steps of the gate, waves of objects, actions to begin and to cancel; how far it is; that another should try.
//! Keeps  RUN-2  it applies nothing unless the gate leads to its definition, as far as it knows: a step that is refused is followed by
//!               a look at a newer view, never by an action.
//!        RUN-3  one action at a time, and none once the term is over.
//!        RUN-4  a run that has succeeded is not made again because an answer or a view comes late. A view from before the term
//!               is not looked at: in one from after its beginning is everything that earlier runners could write.
//! Why it remembers so little: gate and definition say where things stand. It is a value and can be cloned; an actor that
//! crashed goes on from such a clone ([`Run::recover`]).

mod decide;
mod outcome;
mod report;
mod tally;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_messages::wire::RunnerView;
use muster_messages::{
    Action, Definition, ErrorBody, FencingToken, GateStep, Moment, NodeId, Progress, Release, Revision, WallTime,
    in_short,
};
use serde::Deserialize;

use self::report::Reporting;
pub use self::tally::Tally;
use super::retry::{Backoff, LogRule};

/// How long a view may stay older than our own last step before it is believed all the same.
const LAG: Duration = Duration::from_secs(30);
/// How long after a refusal a view as old as it is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How much of a text that somebody else wrote is kept.
const MOST_OF_AN_ERROR: usize = 2048;

/// Whose run it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Runner {
    pub reconciler: String,
    pub node: NodeId,
    pub member: String,
    pub release: Release,
    /// Of the lease that it holds: its term.
    pub term: FencingToken,
}

/// How an action ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// It asks to be tried again later (a command: exit status 75).
    Later(String),
    Failed(String),
    /// Trying again is of no use (a command: exit status 78).
    Permanent(String),
}

/// What a wave came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Waved {
    /// Not all of them.
    #[serde(default)]
    pub errors: Vec<ObjectError>,
    #[serde(default)]
    pub errors_in_all: u32,
}
/// An object that could not be applied.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ObjectError {
    /// However the cluster writes it.
    pub key: serde_json::Value,
    pub message: String,
}

/// What a step came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Stepped {
    pub epoch: u64,
    /// Where in the log. 0: it was not said.
    #[serde(default)]
    pub revision: Revision,
}

/// An action to carry out here.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// What has been applied before, where anything has.
    pub from: Option<Release>,
    pub definition: Arc<Definition>,
    pub attempt: u32,
}

/// What it hears.
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
    /// `output`: the end of what it wrote.
    Acted {
        number: u64,
        outcome: Outcome,
        output: String,
    },
    Reported {
        ok: bool,
    },
    Woke,
    /// The term is over.
    Ended,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Step {
        number: u64,
        digest: String,
        epoch: u64,
        step: GateStep,
    },
    Wave {
        number: u64,
        digest: String,
        wave: u32,
    },
    Act {
        number: u64,
        work: Box<Work>,
    },
    /// Answered by how it ended.
    Cancel {
        number: u64,
    },
    Report(Box<Progress>),
    /// Somebody else should try: it failed here too often.
    Resign,
    Say(Line),
}

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    Info(String),
    Warn(String),
    Error(String),
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    /// Decides by the newest view, once it is newer than `after`, or some time has passed.
    Deciding {
        after: Revision,
        until: Moment,
    },
    /// Nothing to do until the view changes.
    Waiting(Wait),
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
    /// Applied.
    Kept {
        next: Option<Moment>,
    },
    /// Given up, until somebody says to try again.
    Failed {
        why: String,
    },
    Ended,
}

#[derive(Clone, Debug, PartialEq)]
struct Wait {
    phase: &'static str,
    reason: String,
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Cancelled {
    TimedOut,
    /// Another definition has taken its place.
    Superseded,
}

/// One run, from the decision to its success.
#[derive(Clone, Debug, PartialEq)]
struct Job {
    digest: String,
    from: Option<Release>,
    /// The gate as this term's step has left it.
    stepped: Option<u64>,
    settled: bool,
    /// Whether the gate must be told at the end.
    completes: bool,
    /// Made to repair what drifted: fails until the next one is due.
    periodic: bool,
    wave: u32,
    attempt: u32,
    /// It has succeeded, and the gate is to be told.
    ran: bool,
    /// The gate was not where we believed: a newer view says whether what has run counts.
    refused: bool,
}

/// What has been applied in this term, or found so.
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
    /// What our last step was answered with, and until when an older view is not believed.
    last_step: Option<(Stepped, Moment)>,
    /// How often an operator has asked to begin again, as far as was heeded.
    retries: Option<u64>,
    /// An operator wants it applied, even if it is.
    again: bool,
    failures: u32,
    last_error: Option<String>,
    output: String,
    numbers: u64,
    backoff: Backoff,
    log: LogRule,
    /// The releases in the way that were said last.
    named: BTreeSet<String>,
    reporting: Reporting,
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
            failures: 0,
            last_error: None,
            output: String::new(),
            numbers: 0,
            backoff: Backoff::new(seed),
            log: LogRule::default(),
            named: BTreeSet::new(),
            reporting: Reporting::default(),
            tally: Tally::default(),
        }
    }

    /// Goes on after a crash. `acting`: the action that still runs. What was asked is asked again: all of it may be.
    pub fn recover(&mut self, acting: Option<u64>) {
        self.reporting.forget();
        match &mut self.phase {
            // Whether it has heard that it is to end is not known: it is told again.
            Phase::Acting { number, cancelled, .. } if acting == Some(*number) => *cancelled = None,
            Phase::Acting { .. } | Phase::Stepping { .. } | Phase::Waving { .. } => self.look(),
            _ => {}
        }
    }

    /// Takes news; says what to do.
    pub fn step(&mut self, now: Moment, wall: WallTime, input: Input, out: &mut Out) {
        match input {
            Input::View(view) => self.see(view, out),
            Input::Stepped { number, result } => self.stepped(now, wall, number, result, out),
            Input::Waved { number, result } => self.waved(now, wall, number, result, out),
            Input::Acted { number, outcome, output } => self.acted(now, wall, (number, outcome, output), out),
            Input::Reported { ok } => self.reporting.answered(ok),
            Input::Woke => {}
            Input::Ended => self.end(out),
        }
        self.advance(now, out);
        self.report(now, wall, out);
    }

    /// Whose it is.
    pub fn who(&self) -> &Runner {
        &self.who
    }
    /// Whether nothing of it goes on. Only after its term has ended.
    pub fn has_ended(&self) -> bool {
        self.phase == Phase::Ended
    }
    /// When to look at the clock again.
    pub fn wake_at(&self) -> Option<Moment> {
        let phase = match &self.phase {
            Phase::Deciding { until, .. } | Phase::Settling { until } => Some(*until),
            Phase::Acting { deadline, cancelled: None, .. } => *deadline,
            Phase::Retrying { at, .. } => Some(*at),
            Phase::Kept { next } => *next,
            _ => None,
        };
        // Without a view there is nothing to decide.
        let phase = phase.filter(|_| self.current().is_some());
        [phase, self.reporting.wake_at()].into_iter().flatten().min()
    }

    /// The newest view, unless it is from before this term, whose token is where in the log it began.
    fn current(&self) -> Option<&Arc<RunnerView>> {
        self.view.as_ref().filter(|view| view.revision.0 >= self.who.term.0)
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
    /// Decides by what is known.
    fn look(&mut self) {
        self.phase = Phase::Deciding { after: Revision(0), until: Moment(0) };
    }

    fn end(&mut self, out: &mut Out) {
        if let Phase::Acting { number, cancelled: None, .. } = self.phase {
            out.push(Effect::Cancel { number });
        }
        self.phase = Phase::Ended;
    }

    fn see(&mut self, view: Arc<RunnerView>, out: &mut Out) {
        if self.view.as_ref().is_some_and(|known| view.revision < known.revision) || self.phase == Phase::Ended {
            return; // of a copy that lags behind
        }
        let again = self.retries.is_some_and(|heeded| view.retries > heeded);
        let digest = view.definition.as_ref().map(|d| d.digest.clone());
        self.retries = Some(view.retries);
        self.view = Some(view);
        let superseded = self.job.as_ref().is_some_and(|job| Some(&job.digest) != digest.as_ref());
        match &mut self.phase {
            Phase::Acting { number, cancelled, .. } if superseded && cancelled.is_none() => {
                *cancelled = Some(Cancelled::Superseded);
                out.push(Effect::Cancel { number: *number });
            }
            // What they came to is judged when it is answered.
            Phase::Acting { .. } | Phase::Stepping { .. } | Phase::Waving { .. } | Phase::Ended => {}
            Phase::Retrying { .. } | Phase::Settling { .. } | Phase::Failed { .. } if !superseded && !again => {}
            Phase::Deciding { .. } => {}
            _ => self.look(),
        }
        if again {
            self.backoff.reset();
            (self.again, self.applied) = (true, None);
        }
        if superseded && !matches!(self.phase, Phase::Acting { .. }) {
            self.job = None;
        }
    }

    /// What time brings about. The only place that begins anything.
    fn advance(&mut self, now: Moment, out: &mut Out) {
        match &mut self.phase {
            Phase::Settling { until } if *until <= now => {
                if let Some(job) = &mut self.job {
                    job.settled = true;
                }
                self.look();
            }
            Phase::Retrying { at, .. } if *at <= now => self.look(),
            Phase::Kept { next: Some(next) } if *next <= now => self.look(),
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

    /// Whether an equal candidate could try instead.
    fn has_equal(&self) -> bool {
        let ours = self.who.release.triple;
        let others = self.view.iter().flat_map(|view| &view.candidates);
        others.into_iter().any(|c| c.release.triple == ours && c.member != self.who.member)
    }
}

/// The waves of a definition, at least one: with the last one goes what is not wanted any more.
fn waves(view: &RunnerView) -> u32 {
    view.waves.max(1)
}

fn is_object_set(definition: &Definition) -> bool {
    matches!(definition.action, Action::Objects(_))
}

#[cfg(test)]
#[path = "run_story_tests.rs"]
mod story;
#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
