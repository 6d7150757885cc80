//! Reconcilers, members and objects: the requests of `muster reconciler`, `muster member` and `muster object`, with the
//! same JSON.
//!
//! A definition is the [document](super::definition) that the command reads from a file, as JSON: one, or a list of
//! them. A script sends what it has, durations are written `30s`, and the defaults are the command's.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, Query};
use axum::http::{HeaderMap, Method};
use axum::response::Response;
use axum::routing::{MethodRouter, delete, get, post};
use axum::{Extension, Router};
use muster_messages::wire::{ReconcilerRequest, Request};
use muster_messages::{Definition, ErrorBody, ManagedKey, Revision, Triple, millis};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::definition::{Document, parse_duration};
use super::event_stream::Followed;
use super::events::Since;
use super::{Peer, answer, body, error_response, event_stream, long_answer};

pub(super) fn routes() -> Router {
    use ReconcilerRequest as R;
    Router::new()
        .route("/v1/reconcilers", get(|p: Extension<Peer>| list(p, R::List)).post(apply))
        .route("/v1/reconcilers/{name}", get(status).delete(forget))
        .route("/v1/reconcilers/{name}/plan", get(plan))
        .route("/v1/reconcilers/{name}/history", get(history))
        .route("/v1/reconcilers/{name}/runs", get(runs))
        .route("/v1/reconcilers/{name}/runs/{run}/log", get(log))
        .route("/v1/reconcilers/{name}/pause", operator_request(|name, _| R::Pause { name, paused: true }))
        .route("/v1/reconcilers/{name}/resume", operator_request(|name, _| R::Pause { name, paused: false }))
        .route("/v1/reconcilers/{name}/finalize", operator_request(|name, release| R::Finalize { name, release }))
        .route("/v1/reconcilers/{name}/retry", operator_request(|name, release| R::Retry { name, release }))
        .route("/v1/reconcilers/{name}/repair", post(repair))
        .route("/v1/reconcilers/{name}/force-floor", post(force_floor))
        .route("/v1/members", get(members))
        .route("/v1/members/{scope}/{member}", delete(forget_member).post(announce_member))
        .route("/v1/members/{scope}/{member}/drain", post(drain_member))
        .route("/v1/objects", get(objects))
        .route("/v1/objects/{kind}/{namespace}/{name}", get(object).put(put_object).delete(delete_object))
}

/// Whether a body on this path is an object or a list of definitions.
pub(super) fn brings_definitions(method: &Method, path: &str) -> bool {
    match *method {
        Method::POST => path == "/v1/reconcilers",
        Method::PUT => path.starts_with("/v1/objects/"),
        _ => false,
    }
}

#[derive(Deserialize)]
struct Replace {
    #[serde(default)]
    replace: bool,
}
#[derive(Deserialize)]
struct OfRelease {
    release: Option<String>,
}
#[derive(Deserialize)]
struct Whole {
    #[serde(default)]
    gate: bool,
}
#[derive(Deserialize)]
struct LogPart {
    #[serde(default)]
    offset: u64,
    wait: Option<String>,
}
#[derive(Deserialize)]
struct OfScope {
    scope: Option<String>,
}
#[derive(Deserialize)]
struct Which {
    kind: Option<String>,
    namespace: Option<String>,
    since: Option<u64>,
    #[serde(default)]
    watch: u8,
}

/// The command's options.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FromHistory {
    from_history: u64,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Floor {
    release: Triple,
    #[serde(default)]
    yes_i_know: bool,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Announced {
    release: Triple,
    #[serde(default)]
    needs: BTreeMap<String, Triple>,
    #[serde(default)]
    allow_undefined_scope: bool,
}
/// As in the `objects` of a definition.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    labels: BTreeMap<String, String>,
    body: Map<String, Value>,
}

async fn read(Extension(peer): Extension<Peer>, request: ReconcilerRequest) -> Response {
    answer(&peer, Request::Reconciler(request)).await
}
/// A read whose answer grows with the cluster.
async fn list(Extension(peer): Extension<Peer>, request: ReconcilerRequest) -> Response {
    long_answer(&peer, Request::Reconciler(request)).await
}
async fn write(Extension(peer): Extension<Peer>, request: ReconcilerRequest) -> Response {
    answer(&peer, Request::Reconciler(request)).await
}
fn invalid(text: String) -> Response {
    error_response(&ErrorBody::invalid(text))
}

/// The release that a query names.
fn release(query: OfRelease) -> Result<Option<Triple>, Box<Response>> {
    let parse = |text: String| text.parse().map_err(|why| Box::new(invalid(format!("release={text}: {why}"))));
    query.release.map(parse).transpose()
}

/// An operator's request about a name, or about its definition of one release.
fn operator_request(what: fn(String, Option<Triple>) -> ReconcilerRequest) -> MethodRouter {
    post(move |peer: Extension<Peer>, Path(name): Path<String>, Query(q): Query<OfRelease>| async move {
        match release(q) {
            Ok(release) => write(peer, what(name, release)).await,
            Err(response) => *response,
        }
    })
}

async fn apply(peer: Extension<Peer>, Query(q): Query<Replace>, bytes: Bytes) -> Response {
    // Not left to serde, whose messages would not say what is wrong.
    let several = bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    let documents = if several { body::<Vec<Document>>(&bytes) } else { body::<Document>(&bytes).map(|one| vec![one]) };
    let documents = match documents {
        Ok(documents) => documents,
        Err(response) => return *response,
    };
    match documents.into_iter().map(Definition::try_from).collect() {
        Ok(definitions) => write(peer, ReconcilerRequest::Apply { definitions, replace: q.replace }).await,
        Err(why) => invalid(why),
    }
}

