//! Renewal: whether this node needs another certificate, and when it may ask.
//!
//! Owns        why a certificate is wanted, the request in flight, the pause after a failure.
//! Invariants  AGENT-3  the need to renew is level-triggered: every view is compared with the certificate, never a change
//!                      between two views (a role that flipped and flipped back between them must not leave a wrong
//!                      certificate).
//!             AGENT-4  a pause after a failure is at most `sign_retry_cap`, and any new signal ends it.

use std::time::Duration;

use muster_messages::wire::AgentView;
use muster_messages::{ErrorBody, ErrorCode, Incarnation, Moment, Revision, Rng, Role, WallTime};

use super::CertificateFacts;
use super::pause::before_repeat;
use crate::config::AgentConfig;

/// Why a certificate is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Because {
    /// The cluster granted another role, or this one anew.
    RoleChanged,
    /// The cluster requests a renewal.
    Rotate,
    /// A manager reported that the manager role is gone.
    DemotionReported,
    /// Between 50 and 80 % of its life has passed.
    Age,
}

/// The parts of the newest view that a certificate is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Signal {
    incarnation: Incarnation,
    role: Role,
    granted: Revision,
    rotate: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flight {
    Idle,
    /// No request before this time.
    Pausing(Moment),
    Asked {
        id: u64,
        until: Moment,
    },
    /// The answer is being verified and written.
    Installing,
}

#[derive(Clone, Debug)]
pub struct Renewal {
    renew_at: WallTime,
    signal: Option<Signal>,
    /// Requested by the cluster and not yet fulfilled, even if a later view no longer says so (the answer may be lost).
    rotate: bool,
    demotion_reported: bool,
    flight: Flight,
    failures: u32,
}

impl Renewal {
    pub fn new(certificate: &CertificateFacts, rng: &mut Rng) -> Self {
        Self {
            renew_at: pick_renewal(certificate, rng),
            signal: None,
            rotate: false,
            demotion_reported: false,
            flight: Flight::Idle,
            failures: 0,
        }
    }

    pub fn renew_at(&self) -> WallTime {
        self.renew_at
    }
    pub fn demotion_reported(&self) -> bool {
        self.demotion_reported
    }
    /// When to check again, for local reasons alone.
    pub fn wake_at(&self) -> Option<Moment> {
        match self.flight {
            Flight::Pausing(until) | Flight::Asked { until, .. } => Some(until),
            Flight::Idle | Flight::Installing => None,
        }
    }

    /// A view that is not older than any before it.
    pub fn viewed(&mut self, certificate: &CertificateFacts, view: &AgentView) {
        let signal =
            Signal { incarnation: view.incarnation, role: view.role, granted: view.granted, rotate: view.rotate };
        // A host that lags behind still shows the rotation that the present certificate has fulfilled.
        let ours = |serial: &String| *serial == certificate.serial;
        self.rotate |= view.rotate && view.serial.as_ref().is_none_or(ours);
        if self.signal.replace(signal) != Some(signal) {
            self.retry_now();
        }
    }

    /// A manager reported that the manager role of this node is revoked.
    pub fn demoted(&mut self) {
        self.demotion_reported = true;
        self.retry_now();
    }

    /// A change: what failed before may work now.
    pub fn retry_now(&mut self) {
        self.failures = 0;
        if matches!(self.flight, Flight::Pausing(_)) {
            self.flight = Flight::Idle;
        }
    }

    /// The session is lost, with any request sent on it.
    pub fn session_lost(&mut self) {
        if matches!(self.flight, Flight::Asked { .. }) {
            self.flight = Flight::Idle;
        }
    }

    pub fn need(&self, certificate: &CertificateFacts, wall: WallTime) -> Option<Because> {
        if self.demotion_reported {
            return Some(Because::DemotionReported);
        }
        if self.signal.is_some_and(|s| differs(certificate, &s)) {
            return Some(Because::RoleChanged);
        }
        if self.rotate {
            return Some(Because::Rotate);
        }
        (wall >= self.renew_at).then_some(Because::Age)
    }

    /// Ends a request without an answer by now, and a pause that is over, whether or not a request follows. Afterwards
    /// [`Self::wake_at`] is never in the past.
    pub fn lapse(&mut self, now: Moment, config: &AgentConfig, rng: &mut Rng) {
        match self.flight {
            Flight::Asked { until, .. } if now >= until => self.failed(now, None, config, rng),
            Flight::Pausing(until) if now >= until => self.flight = Flight::Idle,
            _ => {}
        }
    }

    /// True once, when a request is due; the caller sends it under `id`.
    pub fn start(&mut self, now: Moment, id: u64, config: &AgentConfig) -> bool {
        if self.flight != Flight::Idle {
            return false;
        }
        let until = now + config.sign_deadline;
        self.flight = Flight::Asked { id, until };
        true
    }

    /// Whether this answers the request in flight.
    pub fn expects(&self, answered: u64) -> bool {
        matches!(self.flight, Flight::Asked { id, .. } if id == answered)
    }

    pub fn installing(&mut self) {
        self.flight = Flight::Installing;
    }

    pub fn failed(&mut self, now: Moment, retry_after: Option<Duration>, config: &AgentConfig, rng: &mut Rng) {
        let wait = before_repeat(retry_after, self.failures, config, rng);
        self.failures = self.failures.saturating_add(1);
        self.flight = Flight::Pausing(now + wait);
    }

    /// A new certificate is in force.
    pub fn installed(&mut self, now: Moment, certificate: &CertificateFacts, config: &AgentConfig, rng: &mut Rng) {
        self.renew_at = pick_renewal(certificate, rng);
        self.rotate = false;
        self.demotion_reported = false;
        self.flight = Flight::Idle;
        if self.signal.is_some_and(|s| differs(certificate, &s)) {
            // Superseded, or signed by a leader that lags: ask again, but never in a tight loop.
            self.failed(now, None, config, rng);
        } else {
            self.failures = 0;
        }
    }
}

/// AGENT-3. A grant older than the certificate's comes from a host that lags behind and is no reason.
fn differs(certificate: &CertificateFacts, signal: &Signal) -> bool {
    if signal.incarnation != certificate.incarnation {
        return signal.incarnation > certificate.incarnation;
    }
    match certificate.granted {
        None => true,
        Some(granted) => signal.granted > granted || (signal.granted == granted && signal.role != certificate.role),
    }
}

/// The answer is of another kind than the request.
pub(super) fn mixed_up() -> ErrorBody {
    ErrorBody::new(ErrorCode::Internal, "the host answered a different request")
}

/// A random point between 50 and 80 % of its life, so that a fleet founded together does not renew together.
fn pick_renewal(certificate: &CertificateFacts, rng: &mut Rng) -> WallTime {
    let life = certificate.not_after.0.saturating_sub(certificate.issued_at.0).max(0);
    let part = (life as f64 * (0.5 + 0.3 * rng.fraction())) as i64;
    WallTime(certificate.issued_at.0.saturating_add(part))
}
