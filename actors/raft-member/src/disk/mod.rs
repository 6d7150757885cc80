//! The disk of a member: log, hard state, member id and snapshot.
//!
//! Owns        its directory: `seal.json`, `log/` (raft-engine), `snapshot-<index>`, `acked`, `lock`, `wipe`; and `raft.reseal-next` beside it,
//!             while it is rewritten.
//! Invariants  DISK-1  what was reported durable is recovered completely, or its loss is reported: damaged data is never loaded.
//!             DISK-2  one owner: a directory is opened once at a time, also across incarnations of the actor.
//! Why a thread of its own: every write of the log blocks, and a hung disk must not stall the runtime.
//!
//! # Torn or rotten
//! A process or machine that dies during a write leaves a torn record at the end of the log. That write was never acknowledged, and
//! dropping it is right, whichever of its sectors are there (`tail`). Bit rot at the same place looks alike: both are dropped.
//! So every batch carries a sequence number, and after each sync the number is also written to `acked`, a file of two checksummed
//! slots. A recovered log that ends before the number in `acked` has lost an acknowledged write: it is refused. `acked` itself is
//! synced only now and then (it costs no second sync per write): after a power loss it may be a few seconds old, and then rot in
//! exactly those seconds' records would pass as a torn tail.
//! Rot anywhere else is found by raft-engine's checksums, by gaps in the log, or by the snapshot's digest.
//! The number is also stored beside the node's identity (`witness`), to detect a directory restored from an older copy.
//!
//! # A sync that fails
//! The affected pages may be marked clean although they are not on the disk: nothing written to that file can be trusted any more,
//! even if the next sync succeeds. The mark `doubtful` records this for the next open of the directory. The running member has
//! everything in memory: it rewrites the log into new files and continues. A member that opens a directory with the mark does the
//! same with the data that it reads.
//!
//! # A loss that others see
//! If a leader counts on entries that this log does not have, the disk has lost them. The mark `lost` makes the directory count as
//! damaged: the node asks for a new membership.

mod acked;
mod doubt;
mod engine;
mod files;
mod image;
mod log;
mod reseal;
#[cfg(test)]
mod reseal_tests;
mod seal;
#[cfg(test)]
mod seal_tests;
mod sim;
mod tail;
#[cfg(test)]
mod tests;
mod thread;
#[cfg(test)]
mod torn_tests;
pub mod trial;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_messages::{FIRST_INCARNATION, Incarnation, RaftId, Tables};
use muster_sealing::{KeyId, KeyUse, Keys};
use muster_store::snapshot::SnapshotFault;
use raft_engine::env::DefaultFileSystem;

use self::engine::{EngineDisk, OpenFor};
use crate::core::{Durable, Recovered};

pub(crate) use self::files::SnapshotFiles;
pub use self::sim::SimDisk;
pub(crate) use self::thread::{DiskThread, Report};

/// Data that cannot be trusted, or a disk that does not work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {why}", file.display())]
pub struct LogFault {
    pub file: PathBuf,
    pub why: String,
    pub kind: FaultKind,
}

/// The kind of a disk fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// The stored data differs from what was written.
    Damaged,
    /// A newer build wrote it, and this one cannot read it. The data is not damaged.
    Newer,
    /// Reading or writing failed, or another process has it open. Says nothing about the data.
    Io,
    /// A sync failed: see [`self`], "A sync that fails".
    Unsynced,
    /// The data is sealed, and its key is not there: the keyring is locked or missing. Says nothing about the data.
    NoKey,
}

impl LogFault {
    pub(crate) fn damaged(file: impl Into<PathBuf>, why: impl ToString) -> Self {
        Self { file: file.into(), why: why.to_string(), kind: FaultKind::Damaged }
    }
    pub(crate) fn of_snapshot(file: impl Into<PathBuf>, fault: &SnapshotFault) -> Self {
        let kind = match fault {
            SnapshotFault::Newer { .. } => FaultKind::Newer,
            SnapshotFault::Unreadable { .. } => FaultKind::Damaged,
        };
        Self { file: file.into(), why: fault.to_string(), kind }
    }
    pub(crate) fn io(file: impl Into<PathBuf>, why: impl ToString) -> Self {
        Self { file: file.into(), why: why.to_string(), kind: FaultKind::Io }
    }
}

/// The content of a directory, read without starting the member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirState {
    /// It has never belonged to a Raft member.
    Absent,
    Present {
        raft_id: RaftId,
        /// The cluster's incarnation, if there is a snapshot: an empty replica does not know it.
        incarnation: Option<Incarnation>,
    },
    Damaged(LogFault),
    /// A newer build wrote it.
    Newer(LogFault),
    /// It cannot be read: in use, the disk fails, or its key is missing. Says nothing about the data.
    Unreadable(LogFault),
}

/// The operations that a member needs from a disk. Calls may block.
pub trait LogDisk {
    /// Reads the stored data.
    fn recover(&mut self) -> Result<Recovered, LogFault>;
    /// Writes these in order, each completely or not at all; those with `sync`, and those before them, are durable on return.
    fn write(&mut self, writes: &[Durable]) -> Result<(), LogFault>;
}

