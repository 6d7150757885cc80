//! The Kubernetes subset over HTTP: who asks, which copy answers, and the way of a write to the leader. What a request
//! means and how answers look is `muster-kubernetes`' business.
//!
//! Keeps  KUBE-1  nothing is denied from a copy that is not confirmed: without quorum the answer is 503, never 404.
//!        KUBE-2  a token is judged by the copy that answers, so a revoked user gets nothing more.

pub(crate) mod proxy;
pub(crate) mod refused_tokens;
mod watch;
mod write;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use http_body_util::BodyExt;
use muster_kernel::Clock;
use muster_kubernetes::{Ask, Freshness, Head, Reason, Rules, Status, Takes, Verb};
use muster_messages::wire::{ApiCall, KubeAnswer, KubeCall, Refusal, Request as Asked};
use muster_messages::{ErrorBody, ErrorCode, Principal, Replica, RequestId, Tables, WallTime, millis};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use crate::access::{bearer, bearer_token};
use crate::core::{may_touch, may_write, only_reads, speaks};
use crate::http::Peer;
use crate::ports::ManagerPorts;
use crate::service::{Service, refusal_error};
use crate::shares::Share;

/// How long a client waits that does not say so, and the longest that any may wait for one answer.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(60);
/// The most that is left of a client's time for an answer's way: one that comes when the client has given up is none.
const LONGEST_WAY: Duration = Duration::from_secs(1);
/// How long a quorum is waited for: longer than a leader change, shorter than clients wait.
const PATIENCE: Duration = Duration::from_secs(3);

/// Whether a path belongs to the subset, or is one that its clients try: what they are told of a path that is not there
/// must be a `Status` too. So it is with every path outside `/v1` that is asked for with a token.
pub(crate) fn serves(path: &str, with_token: bool) -> bool {
    let first = path.strip_prefix('/').unwrap_or(path).split('/').next();
    if with_token && first != Some("v1") && path != "/livez" {
        return true;
    }
    matches!(first, Some("api" | "apis" | "version" | "healthz" | "readyz" | "openapi"))
}

/// Answers one request.
pub(crate) async fn serve(peer: &Peer, request: Request) -> Response {
    let has_line = AtomicBool::new(false);
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    match Box::pin(attempt(peer, request, &has_line)).await {
        Ok(response) => response,
        Err(status) => {
            if !has_line.load(Ordering::Relaxed) {
                line_of_refusal(peer, &method, &path, &status);
            }
            respond(status.into())
        }
    }
}

/// An answer as it travels.
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
        // 299: miscellaneous and persistent; `-`: the agent does not say who it is (RFC 7234, section 5.5).
        if let Ok(value) = HeaderValue::from_str(&format!("299 - {warning:?}")) {
            headers.append(header::WARNING, value);
        }
    }
    response
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// What a caller may not ask, and a caller without a valid identity.
fn line_of_refusal(peer: &Peer, method: &Method, path: &str, status: &Status) {
    let code = match status.reason {
        Reason::Unauthorized => ErrorCode::Unauthenticated,
        Reason::Forbidden => ErrorCode::Forbidden,
        _ => return,
    };
    let why = ErrorBody::new(code, status.message.clone());
    peer.service.line_of_refusal((&peer.origin, &peer.caller), method, path, &why);
}

