//! raft-engine, opened so that its panics are faults: it panics when a sync fails, and on a log that was tampered with.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use raft_engine::env::FileSystem;
use raft_engine::{Config, Engine, LogBatch, MessageExt, ReadableSize, RecoveryMode};

use super::{LogFault, doubt};
use crate::core::Entry;

/// How raft-engine reads an entry.
pub(super) struct Entries;
impl MessageExt for Entries {
    type Entry = Entry;
    fn index(e: &Entry) -> u64 {
        e.index
    }
}

/// raft-engine, which panics when a sync fails. Dropping it syncs once more: after a failure it is forgotten instead, because a
/// panic during unwinding aborts the process.
pub(super) struct Log<F: FileSystem> {
    dir: PathBuf,
    /// `None` after a failed sync.
    engine: Option<Engine<F>>,
}

impl<F: FileSystem> Log<F> {
    pub fn open(dir: &Path, name: &str, fs: &Arc<F>) -> Result<Self, LogFault> {
        let config = config(dir, name);
        // A log that was tampered with may violate raft-engine's assertions.
        match catch_unwind(AssertUnwindSafe(|| Engine::open_with_file_system(config, Arc::clone(fs)))) {
            Ok(Ok(engine)) => Ok(Self { dir: dir.to_owned(), engine: Some(engine) }),
            Ok(Err(raft_engine::Error::Io(e))) => Err(LogFault::io(dir.join(name), e)),
            // Another process uses the directory: the data is not damaged. raft-engine has no kind of error for it, only a text among
            // its `Other` ones. With another text it would be reported as damage.
            Ok(Err(e)) if e.to_string().contains("lock file") => Err(LogFault::io(dir.join(name), e)),
            Ok(Err(e)) => Err(LogFault::damaged(suspect(dir), e)),
            // Opening syncs a new file. A failing disk says nothing about the data.
            Err(panic) if names_an_io_error(&*panic) => Err(LogFault::io(dir.join(name), "cannot sync a file")),
            Err(_) => Err(LogFault::damaged(suspect(dir), "the log contradicts itself")),
        }
    }
    pub fn engine(&self) -> Result<&Engine<F>, LogFault> {
        self.engine.as_ref().ok_or_else(|| doubt::unsynced(&self.dir))
    }
    /// Runs an operation that may sync. `Unsynced` after a panic: the directory is marked, and the engine is forgotten.
    pub fn syncing<T>(&mut self, act: impl FnOnce(&Engine<F>) -> raft_engine::Result<T>) -> Result<(), LogFault> {
        let engine = self.engine()?;
        match catch_unwind(AssertUnwindSafe(|| act(engine).map(drop))) {
            Ok(done) => done.map_err(|e| LogFault::io(&self.dir, e)),
            Err(_) => {
                std::mem::forget(self.engine.take());
                doubt::mark_doubtful(&self.dir);
                Err(doubt::unsynced(&self.dir))
            }
        }
    }
    pub fn write(&mut self, batch: &mut LogBatch, sync: bool) -> Result<(), LogFault> {
        self.syncing(|engine| engine.write(batch, sync))
    }
}

impl<F: FileSystem> Drop for Log<F> {
    /// Writes without `sync` may still fail here.
    fn drop(&mut self) {
        if self.engine.is_some() {
            let _forgotten_if_it_fails = self.syncing(|engine| engine.sync());
        }
    }
}

/// Whether a panic of raft-engine was caused by an unexpected error of the operating system.
fn names_an_io_error(panic: &(dyn std::any::Any + Send)) -> bool {
    panic.downcast_ref::<String>().is_some_and(|text| text.contains("Os { code"))
}

fn config(dir: &Path, name: &str) -> Config {
    Config {
        dir: dir.join(name).to_string_lossy().into_owned(),
        // The numbers in `acked` distinguish a torn tail from lost acknowledged data; `AbsoluteConsistency` would refuse to start
        // after every kill, because files are preallocated and end in zeros.
        recovery_mode: RecoveryMode::TolerateTailCorruption,
        recovery_threads: 1,
        // Entries are small and latency matters.
        batch_compression_threshold: ReadableSize(0),
        // A snapshot is taken every 32 MiB at the latest: files of a quarter of that, purged once they hold two snapshots' worth.
        target_file_size: ReadableSize::mb(8),
        purge_threshold: ReadableSize::mb(64),
        purge_rewrite_threshold: Some(ReadableSize::mb(16)),
        enable_log_recycle: false,
        ..Config::default()
    }
}

/// The file to name when the log is damaged: the first that cannot be read to its end, else the last, whose tail may have been
/// dropped.
pub(super) fn suspect(dir: &Path) -> PathBuf {
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