async fn status(peer: Extension<Peer>, Path(name): Path<String>, Query(q): Query<Since>) -> Response {
    read(peer, ReconcilerRequest::Status { name, seen: Revision(q.since), wait_ms: q.wait_ms() }).await
}

async fn plan(peer: Extension<Peer>, Path(name): Path<String>, Query(q): Query<OfRelease>) -> Response {
    match release(q) {
        Ok(release) => list(peer, ReconcilerRequest::Plan { name, release }).await,
        Err(response) => *response,
    }
}

async fn history(peer: Extension<Peer>, Path(name): Path<String>) -> Response {
    read(peer, ReconcilerRequest::History { name }).await
}

async fn runs(peer: Extension<Peer>, Path(name): Path<String>) -> Response {
    list(peer, ReconcilerRequest::Runs { name }).await
}

async fn log(peer: Extension<Peer>, Path((name, run)): Path<(String, String)>, Query(q): Query<LogPart>) -> Response {
    let run = match run.as_str() {
        "last" => Ok(None),
        number => number.parse().map(Some).map_err(|_| format!("run {number}: a run is a number, or `last`")),
    };
    let wait = q.wait.map_or(Ok(Duration::ZERO), |wait| parse_duration(&wait).map_err(|why| format!("wait: {why}")));
    match (run, wait) {
        (Ok(run), Ok(wait)) => {
            list(peer, ReconcilerRequest::Log { name, run, offset: q.offset, wait_ms: millis(wait) }).await
        }
        (Err(why), _) | (_, Err(why)) => invalid(why),
    }
}

async fn repair(peer: Extension<Peer>, Path(name): Path<String>, bytes: Bytes) -> Response {
    match body::<FromHistory>(&bytes) {
        Ok(given) => write(peer, ReconcilerRequest::Repair { name, epoch: given.from_history }).await,
        Err(response) => *response,
    }
}

async fn force_floor(peer: Extension<Peer>, Path(name): Path<String>, bytes: Bytes) -> Response {
    match body::<Floor>(&bytes) {
        Ok(Floor { release: floor, yes_i_know }) => {
            let request = ReconcilerRequest::ForceFloor { name, floor, dry_run: !yes_i_know };
            write(peer, request).await
        }
        Err(response) => *response,
    }
}

async fn forget(peer: Extension<Peer>, Path(name): Path<String>, Query(q): Query<Whole>) -> Response {
    let request = if q.gate { ReconcilerRequest::DeleteGate { name } } else { ReconcilerRequest::Delete { name } };
    write(peer, request).await
}

async fn members(peer: Extension<Peer>, Query(q): Query<OfScope>) -> Response {
    list(peer, ReconcilerRequest::MemberList { scope: q.scope }).await
}
async fn drain_member(peer: Extension<Peer>, Path(path): Path<(String, String)>) -> Response {
    let (scope, member) = path;
    write(peer, ReconcilerRequest::MemberDrain { scope, member }).await
}
async fn forget_member(peer: Extension<Peer>, Path(path): Path<(String, String)>) -> Response {
    let (scope, member) = path;
    write(peer, ReconcilerRequest::MemberForget { scope, member }).await
}

async fn announce_member(peer: Extension<Peer>, Path(path): Path<(String, String)>, bytes: Bytes) -> Response {
    let (scope, member) = path;
    match body::<Announced>(&bytes) {
        Ok(Announced { release, needs, allow_undefined_scope }) => {
            let request = ReconcilerRequest::MemberAnnounce { scope, member, release, needs, allow_undefined_scope };
            write(peer, request).await
        }
        Err(response) => *response,
    }
}

async fn objects(peer: Extension<Peer>, Query(q): Query<Which>, headers: HeaderMap) -> Response {
    if event_stream::is_wanted(&headers) {
        let of = Followed::Objects { kind: q.kind, namespace: q.namespace };
        return event_stream::start(&peer, &headers, q.since.unwrap_or(0), of).await;
    }
    if q.watch != 0 || q.since.is_some() {
        let since = Since { since: q.since.unwrap_or(0), watch: q.watch };
        let (seen, wait_ms) = (Revision(since.since), since.wait_ms());
        return list(peer, ReconcilerRequest::ObjectChanges { kind: q.kind, namespace: q.namespace, seen, wait_ms })
            .await;
    }
    list(peer, ReconcilerRequest::ObjectList { kind: q.kind, namespace: q.namespace }).await
}

fn key((kind, namespace, name): (String, String, String)) -> ManagedKey {
    ManagedKey { kind, namespace, name }
}
type ObjectPath = Path<(String, String, String)>;

async fn object(peer: Extension<Peer>, Path(path): ObjectPath) -> Response {
    read(peer, ReconcilerRequest::ObjectGet { key: key(path) }).await
}
async fn put_object(peer: Extension<Peer>, Path(path): ObjectPath, bytes: Bytes) -> Response {
    match body::<Written>(&bytes) {
        Ok(Written { labels, body }) => {
            let body = Value::Object(body).to_string();
            write(peer, ReconcilerRequest::ObjectPut { key: key(path), labels, body }).await
        }
        Err(response) => *response,
    }
}
async fn delete_object(peer: Extension<Peer>, Path(path): ObjectPath) -> Response {
    write(peer, ReconcilerRequest::ObjectDelete { key: key(path) }).await
}

#[cfg(test)]
#[path = "reconcilers_tests.rs"]
mod tests;
