//! `/v1/autolock…` and `/v1/unlock`: the cluster's unlock key.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Extension, Query};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::{get, post};
use muster_messages::wire::Request;
use muster_messages::{Revision, Secret};
use serde::Deserialize;

use super::{Peer, answer, ask, body, request_id};

#[derive(Deserialize)]
struct Version {
    version: Option<Revision>,
}

/// What a locked daemon is sent, too.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unlock {
    key: Secret,
    #[serde(default)]
    version: Option<Revision>,
}

pub(super) fn routes() -> Router {
    Router::new()
        .route("/v1/autolock", get(|p: Extension<Peer>| ask(p, Request::AutolockStatus)))
        .route("/v1/autolock/key", get(key))
        .route("/v1/autolock/on", post(|p, headers| change(p, headers, Request::AutolockOn)))
        .route("/v1/autolock/off", post(|p, headers| change(p, headers, Request::AutolockOff)))
        .route("/v1/autolock/rotate", post(|p, headers| change(p, headers, Request::AutolockRotate)))
        .route("/v1/unlock", post(unlock))
}

async fn key(peer: Extension<Peer>, Query(Version { version }): Query<Version>) -> Response {
    ask(peer, Request::AutolockKey { version }).await
}

async fn change(Extension(peer): Extension<Peer>, headers: HeaderMap, request: Request) -> Response {
    answer(&peer, request_id(&headers), request).await
}

async fn unlock(Extension(peer): Extension<Peer>, headers: HeaderMap, bytes: Bytes) -> Response {
    match body::<Unlock>(&bytes) {
        Ok(Unlock { key, version }) => answer(&peer, request_id(&headers), Request::Unlock { key, version }).await,
        Err(response) => *response,
    }
}

#[cfg(test)]
#[path = "autolock_tests.rs"]
mod tests;
