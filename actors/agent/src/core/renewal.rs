//! Renewal: does this node need another certificate, and when may it ask?
//!
//! Owns   why a certificate is wanted, the question in flight, the pause after a failure.
//! Keeps  AGENT-3  the need is a level: certificate against the newest view, judged on every view, never on a change
//!                 between two views (a role that flipped and flipped back between them must not leave a wrong one).
//!        AGENT-4  a pause after a failure is at most `sign_retry_cap`, and any new signal ends it.

use std::time::Duration;

use muster_messages::wire::AgentView;
use muster_messages::{Dice, Incarnation, Moment, Revision, Role, WallTime};

use super::CertificateFacts;
use super::pause::pause;
use crate::config::AgentConfig;

/// Why a certificate is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Because {
    /// The cluster grants another role, or granted this one anew.
    RoleChanged,
    /// The cluster asks for a renewal.
    Rotate,
    /// A manager told us that our manager role is gone.
    ToldDemoted,
    /// Between 50 and 80 % of its life have passed.
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
    /// Nothing is asked before this.
    Pausing(Moment),
    Asked {
        id: u64,
        until: Moment,
    },
    /// The answer is being verified and written.
    Installing,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Renewal {
    renew_at: WallTime,
    signal: Option<Signal>,
    /// Asked for by the cluster and not yet fulfilled, even if a later view no longer says so (its answer may be lost).
    rotate: bool,
    told_demoted: bool,
    flight: Flight,
    failures: u32,
}

impl Renewal {
    pub fn new(certificate: &CertificateFacts, dice: &mut Dice) -> Self {
        Self {
            renew_at: pick_renewal(certificate, dice),
            signal: None,
            rotate: false,
            told_demoted: false,
            flight: Flight::Idle,
            failures: 0,
        }
    }

    pub fn renew_at(&self) -> WallTime {
        self.renew_at
    }
    pub fn told_demoted(&self) -> bool {
        self.told_demoted
    }
    /// When to look again, for reasons of this machine alone.
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
        // A host that lags behind still shows the wish that our present certificate has fulfilled.
        let ours = |serial: &String| *serial == certificate.serial;
        self.rotate |= view.rotate && view.serial.as_ref().is_none_or(ours);
        if self.signal.replace(signal) != Some(signal) {
            self.encourage();
        }
    }

    /// A manager says that the role manager is no longer ours.
    pub fn demoted(&mut self) {
        self.told_demoted = true;
        self.encourage();
    }

    /// Something changed: what failed before may work now.
    pub fn encourage(&mut self) {
        self.failures = 0;
        if matches!(self.flight, Flight::Pausing(_)) {
            self.flight = Flight::Idle;
        }
    }

    /// The session is gone, and with it a question that was asked on it.
    pub fn session_lost(&mut self) {
        if matches!(self.flight, Flight::Asked { .. }) {
            self.flight = Flight::Idle;
        }
    }

    pub fn need(&self, certificate: &CertificateFacts, wall: WallTime) -> Option<Because> {
        if self.told_demoted {
            return Some(Because::ToldDemoted);
        }
        if self.signal.is_some_and(|s| differs(certificate, &s)) {
            return Some(Because::RoleChanged);
        }
        if self.rotate {
            return Some(Because::Rotate);
        }
        (wall >= self.renew_at).then_some(Because::Age)
    }

    /// A question without an answer by now was lost, and a pause ends: whether or not there is anything to ask. What
    /// [`Self::wake_at`] names is never past after that.
    pub fn lapse(&mut self, now: Moment, config: &AgentConfig, dice: &mut Dice) {
        match self.flight {
            Flight::Asked { until, .. } if now >= until => self.failed(now, None, config, dice),
            Flight::Pausing(until) if now >= until => self.flight = Flight::Idle,
            _ => {}
        }
    }

    /// True once, when a question is due now; the caller asks it under `id`.
    pub fn start(&mut self, now: Moment, id: u64, config: &AgentConfig) -> bool {
        if self.flight != Flight::Idle {
            return false;
        }
        let until = now + config.sign_deadline;
        self.flight = Flight::Asked { id, until };
        true
    }

    /// True: this is the answer to the question in flight.
    pub fn expects(&self, answered: u64) -> bool {
        matches!(self.flight, Flight::Asked { id, .. } if id == answered)
    }

    pub fn installing(&mut self) {
        self.flight = Flight::Installing;
    }

    pub fn failed(&mut self, now: Moment, retry_after: Option<Duration>, config: &AgentConfig, dice: &mut Dice) {
        let own = pause(dice, config.sign_retry_first, config.sign_retry_cap, self.failures);
        let wanted = retry_after.unwrap_or_default().max(own);
        self.failures = self.failures.saturating_add(1);
        self.flight = Flight::Pausing(now + wanted.min(config.sign_retry_cap));
    }

    /// A new certificate is in force.
    pub fn installed(&mut self, now: Moment, certificate: &CertificateFacts, config: &AgentConfig, dice: &mut Dice) {
        self.renew_at = pick_renewal(certificate, dice);
        self.rotate = false;
        self.told_demoted = false;
        self.flight = Flight::Idle;
        if self.signal.is_some_and(|s| differs(certificate, &s)) {
            // Overtaken, or signed by a leader that lags: ask again, but never in a tight loop.
            self.failed(now, None, config, dice);
        } else {
            self.failures = 0;
        }
    }
}

/// AGENT-3. An older grant than the certificate's is a host that lags behind, not a reason.
fn differs(certificate: &CertificateFacts, signal: &Signal) -> bool {
    if signal.incarnation != certificate.incarnation {
        return signal.incarnation > certificate.incarnation;
    }
    match certificate.granted {
        None => true,
        Some(granted) => signal.granted > granted || (signal.granted == granted && signal.role != certificate.role),
    }
}

/// A random point between 50 and 80 % of its life, so that a fleet founded together does not renew together.
fn pick_renewal(certificate: &CertificateFacts, dice: &mut Dice) -> WallTime {
    let life = certificate.not_after.0.saturating_sub(certificate.issued_at.0).max(0);
    let part = (life as f64 * (0.5 + 0.3 * dice.fraction())) as i64;
    WallTime(certificate.issued_at.0.saturating_add(part))
}
