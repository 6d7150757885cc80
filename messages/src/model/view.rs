//! The JSON shapes of the contract. Field names are promises to scripts.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    CertificateState, FencingToken, Generation, Lease, Liveness, Membership, MicroTime, Name, NodeId, NodeProcess,
    Object, RaftId, Revision, Role, Term, WallTime,
};

/// The contract's word for one of its fixed values, as in JSON; empty if it has none.
pub fn word(value: impl Serialize) -> String {
    let value = serde_json::to_value(value).ok();
    value.as_ref().and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
}

/// Reasons for waiting: the fixed words of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    WaitingForNode,
    WaitingForCertificate,
    WaitingForJoin,
    DialBackFailed,
    CatchingUp,
    QuorumAtRisk,
    LastManager,
    MembershipBusy,
    ConfChangeSlow,
    TransferringLeadership,
    #[serde(rename = "removing_seat")]
    RemovingMember,
    RaftDataMissing,
    RaftDataDamaged,
    /// Two processes use the node's identity.
    DuplicateIdentity,
    /// The node reports another name than its record has.
    ReportedNameDiffers,
    /// The node's connection is gone, but not enough heartbeats were missed to call it down.
    NoContact,
    /// The manager needs a snapshot of the state and did not take the last one.
    SnapshotNotTaken,
    /// The manager's state differs from the leader's.
    StateDiverged,
}

/// The desired outcome of a pending change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wants {
    Manager,
    Worker,
    Removed,
}

/// A condition of a node, with the reason, its start, and the next retry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    pub reason: WaitReason,
    pub message: String,
    pub since: WallTime,
    pub retry_at: Option<WallTime>,
}

/// One pending role change or removal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingView {
    pub node: NodeId,
    pub name: Name,
    pub wants: Wants,
    pub reason: WaitReason,
    pub message: String,
    pub since: WallTime,
    pub retry_at: Option<WallTime>,
}

/// The Raft part of a node, for managers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeManagerView {
    pub raft_id: RaftId,
    pub leader: bool,
    pub reachable: bool,
}

/// The certificate part of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateView {
    pub role: Option<Role>,
    pub state: CertificateState,
    pub serial: Option<String>,
    pub not_after: Option<WallTime>,
}

/// The answer to [`NodeWatch`](crate::wire::Request::NodeWatch).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeWatched {
    /// Stands for what the answering process had applied of the node; the next request gives it back.
    pub seen: u64,
    pub node: NodeView,
}

/// NODE of the contract.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    pub id: NodeId,
    pub name: Name,
    pub addr: String,
    pub release: String,
    pub labels: BTreeMap<String, String>,
    /// Labels for which this view has no room.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub labels_left_out: usize,
    pub desired_role: Role,
    pub role: Role,
    pub state: Liveness,
    pub state_since: WallTime,
    pub stale: bool,
    pub membership: Membership,
    pub manager: Option<NodeManagerView>,
    pub certificate: CertificateView,
    pub conditions: Vec<Condition>,
    pub generation: Generation,
    pub revision: Revision,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// `muster node ls`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeListView {
    pub revision: Revision,
    pub stale: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_of: Option<WallTime>,
    pub items: Vec<NodeView>,
}

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
}

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

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterView {
    pub id: String,
    pub name: String,
    pub incarnation: u64,
    pub feature_level: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelfView {
    pub id: NodeId,
    pub name: Name,
    pub role: Role,
    /// Why this node cannot serve, if so: `blocked`, `removed`, `raft_data_missing`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaftView {
    pub term: Term,
    pub leader: Option<NodeId>,
    pub commit: Revision,
    pub applied: Revision,
    pub voters: Vec<NodeId>,
    pub learners: Vec<NodeId>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuorumView {
    pub needed: usize,
    pub reachable: usize,
    /// Names of the voters that do not answer.
    pub missing: Vec<Name>,
}

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

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaftMemberView {
    pub node: NodeId,
    pub raft_id: RaftId,
    pub addr: String,
    pub role: Membership,
    #[serde(rename = "match")]
    pub matched: u64,
    pub reachable: bool,
}

/// What the role manager publishes for the API: all pending changes, and each node's conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleView {
    /// The replicated state from which this was derived. A request is answered only once this has caught up with it.
    pub revision: Revision,
    pub pending: Vec<PendingView>,
    pub conditions: BTreeMap<NodeId, Vec<Condition>>,
    /// The pending nodes for which `--wait` waits. A node that is down and has no step left is pending with
    /// `waiting_for_node`, but does not block `--wait`.
    pub holding: BTreeSet<NodeId>,
    /// How long changes settled by this leader were pending, by desired outcome.
    pub settled: BTreeMap<Wants, SettleTimes>,
}

/// The upper bounds of [`SettleTimes`], in milliseconds; longer times are counted too. A healthy node settles within the first
/// ones; a node that is off takes as long as it is off.
pub const SETTLE_BOUNDS_MS: [u64; 12] =
    [20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 30_000, 300_000, 3_600_000, 86_400_000];

/// How long role changes and removals were pending before they were settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettleTimes {
    /// By bound; the last are those above all bounds.
    pub counts: [u64; SETTLE_BOUNDS_MS.len() + 1],
    pub sum_ms: u64,
}

impl SettleTimes {
    /// Counts one settled change that took this many milliseconds.
    pub fn add(&mut self, ms: u64) {
        self.counts[SETTLE_BOUNDS_MS.iter().take_while(|bound| ms > **bound).count()] += 1;
        self.sum_ms = self.sum_ms.saturating_add(ms);
    }
    /// The number of settled changes.
    pub fn settled(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// A lease, as `muster lease get` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseView {
    pub namespace: String,
    pub name: String,
    /// The last one, if it has expired.
    pub holder: Option<String>,
    pub expired: bool,
    pub fencing_token: FencingToken,
    pub transitions: i32,
    pub acquired_at: Option<WallTime>,
    /// The last renewal in the log; native sessions renew without one.
    pub renewed_at: Option<WallTime>,
    pub lease_duration_ms: Option<u64>,
    /// By the leader's clock; absent if it is not held.
    pub expires_in_ms: Option<u64>,
    pub strategy: Option<String>,
    pub preferred_holder: Option<String>,
    pub revision: Revision,
}

impl LeaseView {
    /// The view of a lease; `None` for an object of another kind.
    pub fn of(object: &Object, expires_in_ms: Option<u64>) -> Option<Self> {
        let Lease { spec, holding } = object.lease()?;
        let wall = |at: Option<MicroTime>| at.map(|at| WallTime(at.0.div_euclid(1000)));
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        Some(Self {
            namespace: object.namespace.clone(),
            name: object.name.clone(),
            holder: spec.held_by().map(str::to_owned),
            expired: holding.expired,
            fencing_token: holding.token,
            transitions: spec.transitions.unwrap_or(0),
            acquired_at: wall(spec.acquired),
            renewed_at: wall(spec.renewed),
            lease_duration_ms: spec.duration_ms,
            expires_in_ms: expires_in_ms.filter(|_| spec.held_by().is_some() && !holding.expired),
            strategy: given(&spec.strategy),
            preferred_holder: given(&spec.preferred_holder),
            revision: object.meta.revision,
        })
    }
}
