//! The log in memory: what the `raft` crate reads. Everything since the last compaction; the disk has the same.
//!
//! Keeps  LOG-1  entries are contiguous, from `before.index + 1` to `last()`.

use std::collections::VecDeque;

use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use super::{HardMark, LogPoint};

#[derive(Debug, Default)]
pub(crate) struct MemLog {
    /// The entry before the first.
    before: LogPoint,
    entries: VecDeque<Entry>,
    bytes: u64,
    /// Where the state machine is, and the configuration there: what a snapshot would stand for.
    applied: LogPoint,
    conf: ConfState,
    /// For the start only.
    hard: HardState,
}

pub(crate) fn entry_bytes(e: &Entry) -> u64 {
    (e.data.len() + e.context.len() + 32) as u64
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
        Self { before, entries: entries.into(), bytes, applied, conf, hard }
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

    /// Appends; an overlap replaces what was there.
    pub fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        assert!(
            first.index > self.before.index && first.index <= self.last() + 1,
            "LOG-1: appended entries join the log"
        );
        let keep = (first.index - self.first()) as usize;
        for gone in self.entries.drain(keep..) {
            self.bytes -= entry_bytes(&gone);
        }
        self.bytes += entries.iter().map(entry_bytes).sum::<u64>();
        self.entries.extend(entries.iter().cloned());
    }
    /// A snapshot replaces the log. What is applied changes once it is durable.
    pub fn install(&mut self, at: LogPoint) {
        self.entries.clear();
        self.bytes = 0;
        self.before = at;
    }
    /// How far the log may be cut if `applied` is in a snapshot: the newest `entries` or `bytes` stay.
    pub fn cut_for(&self, snapshot: u64, entries: u64, bytes: u64) -> LogPoint {
        let mut cut = snapshot.min(self.last());
        let (mut kept, mut size) = (0, 0);
        while cut > self.before.index {
            let e = &self.entries[(cut - self.first()) as usize];
            kept += 1;
            size += entry_bytes(e);
            if kept > entries || size > bytes {
                break;
            }
            cut -= 1;
        }
        LogPoint { index: cut, term: self.term_at(cut).unwrap_or(self.before.term) }
    }
    pub fn cut(&mut self, after: LogPoint) {
        while self.before.index < after.index {
            let Some(gone) = self.entries.pop_front() else { break };
            self.bytes -= entry_bytes(&gone);
            self.before = LogPoint { index: gone.index, term: gone.term };
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
    /// Only the head: the core adds the tables when the message leaves.
    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        if self.applied.index < request_index || self.applied.index == 0 {
            return Err(raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        let mut snapshot = Snapshot::default();
        let meta = snapshot.mut_metadata();
        meta.index = self.applied.index;
        meta.term = self.applied.term;
        meta.set_conf_state(self.conf.clone());
        Ok(snapshot)
    }
}
