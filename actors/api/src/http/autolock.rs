//! `/v1/autolock…` and `/v1/unlock`: the cluster's unlock key.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Extension, Query};
use axum::response::Response;
use axum::routing::{get, post};
use muster_messages::wire::Request;
use muster_messages::{Revision, Secret};
use serde::Deserialize;

use super::{Peer, answer, ask, body};

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
        .route("/v1/autolock/on", post(|p| change(p, Request::AutolockOn)))
        .route("/v1/autolock/off", post(|p| change(p, Request::AutolockOff)))
        .route("/v1/autolock/rotate", post(|p| change(p, Request::AutolockRotate)))
        .route("/v1/unlock", post(unlock))
}

async fn key(peer: Extension<Peer>, Query(Version { version }): Query<Version>) -> Response {
    ask(peer, Request::AutolockKey { version }).await
}

async fn change(Extension(peer): Extension<Peer>, request: Request) -> Response {
    answer(&peer, request).await
}

async fn unlock(Extension(peer): Extension<Peer>, bytes: Bytes) -> Response {
    match body::<Unlock>(&bytes) {
        Ok(Unlock { key, version }) => answer(&peer, Request::Unlock { key, version }).await,
        Err(response) => *response,
    }
}

#[cfg(test)]
#[path = "autolock_tests.rs"]
mod tests;
