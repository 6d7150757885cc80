//! Watch streams, from this member's own copy and its feed of changes.
//!
//! Each stream is a task that makes one portion of lines ahead of its reader. It ends with its time, with this node's
//! manager half and with the right to it, whether anybody reads or not: a reader that stops reading costs its place and
//! the objects as they were when it began until then, and afterwards a portion or two, until its connection is gone. One
//! that falls behind the history is told to list again.

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

use super::Who;
use crate::ports::ManagerPorts;
use crate::service::Service;

/// Changes that are looked at for one portion of lines.
const PORTION: usize = 256;
/// Bytes of a portion, and one object more.
const PORTION_BYTES: usize = 64 * 1024;
/// How long a reader may take to make room for the last word.
const LAST_WORD: Duration = Duration::from_secs(1);
/// How often clients that take bookmarks get one.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// How long before the end of a stream its last bookmark comes.
const LAST_BOOKMARK: Duration = Duration::from_millis(500);

/// How long a token is trusted to last without a look at the clock.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

fn millis_between(from: WallTime, to: WallTime) -> Duration {
    Duration::from_millis(u64::try_from(to.0.saturating_sub(from.0)).unwrap_or_default())
}

/// What a stream lives by.
#[derive(Clone)]
struct Life {
    ask: Ask,
    who: Who,
    manager: Arc<ManagerPorts>,
    /// The manager half in force: when it is another one, this copy is not kept up any more.
    half: watch::Receiver<Option<Arc<ManagerPorts>>>,
    until: Instant,
}

/// One stream.
struct Stream {
    watcher: Watcher,
    life: Life,
    news: watch::Receiver<Revision>,
    bookmark_at: Instant,
}

/// Begins a stream.
pub(super) fn stream(
    service: &Service,
    manager: Arc<ManagerPorts>,
    who: Who,
    caller: &Principal,
    ask: &Ask,
    tables: &Tables,
) -> Result<Response, Status> {
    let place = service.watch_place(caller).ok_or_else(|| {
        let text = "too many watches are open here, or too many of yours; retry, or ask another manager";
        ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(Duration::from_secs(1))
    })?;
    // Between 30 and 60 minutes where the client does not say: so that not all come back at once.
    let lasts = ask.watch_for().unwrap_or_else(|| Duration::from_secs(rand::rng().random_range(1800..3600)));
    let half = service.ports.manager.clone();
    let life = Life { ask: ask.clone(), who, manager, half, until: Instant::now() + lasts };
    let stream = Stream::begin(life, tables)?;
    let (to, lines) = mpsc::channel(1);
    tokio::spawn(async move {
        stream.run(to).await;
        drop(place);
    });
    let lines =
        stream::unfold(lines, |mut lines| async move { Some((Ok::<_, Infallible>(lines.recv().await?), lines)) });
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

impl Life {
    /// Waits for the end, whoever reads. The last word, if there is one.
    async fn over(mut self) -> Option<Status> {
        let mut copies = self.manager.replica.clone();
        loop {
            let (users, tokens, ends) = {
                let copy = copies.borrow_and_update();
                if let Err(status) = self.who.may(&self.ask, &copy.tables) {
                    return Some(status);
                }
                (copy.tables.users.clone(), copy.tables.access_tokens.clone(), self.who.ends(&copy.tables))
            };
            // Far away, it is looked at again: the wall clock may be set meanwhile.
            let left = ends.map_or(LOOK_AGAIN, |at| millis_between(Clock.wall(), at).min(LOOK_AGAIN));
            // Every copy wakes every watch: whether anybody's rights may have changed must cost next to nothing.
            let rights =
                |copy: &Arc<Replica>| !copy.tables.users.ptr_eq(&users) || !copy.tables.access_tokens.ptr_eq(&tokens);
            let manager = &self.manager;
            let replaced = |now: &Option<Arc<ManagerPorts>>| !now.as_ref().is_some_and(|now| Arc::ptr_eq(now, manager));
            tokio::select! {
                biased;
                _ = self.half.wait_for(replaced) => return None,
                () = sleep_until(self.until) => return None,
                () = sleep(left), if ends.is_some() => {}
                changed = copies.wait_for(rights) => if changed.is_err() { return None },
            }
        }
    }
}

impl Stream {
    fn begin(life: Life, tables: &Tables) -> Result<Self, Status> {
        // Before the history is looked at: what comes from now on wakes the stream.
        let news = life.manager.feed.news();
        // A start that the history does not reach is an ERROR event of the stream, as kube-apiserver sends it once a version
        // is parsed: kube-rs lists again after the event; after an HTTP error it repeats the same watch.
        let watcher = Watcher::begin(&life.ask, tables)?;
        let (now, last) = (Instant::now(), life.until - LAST_BOOKMARK);
        Ok(Self { watcher, life, news, bookmark_at: (now + BOOKMARK_EVERY).min(last).max(now) })
    }

    /// Tells until it is over, or nobody listens.
    async fn run(mut self, to: mpsc::Sender<Bytes>) {
        let over = self.life.clone().over();
        let last = tokio::select! {
            biased;
            () = to.closed() => return,
            last = over => last,
            last = self.tell(&to) => Some(last),
        };
        if let Some(status) = last {
            let line = self.watcher.failed(&status);
            // Nothing else is kept for a reader that does not come.
            drop(self);
            let _unread = timeout(LAST_WORD, to.send(line.into())).await;
        }
    }

    /// Says why it cannot go on.
    async fn tell(&mut self, to: &mpsc::Sender<Bytes>) -> Status {
        loop {
            let Ok(place) = to.reserve().await else { return std::future::pending().await };
            match self.next().await {
                Ok(lines) => place.send(lines.into()),
                Err(status) => return status,
            }
        }
    }

    /// The next lines. Whatever may end it is looked at before there are any.
    async fn next(&mut self) -> Result<String, Status> {
        loop {
            self.life.who.may(&self.life.ask, &self.life.manager.replica.borrow().tables)?;
            if let Some(lines) = self.watcher.initial(PORTION_BYTES, Clock.wall()) {
                return Ok(lines);
            }
            self.news.mark_unchanged();
            if let Some(lines) = self.changes()? {
                return Ok(lines);
            }
            tokio::select! {
                changed = self.news.changed() => if changed.is_err() { return std::future::pending().await },
                () = sleep_until(self.bookmark_at), if self.bookmark_at < self.life.until => {
                    if let Some(line) = self.bookmark() {
                        return Ok(line);
                    }
                }
            }
        }
    }

    /// What came after what was told, if it is anything to this client.
    fn changes(&mut self) -> Result<Option<String>, Status> {
        let feed = &self.life.manager.feed;
        loop {
            let through = feed.newest();
            let after = self.watcher.after();
            let changes = feed.since(after, PORTION).map_err(|gone| Status::expired(after, gone.oldest))?;
            if changes.is_empty() {
                self.watcher.caught_up(through);
                return Ok(None);
            }
            let lines = self.watcher.changes(&changes, PORTION_BYTES, Clock.wall());
            if !lines.is_empty() {
                return Ok(Some(lines));
            }
        }
    }

    fn bookmark(&mut self) -> Option<String> {
        let now = Instant::now();
        let last = self.life.until - LAST_BOOKMARK;
        // One a minute, and the last one shortly before the end.
        self.bookmark_at = if now < last { (now + BOOKMARK_EVERY).min(last) } else { self.life.until };
        self.watcher.bookmark()
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
