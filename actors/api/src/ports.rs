//! What the API needs of its process. The manager half comes and goes: its ports are a level that is looked at anew
//! for each request.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_gateway::Dialer;
use muster_kernel::{Recipient, Tree};
use muster_messages::protocol::{CertAuthorityMsg, DispatcherMsg, MeshMsg, RaftMemberMsg, RoleManagerMsg, SessionsMsg};
use muster_messages::{Name, NodeId, Replica, Role, RoleView};
use tokio::sync::watch;

/// What this process knows of itself.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    pub id: NodeId,
    pub name: Name,
    /// The role its certificate says.
    pub role: Role,
    /// `host:port` of managers it knows.
    pub managers: Vec<String>,
    pub cluster: String,
    pub root_pem: String,
    /// Why it cannot do its work, if so.
    pub trouble: Option<String>,
}

/// Everything the API is wired to.
#[derive(Clone)]
pub struct ApiPorts {
    pub facts: Arc<dyn Fn() -> NodeFacts + Send + Sync>,
    /// `None` while this node has no manager half.
    pub manager: watch::Receiver<Option<Arc<ManagerPorts>>>,
    pub tree: Tree,
    pub dialer: Dialer,
    /// `[debug] crash = true`.
    pub crash_allowed: bool,
}

/// The manager half.
pub struct ManagerPorts {
    pub node: NodeId,
    pub replica: watch::Receiver<Arc<Replica>>,
    pub raft: Recipient<RaftMemberMsg>,
    pub mesh: Recipient<MeshMsg>,
    pub sessions: Recipient<SessionsMsg>,
    /// The managers with a live mesh session.
    pub peers: Arc<dyn Fn() -> BTreeSet<NodeId> + Send + Sync>,
    /// The actors of the leader's subtree; their mailboxes answer `Down` while this member does not lead.
    pub leader: LeaderPorts,
}

/// The leader's actors.
#[derive(Clone)]
pub struct LeaderPorts {
    pub roles: Recipient<RoleManagerMsg>,
    pub authority: Recipient<CertAuthorityMsg>,
    pub dispatcher: Recipient<DispatcherMsg>,
    /// What is pending, as the role manager last published it.
    pub view: watch::Receiver<Arc<RoleView>>,
    /// Nodes whose recorded liveness nobody has confirmed to this leader yet.
    pub stale: watch::Receiver<Arc<BTreeSet<NodeId>>>,
}
