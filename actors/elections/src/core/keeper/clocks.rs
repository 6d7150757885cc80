//! A deadline per live lease.
//!
//! Owns        the clock of each lease, and a lower bound of the next deadline.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::{FencingToken, Lease, Moment, Object, ObjectKey, Revision, SessionId};

/// One lease's clock.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LeaseClock {
    /// The lease's revision when last seen: an expiry is guarded by it.
    pub revision: Revision,
    pub token: FencingToken,
    session: Option<SessionId>,
    pub deadline: Moment,
    /// Its expiry was refused or could not be proposed: not repeated before this time.
    pause: Moment,
    /// Valid-looking renewals that are not confirmed yet. The expiry waits for them.
    holds: u32,
}

impl LeaseClock {
    fn due_at(&self) -> Moment {
        self.deadline.max(self.pause)
    }
    /// Past its deadline, without a pending renewal.
    pub fn is_due(&self, now: Moment) -> bool {
        self.holds == 0 && self.due_at() <= now
    }
}

/// The clocks, and the earliest time at which one of them may be due.
#[derive(Clone, Debug, Default)]
pub(super) struct Clocks {
    clocks: BTreeMap<ObjectKey, LeaseClock>,
    /// No clock is due before. A lower bound: a renewal does not change it, and costs only its own entry. When it is reached,
    /// all clocks are checked once; renewals make that rarer than the durations.
    soonest: Option<Moment>,
}

impl Clocks {
    /// Applies a lease's change in the replicated state.
    pub fn see(&mut self, now: Moment, key: &ObjectKey, was: Option<&Object>, is: Option<&Object>) {
        let Some((object, lease, duration)) = is.and_then(timed) else {
            self.clocks.remove(key);
            return;
        };
        let full = now + duration;
        let known = self.clocks.get_mut(key).filter(|clock| clock.token == lease.holding.token);
        let deadline = match known {
            None => {
                let clock = LeaseClock {
                    revision: object.meta.revision,
                    token: lease.holding.token,
                    session: lease.holding.session,
                    deadline: full,
                    pause: Moment::default(),
                    holds: 0,
                };
                self.clocks.insert(key.clone(), clock);
                full
            }
            Some(clock) => {
                clock.revision = object.meta.revision;
                clock.session = lease.holding.session;
                if was.is_none_or(|was| renews(was, object)) {
                    // Never earlier than a renewal was promised, even if the duration has become shorter.
                    clock.deadline = clock.deadline.max(full);
                }
                clock.due_at()
            }
        };
        self.lower_soonest(deadline);
    }

    pub fn get(&self, key: &ObjectKey) -> Option<&LeaseClock> {
        self.clocks.get(key)
    }
    pub fn remove(&mut self, key: &ObjectKey) {
        self.clocks.remove(key);
    }
    pub fn len(&self) -> usize {
        self.clocks.len()
    }

    /// Registers a waiting renewal, and returns whether it looks valid.
    pub fn hold(&mut self, key: &ObjectKey, session: SessionId, token: FencingToken) -> bool {
        let clock = self.clocks.get_mut(key).filter(|c| c.token == token && c.session == Some(session));
        if let Some(clock) = clock {
            clock.holds += 1;
            return true;
        }
        false
    }
    /// The renewal has been answered. If the lease is another's by now it loses one hold: harmless, since renewals wait during
    /// an expiry.
    pub fn release_hold(&mut self, key: &ObjectKey) {
        if let Some(clock) = self.clocks.get_mut(key) {
            clock.holds = clock.holds.saturating_sub(1);
            let at = clock.due_at();
            self.lower_soonest(at);
        }
    }
    /// A renewal was confirmed. A deadline never moves back.
    pub fn renew(&mut self, key: &ObjectKey, deadline: Moment) {
        if let Some(clock) = self.clocks.get_mut(key) {
            clock.deadline = clock.deadline.max(deadline);
        }
    }
    pub fn pause(&mut self, key: &ObjectKey, until: Moment) {
        if let Some(clock) = self.clocks.get_mut(key) {
            clock.pause = until;
            let at = clock.due_at();
            self.lower_soonest(at);
        }
    }
    /// Returns this time to all holders.
    pub fn push_back(&mut self, by: Duration) {
        for clock in self.clocks.values_mut() {
            clock.deadline = clock.deadline + by;
        }
        self.soonest = self.soonest.map(|at| at + by);
    }

    /// This lease was reported due and was not.
    pub fn recheck(&mut self, key: &ObjectKey) {
        // One with pending renewals returns when the last one is answered.
        if let Some(at) = self.clocks.get(key).filter(|clock| clock.holds == 0).map(LeaseClock::due_at) {
            self.lower_soonest(at);
        }
    }

    /// The leases that are due, each reported once: a caller that does not expire it must arrange the next check.
    pub fn sweep(&mut self, now: Moment) -> Vec<ObjectKey> {
        if self.soonest.is_none_or(|at| at > now) {
            return Vec::new();
        }
        let (due, later): (Vec<_>, Vec<_>) =
            self.clocks.iter().filter(|(_, c)| c.holds == 0).partition(|(_, c)| c.is_due(now));
        self.soonest = later.into_iter().map(|(_, c)| c.due_at()).min();
        due.into_iter().map(|(key, _)| key.clone()).collect()
    }
    pub fn soonest(&self) -> Option<Moment> {
        self.soonest
    }
    fn lower_soonest(&mut self, at: Moment) {
        self.soonest = Some(self.soonest.map_or(at, |soonest| soonest.min(at)));
    }

    pub fn next_to_end(&self, now: Moment, most: usize) -> Vec<(ObjectKey, Duration)> {
        let mut nearest: Vec<(&ObjectKey, Moment)> = Vec::new();
        for (key, clock) in &self.clocks {
            if nearest.len() < most || nearest.last().is_some_and(|(_, at)| clock.deadline < *at) {
                let at = nearest.partition_point(|(_, other)| *other <= clock.deadline);
                nearest.insert(at, (key, clock.deadline));
                nearest.truncate(most);
            }
        }
        nearest.into_iter().map(|(key, at)| (key.clone(), at.since(now))).collect()
    }
}

/// A lease that runs out unless it is renewed.
fn timed(object: &Object) -> Option<(&Object, &Lease, Duration)> {
    let lease = object.lease().filter(|lease| lease.is_live())?;
    Some((object, lease, lease.spec.duration()?))
}

/// Whether a write of a lease, with the same holder and token, is a renewal by that holder. Writes of coordinators and people
/// are not: a new preferred holder must not lengthen the old one's time. A write that changed only the revision is a holder's
/// that acquired again within a millisecond.
fn renews(was: &Object, is: &Object) -> bool {
    let (Some(old), Some(new)) = (was.lease(), is.lease()) else { return true };
    let times = |lease: &Lease| (lease.spec.acquired, lease.spec.renewed, lease.spec.duration_ms);
    let beside = old.spec == new.spec
        && was.meta.labels == is.meta.labels
        && was.meta.annotations == is.meta.annotations
        && was.meta.owners == is.meta.owners
        && was.meta.managers == is.meta.managers;
    times(old) != times(new) || old.holding != new.holding || beside
}
