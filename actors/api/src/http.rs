//! HTTP: `/v1/…` mirrors the commands with the same JSON; `/livez` answers without identity.
//!
//! Invariants  HTTP-1  no body is read for a request that will be refused anyway, and of the bodies of one connection one at a time
//!                     is read beyond a small common share, within a limit and a time. So a connection costs its header, that
//!                     share and one body, however many streams HTTP/2 gives it.
//!             HTTP-2  no request's body waits for another request's body.

mod autolock;
mod bodies;
pub mod definition;
mod head_limit;
mod paced;
mod reconcilers;
mod roots;
mod workloads;

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Path, Query};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{delete, get, post};
use axum::{Extension, Router};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use muster_audit::Origin;
use muster_kernel::Clock;
use muster_messages::wire::{ActorsAsk, ActorsOf, ApiCall, ListOf, Page, Refusal, Request};
use muster_messages::{CrashHow, ErrorBody, ErrorCode, EventsView, Principal, RequestId, Revision, Role};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tower_service::Service as _;

use self::bodies::Bodies;
use self::head_limit::{Heads, Limited};
use self::paced::{Paced, Pause};
use crate::core::{self, NO_IDENTITY};
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
    bodies: Bodies,
    pause: Pause,
}

/// What is known about a connection besides its caller.
#[derive(Default)]
pub(crate) struct Network {
    pub refused: Option<Refusal>,
    pub source: Option<IpAddr>,
    pub origin: Origin,
}

/// Serves one HTTP connection, 1.1 or 2, until it ends.
pub(crate) async fn serve_http<S>(service: Service, caller: Principal, network: Network, stream: S)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (pause, heads) = (Pause::default(), Heads::default());
    let (reads, writes) = tokio::io::split(stream);
    let stream = tokio::io::join(Limited::new(Paced::new(reads, pause.clone()), heads.clone()), writes);
    let Network { refused, source, origin } = network;
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
    let ended = builder.serve_connection(TokioIo::new(stream), answer).await;
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
        .route(
            "/v1/nodes/{node}/promote",
            post(|p: Extension<Peer>, n: Path<String>, h: HeaderMap| set_role(p, n, h, Role::Manager)),
        )
        .route(
            "/v1/nodes/{node}/demote",
            post(|p: Extension<Peer>, n: Path<String>, h: HeaderMap| set_role(p, n, h, Role::Worker)),
        )
        .route("/v1/nodes/{node}/rename", post(node_rename))
        .route("/v1/nodes/{node}/may-stop", get(node_may_stop))
        .route("/v1/tokens", get(|p: Extension<Peer>, q: Query<Listing>| list(p, q, ListOf::Tokens)).post(token_create))
        .route("/v1/tokens/{id}", delete(token_revoke))
        .route("/v1/certificates", get(|p: Extension<Peer>, q: Query<Listing>| list(p, q, ListOf::Certificates)))
        .route("/v1/certificates/{node}/rotate", post(cert_rotate))
        .route("/v1/users", get(|p: Extension<Peer>, q: Query<Listing>| list(p, q, ListOf::Users)))
        .route("/v1/users/{name}", delete(user_revoke))
        .route("/v1/blocklist", get(|p: Extension<Peer>, q: Query<Listing>| list(p, q, ListOf::Blocklist)))
        .route("/v1/raft", get(|p: Extension<Peer>, q: Query<Fresh>| ask(p, Request::RaftStatus { fresh: q.fresh })))
        .route("/v1/raft/transfer-leader", post(transfer_leader))
        .route("/v1/actors", get(actors))
        .route("/v1/actors/{*path}", get(actor_inspect).post(actor_action))
        .route("/v1/events", get(events))
        .route("/v1/backup", get(crate::backup::backup))
        .merge(reconcilers::routes())
        .merge(autolock::routes())
        .merge(roots::routes())
        .merge(workloads::routes())
        .merge(metrics::routes())
        .fallback(|uri: Uri| async move { error_response(&no_such_path(uri.path())) })
        .layer(from_fn(admit))
}

