//! Which candidates are alive, by when their signs of life reached this leader.
//!
//! Owns        the last sign of each candidate, and when it arrived.
//! Invariants  ELECT-2  this leader's monotonic clock decides whether a candidate lives, never the times written in it: of
//!                      those, only whether they changed counts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_messages::{MicroTime, Moment, Object, Uid};

use crate::config::CoordinationConfig;

/// The signs of life of one candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct Sign {
    uid: Uid,
    renewed: Option<MicroTime>,
    pinged: Option<MicroTime>,
    pub first_seen: Moment,
    /// The last sign of life; `None`: present before this leader, silent since.
    pub alive_at: Option<Moment>,
    /// When it was last pinged, as the replica shows: an unapplied ping does not count.
    pub asked_at: Option<Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CandidateState {
    /// Gave a sign of life just now: it may be elected.
    Fresh,
    /// Was pinged; its answer is awaited until then.
    Asked { until: Moment },
    /// Was pinged and has not answered. It does not count until it does.
    Silent,
    /// Has not been pinged since its last sign.
    Quiet,
}

/// The last holder of the lease. It must show that it still wants it.
#[derive(Clone, Debug, PartialEq)]
pub struct Departed {
    pub name: String,
    pub at: Moment,
}

/// Signs of all candidates of one lease.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Signs {
    signs: BTreeMap<String, Sign>,
}

impl Signs {
    /// Applies the current candidates. `new`: created while this leader watched, which is a sign of life.
    pub fn see(&mut self, now: Moment, candidates: &BTreeMap<String, Arc<Object>>, new: impl Fn(&Object) -> bool) {
        self.signs.retain(|name, _| candidates.contains_key(name));
        for (name, object) in candidates {
            let Some(spec) = object.candidate() else { continue };
            match self.signs.get_mut(name).filter(|sign| sign.uid == object.meta.uid) {
                Some(sign) => {
                    if sign.pinged != spec.pinged {
                        sign.pinged = spec.pinged;
                        sign.asked_at = Some(now);
                    }
                    if sign.renewed != spec.renewed {
                        sign.renewed = spec.renewed;
                        sign.alive_at = Some(now);
                    }
                }
                None => {
                    let alive_at = new(object).then_some(now);
                    let (uid, renewed, pinged) = (object.meta.uid, spec.renewed, spec.pinged);
                    let sign = Sign { uid, renewed, pinged, first_seen: now, alive_at, asked_at: None };
                    self.signs.insert(name.clone(), sign);
                }
            }
        }
    }

    pub fn get(&self, name: &str) -> Option<&Sign> {
        self.signs.get(name)
    }
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Sign)> {
        self.signs.iter()
    }
    /// It was pinged; the replica will show it.
    pub fn asked(&mut self, name: &str, at: Moment) {
        if let Some(sign) = self.signs.get_mut(name) {
            sign.asked_at = Some(at);
        }
    }

    /// The last holder needs a sign of life from after it left, and is waited for less long: it has just given up its lease.
    pub fn candidate_state(
        &self,
        now: Moment,
        name: &str,
        departed: Option<&Departed>,
        config: &CoordinationConfig,
    ) -> CandidateState {
        let Some(sign) = self.signs.get(name) else { return CandidateState::Silent };
        let left = departed.filter(|d| d.name == name).map(|d| d.at);
        let since = |at: &Moment| left.is_none_or(|left| *at > left);
        let alive = sign.alive_at.filter(since);
        if alive.is_some_and(|at| now < at + config.fresh) {
            return CandidateState::Fresh;
        }
        let window = if left.is_some() { config.departed_window } else { config.ack_window };
        match sign.asked_at.filter(|at| left.is_none_or(|left| *at >= left)) {
            Some(asked) if alive.is_none_or(|at| at <= asked) => {
                let until = asked + window;
                if now < until { CandidateState::Asked { until } } else { CandidateState::Silent }
            }
            _ => CandidateState::Quiet,
        }
    }

    /// Whether it gave a sign of life within this time.
    pub fn alive_within(&self, now: Moment, name: &str, time: Duration) -> bool {
        self.signs.get(name).and_then(|sign| sign.alive_at).is_some_and(|at| now < at + time)
    }
}

impl Sign {
    /// Its last known sign.
    pub fn last(&self) -> Moment {
        self.alive_at.unwrap_or(self.first_seen)
    }
}
