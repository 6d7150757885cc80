//! Waiting renewals: for a read that confirms this leader, or for the outcome of an expiry.
//!
//! Owns        the renewals, by what each waits for.

use std::collections::BTreeMap;

use muster_messages::{FencingToken, Moment, ObjectKey, SessionId};

use super::{AskId, ReadId};
use crate::config::KeeperConfig;

/// One renewal.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub id: AskId,
    pub session: SessionId,
    pub held: Vec<Held>,
    pub arrived: Moment,
    pub until: Moment,
}

/// One lease of a renewal.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub key: ObjectKey,
    pub token: FencingToken,
    /// It delays this lease's expiry.
    pub holds: bool,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Renewals {
    /// Arrived since the last read began. Their read must begin after their arrival.
    waiting: Vec<Ask>,
    /// Confirmed, but an expiry of one of their leases is in progress.
    parked: Vec<Ask>,
    reads: BTreeMap<ReadId, Vec<Ask>>,
    last: LastRead,
    leases: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct LastRead {
    number: u64,
    at: Option<Moment>,
}

impl Renewals {
    /// Leases of all waiting renewals.
    pub fn leases(&self) -> usize {
        self.leases
    }
    pub fn add(&mut self, ask: Ask) {
        self.leases += ask.held.len();
        self.waiting.push(ask);
    }
    pub fn park(&mut self, ask: Ask) {
        self.parked.push(ask);
    }
    /// A renewal was answered.
    pub fn gone(&mut self, ask: &Ask) {
        self.leases -= ask.held.len();
    }

    /// Renewals that no longer wait for an outcome are decided by another read, which contains it.
    pub fn unpark(&mut self, waits: impl Fn(&Ask) -> bool) {
        if !self.parked.is_empty() {
            let (parked, free) = std::mem::take(&mut self.parked).into_iter().partition(waits);
            self.parked = parked;
            self.waiting.extend::<Vec<Ask>>(free);
        }
    }

    /// When the next read may begin, if one is needed.
    pub fn read_due(&self, config: &KeeperConfig) -> Option<Moment> {
        let wanted = !self.waiting.is_empty() && self.reads.len() < config.reads;
        wanted.then(|| self.last.at.map_or(Moment::default(), |at| at + config.gather))
    }
    /// Begins a read for all waiting renewals.
    pub fn next_read(&mut self, now: Moment, config: &KeeperConfig) -> Option<ReadId> {
        self.read_due(config).filter(|at| *at <= now)?;
        self.last = LastRead { number: self.last.number + 1, at: Some(now) };
        let read = ReadId(self.last.number);
        self.reads.insert(read, std::mem::take(&mut self.waiting));
        Some(read)
    }
    /// The renewals that waited for this read.
    pub fn end_read(&mut self, read: ReadId) -> Vec<Ask> {
        self.reads.remove(&read).unwrap_or_default()
    }

    /// Renewals whose caller has given up. One that waits for a read gets the read's result, which has its own deadline.
    pub fn overdue(&mut self, now: Moment) -> Vec<Ask> {
        let mut overdue = Vec::new();
        for asks in [&mut self.waiting, &mut self.parked] {
            if asks.iter().any(|ask| ask.until <= now) {
                let (late, left) = std::mem::take(asks).into_iter().partition(|ask: &Ask| ask.until <= now);
                *asks = left;
                overdue.extend::<Vec<Ask>>(late);
            }
        }
        overdue
    }
}
