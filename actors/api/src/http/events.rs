//! `/v1/events`: what changed, once or as it happens.

use axum::Router;
use axum::extract::{Extension, Query};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::get;
use muster_messages::wire::{ApiCall, Request};
use muster_messages::{ErrorBody, ErrorCode, EventsView, Revision};
use serde::Deserialize;

use super::event_stream::Followed;
use super::{Peer, error_response, event_stream, json_response};
use crate::kube;

pub(super) fn routes() -> Router {
    Router::new().route("/v1/events", get(events))
}

#[derive(Deserialize)]
pub(super) struct Since {
    #[serde(default)]
    pub since: u64,
    #[serde(default)]
    pub watch: u8,
}
impl Since {
    /// How long to wait for a change: less than a request may take.
    pub fn wait_ms(&self) -> u64 {
        if self.watch != 0 { 25_000 } else { 0 }
    }
}

async fn events(Extension(peer): Extension<Peer>, Query(q): Query<Since>, headers: HeaderMap) -> Response {
    if event_stream::is_wanted(&headers) {
        return event_stream::start(&peer, &headers, q.since, Followed::Events).await;
    }
    let share = match peer.service.long_answer(&peer.caller) {
        Ok(share) => share,
        Err(error) => return error_response(&error),
    };
    match all_events(&peer, q.since, q.wait_ms()).await {
        Ok(text) => json_response(StatusCode::OK, text).map(|body| kube::until_read(body, Some(share))),
        Err(error) => error_response(&error),
    }
}

/// Every page as one document: HTTP clients have no frame limit.
async fn all_events(peer: &Peer, since: u64, wait_ms: u64) -> Result<String, ErrorBody> {
    // As values: the answer may be that of a newer manager.
    let mut whole: Option<EventsView<serde_json::Value>> = None;
    let (mut since, mut wait_ms) = (since, wait_ms);
    loop {
        let request = Request::Events { since: Revision(since), wait_ms };
        let call = ApiCall { id: 0, request_id: peer.request, timeout_ms: 30_000, request };
        let page = peer.service.answer_from(&peer.origin, peer.caller.clone(), call).await?;
        let joined = move || {
            let page = serde_json::from_str(&page).map_err(|e| ErrorBody::new(ErrorCode::Internal, e.to_string()))?;
            Ok::<_, ErrorBody>(EventsView::joined(whole, page))
        };
        let (document, next) = peer.service.builders.build(joined).await??;
        match next {
            Some(Revision(next)) if next > since => (since, wait_ms) = (next, 0),
            _ => return peer.service.builders.build(move || crate::reads::to_text(&document)).await?,
        }
        whole = Some(document);
    }
}
