//! HTTP: `/v1/…` mirrors the commands with the same JSON; `/livez` answers without identity.
//!
//! Invariants  HTTP-1  no body is read for a request that will be refused anyway, and of the bodies of one connection one at a time
//!                     is read beyond a small common share, within a limit and a time. So a connection costs its header, that
//!                     share and one body, however many streams HTTP/2 gives it.
//!             HTTP-2  no request's body waits for another request's body.
//!             HTTP-3  a connection that this node ends although its client may continue elsewhere ends in order: what was
//!                     received is answered while there is time, and the client learns what was not (GOAWAY in HTTP/2).

mod actors;
mod autolock;
mod autopilot;
mod bodies;
mod credentials;
pub mod definition;
mod described;
mod errors;
mod event_stream;
mod events;
mod head_limit;
mod leases;
mod paced;
mod reconcilers;
mod request_id;
mod roots;
mod workloads;

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Path, Query};
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router};
use futures_util::future::{BoxFuture, pending};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use muster_audit::Origin;
use muster_messages::wire::{ApiCall, ListOf, Page, Refusal, Request};
use muster_messages::{ErrorBody, ErrorCode, Principal, RequestId, Role};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tower_service::Service as _;

use self::bodies::Bodies;
pub(crate) use self::described::document as described_document;
use self::errors::no_such_path;
pub(crate) use self::errors::{error_response, json_response};
use self::head_limit::{Heads, Limited};
use self::paced::{Paced, Pause};
use crate::core::{Kind, NO_IDENTITY, kind_of};
use crate::kube;
use crate::metrics;
use crate::service::{Service, refusal_error};

/// An HTTP/1.1 connection without a request for this long is closed: as by Kubernetes' API server, and longer than clients pause.
const IDLE_DEADLINE: Duration = Duration::from_secs(90);
/// The same for a client without a certificate. When their places are all taken, the oldest connection of the address with the most is
/// closed, with its requests: unused ones must not stay long. Longer than pauses between renewals of usual leases.
const ANONYMOUS_IDLE_DEADLINE: Duration = Duration::from_secs(20);
/// The buffer for a header: tokens and cookies fit several times. Each connection keeps two.
const MAX_HEADER_BYTES: usize = 16 * 1024;
/// Bytes that a client may send ahead on HTTP/2, per stream and in total: one body.
const HTTP2_WINDOW_BYTES: u32 = 64 * 1024;
/// Bytes buffered for a client that does not read, per stream on HTTP/2.
const HTTP2_SEND_BUFFER_BYTES: usize = 64 * 1024;

/// The client of one connection.
#[derive(Clone)]
pub(crate) struct Peer {
    pub(crate) service: Service,
    pub(crate) caller: Principal,
    pub(crate) refused: Option<Refusal>,
    /// The address of a client that came over the network.
    pub(crate) source: Option<IpAddr>,
    pub(crate) origin: Arc<Origin>,
    /// The id of the request that it travels with.
    pub(crate) request: RequestId,
    bodies: Bodies,
    pause: Pause,
}

/// What is known about a connection besides its caller.
#[derive(Default)]
pub(crate) struct Network {
    pub refused: Option<Refusal>,
    pub source: Option<IpAddr>,
    pub origin: Origin,
    /// When the connection is to end in order. Its owner drops it if that takes too long.
    pub end: Option<BoxFuture<'static, ()>>,
}

/// Serves one HTTP connection, 1.1 or 2, until it ends.
pub(crate) async fn serve_http<S>(service: Service, caller: Principal, network: Network, stream: S)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (pause, heads) = (Pause::default(), Heads::default());
    let (reads, writes) = tokio::io::split(stream);
    let stream = tokio::io::join(Limited::new(Paced::new(reads, pause.clone()), heads.clone()), writes);
    let Network { refused, source, origin, end } = network;
    let idle = if caller == Principal::Anonymous { ANONYMOUS_IDLE_DEADLINE } else { IDLE_DEADLINE };
    let peer = Peer { source, pause, origin: Arc::new(origin), ..Peer::of(service, caller, refused) };
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(idle).max_buf_size(MAX_HEADER_BYTES);
    let mut http2 = builder.http2();
    http2.timer(TokioTimer::new()).max_concurrent_streams(128).max_header_list_size(MAX_HEADER_BYTES as u32);
    http2
        .initial_stream_window_size(HTTP2_WINDOW_BYTES)
        .initial_connection_window_size(HTTP2_WINDOW_BYTES)
        .max_send_buf_size(HTTP2_SEND_BUFFER_BYTES);
    let answer = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        let unanswered = heads.complete();
        let answer = router().clone().call(request);
        async move {
            let answer = answer.await;
            drop(unanswered);
            answer
        }
    });
    let end = end.unwrap_or_else(|| Box::pin(pending()));
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), answer));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = end => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "HTTP connection ended");
    }
}

