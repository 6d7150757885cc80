//! A cluster over `muster-api/1`: many questions in flight on one connection, and another connection when it is gone or
//! says nothing.
//!
//! Keeps  LINK-1  a question that one manager does not answer is put to another while the first may still answer: a frozen
//!                manager costs a lease nothing. Everything asked here may be asked twice.
//! Why a connection is not closed when it falls silent: it may be slow because the cluster is, and what is on its way over it
//! still counts.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use muster_gateway::{BoxStream, Dialer, Framed, FramedReader, FramedWriter};
use muster_kernel::Clock;
use muster_messages::protocol::Service;
use muster_messages::wire::{ApiAnswer, ApiCall, KubeAnswer, KubeCall, LeaseRequest, ReconcilerRequest, Request};
use muster_messages::{ErrorBody, ErrorCode, RequestId, millis};
use serde_json::{Value, json};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::net::UnixStream;
use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::kubernetes::{ApiError, ApiRequest, KubeApi};
use crate::ports::Cluster;

/// Questions without an answer on one connection; a manager takes some 256.
const IN_FLIGHT: usize = 200;

/// When a question is put to another manager as well: a part of its patience, within these bounds. The lower is far above a
/// round trip, the upper leaves a renewal of a 15 s lease three more chances.
const DOUBT: std::ops::RangeInclusive<Duration> = Duration::from_millis(50)..=Duration::from_secs(2);

/// What a watch may take beyond the time that it waits.
const WATCH_DOUBT: Duration = Duration::from_millis(500);

/// A fresh connection is not doubted: through a change of leader every manager is silent for a while.
const PROBATION: Duration = Duration::from_millis(250);

/// How often one question is put.
const TRIES: u32 = 4;

/// How long a connection that nobody asks on any more may still answer. The longest a question is of use.
const LINGER: Duration = Duration::from_secs(30);

/// How long a request to the Kubernetes subset may take: what client-go gives one of a 15 s lease.
const KUBE_PATIENCE: Duration = Duration::from_secs(5);

/// How much later the next manager is dialled while one has not answered the call.
const STAGGER: Duration = Duration::from_millis(150);

/// Where a link's connections come from.
pub trait Connect: Send + Sync + 'static {
    /// Connects: to another place than the last time, if there is one.
    fn connect(&self) -> BoxFuture<'static, Result<Framed<BoxStream>, ErrorBody>>;
    /// These are managers, says one that is none any more.
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

/// Managers over TLS, in turns.
pub struct Managers {
    dialer: Dialer,
    /// The next one first.
    addrs: Arc<Mutex<VecDeque<String>>>,
}

impl Managers {
    /// Through a dialer that speaks as somebody.
    pub fn new(dialer: Dialer, addrs: impl IntoIterator<Item = String>) -> Self {
        Self { dialer, addrs: Arc::new(Mutex::new(addrs.into_iter().collect())) }
    }
}

impl Connect for Managers {
    fn connect(&self) -> BoxFuture<'static, Result<Framed<BoxStream>, ErrorBody>> {
        let (dialer, order) = (self.dialer.clone(), Arc::clone(&self.addrs));
        let mut addrs = locked(&order).clone().into_iter();
        async move {
            let mut trouble = unreachable("no manager is known".to_owned());
            let dial = |addr: String| {
                let dialer = &dialer;
                async move { (dialer.dial(&addr, Service::Api, None).await, addr) }
            };
            let mut dials: FuturesUnordered<_> = addrs.next().map(dial).into_iter().collect();
            while !dials.is_empty() {
                tokio::select! {
                    Some((dialed, addr)) = dials.next() => match dialed {
                        Ok(dialed) => {
                            let mut order = locked(&order);
                            order.retain(|known| *known != addr);
                            order.push_back(addr); // the last to be asked next time
                            return Ok(dialed.stream);
                        }
                        Err(error) => {
                            let code = error.refusal().map_or(ErrorCode::Unreachable, |refusal| refusal.reason.code());
                            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
                            trouble = ErrorBody::new(code, format!("{error}{}", cause.unwrap_or_default()));
                            dials.extend(addrs.next().map(dial));
                        }
                    },
                    // Without waiting long for any: a frozen manager accepts and never greets.
                    () = tokio::time::sleep(STAGGER), if addrs.len() > 0 => dials.extend(addrs.next().map(dial)),
                }
            }
            Err(trouble)
        }
        .boxed()
    }

    fn learn(&self, managers: Vec<String>) {
        if !managers.is_empty() {
            *locked(&self.addrs) = managers.into();
        }
    }
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Link {
    connect: Arc<dyn Connect>,
    current: Arc<AsyncMutex<Lines>>,
}

