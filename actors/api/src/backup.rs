//! `GET /v1/backup`: the whole state, as bytes, sealed under the unlock key while autolock is on. It contains the root key and is therefore
//! for operators only.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::http::header;
use axum::response::Response;
use muster_kernel::Clock;
use muster_messages::wire::Request;
use muster_messages::{ErrorBody, ErrorCode, Principal, Role};

use crate::core::authorize;
use crate::http::{Peer, error_response};
use crate::kube::until_read;
use crate::service::Service;

/// How long a quorum may take to confirm the replica.
const CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(25);

/// Answers with a backup; one caller may leave only a bounded number unread.
pub(crate) async fn backup(Extension(peer): Extension<Peer>) -> Response {
    let share = match peer.service.long_answer(&peer.caller) {
        Ok(share) => share,
        Err(error) => return error_response(&error),
    };
    let work = copy(&peer.service, &peer.caller);
    match peer.service.with_secret_line((&peer.origin, &peer.caller), "backup", work).await {
        Ok(bytes) => {
            peer.service.counters.last_backup_at.store(Clock.wall().0, Ordering::Relaxed);
            let mut response = Response::new(until_read(Body::from(bytes), Some(share)));
            let octets = header::HeaderValue::from_static("application/octet-stream");
            response.headers_mut().insert(header::CONTENT_TYPE, octets);
            response
        }
        Err(error) => error_response(&error),
    }
}

/// A consistent copy, at least as new as the request, from any manager.
async fn copy(service: &Service, caller: &Principal) -> Result<Vec<u8>, ErrorBody> {
    let facts = (service.ports.facts)();
    let manager = service.ports.manager.borrow().clone();
    let as_node = Principal::Node(facts.id);
    // A node without a manager runtime acts only for itself, as everywhere in this API.
    let caller = if manager.is_none() && *caller == Principal::Operator { &as_node } else { caller };
    // A caller that may see the tokens' secrets may see the rest.
    authorize(caller, &Request::TokenShow { role: Role::Manager }, || facts.managers.clone())?;
    let manager =
        manager.ok_or_else(|| ErrorBody::new(ErrorCode::NotAManager, "this node is not a manager; ask a manager"))?;
    let _permit = service.enter(caller, false)?;
    let replica = service.replica(&manager, CONFIRMATION_TIMEOUT).await?;
    let internal = |why: String| ErrorBody::new(ErrorCode::Internal, why);
    let encode = move || muster_store::backup::encode_for_file(&replica.tables, replica.raft.term, Clock.wall());
    let encoded = tokio::task::spawn_blocking(encode).await.map_err(|e| internal(e.to_string()))?;
    encoded.map_err(|e| internal(e.to_string()))
}
