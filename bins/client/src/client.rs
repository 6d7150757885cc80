//! The client of a daemon or of the managers: sends a request and repeats it until it is answered or its time limit is reached.

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use muster_gateway::Dialer;
use muster_kernel::Clock;
use muster_messages::wire::{ListOf, Page, Request};
use muster_messages::{
    ErrorBody, ErrorCode, EventsView, NodeListView, NodeView, RaftStatusView, RequestId, Revision, Role,
    RoleChangeView, StatusView,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::connection::{CallError, Connection};
use crate::failure::{Failure, Outcome};
use crate::identity;

/// The servers of a client.
#[derive(Clone, Debug)]
pub enum Target {
    /// The admin socket of the daemon on this machine.
    Socket(PathBuf),
    /// One of the managers, over TLS.
    Managers {
        /// Connects with the caller's identity.
        dialer: Box<Dialer>,
        /// Their addresses, `host:port`.
        managers: Vec<String>,
    },
}

/// Calls one server at a time, and reconnects when a connection is lost. A call may be cancelled: its outcome is then unknown.
pub struct Client {
    target: Target,
    connection: Option<Connection>,
    /// The manager of the current connection.
    connected_to: Option<String>,
    timeout: Duration,
    /// Called once when an answer takes longer than [`SLOW_ANSWER`].
    when_slow: Option<fn(&Target)>,
}

/// A client of the same servers with a connection of its own, opened by its first call. It reports no slow answers.
impl Clone for Client {
    fn clone(&self) -> Self {
        Self::to(self.target.clone(), self.timeout)
    }
}

/// An answer that takes longer is reported to a waiting person. An election takes about a second.
const SLOW_ANSWER: Duration = Duration::from_secs(3);

/// The pause between two attempts of one call: long enough not to spin, short compared to an election.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(50);

impl Client {
    /// A client of this target.
    pub fn to(target: Target, timeout: Duration) -> Self {
        Self { target, connection: None, connected_to: None, timeout, when_slow: None }
    }

    /// A client of an admin socket.
    pub fn to_socket(path: impl Into<PathBuf>, timeout: Duration) -> Self {
        Self::to(Target::Socket(path.into()), timeout)
    }

    /// Calls this once if an answer takes longer than 3 s.
    #[must_use]
    pub fn when_slow(mut self, notify: fn(&Target)) -> Self {
        self.when_slow = Some(notify);
        self
    }

    /// Its servers.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The time limit of a call.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Calls take this long at most from now on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Sends a request; returns the server's JSON text. A call of unknown outcome is repeated with the same request id, which
    /// the server recognises, until the time limit.
    pub async fn call(&mut self, request: Request) -> Outcome<String> {
        self.call_within(request, self.timeout).await
    }

    /// [`Client::call`] under a request id of the caller's: sent again with the same one, a write is not applied twice.
    pub async fn call_as(&mut self, id: RequestId, request: Request) -> Outcome<String> {
        self.call_until(id, request, self.timeout).await
    }

    /// [`Client::call`] with its own time limit.
    pub async fn call_within(&mut self, request: Request, timeout: Duration) -> Outcome<String> {
        let Some(notify) = self.when_slow.filter(|_| timeout > SLOW_ANSWER && !is_long_poll(&request)) else {
            return self.call_until(fresh_id(), request, timeout).await;
        };
        let target = self.target.clone();
        let mut call = Box::pin(self.call_until(fresh_id(), request, timeout));
        if let Ok(done) = tokio::time::timeout(SLOW_ANSWER, &mut call).await {
            return done;
        }
        notify(&target);
        let done = call.await;
        self.when_slow = None;
        done
    }

    async fn call_until(&mut self, request_id: RequestId, request: Request, timeout: Duration) -> Outcome<String> {
        let until = Instant::now() + timeout;
        let mut unknown_outcome: Option<Failure> = None; // the unknown outcome of an earlier attempt
        let mut skipped = 0;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let failure = match self.once(request.clone(), request_id, left).await {
                Ok(text) => return Ok(text),
                Err(CallError::Refused(body)) if body.code == ErrorCode::UnknownOutcome && !body.is_final() => {
                    body.into()
                }
                Err(CallError::Refused(body)) if body.code == ErrorCode::Unreachable => {
                    return Err(unknown_outcome.unwrap_or_else(|| body.into()));
                }
                Err(CallError::Refused(body))
                    if body.code == ErrorCode::NotAManager && self.skip_manager(&mut skipped) =>
                {
                    continue;
                }
                Err(CallError::Refused(body)) => return Err(body.into()),
                Err(CallError::TimedOut(_)) => {
                    // A frozen manager keeps its connections. The next call is another one's.
                    if let Target::Managers { .. } = self.target {
                        self.leave_manager();
                    }
                    return Err(unknown_outcome.unwrap_or_else(|| self.timed_out(timeout)));
                }
                Err(CallError::Lost(why)) => {
                    let lost = self.lost(&why);
                    self.leave_manager();
                    lost
                }
            };
            if Instant::now() + RETRY_PAUSE >= until {
                return Err(failure);
            }
            unknown_outcome = Some(failure);
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Sends a request and parses the answer.
    pub async fn ask<T: DeserializeOwned>(&mut self, request: Request) -> Outcome<T> {
        parse(&self.call(request).await?)
    }

    /// The cluster in short. Without a quorum a manager answers from what it knows, with `stale`.
    pub async fn status(&mut self) -> Outcome<StatusView> {
        self.ask(Request::Status { fresh: false }).await
    }

    /// All nodes, with the revision that they were read at.
    pub async fn nodes(&mut self) -> Outcome<NodeListView> {
        parse(&self.list(ListOf::Nodes, false).await?)
    }

    /// One node, by its id, the beginning of that, or its name.
    pub async fn node(&mut self, node: &str) -> Outcome<NodeView> {
        self.ask(Request::NodeInspect { node: node.to_owned(), fresh: false }).await
    }

    /// Asks for a role. It is accepted when this returns, and in force when [`Client::wait_until_settled`] does.
    pub async fn set_role(&mut self, node: &str, role: Role) -> Outcome<RoleChangeView> {
        self.ask(Request::SetRole { node: node.to_owned(), role }).await
    }

    /// A whole list as one JSON text, fetched in pages.
    pub async fn list(&mut self, of: ListOf, fresh: bool) -> Outcome<String> {
        let (mut whole, mut page) = (None, Page::default());
        loop {
            let mut next_page: ListPage = self.ask(Request::Page { of, page: page.clone(), fresh }).await?;
            let next = next_page.next.take();
            let document = match whole.take() {
                None => next_page,
                Some(whole) => joined(whole, next_page),
            };
            match next {
                Some(next) if page.after.as_ref() != Some(&next) => page.after = Some(next),
                _ => return serde_json::to_string(&document).map_err(Failure::internal),
            }
            whole = Some(document);
        }
    }

    /// All events after a revision, fetched in pages.
    pub async fn events(&mut self, since: Revision) -> Outcome<EventsView<Value>> {
        let (mut whole, mut since) = (None, since);
        loop {
            let page = self.ask(Request::Events { since, wait_ms: 0 }).await?;
            match EventsView::joined(whole.take(), page) {
                (document, Some(next)) if next > since => (whole, since) = (Some(document), next),
                (document, _) => return Ok(document),
            }
        }
    }

    /// Moves on to the next manager after one that has become a worker since its address was recorded. False if all were tried.
    fn skip_manager(&mut self, skipped: &mut usize) -> bool {
        self.leave_manager();
        let Target::Managers { managers, .. } = &self.target else {
            return false;
        };
        *skipped += 1;
        *skipped < managers.len()
    }

    /// Closes the connection. Its manager is the last one to be tried again.
    pub(crate) fn leave_manager(&mut self) {
        self.connection = None;
        let used = self.connected_to.take();
        if let Target::Managers { managers, .. } = &mut self.target
            && let Some(used) = used.and_then(|used| managers.iter().position(|m| *m == used))
        {
            let left = managers.remove(used);
            managers.push(left);
        }
    }

    /// Learns the addresses of today's managers, for the next connections. Those of a socket's daemon are its own business.
    pub(crate) async fn learn_managers(&mut self) -> Outcome {
        if let Target::Socket(_) = self.target {
            return Ok(());
        }
        let raft: RaftStatusView = self.ask(Request::RaftStatus { fresh: false }).await?;
        let current = self.connected_to.clone();
        if let Target::Managers { managers, .. } = &mut self.target
            && !raft.members.is_empty()
        {
            *managers = raft.members.into_iter().map(|member| member.addr).collect();
            managers.sort_by_key(|addr| Some(addr) != current.as_ref());
        }
        Ok(())
    }

    async fn once(&mut self, request: Request, id: RequestId, timeout: Duration) -> Result<String, CallError> {
        // Taken out: a call that is cancelled may have sent half of itself, and closes its connection.
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let (fresh, to) = connect(&self.target).await.map_err(CallError::Refused)?;
                self.connected_to = to;
                fresh
            }
        };
        let answer = connection.call(request, id, timeout).await;
        self.connection = Some(connection);
        answer
    }

    fn timed_out(&self, timeout: Duration) -> Failure {
        Failure::new(ErrorCode::TimedOut, format!("no answer from {} within {timeout:?}", self.target))
    }

    fn lost(&self, why: &str) -> Failure {
        // Reads end here as well: what to check before a repetition is the command's to say.
        let message = format!("lost the connection to {} ({why}): the outcome of the request is unknown", self.target);
        Failure::new(ErrorCode::UnknownOutcome, message)
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Socket(path) => path.display().fmt(f),
            Target::Managers { managers, .. } => f.write_str(&managers.join(", ")),
        }
    }
}

