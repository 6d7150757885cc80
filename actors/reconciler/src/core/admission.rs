//! How far one participant is: from a lease of its own to serving, and out again.
//!
//! Hears  the lease won and lost, answers, that it is to leave.   Says  announce, admit, watch; where it is.
//! Keeps  SERVE-1  it serves only between an admission that the cluster confirmed and the earliest of: its lease lost, its record
//!                 gone, told to stop, its own wish to leave. Serving ends once.
//! Why it never reads a gate itself: an admission that was judged here could be overtaken by a restriction on its way. It asks
//! to be admitted, and the cluster judges both in the order of its log.

use std::time::Duration;

use muster_messages::wire::{AdmissionView, Waiting};
use muster_messages::{ErrorBody, ErrorCode, FencingToken, Moment, ParticipantPhase, Revision};
use serde::Serialize;

use super::retry::Backoff;

/// How long a watch waits for news.
pub const WATCH: Duration = Duration::from_secs(20);
/// Two looks are at least this far apart, so that a busy scope does not keep its members busy.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// Where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "phase")]
pub enum Standing {
    /// It has no lease, or has not told its release yet.
    Announcing {
        trouble: Option<String>,
    },
    /// Announced; why it may not serve, where that is known.
    Waiting {
        reason: String,
        message: String,
    },
    Serving,
    /// It serves no more, and does not come back by itself.
    Revoked {
        why: String,
    },
    /// It has left.
    Left,
    /// The cluster will not have it.
    Refused {
        why: String,
    },
}

impl Standing {
    /// Whether nothing follows.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Revoked { .. } | Self::Left | Self::Refused { .. })
    }
}

/// What it asks for, in an order of its own: an answer to another question than the last one is late, and ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    Announce { number: u64, token: FencingToken },
    Admit { number: u64 },
    Watch { number: u64, seen: Revision },
}

/// What it hears.
#[derive(Clone, Debug)]
pub enum Input {
    /// Its lease is held, under this token.
    Held(FencingToken),
    Lost {
        why: String,
    },
    /// To any of its questions.
    Answered {
        number: u64,
        result: Result<AdmissionView, ErrorBody>,
    },
    /// Why it has no lease yet; it goes on trying.
    Blocked {
        why: String,
    },
    /// It gets no lease, ever.
    Refused {
        why: String,
    },
    Leave,
    Woke,
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    /// There is no lease.
    Unleased,
    /// A question is open, or due.
    Announcing,
    Announced,
    Admitting,
    Serving,
    Over,
}

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Admission {
    /// Whether it wants to serve, or only to be known.
    serves: bool,
    phase: Phase,
    token: Option<FencingToken>,
    standing: Standing,
    seen: Revision,
    asked: Option<u64>,
    numbers: u64,
    try_at: Option<Moment>,
    looks_from: Moment,
    backoff: Backoff,
}

impl Admission {
    /// One that waits for its lease. `serves`: whether it asks to be admitted, or is a candidate, whom it is enough to be known.
    pub fn new(serves: bool, seed: u64) -> Self {
        Self {
            serves,
            phase: Phase::Unleased,
            token: None,
            standing: Standing::Announcing { trouble: None },
            seen: Revision(0),
            asked: None,
            numbers: 0,
            try_at: None,
            looks_from: Moment(0),
            backoff: Backoff::new(seed),
        }
    }

    /// Takes news; says what to ask.
    pub fn step(&mut self, now: Moment, input: Input) -> Option<Ask> {
        match input {
            Input::Held(token) if self.phase != Phase::Over => {
                self.token = Some(token);
                self.enter(Phase::Announcing, now);
            }
            Input::Lost { why } => self.lost(why),
            Input::Answered { number, result } => {
                if self.asked.take_if(|asked| *asked == number).is_some() {
                    self.answered(now, result);
                }
            }
            Input::Blocked { why } if self.phase == Phase::Unleased => {
                self.standing = Standing::Announcing { trouble: Some(why) };
            }
            Input::Refused { why } => self.over(Standing::Refused { why }),
            Input::Leave => self.over(Standing::Left),
            // With a lease, whatever is in the way of the next question is heard as its answer.
            Input::Held(_) | Input::Blocked { .. } | Input::Woke => {}
        }
        self.ask(now)
    }

    /// Where it is.
    pub fn standing(&self) -> &Standing {
        &self.standing
    }
    /// Whether the cluster knows of it.
    pub fn is_announced(&self) -> bool {
        matches!(self.phase, Phase::Announced | Phase::Admitting | Phase::Serving)
    }
    /// When to look at the clock again.
    pub fn wake_at(&self) -> Option<Moment> {
        self.try_at.filter(|_| self.asked.is_none())
    }

    fn enter(&mut self, phase: Phase, now: Moment) {
        self.phase = phase;
        self.asked = None; // what was asked before is answered too late
        self.try_at = Some(now);
        self.standing = match self.phase {
            Phase::Announcing | Phase::Unleased => Standing::Announcing { trouble: None },
            Phase::Serving => Standing::Serving,
            _ => return,
        };
    }

