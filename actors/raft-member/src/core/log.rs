//! The log in memory, as the `raft` crate reads it: everything since the last compaction; the disk has the
//! same.
//!
//! Owns        the entries, the position of the state machine, and the snapshot that can be offered.
//! Invariants  LOG-1  entries are contiguous, from `before.index + 1` to `last()`.

use std::collections::{BTreeSet, VecDeque};

use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use super::{HardMark, LogPoint};

#[derive(Debug, Default)]
pub(crate) struct MemLog {
    /// The entry before the first.
    before: LogPoint,
    entries: VecDeque<Entry>,
    bytes: u64,
    /// The position of the state machine, and the configuration there: the head of a snapshot taken now.
    applied: LogPoint,
    conf: ConfState,
    /// A snapshot that was made for another member or an earlier attempt and can still be used.
    offer: Option<(LogPoint, ConfState)>,
    /// Members that get no snapshot at the moment.
    snapshots_paused: BTreeSet<u64>,
    /// For the start only.
    hard: HardState,
}

pub(crate) fn entry_bytes(e: &Entry) -> u64 {
    (e.data.len() + e.context.len() + 32) as u64
}

/// What a small entry takes is mostly its own structure, not its data.
fn entry_memory(e: &Entry) -> u64 {
    (e.data.len() + e.context.len() + size_of::<Entry>()) as u64
}

pub(crate) fn conf_state(voters: &[u64], learners: &[u64]) -> ConfState {
    ConfState { voters: voters.to_vec(), learners: learners.to_vec(), ..ConfState::default() }
}

impl MemLog {
    pub fn recovered(
        hard: HardMark,
        before: LogPoint,
        entries: Vec<Entry>,
        applied: LogPoint,
        conf: ConfState,
    ) -> Self {
        let bytes = entries.iter().map(entry_bytes).sum();
        let hard = HardState { term: hard.term, vote: hard.vote, commit: hard.commit, ..HardState::default() };
        let entries = entries.into();
        Self { before, entries, bytes, applied, conf, offer: None, snapshots_paused: BTreeSet::new(), hard }
    }
    pub fn first(&self) -> u64 {
        self.before.index + 1
    }
    pub fn last(&self) -> u64 {
        self.before.index + self.entries.len() as u64
    }
    pub fn applied(&self) -> LogPoint {
        self.applied
    }
    pub fn conf(&self) -> &ConfState {
        &self.conf
    }
    pub fn set_applied(&mut self, at: LogPoint) {
        self.applied = at;
    }
    pub fn set_conf(&mut self, conf: ConfState) {
        self.conf = conf;
    }

