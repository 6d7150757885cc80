//! `/v1/ca/…`: the roots, and the steps of a rotation.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Extension, Path, Query};
use axum::response::Response;
use axum::routing::{get, post};
use muster_messages::wire::Request;
use muster_messages::{ErrorBody, RootId};
use serde::Deserialize;

use super::{Force, Peer, answer, ask, body, error_response};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rotation {
    #[serde(default)]
    prepare: bool,
    #[serde(default)]
    compromised: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CertificateRequest {
    #[serde(default)]
    compromised: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Issued {
    #[serde(default)]
    prepare: bool,
    /// PEM: the issuing certificate and those above it.
    certificates: String,
}

pub(super) fn routes() -> Router {
    Router::new()
        .route("/v1/ca", get(|p: Extension<Peer>| ask(p, Request::CaShow)))
        .route("/v1/ca/roots", get(|p: Extension<Peer>| ask(p, Request::RootList)))
        .route("/v1/ca/rotate", post(rotate))
        .route("/v1/ca/csr", post(request))
        .route("/v1/ca/issued", post(issued))
        .route("/v1/ca/abort", post(abort))
        .route("/v1/ca/roots/{root}/activate", post(activate))
        .route("/v1/ca/roots/{root}/retire", post(retire))
        .route("/v1/ca/roots/{root}/revoke", post(revoke))
}

async fn rotate(Extension(peer): Extension<Peer>, bytes: Bytes) -> Response {
    match body::<Rotation>(&bytes) {
        Ok(Rotation { prepare, compromised }) => answer(&peer, Request::RootRotate { prepare, compromised }).await,
        Err(response) => *response,
    }
}

async fn request(Extension(peer): Extension<Peer>, bytes: Bytes) -> Response {
    match body::<CertificateRequest>(&bytes) {
        Ok(CertificateRequest { compromised }) => answer(&peer, Request::RootRequest { compromised }).await,
        Err(response) => *response,
    }
}

async fn issued(Extension(peer): Extension<Peer>, bytes: Bytes) -> Response {
    match body::<Issued>(&bytes) {
        Ok(Issued { prepare, certificates }) => {
            answer(&peer, Request::RootIssued { prepare, answer: certificates }).await
        }
        Err(response) => *response,
    }
}

async fn abort(Extension(peer): Extension<Peer>) -> Response {
    answer(&peer, Request::RootAbort).await
}

async fn activate(peer: Extension<Peer>, root: Path<String>) -> Response {
    of_root(&peer, &root, |root| Request::RootActivate { root }).await
}

async fn retire(peer: Extension<Peer>, root: Path<String>, q: Query<Force>) -> Response {
    of_root(&peer, &root, |root| Request::RootRetire { root, force: q.force }).await
}

async fn revoke(peer: Extension<Peer>, root: Path<String>) -> Response {
    of_root(&peer, &root, |root| Request::RootRevoke { root }).await
}

/// Roots are named by their whole ids here.
async fn of_root(peer: &Peer, root: &str, request: impl FnOnce(RootId) -> Request) -> Response {
    match root.parse() {
        Ok(root) => answer(peer, request(root)).await,
        Err(bad) => error_response(&ErrorBody::invalid(muster_messages::BadId::to_string(&bad))),
    }
}

#[cfg(test)]
#[path = "roots_tests.rs"]
mod tests;
