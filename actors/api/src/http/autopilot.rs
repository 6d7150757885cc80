//! `/v1/autopilot…`: the declared number of managers.

use std::collections::BTreeMap;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Extension, Path, Query};
use axum::response::Response;
use axum::routing::{get, post};
use muster_messages::wire::{AutopilotRequest, AutopilotSettings, Request};
use muster_messages::{Generation, ManagerPreference};
use serde::Deserialize;

use super::{Peer, answer, ask, body};

/// The settings; absent ones stay as they are.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    managers: Option<u8>,
    eligible: Option<BTreeMap<String, String>>,
    zone_label: Option<String>,
    replace_after_ms: Option<u64>,
    stabilize_ms: Option<u64>,
    shrink: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    generation: Option<u64>,
    #[serde(default)]
    dry_run: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Withdraw {
    generation: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pause {
    #[serde(default)]
    why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Preference {
    preference: ManagerPreference,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Drain {
    for_ms: Option<u64>,
    #[serde(default)]
    replace: bool,
}

pub(super) fn routes() -> Router {
    Router::new()
        .route(
            "/v1/autopilot",
            get(|p: Extension<Peer>| ask(p, Request::Autopilot(AutopilotRequest::State))).put(set).delete(withdraw),
        )
        .route("/v1/autopilot/pause", post(pause))
        .route("/v1/autopilot/resume", post(|p| change(p, AutopilotRequest::Resume)))
        .route("/v1/nodes/{node}/manager-preference", post(prefer))
        .route("/v1/nodes/{node}/drain", post(drain))
        .route("/v1/nodes/{node}/undrain", post(undrain))
}

async fn change(Extension(peer): Extension<Peer>, request: AutopilotRequest) -> Response {
    answer(&peer, Request::Autopilot(request)).await
}

async fn set(peer: Extension<Peer>, Query(q): Query<Change>, bytes: Bytes) -> Response {
    let Settings { managers, eligible, zone_label, replace_after_ms, stabilize_ms, shrink } = match body(&bytes) {
        Ok(settings) => settings,
        Err(response) => return *response,
    };
    let settings = AutopilotSettings { managers, eligible, zone_label, replace_after_ms, stabilize_ms, shrink };
    let generation = q.generation.map(Generation);
    let request = match q.dry_run {
        true => AutopilotRequest::Preview { settings, generation },
        false => AutopilotRequest::Set { settings, generation },
    };
    change(peer, request).await
}

/// Nothing can be previewed: no role changes.
async fn withdraw(peer: Extension<Peer>, Query(q): Query<Withdraw>) -> Response {
    change(peer, AutopilotRequest::Withdraw { generation: q.generation.map(Generation) }).await
}

async fn pause(peer: Extension<Peer>, bytes: Bytes) -> Response {
    match body::<Pause>(&bytes) {
        Ok(Pause { why }) => change(peer, AutopilotRequest::Pause { why }).await,
        Err(response) => *response,
    }
}

async fn prefer(peer: Extension<Peer>, Path(node): Path<String>, bytes: Bytes) -> Response {
    match body::<Preference>(&bytes) {
        Ok(Preference { preference }) => change(peer, AutopilotRequest::Prefer { node, preference }).await,
        Err(response) => *response,
    }
}

async fn drain(peer: Extension<Peer>, Path(node): Path<String>, bytes: Bytes) -> Response {
    match body::<Drain>(&bytes) {
        Ok(Drain { for_ms, replace }) => change(peer, AutopilotRequest::Drain { node, for_ms, replace }).await,
        Err(response) => *response,
    }
}

async fn undrain(peer: Extension<Peer>, Path(node): Path<String>) -> Response {
    change(peer, AutopilotRequest::Undrain { node }).await
}
