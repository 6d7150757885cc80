//! The phases of the native elector: what each keeps, and what it makes of the lease as it is seen.
//!
//! Owns        what each phase keeps: its requests in flight, and when the next one is due.
//! Why beside the machine: the machine decides which phase follows; a phase decides only for itself.

use std::collections::BTreeMap;

use muster_messages::{FencingToken, LeaseView, Moment, Rng};

use super::requests::Ask;
use super::tenure::Tenure;
use super::{Effect, Ending, Timing};

/// Maximum unanswered renewals: more would only queue behind the same obstacle.
pub(super) const MAX_UNANSWERED_RENEWALS: usize = 4;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Phase {
    Campaigning(Campaigning),
    /// Leading, or draining.
    Leading(Box<Leading>),
    /// The work has returned.
    Releasing(Releasing),
    Stopped,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Campaigning {
    /// It has not led yet: a lease in its own name is an earlier process's.
    pub may_take_over_own_name: bool,
    /// The acquisition in progress, and when it was sent.
    pub asked: Option<(u64, Moment)>,
    pub try_at: Option<Moment>,
    pub failures: u32,
    /// After it yielded: no attempt before this time, unless another has held the lease meanwhile.
    pub no_attempt_before: Option<Moment>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Leading {
    pub tenure: Tenure,
    /// Unanswered renewals, and when each was sent.
    pub asked: BTreeMap<u64, Moment>,
    pub renew_at: Moment,
    pub failures: u32,
    pub challenged_by: Option<String>,
    /// The lease was seen beyond our token: released, deleted, or held under a later one.
    pub lease_moved_on: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Releasing {
    pub token: FencingToken,
    /// It yielded to another candidate.
    pub yielded: bool,
    pub asked: Option<u64>,
    pub try_at: Option<Moment>,
    pub failures: u32,
    /// When an elector that does not campaign again stops waiting: the lease has run out.
    pub give_up_at: Moment,
}

impl Campaigning {
    pub fn retry_later(&mut self, now: Moment, timing: &Timing, rng: &mut Rng) {
        self.try_at = Some(now + rng.stretched(timing.pause(self.failures), 1.0));
        self.failures += 1;
    }

    /// The lease is seen held: it waits until it is free, or `chosen`. Before its first term, an attempt remains due.
    pub fn observe_held(&mut self, now: Moment, chosen: bool) {
        self.no_attempt_before = None;
        self.failures = 0;
        self.try_at = self.try_at.filter(|_| self.may_take_over_own_name);
        if chosen && self.asked.is_none() {
            self.try_at = Some(now);
        }
    }

    /// The lease is seen free. It requests the lease at `free_at`, unless it yielded and must wait.
    pub fn observe_free(&mut self, free_at: Moment) {
        if self.asked.is_none() && self.try_at.is_none() {
            self.try_at = Some(self.no_attempt_before.unwrap_or(free_at));
        }
    }
}

impl Leading {
    /// Whether another renewal is useful, and not behind too many unanswered ones.
    pub fn may_renew(&self) -> bool {
        self.tenure.renews() && self.asked.len() < MAX_UNANSWERED_RENEWALS
    }

    /// Evaluates a watch's answer by its token: an older one is from before our term.
    pub fn observe(&mut self, me: &str, lease: Option<&LeaseView>, out: &mut Vec<Effect<Ask>>) {
        let token = self.tenure.token.unwrap_or_default();
        let Some(lease) = lease else {
            self.lease_moved_on = true;
            return self.tenure.end(Ending::Overtaken { by: None }, out);
        };
        if lease.fencing_token < token {
            return;
        }
        self.lease_moved_on = lease.fencing_token > token || lease.holder.is_none();
        let ours = lease.fencing_token == token && lease.holder.as_deref() == Some(me) && !lease.expired;
        if !ours {
            let by = lease.holder.clone().filter(|_| !lease.expired);
            return self.tenure.end(Ending::Overtaken { by }, out);
        }
        let preferred = lease.preferred_holder.as_deref().filter(|name| *name != me);
        if self.challenged_by.as_deref() != preferred {
            self.challenged_by = preferred.map(str::to_owned);
            if let Some(by) = self.challenged_by.clone() {
                out.push(Effect::Challenged { by });
            }
        }
    }
}
