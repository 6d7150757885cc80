//! The log on raft-engine.
//!
//! Two kinds of groups: group 1 holds one key, `meta`, written with every batch; the entries are in a group of their
//! own per generation. A new seat or an installed snapshot begins a new generation, so that nothing old can show through.
//! raft-engine may bring compacted entries back after a restart: `meta` says where the log begins.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use muster_messages::RaftId;
use muster_messages::wire::{SnapshotHead, decode_stored, encode_stored};
use raft_engine::{Command, Config, Engine, LogBatch, MessageExt, ReadableSize, RecoveryMode};
use serde::{Deserialize, Serialize};

use super::acked::Acked;
use super::files::{Lock, SnapshotFiles, finish_wipe, make_dir, sync_dir};
use super::{LogDisk, LogFault};
use crate::core::{Durable, Entry, HardMark, LogPoint, Recovered};

const META_GROUP: u64 = 1;
const META: &[u8] = b"meta";
/// Batches between two looks for files that can go; a look costs microseconds.
const PURGE_EVERY: u64 = 4096;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Meta {
    /// Of this batch. Grows by one with each.
    number: u64,
    generation: u64,
    seat: Option<RaftId>,
    hard: HardMark,
    snapshot: Option<SnapshotHead>,
    truncated: LogPoint,
}

impl Meta {
    fn entries_group(&self) -> u64 {
        META_GROUP + 1 + self.generation
    }
}

struct Entries;
impl MessageExt for Entries {
    type Entry = Entry;
    fn index(e: &Entry) -> u64 {
        e.index
    }
}

/// A directory, opened. Use it from one thread that opens nothing else (raft-engine caches blocks per thread, by position alone).
pub(crate) struct EngineDisk {
    dir: PathBuf,
    engine: Engine,
    acked: Acked,
    snapshots: SnapshotFiles,
    meta: Meta,
    syncs: u64,
    _lock: Lock,
}

fn config(dir: &Path) -> Config {
    Config {
        dir: dir.join("log").to_string_lossy().into_owned(),
        // The numbers in `acked` tell a torn tail from lost acknowledged data; `AbsoluteConsistency` would refuse to
        // start after every kill, because files are allocated ahead and end in zeros.
        recovery_mode: RecoveryMode::TolerateTailCorruption,
        recovery_threads: 1,
        // Entries are small and latency counts.
        batch_compression_threshold: ReadableSize(0),
        // A snapshot is taken every 32 MiB at the latest: files a quarter of that, and purged once two snapshots' worth is there.
        target_file_size: ReadableSize::mb(8),
        purge_threshold: ReadableSize::mb(64),
        purge_rewrite_threshold: Some(ReadableSize::mb(16)),
        enable_log_recycle: false,
        ..Config::default()
    }
}

impl EngineDisk {
    pub fn open(dir: &Path) -> Result<Self, LogFault> {
        make_dir(dir)?;
        let lock = Lock::take(dir)?;
        finish_wipe(dir)?;
        let acked = Acked::open(dir)?;
        let config = config(dir);
        // A log that was tampered with may violate what raft-engine asserts.
        let engine = match catch_unwind(AssertUnwindSafe(|| Engine::open(config))) {
            Ok(Ok(engine)) => engine,
            Ok(Err(raft_engine::Error::Io(e))) => return Err(LogFault::io(dir.join("log"), e)),
            Ok(Err(e)) => return Err(LogFault::damaged(suspect(dir), e)),
            Err(_) => return Err(LogFault::damaged(suspect(dir), "it contradicts itself")),
        };
        sync_dir(dir).map_err(|e| LogFault::io(dir, e))?;
        let snapshots = SnapshotFiles::in_dir(dir);
        let mut disk =
            Self { dir: dir.to_owned(), engine, acked, snapshots, meta: Meta::default(), syncs: 0, _lock: lock };
        disk.meta = disk.read_meta()?;
        Ok(disk)
    }

    fn damaged(&self, why: impl ToString) -> LogFault {
        LogFault::damaged(suspect(&self.dir), why)
    }

    fn read_meta(&self) -> Result<Meta, LogFault> {
        let meta = match self.engine.get(META_GROUP, META) {
            Some(bytes) => decode_stored(&bytes).map_err(|e| self.damaged(e))?,
            None => Meta::default(),
        };
        let (found, acked) = (meta.number, self.acked.number());
        if found < acked {
            return Err(self.damaged(format!("the log ends with write {found}, but write {acked} was acknowledged")));
        }
        Ok(meta)
    }

    fn read_entries(&self) -> Result<Vec<Entry>, LogFault> {
        let (group, begin) = (self.meta.entries_group(), self.meta.truncated.index + 1);
        let Some(last) = self.engine.last_index(group).filter(|last| *last >= begin) else { return Ok(Vec::new()) };
        let first = self.engine.first_index(group).unwrap_or(last);
        if first > begin {
            return Err(self.damaged(format!("the log begins at entry {first}, the snapshot needs {begin}")));
        }
        let mut entries = Vec::new();
        let fetched = self.engine.fetch_entries_to::<Entries>(group, begin, last + 1, None, &mut entries);
        fetched.map_err(|e| self.damaged(e))?;
        let mut term = self.meta.truncated.term;
        for (entry, index) in entries.iter().zip(begin..) {
            if entry.index != index || entry.term < term {
                return Err(self.damaged(format!("entry {index} does not join the one before")));
            }
            term = entry.term;
        }
        if begin + entries.len() as u64 != last + 1 {
            return Err(self.damaged(format!("entries are missing before {last}")));
        }
        Ok(entries)
    }

