//! What this manager answers: for each call, the service that carries it out, if this manager may answer it.

use std::time::Duration;

use muster_kernel::{AskError, Clock, Recipient};
use muster_messages::protocol::{CertAuthorityMsg, DispatcherMsg, Reply, RoleManagerMsg, RootRotationMsg};
use muster_messages::wire::{self, PeerCall};
use muster_messages::{CertIdentity, ErrorBody, ErrorCode, NodeId};
use tracing::warn;

use super::core::{self, no_leader};
use super::{PEER_CALL_TIMEOUT, Router, audit, seals};

impl Router {
    /// Answers a call of another manager, with the leader's line beside that manager's.
    pub(super) async fn answer_peer(&self, forwarder: NodeId, call: PeerCall) -> Result<Vec<u8>, ErrorBody> {
        let leading = self.ports.replica.borrow().raft.leading;
        let line = core::audit::of_forwarded_call(leading, forwarder, &call);
        let answer = Box::pin(self.answer(forwarder, call, PEER_CALL_TIMEOUT));
        audit::written(self.api.audit(), line, answer).await
    }

    /// Answers a call on this manager, if it may.
    pub(super) async fn answer(&self, forwarder: NodeId, call: PeerCall, left: Duration) -> Result<Vec<u8>, ErrorBody> {
        let leader = &self.ports.leader;
        let left = left.min(PEER_CALL_TIMEOUT);
        core::may_answer(&self.ports.replica.borrow(), self.ports.node, forwarder, &call).inspect_err(|refusal| {
            if refusal.code == ErrorCode::Forbidden {
                warn!(%forwarder, "forwarded call refused: the forwarder is not a manager");
            }
        })?;
        match call {
            PeerCall::Api { caller, request_id, timeout_ms, request } => self
                .api
                .answer_forwarded(forwarder, caller, request_id, timeout_ms, request)
                .await
                .map(String::into_bytes),
            PeerCall::SignPinned { identity, pin, observed_addr, csr_pem } => {
                self.sign_node(CertIdentity { pin: Some(pin), ..identity }, observed_addr, csr_pem, left).await
            }
            PeerCall::SignNode { identity, observed_addr, csr_pem } => {
                self.sign_node(identity, observed_addr, csr_pem, left).await
            }
            PeerCall::SignWorkload { identity, pin, request } => {
                let identity = Box::new(CertIdentity { pin, ..identity });
                let make = |reply| CertAuthorityMsg::SignWorkload { identity, request, reply };
                encoded(ask(&leader.authority, left, make).await)
            }
            PeerCall::Join { observed_addr, request } => {
                let request = Box::new(request);
                let make = |reply| CertAuthorityMsg::Join { observed_addr, request, reply };
                encoded(ask(&leader.authority, left, make).await)
            }
            PeerCall::Membership { node, request } => {
                let make = |reply| RoleManagerMsg::RequestMembership { node, request, reply };
                encoded(ask(&leader.roles, left, make).await)
            }
            PeerCall::ReportManager { node, report } => {
                let make = |reply| RoleManagerMsg::ReportManager { node, report, reply };
                accepted(ask(&leader.roles, left, make).await)
            }
            PeerCall::TrustRoots { node, generation } => {
                let make = |reply| RootRotationMsg::TrustRoots { node, generation, reply };
                accepted(ask(&leader.rotation, left, make).await)
            }
            PeerCall::ReportSeal(seal) => accepted(seals::record(&self.ports, forwarder, seal, left).await),
            PeerCall::Sessions(digest) => {
                let make = |reply| DispatcherMsg::Digest { host: forwarder, digest, reply };
                accepted(ask(&leader.dispatcher, left, make).await)
            }
            PeerCall::Clock => encoded(Ok(Clock.wall())),
            PeerCall::Actors(call) => self.api.answer_actors(&call, left).await.map(String::into_bytes),
        }
    }

    async fn sign_node(
        &self,
        identity: CertIdentity,
        observed_addr: String,
        csr_pem: String,
        left: Duration,
    ) -> Result<Vec<u8>, ErrorBody> {
        let identity = Box::new(identity);
        let make = |reply| CertAuthorityMsg::SignNode { identity, observed_addr, csr_pem, reply };
        encoded(ask(&self.ports.leader.authority, left, make).await)
    }
}

/// Asks an actor of the leader.
async fn ask<M: Send + 'static, T: Send + 'static>(
    actor: &Recipient<M>,
    left: Duration,
    make: impl FnOnce(Reply<Result<T, ErrorBody>>) -> M,
) -> Result<T, ErrorBody> {
    actor.ask(left, make).await.map_err(as_no_leader)?
}

/// The leader's actor is starting or restarting: treated like a missing leader.
pub(super) fn as_no_leader(error: AskError) -> ErrorBody {
    match error {
        AskError::Down | AskError::Closed => no_leader(),
        other => other.into(),
    }
}

/// An answer with a value.
fn encoded<T: serde::Serialize>(answer: Result<T, ErrorBody>) -> Result<Vec<u8>, ErrorBody> {
    wire::encode(&answer?).map_err(|e| ErrorBody::new(ErrorCode::Internal, e.to_string()))
}

/// An answer that says only that the call was accepted.
fn accepted(answer: Result<(), ErrorBody>) -> Result<Vec<u8>, ErrorBody> {
    answer.map(|()| Vec::new())
}
