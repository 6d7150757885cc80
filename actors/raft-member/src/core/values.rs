//! What goes into a member's core and what comes out of it.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use muster_messages::protocol::{Applied, ProposeError, ReadError, SnapshotOutcome};
use muster_messages::wire::{RaftPacket, SnapshotHead};
use muster_messages::{
    Command, Member, Moment, NodeId, ObjectChange, RaftId, Replica, Revision, SeatChange, Tables, Term,
};
pub use raft::eraftpb::Entry;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{DigestJob, Outgrown, StoppedTransfer};

/// Names a parked reply port. The core never sees the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AskId(pub u64);

/// What a core hears. Absorbed by `step`; the consequences come out of the next `turn`.
#[derive(Debug)]
pub enum Input {
    /// Every [`RaftConfig::tick`](super::RaftConfig). After a pause the missed ones are not made up.
    Tick,
    /// The moment that [`Batch::wake_at`] named.
    Woke,
    Propose {
        ask: AskId,
        command: Box<Command>,
        deadline: Moment,
    },
    ProposeSeat {
        ask: AskId,
        change: Box<SeatChange>,
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
    /// From an authenticated peer; `peer_seat` is the seat that its hello named.
    Packets {
        node: NodeId,
        peer_seat: Option<RaftId>,
        packets: Vec<RaftPacket>,
    },
    /// A snapshot that arrived whole, its digest verified.
    SnapshotReceived {
        node: NodeId,
        peer_seat: Option<RaftId>,
        packet: Box<RaftPacket>,
        data: Vec<u8>,
    },
    /// The transfer of the snapshot at `index` to a member ended.
    SnapshotSent {
        to: RaftId,
        index: u64,
        outcome: SnapshotOutcome,
    },
    /// More of it arrived.
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

/// One turn's consequences. Whatever must not be known before it is durable is not in here: the core holds it
/// back until `Persisted` says so, and a crash loses it together with what was not written.
#[derive(Debug, Default)]
pub struct Batch {
    /// May leave at once.
    pub send: Vec<Outbound>,
    /// May leave at once: encode, cut into chunks, then the packet.
    pub send_snapshots: Vec<OutboundSnapshot>,
    /// These are not needed any more.
    pub stop_snapshots: Vec<StoppedTransfer>,
    /// To be written in this order; each is answered by `Persisted`, or several by the last one's number.
    pub make_durable: Vec<Durable>,
    /// Encode and write a snapshot file, away from this thread; answered by `SnapshotTaken`.
    pub take_snapshot: Option<SnapshotJob>,
    /// Encode and digest this state, away from this thread; answered by `StateDigested`.
    pub digest_state: Option<DigestJob>,
    /// Each ask is answered exactly once.
    pub answers: Vec<Answer>,
    /// The newest level, if it changed.
    pub publish: Option<Arc<Replica>>,
    /// What was applied did to objects, in log order.
    pub changes: Vec<ObjectChange>,
    /// A snapshot up to here took the place of what was applied before, which comes before `changes`.
    pub installed: Option<Revision>,
    /// The members changed.
    pub members: Option<(Vec<Member>, Option<RaftId>)>,
    /// Say `Woke` then, if nothing newer was said.
    pub wake_at: Option<Moment>,
    /// There is more to do: take another turn after the inputs that wait by now.
    pub again: bool,
    /// This member's disk has lost entries that it had acknowledged, or its state is not that of the others. Its data must
    /// not be used again.
    pub lost: Option<String>,
    /// This build does not speak what the cluster speaks.
    pub outgrown: Option<Outgrown>,
    /// For the log.
    pub notices: Vec<Notice>,
}

/// A packet and where it goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Outbound {
    pub node: NodeId,
    /// Where the node is dialled; empty if only a session that it opened can reach it.
    pub addr: String,
    pub packet: RaftPacket,
}

/// A snapshot and where it goes. `packet.snapshot` lacks length and digest until the job has run.
#[derive(Clone, Debug)]
pub struct OutboundSnapshot {
    pub node: NodeId,
    pub addr: String,
    pub packet: RaftPacket,
    pub job: SnapshotJob,
}

/// The tables at one point of the log, to be encoded: the work of milliseconds to tens of them, so not a core's.
#[derive(Clone, Debug)]
pub struct SnapshotJob {
    pub index: u64,
    pub term: u64,
    pub voters: Vec<u64>,
    pub learners: Vec<u64>,
    pub tables: Tables,
    /// Shared by the copies of this job, so that the state is encoded once for all of them.
    pub encoded: Arc<OnceLock<(SnapshotHead, Arc<Vec<u8>>)>>,
}

impl SnapshotJob {
    /// The tables at a place of the log, with the voters and learners there.
    pub fn new(at: LogPoint, (voters, learners): (Vec<u64>, Vec<u64>), tables: Tables) -> Self {
        Self { index: at.index, term: at.term, voters, learners, tables, encoded: Arc::default() }
    }
    /// [`SnapshotJob::run`], once for all copies of this job. Blocks while another copy is encoding.
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

/// A place in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LogPoint {
    pub index: u64,
    pub term: u64,
}

/// One write. Its parts are written in the order of the fields, as one atom.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Durable {
    /// Grows by one with each write of this core.
    pub number: u64,
    /// Must be on disk before `Persisted`; otherwise reaching the operating system is enough.
    pub sync: bool,
    /// Forget everything: from now on this is the data of this seat.
    pub start_over: Option<RaftId>,
    /// A snapshot that replaces the log.
    pub install: Option<(SnapshotHead, Arc<Vec<u8>>)>,
    pub hard: HardMark,
    /// The first one's index and everything after it is replaced.
    pub entries: Vec<Entry>,
    /// The snapshot of this head is on disk: it is now the one to start from, and the entries up to `keep_after` may go.
    pub compact: Option<Compaction>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Compaction {
    pub head: SnapshotHead,
    pub keep_after: LogPoint,
}

/// What a disk gave back.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// `None`: this node has never held a seat in this data.
    pub seat: Option<RaftId>,
    pub hard: HardMark,
    /// The state to start from, and what it stands for.
    pub snapshot: Option<(SnapshotHead, Tables)>,
    /// The entry before the first of `entries`.
    pub truncated: LogPoint,
    pub entries: Vec<Entry>,
}

/// What became of an ask.
#[derive(Clone, Debug)]
pub enum Answer {
    Proposed(AskId, Result<Applied, ProposeError>),
    Read(AskId, Result<Arc<Replica>, ReadError>),
    Reachable(AskId, Result<BTreeSet<RaftId>, ProposeError>),
    Transferred(AskId, Result<NodeId, ProposeError>),
}

/// Something for the log of the node. Levels are the shell's choice.
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
    /// A disk write took too long; leadership was given up.
    DiskTooSlow {
        term: Term,
    },
    /// A leader's packet gave this node a seat.
    Seated {
        raft_id: RaftId,
    },
    /// This member's seat was removed.
    Unseated {
        raft_id: RaftId,
    },
    Installed {
        index: u64,
    },
    SeatRefused {
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
    /// A member's state at this revision is not the leader's.
    StateDiverged {
        member: RaftId,
        node: Option<NodeId>,
        index: u64,
    },
    /// A member needs a snapshot and did not take it. Once per reason.
    SnapshotNotTaken {
        to: RaftId,
        why: String,
    },
}

/// The core cannot go on: its data contradict themselves or what is written cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CoreFault(pub String);
