//! Connections to the socket: HTTP/2, and in it the calls of the Workload API.
//!
//! Owns        connections, each with the process that opened it.
//! Why hyper and not tonic's own server: a connection is bound to one process, is refused before a byte is read, and ends with that
//! process. tonic gives what is gRPC about a call.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::Stream;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use muster_kernel::{Acceptor, Address, Clock};
use prost::Message;
use rustix::process::{Resource, getrlimit};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tonic::server::{Grpc, ServerStreamingService};

use crate::attest::Peer;
use crate::authority::client_stream;
use crate::core::{Answer, Denial, Kind, MAX_STREAMS, MAX_STREAMS_OF_USER, NotAttested};
use crate::jwt_calls::unary;
use crate::limits::{Admission, Limit, Permit};
use crate::proto::{
    Empty, JwtBundlesResponse, JwtSvidRequest, ProtoCodec, SECURITY_HEADER, SERVICE, ValidateJwtSvidRequest,
    X509BundlesResponse, X509Svid, X509SvidResponse,
};
use crate::shell::{Ask, Msg};

/// Calls at once on one connection.
const MAX_CALLS: u32 = 32;
/// A call without an answer times out after this; the first answer of a stream comes earlier, or is a refusal.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// Connections without a call are closed after one to two of these. Clients connect again when they need to.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// A request of one call has a token of at most 16 KiB, or audiences.
pub(crate) const MAX_REQUEST_BYTES: usize = 64 << 10;
/// Requests for streams are empty. Later versions of the standard may have a few fields.
const MAX_STREAM_REQUEST_BYTES: usize = 1 << 10;
/// What a connection may send before it is read.
const WINDOW_BYTES: u32 = 64 << 10;
/// Requests of calls that are still arriving, of all users and of one: each may keep [`MAX_REQUEST_BYTES`] until its time is over. Those of
/// clients as they are arrive whole.
const MAX_ARRIVING: usize = 256;
const MAX_ARRIVING_OF_USER: usize = 64;
/// Metadata of a request.
const MAX_HEADER_BYTES: u32 = 16 << 10;

/// What a stream's client is sent next: a watched value, because each message replaces the one before.
#[derive(Clone, Debug)]
pub(crate) enum Outgoing {
    Nothing,
    Answer(Arc<Answer>),
    Ended(Denial),
}

/// Where requests go: the actor, once they are counted. It is not the address that the actor has of itself, which no bound holds for.
#[derive(Clone)]
pub(crate) struct Inbox {
    to: Address<Msg>,
    /// Requests that the actor has not handled. A client may take back a request that was sent, and send the next one.
    waiting: Limit,
    /// Requests that have not arrived completely.
    arriving: Limit,
    /// Connections that were not served.
    refused: Arc<AtomicU64>,
}

