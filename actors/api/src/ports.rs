//! What the API needs of its process. The manager runtime starts and stops: its ports are a watched value, read for
//! each request.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_audit::AuditLog;
use muster_gateway::Dialer;
use muster_kernel::{Recipient, Tree};
use muster_messages::protocol::{
    AutopilotMsg, CertAuthorityMsg, DispatcherMsg, ElectionsMsg, PeerAnswer, RaftMemberMsg, RoleManagerMsg,
    RootRotationMsg, SessionsMsg,
};
use muster_messages::wire::{PeerCall, RunLogAsk, RunLogPart};
use muster_messages::{
    ErrorBody, LockedView, Name, NodeDoubts, NodeId, Principal, QuorumView, Replica, Revision, Role, RoleView, Secret,
    Trouble, UnlockedView,
};
use muster_raft_member::ObjectFeed;
use tokio::sync::watch;

use crate::core::Source;

/// What this process knows about itself.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    pub id: NodeId,
    pub name: Name,
    /// The role in its certificate.
    pub role: Role,
    /// `host:port` of known managers.
    pub managers: Vec<String>,
    pub cluster: String,
    pub root_pem: String,
    /// Why it cannot do its work, if so.
    pub trouble: Option<Trouble>,
}

/// Everything the API is wired to.
#[derive(Clone)]
pub struct ApiPorts {
    pub facts: Arc<dyn Fn() -> NodeFacts + Send + Sync>,
    /// `None` while this node has no manager runtime.
    pub manager: watch::Receiver<Option<Arc<ManagerPorts>>>,
    pub tree: Tree,
    pub dialer: Dialer,
    /// Opens a restored cluster to others, on disk as well. False: it was open already. Blocks.
    pub open_admission: Arc<dyn Fn() -> Result<bool, String> + Send + Sync>,
    /// `[debug] crash = true`.
    pub crash_allowed: bool,
    pub audit: AuditLog,
    pub limits: ApiLimits,
    pub metrics: RenderMetrics,
    /// Which workloads the process with this pid is, as JSON. `None`: this daemon serves no workloads. Blocks.
    pub explain_workloads: Option<ExplainWorkloads>,
    /// For how long this node signs nodes' certificates while it leads.
    pub certificate_lifetime: Option<Duration>,
    /// `None`: this process runs no commands.
    pub run_logs: Option<Arc<dyn RunLogSource>>,
    /// `Some`: this process waits for its unlock key, and answers only what concerns that.
    pub locked: Option<Arc<dyn LockedDaemon>>,
}

/// Renders this process's metrics in the format that an `Accept` header prefers. Dropped: nothing waits for the answer.
pub type RenderMetrics = Arc<dyn Fn(String) -> BoxFuture<'static, Result<RenderedMetrics, ErrorBody>> + Send + Sync>;

/// Metrics as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedMetrics {
    pub media_type: &'static str,
    pub text: String,
}

/// Explains which workloads' identities a local process gets, and why not the others.
pub type ExplainWorkloads = Arc<dyn Fn(u32) -> Result<String, ErrorBody> + Send + Sync>;

/// The output of this node's runs of reconcilers, as far as it is kept.
pub trait RunLogSource: Send + Sync {
    fn page(self: Arc<Self>, ask: RunLogAsk) -> BoxFuture<'static, Result<RunLogPart, ErrorBody>>;
}

/// A daemon that waits for its unlock key.
pub trait LockedDaemon: Send + Sync {
    fn status(&self) -> LockedView;
    /// `version`: which key it is, if the caller knows. Blocks.
    fn unlock(&self, key: &Secret, version: Option<Revision>) -> Result<UnlockedView, ErrorBody>;
}

/// Limits on the cost of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiLimits {
    /// The longest time that a request may take, whatever its caller states: it holds one of the bounded permits.
    pub longest: Duration,
    /// Requests in progress in one process. Chosen so that their memory stays in the tens of megabytes; long answers
    /// count against their callers until they are read.
    pub in_progress: u64,
    /// Watch streams open in one process, at most a quarter of them by one caller; each may hold a batch or two of
    /// lines.
    pub watches: u64,
    /// Requests in progress on one native connection; the next one is read when one of them is answered.
    pub in_flight: usize,
    /// Bytes of one request, an HTTP body or a frame on `muster-api/1`. Some may be larger: see `definitions`,
    /// `objects` and `frame`.
    pub body: usize,
    /// Connections to the admin socket; further ones wait.
    pub socket_connections: usize,
    /// The namespaces in which every node may write leases, locks and config maps, `*` for all. Its own is always
    /// included.
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
            // The namespace that `muster elect` on a worker's socket uses.
            node_namespaces: vec!["default".to_owned()],
        }
    }
}

