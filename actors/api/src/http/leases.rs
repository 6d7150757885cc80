//! `/v1/leases…`: the requests of `muster lease`, with the same JSON.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Extension, Path, Query};
use axum::response::Response;
use axum::routing::get;
use muster_messages::wire::{LeaseRef, LeaseRequest, Request};
use serde::Deserialize;

use super::{Force, Peer, answer, body, long_answer};

#[derive(Deserialize)]
struct Which {
    namespace: Option<String>,
}

/// The command's options. Without a holder the lease is free.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewLease {
    holder: Option<String>,
    duration_ms: Option<u64>,
}

pub(super) fn routes() -> Router {
    Router::new()
        .route("/v1/leases", get(list))
        .route("/v1/leases/{namespace}/{name}", get(show).post(create).delete(remove))
}

type Segments = Path<(String, String)>;

fn lease(Path((namespace, name)): Segments) -> LeaseRef {
    LeaseRef { namespace, name }
}

async fn list(Extension(peer): Extension<Peer>, Query(Which { namespace }): Query<Which>) -> Response {
    long_answer(&peer, Request::Lease(LeaseRequest::List { namespace })).await
}

async fn show(Extension(peer): Extension<Peer>, path: Segments) -> Response {
    answer(&peer, Request::Lease(LeaseRequest::Get { lease: lease(path) })).await
}

async fn create(Extension(peer): Extension<Peer>, path: Segments, bytes: Bytes) -> Response {
    match body::<NewLease>(&bytes) {
        Ok(NewLease { holder, duration_ms }) => {
            answer(&peer, Request::Lease(LeaseRequest::Create { lease: lease(path), holder, duration_ms })).await
        }
        Err(response) => *response,
    }
}

/// By force: also a lease that a running session holds.
async fn remove(Extension(peer): Extension<Peer>, path: Segments, q: Query<Force>) -> Response {
    let lease = lease(path);
    let request = if q.force { LeaseRequest::DeleteHeld { lease } } else { LeaseRequest::Delete { lease } };
    answer(&peer, Request::Lease(request)).await
}

#[cfg(test)]
#[path = "leases_tests.rs"]
mod tests;
