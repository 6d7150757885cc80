//! Who is alive, by when signs of it reached this leader.
//!
//! Keeps  ELECT-2  whether a candidate lives is judged by this leader's monotonic clock, never by the times that are written
//!                 in it: of those only whether they changed counts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_messages::{MicroTime, Moment, Object, Uid};

use crate::config::CoordinationConfig;

/// What is known of one candidate's life.
#[derive(Clone, Debug, PartialEq)]
pub struct Sign {
    uid: Uid,
    renewed: Option<MicroTime>,
    pinged: Option<MicroTime>,
    pub first_seen: Moment,
    /// The last sign of life; `None`: it was there before this leader, and has given none since.
    pub alive_at: Option<Moment>,
    /// When it was last asked for one, as the copy shows: a ping that did not come through asks for nothing.
    pub asked_at: Option<Moment>,
}

/// How a candidate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Gave a sign of life just now: it may be elected.
    Fresh,
    /// Asked for one; waited for until then.
    Asked { until: Moment },
    /// Was asked and has not answered. Counts for nothing until it does.
    Silent,
    /// Has not been asked since its last sign.
    Quiet,
}

/// Who held the lease last. It has to show that it still wants it.
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
    /// The candidates as they are now. `new` tells those that were created while this leader watched: to be created is a
    /// sign of life.
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
    /// It was asked; the copy will show it.
    pub fn asked(&mut self, name: &str, at: Moment) {
        if let Some(sign) = self.signs.get_mut(name) {
            sign.asked_at = Some(at);
        }
    }

    /// How a candidate stands. The last holder answers for its life after it left, and is not waited for as long: it has
    /// just let its lease go.
    pub fn standing(
        &self,
        now: Moment,
        name: &str,
        departed: Option<&Departed>,
        config: &CoordinationConfig,
    ) -> Standing {
        let Some(sign) = self.signs.get(name) else { return Standing::Silent };
        let left = departed.filter(|d| d.name == name).map(|d| d.at);
        let since = |at: &Moment| left.is_none_or(|left| *at > left);
        let alive = sign.alive_at.filter(since);
        if alive.is_some_and(|at| now < at + config.fresh) {
            return Standing::Fresh;
        }
        let window = if left.is_some() { config.departed_window } else { config.ack_window };
        match sign.asked_at.filter(|at| left.is_none_or(|left| *at >= left)) {
            Some(asked) if alive.is_none_or(|at| at <= asked) => {
                let until = asked + window;
                if now < until { Standing::Asked { until } } else { Standing::Silent }
            }
            _ => Standing::Quiet,
        }
    }

    /// Gave a sign of life within this time.
    pub fn alive_within(&self, now: Moment, name: &str, time: Duration) -> bool {
        self.signs.get(name).and_then(|sign| sign.alive_at).is_some_and(|at| now < at + time)
    }
}

impl Sign {
    /// The last that is known of it.
    pub fn last(&self) -> Moment {
        self.alive_at.unwrap_or(self.first_seen)
    }
}
