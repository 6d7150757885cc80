//! What the raft member hears.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Named, Reply};
use crate::model::{Command, CommandRefusal, ErrorBody, ErrorCode, NodeId, RaftId, Replica, Revision, SeatChange};
use crate::wire::{RaftPacket, SnapshotHead};

/// How a proposal ended: exactly one of these, within the caller's deadline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Applied as nothing: a guard did not hold.
    #[error(transparent)]
    Refused(#[from] CommandRefusal),
    #[error("this manager does not lead")]
    NotLeader { leader: Option<NodeId> },
    /// Too many proposals in flight.
    #[error("too many proposals in flight")]
    Busy,
    /// Leadership was lost while it was in flight: it may or may not have been applied. Retry with the same request id.
    #[error("leadership was lost while the proposal was in flight; retry with the same request id")]
    UnknownOutcome,
    /// This member cannot reach a quorum.
    #[error("no quorum: waiting for {}", names(.missing))]
    NoQuorum { missing: Vec<NodeId> },
    #[error("not applied in time")]
    TimedOut,
    #[error("another membership change is in flight")]
    MembershipBusy,
    /// No message between managers could carry it.
    #[error("a command of {bytes} bytes, the limit is {limit}")]
    TooLarge { bytes: usize, limit: usize },
}

fn names(missing: &[NodeId]) -> String {
    missing.iter().map(|n| n.to_string()).collect::<Vec<_>>().join(", ")
}

impl From<ProposeError> for ErrorBody {
    fn from(error: ProposeError) -> Self {
        // Long enough for an election to have happened, short enough that nobody waits for it.
        let soon = std::time::Duration::from_millis(200);
        let text = error.to_string();
        match error {
            ProposeError::Refused(refusal) => refusal.into(),
            ProposeError::NotLeader { .. } => ErrorBody::new(ErrorCode::Unreachable, text).retry_after(soon),
            ProposeError::Busy | ProposeError::MembershipBusy => {
                ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(soon)
            }
            ProposeError::UnknownOutcome => ErrorBody::new(ErrorCode::UnknownOutcome, text).retry_after(soon),
            ProposeError::NoQuorum { missing } => ErrorBody::new(ErrorCode::NoQuorum, text)
                .with_details(&serde_json::json!({"missing": missing}))
                .retry_after(soon),
            ProposeError::TimedOut => ErrorBody::new(ErrorCode::TimedOut, text),
            ProposeError::TooLarge { .. } => ErrorBody::new(ErrorCode::TooLarge, text),
        }
    }
}

/// An applied proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    pub revision: Revision,
}

/// Why a linearizable read failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("no leader known")]
    NoLeader,
    #[error("no quorum: waiting for {}", names(.missing))]
    NoQuorum { missing: Vec<NodeId> },
    #[error("the read was not confirmed in time")]
    TimedOut,
    #[error("too many reads in flight")]
    Busy,
}

/// Messages of the raft member.
pub enum RaftMemberMsg {
    /// Proposes a command. Accepted only while leading. Lost: the port closes; retry with the same request id.
    /// Repeated with the same request id: applied once, answered alike.
    Propose { command: Box<Command>, deadline_ms: u64, reply: Reply<Result<Applied, ProposeError>> },
    /// Proposes a membership change. One at a time; another while one is in flight is refused as `MembershipBusy`.
    ProposeSeat { change: Box<SeatChange>, reply: Reply<Result<Applied, ProposeError>> },
    /// A linearizable read: answers with a copy that has applied everything acknowledged before the call (read index).
    Read { deadline_ms: u64, reply: Reply<Result<Arc<Replica>, ReadError>> },
    /// Asks which of these members are there now: heartbeats leave, again until the deadline. Answered with those that have
    /// acknowledged one that left after this was heard, this member among them: once there are `enough`, or at the deadline.
    /// Lost, or not the leader: ask again, nothing has changed.
    RollCall {
        seats: BTreeSet<RaftId>,
        enough: usize,
        deadline_ms: u64,
        reply: Reply<Result<BTreeSet<RaftId>, ProposeError>>,
    },
    /// Raft messages from an authenticated peer. Those whose `from` is not in `seats` are dropped and counted.
    /// `peer_seat` is the raft id that the peer's hello named.
    FromPeer { node: NodeId, peer_seat: Option<RaftId>, packets: Vec<RaftPacket> },
    /// A snapshot was received whole and its digest verified: step its packet with this data.
    SnapshotReceived { node: NodeId, peer_seat: Option<RaftId>, packet: Box<RaftPacket>, data: Vec<u8> },
    /// A snapshot we sent arrived, or did not.
    SnapshotSent { to: RaftId, ok: bool },
    /// The mesh has (`up`) or has lost a session with this node.
    PeerSession { node: NodeId, up: bool },
    /// Messages to this member could not be sent.
    Unreachable { to: RaftId },
    /// The mesh lost the leader's session and its address refused a connection at once (leader-loss hint).
    LeaderGone { node: NodeId },
    /// Asks to hand leadership to this voter, or to the most caught-up one. Answered once another leads or it failed.
    TransferLeadership { to: Option<NodeId>, reply: Reply<Result<NodeId, ProposeError>> },
}

impl Named for RaftMemberMsg {
    fn name(&self) -> &'static str {
        match self {
            Self::Propose { .. } => "propose",
            Self::ProposeSeat { .. } => "propose_seat",
            Self::Read { .. } => "read",
            Self::RollCall { .. } => "roll_call",
            Self::FromPeer { .. } => "from_peer",
            Self::SnapshotReceived { .. } => "snapshot_received",
            Self::SnapshotSent { .. } => "snapshot_sent",
            Self::PeerSession { .. } => "peer_session",
            Self::Unreachable { .. } => "unreachable",
            Self::LeaderGone { .. } => "leader_gone",
            Self::TransferLeadership { .. } => "transfer_leadership",
        }
    }
}

/// What the raft member needs of the mesh: a transport trait, so that tests in one process need no sockets.
/// Calls never block and never fail: what cannot be sent is dropped and reported by `Unreachable`.
pub trait RaftTransport: Send + Sync + 'static {
    /// Sends Raft messages to the member's node. `addr` is where it is dialled.
    fn send(&self, to: NodeId, addr: &str, packets: Vec<RaftPacket>);
    /// Sends a snapshot in chunks, then its packet. The outcome comes back as `SnapshotSent`.
    fn send_snapshot(&self, to: NodeId, addr: &str, head: SnapshotHead, data: Arc<Vec<u8>>, packet: RaftPacket);
    /// The members as of now: sessions to others end, missing ones are dialled.
    fn members(&self, members: Vec<crate::model::Member>, own_seat: Option<RaftId>);
}
