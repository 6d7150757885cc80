//! The disk of a member: log, hard state, seat and snapshot.
//!
//! Owns   `<data>/raft/`.
//! Keeps  DISK-1  what was reported durable is either recovered whole, or its loss is named: damaged data is never loaded.
//!        DISK-2  one process, one owner: a directory is opened once at a time.
//! Why a thread of its own: every write of the log blocks, and a hung disk must not stall the runtime.

mod image;
mod sim;

use std::path::PathBuf;

use muster_messages::RaftId;

use crate::core::{Durable, Recovered};

pub use self::sim::SimDisk;

/// Data that cannot be trusted, or a disk that does not work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {why}", file.display())]
pub struct LogFault {
    pub file: PathBuf,
    pub why: String,
}

impl LogFault {
    pub(crate) fn new(file: impl Into<PathBuf>, why: impl ToString) -> Self {
        Self { file: file.into(), why: why.to_string() }
    }
}

/// What a directory holds, seen without starting the member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirState {
    /// No seat was ever held in it.
    Absent,
    Present { raft_id: RaftId },
    Damaged { file: PathBuf, why: String },
}

/// What a member needs of a disk. Calls may block.
pub trait LogDisk {
    /// What is there.
    fn recover(&mut self) -> Result<Recovered, LogFault>;
    /// Writes these in order, each whole or not at all; those with `sync`, and those before them, are durable on return.
    fn write(&mut self, writes: &[Durable]) -> Result<(), LogFault>;
}
