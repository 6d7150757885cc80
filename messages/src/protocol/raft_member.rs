//! Messages to the Raft member.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Named, Reply};
use crate::base::{AskError, Details};
use crate::model::{
    Command, CommandRefusal, ErrorBody, ErrorCode, MembershipChange, NodeId, RaftId, Replica, Revision, detail,
};
use crate::wire::{RaftPacket, SnapshotHead};

/// How a proposal ended: exactly one of these, within the caller's deadline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Not applied: a guard failed.
    #[error(transparent)]
    Refused(#[from] CommandRefusal),
    #[error("this manager does not lead")]
    NotLeader { leader: Option<NodeId> },
    /// Too many proposals in flight.
    #[error("too many proposals in flight")]
    Busy,
    /// It entered the log, but was not committed in time or leadership was lost: it may or may not be applied. Retry with the
    /// same request id.
    #[error("not confirmed while this manager led")]
    UnknownOutcome,
    /// This member cannot reach a quorum. The proposal never entered the log.
    #[error("no quorum: waiting for {}", names(.missing))]
    NoQuorum { missing: Vec<NodeId> },
    /// Its deadline passed before it entered the log, or its caller stopped waiting.
    #[error("not applied in time")]
    TimedOut,
    #[error("another membership change is in flight")]
    MembershipBusy,
    /// A membership change: too few of the voters that it would result in acknowledged a heartbeat in time. It never entered the log.
    #[error("{} of the {} resulting voters respond, too few for this membership change", .reachable.len(), .voters.len())]
    TooFewReachable { voters: BTreeSet<RaftId>, reachable: BTreeSet<RaftId> },
    /// Too large for a message between managers.
    #[error("a command of {bytes} bytes, the limit is {limit}")]
    TooLarge { bytes: usize, limit: usize },
    /// The replicated state is full: a state above a snapshot's limit could not be given to a manager.
    #[error(
        "the replicated state is full: about {bytes} bytes, and {limit} are allowed for this kind of change; delete objects, \
         labels, tokens or reconciler definitions that are not needed (counted within seconds), or raise [mesh] max_snapshot_bytes on every \
         manager"
    )]
    StateFull { bytes: u64, limit: u64 },
}

/// How the transfer of a snapshot to another member ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotOutcome {
    /// The other node has all of it.
    Delivered,
    /// The session ended, or an answer did not arrive in time.
    Lost(String),
    /// The other node answered that it does not take it, and why.
    Refused(String),
}

fn names(missing: &[NodeId]) -> String {
    missing.iter().map(|n| n.to_string()).collect::<Vec<_>>().join(", ")
}

/// How a proposal ended whose answer is missing.
impl From<AskError> for ProposeError {
    fn from(why: AskError) -> Self {
        match why {
            AskError::Full => ProposeError::Busy,
            AskError::Down => ProposeError::NotLeader { leader: None },
            // In its mailbox or in flight.
            AskError::Closed | AskError::TimedOut => ProposeError::UnknownOutcome,
        }
    }
}

