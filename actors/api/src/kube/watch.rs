//! Watch streams, from this member's own replica and its feed of changes.
//!
//! Each stream is a task that prepares one batch of lines ahead of its reader. It ends with its time, with this node's
//! manager runtime, and with the caller's right to it, whether or not the reader reads. Until then a reader that stops
//! reading costs its permit and the objects as they were when the stream began; afterwards, until its connection ends,
//! a batch or two. A reader that falls behind the history is told to list again.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::stream;
use muster_kernel::Clock;
use muster_kubernetes::{Ask, Status, Watcher};
use muster_messages::{ErrorBody, ErrorCode, Principal, Replica, Revision, Tables, WallTime};
use rand::Rng;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::Requester;
use crate::ports::ManagerPorts;
use crate::service::Service;

/// Changes examined for one batch of lines.
const MAX_BATCH_CHANGES: usize = 256;
/// Bytes of a batch, and one object more.
const MAX_BATCH_BYTES: usize = 64 * 1024;
/// How long a reader may take to make room for the final event.
const FINAL_EVENT_TIMEOUT: Duration = Duration::from_secs(1);
/// How often clients that accept bookmarks get one.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// How long before the end of a stream its last bookmark is sent.
const LAST_BOOKMARK_MARGIN: Duration = Duration::from_millis(500);

/// The longest time between checks of a token's expiry against the clock.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_secs(60);

fn millis_between(from: WallTime, to: WallTime) -> Duration {
    Duration::from_millis(u64::try_from(to.0.saturating_sub(from.0)).unwrap_or_default())
}

/// The conditions under which a stream continues.
#[derive(Clone)]
struct StreamContext {
    ask: Ask,
    requester: Requester,
    manager: Arc<ManagerPorts>,
    /// The manager runtime in force: once it is replaced, this replica is no longer updated.
    runtime: watch::Receiver<Option<Arc<ManagerPorts>>>,
    until: Instant,
}

/// One stream.
struct Stream {
    watcher: Watcher,
    context: StreamContext,
    news: watch::Receiver<Revision>,
    bookmark_at: Instant,
}

