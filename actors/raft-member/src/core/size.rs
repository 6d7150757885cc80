//! How large the state is, and what the leader refuses because of it.
//!
//! Owns        the size of the last encoded snapshot, and the bytes of the entries applied since.
//! Inputs      snapshots that were encoded, entries that were applied, commands that were proposed.
//! Outputs     `StateFull` for a command for which there is no room; whether the size is to be measured.
//! Invariants  SIZE-1  the state stays below what a snapshot may have: one that is larger can be given to no manager that has
//!                     fallen behind, and redundancy is lost for good.
//!             SIZE-2  what makes the state smaller, and what keeps a full cluster alive, is never refused.
//! Why an estimate: encoding a large state takes a core for a second. An entry makes the state larger by about its own size
//! at most, so that the estimate errs upwards; a measured size takes its place with every snapshot. The leader judges before
//! it proposes: members need not agree.

use muster_messages::protocol::ProposeError;
use muster_messages::{Command, Tables};
use muster_store::growth::{Growth, growth};
use raft::eraftpb::Entry;

use super::RaftConfig;
use super::log::entry_bytes;

/// What users write stays below this share of `max_snapshot_bytes`, in sixteenths.
const DATA: u64 = 12;
/// What the cluster writes itself, such as new nodes and roles, stays below this share.
const CLUSTER: u64 = 14;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StateSize {
    measured: u64,
    /// Applied since the measured state.
    grown: u64,
    /// Of these, before the snapshot that is being encoded.
    before: u64,
}

impl StateSize {
    pub fn measured(bytes: u64) -> Self {
        Self { measured: bytes, ..Self::default() }
    }
    pub fn applied(&mut self, bytes: u64) {
        self.grown += bytes;
    }
    /// A snapshot is being encoded as of now.
    pub fn measuring(&mut self) {
        self.before = self.grown;
    }
    pub fn measured_now(&mut self, bytes: u64) {
        self.grown -= std::mem::take(&mut self.before).min(self.grown);
        self.measured = bytes;
    }
    /// An upper estimate of the encoded state.
    pub fn estimate(&self) -> u64 {
        self.measured + self.grown
    }
    /// Whether something may be refused by an estimate that errs by more than a hundredth.
    pub fn wants_measure(&self, config: &RaftConfig) -> bool {
        self.estimate() >= share(config, DATA) && self.grown > config.max_snapshot_bytes / 128
    }
    /// SIZE-1, SIZE-2. `waiting`: bytes of proposals that are not applied yet.
    pub fn refuse(
        &self,
        config: &RaftConfig,
        waiting: usize,
        tables: &Tables,
        command: &Command,
        entry: &Entry,
    ) -> Option<ProposeError> {
        let bytes = self.estimate() + waiting as u64 + entry_bytes(entry);
        if bytes <= share(config, DATA) {
            return None;
        }
        let limit = match growth(tables, command) {
            Growth::None => return None,
            Growth::Data => share(config, DATA),
            Growth::Cluster => share(config, CLUSTER),
        };
        (bytes > limit).then_some(ProposeError::StateFull { bytes, limit })
    }
}

fn share(config: &RaftConfig, sixteenths: u64) -> u64 {
    config.max_snapshot_bytes / 16 * sixteenths
}
