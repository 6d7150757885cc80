//! Plain files: the lock, snapshots, and the mark that requests a wipe.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use muster_messages::wire::SnapshotHead;
use muster_sealing::KeyId;

use super::LogFault;
use super::seal::FileSeal;
use crate::core::digest;

/// The mark that requests a wipe.
pub(crate) const WIPE: &str = "wipe";

/// How long an earlier incarnation may take to release the directory: it finishes its current write. If the disk
/// hangs longer, the start fails, and the supervisor retries.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Ensures that the directory has one owner.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Lock {
    /// Of a directory. If another directory got its name meanwhile, of that one.
    pub fn take(dir: &Path) -> Result<Self, LogFault> {
        let path = dir.join("lock");
        loop {
            let lock = Self::take_file(&path)?;
            if lock.is_of(dir) {
                return Ok(lock);
            }
        }
    }
    /// Whether the directory of that name is still the locked one.
    pub fn is_of(&self, dir: &Path) -> bool {
        let file = |meta: fs::Metadata| (meta.dev(), meta.ino());
        let (held, named) = (self.0.metadata().map(file), fs::metadata(dir.join("lock")).map(file));
        matches!((held, named), (Ok(held), Ok(named)) if held == named)
    }
    /// Creates the file if necessary.
    pub fn take_file(path: &Path) -> Result<Self, LogFault> {
        let open = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path);
        let file = open.map_err(|e| LogFault::io(path, e))?;
        let until = Instant::now() + LOCK_TIMEOUT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self(file)),
                Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
                Err(TryLockError::WouldBlock) => {
                    return Err(LogFault::io(path, "another process has the directory open, or its last write hangs"));
                }
                Err(TryLockError::Error(e)) => return Err(LogFault::io(path, e)),
            }
        }
    }
}

/// Whether anything was ever written here.
pub(crate) fn holds_data(dir: &Path) -> bool {
    dir.join("log").exists() || dir.join("acked").exists()
}

/// Whether [`mark_for_wipe`] was called and its wipe is not complete.
pub(crate) fn is_marked_for_wipe(dir: &Path) -> bool {
    dir.join(WIPE).exists()
}

/// From now on the directory counts as empty.
pub(crate) fn mark_for_wipe(dir: &Path) -> Result<(), LogFault> {
    if !dir.exists() {
        return Ok(());
    }
    let path = dir.join(WIPE);
    let marked =
        OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path).and_then(|_| sync_dir(dir));
    marked.map_err(|e| LogFault::io(path, e))
}

/// Wipes the directory if there is a mark. The caller holds the lock. The mark is deleted last.
pub(crate) fn finish_wipe(dir: &Path) -> Result<(), LogFault> {
    let mark = dir.join(WIPE);
    if !is_marked_for_wipe(dir) {
        return Ok(());
    }
    let clear = || {
        for entry in fs::read_dir(dir)?.flatten() {
            let path = entry.path();
            if path.is_dir() {
                fs::remove_dir_all(path)?;
            } else if entry.file_name() != "lock" && entry.file_name() != WIPE {
                fs::remove_file(path)?;
            }
        }
        sync_dir(dir)?;
        fs::remove_file(&mark)?;
        sync_dir(dir)
    };
    clear().map_err(|e| LogFault::io(dir, e))
}

/// Deletes a directory with its content. Absent: no effect.
pub(crate) fn remove_all(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().filter(|p| !p.as_os_str().is_empty()).map_or(Ok(()), sync_dir)
}

/// Creates the directory, accessible only to its owner.
pub(crate) fn make_dir(dir: &Path) -> Result<(), LogFault> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).and_then(|()| sync_parent(dir));
    made.map_err(|e| LogFault::io(dir, e))
}

/// Snapshot files. They hold only the encoded tables, sealed; their heads and digests are in the log.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotFiles {
    dir: PathBuf,
    /// `None` in a directory that is not sealed.
    seal: Option<FileSeal>,
}

impl SnapshotFiles {
    pub fn new(dir: &Path, seal: Option<FileSeal>) -> Self {
        Self { dir: dir.to_owned(), seal }
    }
    /// The digest is in the name: a write of an earlier incarnation cannot overwrite this one's. So is the random name of a sealed
    /// directory, in case it was exchanged for another one meanwhile.
    fn path(&self, head: &SnapshotHead) -> PathBuf {
        let mark = match &self.seal {
            None => head.digest,
            Some(seal) => digest(&[&head.digest, seal.mark()].concat()),
        };
        let mark = u32::from_be_bytes([mark[0], mark[1], mark[2], mark[3]]);
        self.dir.join(format!("snapshot-{:020}-{mark:08x}", head.index))
    }
    /// The key of the directory.
    pub fn key(&self) -> Option<KeyId> {
        self.seal.as_ref().map(FileSeal::key)
    }
    /// Whether this snapshot was stored here.
    pub fn holds(&self, head: &SnapshotHead) -> bool {
        self.path(head).exists()
    }
    /// Atomic: written to a temporary file, synced, renamed, and the directory synced.
    pub fn store(&self, head: &SnapshotHead, data: &[u8]) -> Result<(), LogFault> {
        let path = self.path(head);
        let temporary = path.with_extension("tmp");
        let write = || {
            let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&temporary)?;
            match &self.seal {
                None => file.write_all(data)?,
                Some(seal) => seal.write((head.index, head.term), data, |bytes| file.write_all(bytes))?,
            }
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            sync_dir(&self.dir)
        };
        write().map_err(|e| LogFault::io(&path, e))
    }
    /// Reads and verifies.
    pub fn load(&self, head: &SnapshotHead) -> Result<Vec<u8>, LogFault> {
        let path = self.path(head);
        let mut data = Vec::new();
        match File::open(&path).and_then(|mut f| f.read_to_end(&mut data)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(LogFault::damaged(path, "the snapshot is missing"));
            }
            Err(e) => return Err(LogFault::io(path, e)),
            Ok(_) => {}
        }
        if let Some(seal) = &self.seal {
            data = seal.open((head.index, head.term), &path, data)?;
        }
        if data.len() as u64 != head.bytes || digest(&data) != head.digest {
            return Err(LogFault::damaged(path, "the snapshot's digest does not match"));
        }
        Ok(data)
    }
    /// Removes snapshots older than `index`. Best effort: a leftover costs space, and the next call finds it.
    pub fn forget_before(&self, index: u64) {
        let index_of = |name: &str| name.strip_prefix("snapshot-")?.get(..20)?.parse::<u64>().ok();
        self.remove(|name| index_of(name).is_some_and(|n| n < index));
    }
    /// Removes the files of interrupted writes, and snapshots that the log does not name. Only while nothing else writes them.
    pub fn forget_others(&self, head: Option<&SnapshotHead>) {
        let named = head.map(|head| self.path(head));
        let named = named.as_ref().and_then(|path| path.file_name()?.to_str());
        self.remove(|name| name.starts_with("snapshot-") && Some(name) != named);
    }
    fn remove(&self, which: impl Fn(&str) -> bool) {
        let Ok(listing) = fs::read_dir(&self.dir) else { return };
        for entry in listing.flatten() {
            if entry.file_name().to_str().is_some_and(&which)
                && let Err(e) = fs::remove_file(entry.path())
            {
                tracing::warn!(file = %entry.path().display(), error = %e, "cannot remove an old snapshot");
            }
        }
    }
}