/// Starts a stream.
pub(super) fn stream(
    service: &Service,
    manager: Arc<ManagerPorts>,
    requester: Requester,
    caller: &Principal,
    ask: &Ask,
    tables: &Tables,
) -> Result<Response, Status> {
    let permit = service.watch_permit(caller).ok_or_else(|| {
        let text = "limit of open watches reached, on this node or per client; retry, or ask another manager";
        ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(Duration::from_secs(1))
    })?;
    // Between 30 and 60 minutes if the client states nothing, so that clients do not all return at once.
    let lifetime = ask.watch_duration().unwrap_or_else(|| Duration::from_secs(rand::rng().random_range(1800..3600)));
    let runtime = service.ports.manager.clone();
    let context = StreamContext { ask: ask.clone(), requester, manager, runtime, until: Instant::now() + lifetime };
    let stream = Stream::begin(context, tables)?;
    let (to, lines) = mpsc::channel(1);
    tokio::spawn(async move {
        stream.run(to).await;
        drop(permit);
    });
    let lines =
        stream::unfold(lines, |mut lines| async move { Some((Ok::<_, Infallible>(lines.recv().await?), lines)) });
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

impl StreamContext {
    /// Waits for the end, independently of the reader. Returns the final status, if there is one.
    async fn until_end(mut self) -> Option<Status> {
        let mut replicas = self.manager.replica.clone();
        loop {
            let (users, tokens, ends) = {
                let replica = replicas.borrow_and_update();
                if let Err(status) = self.requester.may(&self.ask, &replica.tables) {
                    return Some(status);
                }
                (
                    replica.tables.users.clone(),
                    replica.tables.access_tokens.clone(),
                    self.requester.ends(&replica.tables),
                )
            };
            // A distant expiry is checked again: the wall clock may be set meanwhile.
            let left =
                ends.map_or(EXPIRY_CHECK_INTERVAL, |at| millis_between(Clock.wall(), at).min(EXPIRY_CHECK_INTERVAL));
            // Every update wakes every watch: checking whether any rights may have changed must cost next to nothing.
            let rights = |replica: &Arc<Replica>| {
                !replica.tables.users.ptr_eq(&users) || !replica.tables.access_tokens.ptr_eq(&tokens)
            };
            let manager = &self.manager;
            let replaced = |now: &Option<Arc<ManagerPorts>>| !now.as_ref().is_some_and(|now| Arc::ptr_eq(now, manager));
            tokio::select! {
                biased;
                _ = self.runtime.wait_for(replaced) => return None,
                () = sleep_until(self.until) => return None,
                () = sleep(left), if ends.is_some() => {}
                changed = replicas.wait_for(rights) => if changed.is_err() { return None },
            }
        }
    }
}

impl Stream {
    fn begin(context: StreamContext, tables: &Tables) -> Result<Self, Status> {
        // Before the history is read: later changes wake the stream.
        let news = context.manager.feed.news();
        // A start that the history does not reach is an ERROR event of the stream, as kube-apiserver sends it once a
        // version is parsed: kube-rs lists again after the event; after an HTTP error it repeats the same watch.
        let watcher = Watcher::begin(&context.ask, tables)?;
        let (now, last) = (Instant::now(), context.until - LAST_BOOKMARK_MARGIN);
        Ok(Self { watcher, context, news, bookmark_at: (now + BOOKMARK_INTERVAL).min(last).max(now) })
    }

    /// Sends events until the stream ends or the reader is gone.
    async fn run(mut self, to: mpsc::Sender<Bytes>) {
        let until_end = self.context.clone().until_end();
        let last = tokio::select! {
            biased;
            () = to.closed() => return,
            last = until_end => last,
            last = self.send_events(&to) => Some(last),
        };
        if let Some(status) = last {
            let line = self.watcher.failed(&status);
            // Nothing else is kept for a reader that does not read.
            drop(self);
            let _unread = timeout(FINAL_EVENT_TIMEOUT, to.send(line.into())).await;
        }
    }

    /// Sends lines; returns why the stream cannot continue.
    async fn send_events(&mut self, to: &mpsc::Sender<Bytes>) -> Status {
        loop {
            let Ok(permit) = to.reserve().await else { return std::future::pending().await };
            match self.next().await {
                Ok(lines) => permit.send(lines.into()),
                Err(status) => return status,
            }
        }
    }

    /// The next lines. Conditions that end the stream are checked first.
    async fn next(&mut self) -> Result<String, Status> {
        loop {
            self.context.requester.may(&self.context.ask, &self.context.manager.replica.borrow().tables)?;
            if let Some(lines) = self.watcher.initial(MAX_BATCH_BYTES, Clock.wall()) {
                return Ok(lines);
            }
            self.news.mark_unchanged();
            if let Some(lines) = self.changes()? {
                return Ok(lines);
            }
            tokio::select! {
                changed = self.news.changed() => if changed.is_err() { return std::future::pending().await },
                () = sleep_until(self.bookmark_at), if self.bookmark_at < self.context.until => {
                    if let Some(line) = self.bookmark() {
                        return Ok(line);
                    }
                }
            }
        }
    }

    /// The changes since the last event sent that concern this client.
    fn changes(&mut self) -> Result<Option<String>, Status> {
        let feed = &self.context.manager.feed;
        loop {
            let through = feed.newest();
            let after = self.watcher.after();
            let changes = feed.since(after, MAX_BATCH_CHANGES).map_err(|gone| Status::expired(after, gone.oldest))?;
            if changes.is_empty() {
                self.watcher.caught_up(through);
                return Ok(None);
            }
            let lines = self.watcher.changes(&changes, MAX_BATCH_BYTES, Clock.wall());
            if !lines.is_empty() {
                return Ok(Some(lines));
            }
        }
    }

    fn bookmark(&mut self) -> Option<String> {
        let now = Instant::now();
        let last = self.context.until - LAST_BOOKMARK_MARGIN;
        // One a minute, and the last one shortly before the end.
        self.bookmark_at = if now < last { (now + BOOKMARK_INTERVAL).min(last) } else { self.context.until };
        self.watcher.bookmark()
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
