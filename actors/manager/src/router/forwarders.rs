//! Which managers are believed when they forward a call.

use std::time::Duration;

use muster_messages::{ErrorBody, ErrorCode, NodeId, Replica, Role};

/// FORWARD-1. The forwarder's certificate opened the mesh, which an outdated replica must allow (ADMIT-3).
pub fn may_forward(replica: &Replica, forwarder: NodeId) -> Result<(), ErrorBody> {
    match replica.tables.nodes.get(&forwarder) {
        Some(record) if record.role == Role::Manager => Ok(()),
        // The role was granted in the log before the certificate was signed, so a leader knows it.
        _ if replica.raft.leading => {
            let text = format!("node {forwarder} is not a manager of this cluster; calls that it forwards are refused");
            tracing::warn!(%forwarder, "forwarded call refused: the forwarder is not a manager");
            Err(ErrorBody::new(ErrorCode::Forbidden, text))
        }
        _ => {
            let text = format!("this manager's replica does not know node {forwarder} as a manager yet; retry");
            Err(ErrorBody::new(ErrorCode::NotKnownHereYet, text).retry_after(Duration::from_millis(200)))
        }
    }
}