#[derive(Default)]
struct Lines {
    made: u64,
    current: Option<Line>,
}

/// One connection. Its task answers every question, or drops it with the connection.
#[derive(Clone)]
struct Line {
    number: u64,
    since: Instant,
    questions: mpsc::Sender<Question>,
}

struct Question {
    call: ApiCall,
    reply: oneshot::Sender<Result<String, ErrorBody>>,
}

enum Tried {
    Answered(Result<String, ErrorBody>),
    /// Not this way.
    Failed(ErrorBody),
}

impl Link {
    /// A link that connects when it is first used.
    pub fn new(connect: impl Connect) -> Self {
        Self { connect: Arc::new(connect), current: Arc::default() }
    }

    /// Asks anything that may be asked twice.
    pub async fn request(&self, request: Request, patience: Duration) -> Result<String, ErrorBody> {
        let until = Instant::now() + patience;
        let id = RequestId::fresh(Clock.wall(), rand::random());
        let doubt = match waits(&request) {
            // Silence is what a watch is for.
            Some(wait_ms) => Duration::from_millis(wait_ms) + WATCH_DOUBT,
            None => (patience / 4).clamp(*DOUBT.start(), *DOUBT.end()),
        };
        let call = || {
            let left = until.saturating_duration_since(Instant::now());
            let timeout_ms = millis(left);
            ApiCall { id: 0, request_id: id, timeout_ms, request: request.clone() }
        };
        // The line that the question is on. Known to the attempts alone, because looking it up may have to wait for one of them.
        let used = AtomicU64::new(0);
        let mut tries = FuturesUnordered::from_iter([self.put(call(), None, &used)]);
        let mut left = TRIES - 1;
        let mut doubt_at = Instant::now() + doubt;
        let mut trouble = ErrorBody::new(ErrorCode::TimedOut, format!("no answer within {patience:?}"));
        loop {
            tokio::select! {
                Some(tried) = tries.next() => match tried {
                    Tried::Answered(answer) => return answer,
                    Tried::Failed(because) => {
                        trouble = because;
                        match left.checked_sub(1) {
                            Some(fewer) => {
                                left = fewer;
                                tries.push(self.put(call(), None, &used));
                            }
                            None if tries.is_empty() => return Err(trouble),
                            None => {}
                        }
                    }
                },
                () = sleep_until(doubt_at), if left > 0 => {
                    left -= 1;
                    doubt_at += doubt;
                    tries.push(self.put(call(), Some(used.load(Ordering::Relaxed)), &used));
                }
                () = sleep_until(until) => return Err(trouble),
            }
        }
    }

    /// Puts a question once, on another line than a silent one.
    async fn put(&self, call: ApiCall, silent: Option<u64>, used: &AtomicU64) -> Tried {
        let line = match self.line(silent).await {
            Ok(line) => line,
            Err(because) => return Tried::Failed(because),
        };
        used.store(line.number, Ordering::Relaxed);
        let (reply, answer) = oneshot::channel();
        let lost = || ErrorBody::new(ErrorCode::UnknownOutcome, "the connection was lost");
        if line.questions.send(Question { call, reply }).await.is_err() {
            self.leave(line.number).await;
            return Tried::Failed(lost());
        }
        match answer.await {
            Ok(Err(body)) if is_elsewhere(body.code) => {
                self.connect.learn(named_managers(&body));
                self.leave(line.number).await;
                Tried::Failed(body)
            }
            Ok(answer) => Tried::Answered(answer),
            Err(_) => {
                self.leave(line.number).await;
                Tried::Failed(lost())
            }
        }
    }