/// The only table of paths. (A table per connection would cost more memory than TLS for each unauthenticated
/// connection, and the time to build it. The caller travels with each request.)
fn router() -> &'static Router {
    static ROUTER: OnceLock<Router> = OnceLock::new();
    ROUTER.get_or_init(routes)
}

pub(crate) fn routes() -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/v1/openapi.json", get(openapi))
        .route("/v1/status", get(|p: Extension<Peer>, q: Query<Fresh>| ask(p, Request::Status { fresh: q.fresh })))
        .route("/v1/nodes", get(|p: Extension<Peer>, q: Query<Listing>| list(p, q, ListOf::Nodes)))
        .route("/v1/nodes/{node}", get(node_inspect).delete(node_remove).patch(node_update))
        .route("/v1/nodes/{node}/promote", post(|p: Extension<Peer>, n: Path<String>| set_role(p, n, Role::Manager)))
        .route("/v1/nodes/{node}/demote", post(|p: Extension<Peer>, n: Path<String>| set_role(p, n, Role::Worker)))
        .route("/v1/nodes/{node}/rename", post(node_rename))
        .route("/v1/nodes/{node}/may-stop", get(node_may_stop))
        .route("/v1/certificates", get(|p: Extension<Peer>, q: Query<Listing>| list(p, q, ListOf::Certificates)))
        .route("/v1/certificates/{node}/rotate", post(cert_rotate))
        .route("/v1/blocklist", get(|p: Extension<Peer>, q: Query<Listing>| list(p, q, ListOf::Blocklist)))
        .route("/v1/raft", get(|p: Extension<Peer>, q: Query<Fresh>| ask(p, Request::RaftStatus { fresh: q.fresh })))
        .route("/v1/raft/transfer-leader", post(transfer_leader))
        .route("/v1/backup", get(crate::backup::backup))
        .merge(actors::routes())
        .merge(credentials::routes())
        .merge(events::routes())
        .merge(leases::routes())
        .merge(reconcilers::routes())
        .merge(autolock::routes())
        .merge(autopilot::routes())
        .merge(roots::routes())
        .merge(workloads::routes())
        .merge(metrics::routes())
        .fallback(|uri: Uri| async move { error_response(&no_such_path(uri.path())) })
        .layer(from_fn(admit))
}

/// Answers a request. A refusal costs time that others wait for, so a client that retries at once is read more slowly.
async fn admit(Extension(mut peer): Extension<Peer>, mut request: axum::extract::Request, next: Next) -> Response {
    let pause = peer.pause.clone();
    let ours = request.uri().path().starts_with("/v1/");
    let given = if ours { request_id::given(request.headers()) } else { Ok(None) };
    peer.request = given.as_ref().ok().copied().flatten().unwrap_or_else(request_id::fresh);
    request.extensions_mut().insert(peer.clone());
    let (id, head) = (peer.request, errors::Asked::of(&request));
    let mut response = admitted(peer, request, given.err(), next).await;
    if response.status() == StatusCode::TOO_MANY_REQUESTS {
        pause.lengthen();
    }
    if ours {
        response = errors::as_accepted(response, id, &head).await;
        response.headers_mut().insert(request_id::HEADER, request_id::value(id));
    }
    response
}