impl Inbox {
    pub(crate) fn new(to: Address<Msg>) -> Self {
        let waiting = Limit::new(MAX_STREAMS, MAX_STREAMS_OF_USER);
        Self { to, waiting, arriving: Limit::new(MAX_ARRIVING, MAX_ARRIVING_OF_USER), refused: Arc::default() }
    }
    pub(crate) fn refused_connections(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
    fn ask(&self, peer: Arc<Peer>, kind: Kind) -> Result<watch::Receiver<Outgoing>, Status> {
        let waiting = self.waiting.admit(peer.uid);
        let waiting = waiting.ok_or_else(|| Status::unavailable("too many requests of this user are waiting"))?;
        let (sender, outgoing) = watch::channel(Outgoing::Nothing);
        let sent = self.to.tell(Msg::Asked(Ask { peer, kind, sender, waiting }));
        sent.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(outgoing)
    }
}

/// Accepts connections until the incarnation ends.
pub(crate) async fn accept(acceptor: Acceptor, inbox: Inbox, ended: CancellationToken) {
    let mut admission = Admission::new(getrlimit(Resource::Nofile).current);
    loop {
        let stream = acceptor.accept().await;
        // Refused by closing: a client comes back after a pause, as after `Unavailable`.
        let (peer, permit) = match admit(&stream, &mut admission) {
            Ok(admitted) => admitted,
            Err(why) => {
                tracing::debug!(%why, "connection to the workload socket refused");
                inbox.refused.fetch_add(1, Ordering::Relaxed);
                continue;
            }
        };
        let (inbox, ended) = (inbox.clone(), ended.child_token());
        tokio::spawn(async move {
            let _until_it_ends = permit;
            tokio::select! {
                () = ended.cancelled() => {}
                () = connection(stream, Arc::new(peer), inbox, ended.clone()) => {}
            }
            ended.cancel(); // what hyper started for it
        });
    }
}

/// The process at the other end, if it is served. First what costs nothing.
fn admit(stream: &UnixStream, admission: &mut Admission) -> Result<(Peer, Permit), String> {
    let uid = stream.peer_cred().map_err(|error| error.to_string())?.uid();
    let permit =
        admission.admit(Clock.now(), uid).ok_or_else(|| format!("too many connections of user {uid}, or of all"))?;
    let peer = Peer::of(stream).map_err(|why| match why {
        NotAttested::Ended => format!("the process of user {uid} has ended already"),
        NotAttested::Failed(why) => why,
    })?;
    Ok((peer, permit))
}

/// Calls of one connection.
#[derive(Default)]
pub(crate) struct Calls {
    open: AtomicUsize,
    begun: AtomicU64,
}

/// A call; dropped with its stream.
pub(crate) struct Call(Arc<Calls>);

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
async fn connection(stream: UnixStream, peer: Arc<Peer>, inbox: Inbox, ended: CancellationToken) {
    let calls = Arc::new(Calls::default());
    let service = {
        let (peer, calls) = (Arc::clone(&peer), Arc::clone(&calls));
        service_fn(move |request| {
            let call = Fetch { peer: Arc::clone(&peer), inbox: inbox.clone(), call: Some(Call::begin(&calls)) };
            async move { Ok::<_, Infallible>(answer(call, request).await) }
        })
    };
    let mut http = http2::Builder::new(Within(ended));
    http.timer(TokioTimer::new()).max_concurrent_streams(MAX_CALLS).max_header_list_size(MAX_HEADER_BYTES);
    http.initial_stream_window_size(WINDOW_BYTES).initial_connection_window_size(WINDOW_BYTES);
    let mut serving = pin!(http.serve_connection(TokioIo::new(client_stream(stream)), service));
    let (mut idle, mut begun, mut closing) = (tokio::time::interval(IDLE_TIMEOUT), 0, false);
    idle.reset();
    loop {
        tokio::select! {
            _ = serving.as_mut() => return,
            () = peer.ended() => return,
            _ = idle.tick() => {
                let now = calls.begun.load(Ordering::Relaxed);
                if calls.open.load(Ordering::Relaxed) == 0 && begun == now {
                    if closing {
                        return; // its client does not answer, or has sent nothing
                    }
                    serving.as_mut().graceful_shutdown();
                    closing = true;
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
    let path = request.uri().path().strip_prefix('/').and_then(|path| path.split_once('/'));
    let method =
        path.filter(|(service, _)| *service == SERVICE).map(|(_, method)| method).unwrap_or_default().to_owned();
    let answered = async {
        match method.as_str() {
            "FetchX509SVID" => streaming::<X509SvidResponse>(fetch, request).await,
            "FetchX509Bundles" => streaming::<X509BundlesResponse>(fetch, request).await,
            "FetchJWTBundles" => streaming::<JwtBundlesResponse>(fetch, request).await,
            "FetchJWTSVID" => unary::<JwtSvidRequest>(fetch, request).await,
            "ValidateJWTSVID" => unary::<ValidateJwtSvidRequest>(fetch, request).await,
            _ => Status::unimplemented("this Workload API has the calls about X.509-SVIDs and JWT-SVIDs only")
                .into_http(),
        }
    };
    match tokio::time::timeout(CALL_TIMEOUT, answered).await {
        Ok(response) => response,
        Err(_) => Status::deadline_exceeded("the request did not end in time").into_http(),
    }
}

async fn streaming<M: FromAnswer>(fetch: Fetch, request: Request<Incoming>) -> Response<Body> {
    let codec = ProtoCodec::<M, Empty>::default();
    let mut grpc = Grpc::new(codec).max_decoding_message_size(MAX_STREAM_REQUEST_BYTES);
    grpc.server_streaming(Streaming(fetch, std::marker::PhantomData), request).await
}

/// A call, by the process at the other end of its connection.
pub(crate) struct Fetch {
    peer: Arc<Peer>,
    inbox: Inbox,
    call: Option<Call>,
}

impl Fetch {
    /// Held until the request has arrived.
    pub(crate) fn arriving(&self) -> Result<Permit, Status> {
        let permit = self.inbox.arriving.admit(self.peer.uid);
        permit.ok_or_else(|| Status::unavailable("too many requests of this user are arriving"))
    }
    pub(crate) fn ask(&mut self, kind: Kind) -> Result<Asked, Status> {
        let outgoing = self.inbox.ask(Arc::clone(&self.peer), kind)?;
        Ok(Asked { outgoing, call: self.call.take() })
    }
}

/// A call that the actor was asked about.
pub(crate) struct Asked {
    outgoing: watch::Receiver<Outgoing>,
    call: Option<Call>,
}

impl Asked {
    /// The first answer. A refusal is the answer of the call, and not the end of a stream.
    pub(crate) async fn first(mut self) -> Result<(Arc<Answer>, Self), Status> {
        let first = self.outgoing.wait_for(|next| !matches!(next, Outgoing::Nothing)).await.map(|next| next.clone());
        match first {
            Ok(Outgoing::Answer(answer)) => Ok((answer, self)),
            Ok(Outgoing::Ended(denial)) => Err(status(denial)),
            Ok(Outgoing::Nothing) | Err(_) => Err(restarting()),
        }
    }
}

/// A message with the content of an answer.
pub(crate) trait FromAnswer: Message + 'static {
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
        let asked = self.0.ask(M::KIND);
        Box::pin(async move {
            let (_, Asked { mut outgoing, call }) = asked?.first().await?;
            outgoing.mark_changed();
            let answers: Answers<M> = Box::pin(futures_util::stream::unfold(Some((outgoing, call)), next::<M>));
            Ok(tonic::Response::new(answers))
        })
    }
}

/// The next message of a stream, as soon as its client can take one and there is one.
async fn next<M: FromAnswer>(
    state: Option<(watch::Receiver<Outgoing>, Option<Call>)>,
) -> Option<(Result<M, Status>, Option<(watch::Receiver<Outgoing>, Option<Call>)>)> {
    let (mut outgoing, call) = state?;
    loop {
        if outgoing.changed().await.is_err() {
            return Some((Err(restarting()), None));
        }
        let newest = outgoing.borrow_and_update().clone();
        match newest {
            Outgoing::Nothing => {}
            Outgoing::Answer(answer) => return Some((Ok(M::from_answer(&answer)), Some((outgoing, call)))),
            Outgoing::Ended(denial) => return Some((Err(status(denial)), None)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_that_do_not_arrive_are_limited_per_user() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let peer = Arc::new(Peer::of(&ours).unwrap());
        let fetch = Fetch { peer, inbox: Inbox::new(Address::new(1)), call: None };
        let mut arriving: Vec<_> = (0..2 * MAX_ARRIVING_OF_USER).filter_map(|_| fetch.arriving().ok()).collect();
        assert_eq!(arriving.len(), MAX_ARRIVING_OF_USER);
        arriving.pop();
        assert!(fetch.arriving().is_ok(), "one has arrived");
    }

    #[tokio::test(start_paused = true)]
    async fn silent_connection_is_ended() {
        let (ours, _silent) = UnixStream::pair().unwrap();
        let peer = Arc::new(Peer::of(&ours).unwrap());
        let serving = connection(ours, peer, Inbox::new(Address::new(1)), CancellationToken::new());
        tokio::time::timeout(3 * IDLE_TIMEOUT, serving).await.expect("an end");
    }
}
