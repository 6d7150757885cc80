//! The whole output of the runs of reconcilers on this node, on its own disk: the record of a run in the cluster has only its first
//! and last lines.
//!
//! Owns        the data directory's folder `runs`, and which runs are writing there.
//! Inputs      a run's output; requests for a part of one.
//! Outputs     files ([`folder`]); parts of them as text; the number of bytes that could not be kept.
//! Invariants  RUNLOG-3  the log delays a run by a second in all at most, and its failure ends none: what the disk does not take is
//!                    missing, counted, and reported in the daemon's log.
//! A log is not synced: after a power failure its end may be missing.

mod folder;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_api::RunLogSource;
use muster_messages::wire::{RunKey, RunLogAsk, RunLogPart};
use muster_messages::{ErrorBody, ErrorCode, FencingToken};
use tokio::sync::mpsc::error::{SendTimeoutError, TrySendError};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use self::folder::{Folder, Limits, Piece, Run, Writer, size};

/// Bytes of output in one answer. As JSON they take six times as much at most, which a frame holds.
const MAX_PAGE_BYTES: usize = 64 * 1024;
/// The longest wait for more output: shorter than a node may take to answer another one.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// Readers that may wait at once. Further ones are answered at once.
const MAX_WAITING: usize = 4;
/// Chunks of output that wait for the disk: half a megabyte.
const MAX_QUEUED_CHUNKS: usize = 64;
/// How long a run waits for the disk in all.
const DISK_TIMEOUT: Duration = Duration::from_secs(1);
/// Logs that are written at a time. Each holds one of the 512 threads that tokio has for all files of this process; a node rarely runs
/// more commands.
const MAX_WRITERS: usize = 64;
const TOO_SLOW: &str = "the disk is too slow";

/// See the module.
pub(super) struct RunLogs {
    folder: Folder,
    /// The runs that are writing, and how much each has written.
    running: Mutex<BTreeMap<RunKey, watch::Receiver<u64>>>,
    waiting: Semaphore,
    lost_bytes: AtomicU64,
}

/// What is to be written, after `skipped` bytes that were dropped.
struct Chunk {
    skipped: u64,
    bytes: Vec<u8>,
}

/// What the log of one run lacks. Both sides of its queue know it.
#[derive(Default)]
struct Missing {
    /// Bytes that were dropped since the last chunk that was queued.
    skipped: AtomicU64,
    is_reported: AtomicBool,
}

/// Takes the output of one run.
pub(super) struct RunLog {
    logs: Arc<RunLogs>,
    key: RunKey,
    /// Or why nothing is kept.
    queue: Result<mpsc::Sender<Chunk>, &'static str>,
    /// What is left of the time that it may wait for the disk.
    wait_left: Duration,
    missing: Arc<Missing>,
}

impl RunLogs {
    pub fn new(data_dir: &Path) -> Arc<Self> {
        Self::within(data_dir, Limits::DEFAULT)
    }

