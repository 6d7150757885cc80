//! What this manager answers: for each call, the service that carries it out, if this manager may answer it.

use std::time::Duration;

use muster_kernel::{AskError, Clock};
use muster_messages::protocol::{CertAuthorityMsg, DispatcherMsg, RoleManagerMsg, RootRotationMsg};
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
                let identity = Box::new(CertIdentity { pin: Some(pin), ..identity });
                let make = |reply| CertAuthorityMsg::SignNode { identity, observed_addr, csr_pem, reply };
                encoded(leader.authority.ask(left, make).await.map_err(as_no_leader)?)
            }
            PeerCall::SignNode { identity, observed_addr, csr_pem } => {
                let make =
                    |reply| CertAuthorityMsg::SignNode { identity: Box::new(identity), observed_addr, csr_pem, reply };
                encoded(leader.authority.ask(left, make).await.map_err(as_no_leader)?)
            }
            PeerCall::SignWorkload { identity, pin, request } => {
                let identity = Box::new(CertIdentity { pin, ..identity });
                let make = |reply| CertAuthorityMsg::SignWorkload { identity, request, reply };
                encoded(leader.authority.ask(left, make).await.map_err(as_no_leader)?)
            }
            PeerCall::Join { observed_addr, request } => {
                let make = |reply| CertAuthorityMsg::Join { observed_addr, request: Box::new(request), reply };
                encoded(leader.authority.ask(left, make).await.map_err(as_no_leader)?)
            }
            PeerCall::Membership { node, request } => {
                let make = |reply| RoleManagerMsg::RequestMembership { node, request, reply };
                encoded(leader.roles.ask(left, make).await.map_err(as_no_leader)?)
            }
            PeerCall::ReportManager { node, report } => {
                let make = |reply| RoleManagerMsg::ReportManager { node, report, reply };
                leader.roles.ask(left, make).await.map_err(as_no_leader)?.map(|()| Vec::new())
            }
            PeerCall::TrustRoots { node, generation } => {
                let make = |reply| RootRotationMsg::TrustRoots { node, generation, reply };
                leader.rotation.ask(left, make).await.map_err(as_no_leader)?.map(|()| Vec::new())
            }
            PeerCall::ReportSeal(seal) => seals::record(&self.ports, forwarder, seal, left).await.map(|()| Vec::new()),
            PeerCall::Sessions(digest) => {
                let make = |reply| DispatcherMsg::Digest { host: forwarder, digest, reply };
                leader.dispatcher.ask(left, make).await.map_err(as_no_leader)?.map(|()| Vec::new())
            }
            PeerCall::Clock => encoded(Ok(Clock.wall())),
            PeerCall::Actors(call) => self.api.answer_actors(&call, left).await.map(String::into_bytes),
        }
    }
}

/// The leader's actor is starting or restarting: treated like a missing leader.
pub(super) fn as_no_leader(error: AskError) -> ErrorBody {
    match error {
        AskError::Down | AskError::Closed => no_leader(),
        other => other.into(),
    }
}

fn encoded<T: serde::Serialize>(answer: Result<T, ErrorBody>) -> Result<Vec<u8>, ErrorBody> {
    wire::encode(&answer?).map_err(|e| ErrorBody::new(ErrorCode::Internal, e.to_string()))
}