async fn connect(target: &Target) -> Result<(Connection, Option<String>), ErrorBody> {
    match target {
        Target::Socket(path) => {
            let connection = Connection::to_socket(path).await.map_err(|e| no_socket(path, &e))?;
            Ok((connection, None))
        }
        Target::Managers { dialer, managers } => {
            let (connection, manager) = identity::connect(dialer, managers).await?;
            Ok((connection, Some(manager)))
        }
    }
}

fn fresh_id() -> RequestId {
    RequestId::fresh(Clock.wall(), rand::random())
}

/// Why no daemon answers at an admin socket.
pub fn no_socket(path: &Path, error: &std::io::Error) -> ErrorBody {
    let is_socket = std::fs::metadata(path).is_ok_and(|it| it.file_type().is_socket());
    let path = path.display();
    let message = match error.kind() {
        ErrorKind::NotFound => format!("no daemon serves {path}: there is no such socket"),
        ErrorKind::ConnectionRefused if !is_socket => format!("{path} is not a socket"),
        ErrorKind::ConnectionRefused => format!("no daemon serves {path}: the socket was left by a daemon that ended"),
        _ => format!("cannot connect to {path}: {error}"),
    };
    ErrorBody::new(ErrorCode::Unreachable, message)
}

/// Whether the answer may take long because the server waits for changes.
fn is_long_poll(request: &Request) -> bool {
    matches!(request, Request::Events { .. } | Request::NodeWatch { .. } | Request::Lease(_) | Request::Reconciler(_))
}

