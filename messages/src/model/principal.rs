//! Authenticated callers.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::word::words;
use super::{CertificatePin, ClusterId, Incarnation, Name, NodeId, Revision, Role, RootId, WallTime, WorkloadName};

/// The authenticated author of a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Principal {
    /// A node, by its certificate.
    Node(NodeId),
    /// A user of leases and reconcilers.
    User(Name),
    /// An operator's certificate.
    Admin(Name),
    /// The admin socket of a manager.
    Operator,
    /// No identity.
    Anonymous,
    /// The cluster itself: facts that its own actors find and record. No caller authenticates as it.
    Cluster,
    /// A user, by an access token, with that token's rights. From [`IDENTITY_LEVEL`](super::IDENTITY_LEVEL) on; below, a
    /// token stands for its user.
    Bearer { user: Name, token: String },
    /// A read-only operator: by its certificate, or by an access token with these rights. From
    /// [`IDENTITY_LEVEL`](super::IDENTITY_LEVEL) on.
    Reader(Name),
    /// A workload, by its certificate: it may do nothing here, and is named in refusals only.
    Workload(WorkloadName),
}
impl Principal {
    /// Whether it has all rights.
    pub fn is_operator(&self) -> bool {
        matches!(self, Principal::Operator | Principal::Admin(_))
    }
    /// The account to which per-caller limits apply: a user has one, however many tokens it has.
    pub fn account(&self) -> Principal {
        match self {
            Principal::Bearer { user, .. } => Principal::User(user.clone()),
            other => other.clone(),
        }
    }
}

words! {
    /// What kind of caller a [`Principal`] is, as views and the audit log name it.
    PrincipalKind {
        Node => "node",
        /// By its certificate, or by an access token.
        User => "user",
        /// An operator, by its certificate.
        Admin => "admin",
        /// The admin socket of a manager.
        Operator => "operator",
        Anonymous => "anonymous",
        /// The cluster itself.
        Cluster => "cluster",
        Reader => "reader",
        Workload => "workload",
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Principal::Node(id) => write!(f, "node {id}"),
            Principal::User(name) => write!(f, "user {name}"),
            Principal::Admin(name) => write!(f, "operator {name}"),
            Principal::Operator => f.write_str("the admin socket"),
            Principal::Anonymous => f.write_str("an unauthenticated caller"),
            Principal::Cluster => f.write_str("the cluster itself"),
            Principal::Bearer { user, token } => write!(f, "user {user} (token {token})"),
            Principal::Reader(name) => write!(f, "read-only operator {name}"),
            Principal::Workload(name) => write!(f, "workload {name}"),
        }
    }
}

/// The subject of a certificate, read only from its URI SAN: `spiffe://<cluster>/<kind>/<id>`, and
/// `spiffe://<cluster>/workload/<namespace>/<name>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Subject {
    Node {
        node: NodeId,
        role: Role,
    },
    User(Name),
    Admin(Name),
    Reader(Name),
    /// SPIFFE-3: it opens nothing of the cluster.
    Workload(WorkloadName),
}

/// A verified certificate, reduced to what decisions need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertIdentity {
    pub cluster: ClusterId,
    pub subject: Subject,
    /// Lower-case hexadecimal.
    pub serial: String,
    /// From the private extension: the revision at which the role was written.
    pub granted: Option<Revision>,
    /// From the private extension.
    pub incarnation: Incarnation,
    pub not_after: WallTime,
    /// `None` if it was not read from a certificate. Travels beside the identity: builds of feature level 2 know no pins.
    #[serde(skip)]
    pub pin: Option<CertificatePin>,
    /// The root that issued it, as this process found by verifying the chain. `None`: not looked for, because there was no
    /// rotation, or it was not presented to this process.
    #[serde(skip)]
    pub issuer: Option<RootId>,
}

impl CertIdentity {
    /// The principal that this certificate authenticates.
    pub fn principal(&self) -> Principal {
        match &self.subject {
            Subject::Node { node, .. } => Principal::Node(*node),
            Subject::User(name) => Principal::User(name.clone()),
            Subject::Admin(name) => Principal::Admin(name.clone()),
            Subject::Reader(name) => Principal::Reader(name.clone()),
            Subject::Workload(name) => Principal::Workload(name.clone()),
        }
    }
    /// The node and the role its certificate claims, if this is a node's certificate.
    pub fn node(&self) -> Option<(NodeId, Role)> {
        match self.subject {
            Subject::Node { node, role } => Some((node, role)),
            _ => None,
        }
    }
}
