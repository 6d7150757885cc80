//! The log on raft-engine.
//!
//! Group 1 holds one key, `meta`, written with every batch; the entries are in one group per generation. A new member id or an
//! installed snapshot begins a new generation, so that no old entry can reappear. raft-engine may bring compacted entries back
//! after a restart: `meta` records where the log begins. In a sealed directory `meta` and the content of entries are sealed records; index,
//! term and kind of entries are not.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_messages::RaftId;
use muster_messages::wire::{SnapshotHead, decode_stored, encode_stored};
use muster_sealing::Keys;
use raft_engine::env::{DefaultFileSystem, FileSystem};
use raft_engine::{Command, LogBatch};
use serde::{Deserialize, Serialize};

use super::acked::Acked;
use super::doubt::{self, Witness};
use super::files::{Lock, SnapshotFiles, finish_wipe, holds_data, is_marked_for_wipe, make_dir, remove_all, sync_dir};
use super::log::{Entries, Log, suspect};
use super::seal::{Seal, SealHead, fault_of, no_key};
use super::{LogDisk, LogFault, acked, reseal, seal, tail};
use crate::core::{Durable, Entry, HardMark, LogPoint, Recovered, SnapshotJob};

const META_GROUP: u64 = 1;
const META: &[u8] = b"meta";
/// Batches between two checks for obsolete files; a check costs microseconds.
const PURGE_EVERY: u64 = 4096;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Meta {
    /// Of this batch. Grows by one with each.
    pub number: u64,
    generation: u64,
    member_id: Option<RaftId>,
    hard: HardMark,
    pub snapshot: Option<SnapshotHead>,
    truncated: LogPoint,
}

/// Everything in a directory but the snapshot's file.
pub(super) struct Content {
    pub meta: Meta,
    pub entries: Vec<Entry>,
}

/// What a directory is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenFor {
    /// By a member, or for one. New directories are sealed, and those of earlier builds are converted.
    Writing,
    /// Nothing is created, and the seal stays as it is.
    Reading,
}

impl Meta {
    fn entries_group(&self) -> u64 {
        META_GROUP + 1 + self.generation
    }
}

/// An open directory. Use it from one thread that opens nothing else (raft-engine caches blocks per thread, by position alone).
pub(crate) struct EngineDisk<F: FileSystem = DefaultFileSystem> {
    dir: PathBuf,
    log: Log<F>,
    acked: Acked,
    /// Where the second record of acknowledged writes is stored.
    identity: Option<PathBuf>,
    witness: Option<Witness>,
    snapshots: SnapshotFiles,
    /// `None`: an earlier build made the directory, and it is not converted yet.
    seal: Option<Seal>,
    meta: Meta,
    syncs: u64,
    /// Last: it is released when everything is closed.
    lock: Option<Lock>,
}

/// The directories of the log, of its rewritten form, and of the old log.
pub(super) const LOG: &str = "log";
const NEW_LOG: &str = "log.anew";
const OLD_LOG: &str = "log.doubtful";
/// Bytes of entries in one batch of a rewrite.
const BATCH_BYTES: usize = 4 << 20;

impl EngineDisk {
    pub fn open(dir: &Path, keys: &Keys) -> Result<Self, LogFault> {
        Self::open_in(dir, &Arc::new(DefaultFileSystem), keys, OpenFor::Writing)
    }
}

impl<F: FileSystem> EngineDisk<F> {
    /// Opens a directory whose log is in this file system. A doubtful log is rewritten first, and then a whole directory whose seal is not up
    /// to date.
    pub fn open_in(dir: &Path, fs: &Arc<F>, keys: &Keys, purpose: OpenFor) -> Result<Self, LogFault> {
        reseal::finish_exchange(dir)?;
        make_dir(dir)?;
        let lock = Lock::take(dir)?;
        reseal::carry_marks(dir)?; // a crash came between the exchange and this
        if purpose == OpenFor::Reading && is_marked_for_wipe(dir) {
            return Err(LogFault::io(dir, "it is to be wiped"));
        }
        finish_wipe(dir)?;
        Self::open_locked(dir, fs, keys, (purpose, lock))
    }

    /// Closes the files, and keeps the directory.
    pub fn close(mut self) -> Option<Lock> {
        self.lock.take()
    }