    /// The current line, or a new one.
    async fn line(&self, silent: Option<u64>) -> Result<Line, ErrorBody> {
        let mut lines = self.current.lock().await;
        if let Some(line) = &lines.current {
            let doubted = silent == Some(line.number) && line.since.elapsed() > PROBATION;
            if !doubted && !line.questions.is_closed() {
                return Ok(line.clone());
            }
        }
        let stream = self.connect.connect().await?;
        let (questions, asked) = mpsc::channel(IN_FLIGHT);
        tokio::spawn(converse(stream, asked));
        lines.made += 1;
        let line = Line { number: lines.made, since: Instant::now(), questions };
        lines.current = Some(line.clone());
        Ok(line)
    }

    /// Asks no more on this line; what it was asked, it may still answer.
    async fn leave(&self, number: u64) {
        self.current.lock().await.current.take_if(|line| line.number == number);
    }
}

impl Cluster for Link {
    fn ask(&self, request: LeaseRequest, patience: Duration) -> BoxFuture<'static, Result<String, ErrorBody>> {
        let link = self.clone();
        async move { link.request(Request::Lease(request), patience).await }.boxed()
    }
}

/// A Muster cluster's own Kubernetes subset. Only writes travel over `muster-api/1`; a change of nothing that is not even made
/// shows the object as the leader has it.
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
            let text = link.request(Request::Kube(call), KUBE_PATIENCE).await.map_err(|body| failed(body.message))?;
            let answer: KubeAnswer = serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?;
            let object: Value = serde_json::from_str(&answer.body).unwrap_or_default();
            if answer.status < 300 {
                return Ok(object);
            }
            let message = object["message"].as_str().unwrap_or("it did not say why").to_owned();
            Err(ApiError { status: answer.status, message })
        }
        .boxed()
    }
}

/// Carries questions and answers until the stream ends, or nobody asks any more.
async fn converse(stream: Framed<BoxStream>, asked: mpsc::Receiver<Question>) {
    let (reader, writer) = stream.split();
    let open = Arc::new(Mutex::new(BTreeMap::new()));
    tokio::select! {
        () = hear(reader, &open) => {}
        () = say(writer, asked, &open) => {}
    }
}

type Open = Arc<Mutex<BTreeMap<u64, oneshot::Sender<Result<String, ErrorBody>>>>>;

async fn hear(mut reader: FramedReader<ReadHalf<BoxStream>>, open: &Open) {
    while let Ok(Some(answer)) = reader.recv::<ApiAnswer>().await {
        if let Some(reply) = locked(open).remove(&answer.id) {
            let _gave_up = reply.send(answer.result);
        }
    }
}

async fn say(mut writer: FramedWriter<WriteHalf<BoxStream>>, mut asked: mpsc::Receiver<Question>, open: &Open) {
    let mut number = 0;
    while let Some(Question { mut call, reply }) = asked.recv().await {
        number += 1;
        call.id = number;
        {
            let mut open = locked(open);
            open.retain(|_, reply| !reply.is_closed()); // whoever gave up frees a place
            if open.len() >= IN_FLIGHT {
                continue; // dropped: it is put again, elsewhere
            }
            open.insert(number, reply);
        }
        if writer.send(&call).await.is_err() {
            return;
        }
    }
    tokio::time::sleep(LINGER).await;
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

/// Another manager may do better.
fn is_elsewhere(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::NotAManager | ErrorCode::NotKnownHereYet | ErrorCode::NoQuorum | ErrorCode::Unreachable)
}

fn named_managers(error: &ErrorBody) -> Vec<String> {
    let details: serde_json::Value = serde_json::from_str(&error.details).unwrap_or_default();
    serde_json::from_value(details["managers"].clone()).unwrap_or_default()
}

fn unreachable(message: String) -> ErrorBody {
    ErrorBody::new(ErrorCode::Unreachable, message)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
