//! The thread that owns the disk.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use muster_kernel::Beside;
use muster_sealing::{KeyId, Keys};
use raft_engine::env::{DefaultFileSystem, FileSystem};
use tokio::runtime::Handle;

use super::doubt;
use super::engine::{EngineDisk, OpenFor};
use super::files::{Lock, SnapshotFiles};
use super::{LogDisk, LogFault, reseal};
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
    Reseal,
    Listen(Listener),
    Show(Beside),
    HangWhile(PathBuf),
}

/// The shell's end. When it is dropped, the thread finishes its current write and releases the directory.
pub(crate) struct DiskThread {
    jobs: Sender<Job>,
    published: Arc<Published>,
}

/// What the thread publishes.
struct Published {
    persisted: AtomicU64,
    syncs: AtomicU64,
    opened: Mutex<Opened>,
    /// Why the thread ended.
    failed: Mutex<Option<LogFault>>,
}

/// The directory that has the name now, as it was when it was last opened.
struct Opened {
    snapshots: SnapshotFiles,
    /// See [`reseal::has_leftovers`].
    leftovers: bool,
}

impl Published {
    fn opened<F: FileSystem>(&self, disk: &EngineDisk<F>) {
        let (snapshots, leftovers) = (disk.snapshot_files().clone(), reseal::has_leftovers(disk.dir()));
        *self.opened.lock().unwrap_or_else(PoisonError::into_inner) = Opened { snapshots, leftovers };
    }
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
        let (path, files, own_keys) = (dir.to_owned(), Arc::clone(fs), keys.clone());
        let open = move || -> Result<_, LogFault> {
            let mut disk = EngineDisk::open_in(&path, &files, &own_keys, purpose)?;
            let found = disk.recover()?;
            Ok((disk, found))
        };
        let (disk, worker) = Self::new(dir, fs, keys);
        let published = Arc::clone(&disk.published);
        worker.start(0, move || match open() {
            Ok((disk, found)) => {
                published.opened(&disk);
                opened.send(Ok(found)).ok().map(|()| Ok(disk))
            }
            Err(fault) => {
                let _gave_up = opened.send(Err(fault));
                None
            }
        })?;
        let found = answer.recv().unwrap_or_else(|_| Err(LogFault::damaged(dir, "reading it panicked")));
        Ok((disk, found?))
    }

    /// After an `Unsynced` [`LogFault`]: rewrites everything into new files, on its own thread, and continues from there. Does not
    /// block: `Persisted` reports when all of `write` is durable. Writes queued meanwhile follow it.
    pub fn renew<F>(
        dir: &Path,
        fs: &Arc<F>,
        keys: &Keys,
        (job, write): (SnapshotJob, Durable),
    ) -> Result<Self, LogFault>
    where
        F: FileSystem + 'static,
    {
        let (path, files, own_keys, number) = (dir.to_owned(), Arc::clone(fs), keys.clone(), write.number);
        let (disk, worker) = Self::new(dir, fs, keys);
        worker.start(number, move || Some(EngineDisk::renew(&path, &files, &own_keys, &job, &write)))?;
        Ok(disk)
    }

    fn new<F>(dir: &Path, fs: &Arc<F>, keys: &Keys) -> (Self, Worker<F>) {
        let (jobs, inbox) = mpsc::channel();
        let published = Arc::new(Published {
            persisted: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            opened: Mutex::new(Opened { snapshots: SnapshotFiles::new(dir, None), leftovers: false }),
            failed: Mutex::new(None),
        });
        let worker = Worker {
            dir: dir.to_owned(),
            fs: Arc::clone(fs),
            keys: keys.clone(),
            inbox,
            published: Arc::clone(&published),
            listener: None,
            row: None,
            hangs_while: None,
        };
        (Self { jobs, published }, worker)
    }
    /// The snapshot files of the directory, for writers on other threads.
    pub fn snapshot_files(&self) -> SnapshotFiles {
        self.opened().snapshots.clone()
    }
    /// Whether all data is under this key, as far as it was when the directory was last opened. `None`: it is not sealed at all.
    pub fn is_sealed_with(&self, key: KeyId) -> Option<bool> {
        let opened = self.opened();
        opened.snapshots.key().map(|sealed_with| sealed_with == key && !opened.leftovers)
    }
    fn opened(&self) -> MutexGuard<'_, Opened> {
        self.published.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Rewrites the directory under the newest key, if it is under another one. Writes queued meanwhile follow. If it fails, the
    /// directory stays as it is.
    pub fn reseal(&self) -> Result<(), LogFault> {
        self.send(Job::Reseal)
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
        self.send(Job::Write(writes))
    }
    fn send(&self, job: Job) -> Result<(), LogFault> {
        self.jobs.send(job).map_err(|_| {
            let failed = self.published.failed.lock().unwrap_or_else(PoisonError::into_inner).clone();
            failed.unwrap_or_else(|| LogFault::io("raft", "the disk thread has ended"))
        })
    }
    /// The number of the last write that is durable.
    pub fn persisted(&self) -> u64 {
        self.published.persisted.load(Ordering::Acquire)
    }
    /// Returns once the thread has closed the directory: closing the log truncates its file.
    #[cfg(test)]
    pub fn close(self) {
        let thread = Arc::downgrade(&self.published);
        drop(self);
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while thread.strong_count() > 0 {
            assert!(std::time::Instant::now() < until, "the disk thread ends");
            thread::yield_now();
        }
    }
    /// See [`EngineDisk::syncs`].
    pub fn syncs(&self) -> u64 {
        self.published.syncs.load(Ordering::Relaxed)
    }
}