    /// Opens a directory again that this process has closed a moment ago, to rewrite it under the newest key. Others may have marked it
    /// meanwhile.
    pub fn reopen(dir: &Path, fs: &Arc<F>, keys: &Keys, lock: Option<Lock>) -> Result<Self, LogFault> {
        let lock = lock.filter(|lock| lock.is_of(dir));
        let lock = lock.ok_or_else(|| LogFault::io(dir, "it was replaced while it was closed"))?;
        if is_marked_for_wipe(dir) {
            return Err(LogFault::io(dir, "it is to be wiped"));
        }
        if doubt::is_doubtful(dir) {
            return Err(doubt::unsynced(dir)); // the member has everything in memory
        }
        Self::open_locked(dir, fs, keys, (OpenFor::Writing, lock))
    }

    fn open_locked(
        dir: &Path,
        fs: &Arc<F>,
        keys: &Keys,
        (purpose, mut lock): (OpenFor, Lock),
    ) -> Result<Self, LogFault> {
        if let Some(lost) = doubt::lost(dir) {
            return Err(lost);
        }
        // Reports say that the data is not sealed while they are there, and their key stays in the keyring.
        if let Err(fault) = reseal::remove_leftovers(dir) {
            tracing::warn!(%fault, "cannot delete former Raft data");
        }
        if doubt::is_doubtful(dir) {
            Self::rewrite_doubtful(dir, fs, keys)?;
        }
        if purpose == OpenFor::Writing {
            lock = Self::update_seal(dir, fs, keys, lock)?;
        }
        let seal = Seal::of(dir, keys)?;
        let disk = Self::open_log(dir, fs, seal)?;
        Ok(Self { lock: Some(lock), ..disk })
    }

    fn rewrite_doubtful(dir: &Path, fs: &Arc<F>, keys: &Keys) -> Result<(), LogFault> {
        replace_log(dir)?; // a crash came between its two steps
        // A forgotten engine of this process still holds it. The own lock ensures that this directory has one owner.
        let _not_there = std::fs::remove_file(dir.join(LOG).join("LOCK"));
        reseal::on_own_thread(|| {
            let mut disk = Self::open_log(dir, fs, Seal::of(dir, keys)?)?;
            let entries = disk.read_entries()?;
            let Self { meta, log, acked, mut seal, .. } = disk;
            drop(log);
            let meta = Meta { number: meta.number.max(acked.number()) + 1, ..meta };
            rewrite_log(dir, fs, &meta, &entries, seal.as_mut())
        })?;
        tracing::warn!(dir = %dir.display(), "rewrote the Raft log, because an earlier sync had failed");
        Ok(())
    }

    /// New directories are sealed under the newest key. Others are rewritten if they are not, or not under that one.
    fn update_seal(dir: &Path, fs: &Arc<F>, keys: &Keys, lock: Lock) -> Result<Lock, LogFault> {
        if !holds_data(dir) {
            keys.ensure().map_err(|fault| no_key(keys.path(), &fault))?;
            Seal::begin(dir, keys)?;
            return Ok(lock);
        }
        let is_outdated = match SealHead::of(dir)? {
            Some(_) => Seal::of(dir, keys)?.is_some_and(|seal| seal.is_outdated(keys)),
            None => reseal::may_be_sealed(dir, fs, keys)?,
        };
        if is_outdated {
            return reseal::reseal(dir, fs, (keys, lock), &mut |_| Ok(()));
        }
        reseal::drop_old_keys(dir, keys);
        Ok(lock)
    }

    /// Reopens a directory in which a sync failed, for a member that has all of its data in memory: `write` is all of it. Blocks.
    pub fn renew(dir: &Path, fs: &Arc<F>, keys: &Keys, job: &SnapshotJob, write: &Durable) -> Result<Self, LogFault> {
        let lock = Lock::take(dir)?;
        let (head, data) = job.run();
        let mut seal = Seal::of(dir, keys)?;
        SnapshotFiles::new(dir, seal.as_ref().map(Seal::for_files)).store(&head, &data)?;
        let meta = Meta {
            number: Acked::open(dir, seal.is_some())?.number() + 1,
            generation: 0,
            member_id: write.start_over,
            hard: write.hard,
            truncated: LogPoint { index: head.index, term: head.term },
            snapshot: Some(head),
        };
        rewrite_log(dir, fs, &meta, &write.entries, seal.as_mut())?;
        tracing::warn!(dir = %dir.display(), "a sync failed; rewrote the Raft log into new files");
        let disk = Self::open_log(dir, fs, seal)?;
        disk.snapshots.forget_before(job.index);
        Ok(Self { lock: Some(lock), ..disk })
    }

