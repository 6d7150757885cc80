//! A disk for simulations: it remembers what was written and what was synced, and loses the difference in a crash.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use muster_messages::wire::SnapshotHead;

use super::image::Image;
use super::{LogDisk, LogFault};
use crate::core::{Durable, Recovered, SnapshotJob};

/// A simulated disk. As a [`LogDisk`] it syncs at once; a simulation that wants latency calls `put`, and `sync`
/// later.
#[derive(Clone, Debug, Default)]
pub struct SimDisk {
    durable: Image,
    /// Written, not synced yet.
    loose: VecDeque<Durable>,
    snapshots: BTreeMap<u64, Arc<Vec<u8>>>,
}

impl SimDisk {
    /// Hands a write to the disk's cache.
    pub fn put(&mut self, write: Durable) {
        self.loose.push_back(write);
    }
    /// The number of the last write in the cache.
    pub fn newest(&self) -> Option<u64> {
        self.loose.back().map(|w| w.number)
    }
    /// Makes everything up to this write durable.
    pub fn sync(&mut self, number: u64) {
        while self.loose.front().is_some_and(|w| w.number <= number) {
            let write = self.loose.pop_front().expect("there is a front");
            let snapshots = &self.snapshots;
            self.durable.apply(&write, |head| snapshots.get(&head.index).cloned());
        }
    }
    /// Power loss; of the unsynced writes the first `survive` happen to be on disk.
    pub fn crash(&mut self, survive: usize) {
        if let Some(last) = self.loose.iter().take(survive).next_back().map(|w| w.number) {
            self.sync(last);
        }
        self.loose.clear();
    }
    /// Runs a snapshot job and stores its file; step the head as `Input::SnapshotTaken`.
    pub fn take_snapshot(&mut self, job: &SnapshotJob) -> SnapshotHead {
        let (head, data) = job.run();
        self.snapshots.insert(head.index, Arc::new(data));
        head
    }
    /// Deletes everything.
    pub fn wipe(&mut self) {
        *self = Self::default();
    }
    /// How many entries survive a crash in the worst case.
    pub fn durable_entries(&self) -> usize {
        self.durable.entries.len()
    }
}

impl LogDisk for SimDisk {
    fn recover(&mut self) -> Result<Recovered, LogFault> {
        self.durable.recovered()
    }
    fn write(&mut self, writes: &[Durable]) -> Result<(), LogFault> {
        for write in writes {
            self.put(write.clone());
        }
        if let Some(number) = writes.iter().rfind(|w| w.sync).map(|w| w.number) {
            self.sync(number);
        }
        Ok(())
    }
}
