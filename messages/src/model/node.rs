//! A node and the four facts about its role.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Generation, Name, NodeId, Principal, RaftId, Revision, WallTime};

/// The roles of a node. A manager runs the manager runtime beside its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Worker,
    Manager,
}
impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Worker => "worker",
            Role::Manager => "manager",
        })
    }
}
impl std::str::FromStr for Role {
    type Err = super::BadId;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "worker" => Ok(Role::Worker),
            "manager" => Ok(Role::Manager),
            _ => Err(super::BadId { what: "a role", rule: "`worker` or `manager`" }),
        }
    }
}

impl Role {
    /// The membership of a node of this role when no role change is in progress.
    pub fn membership(self) -> Membership {
        match self {
            Role::Manager => Membership::Voter,
            Role::Worker => Membership::None,
        }
    }
}

/// A node's membership in the Raft configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Membership {
    None,
    Learner,
    Voter,
}

/// Whether the cluster receives a node's heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Liveness {
    /// No heartbeat since it was created.
    Unknown,
    Ready,
    /// Three heartbeats missed.
    Down,
}

/// The state of a node's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CertificateState {
    /// In force, for the granted role.
    Issued,
    /// The role changed; the node has no certificate for it yet.
    Pending,
    /// The cluster has requested a renewal.
    Rotate,
    /// The last signing attempt failed.
    Failed,
}

/// The recorded certificate of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateRecord {
    /// The role for which it is signed.
    pub role: Role,
    /// Lower-case hexadecimal.
    pub serial: String,
    /// The revision at which `role` was written, as carried in the certificate. `None` only in the founder's first certificate.
    pub granted: Option<Revision>,
    pub not_after: WallTime,
    /// `Pending` is derived (`role != node.role`), never stored.
    pub state: CertificateState,
}

/// A node's removal, accepted and in progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    pub by: Principal,
    pub forced: bool,
    pub at: WallTime,
}

/// A node's record in the replicated state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    pub id: NodeId,
    pub name: Name,
    /// `host:port` of its TLS port.
    pub addr: String,
    /// The release that it reports, `X.Y.Z`.
    pub release: String,
    /// From [`IDENTITY_LEVEL`](super::IDENTITY_LEVEL) on only the operator's; below, the reported ones are among them.
    pub labels: BTreeMap<String, String>,
    /// The role that the operator requested.
    pub desired_role: Role,
    /// The granted role; the certificate authority signs only this one.
    pub role: Role,
    /// The revision at which `role` was last written. Certificates carry it.
    pub granted: Revision,
    pub removing: Option<Removal>,
    pub certificate: Option<CertificateRecord>,
    /// The latest `not_after` ever issued to this id: a block must outlive it.
    pub last_not_after: WallTime,
    pub liveness: Liveness,
    pub liveness_since: WallTime,
    pub created_at: WallTime,
    pub generation: Generation,
    pub revision: Revision,
}

impl NodeRecord {
    /// A new node: its role is the desired one, and nothing else is known.
    pub fn new(id: NodeId, name: Name, role: Role, at: WallTime) -> Self {
        Self {
            id,
            name,
            addr: String::new(),
            release: String::new(),
            labels: BTreeMap::new(),
            desired_role: role,
            role,
            granted: Revision(0),
            removing: None,
            certificate: None,
            last_not_after: at,
            liveness: Liveness::Unknown,
            liveness_since: at,
            created_at: at,
            generation: Generation(1),
            revision: Revision(0),
        }
    }
    /// Whether its keyring may need an unlock key: it is a manager, or was one and has no worker's certificate yet.
    pub fn may_be_sealed(&self) -> bool {
        self.role == Role::Manager || self.certificate.as_ref().is_some_and(|newest| newest.role == Role::Manager)
    }
    /// The certificate's state for users: a certificate for another role is pending, whatever was recorded.
    pub fn certificate_state(&self) -> CertificateState {
        match &self.certificate {
            Some(c) if c.role == self.role && c.granted == Some(self.granted) => c.state,
            Some(c) if c.state == CertificateState::Failed => CertificateState::Failed,
            _ => CertificateState::Pending,
        }
    }
}

/// A node's last report about itself, without what the operator set. From [`IDENTITY_LEVEL`](super::IDENTITY_LEVEL) on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedNode {
    /// The name that the node reports. The record's name is the operator's.
    pub name: Name,
    /// When it first reported this name.
    pub named_at: WallTime,
    pub labels: BTreeMap<String, String>,
}

/// One member of the Raft configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub node: NodeId,
    pub raft_id: RaftId,
    /// The address at which the other managers dial it.
    pub addr: String,
    pub voter: bool,
}

/// One of the processes that use one node's identity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeProcess {
    /// Random per process, in hexadecimal.
    pub instance: String,
    /// The `host:port` that it advertises.
    pub addr: String,
    /// The remote address of its connection.
    pub remote: String,
}

impl fmt::Display for NodeProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (from {}, process {})", self.addr, self.remote, self.instance)
    }
}

/// Two or more processes that use one node's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duplicated {
    /// When the leader first saw it.
    pub since: WallTime,
    pub processes: Vec<NodeProcess>,
}

impl Duplicated {
    /// The processes, for a sentence.
    pub fn named(&self) -> String {
        self.processes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
    }
}

/// Nodes whose state is uncertain to the leader: a watched value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDoubts {
    /// Their recorded liveness was not confirmed to this leader yet: shown as stale.
    pub unconfirmed: BTreeSet<NodeId>,
    /// A process on a copy of their data directory runs beside them.
    pub duplicates: BTreeMap<NodeId, Duplicated>,
    /// Their connection is gone since then; they are not down yet.
    pub no_contact: BTreeMap<NodeId, WallTime>,
}