    /// Opens the files. The caller holds the lock.
    pub(super) fn open_log(dir: &Path, fs: &Arc<F>, seal: Option<Seal>) -> Result<Self, LogFault> {
        if seal.is_none() && acked::is_sealed(dir) {
            return Err(LogFault::damaged(dir.join(seal::FILE), "the description of the seal is missing"));
        }
        let acked = Acked::open(dir, seal.is_some())?;
        if tail::drop_torn_record(&dir.join(LOG)).map_err(|e| LogFault::io(dir.join(LOG), e))? {
            tracing::warn!(dir = %dir.display(), "dropped an incomplete record at the end of the Raft log");
        }
        let log = Log::open(dir, LOG, fs)?;
        sync_dir(dir).map_err(|e| LogFault::io(dir, e))?;
        let snapshots = SnapshotFiles::new(dir, seal.as_ref().map(Seal::for_files));
        let (meta, witness, identity) = (Meta::default(), None, Witness::identity_dir(dir));
        let dir = dir.to_owned();
        let mut disk = Self { dir, log, acked, identity, witness, snapshots, seal, meta, syncs: 0, lock: None };
        disk.meta = disk.read_meta()?;
        disk.check_witness()?;
        Ok(disk)
    }

    /// Everything but the snapshot.
    pub(super) fn content(&mut self) -> Result<Content, LogFault> {
        Ok(Content { entries: self.read_entries()?, meta: self.meta.clone() })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// For writers of snapshots on other threads.
    pub fn snapshot_files(&self) -> &SnapshotFiles {
        &self.snapshots
    }

    /// Compares with the number beside the identity, to detect a directory restored from an older copy.
    fn check_witness(&mut self) -> Result<(), LogFault> {
        let (Some(identity), Some(member_id)) = (&self.identity, self.meta.member_id) else { return Ok(()) };
        let Some(witness) = Witness::open(identity, member_id) else { return Ok(()) };
        let (found, acked) = (self.meta.number, witness.number());
        if acked > found {
            let file = witness.path().display();
            let why =
                format!("the log ends with write {found}, but {file} records that write {acked} was acknowledged");
            return Err(self.damaged(why));
        }
        self.witness = Some(witness);
        Ok(())
    }

    /// A new member id has a new witness.
    fn update_witness(&mut self) -> Result<(), LogFault> {
        let (Some(identity), Some(member_id)) = (&self.identity, self.meta.member_id) else { return Ok(()) };
        if self.witness.as_ref().is_none_or(|w| w.member_id() != member_id) {
            self.witness = Witness::open(identity, member_id);
        }
        self.witness.as_mut().map_or(Ok(()), |witness| witness.record(self.meta.number))
    }

    fn damaged(&self, why: impl ToString) -> LogFault {
        LogFault::damaged(suspect(&self.dir), why)
    }

    fn read_meta(&mut self) -> Result<Meta, LogFault> {
        let stored = self.log.engine()?.get(META_GROUP, META);
        let opened = match (stored, &mut self.seal) {
            (Some(record), Some(seal)) => {
                Some(seal.open_meta(&record).map_err(|why| fault_of(suspect(&self.dir), why))?)
            }
            (stored, _) => stored,
        };
        let meta: Meta = match opened {
            Some(bytes) => decode_stored(&bytes).map_err(|e| self.damaged(e))?,
            None => Meta::default(),
        };
        let (found, acked) = (meta.number, self.acked.number());
        if found > 0 && self.acked.is_new() {
            let why = format!("no record of acknowledged writes, beside a log of {found} writes");
            return Err(LogFault::damaged(self.acked.path(), why));
        }
        if found < acked {
            return Err(self.damaged(format!("the log ends with write {found}, but write {acked} was acknowledged")));
        }
        Ok(meta)
    }

    fn read_entries(&mut self) -> Result<Vec<Entry>, LogFault> {
        let (group, begin) = (self.meta.entries_group(), self.meta.truncated.index + 1);
        let engine = self.log.engine()?;
        let Some(last) = engine.last_index(group).filter(|last| *last >= begin) else { return Ok(Vec::new()) };
        let first = engine.first_index(group).unwrap_or(last);
        if first > begin {
            return Err(self.damaged(format!("the log begins at entry {first}, the snapshot needs {begin}")));
        }
        let mut entries = Vec::new();
        let fetched = engine.fetch_entries_to::<Entries>(group, begin, last + 1, None, &mut entries);
        fetched.map_err(|e| self.damaged(e))?;
        let mut term = self.meta.truncated.term;
        for (entry, index) in entries.iter().zip(begin..) {
            if entry.index != index || entry.term < term {
                return Err(self.damaged(format!("entry {index} does not follow the previous one")));
            }
            term = entry.term;
        }
        if begin + entries.len() as u64 != last + 1 {
            return Err(self.damaged(format!("entries are missing before {last}")));
        }
        if let Some(seal) = &mut self.seal {
            let open = |stored: Entry| seal.open_entry(group, &stored);
            let opened: Result<Vec<Entry>, _> = entries.into_iter().map(open).collect();
            return opened.map_err(|why| fault_of(suspect(&self.dir), why));
        }
        Ok(entries)
    }

    /// Adds one write to a batch. A snapshot is on disk before the batch names it.
    fn add(&mut self, batch: &mut LogBatch, write: &Durable) -> Result<(), LogFault> {
        if write.start_over.is_some() || write.install.is_some() {
            batch.add_command(self.meta.entries_group(), Command::Clean);
            self.meta.generation += 1;
        }
        if let Some(member_id) = write.start_over {
            let Meta { number, generation, .. } = self.meta;
            self.meta = Meta { number, generation, member_id: Some(member_id), ..Meta::default() };
        }
        if let Some((head, data)) = &write.install {
            self.snapshots.store(head, data)?;
            self.meta.snapshot = Some(head.clone());
            self.meta.truncated = LogPoint { index: head.index, term: head.term };
        }
        self.meta.hard = write.hard;
        let group = self.meta.entries_group();
        add_entries(batch, group, &write.entries, self.seal.as_mut()).map_err(|e| LogFault::io(&self.dir, e))?;
        if let Some(compact) = write.compact.as_ref().filter(|compact| self.snapshots.holds(&compact.head)) {
            batch.add_command(group, Command::Compact { index: compact.keep_after.index + 1 });
            self.meta.snapshot = Some(compact.head.clone());
            self.meta.truncated = compact.keep_after;
        }
        Ok(())
    }

    /// Called when there is nothing to do, and now and then.
    pub fn rest(&mut self) -> Result<(), LogFault> {
        self.syncs += u64::from(self.acked.sync()?);
        if let Some(witness) = &mut self.witness {
            self.syncs += u64::from(witness.sync()?);
        }
        Ok(())
    }

    /// How often the log and `acked` waited for the disk. Does not count snapshot files, every few thousand entries, and what
    /// raft-engine rewrites then.
    pub fn syncs(&self) -> u64 {
        self.syncs
    }
}

impl<F: FileSystem> LogDisk for EngineDisk<F> {
    fn recover(&mut self) -> Result<Recovered, LogFault> {
        let entries = self.read_entries()?;
        let Meta { member_id, hard, snapshot, truncated, .. } = self.meta.clone();
        let last = entries.last().map_or(truncated, |e| LogPoint { index: e.index, term: e.term });
        let base = snapshot.as_ref().map_or(0, |head| head.index);
        if last.index < hard.commit
            || last.term > hard.term.max(truncated.term)
            || truncated.index > base
            || last.index < base
        {
            return Err(self.damaged(format!(
                "the log ends with entry {} of term {}, but the commit index is {}, the term is {} and the snapshot is at {base}",
                last.index, last.term, hard.commit, hard.term
            )));
        }
        self.snapshots.forget_others(snapshot.as_ref());
        let snapshot = match snapshot {
            None => None,
            Some(head) => {
                let data = self.snapshots.load(&head)?;
                let tables = muster_store::snapshot::decode(&data)
                    .map_err(|e| LogFault::of_snapshot(self.dir.join("snapshot"), &e))?;
                Some((head, tables))
            }
        };
        Ok(Recovered { member_id, hard, snapshot, truncated, entries })
    }

