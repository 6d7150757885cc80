//! Raft messages on the wire: a struct of our own, because encoded eraftpb bytes carry no version and accept anything.

use serde::{Deserialize, Serialize};

use crate::model::RaftId;

/// The Raft message types that one member may send to another. There is no proposal among them: proposals are
/// made on the leader only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PacketKind {
    Append,
    AppendResponse,
    RequestVote,
    RequestVoteResponse,
    RequestPreVote,
    RequestPreVoteResponse,
    Heartbeat,
    HeartbeatResponse,
    /// The head of a snapshot; the data travels as [`super::PeerMessage::SnapshotChunk`] before it.
    Snapshot,
    TransferLeader,
    TimeoutNow,
    ReadIndex,
    ReadIndexResponse,
    /// From feature level 3 on. To a leader: the digest, in `context`, of the sender's state at `index`. From a leader, with
    /// `reject`: the majority's state there has this digest, and the receiver's another one. Lost: the next index is compared.
    /// Repeated: judged again, alike. Late, of another term: dropped.
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
    pub data: Vec<u8>,
    pub context: Vec<u8>,
}

/// What a snapshot stands for; the data itself is sent in chunks.
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
    pub context: Vec<u8>,
    pub priority: i64,
}
