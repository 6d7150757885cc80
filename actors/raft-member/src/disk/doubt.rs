//! Marks in a member's directory that its data cannot be trusted, and the number of the last acknowledged batch that is
//! stored outside of it. See [`super`].

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use muster_messages::RaftId;

use super::LogFault;
use super::acked::Acked;
use super::files::sync_dir;

const DOUBTFUL: &str = "doubtful";
pub(super) const LOST: &str = "lost";

/// The fault of a failed sync.
pub(crate) fn unsynced(dir: &Path) -> LogFault {
    let kind = super::FaultKind::Unsynced;
    LogFault { file: dir.to_owned(), why: "a sync failed".to_owned(), kind }
}

/// Records a failed sync. Best effort, because the disk fails: without the mark, the numbers in `acked` reveal a loss.
pub(crate) fn mark_doubtful(dir: &Path) {
    if let Err(error) = mark(dir, DOUBTFUL, "a sync failed") {
        tracing::warn!(dir = %dir.display(), %error, "cannot mark the Raft log as doubtful");
    }
}
pub(crate) fn is_doubtful(dir: &Path) -> bool {
    dir.join(DOUBTFUL).exists()
}
/// Called after the log was rewritten.
pub(crate) fn clear_doubt(dir: &Path) -> io::Result<()> {
    match fs::remove_file(dir.join(DOUBTFUL)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => sync_dir(dir),
    }
}

pub(crate) fn mark_lost(dir: &Path, why: &str) -> Result<(), LogFault> {
    mark(dir, LOST, why).map_err(|e| LogFault::io(dir.join(LOST), e))
}
pub(crate) fn lost(dir: &Path) -> Option<LogFault> {
    let path = dir.join(LOST);
    fs::read_to_string(&path).ok().map(|why| LogFault::damaged(path, why.trim()))
}

fn mark(dir: &Path, name: &str, why: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(dir.join(name))?;
    writeln!(file, "{why}")?;
    file.sync_all()?;
    sync_dir(dir)
}

/// The number of a member's last acknowledged batch, beside the node's identity. Exists only if the node's identity is
/// beside the directory: a copy of the directory has no witness.
#[derive(Debug)]
pub(crate) struct Witness {
    acked: Acked,
    member_id: RaftId,
}

impl Witness {
    pub fn identity_dir(dir: &Path) -> Option<PathBuf> {
        let identity = dir.parent()?.join("identity");
        identity.is_dir().then_some(identity)
    }
    /// The witness of this member. A file that cannot be read, or is of another member id, starts again: it is only a
    /// second source.
    pub fn open(identity: &Path, member_id: RaftId) -> Option<Self> {
        let path = identity.join("raft-acked");
        let open = || Acked::open_at(&path, Some(member_id));
        let acked = open().or_else(|_| {
            let _gone = fs::remove_file(&path);
            open()
        });
        acked.ok().map(|acked| Self { acked, member_id })
    }
    pub fn member_id(&self) -> RaftId {
        self.member_id
    }
    pub fn number(&self) -> u64 {
        self.acked.number()
    }
    pub fn path(&self) -> &Path {
        self.acked.path()
    }
    pub fn record(&mut self, number: u64) -> Result<(), LogFault> {
        self.acked.record(number)
    }
    pub fn sync(&mut self) -> Result<bool, LogFault> {
        self.acked.sync()
    }
}