async fn attempt(peer: &Peer, request: Request, has_line: &AtomicBool) -> Result<Response, Status> {
    let (head, body) = request.into_parts();
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    let ask = muster_kubernetes::route(Head {
        method: head.method.as_str(),
        target,
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
        return Err(turned_away(refusal));
    }
    let Some(manager) = service.ports.manager.borrow().clone() else {
        let facts = (service.ports.facts)();
        let own = peer.caller == Principal::Node(facts.id);
        if token.is_none() && !own {
            return Err(match peer.caller {
                Principal::Anonymous => nobody(),
                _ => ErrorBody::new(ErrorCode::NotAManager, not_a_manager(&facts.managers)).into(),
            });
        }
        // Before the body is read, and before a manager is dialled: what cannot be a token is refused by anybody.
        let digest = match &token {
            Some(header) => Some(bearer_token(header).ok_or_else(nobody)?.digest()),
            None => None,
        };
        let from = peer.source.zip(digest);
        if let Some((source, digest)) = from {
            service.refused_tokens().may_pass(Clock.now(), source, &digest).map_err(too_many_refusals)?;
        }
        // A manager decides whose token it is, so the number of bodies kept here is bounded for all clients together.
        let place = proxy::place(service)?;
        let body = if ask.may_be_large() { peer.large_body(body).await? } else { peer.body(body).await? };
        let deadline = Instant::now() + answer_within(&ask).min(proxy::HEAD_DEADLINE);
        let answer = proxy::pass_on(service, place, &facts.managers, &head, body, deadline).await?;
        if let Some((source, digest)) = from {
            let accepted = answer.status() != StatusCode::UNAUTHORIZED;
            service.refused_tokens().judged(Clock.now(), source, digest, accepted);
        }
        return Ok(answer);
    };
    let who = Who { peer: peer.caller.clone(), token };
    let deadline = Instant::now() + answer_within(&ask);
    // Before the body is read: nobody who will be refused costs more than a header.
    let caller = who.known(service, &manager).await?;
    match ask.takes {
        Takes::Document => Ok(document(&ask)),
        Takes::Identity => Ok(respond(muster_kubernetes::self_review(&name_of(&caller), &groups_of(&caller)))),
        Takes::Authorization => {
            let body = peer.body(body).await?;
            let question = muster_kubernetes::access_review(&ask, &body)?;
            let namespace = if question.namespace.is_empty() { "*" } else { question.namespace.as_str() };
            let copy = manager.replica.borrow().clone();
            let writes = !matches!(question.verb.as_str(), "get" | "list" | "watch");
            let granted = &service.ports.limits.node_namespaces;
            let allowed = question.path.is_empty()
                && question.is_served()
                && may_touch(&copy.tables, &caller, namespace).is_ok()
                && (!writes || may_write(&copy.tables, granted, &caller, namespace).is_ok())
                || !question.path.is_empty() && question.verb == "get";
            Ok(respond(muster_kubernetes::access_answer(&question, allowed, "")))
        }
        Takes::Rules => {
            let body = peer.body(body).await?;
            let namespace = muster_kubernetes::rules_review(&ask, &body)?;
            let copy = manager.replica.borrow().clone();
            let granted = &service.ports.limits.node_namespaces;
            let rules = match may_touch(&copy.tables, &caller, &namespace) {
                Err(_) => Rules::None,
                Ok(()) if may_write(&copy.tables, granted, &caller, &namespace).is_err() => Rules::Read,
                Ok(()) => Rules::All,
            };
            Ok(respond(muster_kubernetes::rules_answer(rules)))
        }
        Takes::NoEvents => {
            let copy = fresh_copy(service, &manager, Freshness::Any, deadline).await?;
            who.may(&ask, &copy.tables)?;
            Ok(respond(muster_kubernetes::no_events(&ask)?))
        }
        Takes::Event => {
            let _place = service.enter(&caller, false)?;
            let copy = fresh_copy(service, &manager, Freshness::Any, deadline).await?;
            who.may(&ask, &copy.tables)?;
            let body = peer.body(body).await?;
            let answer = muster_kubernetes::event_dropped(&ask, &body)?;
            service.counters.events_dropped.fetch_add(1, Ordering::Relaxed);
            Ok(respond(answer))
        }
        Takes::Read => {
            let _place = service.enter(&caller, false)?;
            read(service, &manager, &who, &caller, ask, deadline).await
        }
        Takes::Watch => {
            let copy = fresh_copy(service, &manager, ask.freshness(), deadline).await?;
            who.may(&ask, &copy.tables)?;
            watch::stream(service, manager, who, &caller, &ask, &copy.tables)
        }
        Takes::Write => {
            if only_reads(&manager.replica.borrow().tables, &caller) {
                return Err(ask.forbidden(&name_of(&caller)));
            }
            let body = if ask.may_be_large() { peer.large_body(body).await? } else { peer.body(body).await? };
            let call = KubeCall {
                method: head.method.to_string(),
                target: target.to_owned(),
                content_type: text(&head.headers, header::CONTENT_TYPE).map(str::to_owned),
                accept: text(&head.headers, header::ACCEPT).map(str::to_owned),
                user_agent: text(&head.headers, header::USER_AGENT).map(str::to_owned),
                body: body.to_vec(),
            };
            let left = deadline.saturating_duration_since(Instant::now());
            let call = ApiCall {
                id: 0,
                request_id: RequestId::fresh(Clock.wall(), rand::random()),
                timeout_ms: millis(left),
                request: Asked::Kube(call),
            };
            // From here on it has a line of its own.
            has_line.store(true, Ordering::Relaxed);
            let answer = service.answer_from(&peer.origin, caller, call).await?;
            let answer: KubeAnswer = serde_json::from_str(&answer)
                .map_err(|e| ErrorBody::new(ErrorCode::Internal, format!("the leader's answer: {e}")))?;
            Ok(respond(answer))
        }
    }
}

/// A document that answers for itself.
fn document(ask: &Ask) -> Response {
    let Some((content_type, body)) = muster_kubernetes::openapi(ask) else {
        return respond(muster_kubernetes::document(ask, env!("CARGO_PKG_VERSION")));
    };
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Above this an answer counts as long until it is read.
const LONG: usize = 64 * 1024;

/// A get or a list.
async fn read(
    service: &Service,
    manager: &ManagerPorts,
    who: &Who,
    caller: &Principal,
    ask: Ask,
    deadline: Instant,
) -> Result<Response, Status> {
    let copy = fresh_copy(service, manager, ask.freshness(), deadline).await?;
    who.may(&ask, &copy.tables)?;
    if ask.verb == Verb::List {
        let share = service.long_answer(caller)?;
        // Ten thousand objects take as long as an election may: not on the threads that Raft lives on.
        let made = spawn_blocking(move || muster_kubernetes::answer(&ask, &copy.tables, Clock.wall())).await;
        let answer = made.map_err(|e| ErrorBody::new(ErrorCode::Internal, format!("the list was not made: {e}")))??;
        let share = (answer.body.len() > LONG).then_some(share);
        return Ok(respond(answer).map(|body| until_read(body, share)));
    }
    match muster_kubernetes::answer(&ask, &copy.tables, Clock.wall()) {
        // KUBE-1. The client would take an older copy; that something does not exist is for a confirmed one to say.
        Err(status) if status.reason == Reason::NotFound && ask.freshness() != Freshness::Now => {
            let copy = fresh_copy(service, manager, Freshness::Now, deadline).await?;
            who.may(&ask, &copy.tables)?;
            Ok(respond(muster_kubernetes::answer(&ask, &copy.tables, Clock.wall())?))
        }
        answered => Ok(respond(answered?)),
    }
}

/// A body that holds its share until it is read, or its connection is gone.
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
    let patience = ask.timeout.unwrap_or(DEFAULT_TIMEOUT).min(LONGEST_TIMEOUT);
    patience - (patience / 10).min(LONGEST_WAY)
}

/// Whom the gateway refused. What passes (too many connections, for one) is no question of rights: clients give up at those.
fn turned_away(refusal: &Refusal) -> Status {
    match refusal.retry_after_ms {
        Some(_) => refusal_error(refusal).into(),
        None => Status::new(Reason::Forbidden, refusal.message.clone()),
    }
}

fn nobody() -> Status {
    Status::unauthorized("this needs a bearer token or a client certificate: `muster kubeconfig` makes a file with one")
}

fn too_many_refusals(wait: Duration) -> Status {
    let text = "too many tokens from this address were refused; retry later, or ask a manager";
    ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(wait).into()
}

fn not_a_manager(managers: &[String]) -> String {
    match managers.first() {
        Some(first) => format!("this node is no manager and vouches for no certificate; ask one, for example {first}"),
        None => "this node is no manager, and knows none".to_owned(),
    }
}

/// Who asks: by a bearer token where there is one, by the connection otherwise.
#[derive(Clone)]
struct Who {
    peer: Principal,
    token: Option<String>,
}

impl Who {
    /// By this copy. `None`: nobody whom it knows.
    fn by(&self, tables: &Tables) -> Option<Principal> {
        match &self.token {
            Some(header) => bearer(tables, header, Clock.wall()),
            None => Some(self.peer.clone()).filter(|who| *who != Principal::Anonymous),
        }
    }

    /// A copy that is a moment behind may not know a token that was just made.
    async fn known(&self, service: &Service, manager: &ManagerPorts) -> Result<Principal, Status> {
        let known = self.by(&manager.replica.borrow().tables);
        match known {
            Some(who) => Ok(who),
            None if self.token.is_none() => Err(nobody()),
            None => {
                let copy = service.copy(manager, PATIENCE).await?;
                self.by(&copy.tables).ok_or_else(nobody)
            }
        }
    }

    /// When its token is over, by this copy.
    fn ends(&self, tables: &Tables) -> Option<WallTime> {
        crate::access::ends(tables, self.token.as_ref()?)
    }

    /// Whether it may ask this, by this copy.
    fn may(&self, ask: &Ask, tables: &Tables) -> Result<(), Status> {
        may(self.by(tables).as_ref(), ask, tables)
    }
}

fn may(caller: Option<&Principal>, ask: &Ask, tables: &Tables) -> Result<(), Status> {
    let caller = caller.ok_or_else(nobody)?;
    // Documents and questions about oneself need an identity, no permission.
    if ask.verb == Verb::None {
        return Ok(());
    }
    let namespace = ask.namespace.as_deref().unwrap_or("*");
    may_touch(tables, caller, namespace).map_err(|_| ask.forbidden(&name_of(caller)))?;
    if matches!(ask.verb, Verb::Get | Verb::List | Verb::Watch) {
        return Ok(());
    }
    if only_reads(tables, caller) {
        return Err(ask.forbidden(&name_of(caller)));
    }
    speaks::by_hand(caller, namespace).map_err(|_| ask.forbidden(&name_of(caller)))
}

/// As Kubernetes spells names of users.
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
    }
}

