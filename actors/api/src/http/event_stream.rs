//! `/v1/events` and `/v1/objects` as server-sent events.
//!
//! A stream ends after an hour, with its reader, with this node's manager runtime, and with the caller's right to it. A reader that
//! stops reading costs its permit and a page of events; once events that it has not read are no longer kept, it receives `expired`.
//! A long page of objects, of which the first has all of them, counts among its caller's long answers until it is read.
//!
//! Invariants  SSE-1  only the last event of a revision carries an id: a client that returns with it has seen the whole revision.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use futures_util::stream;
use muster_messages::wire::{ApiCall, ReconcilerRequest, Request};
use muster_messages::{ErrorBody, ErrorCode, EventsView, Replica, Revision, Tables};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::errors::weight;
use super::{Peer, error_response};
use crate::kube::LONG_ANSWER_BYTES;
use crate::service::WatchPermit;
use crate::shares::Share;

/// Tells proxies and clients that the stream is alive.
const COMMENT_INTERVAL: Duration = Duration::from_secs(5);
/// The longest stream.
const MAX_STREAM: Duration = Duration::from_secs(3600);
/// How long a manager is asked to wait for a change on behalf of a worker, which sees no changes itself.
const RELAYED_WAIT_MS: u64 = 20_000;
/// The pause before a read is repeated that was refused for lack of a permit.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// What a stream follows.
#[derive(Clone)]
pub(super) enum Followed {
    /// Each is an event of its own.
    Events,
    /// Each answer is an event: what has changed, and what was deleted.
    Objects { kind: Option<String>, namespace: Option<String> },
}

/// Part of a stream.
struct Page {
    revision: u64,
    text: String,
    /// There was nothing new.
    is_empty: bool,
    /// Of a long page of objects.
    share: Option<Share>,
}

/// What the body takes next, and a share that is held until it wants more.
type Part = (Bytes, Option<Share>);
/// The rest of a body: the parts to come, and the share of the part just handed over.
type Rest = (mpsc::Receiver<Part>, Option<Share>);

impl Followed {
    fn request(&self, since: Revision, wait_ms: u64) -> Request {
        match self.clone() {
            Self::Events => Request::Events { since, wait_ms },
            Self::Objects { kind, namespace } => {
                Request::Reconciler(ReconcilerRequest::ObjectChanges { kind, namespace, seen: since, wait_ms })
            }
        }
    }
    /// Whether there may be something new.
    fn is_newer(&self, tables: &Tables, since: Revision) -> bool {
        match self {
            Self::Events => tables.events_after(since).next().is_some(),
            Self::Objects { .. } => tables.reconcilers.changed > since,
        }
    }
    /// The answer as text of the stream. `None`: not everything after `since` can be sent.
    fn page(&self, answer: &str, since: u64) -> Result<Option<Page>, serde_json::Error> {
        let share = None;
        match self {
            Self::Events => {
                let page: EventsView<Value> = serde_json::from_str(answer)?;
                let (revision, is_empty) = (page.revision.0, page.items.is_empty());
                let lacks_some = since != 0 && page.incomplete_before.is_some() || revision < since;
                Ok((!lacks_some).then(|| Page { revision, text: text_of(&page.items), is_empty, share }))
            }
            Self::Objects { .. } => {
                let page: ObjectsPage = serde_json::from_str(answer)?;
                let (revision, is_empty) = (page.revision.0, page.items.is_empty() && page.deleted.is_empty());
                Ok(Some(Page { revision, text: format!("id: {revision}\ndata: {answer}\n\n"), is_empty, share }))
            }
        }
    }
}

/// What is read of an answer that may be a newer manager's.
#[derive(Deserialize)]
struct ObjectsPage {
    revision: Revision,
    items: Vec<IgnoredAny>,
    deleted: Vec<IgnoredAny>,
}

/// Whether the client asks for a stream.
pub(super) fn is_wanted(headers: &HeaderMap) -> bool {
    weight(headers, "text/event-stream").is_some_and(|weight| weight > 0.0)
}

/// Starts a stream after `since`, or after what the client saw last: browsers repeat the address of the first request.
pub(super) async fn start(peer: &Peer, headers: &HeaderMap, since: u64, of: Followed) -> Response {
    match begin(peer, headers, since, of).await {
        Ok(response) => response,
        Err(error) => error_response(&error),
    }
}

