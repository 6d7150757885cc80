//! The cluster in short, and its Raft group.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{AutopilotPauseView, PendingView};
use crate::model::{
    AuthorityOrigin, Membership, Name, NodeId, NodeProcess, RaftId, Revision, Role, RootId, Term, TroubleKind, WallTime,
};

/// `muster status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusView {
    pub cluster: ClusterView,
    pub stale: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_of: Option<WallTime>,
    #[serde(rename = "self")]
    pub this: SelfView,
    pub raft: RaftView,
    pub quorum: QuorumView,
    pub nodes: NodeCounts,
    pub pending: Vec<PendingView>,
    /// Nodes whose identity two processes use: at most [`MAX_DUPLICATES`] of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub duplicates: Vec<DuplicateView>,
    /// The root that signs, while it expires within [`ROOT_EXPIRES_SOON`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_expires: Option<RootExpiryView>,
    /// Where a number of managers is declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declared: Option<DeclaredView>,
}

/// The declared number of managers in short; `muster autopilot state` has the rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeclaredView {
    pub managers: u8,
    /// While it is paused, only operators change roles.
    pub paused: Option<AutopilotPauseView>,
}

/// A root that signs and expires soon: certificates end with it, and none can be signed in its last hour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootExpiryView {
    pub root: RootId,
    pub origin: AuthorityOrigin,
    pub not_after: WallTime,
}

/// How long before its end `status` shows a root that signs: time for an answer of the authority above, and for managers that are
/// away.
pub const ROOT_EXPIRES_SOON: Duration = Duration::from_secs(7 * 24 * 3600);

/// Duplicates that `status` names.
pub const MAX_DUPLICATES: usize = 100;

/// A node whose data directory runs twice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DuplicateView {
    pub node: NodeId,
    pub name: Name,
    pub since: WallTime,
    pub processes: Vec<NodeProcess>,
}

/// The cluster, as its first entry and its feature level describe it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterView {
    pub id: String,
    pub name: String,
    pub incarnation: u64,
    pub feature_level: u32,
}

/// The node that answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelfView {
    pub id: NodeId,
    pub name: Name,
    pub role: Role,
    /// Why this node cannot serve, if so: `blocked`, `removed`, `raft_data_missing`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

impl SelfView {
    /// The kind of its trouble. `None`: it has none, or one that this release does not know.
    pub fn trouble_kind(&self) -> Option<TroubleKind> {
        self.trouble.as_deref().and_then(TroubleKind::of_trouble)
    }
}

/// The Raft group in short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaftView {
    pub term: Term,
    pub leader: Option<NodeId>,
    pub commit: Revision,
    pub applied: Revision,
    pub voters: Vec<NodeId>,
    pub learners: Vec<NodeId>,
}

/// How many voters a quorum needs, and how many are reachable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuorumView {
    pub needed: usize,
    pub reachable: usize,
    /// Names of the voters that do not answer, sorted.
    pub missing: Vec<Name>,
}

/// Numbers of nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCounts {
    pub total: usize,
    pub managers: usize,
    pub workers: usize,
    pub ready: usize,
    pub down: usize,
}

/// `muster raft status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaftStatusView {
    pub term: Term,
    pub leader: Option<NodeId>,
    pub commit: Revision,
    pub applied: Revision,
    pub stale: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_of: Option<WallTime>,
    pub members: Vec<RaftMemberView>,
    pub removed_raft_ids: Vec<RaftId>,
}

/// One member of the Raft configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaftMemberView {
    pub node: NodeId,
    pub raft_id: RaftId,
    pub addr: String,
    pub role: Membership,
    /// The index of the last entry that it has, as far as the answering node knows: 0 where it does not, as of others without a leader.
    #[serde(rename = "match")]
    pub matched: u64,
    pub reachable: bool,
}

/// `muster raft transfer-leader`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderView {
    /// The leader afterwards, if one is known.
    pub leader: Option<NodeId>,
}

/// `muster recovery open`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmissionOpenedView {
    /// False: the cluster was open already.
    pub changed: bool,
}
