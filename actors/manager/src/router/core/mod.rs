//! The decisions of the router. Pure: the replica is an input; the shell carries calls and writes lines.
//!
//! Invariants  FORWARD-1  a call is accepted only from a node that is a manager by this manager's own replica. A forwarder names
//!                        the caller and is believed: the certificate alone must not be enough.

use std::time::Duration;

use muster_messages::wire::PeerCall;
use muster_messages::{ErrorBody, ErrorCode, ErrorMark, NodeId, Replica, Role};

pub mod audit;
pub mod seals;

/// Whether the node `me` may answer this call. Calls that only the leader may decide are refused elsewhere.
///
/// # Errors
/// This manager does not lead, or the call came from a node that is not a manager in its replica.
pub fn may_answer(replica: &Replica, me: NodeId, forwarder: NodeId, call: &PeerCall) -> Result<(), ErrorBody> {
    if !matches!(call, PeerCall::Actors(_) | PeerCall::Clock) && !replica.raft.leading {
        // The forwarder may report this as a refusal if no leader ever takes the call.
        return Err(no_leader().marked(ErrorMark::NotLeading));
    }
    if forwarder == me { Ok(()) } else { may_forward(replica, forwarder) }
}

/// FORWARD-1. The forwarder's certificate opened the mesh, which an outdated replica must allow (ADMIT-3).
fn may_forward(replica: &Replica, forwarder: NodeId) -> Result<(), ErrorBody> {
    match replica.tables.nodes.get(&forwarder) {
        Some(record) if record.role == Role::Manager => Ok(()),
        // The role was granted in the log before the certificate was signed, so a leader knows it.
        _ if replica.raft.leading => {
            let text = format!("node {forwarder} is not a manager of this cluster; calls that it forwards are refused");
            Err(ErrorBody::new(ErrorCode::Forbidden, text))
        }
        _ => {
            let text = format!("this manager's replica does not know node {forwarder} as a manager yet; retry");
            Err(ErrorBody::new(ErrorCode::NotKnownHereYet, text).retry_after(Duration::from_millis(200)))
        }
    }
}

/// A certificate's pin does not travel with its identity, and builds of feature level 2 do not read it.
pub fn with_pin(call: PeerCall, is_read: bool) -> PeerCall {
    match call {
        PeerCall::SignNode { identity, observed_addr, csr_pem } if is_read => match identity.pin {
            Some(pin) => PeerCall::SignPinned { identity, pin, observed_addr, csr_pem },
            None => PeerCall::SignNode { identity, observed_addr, csr_pem },
        },
        other => other,
    }
}

/// There is no leader, or its actor is starting. Asked again.
pub fn no_leader() -> ErrorBody {
    ErrorBody::new(ErrorCode::Unreachable, "no leader at the moment; retry").retry_after(Duration::from_millis(200))
}

/// Whether the next leader is asked after this answer. Every call may be repeated.
pub fn asks_again(answer: &ErrorBody) -> bool {
    answer.code == ErrorCode::Unreachable
}

#[cfg(test)]
pub(super) mod tests;
