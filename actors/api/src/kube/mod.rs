//! The Kubernetes subset over HTTP: the caller, the replica that answers, and how a write reaches the leader. What a
//! request means and what answers look like is decided in `muster-kubernetes`.
//!
//! Invariants  KUBE-1  nothing is denied from an unconfirmed replica: without quorum the answer is 503, never 404.
//!             KUBE-2  the answering replica judges a token, so a revoked user gets nothing more.

pub(crate) mod proxy;
pub(crate) mod refused_tokens;
mod watch;
mod write;

pub(crate) use self::write::ObjectWrite;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use http_body_util::BodyExt;
use muster_kernel::Clock;
use muster_kubernetes::{Ask, Freshness, Head, Reason, Rules, Status, Takes, Verb};
use muster_messages::wire::{ApiCall, KubeAnswer, KubeCall, Refusal, Request as Asked};
use muster_messages::{ErrorBody, ErrorCode, Principal, Replica, RequestId, Tables, WallTime, millis};
use tokio::time::{Instant, timeout_at};

use crate::access::{bearer, bearer_token};
use crate::core::{caller_is_read_only, may_access, may_write, on_behalf};
use crate::http::Peer;
use crate::ports::ManagerPorts;
use crate::service::{Service, refusal_error};
use crate::shares::Share;

/// How long a client waits that does not state it, and the longest wait for one answer.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_CLIENT_TIMEOUT: Duration = Duration::from_secs(60);
/// The most that is reserved of a client's time for delivery: an answer that arrives after the client gave up is
/// useless.
const MAX_DELIVERY_MARGIN: Duration = Duration::from_secs(1);
/// How long to wait for a quorum: longer than a leader change, shorter than clients wait.
const QUORUM_TIMEOUT: Duration = Duration::from_secs(3);

/// Whether a path belongs to the subset or is one that its clients try: the answer for a path that does not exist must
/// be a `Status` too. The same holds for every path outside `/v1` that is requested with a token.
pub(crate) fn serves(path: &str, with_token: bool) -> bool {
    let first = path.strip_prefix('/').unwrap_or(path).split('/').next();
    if with_token && first != Some("v1") && path != "/livez" {
        return true;
    }
    matches!(first, Some("api" | "apis" | "version" | "healthz" | "readyz" | "openapi"))
}

/// Answers one request.
pub(crate) async fn serve(peer: &Peer, request: Request) -> Response {
    let has_audit_line = AtomicBool::new(false);
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    match Box::pin(attempt(peer, request, &has_audit_line)).await {
        Ok(response) => response,
        Err(status) => {
            if !has_audit_line.load(Ordering::Relaxed) {
                audit_refusal(peer, &method, &path, &status);
            }
            respond(status.into())
        }
    }
}

/// Converts an answer to an HTTP response.
fn respond(answer: KubeAnswer) -> Response {
    let content_type = muster_kubernetes::content_type(&answer);
    let mut response = Response::new(Body::from(answer.body));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    if let Some(secs) = answer.retry_after_s {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(secs));
    }
    for warning in answer.warnings {
        // 299: miscellaneous and persistent; `-`: the agent does not name itself (RFC 7234, section 5.5).
        if let Ok(value) = HeaderValue::from_str(&format!("299 - {warning:?}")) {
            headers.append(header::WARNING, value);
        }
    }
    response
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Audits a refusal for lack of rights or of a valid identity.
fn audit_refusal(peer: &Peer, method: &Method, path: &str, status: &Status) {
    let code = match status.reason {
        Reason::Unauthorized => ErrorCode::Unauthenticated,
        Reason::Forbidden => ErrorCode::Forbidden,
        _ => return,
    };
    let why = ErrorBody::new(code, status.message.clone());
    peer.service.audit_refusal((&peer.origin, &peer.caller), method, path, &why);
}

