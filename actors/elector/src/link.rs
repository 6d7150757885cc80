//! A cluster over `muster-api/1`: many requests in flight on one connection, and another connection when it is lost or silent.
//!
//! Invariants  LINK-1  a request that one manager does not answer is sent to another while the first may still answer: a frozen
//!                     manager costs a lease nothing. Every request sent here may be repeated.
//! Why a silent connection stays open: it may be slow because the cluster is, and requests in flight on it still count.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use muster_kernel::Clock;
use muster_messages::frames::{FramedReader, FramedWriter};
use muster_messages::wire::{ApiAnswer, ApiCall, KubeAnswer, KubeCall, LeaseRequest, ReconcilerRequest, Request};
use muster_messages::{ErrorBody, ErrorCode, RequestId, detail, millis};
use serde_json::{Value, json};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::net::UnixStream;
use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::kubernetes::{ApiError, ApiRequest, KubeApi};
use crate::ports::Cluster;

/// What [`Connect`] makes.
pub use muster_messages::frames::{BoxStream, Framed};

/// Unanswered requests on one connection; a manager accepts some 256.
const MAX_IN_FLIGHT: usize = 200;

/// When a request is also sent to another manager: after a part of its timeout, within these bounds. The lower is far above a
/// round trip, the upper leaves a renewal of a 15 s lease three more chances.
const SILENCE_LIMITS: std::ops::RangeInclusive<Duration> = Duration::from_millis(50)..=Duration::from_secs(2);

/// The same for a watch, beyond the time that it waits.
const WATCH_SILENCE_LIMIT: Duration = Duration::from_millis(500);

/// A new connection is not doubted: every manager is silent during a change of leader.
const NEW_CONNECTION_GRACE: Duration = Duration::from_millis(250);

/// How often one request is sent.
const MAX_ATTEMPTS: u32 = 4;

/// How long a connection without new requests may still answer. No request is useful for longer.
const DRAIN_TIME: Duration = Duration::from_secs(30);

/// Time limit for a request to the Kubernetes subset: client-go's for a 15 s lease.
const KUBE_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The source of a link's connections.
pub trait Connect: Send + Sync + 'static {
    /// Connects, to another manager than the last time if there is one.
    fn connect(&self) -> BoxFuture<'static, Result<Framed<BoxStream>, ErrorBody>>;
    /// A node that is no longer a manager named these managers.
    fn learn(&self, managers: Vec<String>) {
        let _ = managers;
    }
}

/// A daemon's admin socket.
pub struct Socket(pub PathBuf);

impl Connect for Socket {
    fn connect(&self) -> BoxFuture<'static, Result<Framed<BoxStream>, ErrorBody>> {
        let path = self.0.clone();
        async move {
            let stream = UnixStream::connect(&path).await;
            let stream =
                stream.map_err(|error| unreachable(format!("cannot connect to {}: {error}", path.display())))?;
            Ok(Framed::new(Box::pin(stream) as BoxStream))
        }
        .boxed()
    }
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Link {
    connect: Arc<dyn Connect>,
    current: Arc<AsyncMutex<Connections>>,
}

#[derive(Default)]
struct Connections {
    made: u64,
    current: Option<Connection>,
}

/// One connection. Its task answers every request, or drops it with the connection.
#[derive(Clone)]
struct Connection {
    number: u64,
    since: Instant,
    calls: mpsc::Sender<PendingCall>,
}

struct PendingCall {
    call: ApiCall,
    reply: oneshot::Sender<Result<String, ErrorBody>>,
}

enum Attempt {
    Answered(Result<String, ErrorBody>),
    /// Not over this connection.
    Failed(ErrorBody),
}

impl Link {
    /// A link that connects when it is first used.
    pub fn new(connect: impl Connect) -> Self {
        Self { connect: Arc::new(connect), current: Arc::default() }
    }

