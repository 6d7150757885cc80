//! How the mesh is put into a process: what it is connected to, and what others get of it.

use std::sync::Arc;
use std::time::Duration;

use muster_gateway::Services;
use muster_kernel::{Address, Recipient, Slot, Spec};
use muster_messages::protocol::{AgentMsg, IncomingCall, NodeCredentials, RaftMemberMsg};
use muster_messages::wire::Starts;
use muster_messages::{NodeId, Replica};
use tokio::sync::{mpsc, watch};

use crate::dial::Dial;
use crate::handle::{MeshHandle, Peers};
use crate::mesh::MeshShell;
use crate::register::Book;
use crate::stream::IDLE;

/// Messages that wait for the mesh: sessions come and go, calls go to the peers directly.
const MAILBOX: usize = 1024;

/// What may differ between a cluster and a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshConfig {
    /// Silence that ends a session.
    pub idle: Duration,
    /// The largest snapshot that is taken from a peer.
    pub snapshot_limit: u64,
}

impl Default for MeshConfig {
    fn default() -> Self {
        Self { idle: IDLE, snapshot_limit: 256 << 20 }
    }
}

/// What the mesh is connected to.
#[derive(Clone)]
pub struct MeshWiring {
    /// This process among the starts of its data directory.
    pub starts: Starts,
    /// `host:port` where others dial it.
    pub advertise: String,
    /// Who this node is; renewals included.
    pub credentials: watch::Receiver<Arc<NodeCredentials>>,
    pub replica: watch::Receiver<Arc<Replica>>,
    pub raft: Recipient<RaftMemberMsg>,
    /// Where calls of other managers are answered.
    pub calls: mpsc::Sender<IncomingCall>,
    /// Hears `RefusedByPeer`.
    pub agent: Recipient<AgentMsg>,
    pub dialer: Arc<dyn Dial>,
    /// Where the mesh registers for its connections.
    pub services: Services,
    /// `host:port` where some manager may be found when no member is where it should be.
    pub hints: Vec<String>,
}

/// The mesh, before it runs: made once, by whoever wires the tree.
pub struct Mesh {
    config: MeshConfig,
    wiring: MeshWiring,
    handle: MeshHandle,
}

impl Mesh {
    pub fn new(config: MeshConfig, wiring: MeshWiring) -> Self {
        let own = wiring.credentials.borrow().identity.node();
        let handle = MeshHandle {
            mesh: Address::new(MAILBOX),
            peers: Peers::default(),
            raft: wiring.raft.clone(),
            seats: Slot::new(),
            book: Book::new(own.map_or(NodeId::from_entropy(0), |(node, _)| node)),
        };
        Self { config, wiring, handle }
    }
    /// What everyone else holds.
    pub fn handle(&self) -> MeshHandle {
        self.handle.clone()
    }
    /// The child `mesh` of the manager half.
    pub fn spec(&self) -> Spec {
        let (config, wiring, handle) = (self.config.clone(), self.wiring.clone(), self.handle.clone());
        Spec::actor("mesh", self.handle.mesh.clone(), move || {
            Ok(MeshShell::new(config.clone(), wiring.clone(), handle.clone()))
        })
        .with_children()
    }
}
