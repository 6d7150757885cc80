//! Nodes, and what requests about one of them are answered with.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::word::words;
use crate::model::{
    CertificateState, Generation, Liveness, Membership, Name, NodeId, RaftId, Revision, Role, WallTime, Word,
};

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
    /// The node is in maintenance.
    Drained,
    /// A reason that only a newer release knows: a list that contains it can still be read.
    #[serde(other)]
    Other,
}

/// The desired outcome of a pending change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wants {
    Manager,
    Worker,
    Removed,
}

words! {
    /// What a condition of a node is about.
    ConditionKind {
        /// The role that was requested is not held yet.
        RoleChange => "role_change",
        Removal => "removal",
        DuplicateIdentity => "duplicate_identity",
        /// Its connection is lost.
        Contact => "contact",
        /// It is in maintenance.
        Drained => "drained",
        /// It reports another name than its record has.
        Name => "name",
        SnapshotNotTaken => "snapshot_not_taken",
        StateDiverged => "state_diverged",
    }
}

/// A condition of a node, with the reason, its start, and the next retry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: Word<ConditionKind>,
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

/// An accepted role change: `muster node promote`, `muster node demote`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleChangeView {
    pub node: NodeId,
    pub name: Name,
    /// The `host:port` of the node. Absent in the answers of earlier releases.
    pub addr: Option<String>,
    /// When the node joined. Absent in the answers of earlier releases.
    pub member_since: Option<WallTime>,
    /// The granted role, as of the request. Absent in the answers of earlier releases.
    pub role: Option<Role>,
    /// The role requested. Absent in the answers of earlier releases.
    pub desired_role: Option<Role>,
    /// False: the node had this desired role already.
    pub changed: bool,
}

/// A completed removal: `muster node rm`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRemovedView {
    /// The node's id; in the answer to a repeated request what that request called the node.
    pub node: String,
    /// The node's name; in the answer to a repeated request what that request called the node.
    pub name: String,
    /// The `host:port` of the node. Absent in the answer to a repeated request: its record is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addr: Option<String>,
    /// When the node joined. Absent in the answer to a repeated request: its record is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member_since: Option<WallTime>,
    /// Always true.
    pub removed: bool,
    /// Whether it is or was a manager, as far as its certificates on record say: then it has known the key of the root. Absent in the
    /// answer to a repeated request, and in those of earlier releases: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub knew_root_key: Option<bool>,
    /// No certificate of a workload that the node may hold is valid after this time. Absent if the cluster never had a workload, and in
    /// the answer to a repeated request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workloads_until: Option<WallTime>,
}

/// The answer to [`NodeMayStop`](crate::wire::Request::NodeMayStop).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMayStopView {
    pub node: NodeId,
    pub name: Name,
    pub role: Role,
    /// Always: otherwise the answer is an error with the reason.
    pub may_stop: bool,
    /// It leads, and hands over when it is stopped.
    pub leader: bool,
    /// How many other managers answered, and how many must.
    pub answering: usize,
    pub needed: usize,
}

/// `muster node rename`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRenamedView {
    pub node: NodeId,
    pub name: Name,
    /// The name before.
    pub before: Name,
    /// False: the node had this name already.
    pub changed: bool,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::Words;

    /// Scripts compare these words, and a newer manager may send one that this build does not know.
    #[test]
    fn type_of_a_condition_is_its_word() {
        let read = |kind: &str| {
            let json =
                json!({"type": kind, "reason": "drained", "message": "m", "since": WallTime(7), "retry_at": null});
            let condition: Condition = serde_json::from_value(json.clone()).unwrap();
            assert_eq!(serde_json::to_value(&condition).unwrap(), json, "unchanged when it is passed on");
            condition.kind
        };
        let words = ConditionKind::ALL.iter().map(|kind| kind.text());
        let contract = "role_change removal duplicate_identity contact drained name snapshot_not_taken state_diverged";
        assert_eq!(words.collect::<Vec<_>>().join(" "), contract);
        for kind in ConditionKind::ALL {
            assert_eq!(read(kind.text()), *kind);
        }
        assert_eq!(read("of_a_newer_release"), Word::Other("of_a_newer_release".to_owned()));
    }
}