impl From<ProposeError> for ErrorBody {
    fn from(error: ProposeError) -> Self {
        // Long enough for an election, short enough not to keep callers waiting.
        let soon = std::time::Duration::from_millis(200);
        let text = error.to_string();
        match error {
            ProposeError::Refused(refusal) => refusal.into(),
            ProposeError::NotLeader { .. } => ErrorBody::new(ErrorCode::Unreachable, text).retry_after(soon),
            ProposeError::Busy | ProposeError::MembershipBusy => {
                ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(soon)
            }
            ProposeError::UnknownOutcome => ErrorBody::unknown_outcome(text).retry_after(soon),
            ProposeError::NoQuorum { missing } => ErrorBody::new(ErrorCode::NoQuorum, text)
                .with_details(&Details::default().with(detail::MISSING, &missing))
                .retry_after(soon),
            ProposeError::TooFewReachable { .. } => ErrorBody::new(ErrorCode::QuorumAtRisk, text).retry_after(soon),
            ProposeError::TimedOut => ErrorBody::new(ErrorCode::TimedOut, text),
            ProposeError::TooLarge { .. } => ErrorBody::new(ErrorCode::TooLarge, text),
            ProposeError::StateFull { bytes, limit } => ErrorBody::new(ErrorCode::StateFull, text)
                .with_details(&Details::default().with(detail::BYTES, &bytes).with(detail::LIMIT, &limit)),
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

impl From<ReadError> for ErrorBody {
    fn from(error: ReadError) -> Self {
        // As for proposals: long enough for an election.
        let soon = std::time::Duration::from_millis(200);
        let text = error.to_string();
        match error {
            ReadError::Busy => ErrorBody::new(ErrorCode::TooManyRequests, text),
            ReadError::NoQuorum { missing } => ErrorBody::new(ErrorCode::NoQuorum, text)
                .with_details(&Details::default().with(detail::MISSING, &missing)),
            ReadError::NoLeader => ErrorBody::new(ErrorCode::NoQuorum, text),
            ReadError::TimedOut => ErrorBody::new(ErrorCode::TimedOut, text),
        }
        .retry_after(soon)
    }
}

/// Messages of the Raft member.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum RaftMemberMsg {
    /// Proposes a command. Accepted only while leading; answered once it is applied, or with a [`ProposeError`] by the
    /// deadline. Lost: the port closes; retry with the same request id. Repeated with the same request id: applied
    /// once, answered alike. Late: its guards are judged when it is applied. From an old leader: `NoQuorum` or
    /// `UnknownOutcome`; its entry is applied only if the next leader had it when it was elected.
    Propose { command: Box<Command>, deadline_ms: u64, reply: Reply<Result<Applied, ProposeError>> },
    /// Proposes a membership change. With `confirm_within_ms`, one that adds or removes a voter enters the log only once a
    /// majority of the resulting voters, the leader included if it is one, has acknowledged a heartbeat sent after this
    /// message was handled; if that takes longer, it is refused as `TooFewReachable`. One at a time; another while one
    /// is in flight, or waits for heartbeats, is refused as `MembershipBusy`; so is one that they confirm during a transfer of
    /// leadership. Once in the log it has no deadline:
    /// answered when it is applied or refused, or leadership is lost. Lost: the port closes; look at the members before
    /// proposing it again. Repeated: busy while the first is in flight, refused once it is applied (a repeated address:
    /// accepted, no change). Late: its heartbeats leave when it is handled, and it is judged again when it is applied. From
    /// an old leader: no majority acknowledges its heartbeats, so one that waits for them enters no log; any other as `Propose`.
    ProposeMembership {
        change: Box<MembershipChange>,
        confirm_within_ms: Option<u64>,
        reply: Reply<Result<Applied, ProposeError>>,
    },
    /// A linearizable read: answers with a replica that has applied everything acknowledged before the call (read
    /// index), or with a [`ReadError`] by the deadline. Read: repeat freely. Lost: the port closes; ask again. From an old
    /// leader: an error, because no majority confirms its read index.
    Read { deadline_ms: u64, reply: Reply<Result<Arc<Replica>, ReadError>> },
    /// Which of these members respond to the leader now. Answered with the members that acknowledged a heartbeat sent
    /// after this message was handled, the leader itself included: as soon as there are `needed`, or at the deadline.
    /// Lost, or not the leader: ask again, no state has changed. Repeated: answered again. Late: the answer is as old
    /// as the question, so the caller discards the answer to a question that it no longer has. From an old leader: without the
    /// members that know the newer term.
    CheckReachable {
        members: BTreeSet<RaftId>,
        needed: usize,
        deadline_ms: u64,
        reply: Reply<Result<BTreeSet<RaftId>, ProposeError>>,
    },
    /// Raft messages from an authenticated peer, which speaks for member id `peer_member`. Those from another member id,
    /// or from one that the replica knows as removed, outdated or another node's, are dropped and counted. Lost: Raft
    /// sends again. Repeated or late: Raft ignores by term and index. From an old leader: ignored by its lower term, and
    /// answered with the newer one.
    FromPeer { node: NodeId, peer_member: Option<RaftId>, packets: Vec<RaftPacket> },
    /// A snapshot was received whole and its digest verified: step its packet with this data. Lost: the leader finds
    /// this member behind and sends one again. Repeated or late: ignored if it is not newer than what is committed
    /// here, dropped while another one is being written. From an old leader: ignored by its lower term.
    SnapshotReceived { node: NodeId, peer_member: Option<RaftId>, packet: Box<RaftPacket>, data: Vec<u8> },
    /// The transfer of the snapshot at `index` to this member ended. Lost: the transfer counts as lost once it has made
    /// no progress for `snapshot_limit`. Repeated or late: ignored, because the transfer at that index is over.
    SnapshotSent { to: RaftId, index: u64, outcome: SnapshotOutcome },
    /// The other node took more of the snapshot at `index`. Sent at most once a second. Lost: the next one counts.
    /// Repeated: counts as progress again. Late: ignored once that transfer is over.
    SnapshotProgress { to: RaftId, index: u64 },
    /// The mesh has (`up`) or has lost a session with this node. A leader resumes sending to it at once, or ends its
    /// snapshot transfer. Lost: timeouts have the same effect later; until the next one, an error without a leader may
    /// name the wrong voters as missing. Repeated: same effect. Late: the next one corrects it, the mesh sends them in
    /// order.
    PeerSession { node: NodeId, up: bool },
    /// Messages to this member could not be sent: Raft probes it until it acknowledges again. Lost: the next one
    /// counts. Repeated: no further effect. Late: it is probed without need.
    Unreachable { to: RaftId },
    /// The mesh lost the leader's session and its address refused a connection at once (leader-loss hint). Lost: the
    /// election timeout detects it. Repeated: ignored, the leader is forgotten already. Late, when that node leads
    /// again: this member may campaign, and a majority that still has a leader does not elect it.
    LeaderGone { node: NodeId },
    /// Asks to hand leadership to this voter, or to the most caught-up one. Answered once another leads or it failed.
    /// Lost: see who leads before asking again. Repeated: `Busy` while one is in progress, `NotLeader` afterwards.
    /// Late: the leader of that time hands over, unless it is the one named. From an old leader: no voter takes
    /// leadership from it; ends in an error, or names the new leader.
    TransferLeadership { to: Option<NodeId>, reply: Reply<Result<NodeId, ProposeError>> },
}

/// The Raft member's interface to the mesh: a transport trait, so that tests in one process need no sockets.
/// Calls never block and never fail: messages that cannot be sent are dropped and reported by `Unreachable`.
pub trait RaftTransport: Send + Sync + 'static {
    /// Sends Raft messages to the member's node, dialled at `addr`.
    fn send(&self, to: NodeId, addr: &str, packets: Vec<RaftPacket>);
    /// Sends a snapshot in pieces, then its packet. The outcome comes back as `SnapshotSent`.
    fn send_snapshot(&self, to: NodeId, addr: &str, head: SnapshotHead, data: Arc<Vec<u8>>, packet: RaftPacket);
    /// Stops sending the snapshot at `index`, if still in progress: the member no longer needs it. No outcome is reported.
    fn stop_snapshot(&self, to: NodeId, index: u64);
    /// The current members: sessions to other nodes end, missing ones are dialled.
    fn members(&self, members: Vec<crate::model::Member>, own_member: Option<RaftId>);
}
