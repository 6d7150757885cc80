//! Linearizable reads: each waits for one read-index round, and then until this member has applied that far.
//!
//! Owns        the reads that wait for a round, for its confirmation, or for an index to be applied.
//! Invariants  READ-1  a read sees everything that was acknowledged before it was requested: its round starts afterwards.
//! Why rounds are shared: each costs a heartbeat to every peer, so one round serves all reads that wait when it is
//! sent.

use std::collections::BTreeMap;

use muster_messages::{Moment, RaftId};

use super::AskId;

#[derive(Clone, Copy, Debug)]
struct Read {
    ask: AskId,
    deadline: Moment,
}

struct Round {
    reads: Vec<Read>,
    asked_at: Moment,
}

#[derive(Default)]
pub(crate) struct Reads {
    /// Arrived since the last round was sent.
    waiting: Vec<Read>,
    /// By sequence number.
    rounds: BTreeMap<u64, Round>,
    /// Confirmed; answered once this index is applied.
    confirmed: BTreeMap<u64, Vec<Read>>,
    next: u64,
    count: usize,
}

impl Reads {
    pub fn in_flight(&self) -> usize {
        self.count
    }
    pub fn add(&mut self, ask: AskId, deadline: Moment) {
        self.count += 1;
        self.waiting.push(Read { ask, deadline });
    }
    pub fn wants_round(&self, max: usize) -> bool {
        !self.waiting.is_empty() && self.rounds.len() < max
    }
    /// Starts a round with all waiting reads; its number goes into the context.
    pub fn start_round(&mut self, now: Moment) -> u64 {
        self.next += 1;
        self.rounds.insert(self.next, Round { reads: std::mem::take(&mut self.waiting), asked_at: now });
        self.next
    }
    /// Repeats rounds that began before `before`: their messages may be lost.
    pub fn retry(&mut self, before: Moment) {
        while let Some(first) = self.rounds.first_entry()
            && first.get().asked_at < before
        {
            self.waiting.extend(first.remove().reads);
        }
    }
    /// Repeats all rounds: the leader that was to answer them has changed.
    pub fn retry_all(&mut self) {
        for (_, round) in std::mem::take(&mut self.rounds) {
            self.waiting.extend(round.reads);
        }
    }
    pub fn confirmed(&mut self, round: u64, index: u64) {
        if let Some(round) = self.rounds.remove(&round) {
            self.confirmed.entry(index).or_default().extend(round.reads);
        }
    }
    /// The reads that `applied` satisfies.
    pub fn take_ready(&mut self, applied: u64) -> Vec<AskId> {
        let mut ready = Vec::new();
        while let Some(first) = self.confirmed.first_entry()
            && *first.key() <= applied
        {
            ready.extend(first.remove().into_iter().map(|r| r.ask));
        }
        self.count -= ready.len();
        ready
    }
    pub fn take_expired(&mut self, now: Moment) -> Vec<AskId> {
        let mut expired = Vec::new();
        if self.count > 0 {
            let rounds = self.rounds.values_mut().map(|r| &mut r.reads);
            for reads in rounds.chain(self.confirmed.values_mut()).chain([&mut self.waiting]) {
                reads.retain(|r| {
                    let keep = r.deadline > now;
                    if !keep {
                        expired.push(r.ask);
                    }
                    keep
                });
            }
        }
        self.count -= expired.len();
        expired
    }
}

/// The context of a round's heartbeats; the answers return it.
pub(super) fn round_context(member_id: RaftId, nonce: u64, round: u64) -> Vec<u8> {
    [member_id.0, nonce, round].iter().flat_map(|n| n.to_be_bytes()).collect()
}

/// The round of a context that this member sent.
pub(super) fn round_of(context: &[u8], member_id: RaftId, nonce: u64) -> Option<u64> {
    let (own, round) = context.split_at_checked(16)?;
    let ours = own[..8] == member_id.0.to_be_bytes() && own[8..] == nonce.to_be_bytes();
    ours.then_some(u64::from_be_bytes(round.try_into().ok()?))
}