/// Answers a request. A refusal costs time that others wait for, so a client that retries at once is read more slowly.
async fn admit(Extension(peer): Extension<Peer>, request: axum::extract::Request, next: Next) -> Response {
    let pause = peer.pause.clone();
    let response = admitted(peer, request, next).await;
    if response.status() == StatusCode::TOO_MANY_REQUESTS {
        pause.lengthen();
    }
    response
}

/// Decides about a request before its body is read, then reads the body.
async fn admitted(peer: Peer, request: axum::extract::Request, next: Next) -> Response {
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
    let (head, body) = request.into_parts();
    if body.is_end_stream() {
        return next.run(axum::extract::Request::from_parts(head, body)).await;
    }
    match peer.body_within(peer.limit(&head.method, head.uri.path()), body).await {
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
struct Update {
    #[serde(default)]
    add: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    remove: Vec<String>,
    generation: Option<u64>,
}
#[derive(Deserialize)]
struct NewName {
    name: muster_messages::Name,
}
#[derive(Deserialize)]
struct NewToken {
    role: Role,
    ttl_ms: Option<u64>,
    uses: Option<u32>,
}
#[derive(Deserialize)]
struct TransferTarget {
    to: Option<String>,
}
#[derive(Deserialize)]
struct Whose {
    node: Option<String>,
    #[serde(default)]
    all: bool,
}
#[derive(Deserialize)]
struct ActorActionQuery {
    node: Option<String>,
    action: String,
    how: Option<String>,
    times: Option<u32>,
}
#[derive(Deserialize)]
struct Since {
    #[serde(default)]
    since: u64,
    #[serde(default)]
    watch: u8,
}
impl Since {
    /// How long to wait for a change: less than a request may take.
    fn wait_ms(&self) -> u64 {
        if self.watch != 0 { 25_000 } else { 0 }
    }
}

async fn ask(Extension(peer): Extension<Peer>, request: Request) -> Response {
    answer(&peer, fresh(), request).await
}

impl Peer {
    pub(crate) fn of(service: Service, caller: Principal, refused: Option<Refusal>) -> Self {
        Self {
            service,
            caller,
            refused,
            source: None,
            origin: Arc::default(),
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

async fn answer(peer: &Peer, request_id: RequestId, request: Request) -> Response {
    let call = ApiCall { id: 0, request_id, timeout_ms: 30_000, request };
    match peer.service.answer_from(&peer.origin, peer.caller.clone(), call).await {
        Ok(text) => json_response(StatusCode::OK, text),
        Err(error) => error_response(&error),
    }
}

/// A path that lacks a node's name is invalid rather than unknown.
fn no_such_path(path: &str) -> ErrorBody {
    let nodes = ["/v1/nodes/", "/v1/certificates/"];
    match nodes.iter().find_map(|before| path.strip_prefix(before)) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            core::check_node_ref("").err().unwrap_or_else(|| ErrorBody::invalid("a node's name is missing"))
        }
        _ => ErrorBody::new(ErrorCode::NotFound, "no such path; /v1/openapi.json lists them"),
    }
}

async fn list(Extension(peer): Extension<Peer>, Query(q): Query<Listing>, of: ListOf) -> Response {
    let Listing { fresh, limit, after } = q;
    let request = if limit.is_some() || after.is_some() {
        Request::Page { of, page: Page { limit: limit.unwrap_or(0), after }, fresh }
    } else {
        of.whole(fresh)
    };
    answer(&peer, RequestId(0), request).await
}

/// An answer that grows with the cluster: one caller may leave only a bounded number unread.
async fn long_answer(peer: &Peer, request: Request) -> Response {
    match peer.service.long_answer(&peer.caller) {
        Ok(share) => answer(peer, RequestId(0), request).await.map(|body| kube::until_read(body, Some(share))),
        Err(error) => error_response(&error),
    }
}

/// A retry with the same `Muster-Request-Id` is the same request.
fn request_id(headers: &HeaderMap) -> RequestId {
    let given =
        headers.get("muster-request-id").and_then(|v| v.to_str().ok()).and_then(|v| u128::from_str_radix(v, 16).ok());
    given.map_or_else(fresh, RequestId)
}

fn fresh() -> RequestId {
    RequestId::fresh(Clock.wall(), rand::random())
}

pub(crate) fn json_response(status: StatusCode, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

pub(crate) fn error_response(error: &ErrorBody) -> Response {
    let status = StatusCode::from_u16(error.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json_response(status, error.to_json().to_string());
    let retry = error.retry_after_ms.or(matches!(status.as_u16(), 429 | 503).then_some(1000));
    if let Some(ms) = retry {
        // Whole seconds, at least one (RFC 9110, section 10.2.3).
        response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from(ms.div_ceil(1000).max(1)));
    }
    response
}

fn body<T: DeserializeOwned>(bytes: &Bytes) -> Result<T, Box<Response>> {
    let bytes: &[u8] = if bytes.is_empty() { b"{}" } else { bytes };
    serde_json::from_slice(bytes)
        .map_err(|e| Box::new(error_response(&ErrorBody::invalid(format!("invalid request body: {e}")))))
}

async fn node_inspect(Extension(peer): Extension<Peer>, Path(node): Path<String>, q: Query<Fresh>) -> Response {
    answer(&peer, RequestId(0), Request::NodeInspect { node, fresh: q.fresh }).await
}
async fn node_may_stop(Extension(peer): Extension<Peer>, Path(node): Path<String>) -> Response {
    answer(&peer, RequestId(0), Request::NodeMayStop { node }).await
}
async fn node_remove(
    Extension(peer): Extension<Peer>,
    Path(node): Path<String>,
    q: Query<Force>,
    headers: HeaderMap,
) -> Response {
    answer(&peer, request_id(&headers), Request::NodeRemove { node, force: q.force }).await
}
async fn node_update(
    Extension(peer): Extension<Peer>,
    Path(node): Path<String>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Response {
    match body::<Update>(&bytes) {
        Ok(u) => {
            let generation = u.generation.map(muster_messages::Generation);
            answer(&peer, request_id(&headers), Request::NodeUpdate { node, add: u.add, remove: u.remove, generation })
                .await
        }
        Err(response) => *response,
    }
}
async fn node_rename(
    Extension(peer): Extension<Peer>,
    Path(node): Path<String>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Response {
    match body::<NewName>(&bytes) {
        Ok(NewName { name }) => answer(&peer, request_id(&headers), Request::NodeRename { node, name }).await,
        Err(response) => *response,
    }
}
async fn set_role(
    Extension(peer): Extension<Peer>,
    Path(node): Path<String>,
    headers: HeaderMap,
    role: Role,
) -> Response {
    answer(&peer, request_id(&headers), Request::SetRole { node, role }).await
}
async fn token_create(Extension(peer): Extension<Peer>, headers: HeaderMap, bytes: Bytes) -> Response {
    match body::<NewToken>(&bytes) {
        Ok(t) => {
            answer(&peer, request_id(&headers), Request::TokenCreate { role: t.role, ttl_ms: t.ttl_ms, uses: t.uses })
                .await
        }
        Err(response) => *response,
    }
}
async fn token_revoke(Extension(peer): Extension<Peer>, Path(id): Path<String>, headers: HeaderMap) -> Response {
    answer(&peer, request_id(&headers), Request::TokenRevoke { id }).await
}
async fn cert_rotate(Extension(peer): Extension<Peer>, Path(node): Path<String>, headers: HeaderMap) -> Response {
    answer(&peer, request_id(&headers), Request::CertRotate { node }).await
}
async fn user_revoke(Extension(peer): Extension<Peer>, Path(name): Path<String>, headers: HeaderMap) -> Response {
    match name.parse() {
        Ok(name) => answer(&peer, request_id(&headers), Request::UserRevoke { name }).await,
        Err(bad) => error_response(&ErrorBody::invalid(muster_messages::BadId::to_string(&bad))),
    }
}
async fn transfer_leader(Extension(peer): Extension<Peer>, headers: HeaderMap, bytes: Bytes) -> Response {
    match body::<TransferTarget>(&bytes) {
        Ok(transfer_target) => {
            answer(&peer, request_id(&headers), Request::TransferLeader { to: transfer_target.to }).await
        }
        Err(response) => *response,
    }
}
fn whose(node: Option<String>, all: bool) -> ActorsOf {
    match node {
        _ if all => ActorsOf::All,
        None => ActorsOf::Here,
        Some(node) if node == "leader" => ActorsOf::Leader,
        Some(node) => ActorsOf::Node(node),
    }
}
async fn actors(Extension(peer): Extension<Peer>, Query(q): Query<Whose>) -> Response {
    answer(&peer, RequestId(0), Request::Actors { node: whose(q.node, q.all), ask: ActorsAsk::Tree }).await
}
async fn actor_inspect(Extension(peer): Extension<Peer>, Path(path): Path<String>, Query(q): Query<Whose>) -> Response {
    answer(&peer, RequestId(0), Request::Actors { node: whose(q.node, q.all), ask: ActorsAsk::Inspect { path } }).await
}
fn crash_how(word: &str, times: Option<u32>) -> Result<CrashHow, ErrorBody> {
    Ok(match word {
        "panic" => CrashHow::Panic,
        "error" => CrashHow::Error,
        "kill" => CrashHow::Kill,
        "hang" => CrashHow::Hang,
        "start" => CrashHow::Start { times: times.unwrap_or(CrashHow::STARTS) },
        other => {
            return Err(ErrorBody::invalid(format!("how={other}: must be panic, error, kill, hang or start")));
        }
    })
}
async fn actor_action(
    Extension(peer): Extension<Peer>,
    Path(path): Path<String>,
    Query(q): Query<ActorActionQuery>,
) -> Response {
    let ask = match (q.action.as_str(), q.how.as_deref()) {
        ("restart", _) => ActorsAsk::Restart { path },
        ("crash", how) => match crash_how(how.unwrap_or("panic"), q.times) {
            Ok(how) => ActorsAsk::Crash { path, how },
            Err(body) => return error_response(&body),
        },
        (other, _) => {
            let text = format!("action={other}: must be restart or crash");
            return error_response(&ErrorBody::invalid(text));
        }
    };
    answer(&peer, RequestId(0), Request::Actors { node: whose(q.node, false), ask }).await
}
async fn events(Extension(peer): Extension<Peer>, Query(q): Query<Since>) -> Response {
    let share = match peer.service.long_answer(&peer.caller) {
        Ok(share) => share,
        Err(error) => return error_response(&error),
    };
    match all_events(&peer, q.since, q.wait_ms()).await {
        Ok(text) => json_response(StatusCode::OK, text).map(|body| kube::until_read(body, Some(share))),
        Err(error) => error_response(&error),
    }
}

/// Every page as one document: HTTP clients have no frame limit.
async fn all_events(peer: &Peer, since: u64, wait_ms: u64) -> Result<String, ErrorBody> {
    // As values: the answer may be that of a newer manager.
    let mut whole: Option<EventsView<serde_json::Value>> = None;
    let (mut since, mut wait_ms) = (since, wait_ms);
    loop {
        let request = Request::Events { since: Revision(since), wait_ms };
        let call = ApiCall { id: 0, request_id: RequestId(0), timeout_ms: 30_000, request };
        let page = peer.service.answer_from(&peer.origin, peer.caller.clone(), call).await?;
        let page = serde_json::from_str(&page).map_err(|e| ErrorBody::new(ErrorCode::Internal, e.to_string()))?;
        let (document, next) = EventsView::joined(whole, page);
        match next {
            Some(Revision(next)) if next > since => (since, wait_ms) = (next, 0),
            _ => return crate::reads::to_text(&document),
        }
        whole = Some(document);
    }
}

/// The description of `/v1`, kept in sync with the routes above.
async fn openapi() -> Response {
    json_response(StatusCode::OK, include_str!("openapi.json").to_owned())
}

#[cfg(test)]
mod bodies_tests;
#[cfg(test)]
mod idle_tests;
#[cfg(test)]
mod node_refs_tests;
#[cfg(test)]
mod streams_tests;