    /// Adds one write to a batch. What a snapshot needs is on disk before the batch names it.
    fn add(&mut self, batch: &mut LogBatch, write: &Durable) -> Result<(), LogFault> {
        if write.start_over.is_some() || write.install.is_some() {
            batch.add_command(self.meta.entries_group(), Command::Clean);
            self.meta.generation += 1;
        }
        if let Some(seat) = write.start_over {
            let Meta { number, generation, .. } = self.meta;
            self.meta = Meta { number, generation, seat: Some(seat), ..Meta::default() };
        }
        if let Some((head, data)) = &write.install {
            self.snapshots.store(head, data)?;
            self.meta.snapshot = Some(head.clone());
            self.meta.truncated = LogPoint { index: head.index, term: head.term };
        }
        self.meta.hard = write.hard;
        let group = self.meta.entries_group();
        batch.add_entries::<Entries>(group, &write.entries).map_err(|e| LogFault::io(&self.dir, e))?;
        if let Some(compact) = &write.compact {
            batch.add_command(group, Command::Compact { index: compact.keep_after.index + 1 });
            self.meta.snapshot = Some(compact.head.clone());
            self.meta.truncated = compact.keep_after;
        }
        Ok(())
    }

    /// Called when there is nothing to do, and now and then.
    pub fn rest(&mut self) -> Result<(), LogFault> {
        self.syncs += u64::from(self.acked.sync()?);
        Ok(())
    }

    /// How often the disk was waited for, by the log and by `acked`. Files of snapshots, every few thousand entries, and
    /// what raft-engine rewrites then do not count.
    pub fn syncs(&self) -> u64 {
        self.syncs
    }
}

impl LogDisk for EngineDisk {
    fn recover(&mut self) -> Result<Recovered, LogFault> {
        let entries = self.read_entries()?;
        let Meta { seat, hard, snapshot, truncated, .. } = self.meta.clone();
        let last = entries.last().map_or(truncated, |e| LogPoint { index: e.index, term: e.term });
        let base = snapshot.as_ref().map_or(0, |head| head.index);
        if last.index < hard.commit
            || last.term > hard.term.max(truncated.term)
            || truncated.index > base
            || last.index < base
        {
            return Err(self.damaged(format!(
                "the log ends with entry {} of term {}; committed is {}, the term is {}, the snapshot is at {base}",
                last.index, last.term, hard.commit, hard.term
            )));
        }
        self.snapshots.forget_unfinished();
        let snapshot = match snapshot {
            None => None,
            Some(head) => {
                let data = self.snapshots.load(&head)?;
                let tables = muster_store::snapshot::decode(&data)
                    .map_err(|e| LogFault::of_snapshot(self.dir.join("snapshot"), &e))?;
                Some((head, tables))
            }
        };
        Ok(Recovered { seat, hard, snapshot, truncated, entries })
    }

    fn write(&mut self, writes: &[Durable]) -> Result<(), LogFault> {
        if writes.is_empty() {
            return Ok(());
        }
        let mut batch = LogBatch::with_capacity(writes.len());
        let base = self.meta.snapshot.as_ref().map(|head| head.index);
        for write in writes {
            self.add(&mut batch, write)?;
        }
        self.meta.number += 1;
        let meta = encode_stored(&self.meta).map_err(|e| LogFault::io(&self.dir, e))?;
        batch.put(META_GROUP, META.to_vec(), meta).map_err(|e| LogFault::io(&self.dir, e))?;
        let sync = writes.iter().any(|w| w.sync);
        self.engine.write(&mut batch, sync).map_err(|e| LogFault::io(&self.dir, e))?;
        if sync {
            self.syncs += 1;
            self.acked.record(self.meta.number)?;
        }
        let newer = self.meta.snapshot.as_ref().map(|head| head.index).filter(|index| Some(*index) != base);
        if let Some(index) = newer {
            self.snapshots.forget_before(index);
        }
        if newer.is_some() || self.meta.number.is_multiple_of(PURGE_EVERY) {
            self.engine.purge_expired_files().map_err(|e| LogFault::io(&self.dir, e))?;
        }
        Ok(())
    }
}

impl Drop for EngineDisk {
    fn drop(&mut self) {
        // An owner that goes in peace leaves nothing to a loss of power. If it fails, the file is merely older.
        let _older = self.acked.sync();
    }
}

/// The file to name when the log is damaged: the first that cannot be read to its end, else the last, whose tail may
/// have been dropped.
fn suspect(dir: &Path) -> PathBuf {
    let log = dir.join("log");
    let listing = std::fs::read_dir(&log).map(|l| l.flatten().map(|e| e.path()).collect::<Vec<_>>());
    let mut files = listing.unwrap_or_default();
    files.retain(|f| f.extension().is_some_and(|e| e == "raftlog" || e == "rewrite"));
    files.sort();
    let unreadable =
        |f: &PathBuf| match catch_unwind(|| Engine::dump(f).map(|items| items.into_iter().all(|i| i.is_ok()))) {
            Ok(Ok(whole)) => !whole,
            _ => true,
        };
    let newest = files.iter().rfind(|f| f.extension().is_some_and(|e| e == "raftlog")).cloned();
    files.into_iter().find(unreadable).or(newest).unwrap_or(log)
}
