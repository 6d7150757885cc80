//! `/v1/workloads…`: which programs get identities of the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Extension, Path, Query};
use axum::response::Response;
use axum::routing::get;
use muster_messages::wire::{ListOf, Request};
use muster_messages::{
    BadId, DEFAULT_WORKLOAD_TTL, ErrorBody, Revision, WorkloadEntry, WorkloadName, WorkloadSelector,
};
use serde::Deserialize;

use super::{Listing, Peer, answer, body, error_response, list};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    selectors: BTreeSet<WorkloadSelector>,
    #[serde(default)]
    node_labels: BTreeMap<String, String>,
    ttl_ms: Option<u64>,
    #[serde(default)]
    dns: Vec<String>,
    hint: Option<String>,
    #[serde(default)]
    jwt: bool,
    /// It may be for processes of the user 0.
    #[serde(default)]
    root: bool,
}

impl Entry {
    fn into_request(self, name: WorkloadName) -> Request {
        let Self { selectors, node_labels, ttl_ms, dns, hint, jwt, root } = self;
        let (created_by, revision) = (String::new(), Revision(0));
        let ttl = ttl_ms.map_or(DEFAULT_WORKLOAD_TTL, Duration::from_millis);
        let entry = Box::new(WorkloadEntry { name, selectors, node_labels, ttl, dns, hint, jwt, created_by, revision });
        Request::WorkloadSet { entry, root }
    }
}

pub(super) fn routes() -> Router {
    Router::new()
        .route("/v1/workloads", get(|p: Extension<Peer>, q: Query<Listing>| list(p, q, ListOf::Workloads)))
        .route("/v1/workloads/{namespace}/{name}", get(show).put(set).delete(remove))
}

type Segments = Path<(String, String)>;

fn named(Path((namespace, name)): Segments) -> Result<WorkloadName, Box<Response>> {
    let named = format!("{namespace}/{name}").parse();
    named.map_err(|bad: BadId| Box::new(error_response(&ErrorBody::invalid(bad.to_string()))))
}

async fn show(Extension(peer): Extension<Peer>, path: Segments) -> Response {
    match named(path) {
        Ok(name) => answer(&peer, Request::WorkloadShow { name }).await,
        Err(response) => *response,
    }
}

async fn set(Extension(peer): Extension<Peer>, path: Segments, bytes: Bytes) -> Response {
    match (named(path), body::<Entry>(&bytes)) {
        (Ok(name), Ok(entry)) => answer(&peer, entry.into_request(name)).await,
        (Err(response), _) | (_, Err(response)) => *response,
    }
}

async fn remove(Extension(peer): Extension<Peer>, path: Segments) -> Response {
    match named(path) {
        Ok(name) => answer(&peer, Request::WorkloadRemove { name }).await,
        Err(response) => *response,
    }
}

#[cfg(test)]
#[path = "workloads_tests.rs"]
mod tests;