/// Examines a member's directory without starting the member. Blocks.
pub fn state(dir: &Path, keys: &Keys) -> DirState {
    match read(dir, keys) {
        Ok(Recovered { member_id: Some(raft_id), snapshot, .. }) => {
            // The founder's log begins behind an empty snapshot; every recovery begins with a snapshot that holds the cluster.
            let of = |tables: Tables| tables.cluster.map_or(FIRST_INCARNATION, |cluster| cluster.incarnation);
            DirState::Present { raft_id, incarnation: snapshot.map(|(_, tables)| of(tables)) }
        }
        Ok(_) => DirState::Absent,
        Err(fault) => match fault.kind {
            FaultKind::Damaged => DirState::Damaged(fault),
            FaultKind::Newer => DirState::Newer(fault),
            FaultKind::Io | FaultKind::Unsynced | FaultKind::NoKey => DirState::Unreadable(fault),
        },
    }
}

/// Reads everything in a directory. Blocks. Its seal stays as it is, and nothing is created.
pub fn read(dir: &Path, keys: &Keys) -> Result<Recovered, LogFault> {
    if reseal::finish_exchange(dir).is_ok() && (!files::holds_data(dir) || files::is_marked_for_wipe(dir)) {
        return Ok(Recovered::default());
    }
    match DiskThread::open_in(dir, &Arc::new(DefaultFileSystem), keys, OpenFor::Reading) {
        // Its mark was still beside it.
        Err(_) if files::is_marked_for_wipe(dir) => Ok(Recovered::default()),
        opened => opened.map(|(_, recovered)| recovered),
    }
}

/// Writes once to a directory in which no member runs. Blocks.
pub fn write(dir: &Path, write: Durable, keys: &Keys) -> Result<(), LogFault> {
    let (path, keys) = (dir.to_owned(), keys.clone());
    let work = std::thread::spawn(move || EngineDisk::open(&path, &keys)?.write(&[write]));
    work.join().unwrap_or_else(|_| Err(doubt::unsynced(dir)))
}

/// Whether a wipe of the directory was requested and is not complete.
pub fn is_marked_for_wipe(dir: &Path) -> bool {
    files::is_marked_for_wipe(dir)
}

/// Seals a directory in which no member runs under the newest key, as the next start of its member would. Blocks.
pub fn update_seal(dir: &Path, keys: &Keys) -> Result<DirSeal, LogFault> {
    if files::holds_data(dir) {
        let (path, keys) = (dir.to_owned(), keys.clone());
        let work = std::thread::spawn(move || EngineDisk::open(&path, &keys).map(drop));
        work.join().unwrap_or_else(|_| Err(doubt::unsynced(dir)))?;
    }
    seal_of(dir, keys)
}

/// The keys of the sealed directories beside this one and of itself: `raft.fenced` and `raft.damaged`, too. Blocks.
pub fn keys_in_use(dir: &Path) -> Result<Vec<KeyId>, LogFault> {
    seal::keys_in_use(dir)
}

/// How a directory lies on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirSeal {
    /// It holds no data.
    Absent,
    /// In clear: an earlier build made it. The member converts it when it is next started and the cluster's feature level permits it.
    Clear,
    /// `newest`: under the newest key of the keyring, and no former data lies beside it. Otherwise its member rewrites it.
    Sealed { key: KeyId, newest: bool },
}

/// Reads only the description of the seal. A member may run in the directory. Blocks.
pub fn seal_of(dir: &Path, keys: &Keys) -> Result<DirSeal, LogFault> {
    reseal::finish_exchange(dir)?;
    let newest = keys.newest(KeyUse::Raft);
    Ok(match seal::SealHead::of(dir)? {
        Some(head) => {
            let newest = Some(head.key) == newest && !reseal::has_leftovers(dir);
            DirSeal::Sealed { key: head.key, newest }
        }
        None if files::holds_data(dir) => DirSeal::Clear,
        None => DirSeal::Absent,
    })
}

/// Records that the data has lost acknowledged entries: it counts as damaged from now on. Blocks. A member may run in it.
pub fn mark_lost(dir: &Path, why: &str) -> Result<(), LogFault> {
    doubt::mark_lost(dir, why)
}

/// Why the data counts as damaged, if a mark says so.
pub fn lost(dir: &Path) -> Option<LogFault> {
    doubt::lost(dir)
}

/// Deletes everything in a directory in which no member runs. Blocks. If interrupted, the next open completes it.
pub fn wipe(dir: &Path) -> Result<(), LogFault> {
    reseal::finish_exchange(dir)?;
    if !dir.exists() {
        return reseal::remove_leftovers(dir);
    }
    let _lock = files::Lock::take(dir)?;
    files::mark_for_wipe(dir)?;
    reseal::remove_leftovers(dir)?;
    files::finish_wipe(dir)
}

/// Makes the next open find this directory empty: for a running member that is about to be restarted. Blocks.
pub fn mark_for_wipe(dir: &Path) -> Result<(), LogFault> {
    files::mark_for_wipe(dir)
}