    fn within(data_dir: &Path, limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            folder: Folder::new(data_dir.join("runs"), limits),
            running: Mutex::default(),
            waiting: Semaphore::new(MAX_WAITING),
            lost_bytes: AtomicU64::new(0),
        })
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<RunKey, watch::Receiver<u64>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of output since this process started that could not be kept.
    pub fn lost_bytes(&self) -> u64 {
        self.lost_bytes.load(Ordering::Relaxed)
    }

    /// Begins the log of a run. A disk that takes nothing is found later, and only the log is missing then.
    pub fn begin(self: &Arc<Self>, key: &RunKey) -> RunLog {
        let missing = Arc::new(Missing::default());
        let queue = self.start_writer(key, Arc::clone(&missing));
        RunLog { logs: Arc::clone(self), key: key.clone(), queue, wait_left: DISK_TIMEOUT, missing }
    }

    fn start_writer(
        self: &Arc<Self>,
        key: &RunKey,
        missing: Arc<Missing>,
    ) -> Result<mpsc::Sender<Chunk>, &'static str> {
        let mut running = self.running();
        // A run is not begun twice; if it were, the second one would not replace what the first has written.
        if running.contains_key(key) {
            return Err("its log is already being written");
        }
        if running.len() >= MAX_WRITERS {
            return Err("too many logs are being written on this node");
        }
        let (written, progress) = watch::channel(0);
        running.insert(key.clone(), progress);
        let (queue, chunks) = mpsc::channel(MAX_QUEUED_CHUNKS);
        let (logs, key) = (Arc::clone(self), key.clone());
        tokio::task::spawn_blocking(move || {
            logs.keep(&key, chunks, &written, &missing);
            logs.running().remove(&key);
        });
        Ok(queue)
    }

    /// Writes the log until its run has ended. Blocks.
    fn keep(&self, key: &RunKey, mut chunks: mpsc::Receiver<Chunk>, written: &watch::Sender<u64>, missing: &Missing) {
        // Asked for each: another run may begin meanwhile.
        let is_running = |reconciler: &str, (term, of_term): Run| {
            let reconciler = reconciler.to_owned();
            self.running().contains_key(&RunKey { reconciler, term: FencingToken(term), of_term })
        };
        if let Err(error) = self.folder.make_room(&key.reconciler, is_running) {
            warn!(reconciler = %key.reconciler, %error, "cannot delete old logs of runs");
        }
        let mut writer = self.folder.writer(key);
        // A failure is repeated by the first write, and counted then.
        let _begun = writer.as_mut().map(Writer::begin);
        while let Some(Chunk { skipped, bytes }) = chunks.blocking_recv() {
            let lost = match &mut writer {
                Ok(writer) => write(writer, skipped, &bytes),
                Err(error) => Err((size(&bytes), io::Error::from(error.kind()))),
            };
            match lost {
                Ok(()) => written.send_modify(|count| *count += 1),
                Err((bytes, error)) => self.lost(key, bytes, &error.to_string(), missing),
            }
        }
        if let Ok(writer) = &mut writer {
            writer.skip(missing.skipped.load(Ordering::Acquire));
            // Without the mark, a log whose end is missing looks complete. The loss itself is counted and reported.
            let _marked = writer.end();
        }
    }

    /// RUNLOG-3. Reported once for each run.
    fn lost(&self, key: &RunKey, bytes: u64, why: &str, missing: &Missing) {
        self.lost_bytes.fetch_add(bytes, Ordering::Relaxed);
        if !missing.is_reported.swap(true, Ordering::Relaxed) {
            let RunKey { reconciler, term, .. } = key;
            warn!(%reconciler, %term, error = %why, "output of a run cannot be kept on disk; the run continues");
        }
    }

    async fn read(self: &Arc<Self>, key: &RunKey, offset: u64) -> Result<Option<Piece>, ErrorBody> {
        let (logs, key) = (Arc::clone(self), key.clone());
        let read = tokio::task::spawn_blocking(move || logs.folder.read(&key, offset, MAX_PAGE_BYTES)).await;
        match read {
            Ok(Ok(piece)) => Ok(piece),
            Ok(Err(error)) => Err(unreadable(&error)),
            Err(error) => Err(ErrorBody::new(ErrorCode::Internal, format!("reading the log of a run ended: {error}"))),
        }
    }

    /// A part of a run's output. While it is running and nothing follows, waits for more.
    async fn part(self: &Arc<Self>, ask: &RunLogAsk) -> Result<RunLogPart, ErrorBody> {
        let key = &ask.run;
        let permit = self.waiting.try_acquire().ok();
        let wait = permit.as_ref().map_or(Duration::ZERO, |_| Duration::from_millis(ask.wait_ms).min(MAX_WAIT));
        let until = Instant::now() + wait;
        loop {
            // Before the files are read: what it writes last is read or waited for.
            let mut running = self.running().get(key).cloned();
            if let Some(progress) = &mut running {
                progress.mark_unchanged();
            }
            let piece = match self.read(key, ask.offset).await? {
                None if running.is_none() => return Ok(RunLogPart::default()),
                piece => piece.unwrap_or_default(),
            };
            let text = text_of(&piece, running.is_some() && !piece.is_followed);
            if let (true, Some(progress)) = (text.0.is_empty(), &mut running)
                && has_news(progress, until).await
            {
                continue;
            }
            let (text, bytes) = text;
            return Ok(RunLogPart {
                kept: true,
                offset: piece.offset,
                skipped: piece.offset.saturating_sub(ask.offset),
                next_offset: piece.offset.saturating_add(bytes),
                text,
                running: running.is_some(),
            });
        }
    }
}

