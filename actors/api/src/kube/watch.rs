//! Watch streams, from this member's own copy and its feed of changes.
//!
//! A stream is driven by its reader: it holds one portion of lines at a time, and a reader that stops reading costs that
//! and its place. One that falls behind the history is told to list again. Whoever loses the right to it hears no more,
//! also when nothing happens to any object.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::stream;
use muster_kernel::Clock;
use muster_kubernetes::{Ask, Status, Watcher};
use muster_messages::{ErrorBody, ErrorCode, Replica, Revision, Tables, WallTime};
use rand::Rng;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::Who;
use crate::ports::ManagerPorts;
use crate::service::{Service, Watching};

/// Objects of the beginning, and changes, in one portion of lines.
const PORTION: usize = 256;
/// How often clients that take bookmarks get one.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// How long before the end of a stream its last bookmark comes.
const LAST_BOOKMARK: Duration = Duration::from_millis(500);

/// How long a token is trusted to last without a look at the clock.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

fn millis_between(from: WallTime, to: WallTime) -> Duration {
    Duration::from_millis(u64::try_from(to.0.saturating_sub(from.0)).unwrap_or_default())
}

/// One stream.
struct Stream {
    watcher: Watcher,
    ask: Ask,
    who: Who,
    manager: Arc<ManagerPorts>,
    /// The manager half in force: when it is another one, this copy is not kept up any more.
    half: watch::Receiver<Option<Arc<ManagerPorts>>>,
    news: watch::Receiver<Revision>,
    until: Instant,
    bookmark_at: Instant,
    ended: bool,
    _place: Watching,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Woke {
    Look,
    Bookmark,
    End,
}

/// Begins a stream.
pub(super) fn stream(
    service: &Service,
    manager: Arc<ManagerPorts>,
    who: Who,
    ask: &Ask,
    tables: &Tables,
) -> Result<Response, Status> {
    let place = service.watch_place().ok_or_else(|| {
        let text = "too many watches are open here; retry, or ask another manager";
        ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(Duration::from_secs(1))
    })?;
    // Before the history is looked at: what comes from now on wakes the stream.
    let news = manager.feed.news();
    let watcher = Watcher::begin(ask, tables)?;
    if let Err(gone) = manager.feed.since(watcher.after(), 1) {
        return Err(Status::expired(watcher.after(), gone.oldest));
    }
    let now = Instant::now();
    // Between 30 and 60 minutes where the client does not say: so that not all come back at once.
    let lasts = ask.watch_for().unwrap_or_else(|| Duration::from_secs(rand::rng().random_range(1800..3600)));
    let stream = Stream {
        watcher,
        ask: ask.clone(),
        who,
        half: service.ports.manager.clone(),
        manager,
        news,
        until: now + lasts,
        bookmark_at: (now + BOOKMARK_EVERY).min(now + lasts.saturating_sub(LAST_BOOKMARK)),
        ended: false,
        _place: place,
    };
    let lines = stream::unfold(stream, |mut stream| async move {
        let lines = stream.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(lines)), stream))
    });
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

impl Stream {
    /// The next lines; `None`: it is over.
    async fn next(&mut self) -> Option<String> {
        while !self.ended {
            if let Some(lines) = self.watcher.initial(PORTION, Clock.wall()) {
                return Some(lines);
            }
            self.news.mark_unchanged();
            if let Some(lines) = self.changes() {
                return Some(lines);
            }
            if self.wait().await == Woke::Bookmark
                && let Some(line) = self.bookmark()
            {
                return Some(line);
            }
        }
        None
    }

    /// Waits for something to tell, or for the end.
    async fn wait(&mut self) -> Woke {
        let Self { half, manager, news, .. } = self;
        let mut copies = manager.replica.clone();
        let (users, tokens, ends) = {
            let copy = copies.borrow_and_update();
            if self.who.may(&self.ask, &copy.tables).is_err() {
                return Woke::Look;
            }
            (copy.tables.users.clone(), copy.tables.access_tokens.clone(), self.who.ends(&copy.tables))
        };
        // Far away, it is looked at again: the wall clock may be set meanwhile.
        let left = ends.map_or(LOOK_AGAIN, |at| millis_between(Clock.wall(), at).min(LOOK_AGAIN));
        // Every copy wakes every watch: whether anybody's rights may have changed must cost next to nothing.
        let rights =
            |copy: &Arc<Replica>| !copy.tables.users.ptr_eq(&users) || !copy.tables.access_tokens.ptr_eq(&tokens);
        let replaced = |now: &Option<Arc<ManagerPorts>>| !now.as_ref().is_some_and(|now| Arc::ptr_eq(now, manager));
        let woke = tokio::select! {
            biased;
            _ = half.wait_for(replaced) => Woke::End,
            () = sleep_until(self.until) => Woke::End,
            () = sleep(left), if ends.is_some() => Woke::Look,
            () = sleep_until(self.bookmark_at), if self.bookmark_at < self.until => Woke::Bookmark,
            changed = copies.wait_for(rights) => if changed.is_ok() { Woke::Look } else { Woke::End },
            changed = news.changed() => if changed.is_ok() { Woke::Look } else { Woke::End },
        };
        self.ended = woke == Woke::End;
        woke
    }

    /// What came after what was told, if it is anything to this client.
    fn changes(&mut self) -> Option<String> {
        loop {
            if let Err(status) = self.who.may(&self.ask, &self.manager.replica.borrow().tables) {
                // Revoked since: nothing more for them.
                self.ended = true;
                return Some(self.watcher.failed(&status));
            }
            let through = self.manager.feed.newest();
            let changes = match self.manager.feed.since(self.watcher.after(), PORTION) {
                Ok(changes) => changes,
                Err(gone) => {
                    self.ended = true;
                    return Some(self.watcher.failed(&Status::expired(self.watcher.after(), gone.oldest)));
                }
            };
            if changes.is_empty() {
                self.watcher.caught_up(through);
                return None;
            }
            let now = Clock.wall();
            let lines: String = changes.iter().filter_map(|change| self.watcher.change(change, now)).collect();
            if !lines.is_empty() {
                return Some(lines);
            }
        }
    }

    fn bookmark(&mut self) -> Option<String> {
        let now = Instant::now();
        let last = self.until - LAST_BOOKMARK;
        // One a minute, and the last one shortly before the end.
        self.bookmark_at = if now < last { (now + BOOKMARK_EVERY).min(last) } else { self.until };
        self.watcher.bookmark()
    }
}