fn groups_of(caller: &Principal) -> Vec<String> {
    let own = match caller {
        Principal::User(_) | Principal::Bearer { .. } => "muster:users",
        Principal::Admin(_) | Principal::Operator => "system:masters",
        Principal::Reader(_) => "muster:readers",
        Principal::Node(_) => "system:nodes",
        Principal::Anonymous | Principal::Cluster => return vec![],
    };
    vec![own.to_owned(), "system:authenticated".to_owned()]
}

/// A copy that may answer.
async fn fresh_copy(
    service: &Service,
    manager: &ManagerPorts,
    freshness: Freshness,
    deadline: Instant,
) -> Result<Arc<Replica>, Status> {
    let by = deadline.min(Instant::now() + PATIENCE);
    match freshness {
        Freshness::Any => {
            let copy = manager.replica.borrow().clone();
            if copy.tables.cluster.is_some() {
                return Ok(copy);
            }
            Ok(service.copy(manager, by.saturating_duration_since(Instant::now())).await?)
        }
        Freshness::Now => Ok(service.copy(manager, by.saturating_duration_since(Instant::now())).await?),
        Freshness::AtLeast(revision) => {
            let mut copies = manager.replica.clone();
            let reached = timeout_at(by, copies.wait_for(|copy| copy.tables.revision >= revision)).await;
            match reached {
                Ok(Ok(copy)) => Ok(copy.clone()),
                _ => Err(Status::too_new(revision, manager.replica.borrow().tables.revision)),
            }
        }
    }
}

#[cfg(test)]
mod tests;