async fn attempt(peer: &Peer, request: Request, has_audit_line: &AtomicBool) -> Result<Response, Status> {
    let (head, body) = request.into_parts();
    let ask = muster_kubernetes::route(Head {
        method: head.method.as_str(),
        target: target(&head),
        content_type: text(&head.headers, header::CONTENT_TYPE),
        accept: text(&head.headers, header::ACCEPT),
        user_agent: text(&head.headers, header::USER_AGENT),
    })?;
    let service = &peer.service;
    if ask.is_public() {
        return Ok(document(&ask));
    }
    if let Some(name) = head.headers.keys().find(|name| name.as_str().starts_with("impersonate-")) {
        return Err(Status::new(Reason::Forbidden, format!("impersonation is not supported ({name})")));
    }
    let token = head.headers.get(header::AUTHORIZATION).map(|value| value.to_str().unwrap_or_default().to_owned());
    if token.is_none()
        && let Some(refusal) = &peer.refused
    {
        return Err(rejected_by_gateway(refusal));
    }
    let Some(manager) = service.ports.manager.borrow().clone() else {
        return through_a_manager(peer, &ask, (&head, body), token.as_deref()).await;
    };
    let requester = Requester { peer: peer.caller.clone(), token };
    let deadline = Instant::now() + answer_within(&ask);
    // Before the body is read: a refused request costs no more than a header.
    let caller = requester.known(service, &manager).await?;
    Identified { peer, manager, requester, caller, deadline }.answer(ask, (&head, body), has_audit_line).await
}

fn target(head: &Parts) -> &str {
    head.uri.path_and_query().map_or("/", |target| target.as_str())
}

/// A node that is not a manager passes the request on to one.
async fn through_a_manager(
    peer: &Peer,
    ask: &Ask,
    (head, body): (&Parts, Body),
    token: Option<&str>,
) -> Result<Response, Status> {
    let service = &peer.service;
    let facts = (service.ports.facts)();
    let own = peer.caller == Principal::Node(facts.id);
    if token.is_none() && !own {
        return Err(match peer.caller {
            Principal::Anonymous => no_identity(),
            _ => ErrorBody::new(ErrorCode::NotAManager, not_a_manager(&facts.managers)).into(),
        });
    }
    // Before the body is read and before a manager is dialled: any node refuses a header that cannot be a token.
    let digest = match token {
        Some(header) => Some(bearer_token(header).ok_or_else(no_identity)?.digest()),
        None => None,
    };
    let from = peer.source.zip(digest);
    if let Some((source, digest)) = from {
        service.refused_tokens().may_pass(Clock.now(), source, &digest).map_err(too_many_refusals)?;
    }
    // A manager decides whose token it is, so the number of bodies kept here is bounded for all clients together.
    let permit = proxy::permit(service)?;
    let body = if ask.may_be_large() { peer.large_body(body).await? } else { peer.body(body).await? };
    let deadline = Instant::now() + answer_within(ask).min(proxy::HEAD_DEADLINE);
    let answer = proxy::forward(service, permit, &facts.managers, head, body, deadline).await?;
    if let Some((source, digest)) = from {
        let accepted = answer.status() != StatusCode::UNAUTHORIZED;
        service.refused_tokens().record_decision(Clock.now(), source, digest, accepted);
    }
    Ok(answer)
}

/// A request whose caller this manager knows.
struct Identified<'a> {
    peer: &'a Peer,
    manager: Arc<ManagerPorts>,
    requester: Requester,
    caller: Principal,
    deadline: Instant,
}

