//! Connections to the socket: HTTP/2, and in it the calls of the Workload API.
//!
//! Owns        connections, each with the process that opened it.
//! Why hyper and not tonic's own server: a connection is bound to one process, is refused before a byte is read, and ends with that
//! process. tonic gives what is gRPC about a call.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::Stream;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use muster_kernel::Address;
use prost::Message;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::server::{Grpc, ServerStreamingService};
use tonic::{Code, Status};

use crate::attest::Peer;
use crate::authority::ClientStream;
use crate::core::{Answer, Denial, Kind, MAX_STREAMS, MAX_STREAMS_OF_USER};
use crate::proto::{Empty, ProtoCodec, SECURITY_HEADER, X509BundlesResponse, X509Svid, X509SvidResponse};
use crate::shell::{Ask, Msg};

/// Connections: one for each stream, and some that are about to ask. A client has a connection for each of its sources.
const MAX_CONNECTIONS: usize = MAX_STREAMS + 100;
const MAX_CONNECTIONS_OF_USER: usize = MAX_STREAMS_OF_USER + 20;
/// Calls at once on one connection.
const MAX_CALLS: u32 = 32;
/// A call without an answer is given up after this; the first answer of a stream comes earlier, or is a refusal.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// Connections without a call are closed after one to two of these. Clients connect again when they need to.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Requests are empty; tokens, when there will be calls about them, are below 16 KiB.
const MAX_REQUEST_BYTES: usize = 64 << 10;
/// Metadata of a request.
const MAX_HEADER_BYTES: u32 = 16 << 10;
/// After an error of the socket, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a stream's client is to be told next: a watched value, because each message replaces the one before.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    Nothing,
    Answer(Arc<Answer>),
    Ended(Denial),
}

/// Counts connections by user; a permit is given back when it is dropped.
#[derive(Clone, Default)]
struct Connections(Arc<Mutex<BTreeMap<u32, usize>>>);

struct Permit(Connections, u32);

impl Connections {
    fn admit(&self, uid: u32) -> Option<Permit> {
        let mut users = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, of_user) = (users.values().sum::<usize>(), users.get(&uid).copied().unwrap_or(0));
        if all >= MAX_CONNECTIONS || of_user >= MAX_CONNECTIONS_OF_USER {
            return None;
        }
        users.insert(uid, of_user + 1);
        Some(Permit(self.clone(), uid))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut users = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of_user) = users.get_mut(&self.1) {
            *of_user -= 1;
            if *of_user == 0 {
                users.remove(&self.1);
            }
        }
    }
}

/// Accepts connections until the incarnation ends.
pub(crate) async fn accept(listener: UnixListener, to: Address<Msg>, ended: CancellationToken) {
    let connections = Connections::default();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to the workload socket");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Refused by closing: a client comes back after a pause, as after `Unavailable`.
        let Ok(peer) = Peer::of(&stream) else { continue };
        let Some(permit) = connections.admit(peer.uid) else {
            tracing::debug!(uid = peer.uid, "too many connections to the workload socket");
            continue;
        };
        let (to, ended) = (to.clone(), ended.child_token());
        tokio::spawn(async move {
            let _until_it_ends = permit;
            tokio::select! {
                () = ended.cancelled() => {}
                () = connection(stream, Arc::new(peer), to, ended.clone()) => {}
            }
            ended.cancel(); // what hyper started for it
        });
    }
}

/// Calls of one connection.
#[derive(Default)]
struct Calls {
    open: AtomicUsize,
    begun: AtomicU64,
}

/// A call; dropped with its stream.
struct Call(Arc<Calls>);

impl Call {
    fn begin(calls: &Arc<Calls>) -> Self {
        calls.open.fetch_add(1, Ordering::Relaxed);
        calls.begun.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(calls))
    }
}
impl Drop for Call {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs hyper's tasks until the connection's end.
#[derive(Clone)]
struct Within(CancellationToken);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Within {
    fn execute(&self, task: F) {
        let ended = self.0.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = ended.cancelled() => {}
                () = task => {}
            }
        });
    }
}

/// Serves one connection until it, the process that opened it, or this incarnation ends.
async fn connection(stream: UnixStream, peer: Arc<Peer>, to: Address<Msg>, ended: CancellationToken) {
    let calls = Arc::new(Calls::default());
    let service = {
        let (peer, calls) = (Arc::clone(&peer), Arc::clone(&calls));
        service_fn(move |request| {
            let call = Fetch { peer: Arc::clone(&peer), to: to.clone(), call: Some(Call::begin(&calls)) };
            async move { Ok::<_, Infallible>(answer(call, request).await) }
        })
    };
    let mut http = http2::Builder::new(Within(ended));
    http.timer(TokioTimer::new()).max_concurrent_streams(MAX_CALLS).max_header_list_size(MAX_HEADER_BYTES);
    let mut serving = pin!(http.serve_connection(TokioIo::new(ClientStream::new(stream)), service));
    let (mut idle, mut begun) = (tokio::time::interval(IDLE_TIMEOUT), 0);
    idle.reset();
    loop {
        tokio::select! {
            _ = serving.as_mut() => return,
            () = peer.ended() => return,
            _ = idle.tick() => {
                let now = calls.begun.load(Ordering::Relaxed);
                if calls.open.load(Ordering::Relaxed) == 0 && begun == now {
                    serving.as_mut().graceful_shutdown();
                }
                begun = now;
            }
        }
    }
}

