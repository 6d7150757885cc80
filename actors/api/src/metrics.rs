//! What Prometheus asks for over HTTP: the metrics of this process, and the addresses of all nodes for its
//! `http_sd_configs`. Neither needs a quorum, and neither is forwarded: a scrape is about the process that it reaches.
//!
//! Invariants  SCRAPE-1  a caller that may not read the whole cluster gets neither: operators and read-only operators do, and
//!                       managers at managers; workers, users of namespaces and callers without an identity do not. A node's own certificate
//!                       reads its own metrics, as its metrics port does without any.
//!             SCRAPE-2  a manager without a replica yet answers with an error. An empty list would make Prometheus
//!                       forget every target.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::Response;
use axum::routing::get;
use axum::{Extension, Router};
use muster_kernel::Clock;
use muster_messages::{Details, ErrorBody, ErrorCode, Principal, Replica, detail};
use tokio::time::timeout;

use crate::access::{bearer, bearer_token};
use crate::core::{self, NO_IDENTITY, may_scrape};
use crate::http::{Peer, error_response, json_response};
use crate::kube::until_read;

const METRICS: &str = "/v1/metrics";
const TARGETS: &str = "/v1/prometheus/targets";

/// Whether no leader confirmed the answer lately.
const STALE: &str = "muster-stale";
/// The revision of the replica that the answer was built from.
const REVISION: &str = "muster-revision";

/// How long a quorum may take to confirm that a token is unknown: as for the Kubernetes subset.
const QUORUM_TIMEOUT: Duration = Duration::from_secs(3);
/// How long it may take to gather the metrics: a little less than the 10 s that Prometheus waits unless configured otherwise.
const RENDER_TIMEOUT: Duration = Duration::from_secs(8);

pub(crate) fn routes() -> Router {
    Router::new().route(METRICS, get(metrics)).route(TARGETS, get(targets))
}

/// Whether an access token identifies the caller at this path. Elsewhere in `/v1` only certificates do.
pub(crate) fn takes_tokens(path: &str) -> bool {
    [METRICS, TARGETS].contains(&path)
}

async fn metrics(Extension(peer): Extension<Peer>, method: Method, uri: Uri, headers: HeaderMap) -> Response {
    rendered(&peer, &headers).await.unwrap_or_else(|error| refusal(&peer, &method, &uri, &error))
}

async fn targets(Extension(peer): Extension<Peer>, method: Method, uri: Uri, headers: HeaderMap) -> Response {
    listed(&peer, &headers).await.unwrap_or_else(|error| refusal(&peer, &method, &uri, &error))
}

/// One for lack of rights is audited, as everywhere.
fn refusal(peer: &Peer, method: &Method, uri: &Uri, error: &ErrorBody) -> Response {
    if matches!(error.code, ErrorCode::Unauthenticated | ErrorCode::Forbidden) {
        peer.service.audit_refusal((&peer.origin, &peer.caller), method, uri.path(), error);
    }
    error_response(error)
}

/// The metrics of this process, in the format that the client prefers.
async fn rendered(peer: &Peer, headers: &HeaderMap) -> Result<Response, ErrorBody> {
    let service = &peer.service;
    let caller = scraper(peer, headers).await?;
    let share = service.long_answer(&caller)?;
    let _permit = service.enter(&caller, false)?;
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let rendering = (service.ports.metrics)(accept.to_owned());
    let text = "the metrics could not be gathered in time: this process is overloaded";
    let metrics = timeout(RENDER_TIMEOUT, rendering).await.map_err(|_| ErrorBody::new(ErrorCode::TimedOut, text))??;
    let mut response = Response::new(until_read(Body::from(metrics.text), Some(share)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(metrics.media_type));
    Ok(response)
}

/// Every node of the local replica, stale or not: targets must not vanish when the quorum does.
async fn listed(peer: &Peer, headers: &HeaderMap) -> Result<Response, ErrorBody> {
    let service = &peer.service;
    let caller = scraper(peer, headers).await?;
    let manager = service.ports.manager.borrow().clone();
    let manager = manager.ok_or_else(|| not_a_manager(peer, "has no list of the nodes"))?;
    let share = service.long_answer(&caller)?;
    let _permit = service.enter(&caller, false)?;
    let replica = manager.replica.borrow().clone();
    if replica.tables.cluster.is_none() {
        return Err(service.no_quorum(&manager, "this manager has no replica of the state yet"));
    }
    let text = crate::reads::to_text(&core::targets(&replica.tables))?;
    let mut response = json_response(StatusCode::OK, text).map(|body| until_read(body, Some(share)));
    let sent = response.headers_mut();
    sent.insert(STALE, HeaderValue::from_static(if is_stale(&replica) { "true" } else { "false" }));
    sent.insert(REVISION, HeaderValue::from(replica.tables.revision.0));
    Ok(response)
}

/// Whether newer changes may exist that will not arrive here soon.
fn is_stale(replica: &Replica) -> bool {
    let raft = &replica.raft;
    raft.leader.is_none() || raft.leader == raft.raft_id && !raft.leading
}

/// The caller, if it may scrape: identified by its token if it sends one, otherwise by its connection.
async fn scraper(peer: &Peer, headers: &HeaderMap) -> Result<Principal, ErrorBody> {
    let service = &peer.service;
    let facts = service.facts();
    let manager = service.ports.manager.borrow().clone();
    let caller = match (headers.get(header::AUTHORIZATION), &manager) {
        (None, _) => peer.caller.clone(),
        (Some(_), None) => return Err(not_a_manager(peer, "knows no access tokens: use a certificate here")),
        (Some(token), Some(manager)) => {
            let token = token.to_str().unwrap_or_default();
            let unknown = || ErrorBody::new(ErrorCode::Unauthenticated, NO_IDENTITY);
            bearer_token(token).ok_or_else(unknown)?;
            let known = bearer(&manager.replica.borrow().tables, token, Clock.wall());
            match known {
                Some(caller) => caller,
                // One that was created a moment ago may not have arrived here.
                None => {
                    let replica = service.replica(manager, QUORUM_TIMEOUT).await?;
                    bearer(&replica.tables, token, Clock.wall()).ok_or_else(unknown)?
                }
            }
        }
    };
    // The socket of a node without a manager runtime acts as that node.
    let caller = match caller {
        Principal::Operator if manager.is_none() => Principal::Node(facts.id),
        caller => caller,
    };
    let replica = manager.map(|manager| manager.replica.borrow().clone());
    may_scrape(&caller, facts.id, replica.as_ref().map(|replica| &replica.tables))?;
    Ok(caller)
}

fn not_a_manager(peer: &Peer, why: &str) -> ErrorBody {
    let managers = peer.service.facts().managers;
    let hint = managers.first().map(|first| format!("; ask a manager, for example {first}")).unwrap_or_default();
    ErrorBody::new(ErrorCode::NotAManager, format!("this node is not a manager and {why}{hint}"))
        .with_details(&Details::default().with(detail::MANAGERS, &managers))
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
