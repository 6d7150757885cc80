//! The whole output of the runs of reconcilers on this node, on its own disk: the record of a run in the cluster has only its first
//! and last lines.
//!
//! Owns        the data directory's folder `runs`, and which runs are writing there.
//! Inputs      a run's output; requests for a part of one.
//! Outputs     files ([`folder`]); parts of them as text; the number of bytes that could not be kept.
//! Invariants  RUNLOG-3  the log delays no run for longer than a second, and its failure ends none: what the disk does not take is
//!                    missing, counted, and said in the daemon's log.
//! A log is not synced: after a power failure its end may be missing.

mod folder;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
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

use self::folder::{Folder, Limits, Piece, Writer};

/// Bytes of output in one answer. As JSON they take six times as much at most, which a frame holds.
const MAX_PAGE_BYTES: usize = 64 * 1024;
/// The longest wait for more output: shorter than a node may take to answer another one.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// Readers that may wait at once. Further ones are answered at once.
const MAX_WAITING: usize = 4;
/// Chunks of output that wait for the disk: half a megabyte.
const MAX_QUEUED_CHUNKS: usize = 64;
/// How long a run waits for the disk, before what it writes is no longer kept.
const DISK_TIMEOUT: Duration = Duration::from_secs(1);

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

/// Takes the output of one run.
pub(super) struct RunLog {
    logs: Arc<RunLogs>,
    key: RunKey,
    queue: mpsc::Sender<Chunk>,
    /// Dropped since the last chunk that was queued.
    skipped: u64,
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
        let (queue, chunks) = mpsc::channel(MAX_QUEUED_CHUNKS);
        let (written, progress) = watch::channel(0);
        // A run is not begun twice; if it were, the second one would not replace what the first has written.
        if let Entry::Vacant(entry) = self.running().entry(key.clone()) {
            entry.insert(progress);
            let (logs, key) = (Arc::clone(self), key.clone());
            tokio::task::spawn_blocking(move || {
                logs.keep(&key, chunks, &written);
                logs.running().remove(&key);
            });
        }
        RunLog { logs: Arc::clone(self), key: key.clone(), queue, skipped: 0 }
    }

    /// Writes the log until its run has ended. Blocks.
    fn keep(&self, key: &RunKey, mut chunks: mpsc::Receiver<Chunk>, written: &watch::Sender<u64>) {
        let running: BTreeSet<RunKey> = self.running().keys().cloned().collect();
        let is_running = |reconciler: &str, (term, of_term)| {
            let reconciler = reconciler.to_owned();
            running.contains(&RunKey { reconciler, term: FencingToken(term), of_term })
        };
        if let Err(error) = self.folder.make_room(&key.reconciler, is_running) {
            warn!(reconciler = %key.reconciler, %error, "cannot delete old logs of runs");
        }
        let mut writer = self.folder.writer(key);
        // A failure is repeated by the first write, and counted then.
        let _begun = writer.as_mut().map(Writer::begin);
        let mut is_reported = false;
        while let Some(Chunk { skipped, bytes }) = chunks.blocking_recv() {
            let lost = match &mut writer {
                Ok(writer) => write(writer, skipped, &bytes),
                Err(error) => Err((size(&bytes), io::Error::from(error.kind()))),
            };
            match lost {
                Ok(()) => written.send_modify(|count| *count += 1),
                Err((bytes, error)) => self.lost(key, bytes, &error.to_string(), &mut is_reported),
            }
        }
    }

    /// RUNLOG-3. Said once for each run.
    fn lost(&self, key: &RunKey, bytes: u64, why: &str, is_reported: &mut bool) {
        self.lost_bytes.fetch_add(bytes, Ordering::Relaxed);
        if !std::mem::replace(is_reported, true) {
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
            Err(_) => Err(ErrorBody::new(ErrorCode::Internal, "this daemon is shutting down")),
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
                // An error: the run has ended, and everything it has written can be read.
                && timeout_at(until, progress.changed()).await.is_ok()
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
    /// Keeps what the run has written. Waits for the disk for a second at most, and no longer for one that is behind. RUNLOG-3.
    pub async fn write(&mut self, output: &[u8]) {
        let is_behind = self.skipped > 0;
        let chunk = Chunk { skipped: self.skipped, bytes: output.to_vec() };
        let queued = match self.queue.try_send(chunk) {
            Err(TrySendError::Full(chunk)) if !is_behind => {
                self.queue.send_timeout(chunk, DISK_TIMEOUT).await.map_err(|error| match error {
                    SendTimeoutError::Timeout(_) => "the disk is too slow",
                    SendTimeoutError::Closed(_) => "its log has ended",
                })
            }
            queued => queued.map_err(|_| "the disk is too slow"),
        };
        match queued {
            Ok(()) => self.skipped = 0,
            Err(why) => {
                self.skipped = self.skipped.saturating_add(size(output));
                self.logs.lost(&self.key, size(output), why, &mut { is_behind });
            }
        }
    }
}

fn write(writer: &mut Writer, skipped: u64, bytes: &[u8]) -> Result<(), (u64, io::Error)> {
    if skipped > 0 {
        writer.skip(skipped);
    }
    writer.write(bytes)
}

fn size(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
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
