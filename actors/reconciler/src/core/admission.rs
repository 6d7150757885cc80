//! The state of one participant: from a lease of its own to serving, and out again.
//!
//! Owns        the phase of the participant, its lease and token, and the request in flight.
//! Inputs      the lease won and lost, answers, the request to leave, a crash of its actor.
//! Outputs     announce, admit, watch; its state.
//! Invariants  SERVE-1  it serves only between an admission that the cluster confirmed and the earliest of: its lease lost, its
//!                      record removed, asked to stop, its own decision to leave. Serving ends once.
//! Why it never reads a gate itself: a restriction on its way could overtake an admission that was decided here. It asks to be
//! admitted, and the cluster decides about both in the order of its log.

use std::time::Duration;

use muster_messages::wire::{AdmissionView, Waiting};
use muster_messages::{AdmissionReason, ErrorBody, ErrorCode, FencingToken, Moment, ParticipantPhase, Revision, Word};
use serde::Serialize;

use super::retry::Backoff;

/// How long a watch waits for news.
pub const WATCH_WAIT: Duration = Duration::from_secs(20);
/// Minimum pause between two reads: a busy scope must not keep its members busy.
const MIN_READ_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "phase")]
pub enum AdmissionState {
    /// It has no lease, or has not announced its release yet.
    Announcing {
        trouble: Option<String>,
    },
    /// Announced, with the reason why it may not serve, if known.
    Waiting {
        reason: Word<AdmissionReason>,
        message: String,
    },
    Serving,
    /// It no longer serves, and does not resume by itself.
    Revoked {
        why: String,
    },
    /// It has left.
    Left,
    /// The cluster refused it.
    Refused {
        why: String,
    },
}

impl AdmissionState {
    /// Whether this state is final.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Revoked { .. } | Self::Left | Self::Refused { .. })
    }
}

/// A numbered request: only the answer to the last one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    Announce { number: u64, token: FencingToken },
    Admit { number: u64 },
    Watch { number: u64, seen: Revision },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// Its lease is held, with this token.
    Held(FencingToken),
    Lost {
        why: String,
    },
    /// The answer to any request.
    Answered {
        number: u64,
        result: Result<AdmissionView, ErrorBody>,
    },
    /// Why it has no lease yet; it keeps trying.
    Blocked {
        why: String,
    },
    /// It will never get a lease.
    Refused {
        why: String,
    },
    Leave,
    Woke,
}

/// The lease when an input arrives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseState {
    /// A term of it lasts, as far as the election knows.
    pub lasts: bool,
    /// Why it is lost, if by the clock its term is over. The election may not know yet: the process may have been frozen.
    pub lapsed: Option<String>,
}

