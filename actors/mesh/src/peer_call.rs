//! One call to a peer: sent through the current session, with a deadline.
//!
//! Inputs      the link, a message, its deadline.
//! Outputs     `Done`, with how the call ended; the answer to the caller of a service whose call was not sent.

use std::sync::Arc;
use std::time::Duration;

use muster_kernel::Cx;
use muster_messages::protocol::Reply;
use muster_messages::wire::{self, PeerEnvelope, PeerMessage};
use muster_messages::{ErrorBody, ErrorCode, ErrorMark, Moment, NodeId, RaftId};
use ractor::ActorRef;
use tokio::sync::oneshot;

use crate::core::call_end::End;
use crate::core::outgoing::TransferNumber;
use crate::core::windows::{CallClass, Kind};
use crate::endpoint::EndpointMsg;
use crate::msg::PeerMsg;
use crate::session::Session;

/// The current session, and the peer's RPC endpoint behind it.
#[derive(Clone)]
pub struct Link {
    pub session: Arc<Session>,
    pub endpoint: ActorRef<EndpointMsg>,
}

pub enum CallContent {
    Raft(Vec<RaftId>),
    /// When it was sent.
    Check(Moment),
    Membership,
    IdentityBindings,
    /// Its transfer, and when it was sent.
    Piece(TransferNumber, Moment),
    Call(CallClass, Reply<Result<Vec<u8>, ErrorBody>>),
}

impl CallContent {
    /// What the core knows of it.
    pub fn kind(&self) -> Kind {
        match self {
            CallContent::Raft(_) => Kind::Raft,
            CallContent::Check(sent) => Kind::Check(*sent),
            CallContent::Membership => Kind::MemberId,
            CallContent::IdentityBindings => Kind::IdentityBindings,
            CallContent::Piece(..) => Kind::Piece,
            CallContent::Call(class, _) => Kind::Call(*class),
        }
    }
}

/// Asks whether the peer still answers: a batch without messages.
pub fn check() -> PeerMessage {
    PeerMessage::Raft(vec![])
}

/// Sends one call. It is sent before this returns, so calls keep their order; its end is reported as `Done`.
pub fn send(
    cx: &Cx<PeerMsg>,
    link: &Link,
    message: PeerMessage,
    deadline: Duration,
    what: CallContent,
) -> Result<(), CallContent> {
    let session = &link.session;
    let Ok(bytes) = wire::encode(&PeerEnvelope { tag: session.peer_tag, message }) else {
        return Err(what);
    };
    let (tx, answer) = oneshot::channel();
    session.meter.call_leaves(bytes.len());
    if link.endpoint.cast(EndpointMsg::Call(bytes, (tx, deadline).into())).is_err() {
        return Err(what);
    }
    let number = session.number;
    cx.report(async move {
        let end = match tokio::time::timeout(deadline, answer).await {
            Ok(Ok(bytes)) => wire::decode(&bytes).map_or(End::Failed, End::Answered),
            Ok(Err(_)) => End::Failed,
            Err(_) => End::TimedOut,
        };
        PeerMsg::Done { number, what, end }
    });
    Ok(())
}

/// The queue of calls to a manager, or the mailbox before it, is full.
pub fn too_many_waiting() -> ErrorBody {
    let text = "too many calls to this manager are waiting; retry later";
    ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(Duration::from_millis(200))
}

/// The answer to a call that could not be sent.
pub fn not_sent() -> ErrorBody {
    let text = "the call exceeds the size limit between managers, or the session just ended";
    ErrorBody::new(ErrorCode::Unreachable, text)
}

/// The answer without a session with a node.
pub fn no_session(node: NodeId) -> ErrorBody {
    ErrorBody::new(ErrorCode::Unreachable, format!("no session with manager {node}"))
        .marked(ErrorMark::NotSent)
        .retry_after(Duration::from_millis(200))
}