/// Decides about a request before its body is read, then reads the body. `bad_id`: what is wrong with its id.
async fn admitted(peer: Peer, request: axum::extract::Request, bad_id: Option<ErrorBody>, next: Next) -> Response {
    if let Some(locked) = &peer.service.ports.locked
        && !matches!(request.uri().path(), "/livez" | "/v1/status" | "/v1/unlock")
    {
        return error_response(&crate::locked::refusal(locked));
    }
    let with_token = request.headers().contains_key(header::AUTHORIZATION);
    if kube::serves(request.uri().path(), with_token) {
        return kube::serve(&peer, request).await;
    }
    let for_all = matches!(request.uri().path(), "/livez" | "/v1/openapi.json");
    let by_token = with_token && peer.refused.is_none() && metrics::takes_tokens(request.uri().path());
    if let Some(refused) = peer.refuses().filter(|_| !for_all && !by_token) {
        if let Some(why) = peer.why_refused() {
            peer.service.audit_refusal((&peer.origin, &peer.caller), request.method(), request.uri().path(), &why);
        }
        return refused;
    }
    let operation = described::operation(&request);
    let unknown = || operation.and_then(|operation| operation.check_query(request.uri()).err());
    if let Some(error) = bad_id.or_else(unknown) {
        return error_response(&error);
    }
    let (head, body) = request.into_parts();
    // A body is not read before its sender is known: these paths need none.
    let body = if by_token { Body::empty() } else { body };
    if body.is_end_stream() {
        return next.run(axum::extract::Request::from_parts(head, body)).await;
    }
    let read = peer.body_within(peer.limit(&head.method, head.uri.path()), body).await;
    let checked = read.and_then(|bytes| match operation {
        Some(operation) => operation.check_body(&bytes).map(|()| bytes),
        None => Ok(bytes),
    });
    match checked {
        Ok(bytes) => next.run(axum::extract::Request::from_parts(head, Body::from(bytes))).await,
        Err(error) => error_response(&error),
    }
}

