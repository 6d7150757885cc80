//! What the API needs of its process. The manager half comes and goes: its ports are a level that is looked at anew
//! for each request.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_audit::AuditLog;
use muster_gateway::Dialer;
use muster_kernel::{Recipient, Tree};
use muster_messages::protocol::{
    CertAuthorityMsg, DispatcherMsg, ElectionsMsg, MeshMsg, RaftMemberMsg, RoleManagerMsg, SessionsMsg,
};
use muster_messages::{Name, NodeDoubts, NodeId, Principal, Replica, Role, RoleView};
use muster_raft_member::ObjectFeed;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::leader::LeaderSearch;

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
    /// Opens a restored cluster to others, on disk as well. False: it was open. Blocks.
    pub open_admission: Arc<dyn Fn() -> Result<bool, String> + Send + Sync>,
    /// `[debug] crash = true`.
    pub crash_allowed: bool,
    pub audit: AuditLog,
    pub limits: ApiLimits,
}

/// What requests may cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiLimits {
    /// The longest a request may take, whatever its caller says: it holds a place among the bounded requests.
    pub longest: Duration,
    /// Requests in progress in one process. Chosen so that their memory stays in the tens of megabytes; long answers count
    /// by their callers, until they are read.
    pub in_progress: u64,
    /// Watch streams open in one process, a quarter of them one caller's; each may hold a portion or two of lines.
    pub watches: u64,
    /// Requests in progress on one native connection; the next one is read when one of them is answered.
    pub in_flight: usize,
    /// Bytes of one request, an HTTP body or a frame on `muster-api/1`. Some may be larger: see `definitions`,
    /// `objects` and `frame`.
    pub body: usize,
    /// Connections to the admin socket; further ones wait.
    pub socket_connections: usize,
    /// The namespaces in which every node may write leases, locks and config maps, `*` for all; its own is one in any case.
    pub node_namespaces: Vec<String>,
}

impl Default for ApiLimits {
    fn default() -> Self {
        Self {
            longest: Duration::from_secs(120),
            in_progress: 16_384,
            watches: 4096,
            in_flight: 256,
            body: 64 * 1024,
            socket_connections: 512,
            // Where `muster elect` on a worker's socket goes.
            node_namespaces: vec!["default".to_owned()],
        }
    }
}

/// A definition of a reconciler with all its objects, which has 512 KiB, as it is written, and what is around it.
const DEFINITIONS: usize = 640 * 1024;
/// An object of the largest size that is kept, 256 KiB, and half as much again for how it is spelled.
const OBJECTS: usize = 384 * 1024;
/// What a command wrote, at the end of the report of its runner.
const OUTPUT: usize = 64 * 1024;
/// What is around the output in a report, or around a body that a worker passes on: its path above all.
const AROUND: usize = 32 * 1024;

impl ApiLimits {
    /// Bytes of one request that brings definitions or an object. Operators only: they have few connections.
    pub(crate) fn definitions(&self) -> usize {
        self.body.max(DEFINITIONS)
    }
    /// Bytes of one request that writes a config map or the like. Callers with an identity only.
    pub(crate) fn objects(&self) -> usize {
        self.body.max(OBJECTS)
    }
    /// Bytes of one frame of this caller on `muster-api/1`. It is kept while it arrives, and there may be many connections: far
    /// less than the wire's limit.
    pub(crate) fn frame(&self, caller: &Principal) -> usize {
        match caller {
            Principal::Operator | Principal::Admin(_) => self.definitions(),
            Principal::Node(_) => self.body.max(OUTPUT).saturating_add(AROUND),
            Principal::User(_)
            | Principal::Bearer { .. }
            | Principal::Reader(_)
            | Principal::Anonymous
            | Principal::Cluster => self.body,
        }
    }
}

/// The manager half.
pub struct ManagerPorts {
    pub node: NodeId,
    pub replica: watch::Receiver<Arc<Replica>>,
    /// What happens to leases and the other objects, as this member applies it.
    pub feed: ObjectFeed,
    pub raft: Recipient<RaftMemberMsg>,
    pub mesh: Recipient<MeshMsg>,
    pub sessions: Recipient<SessionsMsg>,
    /// The managers with a live mesh session.
    pub peers: Arc<dyn Fn() -> BTreeSet<NodeId> + Send + Sync>,
    /// The actors of the leader's subtree; their mailboxes answer `Down` while this member does not lead.
    pub leader: LeaderPorts,
}

impl ManagerPorts {
    /// The way to the leader for one request.
    pub fn leader_search(&self, deadline: Instant) -> LeaderSearch {
        LeaderSearch::new(self.node, self.replica.clone(), deadline)
    }
}

/// The leader's actors.
#[derive(Clone)]
pub struct LeaderPorts {
    pub roles: Recipient<RoleManagerMsg>,
    pub authority: Recipient<CertAuthorityMsg>,
    pub dispatcher: Recipient<DispatcherMsg>,
    pub elections: Recipient<ElectionsMsg>,
    /// What is pending, as the role manager last published it.
    pub view: watch::Receiver<Arc<RoleView>>,
    /// What the leader doubts of nodes.
    pub doubts: watch::Receiver<Arc<NodeDoubts>>,
}
