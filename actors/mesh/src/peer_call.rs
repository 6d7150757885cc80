//! One call to a peer: sent through the current session, with a deadline.
//!
//! Inputs      the link, a message, its deadline.
//! Outputs     `Done`, with how the call ended; the answer to the caller of a service.

use std::sync::Arc;
use std::time::Duration;

use muster_kernel::Cx;
use muster_messages::protocol::Reply;
use muster_messages::wire::{self, PeerEnvelope, PeerMessage, PeerReply};
use muster_messages::{ErrorBody, ErrorCode, ErrorMark, Moment, NodeId, RaftId};
use ractor::ActorRef;
use tokio::sync::oneshot;

use crate::core::outgoing::{PieceEnd, TransferNumber};
use crate::core::windows::{Kind, PIECE_DEADLINE};
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
    Call(Reply<Result<Vec<u8>, ErrorBody>>),
}

impl CallContent {
    /// The window that the call is in.
    pub fn kind(&self) -> Kind {
        match self {
            CallContent::Raft(_) => Kind::Raft,
            CallContent::Check(sent) => Kind::Check(*sent),
            CallContent::Membership | CallContent::IdentityBindings => Kind::Announcement,
            CallContent::Piece(..) => Kind::Piece,
            CallContent::Call(_) => Kind::Call,
        }
    }
}

#[derive(Debug)]
pub enum End {
    Answered(PeerReply),
    TimedOut,
    /// The session ended, or the answer was unreadable.
    Failed,
}

impl End {
    /// The peer acknowledged the message.
    pub fn is_taken(&self) -> bool {
        matches!(self, End::Answered(PeerReply::Taken))
    }
    /// The peer refused the message.
    pub fn is_refused(&self) -> bool {
        matches!(self, End::Answered(PeerReply::Refused { .. }))
    }
    /// What it means for a piece of a snapshot.
    pub fn of_piece(self) -> PieceEnd {
        match self {
            End::Answered(PeerReply::Taken) => PieceEnd::Taken,
            End::Answered(PeerReply::Refused { reason }) => PieceEnd::Refused(reason),
            End::Answered(PeerReply::Answer(_)) | End::Failed => PieceEnd::Lost("the session ended".to_owned()),
            End::TimedOut => PieceEnd::Lost(format!("no answer in {} s", PIECE_DEADLINE.as_secs())),
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

/// What the caller of a service receives.
pub fn result_of(node: NodeId, end: End) -> Result<Vec<u8>, ErrorBody> {
    match end {
        End::Answered(PeerReply::Answer(result)) => result,
        End::Answered(PeerReply::Refused { reason }) => {
            let text = format!("manager {node} refused the call: {reason}");
            Err(ErrorBody::new(ErrorCode::Unreachable, text).retry_after(Duration::from_millis(200)))
        }
        End::Answered(PeerReply::Taken) => {
            Err(ErrorBody::new(ErrorCode::Internal, format!("manager {node} acknowledged the call without an answer")))
        }
        End::TimedOut => Err(ErrorBody::new(ErrorCode::TimedOut, format!("manager {node} did not answer in time"))),
        // It was sent: unlike a call without a session, it may have been executed.
        End::Failed => {
            let text = format!("the session with manager {node} ended before it answered");
            Err(ErrorBody::new(ErrorCode::Unreachable, text).retry_after(Duration::from_millis(200)))
        }
    }
}

/// The answer without a session with a node.
pub fn no_session(node: NodeId) -> ErrorBody {
    ErrorBody::new(ErrorCode::Unreachable, format!("no session with manager {node}"))
        .marked(ErrorMark::NotSent)
        .retry_after(Duration::from_millis(200))
}
