//! Events of the cluster, in order, for people and scripts.

use serde::{Deserialize, Serialize};

use super::{NodeId, Principal, Revision, WallTime};

/// The subject matter of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    Cluster,
    Node,
    Role,
    Certificate,
    Membership,
    Liveness,
    Token,
    User,
    Lease,
    Gate,
    /// From feature level 3 on.
    Workload,
}

/// One change, as `muster events` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    pub revision: Revision,
    pub at: WallTime,
    pub kind: EventKind,
    pub node: Option<NodeId>,
    pub by: Principal,
    pub reason: String,
    pub before: Option<String>,
    pub after: Option<String>,
}
