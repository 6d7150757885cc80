//! The thread that owns the disk.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use muster_kernel::Beside;
use muster_sealing::Keys;
use raft_engine::env::{DefaultFileSystem, FileSystem};
use tokio::runtime::Handle;

use super::doubt;
use super::engine::{EngineDisk, OpenFor};
use super::files::SnapshotFiles;
use super::{LogDisk, LogFault};
use crate::core::{Durable, Recovered, SnapshotJob};

/// After this time without work, the acknowledged number is synced, too.
const ACKED_SYNC_DELAY: Duration = Duration::from_millis(500);
/// And after this many batches under constant load.
const ACKED_SYNC_BATCHES: u64 = 10_000;

const IDLE_WAIT: Duration = Duration::from_secs(3600);

/// How often a disk that a test made to hang checks whether it still should.
const HANG_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Reports of the thread.
#[derive(Debug)]
pub(crate) enum Report {
    /// [`DiskThread::persisted`] changed.
    Persisted,
    /// The thread failed; nothing more will be written.
    Failed(LogFault),
}

type Listener = Box<dyn Fn(Report) + Send>;

enum Job {
    Write(Vec<Durable>),
    Listen(Listener),
    Show(Beside),
    HangWhile(PathBuf),
}

/// The shell's end. When it is dropped, the thread finishes its current write and releases the directory.
pub(crate) struct DiskThread {
    jobs: Sender<Job>,
    counts: Arc<Counts>,
    snapshots: SnapshotFiles,
}

/// Counters and the failure that the thread publishes.
#[derive(Default)]
struct Counts {
    persisted: AtomicU64,
    syncs: AtomicU64,
    /// Why the thread ended.
    failed: Mutex<Option<LogFault>>,
}

impl DiskThread {
    /// Opens the directory on its own thread and waits for the recovered data. Blocks.
    pub fn open(dir: &Path, keys: &Keys) -> Result<(Self, Recovered), LogFault> {
        Self::open_in(dir, &Arc::new(DefaultFileSystem), keys, OpenFor::Writing)
    }

    /// The same in another file system.
    pub fn open_in<F>(dir: &Path, fs: &Arc<F>, keys: &Keys, purpose: OpenFor) -> Result<(Self, Recovered), LogFault>
    where
        F: FileSystem + 'static,
    {
        let (opened, answer) = mpsc::sync_channel(1);
        let (path, fs, keys) = (dir.to_owned(), Arc::clone(fs), keys.clone());
        let open = move || -> Result<_, LogFault> {
            let mut disk = EngineDisk::open_in(&path, &fs, &keys, purpose)?;
            let found = (disk.recover()?, disk.snapshot_files().clone());
            Ok((disk, found))
        };
        let disk = Self::spawn(dir, 0, move || match open() {
            Ok((disk, found)) => opened.send(Ok(found)).ok().map(|()| Ok(disk)),
            Err(fault) => {
                let _gave_up = opened.send(Err(fault));
                None
            }
        })?;
        let found = answer.recv().unwrap_or_else(|_| Err(LogFault::damaged(dir, "reading it panicked")));
        let (recovered, snapshots) = found?;
        Ok((Self { snapshots, ..disk }, recovered))
    }

    /// After an `Unsynced` [`LogFault`]: rewrites everything into new files, on its own thread, and continues from there. Does not
    /// block: `Persisted` reports when all of `write` is durable. Writes queued meanwhile follow it.
    pub fn renew<F>(
        &self,
        dir: &Path,
        fs: &Arc<F>,
        keys: &Keys,
        (job, write): (SnapshotJob, Durable),
    ) -> Result<Self, LogFault>
    where
        F: FileSystem + 'static,
    {
        let (path, fs, keys, number) = (dir.to_owned(), Arc::clone(fs), keys.clone(), write.number);
        let disk = Self::spawn(dir, number, move || Some(EngineDisk::renew(&path, &fs, &keys, &job, &write)))?;
        Ok(Self { snapshots: self.snapshots.clone(), ..disk })
    }

