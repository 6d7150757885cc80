//! Inputs and outputs of a member's core.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

pub use muster_messages::AskId;
use muster_messages::protocol::{Applied, ProposeError, ReadError, SnapshotOutcome};
use muster_messages::wire::{RaftPacket, SnapshotHead};
use muster_messages::{
    Command, ManagedKey, Member, MembershipChange, MembershipChangeKind, Moment, NodeId, ObjectChange, RaftId, Replica,
    Revision, Tables, Term,
};
pub use raft::eraftpb::Entry;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{DigestJob, Incompatible, StoppedTransfer};

/// Inputs of a core. `step` absorbs them; their consequences are in the batch of the next `turn`.
#[derive(Debug)]
pub enum Input {
    /// Every [`RaftConfig::tick`](super::RaftConfig). After a pause, missed ticks are not made up.
    Tick,
    /// At the moment that [`Batch::wake_at`] named.
    Woke,
    Propose {
        ask: AskId,
        command: Box<Command>,
        deadline: Moment,
    },
    ProposeMembership {
        ask: AskId,
        change: Box<MembershipChange>,
        /// A change of the voters enters the log once a majority of the resulting ones responds, by then. `None`: at once.
        confirm_by: Option<Moment>,
    },
    Read {
        ask: AskId,
        deadline: Moment,
    },
    /// Which of these members respond: answered once `needed` of them have, or at the deadline.
    CheckReachable {
        ask: AskId,
        members: BTreeSet<RaftId>,
        needed: usize,
        deadline: Moment,
    },
    /// From an authenticated peer; `peer_member` is the member id in its hello.
    Packets {
        node: NodeId,
        peer_member: Option<RaftId>,
        packets: Vec<RaftPacket>,
    },
    /// A complete snapshot whose digest was verified.
    SnapshotReceived {
        node: NodeId,
        peer_member: Option<RaftId>,
        packet: Box<RaftPacket>,
        data: Vec<u8>,
    },
    /// The transfer of the snapshot at `index` to a member ended.
    SnapshotSent {
        to: RaftId,
        index: u64,
        outcome: SnapshotOutcome,
    },
    /// A transfer made progress.
    SnapshotProgress {
        to: RaftId,
        index: u64,
    },
    /// The digest of [`Batch::digest_state`]; `None`: it could not be computed.
    StateDigested {
        index: u64,
        digest: Option<[u8; 32]>,
    },
    /// The file of [`Batch::take_snapshot`] is written and synced; `None`: it could not be.
    SnapshotTaken {
        head: Option<SnapshotHead>,
    },
    /// Every [`Durable`] up to this number is on disk.
    Persisted {
        number: u64,
    },
    /// A mesh session with this node began or ended.
    PeerSession {
        node: NodeId,
        up: bool,
    },
    Unreachable {
        to: RaftId,
    },
    /// The session with the leader broke and its address refuses connections at once.
    LeaderGone {
        node: NodeId,
    },
    TransferLeadership {
        ask: AskId,
        to: Option<NodeId>,
    },
}

/// The consequences of one turn. Whatever must be durable before others learn of it is not included: the core holds it
/// back until `Persisted`, and a crash loses it together with the unwritten data.
#[derive(Debug, Default)]
pub struct Batch {
    /// May be sent at once.
    pub send: Vec<Outbound>,
    /// May be sent at once: encode, split into chunks, then the packet.
    pub send_snapshots: Vec<OutboundSnapshot>,
    /// Transfers that are not needed any more.
    pub stop_snapshots: Vec<StoppedTransfer>,
    /// To be written in this order; `Persisted` answers each, or several by the last one's number.
    pub make_durable: Vec<Durable>,
    /// Encode and write a snapshot file, on another thread; answered by `SnapshotTaken`.
    pub take_snapshot: Option<SnapshotJob>,
    /// Encode and digest this state, on another thread; answered by `StateDigested`.
    pub digest_state: Option<DigestJob>,
    /// Each ask is answered exactly once.
    pub answers: Vec<Answer>,
    /// The new replica, if it changed.
    pub publish: Option<Arc<Replica>>,
    /// The same, if not only objects changed, or periodically.
    pub publish_cluster: Option<Arc<Replica>>,
    /// The changes of objects that were applied, in log order.
    pub changes: Vec<ObjectChange>,
    /// The objects of reconcilers that were deleted, in log order.
    pub deletions: Vec<(Revision, ManagedKey)>,
    /// A snapshot up to this revision replaced the applied state. It precedes `changes`.
    pub installed: Option<Revision>,
    /// The members changed.
    pub members: Option<(Vec<Member>, Option<RaftId>)>,
    /// When to input `Woke`, unless a newer batch says otherwise.
    pub wake_at: Option<Moment>,
    /// There is more to do: take another turn after the inputs that wait now.
    pub again: bool,
    /// This member's disk has lost entries that it had acknowledged, or its state differs from that of the others. Its
    /// data must not be used again.
    pub lost: Option<String>,
    /// This build does not support the cluster's feature level.
    pub incompatible: Option<Incompatible>,
    /// For the log.
    pub notices: Vec<Notice>,
}

/// A packet and its destination.
#[derive(Clone, Debug, PartialEq)]
pub struct Outbound {
    pub node: NodeId,
    /// The node's address; empty if only a session that the node opened can reach it.
    pub addr: String,
    pub packet: RaftPacket,
}