    /// Sends a request that may be repeated.
    pub async fn request(&self, request: Request, timeout: Duration) -> Result<String, ErrorBody> {
        let until = Instant::now() + timeout;
        let id = RequestId::fresh(Clock.wall(), rand::random());
        let silence_limit = match waits(&request) {
            // A watch is expected to be silent.
            Some(wait_ms) => Duration::from_millis(wait_ms) + WATCH_SILENCE_LIMIT,
            None => (timeout / 4).clamp(*SILENCE_LIMITS.start(), *SILENCE_LIMITS.end()),
        };
        let call = || {
            let left = until.saturating_duration_since(Instant::now());
            let timeout_ms = millis(left);
            ApiCall { id: 0, request_id: id, timeout_ms, request: request.clone() }
        };
        // The connection that the request is on. Only the attempts know it: looking it up may have to wait for one of them.
        let used = AtomicU64::new(0);
        let mut attempts = FuturesUnordered::from_iter([self.send_once(call(), None, &used)]);
        let mut left = MAX_ATTEMPTS - 1;
        let mut silence_limit_at = Instant::now() + silence_limit;
        let mut trouble = ErrorBody::new(ErrorCode::TimedOut, format!("no answer within {timeout:?}"));
        loop {
            tokio::select! {
                Some(attempt) = attempts.next() => match attempt {
                    Attempt::Answered(answer) => return answer,
                    Attempt::Failed(because) => {
                        trouble = because;
                        match left.checked_sub(1) {
                            Some(fewer) => {
                                left = fewer;
                                attempts.push(self.send_once(call(), None, &used));
                            }
                            None if attempts.is_empty() => return Err(trouble),
                            None => {}
                        }
                    }
                },
                () = sleep_until(silence_limit_at), if left > 0 => {
                    left -= 1;
                    silence_limit_at += silence_limit;
                    attempts.push(self.send_once(call(), Some(used.load(Ordering::Relaxed)), &used));
                }
                () = sleep_until(until) => return Err(trouble),
            }
        }
    }

    /// Sends a request once, on another connection than a silent one.
    async fn send_once(&self, call: ApiCall, silent: Option<u64>, used: &AtomicU64) -> Attempt {
        let connection = match self.connection(silent).await {
            Ok(connection) => connection,
            Err(because) => return Attempt::Failed(because),
        };
        used.store(connection.number, Ordering::Relaxed);
        let (reply, answer) = oneshot::channel();
        let lost = || ErrorBody::unknown_outcome("the connection was lost");
        if connection.calls.send(PendingCall { call, reply }).await.is_err() {
            self.leave(connection.number).await;
            return Attempt::Failed(lost());
        }
        match answer.await {
            Ok(Err(body)) if is_elsewhere(body.code) => {
                self.connect.learn(named_managers(&body));
                self.leave(connection.number).await;
                Attempt::Failed(body)
            }
            Ok(answer) => Attempt::Answered(answer),
            Err(_) => {
                self.leave(connection.number).await;
                Attempt::Failed(lost())
            }
        }
    }

    /// The current connection, or a new one.
    async fn connection(&self, silent: Option<u64>) -> Result<Connection, ErrorBody> {
        let mut connections = self.current.lock().await;
        if let Some(connection) = &connections.current {
            let too_silent = silent == Some(connection.number) && connection.since.elapsed() > NEW_CONNECTION_GRACE;
            if !too_silent && !connection.calls.is_closed() {
                return Ok(connection.clone());
            }
        }
        let stream = self.connect.connect().await?;
        let (calls, asked) = mpsc::channel(MAX_IN_FLIGHT);
        tokio::spawn(serve_connection(stream, asked));
        connections.made += 1;
        let connection = Connection { number: connections.made, since: Instant::now(), calls };
        connections.current = Some(connection.clone());
        Ok(connection)
    }

    /// Sends nothing more on this connection; requests in flight may still be answered.
    async fn leave(&self, number: u64) {
        self.current.lock().await.current.take_if(|connection| connection.number == number);
    }
}

impl Cluster for Link {
    fn ask(&self, request: LeaseRequest, timeout: Duration) -> BoxFuture<'static, Result<String, ErrorBody>> {
        let link = self.clone();
        async move { link.request(Request::Lease(request), timeout).await }.boxed()
    }
}

