//! The size of the state, and the writes that the leader refuses because of it.
//!
//! Owns        the size of the last encoded snapshot, the bytes of the entries applied since, and whether a command was refused since.
//! Inputs      encoded snapshots, applied entries, proposed commands.
//! Outputs     `StateFull` for a command for which there is no room; whether the size should be measured.
//! Invariants  SIZE-1  the state stays below the maximum size of a snapshot: a larger one could not be sent to a manager that fell
//!                     behind, and redundancy would be lost for good.
//!             SIZE-2  commands that shrink the state or keep a full cluster alive are never refused.
//!             SIZE-3  room that was freed counts after a pause, although the entries that freed it are small.
//! Why an estimate: encoding a large state takes a core for a second. An entry grows the state by at most about its own size,
//! so the estimate errs upwards; every snapshot replaces it by a measured size. The leader decides before it proposes:
//! members need not agree.

use muster_messages::protocol::ProposeError;
use muster_messages::{Command, Tables};
use muster_store::growth::{Growth, growth};
use raft::eraftpb::Entry;

use super::RaftConfig;
use super::log::entry_bytes;

/// Users' data stays below this share of `max_snapshot_bytes`, in sixteenths.
const DATA_SIXTEENTHS: u64 = 12;
/// The cluster's own data, such as new nodes and roles, stays below this share.
const CLUSTER_SIXTEENTHS: u64 = 14;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StateSize {
    measured: u64,
    /// Bytes applied since the measured state.
    grown: u64,
    /// The part applied before the snapshot that is being encoded.
    before: u64,
    /// A command was refused since the measured state.
    refused: bool,
}

impl StateSize {
    pub fn measured(bytes: u64) -> Self {
        Self { measured: bytes, ..Self::default() }
    }
    pub fn applied(&mut self, bytes: u64) {
        self.grown += bytes;
    }
    /// A snapshot of the current state is being encoded.
    pub fn measuring(&mut self) {
        self.before = self.grown;
    }
    pub fn measured_now(&mut self, bytes: u64) {
        self.grown -= std::mem::take(&mut self.before).min(self.grown);
        (self.measured, self.refused) = (bytes, false);
    }
    /// An upper estimate of the encoded state.
    pub fn estimate(&self) -> u64 {
        self.measured + self.grown
    }
    /// Whether a refusal would rest on an estimate that errs by more than a hundredth, or one has, and the pause after the last measurement is
    /// over (`paused`).
    pub fn wants_measure(&self, config: &RaftConfig, paused: bool) -> bool {
        let is_near = self.estimate() >= share(config, DATA_SIXTEENTHS);
        (is_near && self.grown > config.max_snapshot_bytes / 128) || (self.refused && paused && self.grown > 0)
    }
    /// SIZE-1, SIZE-2. `waiting`: bytes of proposals that are not applied yet.
    pub fn refuse(
        &mut self,
        config: &RaftConfig,
        waiting: usize,
        tables: &Tables,
        command: &Command,
        entry: &Entry,
    ) -> Option<ProposeError> {
        let bytes = self.estimate() + waiting as u64 + entry_bytes(entry);
        if bytes <= share(config, DATA_SIXTEENTHS) {
            return None;
        }
        let limit = match growth(tables, command) {
            Growth::None => return None,
            Growth::Data => share(config, DATA_SIXTEENTHS),
            Growth::Cluster => share(config, CLUSTER_SIXTEENTHS),
        };
        if bytes <= limit {
            return None;
        }
        self.refused = true;
        Some(ProposeError::StateFull { bytes, limit })
    }
}

fn share(config: &RaftConfig, sixteenths: u64) -> u64 {
    config.max_snapshot_bytes / 16 * sixteenths
}