/// A snapshot and its destination. `packet.snapshot` lacks length and digest until the job has run.
#[derive(Clone, Debug)]
pub struct OutboundSnapshot {
    pub node: NodeId,
    pub addr: String,
    pub packet: RaftPacket,
    pub job: SnapshotJob,
}

/// The tables at one log position, to be encoded. This takes milliseconds to tens of them, too long for a core.
#[derive(Clone, Debug)]
pub struct SnapshotJob {
    pub index: u64,
    pub term: u64,
    pub voters: Vec<u64>,
    pub learners: Vec<u64>,
    pub tables: Tables,
    /// Shared by the clones of this job, so that the state is encoded once.
    pub encoded: Arc<OnceLock<(SnapshotHead, Arc<Vec<u8>>)>>,
}

impl SnapshotJob {
    /// The tables at a log position, with the voters and learners there.
    pub fn new(at: LogPoint, (voters, learners): (Vec<u64>, Vec<u64>), tables: Tables) -> Self {
        Self { index: at.index, term: at.term, voters, learners, tables, encoded: Arc::default() }
    }
    /// [`SnapshotJob::run`], once for all clones of this job. Blocks while another clone is encoding.
    pub fn run_shared(&self) -> (SnapshotHead, Arc<Vec<u8>>) {
        let run = || {
            let (head, data) = self.run();
            (head, Arc::new(data))
        };
        self.encoded.get_or_init(run).clone()
    }
    /// Encodes. Pure; run it where blocking is allowed.
    pub fn run(&self) -> (SnapshotHead, Vec<u8>) {
        let data = muster_store::snapshot::encode(&self.tables);
        (self.head(data.len(), digest(&data)), data)
    }
    pub(crate) fn head(&self, bytes: usize, digest: [u8; 32]) -> SnapshotHead {
        SnapshotHead {
            index: self.index,
            term: self.term,
            voters: self.voters.clone(),
            learners: self.learners.clone(),
            bytes: bytes as u64,
            digest,
        }
    }
}

/// SHA-256 of snapshot data.
pub fn digest(data: &[u8]) -> [u8; 32] {
    Sha256::digest(data).into()
}

/// Term, vote and commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HardMark {
    pub term: u64,
    pub vote: u64,
    pub commit: u64,
}

/// A log position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LogPoint {
    pub index: u64,
    pub term: u64,
}

/// One write. Its parts are written in the order of the fields, atomically.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Durable {
    /// Grows by one with each write of this core.
    pub number: u64,
    /// Must be on disk before `Persisted`; otherwise it is enough that the operating system has it.
    pub sync: bool,
    /// Discards everything: from now on this is the data of this member id.
    pub start_over: Option<RaftId>,
    /// A snapshot that replaces the log.
    pub install: Option<(SnapshotHead, Arc<Vec<u8>>)>,
    pub hard: HardMark,
    /// Replaces the entries from the first one's index on.
    pub entries: Vec<Entry>,
    /// The snapshot of this head is on disk: start from it, and drop the entries up to `keep_after`.
    pub compact: Option<Compaction>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Compaction {
    pub head: SnapshotHead,
    pub keep_after: LogPoint,
}

/// The state that a disk recovered.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// `None`: this data has never belonged to a Raft member.
    pub member_id: Option<RaftId>,
    pub hard: HardMark,
    /// The state to start from, and its head.
    pub snapshot: Option<(SnapshotHead, Tables)>,
    /// The entry before the first of `entries`.
    pub truncated: LogPoint,
    pub entries: Vec<Entry>,
}

/// The outcome of an ask.
#[derive(Clone, Debug)]
pub enum Answer {
    Proposed(AskId, Result<Applied, ProposeError>),
    Read(AskId, Result<Arc<Replica>, ReadError>),
    Reachable(AskId, Result<BTreeSet<RaftId>, ProposeError>),
    Transferred(AskId, Result<NodeId, ProposeError>),
}

/// An event for the node's log. The shell chooses the log levels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    Leads {
        term: Term,
    },
    Follows {
        term: Term,
        leader: RaftId,
        node: Option<NodeId>,
    },
    LostLeader {
        term: Term,
    },
    /// A leader's disk write took too long. It steps down, unless it is the only voter: then this comes once per write.
    DiskTooSlow {
        term: Term,
        stepped_down: bool,
    },
    /// A leader's packet gave this node a member id.
    BecameMember {
        raft_id: RaftId,
    },
    /// This member was removed.
    MemberRemoved {
        raft_id: RaftId,
    },
    Installed {
        index: u64,
    },
    /// A membership change enters the log. A majority of the resulting voters has responded since, if that was asked for.
    MembershipProposed {
        kind: MembershipChangeKind,
        since: Moment,
    },
    MembershipRefused {
        why: String,
    },
    SnapshotUnreadable {
        index: u64,
        why: String,
    },
    Sending {
        to: RaftId,
        index: u64,
    },
    /// A member's state at this revision differs from the leader's.
    StateDiverged {
        member: RaftId,
        node: Option<NodeId>,
        index: u64,
    },
    /// A member needs a snapshot and did not install it. Once per reason.
    SnapshotNotTaken {
        to: RaftId,
        why: String,
    },
}

/// The core cannot continue: its data contradict themselves or cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CoreFault(pub String);
