//! The thread that owns the disk.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use muster_kernel::Beside;
use raft_engine::env::{DefaultFileSystem, FileSystem};
use tokio::runtime::Handle;

use super::doubt;
use super::engine::EngineDisk;
use super::{LogDisk, LogFault};
use crate::core::{Durable, Recovered, SnapshotJob};

/// After this long without work, what was acknowledged is noted for a loss of power, too.
const REST_AFTER: Duration = Duration::from_millis(500);
/// And after this many batches under constant load.
const REST_EVERY: u64 = 10_000;

const A_LONG_TIME: Duration = Duration::from_secs(3600);

/// How often a disk that was told to hang looks whether it still should.
const STILL_HANGS: Duration = Duration::from_millis(10);

/// What the thread says.
#[derive(Debug)]
pub(crate) enum Report {
    /// Look at [`DiskThread::persisted`].
    Persisted,
    /// It cannot go on; nothing more will be written.
    Failed(LogFault),
}

type Listener = Box<dyn Fn(Report) + Send>;

enum Job {
    Write(Vec<Durable>),
    Listen(Listener),
    Show(Beside),
    HangWhile(PathBuf),
}

/// The shell's end. Dropped: the thread finishes its current write and lets go of the directory.
pub(crate) struct DiskThread {
    jobs: Sender<Job>,
    counts: Arc<Counts>,
}

/// What the thread shows of its work.
#[derive(Default)]
struct Counts {
    persisted: AtomicU64,
    syncs: AtomicU64,
    /// Why the thread ended.
    failed: Mutex<Option<LogFault>>,
}

impl DiskThread {
    /// Opens the directory on a thread of its own and waits for what it holds. Blocks.
    pub fn open(dir: &Path) -> Result<(Self, Recovered), LogFault> {
        Self::open_in(dir, &Arc::new(DefaultFileSystem))
    }

    /// The same in another file system.
    pub fn open_in<F>(dir: &Path, fs: &Arc<F>) -> Result<(Self, Recovered), LogFault>
    where
        F: FileSystem + 'static,
    {
        let (opened, answer) = mpsc::sync_channel(1);
        let (path, fs) = (dir.to_owned(), Arc::clone(fs));
        let open =
            move || EngineDisk::open_in(&path, &fs).and_then(|mut disk| disk.recover().map(|found| (disk, found)));
        let disk = Self::spawn(dir, 0, move || match open() {
            Ok((disk, found)) => opened.send(Ok(found)).ok().map(|()| Ok(disk)),
            Err(fault) => {
                let _gave_up = opened.send(Err(fault));
                None
            }
        })?;
        let recovered =
            answer.recv().unwrap_or_else(|_| Err(LogFault::damaged(dir, "reading it made the reader panic")))?;
        Ok((disk, recovered))
    }

    /// After a failure that [`LogFault`] calls `Unsynced`: writes everything anew, into new files, on a thread of its own, and goes
    /// on from there. Does not block: `Persisted` says when all of `write` is durable. What is queued meanwhile comes after it.
    pub fn renew<F>(dir: &Path, fs: &Arc<F>, job: SnapshotJob, write: Durable) -> Result<Self, LogFault>
    where
        F: FileSystem + 'static,
    {
        let (path, fs, number) = (dir.to_owned(), Arc::clone(fs), write.number);
        Self::spawn(dir, number, move || Some(EngineDisk::renew(&path, &fs, &job, &write)))
    }

    /// `number`: of the last write that is durable once the disk is open. `None` from `open`: its caller no longer waits.
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
            // A panic or an error of this thread is one of its actor's runtime: that is where tests listen.
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
            // It may not have been looked at yet.
            let late =
                inbox.try_iter().filter_map(|job| if let Job::Listen(new) = job { Some(new) } else { None }).last();
            if let Some(tell) = late.or(listener) {
                tell(Report::Failed(fault));
            }
        };
        let started = thread::Builder::new().name("raft-disk".to_owned()).spawn(run);
        started.map_err(|e| LogFault::io(dir, e))?;
        Ok(Self { jobs, counts })
    }
    /// Whom it tells. `Report`s before this are not repeated, but `persisted` counts them.
    pub fn listen(&self, listener: Listener) {
        let _gone = self.jobs.send(Job::Listen(listener));
    }
    /// Where it shows what it is at: that is where a hung disk can be seen.
    pub fn show(&self, beside: Beside) {
        let _gone = self.jobs.send(Job::Show(beside));
    }
    /// From now on no write begins while this file exists: how a test makes a disk hang.
    pub fn hang_while(&self, file: PathBuf) {
        let _gone = self.jobs.send(Job::HangWhile(file));
    }
    /// Queues writes.
    pub fn write(&self, writes: Vec<Durable>) -> Result<(), LogFault> {
        self.jobs.send(Job::Write(writes)).map_err(|_| {
            let failed = self.counts.failed.lock().unwrap_or_else(PoisonError::into_inner).clone();
            failed.unwrap_or_else(|| LogFault::io("raft", "the disk's thread is gone"))
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

/// Writes whatever has queued up as one batch with one sync, until the other end is dropped.
fn serve<F: FileSystem>(
    mut disk: EngineDisk<F>,
    mut news: bool,
    inbox: &Receiver<Job>,
    counts: &Counts,
    listener: &mut Option<Listener>,
) -> Result<(), LogFault> {
    let (mut shown, mut hangs_while): (Option<Beside>, Option<PathBuf>) = (None, None);
    let mut batches = 0;
    let mut rested = true;
    loop {
        let first = match inbox.recv_timeout(if rested { A_LONG_TIME } else { REST_AFTER }) {
            Ok(job) => job,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                let _at_it = shown.as_ref().map(|shown| shown.begin("rest"));
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
                Job::Show(beside) => shown = Some(beside),
                Job::HangWhile(file) => hangs_while = Some(file),
            }
        }
        // The directory was written anew before anybody listened.
        if let Some(tell) = listener.as_ref().filter(|_| news) {
            news = false;
            tell(Report::Persisted);
        }
        let Some(number) = writes.last().map(|w| w.number) else { continue };
        let at_it = shown.as_ref().map(|shown| shown.begin("write"));
        while hangs_while.as_ref().is_some_and(|file| file.exists()) {
            thread::sleep(STILL_HANGS);
        }
        disk.write(&writes)?;
        drop(at_it);
        counts.syncs.store(disk.syncs(), Ordering::Relaxed);
        counts.persisted.store(number, Ordering::Release);
        if let Some(tell) = listener {
            tell(Report::Persisted);
        }
        batches += 1;
        rested = false;
        if u64::is_multiple_of(batches, REST_EVERY) {
            disk.rest()?;
        }
    }
}