    fn write(&mut self, writes: &[Durable]) -> Result<(), LogFault> {
        if writes.is_empty() {
            return Ok(());
        }
        let mut batch = LogBatch::with_capacity(writes.len());
        let base = self.meta.snapshot.as_ref().map(|head| head.index);
        // It was written into a directory that was exchanged meanwhile: under the former key, if it is here. The log keeps what it would
        // replace, and the member has no second snapshot in progress.
        let misses =
            |write: &Durable| write.compact.as_ref().is_some_and(|compact| !self.snapshots.holds(&compact.head));
        let snapshot_is_missing = writes.iter().any(misses);
        for write in writes {
            self.add(&mut batch, write)?;
        }
        self.meta.number += 1;
        put_meta(&mut batch, &self.meta, self.seal.as_mut()).map_err(|e| LogFault::io(&self.dir, e))?;
        let sync = writes.iter().any(|w| w.sync);
        self.log.write(&mut batch, sync)?;
        if snapshot_is_missing {
            tracing::info!(dir = %self.dir.display(), "a snapshot is not in the Raft directory; the log keeps what it would replace");
            self.snapshots.forget_others(self.meta.snapshot.as_ref());
        }
        if sync {
            self.syncs += 1;
            self.acked.record(self.meta.number)?;
            self.update_witness()?;
        }
        let newer = self.meta.snapshot.as_ref().map(|head| head.index).filter(|index| Some(*index) != base);
        if let Some(index) = newer {
            self.snapshots.forget_before(index);
        }
        if newer.is_some() || self.meta.number.is_multiple_of(PURGE_EVERY) {
            self.log.syncing(|engine| engine.purge_expired_files())?;
        }
        Ok(())
    }
}

fn add_entries(
    batch: &mut LogBatch,
    group: u64,
    entries: &[Entry],
    seal: Option<&mut Seal>,
) -> raft_engine::Result<()> {
    let Some(seal) = seal else { return batch.add_entries::<Entries>(group, entries) };
    let sealed: Vec<Entry> = entries.iter().map(|entry| seal.seal_entry(group, entry)).collect();
    batch.add_entries::<Entries>(group, &sealed)
}

fn put_meta(batch: &mut LogBatch, meta: &Meta, seal: Option<&mut Seal>) -> std::io::Result<()> {
    let text = encode_stored(meta).map_err(std::io::Error::other)?;
    let record = match seal {
        None => text,
        Some(seal) => seal.seal_meta(&text),
    };
    batch.put(META_GROUP, META.to_vec(), record).map_err(std::io::Error::other)
}

/// Writes a log into a new folder, durably.
pub(super) fn write_log<F: FileSystem>(
    (dir, name): (&Path, &str),
    fs: &Arc<F>,
    meta: &Meta,
    entries: &[Entry],
    mut seal: Option<&mut Seal>,
) -> Result<(), LogFault> {
    let io = |e| LogFault::io(dir.join(name), e);
    let mut log = Log::open(dir, name, fs)?;
    let mut rest = entries;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = rest.iter().take_while(|e| {
            bytes += e.data.len() + e.context.len();
            bytes <= BATCH_BYTES
        });
        let (now, later) = rest.split_at(fits.count().max(1));
        let mut batch = LogBatch::default();
        let group = meta.entries_group();
        add_entries(&mut batch, group, now, seal.as_deref_mut()).map_err(|e| LogFault::io(dir, e))?;
        log.write(&mut batch, true)?;
        rest = later;
    }
    let mut batch = LogBatch::default();
    put_meta(&mut batch, meta, seal).map_err(io)?;
    log.write(&mut batch, true)?;
    drop(log);
    sync_dir(&dir.join(name)).map_err(io)
}

