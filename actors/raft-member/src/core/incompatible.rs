//! Cluster incompatible with this build: its feature level is too new.
//!
//! Invariants  LEVEL-2  nothing is applied behind the entry that raised the feature level above this build's: later entries may use an
//!                      encoding that it cannot read, or a meaning that it does not know. It also sends, writes and votes for nothing.
//! Such a member waits to be stopped. A newer build continues from the same data.

/// What this build does not support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Incompatible {
    /// According to its own replica. Final: the level never falls.
    #[error("the cluster is at feature level {0}")]
    Level(u32),
    /// A peer sent such a snapshot. One peer's claim must not stop a member: the receiver of this value asks the leader.
    #[error("the cluster's snapshots are of version {0}")]
    Snapshot(u8),
}