    fn lost(&mut self, why: String) {
        self.token = None;
        match self.phase {
            Phase::Over => {}
            Phase::Serving => self.over(Standing::Revoked { why }),
            _ => {
                // Nobody relied on it yet: it announces itself again under its next lease.
                (self.phase, self.asked, self.try_at) = (Phase::Unleased, None, None);
                self.standing = Standing::Announcing { trouble: Some(why) };
            }
        }
    }

    fn over(&mut self, standing: Standing) {
        if self.phase != Phase::Over {
            (self.phase, self.asked, self.try_at) = (Phase::Over, None, None);
            self.standing = standing;
        }
    }

    fn answered(&mut self, now: Moment, result: Result<AdmissionView, ErrorBody>) {
        match result {
            Ok(view) => {
                self.backoff.reset();
                self.seen = self.seen.max(view.revision);
                self.seen_as(now, view);
            }
            Err(body) if body.code == ErrorCode::GateClosed => {
                self.backoff.reset();
                self.wait(now, Some(Waiting { reason: "gate-closed".to_owned(), message: body.message }));
            }
            // Its record went while the question was on its way; that the lease went with it is heard from there.
            Err(body) if matches!(body.code, ErrorCode::NotFound | ErrorCode::Conflict) => {
                self.missing(now, &body.message)
            }
            Err(body) if is_final(body.code) && self.phase != Phase::Serving => {
                self.over(Standing::Refused { why: body.message });
            }
            Err(body) => {
                self.try_at = Some(now + self.backoff.pause());
                if let Standing::Announcing { trouble } = &mut self.standing {
                    *trouble = Some(body.message);
                }
            }
        }
    }

    fn seen_as(&mut self, now: Moment, view: AdmissionView) {
        let AdmissionView { phase, waiting, .. } = view;
        match (phase, &self.phase) {
            (_, Phase::Unleased | Phase::Over) => {}
            (None, _) => self.missing(now, "it was forgotten"),
            (Some(ParticipantPhase::Draining), _) if self.serves => {
                self.over(Standing::Revoked { why: "it was told to stop".to_owned() });
            }
            (Some(ParticipantPhase::Serving), Phase::Serving) => self.try_at = Some(now),
            (Some(ParticipantPhase::Serving), _) => self.enter(Phase::Serving, now),
            // An answer from a copy that lags behind our admission.
            (Some(ParticipantPhase::Announced), Phase::Serving) => self.try_at = Some(now + self.backoff.pause()),
            (Some(_), Phase::Admitting) if waiting.is_none() => {
                // The gate opened between the refusal and this answer, or closed again: the next try says which.
                self.phase = Phase::Announced;
                self.try_at = Some(now + self.backoff.pause());
            }
            (Some(_), _) => self.wait(now, waiting),
        }
    }

    /// Announced. With nothing in the way it asks to be admitted, else it watches.
    fn wait(&mut self, now: Moment, waiting: Option<Waiting>) {
        let free = waiting.is_none() && self.serves;
        self.phase = if free { Phase::Admitting } else { Phase::Announced };
        self.try_at = Some(now);
        let Waiting { reason, message } = waiting.unwrap_or_else(|| Waiting {
            reason: if self.serves { "admitting".to_owned() } else { "announced".to_owned() },
            message: "nothing is in the way".to_owned(),
        });
        self.standing = Standing::Waiting { reason, message };
    }

    /// The cluster has no record of it.
    fn missing(&mut self, now: Moment, why: &str) {
        if self.phase == Phase::Serving {
            return self.over(Standing::Revoked { why: why.to_owned() });
        }
        // Announced again, if the lease is still there; if not, that is heard soon.
        self.phase = Phase::Announcing;
        self.standing = Standing::Announcing { trouble: Some(why.to_owned()) };
        self.try_at = Some(now + self.backoff.pause());
    }

    /// The only place that asks. One question at a time.
    fn ask(&mut self, now: Moment) -> Option<Ask> {
        if self.asked.is_some() || self.try_at.is_none_or(|at| now < at) {
            return None;
        }
        let number = self.numbers + 1;
        let ask = match (&self.phase, self.token) {
            (Phase::Announcing, Some(token)) => Ask::Announce { number, token },
            (Phase::Admitting, _) => Ask::Admit { number },
            (Phase::Announced | Phase::Serving, _) if now < self.looks_from => {
                self.try_at = Some(self.looks_from);
                return None;
            }
            (Phase::Announced | Phase::Serving, _) => {
                self.looks_from = now + BETWEEN_LOOKS;
                Ask::Watch { number, seen: self.seen }
            }
            _ => return None,
        };
        (self.numbers, self.asked, self.try_at) = (number, Some(number), None);
        Some(ask)
    }
}

/// Asked again, it would fare no better.
fn is_final(code: ErrorCode) -> bool {
    use ErrorCode as C;
    matches!(code, C::Invalid | C::Unauthenticated | C::Forbidden | C::Blocked | C::Demoted | C::Removed | C::TooLarge)
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