    /// `number`: the last write that is durable once the disk is open. `None` from `open`: its caller no longer waits.
    fn spawn<F>(
        dir: &Path,
        number: u64,
        open: impl FnOnce() -> Option<Result<EngineDisk<F>, LogFault>> + Send + 'static,
    ) -> Result<Self, LogFault>
    where
        F: FileSystem + 'static,
    {
        let (jobs, inbox) = mpsc::channel();
        let counts = Arc::<Counts>::default();
        let (path, counted) = (dir.to_owned(), Arc::clone(&counts));
        let runtime = Handle::try_current();
        let run = move || {
            // A panic or error of this thread counts for its actor's runtime, where tests watch for them.
            let _entered = runtime.as_ref().ok().map(Handle::enter);
            let mut listener = None;
            let served = catch_unwind(AssertUnwindSafe(|| match open() {
                None => Ok(()),
                Some(disk) => {
                    let disk = disk?;
                    counted.persisted.store(number, Ordering::Release);
                    serve(disk, number > 0, &inbox, &counted, &mut listener)
                }
            }));
            let fault = served.unwrap_or_else(|_| {
                doubt::mark_doubtful(&path);
                Err(doubt::unsynced(&path))
            });
            let Err(fault) = fault else { return };
            *counted.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault.clone());
            // It may still be queued.
            let late =
                inbox.try_iter().filter_map(|job| if let Job::Listen(new) = job { Some(new) } else { None }).last();
            if let Some(notify) = late.or(listener) {
                notify(Report::Failed(fault));
            }
        };
        let started = thread::Builder::new().name("raft-disk".to_owned()).spawn(run);
        started.map_err(|e| LogFault::io(dir, e))?;
        Ok(Self { jobs, counts, snapshots: SnapshotFiles::new(dir, None) })
    }
    /// The snapshot files of the directory, for writers on other threads.
    pub fn snapshot_files(&self) -> &SnapshotFiles {
        &self.snapshots
    }
    /// Sets the listener. Earlier `Report`s are not repeated, but `persisted` counts them.
    pub fn listen(&self, listener: Listener) {
        let _gone = self.jobs.send(Job::Listen(listener));
    }
    /// Where the thread shows its current work, so that a hung disk is visible.
    pub fn show(&self, beside: Beside) {
        let _gone = self.jobs.send(Job::Show(beside));
    }
    /// From now on no write begins while this file exists: for tests that make a disk hang.
    pub fn hang_while(&self, file: PathBuf) {
        let _gone = self.jobs.send(Job::HangWhile(file));
    }
    /// Queues writes.
    pub fn write(&self, writes: Vec<Durable>) -> Result<(), LogFault> {
        self.jobs.send(Job::Write(writes)).map_err(|_| {
            let failed = self.counts.failed.lock().unwrap_or_else(PoisonError::into_inner).clone();
            failed.unwrap_or_else(|| LogFault::io("raft", "the disk thread has ended"))
        })
    }
    /// The number of the last write that is durable.
    pub fn persisted(&self) -> u64 {
        self.counts.persisted.load(Ordering::Acquire)
    }
    /// See [`EngineDisk::syncs`].
    pub fn syncs(&self) -> u64 {
        self.counts.syncs.load(Ordering::Relaxed)
    }
}

/// Writes everything queued as one batch with one sync, until the other end is dropped.
fn serve<F: FileSystem>(
    mut disk: EngineDisk<F>,
    mut news: bool,
    inbox: &Receiver<Job>,
    counts: &Counts,
    listener: &mut Option<Listener>,
) -> Result<(), LogFault> {
    let (mut row, mut hangs_while): (Option<Beside>, Option<PathBuf>) = (None, None);
    let mut batches = 0;
    let mut rested = true;
    loop {
        let first = match inbox.recv_timeout(if rested { IDLE_WAIT } else { ACKED_SYNC_DELAY }) {
            Ok(job) => job,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                let _activity = row.as_ref().map(|row| row.begin("rest"));
                disk.rest()?;
                counts.syncs.store(disk.syncs(), Ordering::Relaxed);
                rested = true;
                continue;
            }
        };
        let mut writes: Vec<Durable> = Vec::new();
        for job in std::iter::once(first).chain(inbox.try_iter()) {
            match job {
                Job::Write(more) => writes.extend(more),
                Job::Listen(new) => *listener = Some(new),
                Job::Show(beside) => row = Some(beside),
                Job::HangWhile(file) => hangs_while = Some(file),
            }
        }
        // The directory was rewritten before there was a listener.
        if let Some(notify) = listener.as_ref().filter(|_| news) {
            news = false;
            notify(Report::Persisted);
        }
        let Some(number) = writes.last().map(|w| w.number) else { continue };
        let activity = row.as_ref().map(|row| row.begin("write"));
        while hangs_while.as_ref().is_some_and(|file| file.exists()) {
            thread::sleep(HANG_POLL_INTERVAL);
        }
        disk.write(&writes)?;
        drop(activity);
        counts.syncs.store(disk.syncs(), Ordering::Relaxed);
        counts.persisted.store(number, Ordering::Release);
        if let Some(notify) = listener {
            notify(Report::Persisted);
        }
        batches += 1;
        rested = false;
        if u64::is_multiple_of(batches, ACKED_SYNC_BATCHES) {
            disk.rest()?;
        }
    }
}
