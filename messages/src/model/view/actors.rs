//! Views of actors from which metrics are made. An actor serialises its view from one of these types, and the metrics read it
//! by field.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::{NodeId, RaftId, RaftRole, Revision, Term, WallTime};

/// `node/api`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiView {
    pub connections: u64,
    pub in_progress: u64,
    pub answered: u64,
    pub refused: u64,
    pub overloaded: u64,
    pub events_dropped: u64,
    /// When this process last handed out a backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_backup_at: Option<WallTime>,
}

/// `node/manager/join`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinView {
    pub conversations: usize,
    pub roots: u64,
    pub joined: u64,
    pub refused: u64,
}

/// `node/manager/raft-member`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaftActorView {
    pub raft_id: Option<RaftId>,
    pub role: RaftRole,
    pub term: Term,
    pub leader: Option<NodeId>,
    pub leading: bool,
    /// How often a leader became known to this member.
    #[serde(default)]
    pub leader_changes: u64,
    pub commit: Revision,
    pub applied: Revision,
    pub log: LogSpanView,
    pub disk: RaftDiskView,
    pub in_flight: RaftInFlightView,
    pub snapshots: RaftSnapshotsView,
    /// By reason.
    pub dropped: BTreeMap<String, u64>,
    pub progress: Vec<RaftPeerView>,
}

/// The log in memory, and the snapshot before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogSpanView {
    pub first: u64,
    pub last: u64,
    pub snapshot: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaftDiskView {
    pub syncs: u64,
    pub renewals: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaftInFlightView {
    pub proposals: usize,
    pub reads: usize,
    pub disk_writes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaftSnapshotsView {
    pub taken: u64,
    pub sent: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaftPeerView {
    pub raft_id: RaftId,
    pub node: Option<NodeId>,
    pub voter: bool,
    #[serde(rename = "match")]
    pub matched: u64,
    pub acked_ago_ms: Option<u64>,
    pub in_snapshot: bool,
}

/// `node/manager/leader/elections`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElectionsView {
    pub term: Term,
    pub revision: Revision,
    /// Leases with a running expiry timer.
    pub leases: usize,
    /// Those whose holders have the least time left.
    pub soonest: Vec<ExpiringLeaseView>,
    pub waiting: usize,
    pub expiring: usize,
    pub renewed_per_second: u64,
    pub reads_per_second: u64,
    pub contests: usize,
    pub contests_unattended: usize,
    pub coordinated: CoordinationCounts,
    pub counters: LeaseCounts,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpiringLeaseView {
    pub namespace: String,
    pub name: String,
    pub expires_in_ms: u64,
}

/// Counts of all contended elections of one leadership, under Kubernetes' names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoordinationCounts {
    pub leader_changes_total: u64,
    pub leader_preemptions_total: u64,
    pub failures_total: u64,
    pub skew_preventions_total: u64,
    pub candidates_cleaned_up_total: u64,
}

/// Counts of the clock over all leases, in one leadership.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseCounts {
    #[serde(rename = "renewals_total")]
    pub renewed: u64,
    #[serde(rename = "renewals_lost_total")]
    pub lost: u64,
    /// Leases whose renewal was not confirmed.
    #[serde(rename = "renewals_unconfirmed_total")]
    pub unconfirmed: u64,
    /// Leases of renewals that were rejected because too many waited.
    #[serde(rename = "renewals_rejected_total")]
    pub rejected: u64,
    #[serde(rename = "reads_total")]
    pub reads: u64,
    #[serde(rename = "expired_total")]
    pub expired: u64,
    /// Proposals of expiries with another result.
    #[serde(rename = "expiries_failed_total")]
    pub expiries_failed: u64,
    /// How often this process was found to have been suspended.
    #[serde(rename = "pauses_total")]
    pub pauses: u64,
}

/// `node/manager/mesh`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshView {
    pub node: Option<NodeId>,
    pub member_id: Option<RaftId>,
    pub endpoint_pid: Option<u64>,
    pub peers: Vec<Value>,
    pub hints: Vec<String>,
    /// By reason.
    pub sessions_ended: BTreeMap<String, u64>,
    pub offences: Vec<Value>,
    pub endpoint: EndpointCounts,
    pub hellos_under_way: usize,
    pub identity: IdentitiesView,
}

/// What the RPC endpoint accepted and dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointCounts {
    pub packets: u64,
    pub calls: u64,
    pub chunks: u64,
    pub snapshots: u64,
    pub dropped: EndpointDrops,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointDrops {
    pub malformed: u64,
    pub unknown_tag: u64,
    /// Raft messages with another node's member id.
    pub foreign_member_id: u64,
    /// Raft messages with a member id that the session does not speak for, but that may have been or may become the peer's.
    pub unknown_member_id: u64,
    /// The raft member or the router did not accept it.
    pub busy: u64,
    pub spoiled: u64,
    /// Answers dropped because the peer does not read.
    pub unread: u64,
}

/// The process that a manager accepts for each other manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentitiesView {
    pub processes: Vec<Value>,
    pub duplicates: Vec<Value>,
    pub duplicates_refused: u64,
}