/// A page of any list. Items and unknown fields are passed on as they came.
#[derive(Serialize, Deserialize)]
struct ListPage {
    items: Vec<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stale: Option<bool>,
    #[serde(rename = "continue", default, skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// Appends a page. Other fields stay those of the first page, but one stale page makes the whole list stale.
fn joined(mut whole: ListPage, mut next_page: ListPage) -> ListPage {
    whole.items.append(&mut next_page.items);
    if next_page.stale == Some(true) && whole.stale != Some(true) {
        whole.stale = Some(true);
        let as_of = "as_of";
        whole.rest.insert(as_of.to_owned(), next_page.rest.remove(as_of).unwrap_or_default());
    }
    whole
}

/// Parses a server's JSON text.
pub fn parse<T: DeserializeOwned>(text: &str) -> Outcome<T> {
    serde_json::from_str(text).map_err(|e| Failure::internal(format!("unexpected answer from the daemon: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn regular_file_is_not_reported_as_socket() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = Connection::to_socket(file.path()).await.err().unwrap();
        assert!(no_socket(file.path(), &error).message.ends_with("is not a socket"));
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join("muster.sock");
        drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
        let error = Connection::to_socket(&left).await.err().unwrap();
        assert!(no_socket(&left, &error).message.contains("left by a daemon"));
    }
}