impl RunLogSource for RunLogs {
    fn page(self: Arc<Self>, ask: RunLogAsk) -> BoxFuture<'static, Result<RunLogPart, ErrorBody>> {
        async move { RunLogs::part(&self, &ask).await }.boxed()
    }
}

impl RunLog {
    /// Keeps what the run has written. Waits for a disk that is behind, for all writes of a run together at most a second. RUNLOG-3.
    pub async fn write(&mut self, output: &[u8]) {
        let skipped = self.missing.skipped.load(Ordering::Acquire);
        match self.send(Chunk { skipped, bytes: output.to_vec() }).await {
            Ok(()) => self.missing.skipped.store(0, Ordering::Release),
            Err(why) => {
                self.missing.skipped.store(skipped.saturating_add(size(output)), Ordering::Release);
                self.logs.lost(&self.key, size(output), why, &self.missing);
            }
        }
    }

    async fn send(&mut self, chunk: Chunk) -> Result<(), &'static str> {
        const ENDED: &str = "the writer of this log has ended";
        let queue = self.queue.as_ref().map_err(|why| *why)?;
        let chunk = match queue.try_send(chunk) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Closed(_)) => return Err(ENDED),
            Err(TrySendError::Full(_)) if self.wait_left.is_zero() => return Err(TOO_SLOW),
            Err(TrySendError::Full(chunk)) => chunk,
        };
        let began = Instant::now();
        let sent = queue.send_timeout(chunk, self.wait_left).await;
        self.wait_left = self.wait_left.saturating_sub(began.elapsed());
        sent.map_err(|error| match error {
            SendTimeoutError::Timeout(_) => TOO_SLOW,
            SendTimeoutError::Closed(_) => ENDED,
        })
    }
}

/// Whether the run has written more, or has ended, by then. A run that writes all the time does not prolong a reader's wait.
async fn has_news(progress: &mut watch::Receiver<u64>, until: Instant) -> bool {
    // An error: the run has ended, and everything it has written can be read.
    Instant::now() < until && timeout_at(until, progress.changed()).await.is_ok()
}

fn write(writer: &mut Writer, skipped: u64, bytes: &[u8]) -> Result<(), (u64, io::Error)> {
    writer.skip(skipped);
    writer.write(bytes)
}

fn unreadable(error: &io::Error) -> ErrorBody {
    let code = match error.kind() {
        io::ErrorKind::InvalidInput => ErrorCode::Invalid,
        _ => ErrorCode::Internal,
    };
    ErrorBody::new(code, format!("cannot read the log of a run: {error}"))
}

/// The output as text, and how many bytes of it that is. A character whose end is still to come is left for the next part; what can
/// be no character is replaced.
fn text_of(piece: &Piece, more_may_come: bool) -> (String, u64) {
    let incomplete = piece.bytes.utf8_chunks().last().map_or(0, |last| {
        let is_begun = std::str::from_utf8(last.invalid()).is_err_and(|error| error.error_len().is_none());
        if is_begun { last.invalid().len() } else { 0 }
    });
    let whole = piece.bytes.len() - incomplete;
    // Unless more may come, the character has no end.
    let taken = if whole == 0 && !more_may_come { piece.bytes.len() } else { whole };
    let bytes = piece.bytes.get(..taken).unwrap_or_default();
    (String::from_utf8_lossy(bytes).into_owned(), size(bytes))
}
