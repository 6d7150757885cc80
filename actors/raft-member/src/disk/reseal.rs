//! Rewriting a whole directory: a directory of an earlier build, which is not sealed, and one whose data key is replaced.
//!
//! ```text
//! raft               the data                            1. the next one is written and synced: description, snapshot, log, acked
//! raft.reseal-next   being written; then the old data    2. it and `raft` exchange their names, in one step
//! raft.reseal-old    only without that step              3. the old data is deleted; then its key
//! ```
//!
//! Without an atomic exchange (some file systems) there are two renames: `raft` to `raft.reseal-old`, `raft.reseal-next` to `raft`. Between them `raft` does
//! not exist, and `raft.reseal-next` is complete.
//!
//! Invariants  SEAL-3  a key leaves the keyring after the last file under it was deleted, and its folder synced.
//! SEAL-8: after a crash at any moment `raft` is the old directory or the new one, complete.
//! Each log is opened on a thread of its own: raft-engine caches blocks per thread, by position alone.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_sealing::{KeyUse, Keys};
use muster_store::Limits;
use raft_engine::env::FileSystem;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::acked::Acked;
use super::doubt;
use super::engine::{Content, EngineDisk, LOG, write_log};
use super::files::{Lock, SnapshotFiles, WIPE, make_dir, remove_all, sync_dir, sync_parent};
use super::seal::{self, Seal};
use super::{LogDisk as _, LogFault};
use crate::recovery::survey_of;

/// Called before the first and after each change of the disk. Tests stop there, or report a full disk.
pub(crate) type Step<'a> = &'a mut dyn FnMut(&'static str) -> io::Result<()>;

/// The most symbolic links that are followed; Linux follows 40.
const MAX_LINKS: usize = 40;

/// The directory itself, if its name is a symbolic link. The directories beside it are on its file system, and it is what is exchanged: with
/// the link, the data that it names would stay as it is. It may not exist, between two renames.
pub(super) fn behind_links(dir: &Path) -> PathBuf {
    let mut found = dir.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(target) = fs::read_link(&found) else { break };
        found = found.parent().unwrap_or(Path::new("")).join(target);
    }
    found
}

