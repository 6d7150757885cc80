//! `GET /v1/backup`: the whole state, as bytes. It holds the root key, so it is for operators alone.

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

/// How long a quorum may take to confirm the copy.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(25);

/// Answers with a backup, of which one caller may leave so many unread.
pub(crate) async fn backup(Extension(peer): Extension<Peer>) -> Response {
    let share = match peer.service.long_answer(&peer.caller) {
        Ok(share) => share,
        Err(error) => return error_response(&error),
    };
    let work = peer.service.backup(&peer.caller);
    match peer.service.with_secret_line((&peer.origin, &peer.caller), "backup", work).await {
        Ok(bytes) => {
            let mut response = Response::new(until_read(Body::from(bytes), Some(share)));
            let octets = header::HeaderValue::from_static("application/octet-stream");
            response.headers_mut().insert(header::CONTENT_TYPE, octets);
            response
        }
        Err(error) => error_response(&error),
    }
}

impl Service {
    /// A consistent copy, as new as the moment of the question, from any manager.
    async fn backup(&self, caller: &Principal) -> Result<Vec<u8>, ErrorBody> {
        let facts = (self.ports.facts)();
        let manager = self.ports.manager.borrow().clone();
        let as_node = Principal::Node(facts.id);
        // A node without a manager half speaks for itself alone, as everywhere in this API.
        let caller = if manager.is_none() && *caller == Principal::Operator { &as_node } else { caller };
        // Whoever may see the tokens' secrets may see the rest.
        authorize(caller, &Request::TokenShow { role: Role::Manager }, &facts.managers)?;
        let manager =
            manager.ok_or_else(|| ErrorBody::new(ErrorCode::NotAManager, "this node is no manager; ask one"))?;
        let _place = self.enter(caller, false)?;
        let copy = self.copy(&manager, CONFIRMED_WITHIN).await?;
        let internal = |why: String| ErrorBody::new(ErrorCode::Internal, why);
        let encode = move || muster_store::backup::encode(&copy.tables, copy.raft.term, Clock.wall());
        let encoded = tokio::task::spawn_blocking(encode).await.map_err(|e| internal(e.to_string()))?;
        encoded.map_err(|e| internal(e.to_string()))
    }
}