impl LeaseState {
    /// The inputs that count when this one arrives, in their order.
    pub fn admits(self, input: Input) -> Vec<Input> {
        match (input, self) {
            // Of an earlier term, while a later one lasts.
            (Input::Lost { .. }, Self { lasts: true, .. }) => vec![],
            // An admission counts only while the lease does (SERVE-1).
            (input @ Input::Answered { .. }, Self { lapsed: Some(why), .. }) => vec![Input::Lost { why }, input],
            (input, _) => vec![input],
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    /// It has no lease.
    Unleased,
    /// A request is open, or due.
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
    admission_state: AdmissionState,
    seen: Revision,
    asked: Option<u64>,
    numbers: u64,
    try_at: Option<Moment>,
    next_read_at: Moment,
    backoff: Backoff,
}

impl Admission {
    /// A participant that waits for its lease. `serves`: it asks to be admitted; a candidate only needs to be known.
    pub fn new(serves: bool, seed: u64) -> Self {
        Self {
            serves,
            phase: Phase::Unleased,
            token: None,
            admission_state: AdmissionState::Announcing { trouble: None },
            seen: Revision(0),
            asked: None,
            numbers: 0,
            try_at: None,
            next_read_at: Moment(0),
            backoff: Backoff::new(seed),
        }
    }

    /// The actor of this member crashed and starts again; `shown` is what its program last saw. A server is over: its program relied
    /// on the incarnation that crashed, whose lease runs out. It is shown as what is returned. `None`: it begins anew, as only its
    /// record depended on that lease.
    pub fn restarted(&mut self, shown: AdmissionState) -> Option<AdmissionState> {
        if !self.serves {
            return None;
        }
        self.over(AdmissionState::Left);
        let crashed = || AdmissionState::Revoked { why: "the actor that holds its lease crashed".to_owned() };
        Some(if shown.is_over() { shown } else { crashed() })
    }

    /// Applies an input; returns the next request.
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
                self.admission_state = AdmissionState::Announcing { trouble: Some(why) };
            }
            Input::Refused { why } => self.over(AdmissionState::Refused { why }),
            Input::Leave => self.over(AdmissionState::Left),
            // With a lease, anything that blocks the next request appears in its answer.
            Input::Held(_) | Input::Blocked { .. } | Input::Woke => {}
        }
        self.ask(now)
    }

    pub fn admission_state(&self) -> &AdmissionState {
        &self.admission_state
    }
    /// Whether the cluster knows it.
    pub fn is_announced(&self) -> bool {
        matches!(self.phase, Phase::Announced | Phase::Admitting | Phase::Serving)
    }
    /// When to check the clock again.
    pub fn wake_at(&self) -> Option<Moment> {
        self.try_at.filter(|_| self.asked.is_none())
    }

    fn enter(&mut self, phase: Phase, now: Moment) {
        self.phase = phase;
        self.asked = None; // an open request is answered too late
        self.try_at = Some(now);
        self.admission_state = match self.phase {
            Phase::Announcing | Phase::Unleased => AdmissionState::Announcing { trouble: None },
            Phase::Serving => AdmissionState::Serving,
            _ => return,
        };
    }

    fn lost(&mut self, why: String) {
        self.token = None;
        match self.phase {
            Phase::Over => {}
            Phase::Serving => self.over(AdmissionState::Revoked { why }),
            _ => {
                // It did not serve yet: it announces itself again under its next lease.
                (self.phase, self.asked, self.try_at) = (Phase::Unleased, None, None);
                self.admission_state = AdmissionState::Announcing { trouble: Some(why) };
            }
        }
    }

    fn over(&mut self, admission_state: AdmissionState) {
        if self.phase != Phase::Over {
            (self.phase, self.asked, self.try_at) = (Phase::Over, None, None);
            self.admission_state = admission_state;
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
                self.wait(now, Some(Waiting { reason: AdmissionReason::GateClosed.into(), message: body.message }));
            }
            // Its record was removed during the request; a lost lease is reported separately.
            Err(body) if matches!(body.code, ErrorCode::NotFound | ErrorCode::Conflict) => {
                self.missing(now, &body.message)
            }
            Err(body) if is_final(body.code) && self.phase != Phase::Serving => {
                self.over(AdmissionState::Refused { why: body.message });
            }
            Err(body) => {
                self.try_at = Some(now + self.backoff.pause());
                if let AdmissionState::Announcing { trouble } = &mut self.admission_state {
                    *trouble = Some(body.message);
                }
            }
        }
    }

    fn seen_as(&mut self, now: Moment, view: AdmissionView) {
        let AdmissionView { phase, waiting, .. } = view;
        match (phase, &self.phase) {
            (_, Phase::Unleased | Phase::Over) => {}
            (None, _) => self.missing(now, "its record was removed"),
            (Some(ParticipantPhase::Draining), _) if self.serves => {
                self.over(AdmissionState::Revoked { why: "it was asked to stop".to_owned() });
            }
            (Some(ParticipantPhase::Serving), Phase::Serving) => self.try_at = Some(now),
            (Some(ParticipantPhase::Serving), _) => self.enter(Phase::Serving, now),
            // An answer from a replica that lags behind our admission.
            (Some(ParticipantPhase::Announced), Phase::Serving) => self.try_at = Some(now + self.backoff.pause()),
            (Some(_), Phase::Admitting) if waiting.is_none() => {
                // The gate opened between the refusal and this answer, or closed again: the next attempt shows which.
                self.phase = Phase::Announced;
                self.try_at = Some(now + self.backoff.pause());
            }
            (Some(_), _) => self.wait(now, waiting),
        }
    }

    /// Announced. Unless something blocks it, it asks to be admitted; otherwise it watches.
    fn wait(&mut self, now: Moment, waiting: Option<Waiting>) {
        let free = waiting.is_none() && self.serves;
        self.phase = if free { Phase::Admitting } else { Phase::Announced };
        self.try_at = Some(now);
        let Waiting { reason, message } = waiting.unwrap_or_else(|| Waiting {
            reason: if self.serves { AdmissionReason::Admitting } else { AdmissionReason::Announced }.into(),
            message: "not blocked".to_owned(),
        });
        self.admission_state = AdmissionState::Waiting { reason, message };
    }

    /// The cluster has no record of it.
    fn missing(&mut self, now: Moment, why: &str) {
        if self.phase == Phase::Serving {
            return self.over(AdmissionState::Revoked { why: why.to_owned() });
        }
        // Announced again if the lease is still held; a lost lease is reported soon.
        self.phase = Phase::Announcing;
        self.admission_state = AdmissionState::Announcing { trouble: Some(why.to_owned()) };
        self.try_at = Some(now + self.backoff.pause());
    }

    /// The only place that sends requests. One at a time.
    fn ask(&mut self, now: Moment) -> Option<Ask> {
        if self.asked.is_some() || self.try_at.is_none_or(|at| now < at) {
            return None;
        }
        let number = self.numbers + 1;
        let ask = match (&self.phase, self.token) {
            (Phase::Announcing, Some(token)) => Ask::Announce { number, token },
            (Phase::Admitting, _) => Ask::Admit { number },
            (Phase::Announced | Phase::Serving, _) if now < self.next_read_at => {
                self.try_at = Some(self.next_read_at);
                return None;
            }
            (Phase::Announced | Phase::Serving, _) => {
                self.next_read_at = now + MIN_READ_INTERVAL;
                Ask::Watch { number, seen: self.seen }
            }
            _ => return None,
        };
        (self.numbers, self.asked, self.try_at) = (number, Some(number), None);
        Some(ask)
    }
}

/// A repetition would be refused too.
fn is_final(code: ErrorCode) -> bool {
    use ErrorCode as C;
    matches!(code, C::Invalid | C::Unauthenticated | C::Forbidden | C::Blocked | C::Demoted | C::Removed | C::TooLarge)
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
