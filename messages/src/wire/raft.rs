//! Raft messages on the wire: our own struct, because encoded eraftpb bytes carry no version and accept anything.

use serde::{Deserialize, Serialize};

use crate::model::RaftId;

/// The Raft message types that one member may send to another. There is no proposal among them: proposals are made on
/// the leader only. Raft ignores a message of an older term, however late or often it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PacketKind {
    /// Entries of the log, and the commit index. Lost: the leader sends them again. Repeated or late: matched by index
    /// and term, nothing is appended twice.
    Append,
    /// Lost: the next one acknowledges the same entries. Repeated or late: counts only if it is news to the leader; a
    /// rejection of what was acknowledged is dropped.
    AppendResponse,
    /// Lost: the candidate campaigns again. Repeated: answered with the same vote.
    RequestVote,
    /// Lost: the candidate campaigns again. Repeated: counted once per voter. Late: ignored in another term; dropped
    /// while the receiver's own entries are on their way to its disk.
    RequestVoteResponse,
    /// Lost: the member asks again at its next campaign. Repeated: answered again; no vote is given away by it.
    RequestPreVote,
    /// Lost: the member asks again at its next campaign. Repeated: counted once per voter.
    RequestPreVoteResponse,
    /// Lost: the next one counts. Repeated: answered again. Late, of an older term: answered with the newer term.
    Heartbeat,
    /// Lost: the next one counts. Repeated: no further effect.
    HeartbeatResponse,
    /// The head of a snapshot, with the last piece of its data: see [`super::PeerMessage::SnapshotChunk`]. Without data
    /// it is dropped. Lost: the leader begins another transfer. Repeated or late: ignored if it is not newer than what
    /// is committed.
    Snapshot,
    /// Never sent, because only the leader itself starts a transfer. Lost: nothing is missing. Repeated or late:
    /// dropped like the first.
    TransferLeader,
    /// The leader asks the receiver to campaign at once. Lost: sent again until the transfer ends. Repeated or late:
    /// dropped unless the receiver follows its sender in that term.
    TimeoutNow,
    /// A follower asks the leader to confirm a read. Lost: asked again after two heartbeats. Repeated: same answer.
    /// Late: dropped by a member that does not lead.
    ReadIndex,
    /// The leader confirms a read. Lost: the follower asks again. Repeated or late: ignored, the question is closed.
    ReadIndexResponse,
    /// From feature level 3 on. To a leader: the digest, in `context`, of the sender's state at `index`. From a leader,
    /// with `reject`: the state of the majority at that index has this digest, and the receiver's state has another
    /// one. Lost: the next index is compared. Repeated: same decision. Late, of another term: dropped.
    StateDigest,
}

/// Whether a log entry is a command or a change of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    Normal,
    ConfChange,
    ConfChangeV2,
}

/// One log entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaftEntry {
    pub kind: EntryKind,
    pub term: u64,
    pub index: u64,
    #[serde(with = "super::bytes")]
    pub data: Vec<u8>,
    #[serde(with = "super::bytes")]
    pub context: Vec<u8>,
}

/// The head of a snapshot; the data itself is sent in chunks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotHead {
    pub index: u64,
    pub term: u64,
    pub voters: Vec<u64>,
    pub learners: Vec<u64>,
    /// Of the encoded tables.
    pub bytes: u64,
    /// SHA-256 of the encoded tables.
    pub digest: [u8; 32],
}

/// One Raft message between two members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaftPacket {
    pub kind: PacketKind,
    pub from: RaftId,
    pub to: RaftId,
    pub term: u64,
    pub log_term: u64,
    pub index: u64,
    pub commit: u64,
    pub commit_term: u64,
    pub entries: Vec<RaftEntry>,
    pub snapshot: Option<SnapshotHead>,
    pub request_snapshot: u64,
    pub reject: bool,
    pub reject_hint: u64,
    #[serde(with = "super::bytes")]
    pub context: Vec<u8>,
    pub priority: i64,
}
