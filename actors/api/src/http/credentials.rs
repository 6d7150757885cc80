//! Tokens and users: the requests of `muster token` and `muster user`, with the same JSON. A user's key is made by the client and
//! never travels: only its certificate request does.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Extension, Path, Query};
use axum::response::Response;
use axum::routing::{delete, get};
use muster_messages::wire::{ListOf, Request};
use muster_messages::{BadId, ErrorBody, Role};
use serde::Deserialize;

use super::{Listing, Peer, answer, body, error_response, list};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewToken {
    role: Role,
    ttl_ms: Option<u64>,
    uses: Option<u32>,
}

pub(super) fn routes() -> Router {
    Router::new()
        .route("/v1/tokens", get(|p: Extension<Peer>, q: Query<Listing>| list(p, q, ListOf::Tokens)).post(create_token))
        .route("/v1/tokens/{id}", delete(revoke_token))
        .route("/v1/users", get(|p: Extension<Peer>, q: Query<Listing>| list(p, q, ListOf::Users)))
        .route("/v1/users/{name}", delete(revoke_user))
}

async fn create_token(Extension(peer): Extension<Peer>, bytes: Bytes) -> Response {
    match body::<NewToken>(&bytes) {
        Ok(NewToken { role, ttl_ms, uses }) => answer(&peer, Request::TokenCreate { role, ttl_ms, uses }).await,
        Err(response) => *response,
    }
}

async fn revoke_token(Extension(peer): Extension<Peer>, Path(id): Path<String>) -> Response {
    answer(&peer, Request::TokenRevoke { id }).await
}

async fn revoke_user(Extension(peer): Extension<Peer>, Path(name): Path<String>) -> Response {
    match name.parse() {
        Ok(name) => answer(&peer, Request::UserRevoke { name }).await,
        Err(bad) => error_response(&ErrorBody::invalid(BadId::to_string(&bad))),
    }
}