async fn begin(peer: &Peer, headers: &HeaderMap, since: u64, of: Followed) -> Result<Response, ErrorBody> {
    let since = match headers.get("last-event-id") {
        None => since,
        Some(id) => id.to_str().ok().and_then(|id| id.parse().ok()).ok_or_else(|| {
            ErrorBody::invalid("the header Last-Event-ID must be the `id` of an event: a revision, in decimal digits")
        })?,
    };
    let permit = peer.service.watch_permit(&peer.caller).ok_or_else(|| {
        let text = "limit of open watches reached, on this node or per client; retry, or ask another manager";
        ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(RETRY_PAUSE)
    })?;
    let mut follower = Follower { peer: peer.clone(), since, of, expects_long: since == 0 };
    // Before the answer begins: a refusal is an answer of its own.
    let first = follower.page(0).await?;
    let (to, lines) = mpsc::channel(1);
    tokio::spawn(follower.run(first, to, permit));
    let mut response = Response::new(Body::from_stream(stream::unfold((lines, None), part)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// The next part of the body. The connection asks for it once it has room: it has sent what is long of the one before.
async fn part((mut lines, read): Rest) -> Option<(Result<Bytes, Infallible>, Rest)> {
    drop(read);
    let (bytes, share) = lines.recv().await?;
    Some((Ok(bytes), (lines, share)))
}

/// What a client is sent next: a page, or that not every event after its place can be sent.
type Next = Result<Page, Expired>;

/// Some events after the client's place are no longer kept, or the place is later than any event: another incarnation of the cluster
/// gave it out.
struct Expired;

struct Follower {
    peer: Peer,
    since: u64,
    of: Followed,
    /// The first page has all objects. A later one that found no share is not made again before there is one.
    expects_long: bool,
}

impl Follower {
    async fn page(&mut self, wait_ms: u64) -> Result<Next, ErrorBody> {
        // Before the answer is made, if it is known to be long: others wait for news with it, and need no share for a short one.
        let share = if self.expects_long { self.share()? } else { None };
        let request = self.of.request(Revision(self.since), wait_ms);
        let call = ApiCall { id: 0, request_id: self.peer.request, timeout_ms: 30_000, request };
        let answer = match self.peer.service.answer_from(&self.peer.origin, self.peer.caller.clone(), call).await {
            Ok(answer) => answer,
            Err(error) if matches!(error.code, ErrorCode::Conflict | ErrorCode::Expired) => return Ok(Err(Expired)),
            Err(error) => return Err(error),
        };
        let share = match share {
            _ if answer.len() <= LONG_ANSWER_BYTES => None,
            Some(share) => Some(share),
            None => {
                // Without a share now, it is made again once there is one.
                self.expects_long = true;
                self.share()?
            }
        };
        self.expects_long = false;
        let page = self.of.page(&answer, self.since);
        let page = page.map_err(|e| ErrorBody::new(ErrorCode::Internal, e.to_string()))?;
        Ok(page.map(|page| Page { share, ..page }).ok_or(Expired))
    }

    /// Pages of events are short, or within the limit of a frame: the permit of the stream stands for them.
    fn share(&self) -> Result<Option<Share>, ErrorBody> {
        match self.of {
            Followed::Events => Ok(None),
            Followed::Objects { .. } => self.peer.service.long_answer(&self.peer.caller).map(Some),
        }
    }

    async fn run(mut self, mut next: Next, to: mpsc::Sender<Part>, _permit: WatchPermit) {
        let until = Instant::now() + MAX_STREAM;
        loop {
            // Nothing of a page stays here while the next one is waited for.
            let (text, share, revision) = match next {
                Ok(Page { revision, text, share, .. }) => (text, share, Some(revision)),
                Err(Expired) => ("event: expired\ndata: {}\n\n".to_owned(), None, None),
            };
            if !text.is_empty() {
                tokio::select! {
                    sent = to.send((text.into(), share)) => if sent.is_err() { return },
                    () = sleep_until(until) => return,
                }
            }
            let Some(revision) = revision else { return };
            self.since = revision;
            let mut comment_at = Instant::now() + COMMENT_INTERVAL;
            let reader = to.clone();
            let waiting = self.next();
            tokio::pin!(waiting);
            let found = loop {
                tokio::select! {
                    found = &mut waiting => break found,
                    () = reader.closed() => return,
                    () = sleep_until(until) => return,
                    () = sleep_until(comment_at) => {
                        // A reader that does not read needs no sign of life.
                        let _full = reader.try_send((Bytes::from_static(b":\n\n"), None));
                        comment_at = Instant::now() + COMMENT_INTERVAL;
                    }
                }
            };
            next = match found {
                Some(found) => found,
                None => return,
            };
        }
    }

    /// The next page with events, or the place has expired. `None`: the stream ends.
    async fn next(&mut self) -> Option<Next> {
        loop {
            let manager = self.peer.service.ports.manager.borrow().clone();
            let wait_ms = match &manager {
                None => RELAYED_WAIT_MS,
                Some(manager) => {
                    let (since, mut replicas) = (Revision(self.since), manager.replica.clone());
                    let newer = |replica: &Arc<Replica>| self.of.is_newer(&replica.tables, since);
                    // Its sender is gone with the runtime: the request finds another way, or fails.
                    let _stopped = replicas.wait_for(newer).await.is_err();
                    0
                }
            };
            match self.page(wait_ms).await {
                Ok(Ok(page)) if page.is_empty => self.since = page.revision,
                Ok(next) => return Some(next),
                Err(error) if error.code == ErrorCode::TooManyRequests => sleep(RETRY_PAUSE).await,
                Err(error) => {
                    tracing::debug!(%error, "event stream ended");
                    return None;
                }
            }
        }
    }
}

/// SSE-1. JSON text has no line breaks.
fn text_of(items: &[Value]) -> String {
    let mut text = String::new();
    for (at, event) in items.iter().enumerate() {
        let revision = &event["revision"];
        if items.get(at + 1).is_none_or(|next| next["revision"] != *revision) {
            text.push_str(&format!("id: {revision}\n"));
        }
        text.push_str(&format!("data: {event}\n\n"));
    }
    text
}

#[cfg(test)]
#[path = "event_stream_tests.rs"]
mod tests;
