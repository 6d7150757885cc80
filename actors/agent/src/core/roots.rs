//! Roots: the ones that this node trusts, and whether the cluster knows.
//!
//! Owns        the newest offer of a host, the generation on disk, the acknowledgement in flight.
//! Invariants  AGENT-13  the roots of a generation are acknowledged only once they are on disk, and until the cluster has recorded it.

use std::time::Duration;

use muster_messages::wire::{AgentAnswer, AgentAsk, AgentFrame, RootsOffer};
use muster_messages::{ErrorBody, Moment, Revision, Rng};

use super::pause::before_repeat;
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
    /// The newest offer, while it is not on disk.
    wanted: Option<RootsOffer>,
    /// An offer that is earlier than the newest one. A host offers a set once in a session, and the newest one may prove false.
    earlier: Option<RootsOffer>,
    /// The generation that is being written. One at a time: an earlier one must not replace a later one.
    writing: Option<Revision>,
    /// The offer that is being written was forgotten: its generation says nothing about the disk.
    is_forgotten: bool,
    /// `wanted` was not accepted or could not be written: when it is tried again.
    retry_at: Option<Moment>,
    on_disk: Revision,
    recorded: Revision,
    flight: Flight,
    failures: u32,
}

impl Default for Roots {
    fn default() -> Self {
        let (on_disk, recorded) = (Revision(0), Revision(0));
        Self {
            wanted: None,
            earlier: None,
            writing: None,
            is_forgotten: false,
            retry_at: None,
            on_disk,
            recorded,
            flight: Flight::Idle,
            failures: 0,
        }
    }
}

impl Roots {
    /// A host offers the cluster's roots. One that lags behind may offer an earlier generation; one that was refused does not
    /// keep others out.
    pub fn offered(&mut self, offer: RootsOffer, out: &mut Vec<Effect>) {
        let wanted = self.wanted.as_ref().filter(|_| self.retry_at.is_none());
        let newest = wanted.map_or(self.on_disk, |wanted| wanted.generation);
        if offer.generation < newest {
            self.earlier = Some(offer);
            return;
        }
        self.earlier = None;
        if offer.recorded {
            self.recorded = self.recorded.max(offer.generation);
        } else if self.recorded >= offer.generation {
            self.recorded = Revision(0); // the cluster knows better
        }
        if offer.generation > self.on_disk {
            (self.wanted, self.retry_at) = (Some(offer), None);
            self.write(out);
        }
    }

    fn write(&mut self, out: &mut Vec<Effect>) {
        if let (Some(wanted), None, None) = (&self.wanted, self.writing, self.retry_at) {
            self.writing = Some(wanted.generation);
            out.push(Effect::InstallRoots(wanted.clone()));
        }
    }

    pub fn installed(&mut self, generation: Revision, out: &mut Vec<Effect>) {
        if self.writing.take_if(|writing| *writing == generation).is_none() {
            return;
        }
        if !std::mem::take(&mut self.is_forgotten) {
            self.on_disk = generation;
            self.wanted.take_if(|wanted| wanted.generation == generation);
        }
        self.retry_now();
        self.write(out);
    }

    /// The offer of this generation was not accepted or could not be written.
    pub fn refused(
        &mut self,
        generation: Revision,
        now: Moment,
        config: &AgentConfig,
        rng: &mut Rng,
        out: &mut Vec<Effect>,
    ) {
        if self.writing.take_if(|writing| *writing == generation).is_none() {
            return;
        }
        let is_forgotten = std::mem::take(&mut self.is_forgotten);
        if !is_forgotten && self.wanted.as_ref().is_some_and(|wanted| wanted.generation == generation) {
            let wait = before_repeat(None, self.failures, config, rng);
            self.failures = self.failures.saturating_add(1);
            self.retry_at = Some(now + wait);
        }
        self.write(out);
        self.offered_earlier(out);
    }

    /// Views of every host have been older than one before: what that host offered is as doubtful.
    pub fn forget(&mut self, out: &mut Vec<Effect>) {
        let (earlier, writing) = (self.earlier.take(), self.writing);
        *self = Self { earlier, writing, is_forgotten: writing.is_some(), ..Self::default() };
        self.offered_earlier(out);
    }

    fn offered_earlier(&mut self, out: &mut Vec<Effect>) {
        if let Some(offer) = self.earlier.take() {
            self.offered(offer, out);
        }
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

    /// Whether this answers the acknowledgement in flight; afterwards nothing is in flight. An error may say how long to wait.
    pub fn answered(
        &mut self,
        on: Attempt,
        answered: u64,
        result: &Result<AgentAnswer, ErrorBody>,
        now: Moment,
        config: &AgentConfig,
        rng: &mut Rng,
    ) -> bool {
        let sent = match self.flight {
            Flight::Sent { attempt, id, generation, .. } if (attempt, id) == (on, answered) => generation,
            _ => return false,
        };
        match result {
            Ok(AgentAnswer::Reported) => {
                self.recorded = self.recorded.max(sent);
                self.flight = Flight::Idle;
                self.failures = 0;
            }
            Ok(_) => self.failed(now, None, config, rng),
            Err(error) => self.failed(now, error.retry_after_ms.map(Duration::from_millis), config, rng),
        }
        true
    }

    /// Ends an acknowledgement without an answer by now, and a pause that is over; an offer is written again when that is due.
    /// Afterwards [`Self::wake_at`] is never in the past.
    pub fn lapse(&mut self, now: Moment, config: &AgentConfig, rng: &mut Rng, out: &mut Vec<Effect>) {
        if self.retry_at.take_if(|at| now >= *at).is_some() {
            self.write(out);
        }
        match self.flight {
            Flight::Sent { until, .. } if now >= until => self.failed(now, None, config, rng),
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
        let ask = AgentAsk::TrustRoots { generation };
        out.push(Effect::Send { attempt, frame: Box::new(AgentFrame::Ask { id, ask }) });
    }

    /// When to check again, for local reasons alone.
    pub fn wake_at(&self) -> Option<Moment> {
        let flight = match self.flight {
            Flight::Pausing(until) | Flight::Sent { until, .. } => Some(until),
            Flight::Idle => None,
        };
        flight.into_iter().chain(self.retry_at).min()
    }

    fn failed(&mut self, now: Moment, retry_after: Option<Duration>, config: &AgentConfig, rng: &mut Rng) {
        let wait = before_repeat(retry_after, self.failures, config, rng);
        self.failures = self.failures.saturating_add(1);
        self.flight = Flight::Pausing(now + wait);
    }
}