/// A Muster cluster's own Kubernetes subset. `muster-api/1` carries only writes: an empty dry-run patch returns the leader's
/// object.
impl KubeApi for Link {
    fn call(&self, request: ApiRequest) -> BoxFuture<'static, Result<Value, ApiError>> {
        let json = "application/json";
        let (method, target, content_type, body) = match request {
            ApiRequest::Get { path } => ("PATCH", path + "?dryRun=All", "application/merge-patch+json", json!({})),
            ApiRequest::Post { path, body } => ("POST", path, json, body),
            ApiRequest::Put { path, body } => ("PUT", path, json, body),
            ApiRequest::Delete { path } => ("DELETE", path, json, json!({})),
        };
        let call = KubeCall {
            method: method.to_owned(),
            target,
            content_type: Some(content_type.to_owned()),
            accept: Some(json.to_owned()),
            user_agent: Some("muster/leader-election".to_owned()),
            body: body.to_string().into_bytes(),
        };
        let link = self.clone();
        async move {
            let failed = |message: String| ApiError { status: 0, message };
            let text =
                link.request(Request::Kube(call), KUBE_REQUEST_TIMEOUT).await.map_err(|body| failed(body.message))?;
            let answer: KubeAnswer = serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?;
            let object: Value = serde_json::from_str(&answer.body).unwrap_or_default();
            if answer.status < 300 {
                return Ok(object);
            }
            let message = object["message"].as_str().unwrap_or("no reason given").to_owned();
            Err(ApiError { status: answer.status, message })
        }
        .boxed()
    }
}

/// Carries requests and answers until the stream ends, or no sender is left.
async fn serve_connection(stream: Framed<BoxStream>, asked: mpsc::Receiver<PendingCall>) {
    let (reader, writer) = stream.split();
    let open = Arc::new(Mutex::new(BTreeMap::new()));
    tokio::select! {
        () = read_answers(reader, &open) => {}
        () = write_calls(writer, asked, &open) => {}
    }
}

type Open = Arc<Mutex<BTreeMap<u64, oneshot::Sender<Result<String, ErrorBody>>>>>;

async fn read_answers(mut reader: FramedReader<ReadHalf<BoxStream>>, open: &Open) {
    while let Ok(Some(answer)) = reader.recv::<ApiAnswer>().await {
        if let Some(reply) = locked(open).remove(&answer.id) {
            let _gave_up = reply.send(answer.result);
        }
    }
}

async fn write_calls(
    mut writer: FramedWriter<WriteHalf<BoxStream>>,
    mut asked: mpsc::Receiver<PendingCall>,
    open: &Open,
) {
    let mut number = 0;
    while let Some(PendingCall { mut call, reply }) = asked.recv().await {
        number += 1;
        call.id = number;
        {
            let mut open = locked(open);
            open.retain(|_, reply| !reply.is_closed()); // a caller that gave up frees its permit
            if open.len() >= MAX_IN_FLIGHT {
                continue; // dropped: it is sent again, elsewhere
            }
            open.insert(number, reply);
        }
        if writer.send(&call).await.is_err() {
            return;
        }
    }
    tokio::time::sleep(DRAIN_TIME).await;
}

/// How long a watch waits for news.
fn waits(request: &Request) -> Option<u64> {
    use ReconcilerRequest as R;
    match request {
        Request::Lease(LeaseRequest::Watch { wait_ms, .. }) => Some(*wait_ms),
        Request::Reconciler(
            R::Status { wait_ms, .. }
            | R::Admission { wait_ms, .. }
            | R::Definitions { wait_ms, .. }
            | R::View { wait_ms, .. },
        ) => Some(*wait_ms),
        _ => None,
    }
}

/// Another manager may be able to answer.
fn is_elsewhere(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::NotAManager | ErrorCode::NotKnownHereYet | ErrorCode::NoQuorum | ErrorCode::Unreachable)
}

fn named_managers(error: &ErrorBody) -> Vec<String> {
    error.detail(detail::MANAGERS).unwrap_or_default()
}

pub(crate) fn unreachable(message: String) -> ErrorBody {
    ErrorBody::new(ErrorCode::Unreachable, message)
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