#[derive(Deserialize)]
struct Fresh {
    #[serde(default)]
    fresh: bool,
}
/// A list: all of it, or the page that `limit` or `continue` asks for.
#[derive(Deserialize)]
struct Listing {
    #[serde(default)]
    fresh: bool,
    limit: Option<u32>,
    #[serde(rename = "continue")]
    after: Option<String>,
}
#[derive(Deserialize)]
struct Force {
    #[serde(default)]
    force: bool,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Update {
    #[serde(default)]
    add: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    remove: Vec<String>,
    generation: Option<u64>,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewName {
    name: muster_messages::Name,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TransferTarget {
    to: Option<String>,
}
async fn ask(Extension(peer): Extension<Peer>, request: Request) -> Response {
    answer(&peer, request).await
}

impl Peer {
    pub(crate) fn of(service: Service, caller: Principal, refused: Option<Refusal>) -> Self {
        Self {
            service,
            caller,
            refused,
            source: None,
            origin: Arc::default(),
            request: RequestId(0),
            bodies: Bodies::default(),
            pause: Pause::default(),
        }
    }

    /// Limit of a body at this path: callers that may supply definitions and objects may send full-size ones.
    fn limit(&self, method: &Method, path: &str) -> usize {
        let limits = &self.service.ports.limits;
        let whole = self.caller.is_operator() && reconcilers::brings_definitions(method, path);
        if whole { limits.definitions() } else { limits.body }
    }

    /// Reads a body of the usual size.
    pub(crate) async fn body(&self, body: Body) -> Result<Bytes, ErrorBody> {
        self.body_within(self.service.ports.limits.body, body).await
    }

    /// The same for a body that may contain an object of the largest size.
    pub(crate) async fn large_body(&self, body: Body) -> Result<Bytes, ErrorBody> {
        self.body_within(self.service.ports.limits.objects(), body).await
    }

    /// Reads a body within a limit and a time.
    async fn body_within(&self, limit: usize, body: Body) -> Result<Bytes, ErrorBody> {
        self.bodies.read(limit, body).await
    }

    /// The refusal of a request that needs an identity, if this client has no valid one.
    fn refuses(&self) -> Option<Response> {
        if let Some(refusal) = &self.refused {
            let mut response = error_response(&refusal_error(refusal));
            // A refusal that passes (too many connections, for example) does not concern rights: it states when to
            // retry.
            if refusal.retry_after_ms.is_none() {
                *response.status_mut() = StatusCode::FORBIDDEN;
            }
            return Some(response);
        }
        self.why_refused().map(|why| error_response(&why))
    }

    /// Why the identity is missing or invalid. `None` for a refusal that passes.
    fn why_refused(&self) -> Option<ErrorBody> {
        match &self.refused {
            Some(refusal) => refusal.retry_after_ms.is_none().then(|| refusal_error(refusal)),
            None => {
                let anonymous = self.caller == Principal::Anonymous;
                anonymous.then(|| ErrorBody::new(ErrorCode::Unauthenticated, NO_IDENTITY))
            }
        }
    }
}

async fn answer(peer: &Peer, request: Request) -> Response {
    let is_write = kind_of(&request) == Kind::Write;
    match answer_text(peer, request).await {
        // A long answer counts among its caller's until it is read. What was changed cannot be refused any more.
        Ok(text) if text.len() > kube::LONG_ANSWER_BYTES && !is_write => match peer.service.long_answer(&peer.caller) {
            Ok(share) => json_response(StatusCode::OK, text).map(|body| kube::until_read(body, Some(share))),
            Err(error) => error_response(&error),
        },
        Ok(text) => json_response(StatusCode::OK, text),
        Err(error) => error_response(&error),
    }
}

async fn answer_text(peer: &Peer, request: Request) -> Result<String, ErrorBody> {
    let call = ApiCall { id: 0, request_id: peer.request, timeout_ms: 30_000, request };
    peer.service.answer_from(&peer.origin, peer.caller.clone(), call).await
}

async fn list(Extension(peer): Extension<Peer>, Query(q): Query<Listing>, of: ListOf) -> Response {
    let Listing { fresh, limit, after } = q;
    let request = if limit.is_some() || after.is_some() {
        Request::Page { of, page: Page { limit: limit.unwrap_or(0), after }, fresh }
    } else {
        of.whole(fresh)
    };
    answer(&peer, request).await
}

/// An answer that grows with the cluster: one caller may leave only a bounded number unread.
async fn long_answer(peer: &Peer, request: Request) -> Response {
    let share = match peer.service.long_answer(&peer.caller) {
        Ok(share) => share,
        Err(error) => return error_response(&error),
    };
    match answer_text(peer, request).await {
        Ok(text) => json_response(StatusCode::OK, text).map(|body| kube::until_read(body, Some(share))),
        Err(error) => error_response(&error),
    }
}

fn body<T: DeserializeOwned>(bytes: &Bytes) -> Result<T, Box<Response>> {
    let bytes: &[u8] = if bytes.is_empty() { b"{}" } else { bytes };
    serde_json::from_slice(bytes)
        .map_err(|e| Box::new(error_response(&ErrorBody::invalid(format!("invalid request body: {e}")))))
}

async fn node_inspect(Extension(peer): Extension<Peer>, Path(node): Path<String>, q: Query<Fresh>) -> Response {
    answer(&peer, Request::NodeInspect { node, fresh: q.fresh }).await
}
async fn node_may_stop(Extension(peer): Extension<Peer>, Path(node): Path<String>) -> Response {
    answer(&peer, Request::NodeMayStop { node }).await
}
async fn node_remove(Extension(peer): Extension<Peer>, Path(node): Path<String>, q: Query<Force>) -> Response {
    answer(&peer, Request::NodeRemove { node, force: q.force }).await
}
async fn node_update(Extension(peer): Extension<Peer>, Path(node): Path<String>, bytes: Bytes) -> Response {
    match body::<Update>(&bytes) {
        Ok(u) => {
            let generation = u.generation.map(muster_messages::Generation);
            answer(&peer, Request::NodeUpdate { node, add: u.add, remove: u.remove, generation }).await
        }
        Err(response) => *response,
    }
}
async fn node_rename(Extension(peer): Extension<Peer>, Path(node): Path<String>, bytes: Bytes) -> Response {
    match body::<NewName>(&bytes) {
        Ok(NewName { name }) => answer(&peer, Request::NodeRename { node, name }).await,
        Err(response) => *response,
    }
}
async fn set_role(Extension(peer): Extension<Peer>, Path(node): Path<String>, role: Role) -> Response {
    answer(&peer, Request::SetRole { node, role }).await
}
async fn cert_rotate(Extension(peer): Extension<Peer>, Path(node): Path<String>) -> Response {
    answer(&peer, Request::CertRotate { node }).await
}
async fn transfer_leader(Extension(peer): Extension<Peer>, bytes: Bytes) -> Response {
    match body::<TransferTarget>(&bytes) {
        Ok(transfer_target) => answer(&peer, Request::TransferLeader { to: transfer_target.to }).await,
        Err(response) => *response,
    }
}
/// The description of `/v1`, kept in sync with the routes above.
async fn openapi() -> Response {
    json_response(StatusCode::OK, described_document())
}

#[cfg(test)]
mod bodies_tests;
#[cfg(test)]
mod idle_tests;
#[cfg(test)]
mod node_refs_tests;
#[cfg(test)]
mod promised;
#[cfg(test)]
mod schemas_tests;
#[cfg(test)]
mod streams_tests;
