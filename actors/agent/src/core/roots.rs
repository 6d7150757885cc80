//! Roots: the ones that this node trusts, and whether the cluster knows.
//!
//! Owns        the newest offer of a host, the generation on disk, the acknowledgement in flight.
//! Invariants  AGENT-13  the roots of a generation are acknowledged only once they are on disk, and until the cluster has recorded it.

use muster_messages::wire::{AgentAsk, AgentFrame, RootsOffer};
use muster_messages::{Moment, Revision, Rng};

use super::pause::pause;
use super::{Attempt, Effect};
use crate::config::AgentConfig;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flight {
    Idle,
    /// No acknowledgement before this time.
    Pausing(Moment),
    Sent {
        attempt: Attempt,
        id: u64,
        generation: Revision,
        until: Moment,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Roots {
    /// An offer that was not accepted, or could not be written: it is tried again.
    refused: Option<(RootsOffer, Moment)>,
    /// The last offer that is to be written.
    last: Option<RootsOffer>,
    on_disk: Revision,
    recorded: Revision,
    flight: Flight,
    failures: u32,
}

impl Default for Roots {
    fn default() -> Self {
        let none = Revision(0);
        Self { refused: None, last: None, on_disk: none, recorded: none, flight: Flight::Idle, failures: 0 }
    }
}

impl Roots {
    /// A host offers the cluster's roots. One that lags behind may offer an earlier generation.
    pub fn offered(&mut self, offer: RootsOffer, out: &mut Vec<Effect>) {
        let being_written = self.last.as_ref().map_or(self.on_disk, |last| last.generation);
        if offer.generation < being_written.max(self.on_disk) {
            return;
        }
        self.refused = None;
        if offer.recorded {
            self.recorded = self.recorded.max(offer.generation);
        } else if self.recorded >= offer.generation {
            self.recorded = Revision(0); // the cluster knows better
        }
        self.last = Some(offer.clone());
        // Again with each session: what was refused may be acceptable by now.
        if offer.generation > self.on_disk {
            out.push(Effect::InstallRoots(offer));
        }
    }

    /// The last offer was not accepted or could not be written.
    pub fn refused(&mut self, now: Moment, config: &AgentConfig, rng: &mut Rng) {
        let wait = pause(rng, config.sign_retry_first, config.sign_retry_cap, self.failures);
        self.failures = self.failures.saturating_add(1);
        self.refused = self.last.take().map(|offer| (offer, now + wait));
    }

    /// Views of every host have been older than one before: what that host offered is as doubtful.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    pub fn installed(&mut self, generation: Revision) {
        self.last.take_if(|last| last.generation <= generation);
        self.on_disk = self.on_disk.max(generation);
        self.retry_now();
    }

    /// A change: what failed before may work now.
    pub fn retry_now(&mut self) {
        self.failures = 0;
        if matches!(self.flight, Flight::Pausing(_)) {
            self.flight = Flight::Idle;
        }
    }

    pub fn session_lost(&mut self, lost: Attempt) {
        if matches!(self.flight, Flight::Sent { attempt, .. } if attempt == lost) {
            self.flight = Flight::Idle;
        }
    }

    /// Whether this answers the acknowledgement in flight; afterwards nothing is in flight.
    pub fn answered(
        &mut self,
        on: Attempt,
        answered: u64,
        done: bool,
        now: Moment,
        config: &AgentConfig,
        rng: &mut Rng,
    ) -> bool {
        let sent = match self.flight {
            Flight::Sent { attempt, id, generation, .. } if (attempt, id) == (on, answered) => generation,
            _ => return false,
        };
        if done {
            self.recorded = self.recorded.max(sent);
            self.flight = Flight::Idle;
            self.failures = 0;
        } else {
            self.failed(now, config, rng);
        }
        true
    }

    /// Ends an acknowledgement without an answer by now, and a pause that is over; offers are written again when that is due. Afterwards [`Self::wake_at`] is never in the past.
    pub fn lapse(&mut self, now: Moment, config: &AgentConfig, rng: &mut Rng, out: &mut Vec<Effect>) {
        if let Some((offer, _)) = self.refused.take_if(|(_, at)| now >= *at) {
            self.last = Some(offer.clone());
            out.push(Effect::InstallRoots(offer));
        }
        match self.flight {
            Flight::Sent { until, .. } if now >= until => self.failed(now, config, rng),
            Flight::Pausing(until) if now >= until => self.flight = Flight::Idle,
            _ => {}
        }
    }

    /// Sends the acknowledgement that is due.
    pub fn send(
        &mut self,
        now: Moment,
        attempt: Attempt,
        next_id: &mut u64,
        config: &AgentConfig,
        out: &mut Vec<Effect>,
    ) {
        if self.flight != Flight::Idle || self.recorded >= self.on_disk {
            return;
        }
        *next_id += 1;
        let id = *next_id;
        let generation = self.on_disk;
        self.flight = Flight::Sent { attempt, id, generation, until: now + config.sign_deadline };
        let ask = AgentAsk::TrustRoots { generation: self.on_disk };
        out.push(Effect::Send { attempt, frame: Box::new(AgentFrame::Ask { id, ask }) });
    }

    /// When to check again, for local reasons alone.
    pub fn wake_at(&self) -> Option<Moment> {
        let flight = match self.flight {
            Flight::Pausing(until) | Flight::Sent { until, .. } => Some(until),
            Flight::Idle => None,
        };
        flight.into_iter().chain(self.refused.as_ref().map(|(_, at)| *at)).min()
    }

    fn failed(&mut self, now: Moment, config: &AgentConfig, rng: &mut Rng) {
        let wait = pause(rng, config.sign_retry_first, config.sign_retry_cap, self.failures);
        self.failures = self.failures.saturating_add(1);
        self.flight = Flight::Pausing(now + wait);
    }
}