/// Answers one call.
async fn answer(fetch: Fetch, request: Request<Incoming>) -> Response<Body> {
    let mut given = request.headers().get_all(SECURITY_HEADER).iter();
    if (given.next().map(|value| value.as_bytes()), given.next()) != (Some(b"true"), None) {
        return Status::invalid_argument(format!("the metadata {SECURITY_HEADER}: true is required, once")).into_http();
    }
    let method = request.uri().path().strip_prefix("/SpiffeWorkloadAPI/").unwrap_or_default().to_owned();
    let answered = async {
        match method.as_str() {
            "FetchX509SVID" => streaming::<X509SvidResponse>(fetch, request).await,
            "FetchX509Bundles" => streaming::<X509BundlesResponse>(fetch, request).await,
            _ => Status::unimplemented("this Workload API has X.509 calls only").into_http(),
        }
    };
    match tokio::time::timeout(CALL_TIMEOUT, answered).await {
        Ok(response) => response,
        Err(_) => Status::deadline_exceeded("the request did not end in time").into_http(),
    }
}

async fn streaming<M: FromAnswer>(fetch: Fetch, request: Request<Incoming>) -> Response<Body> {
    let codec = ProtoCodec::<M, Empty>::default();
    let mut grpc = Grpc::new(codec).max_decoding_message_size(MAX_REQUEST_BYTES);
    grpc.server_streaming(Streaming(fetch, std::marker::PhantomData), request).await
}

/// A call that opens a stream of answers.
struct Fetch {
    peer: Arc<Peer>,
    to: Address<Msg>,
    call: Option<Call>,
}

/// A message that says what an answer says.
trait FromAnswer: Message + 'static {
    const KIND: Kind;
    fn from_answer(answer: &Answer) -> Self;
}

impl FromAnswer for X509SvidResponse {
    const KIND: Kind = Kind::Svids;
    fn from_answer(answer: &Answer) -> Self {
        let svids = answer.identities.iter().map(|identity| X509Svid {
            spiffe_id: identity.name.spiffe_id(answer.cluster),
            x509_svid: identity.svid.chain_der.clone(),
            x509_svid_key: identity.svid.key_der.to_vec(),
            bundle: answer.roots.der.clone(),
            hint: identity.hint.clone().unwrap_or_default(),
        });
        Self { svids: svids.collect(), ..Self::default() }
    }
}

impl FromAnswer for X509BundlesResponse {
    const KIND: Kind = Kind::Roots;
    fn from_answer(answer: &Answer) -> Self {
        let domain = format!("spiffe://{}", answer.cluster);
        Self { crl: Vec::new(), bundles: BTreeMap::from([(domain, answer.roots.der.clone())]) }
    }
}

struct Streaming<M>(Fetch, std::marker::PhantomData<M>);

type Answers<M> = Pin<Box<dyn Stream<Item = Result<M, Status>> + Send>>;

impl<M: FromAnswer> ServerStreamingService<Empty> for Streaming<M> {
    type Response = M;
    type ResponseStream = Answers<M>;
    type Future = BoxFuture<'static, Result<tonic::Response<Answers<M>>, Status>>;

    fn call(&mut self, _: tonic::Request<Empty>) -> Self::Future {
        let Fetch { peer, to, call } = &mut self.0;
        let (peer, to, call) = (Arc::clone(peer), to.clone(), call.take());
        Box::pin(async move {
            let (tell, told) = watch::channel(Told::Nothing);
            to.tell(Msg::Asked(Ask { peer, kind: M::KIND, tell }))
                .map_err(|error| Status::new(Code::Unavailable, error.to_string()))?;
            let mut told = told;
            // A refusal is the answer of the call, and not the end of a stream.
            match told.wait_for(|told| !matches!(told, Told::Nothing)).await.map(|told| told.clone()) {
                Ok(Told::Ended(denial)) => return Err(status(denial)),
                Ok(_) => told.mark_changed(),
                Err(_) => return Err(restarting()),
            }
            let answers: Answers<M> = Box::pin(futures_util::stream::unfold(Some((told, call)), next::<M>));
            Ok(tonic::Response::new(answers))
        })
    }
}

/// The next message of a stream, as soon as its client can take one and there is one.
async fn next<M: FromAnswer>(
    state: Option<(watch::Receiver<Told>, Option<Call>)>,
) -> Option<(Result<M, Status>, Option<(watch::Receiver<Told>, Option<Call>)>)> {
    let (mut told, call) = state?;
    loop {
        if told.changed().await.is_err() {
            return Some((Err(restarting()), None));
        }
        let newest = told.borrow_and_update().clone();
        match newest {
            Told::Nothing => {}
            Told::Answer(answer) => return Some((Ok(M::from_answer(&answer)), Some((told, call)))),
            Told::Ended(denial) => return Some((Err(status(denial)), None)),
        }
    }
}

fn restarting() -> Status {
    Status::unavailable("the Workload API of this node restarts")
}

fn status(denial: Denial) -> Status {
    match denial {
        Denial::PermissionDenied(why) => Status::permission_denied(why),
        Denial::Unavailable(why) => Status::unavailable(why),
    }
}