impl Identified<'_> {
    async fn answer(
        self,
        ask: Ask,
        (head, body): (&Parts, Body),
        has_audit_line: &AtomicBool,
    ) -> Result<Response, Status> {
        let service = &self.peer.service;
        match ask.takes {
            Takes::Document => Ok(document(&ask)),
            Takes::Identity => {
                Ok(respond(muster_kubernetes::self_review(&name_of(&self.caller), &groups_of(&self.caller))))
            }
            Takes::Authorization => self.authorization(&ask, body).await,
            Takes::Rules => self.rules(&ask, body).await,
            Takes::NoEvents => {
                self.may(&ask).await?;
                Ok(respond(muster_kubernetes::no_events(&ask)?))
            }
            Takes::Event => {
                let _permit = service.enter(&self.caller, false)?;
                self.may(&ask).await?;
                let body = self.peer.body(body).await?;
                let answer = muster_kubernetes::event_dropped(&ask, &body)?;
                service.counters.events_dropped.fetch_add(1, Ordering::Relaxed);
                Ok(respond(answer))
            }
            Takes::Read => {
                let _permit = service.enter(&self.caller, false)?;
                read(service, &self.manager, &self.requester, &self.caller, ask, self.deadline).await
            }
            Takes::Watch => {
                let replica = fresh_replica(service, &self.manager, ask.freshness(), self.deadline).await?;
                self.requester.may(&ask, &replica.tables)?;
                watch::stream(service, self.manager, self.requester, &self.caller, &ask, &replica.tables)
            }
            Takes::Write => self.write(&ask, (head, body), has_audit_line).await,
        }
    }

    /// Whether it may be made, according to this replica as it is.
    async fn may(&self, ask: &Ask) -> Result<(), Status> {
        let replica = fresh_replica(&self.peer.service, &self.manager, Freshness::Any, self.deadline).await?;
        self.requester.may(ask, &replica.tables)
    }

    /// Whether its caller may do something.
    async fn authorization(&self, ask: &Ask, body: Body) -> Result<Response, Status> {
        let body = self.peer.body(body).await?;
        let question = muster_kubernetes::access_review(ask, &body)?;
        let namespace = if question.namespace.is_empty() { "*" } else { question.namespace.as_str() };
        let replica = self.manager.replica.borrow().clone();
        let writes = !matches!(question.verb.as_str(), "get" | "list" | "watch");
        let granted = &self.peer.service.ports.limits.node_namespaces;
        let allowed = question.path.is_empty()
            && question.is_served()
            && may_access(&replica.tables, &self.caller, namespace).is_ok()
            && (!writes || may_write(&replica.tables, granted, &self.caller, namespace).is_ok())
            || !question.path.is_empty() && question.verb == "get";
        Ok(respond(muster_kubernetes::access_answer(&question, allowed, "")))
    }

    /// All that its caller may do in a namespace.
    async fn rules(&self, ask: &Ask, body: Body) -> Result<Response, Status> {
        let body = self.peer.body(body).await?;
        let namespace = muster_kubernetes::rules_review(ask, &body)?;
        let replica = self.manager.replica.borrow().clone();
        let granted = &self.peer.service.ports.limits.node_namespaces;
        let rules = match may_access(&replica.tables, &self.caller, &namespace) {
            Err(_) => Rules::None,
            Ok(()) if may_write(&replica.tables, granted, &self.caller, &namespace).is_err() => Rules::Read,
            Ok(()) => Rules::All,
        };
        Ok(respond(muster_kubernetes::rules_answer(rules)))
    }

    /// The leader carries it out.
    async fn write(
        self,
        ask: &Ask,
        (head, body): (&Parts, Body),
        has_audit_line: &AtomicBool,
    ) -> Result<Response, Status> {
        if caller_is_read_only(&self.manager.replica.borrow().tables, &self.caller) {
            return Err(ask.forbidden(&name_of(&self.caller)));
        }
        let body = if ask.may_be_large() { self.peer.large_body(body).await? } else { self.peer.body(body).await? };
        let call = KubeCall {
            method: head.method.to_string(),
            target: target(head).to_owned(),
            content_type: text(&head.headers, header::CONTENT_TYPE).map(str::to_owned),
            accept: text(&head.headers, header::ACCEPT).map(str::to_owned),
            user_agent: text(&head.headers, header::USER_AGENT).map(str::to_owned),
            body: body.to_vec(),
        };
        let left = self.deadline.saturating_duration_since(Instant::now());
        let call = ApiCall {
            id: 0,
            request_id: RequestId::fresh(Clock.wall(), rand::random()),
            timeout_ms: millis(left),
            request: Asked::Kube(call),
        };
        // From here on the request has its own audit line.
        has_audit_line.store(true, Ordering::Relaxed);
        let answer = self.peer.service.answer_from(&self.peer.origin, self.caller, call).await?;
        let answer: KubeAnswer = serde_json::from_str(&answer)
            .map_err(|e| ErrorBody::new(ErrorCode::Internal, format!("the leader's answer: {e}")))?;
        Ok(respond(answer))
    }
}

