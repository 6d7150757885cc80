//! Raft, as the other parts of Muster see it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{NodeId, RaftId, Revision, Tables, Term, WallTime};

/// This member's role in its current term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RaftRole {
    Follower,
    PreCandidate,
    Candidate,
    Leader,
}

/// The progress of one peer, as the leader sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerProgress {
    pub raft_id: RaftId,
    pub node: Option<NodeId>,
    pub voter: bool,
    /// The highest index known to be in its log.
    pub matched: u64,
    /// Time since its last acknowledgement in this term; `None` before the first.
    pub acked_ago: Option<Duration>,
    pub in_snapshot: bool,
    /// Why it cannot follow although it answers. Such a member does not count as reachable.
    pub problem: Option<PeerProblem>,
}

impl PeerProgress {
    /// Time since its last acknowledgement, if it can follow the leader.
    pub fn answered_ago(&self) -> Option<Duration> {
        self.acked_ago.filter(|_| self.problem.is_none())
    }
    /// Whether it acknowledged something within this time, and can follow the leader.
    pub fn answers_within(&self, limit: Duration) -> bool {
        self.answered_ago().is_some_and(|ago| ago <= limit)
    }
}

/// What keeps a member from following its leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerProblem {
    pub kind: PeerProblemKind,
    /// For operators: what happened, and how to repair it.
    pub message: String,
    /// When the leader noticed, by its clock.
    pub since: WallTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerProblemKind {
    /// It needs a snapshot and did not take the last one.
    SnapshotNotTaken,
    /// Its state at the same revision is not the leader's.
    StateDiverged,
}

/// A member's view of Raft at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaftStatus {
    /// This member's id; `None` while it has none (an empty state that waits for the dial-back).
    pub raft_id: Option<RaftId>,
    pub role: RaftRole,
    pub term: Term,
    pub leader: Option<RaftId>,
    /// The node of `leader`, if the local replica knows it.
    pub leader_node: Option<NodeId>,
    pub commit: Revision,
    pub applied: Revision,
    /// True once a leader has applied an entry of its own term: only then may it make decisions.
    pub leading: bool,
    /// Filled while leading.
    pub progress: Vec<PeerProgress>,
    /// While there is no leader: the other voters that have been silent for so long that they would have campaigned. A network partition
    /// shows here seconds before the sessions across it end.
    pub silent: Vec<NodeId>,
}

impl RaftStatus {
    /// The progress of a peer. `None`: the member is not a peer, or this one does not lead.
    pub fn progress_of(&self, id: RaftId) -> Option<&PeerProgress> {
        self.progress.iter().find(|progress| progress.raft_id == id)
    }
}

impl Default for RaftStatus {
    fn default() -> Self {
        Self {
            raft_id: None,
            role: RaftRole::Follower,
            term: Term(0),
            leader: None,
            leader_node: None,
            commit: Revision(0),
            applied: Revision(0),
            leading: false,
            progress: Vec::new(),
            silent: Vec::new(),
        }
    }
}

/// What a Raft member publishes after each step: its tables and its Raft status. A watched value: readers see the newest
/// and may miss intermediate ones.
#[derive(Clone, Debug, Default)]
pub struct Replica {
    pub tables: Tables,
    pub raft: RaftStatus,
}