/// A reconciler's definition as written, with all its objects, which may have 512 KiB, and what surrounds it.
const MAX_DEFINITIONS_BYTES: usize = 640 * 1024;
/// The largest object that is stored, 256 KiB, and half as much again for its spelling.
const MAX_OBJECT_BODY_BYTES: usize = 384 * 1024;
/// The output of a command, at the end of its runner's report.
const MAX_REPORT_OUTPUT_BYTES: usize = 64 * 1024;
/// What surrounds the output in a report, or a body that a worker forwards: mostly its path.
const ENVELOPE_BYTES: usize = 32 * 1024;

impl ApiLimits {
    /// Bytes of one request that supplies definitions or an object. For operators only, which have few connections.
    pub(crate) fn definitions(&self) -> usize {
        self.body.max(MAX_DEFINITIONS_BYTES)
    }
    /// Bytes of one request that writes a config map or similar. For callers with an identity only.
    pub(crate) fn objects(&self) -> usize {
        self.body.max(MAX_OBJECT_BODY_BYTES)
    }
    /// Bytes of one frame of this caller on `muster-api/1`. A frame is buffered while it arrives, and there may be many
    /// connections: far less than the wire's limit.
    pub(crate) fn frame(&self, caller: &Principal) -> usize {
        match caller {
            Principal::Operator | Principal::Admin(_) => self.definitions(),
            Principal::Node(_) => self.body.max(MAX_REPORT_OUTPUT_BYTES).saturating_add(ENVELOPE_BYTES),
            Principal::User(_)
            | Principal::Bearer { .. }
            | Principal::Reader(_)
            | Principal::Anonymous
            | Principal::Cluster
            | Principal::Workload(_) => self.body,
        }
    }
}

/// Calls another manager, which has this long to answer: `timed_out`, or `unreachable`, with `not_sent` if it was not sent.
/// Dropped: nothing waits for the answer, and the call may still be carried out.
pub type PeerCalls = Arc<dyn Fn(NodeId, Duration, PeerCall) -> PeerAnswer + Send + Sync>;

/// The manager runtime.
pub struct ManagerPorts {
    pub node: NodeId,
    /// After each applied write.
    pub replica: watch::Receiver<Arc<Replica>>,
    /// The same, but some 100 ms later for commands about objects alone: for waits that leases do not concern.
    pub cluster_replica: watch::Receiver<Arc<Replica>>,
    /// Changes of leases and other objects, as this member applies them.
    pub feed: ObjectFeed,
    pub raft: Recipient<RaftMemberMsg>,
    /// Calls another manager over the mesh.
    pub call: PeerCalls,
    pub sessions: Recipient<SessionsMsg>,
    /// The managers with a live mesh session.
    pub peers: Arc<dyn Fn() -> BTreeSet<NodeId> + Send + Sync>,
    /// The actors of the leader's subtree; their mailboxes answer `Down` unless this member leads.
    pub leader: LeaderPorts,
}

impl ManagerPorts {
    /// How many voters this manager reaches, and which it does not.
    pub fn quorum(&self) -> QuorumView {
        let replica = self.replica.borrow().clone();
        self.source(&replica).quorum()
    }

    /// What answers are built from: this replica, and what only this manager knows.
    pub(crate) fn source<'a>(&self, replica: &'a Replica) -> Source<'a> {
        let leading = replica.raft.leading;
        Source {
            replica,
            roles: if leading { self.leader.view.borrow().clone() } else { Arc::default() },
            this: self.node,
            peers: (self.peers)(),
            doubts: if leading { self.leader.doubts.borrow().clone() } else { Arc::default() },
            stale: None,
            certificate_lifetime: None,
        }
    }
}

/// The leader's actors.
#[derive(Clone)]
pub struct LeaderPorts {
    pub roles: Recipient<RoleManagerMsg>,
    pub authority: Recipient<CertAuthorityMsg>,
    pub rotation: Recipient<RootRotationMsg>,
    pub autopilot: Recipient<AutopilotMsg>,
    pub dispatcher: Recipient<DispatcherMsg>,
    pub elections: Recipient<ElectionsMsg>,
    /// What is pending, as the role manager last published it.
    pub view: watch::Receiver<Arc<RoleView>>,
    /// Nodes that the leader has no confirmation of.
    pub doubts: watch::Receiver<Arc<NodeDoubts>>,
}