/// The thread's end.
struct Worker<F> {
    dir: PathBuf,
    fs: Arc<F>,
    keys: Keys,
    inbox: Receiver<Job>,
    published: Arc<Published>,
    listener: Option<Listener>,
    row: Option<Beside>,
    hangs_while: Option<PathBuf>,
}

/// Why a thread no longer serves its disk.
enum Ended {
    /// The other end was dropped.
    Released,
    /// The directory is to be rewritten, and another thread continues: raft-engine caches blocks per thread, by position alone. The lock is
    /// held throughout: another incarnation's writes would be overwritten by what is queued here.
    Reseal(Option<Lock>),
}

impl<F: FileSystem + 'static> Worker<F> {
    /// `number`: the last write that is durable once the disk is open. `None` from `open`: its caller no longer waits.
    fn start(
        self,
        number: u64,
        open: impl FnOnce() -> Option<Result<EngineDisk<F>, LogFault>> + Send + 'static,
    ) -> Result<(), LogFault> {
        let (dir, runtime) = (self.dir.clone(), Handle::try_current());
        let run = move || {
            // A panic or error of this thread counts for its actor's runtime, where tests watch for them.
            let _entered = runtime.as_ref().ok().map(Handle::enter);
            self.run(number, open);
        };
        let started = thread::Builder::new().name("raft-disk".to_owned()).spawn(run);
        started.map(drop).map_err(|e| LogFault::io(dir, e))
    }

    fn run(mut self, number: u64, open: impl FnOnce() -> Option<Result<EngineDisk<F>, LogFault>>) {
        let served = catch_unwind(AssertUnwindSafe(|| {
            let activity = self.row.as_ref().map(|row| row.begin("rewrite"));
            let Some(disk) = open() else { return Ok(Ended::Released) };
            let disk = disk?;
            drop(activity);
            self.published.opened(&disk);
            self.published.persisted.store(number, Ordering::Release);
            self.serve(disk, number > 0)
        }));
        let served = served.unwrap_or_else(|_| {
            doubt::mark_doubtful(&self.dir);
            Err(doubt::unsynced(&self.dir))
        });
        match served {
            Ok(Ended::Released) => {}
            Ok(Ended::Reseal(lock)) => self.reseal(lock),
            Err(fault) => fail(&self.published, &self.inbox, self.listener, fault),
        }
    }

    fn reseal(self, lock: Option<Lock>) {
        let (dir, fs, keys) = (self.dir.clone(), Arc::clone(&self.fs), self.keys.clone());
        let (published, number) = (Arc::clone(&self.published), self.published.persisted.load(Ordering::Acquire));
        let started = self.start(number, move || Some(EngineDisk::reopen(&dir, &fs, &keys, lock)));
        if let Err(fault) = started {
            // The shell notices at its next write, or when it asks again for a rewrite.
            *published.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
        }
    }

    /// Writes everything queued as one batch with one sync.
    fn serve(&mut self, mut disk: EngineDisk<F>, mut news: bool) -> Result<Ended, LogFault> {
        let published = Arc::clone(&self.published);
        let syncs_before = published.syncs.load(Ordering::Relaxed);
        let count_syncs = |disk: &EngineDisk<F>| published.syncs.store(syncs_before + disk.syncs(), Ordering::Relaxed);
        let mut batches = 0;
        let mut rested = true;
        loop {
            let first = match self.inbox.recv_timeout(if rested { IDLE_WAIT } else { ACKED_SYNC_DELAY }) {
                Ok(job) => job,
                Err(RecvTimeoutError::Disconnected) => return Ok(Ended::Released),
                Err(RecvTimeoutError::Timeout) => {
                    let _activity = self.row.as_ref().map(|row| row.begin("rest"));
                    disk.rest()?;
                    count_syncs(&disk);
                    rested = true;
                    continue;
                }
            };
            let (mut writes, mut reseal): (Vec<Durable>, bool) = (Vec::new(), false);
            for job in std::iter::once(first).chain(self.inbox.try_iter()) {
                match job {
                    Job::Write(more) => writes.extend(more),
                    Job::Reseal => reseal = true,
                    Job::Listen(new) => self.listener = Some(new),
                    Job::Show(beside) => self.row = Some(beside),
                    Job::HangWhile(file) => self.hangs_while = Some(file),
                }
            }
            // The directory was rewritten before there was a listener.
            if let Some(notify) = self.listener.as_ref().filter(|_| news) {
                news = false;
                notify(Report::Persisted);
            }
            if let Some(number) = writes.last().map(|write| write.number) {
                let activity = self.row.as_ref().map(|row| row.begin("write"));
                while self.hangs_while.as_ref().is_some_and(|file| file.exists()) {
                    thread::sleep(HANG_POLL_INTERVAL);
                }
                disk.write(&writes)?;
                drop(activity);
                count_syncs(&disk);
                published.persisted.store(number, Ordering::Release);
                if let Some(notify) = &self.listener {
                    notify(Report::Persisted);
                }
                batches += 1;
                rested = false;
                if u64::is_multiple_of(batches, ACKED_SYNC_BATCHES) {
                    disk.rest()?;
                }
            }
            if reseal {
                return Ok(Ended::Reseal(disk.close()));
            }
        }
    }
}

fn fail(published: &Published, inbox: &Receiver<Job>, listener: Option<Listener>, fault: LogFault) {
    *published.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault.clone());
    // It may still be queued.
    let late = inbox.try_iter().filter_map(|job| if let Job::Listen(new) = job { Some(new) } else { None }).last();
    if let Some(notify) = late.or(listener) {
        notify(Report::Failed(fault));
    }
}