/// A document that needs no state.
fn document(ask: &Ask) -> Response {
    let Some((content_type, body)) = muster_kubernetes::openapi(ask) else {
        return respond(muster_kubernetes::document(ask, env!("CARGO_PKG_VERSION")));
    };
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// An answer longer than this counts as long until it is read.
pub(crate) const LONG_ANSWER_BYTES: usize = 64 * 1024;

/// A get or a list.
async fn read(
    service: &Service,
    manager: &ManagerPorts,
    requester: &Requester,
    caller: &Principal,
    ask: Ask,
    deadline: Instant,
) -> Result<Response, Status> {
    let replica = fresh_replica(service, manager, ask.freshness(), deadline).await?;
    requester.may(&ask, &replica.tables)?;
    if ask.verb == Verb::List {
        let share = service.long_answer(caller)?;
        // Ten thousand objects take as long as an election may: not on the threads that Raft runs on.
        let make = move || muster_kubernetes::answer(&ask, &replica.tables, Clock.wall());
        let answer = service.builders.build(make).await??;
        let share = (answer.body.len() > LONG_ANSWER_BYTES).then_some(share);
        return Ok(respond(answer).map(|body| until_read(body, share)));
    }
    match muster_kubernetes::answer(&ask, &replica.tables, Clock.wall()) {
        // KUBE-1. The client would accept an older replica, but only a confirmed one may say that something does not
        // exist.
        Err(status) if status.reason == Reason::NotFound && ask.freshness() != Freshness::Now => {
            let replica = fresh_replica(service, manager, Freshness::Now, deadline).await?;
            requester.may(&ask, &replica.tables)?;
            counted(service, caller, muster_kubernetes::answer(&ask, &replica.tables, Clock.wall())?)
        }
        answered => counted(service, caller, answered?),
    }
}

/// The answer with one object. A long one counts among its caller's until it is read, as a list does.
fn counted(service: &Service, caller: &Principal, answer: KubeAnswer) -> Result<Response, Status> {
    let is_long = answer.body.len() > LONG_ANSWER_BYTES;
    let share = if is_long { Some(service.long_answer(caller)?) } else { None };
    Ok(respond(answer).map(|body| until_read(body, share)))
}

/// A body that holds its share until it is read or its connection ends.
pub(crate) fn until_read(body: Body, share: Option<Share>) -> Body {
    match share {
        None => body,
        Some(share) => Body::new(body.map_frame(move |frame| {
            let _until_then = &share;
            frame
        })),
    }
}

/// How soon a client must have its answer.
fn answer_within(ask: &Ask) -> Duration {
    let client_timeout = ask.timeout.unwrap_or(DEFAULT_TIMEOUT).min(MAX_CLIENT_TIMEOUT);
    client_timeout - (client_timeout / 10).min(MAX_DELIVERY_MARGIN)
}

/// A client that the gateway refused. A refusal that passes (too many connections, for example) does not concern
/// rights: clients give up on those.
fn rejected_by_gateway(refusal: &Refusal) -> Status {
    match refusal.retry_after_ms {
        Some(_) => refusal_error(refusal).into(),
        None => Status::new(Reason::Forbidden, refusal.message.clone()),
    }
}

fn no_identity() -> Status {
    Status::unauthorized(
        "this request needs a bearer token or a client certificate; `muster kubeconfig` writes a file with a token",
    )
}

fn too_many_refusals(wait: Duration) -> Status {
    let text = "too many tokens from this address were refused; retry later, or ask a manager";
    ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(wait).into()
}

fn not_a_manager(managers: &[String]) -> String {
    match managers.first() {
        Some(first) => {
            format!("this node is not a manager and vouches for no certificate; ask a manager, for example {first}")
        }
        None => "this node is not a manager and knows no manager".to_owned(),
    }
}

/// The caller: identified by a bearer token if there is one, otherwise by the connection.
#[derive(Clone)]
struct Requester {
    peer: Principal,
    token: Option<String>,
}

impl Requester {
    /// The principal according to this replica. `None`: unknown.
    fn by(&self, tables: &Tables) -> Option<Principal> {
        match &self.token {
            Some(header) => bearer(tables, header, Clock.wall()),
            None => Some(self.peer.clone()).filter(|requester| *requester != Principal::Anonymous),
        }
    }

    /// A replica that is a moment behind may not know a token that was just created.
    async fn known(&self, service: &Service, manager: &ManagerPorts) -> Result<Principal, Status> {
        let known = self.by(&manager.replica.borrow().tables);
        match known {
            Some(requester) => Ok(requester),
            None if self.token.is_none() => Err(no_identity()),
            None => {
                let replica = service.replica(manager, QUORUM_TIMEOUT).await?;
                self.by(&replica.tables).ok_or_else(no_identity)
            }
        }
    }

    /// When its token expires, according to this replica.
    fn ends(&self, tables: &Tables) -> Option<WallTime> {
        crate::access::ends(tables, self.token.as_ref()?)
    }

    /// Whether it may make this request, according to this replica.
    fn may(&self, ask: &Ask, tables: &Tables) -> Result<(), Status> {
        may(self.by(tables).as_ref(), ask, tables)
    }
}

fn may(caller: Option<&Principal>, ask: &Ask, tables: &Tables) -> Result<(), Status> {
    let caller = caller.ok_or_else(no_identity)?;
    // Documents and self reviews need an identity but no permission.
    if ask.verb == Verb::None {
        return Ok(());
    }
    let namespace = ask.namespace.as_deref().unwrap_or("*");
    may_access(tables, caller, namespace).map_err(|_| ask.forbidden(&name_of(caller)))?;
    if matches!(ask.verb, Verb::Get | Verb::List | Verb::Watch) {
        return Ok(());
    }
    if caller_is_read_only(tables, caller) {
        return Err(ask.forbidden(&name_of(caller)));
    }
    on_behalf::by_hand(caller, namespace).map_err(|_| ask.forbidden(&name_of(caller)))
}

/// The user name as Kubernetes spells it.
fn name_of(caller: &Principal) -> String {
    match caller {
        Principal::User(name)
        | Principal::Admin(name)
        | Principal::Reader(name)
        | Principal::Bearer { user: name, .. } => name.to_string(),
        Principal::Node(id) => format!("system:node:{id}"),
        Principal::Operator => "muster:operator".to_owned(),
        Principal::Anonymous => "system:anonymous".to_owned(),
        Principal::Cluster => "muster:cluster".to_owned(),
        Principal::Workload(name) => format!("muster:workload:{name}"),
    }
}

fn groups_of(caller: &Principal) -> Vec<String> {
    let own = match caller {
        Principal::User(_) | Principal::Bearer { .. } => "muster:users",
        Principal::Admin(_) | Principal::Operator => "system:masters",
        Principal::Reader(_) => "muster:readers",
        Principal::Node(_) => "system:nodes",
        Principal::Anonymous | Principal::Cluster | Principal::Workload(_) => return vec![],
    };
    vec![own.to_owned(), "system:authenticated".to_owned()]
}

/// A replica that is fresh enough to answer.
async fn fresh_replica(
    service: &Service,
    manager: &ManagerPorts,
    freshness: Freshness,
    deadline: Instant,
) -> Result<Arc<Replica>, Status> {
    let by = deadline.min(Instant::now() + QUORUM_TIMEOUT);
    match freshness {
        Freshness::Any => {
            let replica = manager.replica.borrow().clone();
            if replica.tables.cluster.is_some() {
                return Ok(replica);
            }
            Ok(service.replica(manager, by.saturating_duration_since(Instant::now())).await?)
        }
        Freshness::Now => Ok(service.replica(manager, by.saturating_duration_since(Instant::now())).await?),
        Freshness::AtLeast(revision) => {
            let mut replicas = manager.replica.clone();
            let reached = timeout_at(by, replicas.wait_for(|replica| replica.tables.revision >= revision)).await;
            match reached {
                Ok(Ok(replica)) => Ok(replica.clone()),
                _ => Err(Status::too_new(revision, manager.replica.borrow().tables.revision)),
            }
        }
    }
}

#[cfg(test)]
mod tests;