/// The folder in which it is.
pub(super) fn parent_of(dir: &Path) -> &Path {
    dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The directories beside this one.
fn beside(dir: &Path, what: &str) -> PathBuf {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    // Operators call their copies `raft.old`.
    dir.with_file_name(format!("{name}.reseal-{what}"))
}

/// Completes an exchange by two renames that a crash interrupted. Before the directory is created or locked.
pub(crate) fn finish_exchange(dir: &Path) -> Result<(), LogFault> {
    let dir = &behind_links(dir);
    let (next, old) = (beside(dir, "next"), beside(dir, "old"));
    if dir.exists() || !old.exists() {
        return Ok(());
    }
    let _exchange = Lock::take_file(&beside(dir, "exchange"))?;
    let finish = || -> io::Result<()> {
        if !dir.exists() {
            let from = if next.exists() { &next } else { &old };
            tracing::warn!(from = %from.display(), "finishing an interrupted exchange of the Raft directory");
            fs::rename(from, dir)?;
        }
        sync_parent(dir)
    };
    finish().map_err(|e| LogFault::io(dir, e))
}

/// Deletes what an interrupted rewrite left: never the data. The caller holds the directory's lock.
pub(crate) fn remove_leftovers(dir: &Path) -> Result<(), LogFault> {
    let dir = &behind_links(dir);
    for path in leftovers(dir) {
        remove_all(&path).and_then(|()| sync_parent(dir)).map_err(|e| LogFault::io(&path, e))?;
    }
    // Of the file system's two renames.
    let _not_there = fs::remove_file(beside(dir, "exchange"));
    Ok(())
}

/// What an interrupted rewrite left, or one whose former data could not be deleted.
fn leftovers(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let dir = behind_links(dir);
    ["next", "old"].into_iter().map(move |what| beside(&dir, what)).filter(|path| fs::symlink_metadata(path).is_ok())
}

/// Whether former data lies beside the directory: it is under a former key, or in clear.
pub(crate) fn has_leftovers(dir: &Path) -> bool {
    leftovers(dir).next().is_some()
}

/// Rewrites the directory under the newest key. On failure, that of the exchange included, the directory is as it was, and `raft.reseal-next` is
/// deleted. Returns the lock of the directory that has the name now. Blocks for as long as it takes to write the state.
pub(crate) fn reseal<F: FileSystem>(
    dir: &Path,
    fs: &Arc<F>,
    (keys, lock): (&Keys, Lock),
    step: Step<'_>,
) -> Result<Lock, LogFault> {
    let dir = &behind_links(dir);
    let next = beside(dir, "next");
    let exchanged = prepare(dir, &next, fs, keys, step).and_then(|next_lock| {
        // Another incarnation may have set the directory aside meanwhile, and deleted what was being written.
        if lock.is_of(dir) && next_lock.is_of(&next) {
            exchange(dir, &next, step).map(|()| next_lock)
        } else {
            Err(LogFault::io(dir, "it was replaced while it was rewritten"))
        }
    });
    let next_lock = match exchanged {
        Ok(lock) => lock,
        // The next start finishes the exchange; or it is another's directory now.
        Err(fault) if !lock.is_of(dir) => return Err(fault),
        Err(fault) => {
            let _left_to_the_next_start = remove_all(&next);
            tracing::warn!(dir = %dir.display(), %fault, "cannot seal the Raft data anew; it stays as it is until the next attempt");
            return Ok(lock);
        }
    };
    // It has succeeded already; a power loss before this restores the old directory.
    sync_parent(dir).map_err(|e| LogFault::io(dir, e))?;
    carry_marks(dir)?;
    drop(lock);
    match remove_leftovers(dir) {
        Ok(()) => drop_old_keys(dir, keys),
        // The next start deletes them.
        Err(fault) => tracing::warn!(%fault, "cannot delete the former Raft data; the next start will"),
    }
    let _tests = step("deleted");
    Ok(next_lock)
}

/// Marks that other threads made in the old directory while the new one was written: its data is lost, or is to be wiped. From the exchange
/// on, their paths lead to the new directory. A directory that is not exchanged yet has none.
pub(crate) fn carry_marks(dir: &Path) -> Result<(), LogFault> {
    let dir = &behind_links(dir);
    for old in leftovers(dir) {
        for mark in [doubt::LOST, WIPE] {
            let to = dir.join(mark);
            match fs::rename(old.join(mark), &to) {
                Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
                renamed => renamed.and_then(|()| sync_dir(dir)).map_err(|e| LogFault::io(to, e))?,
            }
        }
    }
    Ok(())
}

/// SEAL-3. Afterwards only keys are left that some directory needs.
pub(crate) fn drop_old_keys(dir: &Path, keys: &Keys) {
    let in_use = match seal::keys_in_use(dir) {
        Ok(in_use) => in_use,
        // It may be of any key.
        Err(fault) => {
            return tracing::warn!(%fault, "keeping former keys: how data beside the Raft directory is sealed is unknown");
        }
    };
    if let Err(fault) = keys.drop_keys(KeyUse::Raft, &in_use) {
        tracing::warn!(%fault, "cannot remove a former key from the keyring; the next start will");
    }
}

/// Writes `raft.reseal-next`, durably.
fn prepare<F: FileSystem>(dir: &Path, next: &Path, fs: &Arc<F>, keys: &Keys, step: Step<'_>) -> Result<Lock, LogFault> {
    let io = |e| LogFault::io(next, e);
    check_place(dir)?;
    check_space(dir)?;
    step("space").map_err(io)?;
    keys.ensure().map_err(|why| LogFault::io(keys.path(), why))?;
    step("keyring").map_err(io)?;
    remove_all(next).map_err(io)?;
    make_dir(next)?;
    let lock = Lock::take(next)?;
    step("made").map_err(io)?;
    let mut seal = Seal::begin(next, keys)?;
    step("described").map_err(io)?;
    let (content, snapshot) = on_own_thread(|| {
        let mut disk = EngineDisk::open_log(dir, fs, Seal::of(dir, keys)?)?;
        let content = disk.content()?;
        let snapshot = content.meta.snapshot.as_ref().map(|head| disk.snapshot_files().load(head)).transpose()?;
        Ok((content, snapshot))
    })?;
    let Content { meta, entries } = content;
    if let (Some(head), Some(data)) = (&meta.snapshot, snapshot) {
        SnapshotFiles::new(next, Some(seal.for_files())).store(head, &data)?;
    }
    step("snapshot").map_err(io)?;
    on_own_thread(|| write_log((next, LOG), fs, &meta, &entries, Some(&mut seal)))?;
    step("log").map_err(io)?;
    let mut number = Acked::open(next, true)?;
    number.record(meta.number)?;
    number.sync()?;
    drop(number);
    sync_dir(next).and_then(|()| sync_parent(next)).map_err(io)?;
    step("synced").map_err(io)?;
    Ok(lock)
}

pub(super) fn on_own_thread<T: Send>(work: impl FnOnce() -> Result<T, LogFault> + Send) -> Result<T, LogFault> {
    std::thread::scope(|scope| {
        let done = scope.spawn(work).join();
        done.unwrap_or_else(|_| Err(LogFault::io("raft", "reading or writing the Raft log panicked")))
    })
}

/// The feature level from which on no earlier build opens a member's directory.
const SEALED_FROM_LEVEL: u32 = 3;

/// Whether a directory that is not sealed may be: until its cluster has reached the feature level, the node may return to an earlier
/// build, which cannot read what is sealed.
pub(super) fn may_be_sealed<F: FileSystem>(dir: &Path, fs: &Arc<F>, keys: &Keys) -> Result<bool, LogFault> {
    let recovered = on_own_thread(|| EngineDisk::open_log(dir, fs, Seal::of(dir, keys)?)?.recover())?;
    let is_empty = recovered.member_id.is_none();
    // What cannot be applied is left to the member, which reports it.
    let tables = survey_of(&Limits::DEFAULT, recovered).map(|survey| survey.tables);
    let level = tables.ok().and_then(|tables| tables.cluster.as_ref().map(|cluster| cluster.feature_level));
    Ok(is_empty || level.is_some_and(|level| level >= SEALED_FROM_LEVEL))
}

/// Refuses before anything is written what [`exchange`] would refuse.
fn check_place(dir: &Path) -> Result<(), LogFault> {
    let device = |path: &Path| fs::metadata(path).map(|meta| meta.dev()).map_err(|e| LogFault::io(path, e));
    // A subvolume has a device of its own, too.
    if device(dir)? == device(parent_of(dir))? { Ok(()) } else { Err(LogFault::io(dir, NOT_EXCHANGEABLE)) }
}

const NOT_EXCHANGEABLE: &str = "a mount point, a subvolume, or a directory of a lower layer cannot be exchanged; mount the data directory \
     instead";

/// Refused before it starts: a full disk would stop this member, and others on this machine.
fn check_space(dir: &Path) -> Result<(), LogFault> {
    let needed = size(dir).map_err(|e| LogFault::io(dir, e))?;
    let needed = needed + needed / 5;
    let found = rustix::fs::statvfs(dir).map_err(|e| LogFault::io(dir, io::Error::from(e)))?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    if free < needed {
        return Err(LogFault::io(dir, format!("sealing it anew needs {needed} bytes, and {free} are free")));
    }
    Ok(())
}

/// Refuses what cannot be exchanged or deleted with the directory: links, and mount points below it.
fn size(dir: &Path) -> io::Result<u64> {
    let (mut bytes, device) = (0, fs::metadata(dir)?.dev());
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let meta = match entry.metadata() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue, // a snapshot that is being written
            meta => meta?,
        };
        if meta.is_symlink() || meta.dev() != device {
            let what = format!(
                "{} is a link or a mount point: link or mount the data directory instead",
                entry.path().display()
            );
            return Err(io::Error::other(what));
        }
        bytes += if meta.is_dir() { size(&entry.path())? } else { meta.len() };
    }
    Ok(bytes)
}

