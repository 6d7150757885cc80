//! Renewals that wait: for a read that confirms this leader, or for the outcome of an expiry.

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

/// One lease of it.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub key: ObjectKey,
    pub token: FencingToken,
    /// It holds up this lease's expiry.
    pub holds: bool,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Renewals {
    /// Came since the last read began. Their read must begin after they came.
    waiting: Vec<Ask>,
    /// Confirmed, but an expiry of one of their leases is under way.
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
    /// Leases of all renewals that wait.
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
    /// An ask was answered.
    pub fn gone(&mut self, ask: &Ask) {
        self.leases -= ask.held.len();
    }

    /// Those that need not wait for an outcome any more are judged by another read, which has that outcome.
    pub fn unpark(&mut self, waits: impl Fn(&Ask) -> bool) {
        if !self.parked.is_empty() {
            let (parked, free) = std::mem::take(&mut self.parked).into_iter().partition(waits);
            self.parked = parked;
            self.waiting.extend::<Vec<Ask>>(free);
        }
    }

    /// When the next read may begin, if one is wanted.
    pub fn read_due(&self, config: &KeeperConfig) -> Option<Moment> {
        let wanted = !self.waiting.is_empty() && self.reads.len() < config.reads;
        wanted.then(|| self.last.at.map_or(Moment::default(), |at| at + config.gather))
    }
    /// Begins a read for everybody who waits.
    pub fn next_read(&mut self, now: Moment, config: &KeeperConfig) -> Option<ReadId> {
        self.read_due(config).filter(|at| *at <= now)?;
        self.last = LastRead { number: self.last.number + 1, at: Some(now) };
        let read = ReadId(self.last.number);
        self.reads.insert(read, std::mem::take(&mut self.waiting));
        Some(read)
    }
    /// Those who waited for it.
    pub fn end_read(&mut self, read: ReadId) -> Vec<Ask> {
        self.reads.remove(&read).unwrap_or_default()
    }

    /// Those whose asker has given up. Whoever waits for a read hears its end instead, which has a deadline of its own.
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