    /// Appends; an overlap replaces the old entries.
    pub fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        assert!(
            first.index > self.before.index && first.index <= self.last() + 1,
            "LOG-1: appended entries follow the log without a gap"
        );
        let keep = (first.index - self.first()) as usize;
        for gone in self.entries.drain(keep..) {
            self.bytes -= entry_bytes(&gone);
        }
        self.bytes += entries.iter().map(entry_bytes).sum::<u64>();
        self.entries.extend(entries.iter().cloned());
    }
    /// A snapshot replaces the log. The applied position changes once the snapshot is durable.
    pub fn install(&mut self, at: LogPoint) {
        self.entries.clear();
        self.bytes = 0;
        self.before = at;
    }
    /// How far the log may be compacted behind a snapshot at the index `snapshot`: the newest `entries`, within `bytes` of memory,
    /// are kept.
    pub fn compaction_point(&self, snapshot: u64, entries: u64, bytes: u64) -> LogPoint {
        let mut point = snapshot.min(self.last());
        let (mut kept, mut size) = (0, 0);
        while point > self.before.index {
            let e = &self.entries[(point - self.first()) as usize];
            kept += 1;
            size += entry_memory(e);
            if kept > entries || size > bytes {
                break;
            }
            point -= 1;
        }
        LogPoint { index: point, term: self.term_at(point).unwrap_or(self.before.term) }
    }
    /// The first position at or behind `floor` from which the entries take at most `bytes`.
    pub fn position_within(&self, floor: u64, bytes: u64) -> LogPoint {
        let (mut position, mut left) = (self.before, self.bytes);
        for entry in &self.entries {
            if position.index >= floor && left <= bytes {
                break;
            }
            left -= entry_bytes(entry);
            position = LogPoint { index: entry.index, term: entry.term };
        }
        position
    }
    /// Whether entries alone can bring a member up to date that has everything up to `index`.
    pub fn reaches_back_to(&self, index: u64) -> bool {
        self.before.index <= index
    }
    /// Raft gets this position for a snapshot, where it can be used, instead of the newest state.
    pub fn set_offer(&mut self, offer: Option<(LogPoint, ConfState)>) {
        self.offer = offer;
    }
    pub fn pause_snapshots(&mut self, to: BTreeSet<u64>) {
        self.snapshots_paused = to;
    }
    /// The offer, if it suits `to` and the log holds what follows it.
    fn offer_for(&self, to: u64, at_least: u64) -> Option<&(LogPoint, ConfState)> {
        let known = |conf: &ConfState| conf.voters.contains(&to) || conf.learners.contains(&to);
        let fits = |at: LogPoint| at.index >= at_least && self.reaches_back_to(at.index);
        self.offer.as_ref().filter(|(at, conf)| fits(*at) && known(conf))
    }
    /// Whether a snapshot at this position is the one to send to `to`.
    pub fn offers(&self, to: u64, at: u64) -> bool {
        self.offer_for(to, 0).is_some_and(|(offer, _)| offer.index == at)
    }
    pub fn compact(&mut self, after: LogPoint) {
        while self.before.index < after.index {
            let Some(gone) = self.entries.pop_front() else { break };
            self.bytes -= entry_bytes(&gone);
            self.before = LogPoint { index: gone.index, term: gone.term };
        }
        // What was kept for a transfer, or written in a burst.
        if self.entries.capacity() > 4 * self.entries.len() {
            self.entries.shrink_to(2 * self.entries.len());
        }
    }
    pub fn term_at(&self, index: u64) -> Option<u64> {
        if index == self.before.index {
            return Some(self.before.term);
        }
        let at = index.checked_sub(self.first())?;
        self.entries.get(at as usize).map(|e| e.term)
    }
}

impl Storage for MemLog {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard.clone(), self.conf.clone()))
    }
    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low < self.first() {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        if high > self.last() + 1 {
            return Err(raft::Error::Store(StorageError::Unavailable));
        }
        let max = max_size.into().unwrap_or(u64::MAX);
        let range = (low - self.first()) as usize..(high - self.first()) as usize;
        let mut size = 0u64;
        let mut out = Vec::new();
        for e in self.entries.range(range) {
            size = size.saturating_add(entry_bytes(e));
            if size > max && !out.is_empty() {
                break;
            }
            out.push(e.clone());
        }
        Ok(out)
    }
    fn term(&self, index: u64) -> raft::Result<u64> {
        if index < self.before.index {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        self.term_at(index).ok_or(raft::Error::Store(StorageError::Unavailable))
    }
    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.first())
    }
    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }
    /// Only the head: the core adds the tables when the message is sent.
    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        let paused = self.snapshots_paused.contains(&to);
        if paused || self.applied.index < request_index || self.applied.index == 0 {
            return Err(raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        let offer = self.offer_for(to, request_index);
        let (at, conf) = offer.map_or((self.applied, &self.conf), |(at, conf)| (*at, conf));
        let mut snapshot = Snapshot::default();
        let meta = snapshot.mut_metadata();
        meta.index = at.index;
        meta.term = at.term;
        meta.set_conf_state(conf.clone());
        Ok(snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(entries: u64) -> MemLog {
        let mut log = MemLog::default();
        let entries: Vec<Entry> = (1..=entries).map(|index| Entry { index, term: 1, ..Entry::default() }).collect();
        log.append(&entries);
        log
    }

    #[test]
    fn entries_without_data_take_the_memory_of_their_structure() {
        let log = log(100);
        let of_ten = 10 * size_of::<Entry>() as u64;
        assert_eq!(log.compaction_point(100, 1_000, of_ten).index, 90);
        assert_eq!(log.compaction_point(100, 5, of_ten).index, 95, "the smaller bound counts");
        assert_eq!(log.compaction_point(50, 1_000, of_ten).index, 40, "what follows the snapshot is kept in any case");
    }

    #[test]
    fn compaction_returns_the_memory_of_a_burst() {
        let mut log = log(10_000);
        log.compact(LogPoint { index: 9_990, term: 1 });
        assert!(log.entries.capacity() < 100, "{} places for ten entries", log.entries.capacity());
        assert_eq!((log.first(), log.last(), log.bytes), (9_991, 10_000, 10 * 32));
    }
}
