//! The member's disk: the thread that writes it, and the new files that follow a failed sync.
//!
//! Owns        the disk thread, and how often this incarnation of the actor replaced it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_kernel::{Cx, Fault};
use muster_messages::{Moment, RaftDiskView, RetryPause};
use muster_sealing::{KeyId, KeyUse, Keys};
use raft_engine::env::DefaultFileSystem;

use crate::core::{Durable, RaftCore, Recovered};
use crate::disk::{self, DiskThread, FaultKind, LogFault, Report, SnapshotFiles};
use crate::shell::Msg;

/// How often one incarnation of the actor rewrites its log after failed syncs. A disk that fails more often is left to the
/// supervisor, which waits longer each time.
const MAX_RENEWALS: u32 = 8;

/// The pauses after which a directory that could not be sealed anew is tried again: each attempt writes the whole state, and a mount point
/// stays one.
const RESEAL_PAUSES: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3600));
/// The time that one member has for it before the next one begins. A state of 64 MiB takes about that.
const RESEAL_TURN: Duration = Duration::from_secs(2);

/// A report of the disk thread, and the number of renewals before that thread.
pub struct DiskNews(Report, u32);

/// Rewrites of the directory under this key.
struct Resealing {
    key: KeyId,
    pause: RetryPause,
}

impl Resealing {
    fn new(key: KeyId, now: Moment, place: u32) -> Self {
        Self { key, pause: RetryPause::until(now + RESEAL_TURN * place) }
    }
    /// Whether one is requested now. If it succeeds, it is the last one.
    fn attempt(&mut self, now: Moment) -> bool {
        let is_due = self.pause.is_over(now);
        if is_due {
            self.pause.failed(now, RESEAL_PAUSES);
        }
        is_due
    }
}

/// See the module.
pub(crate) struct MemberDisk {
    dir: PathBuf,
    keys: Keys,
    file_system: Arc<DefaultFileSystem>,
    thread: DiskThread,
    renewals: u32,
    persisted: u64,
    resealing: Option<Resealing>,
}

impl MemberDisk {
    /// Blocks.
    pub fn open(dir: &Path, keys: Keys, hangs_while: Option<PathBuf>) -> Result<(Self, Recovered), LogFault> {
        let (thread, recovered) = DiskThread::open(dir, &keys)?;
        if let Some(file) = hangs_while {
            thread.hang_while(file);
        }
        let file_system = Arc::new(DefaultFileSystem);
        Ok((
            Self { dir: dir.to_owned(), keys, file_system, thread, renewals: 0, persisted: 0, resealing: None },
            recovered,
        ))
    }

    /// For snapshots, which are written on the blocking pool.
    pub fn snapshot_files(&self) -> SnapshotFiles {
        self.thread.snapshot_files()
    }

    /// SEAL-8. The log and its snapshots are written anew as soon as the keyring has another key. `place`: how many members
    /// rewrite theirs first. Writes wait meanwhile, and would wait for a majority if all members did it at once.
    pub fn follow_keys(&mut self, now: Moment, place: impl FnOnce() -> u32) -> Result<(), LogFault> {
        let Some(key) = self.keys.newest(KeyUse::Raft) else { return Ok(()) };
        // A directory of an earlier build is converted when it is opened.
        if self.thread.is_sealed_with(key) != Some(false) {
            return Ok(());
        }
        let resealing = match &mut self.resealing {
            Some(last) if last.key == key => last,
            other => other.insert(Resealing::new(key, now, place())),
        };
        if resealing.attempt(now) { self.thread.reseal() } else { Ok(()) }
    }

    pub fn watch(&self, cx: &Cx<Msg>) {
        self.thread.show(cx.beside("disk", "Disk"));
        let (me, thread) = (cx.me().clone(), self.renewals);
        self.thread.listen(Box::new(move |report| {
            // A hint. The next tick makes up for one that a full mailbox refuses, and for the failure that follows it.
            let _full = me.tell(Msg::Disk(DiskNews(report, thread)));
        }));
    }

    /// The number of the last write that is durable, if it is news.
    pub fn newly_persisted(&mut self) -> Option<u64> {
        let persisted = Some(self.thread.persisted()).filter(|number| *number > self.persisted)?;
        self.persisted = persisted;
        Some(persisted)
    }

    pub fn write(&self, writes: Vec<Durable>) -> Result<(), LogFault> {
        self.thread.write(writes)
    }

    /// Why the present thread ended, if this says so.
    pub fn failure(&self, DiskNews(report, thread): DiskNews) -> Option<LogFault> {
        match report {
            Report::Failed(fault) if thread == self.renewals => Some(fault),
            Report::Failed(_) | Report::Persisted => None,
        }
    }

    /// A sync failed: nothing written to those files can be trusted, but the core still has everything. Any other failure ends
    /// the actor.
    pub fn renew(&mut self, cx: &Cx<Msg>, fault: LogFault, core: &mut RaftCore) -> Result<(), Fault> {
        let everything = (fault.kind == FaultKind::Unsynced).then(|| core.everything()).flatten();
        let (Some(everything), true) = (everything, self.renewals < MAX_RENEWALS) else { return Err(fault.into()) };
        tracing::error!(%fault, "a sync failed; rewriting the Raft log into new files");
        self.renewals += 1;
        self.thread = DiskThread::renew(&self.dir, &self.file_system, &self.keys, everything)?;
        self.watch(cx);
        Ok(())
    }

    /// The data will not be used again.
    pub fn mark_lost(&self, why: &str) -> Result<(), LogFault> {
        disk::mark_lost(&self.dir, why)
    }

    pub fn view(&self) -> RaftDiskView {
        RaftDiskView { syncs: self.thread.syncs(), renewals: self.renewals }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewrites_take_turns_and_back_off() {
        let (begin, at) = (Moment(5), |seconds| Moment(5) + Duration::from_secs(seconds));
        let attempts = |place| {
            let mut resealing = Resealing::new(KeyId(1), begin, place);
            (0..500).filter(|second| resealing.attempt(at(*second))).collect::<Vec<u64>>()
        };
        assert_eq!(attempts(0), [0, 60, 180, 420]);
        assert_eq!(attempts(2), [4, 64, 184, 424]);
        let mut resealing = Resealing::new(KeyId(1), begin, 0);
        let hourly = (0..100_000).filter(|second| resealing.attempt(at(*second))).count();
        assert!((28..36).contains(&hourly), "{hourly}");
    }
}