/// If it fails, `raft` is as it was: under its name, or under that of the old data.
fn exchange(dir: &Path, next: &Path, step: Step<'_>) -> Result<(), LogFault> {
    step("exchanging").map_err(|e| LogFault::io(dir, e))?;
    match renameat_with(CWD, next, CWD, dir, RenameFlags::EXCHANGE) {
        Ok(()) => {}
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => exchange_by_renames(dir, next, step)?,
        Err(e @ (Errno::BUSY | Errno::XDEV)) => {
            return Err(LogFault::io(dir, format!("{}: {NOT_EXCHANGEABLE}", io::Error::from(e))));
        }
        Err(e) => return Err(LogFault::io(dir, io::Error::from(e))),
    }
    let _tests = step("exchanged");
    Ok(())
}

fn exchange_by_renames(dir: &Path, next: &Path, step: Step<'_>) -> Result<(), LogFault> {
    let io = |e| LogFault::io(dir, e);
    let old = beside(dir, "old");
    let _exchange = Lock::take_file(&beside(dir, "exchange"))?;
    fs::rename(dir, &old).map_err(io)?;
    let moved = step("moved").and_then(|()| sync_parent(dir)).and_then(|()| fs::rename(next, dir));
    moved.or_else(|error| fs::rename(&old, dir).and(Err(error))).map_err(io)
}

#[cfg(test)]
pub(crate) fn exchange_for_tests(dir: &Path, step: Step<'_>) -> Result<(), LogFault> {
    exchange_by_renames(dir, &beside(dir, "next"), step)
}
