//! Tokens and users: the requests of `muster token` and `muster user`, with the same JSON. A user's key is made by the client and
//! never travels: only its certificate request does.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Extension, Path, Query};
use axum::response::Response;
use axum::routing::{delete, get, post};
use muster_messages::wire::{ListOf, Request};
use muster_messages::{BadId, ErrorBody, Name, Role, UserKind};
use serde::Deserialize;

use super::{Listing, Peer, answer, body, error_response, list};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewToken {
    role: Role,
    ttl_ms: Option<u64>,
    uses: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewUser {
    name: Name,
    #[serde(default)]
    admin: bool,
    #[serde(default)]
    read_only: bool,
    #[serde(default)]
    namespaces: Vec<String>,
    ttl_ms: Option<u64>,
    csr_pem: String,
}

pub(super) fn routes() -> Router {
    Router::new()
        .route("/v1/tokens", get(|p: Extension<Peer>, q: Query<Listing>| list(p, q, ListOf::Tokens)).post(create_token))
        .route("/v1/tokens/{id}", delete(revoke_token))
        .route("/v1/tokens/default/{role}", get(show_token))
        .route("/v1/tokens/default/{role}/rotate", post(rotate_token))
        .route("/v1/users", get(|p: Extension<Peer>, q: Query<Listing>| list(p, q, ListOf::Users)).post(create_user))
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

async fn show_token(Extension(peer): Extension<Peer>, Path(role): Path<String>) -> Response {
    of_role(&peer, &role, |role| Request::TokenShow { role }).await
}

async fn rotate_token(Extension(peer): Extension<Peer>, Path(role): Path<String>) -> Response {
    of_role(&peer, &role, |role| Request::TokenRotate { role }).await
}

async fn of_role(peer: &Peer, role: &str, request: fn(Role) -> Request) -> Response {
    match role.parse() {
        Ok(role) => answer(peer, request(role)).await,
        Err(error) => error_response(&ErrorBody::invalid(error.to_string())),
    }
}

async fn create_user(Extension(peer): Extension<Peer>, bytes: Bytes) -> Response {
    let NewUser { name, admin, read_only, namespaces, ttl_ms, csr_pem } = match body::<NewUser>(&bytes) {
        Ok(user) => user,
        Err(response) => return *response,
    };
    let kind = match (admin, read_only) {
        (true, true) => return error_response(&ErrorBody::invalid("admin and read_only are mutually exclusive")),
        (true, false) => UserKind::Operator,
        (false, true) => UserKind::ReadOnly,
        (false, false) => UserKind::User,
    };
    answer(&peer, Request::UserCreate { name, kind, namespaces, ttl_ms, csr_pem }).await
}

async fn revoke_user(Extension(peer): Extension<Peer>, Path(name): Path<String>) -> Response {
    match name.parse() {
        Ok(name) => answer(&peer, Request::UserRevoke { name }).await,
        Err(bad) => error_response(&ErrorBody::invalid(BadId::to_string(&bad))),
    }
}

#[cfg(test)]
#[path = "credentials_tests.rs"]
mod tests;