/// Writes a log into new files that replace the old ones. Crash-safe: the old directory is the log until it is renamed, then the
/// new one.
fn rewrite_log<F: FileSystem>(
    dir: &Path,
    fs: &Arc<F>,
    meta: &Meta,
    entries: &[Entry],
    seal: Option<&mut Seal>,
) -> Result<(), LogFault> {
    let io = |e| LogFault::io(dir.join(NEW_LOG), e);
    remove_all(&dir.join(NEW_LOG)).map_err(io)?;
    write_log((dir, NEW_LOG), fs, meta, entries, seal)?;
    remove_all(&dir.join(OLD_LOG)).map_err(io)?;
    std::fs::rename(dir.join(LOG), dir.join(OLD_LOG)).map_err(io)?;
    replace_log(dir)
}

/// Completes a rewrite whose first half is done.
fn replace_log(dir: &Path) -> Result<(), LogFault> {
    let replace = || -> std::io::Result<()> {
        if !dir.join(LOG).exists() && dir.join(NEW_LOG).exists() {
            sync_dir(dir)?;
            std::fs::rename(dir.join(NEW_LOG), dir.join(LOG))?;
            sync_dir(dir)?;
            remove_all(&dir.join(OLD_LOG))?;
            doubt::clear_doubt(dir)?;
        }
        Ok(())
    };
    replace().map_err(|e| LogFault::io(dir.join(LOG), e))
}
