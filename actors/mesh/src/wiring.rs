//! How the mesh is wired into a process: its connections to other actors, and the handle for its users.

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
use crate::register::BindingStore;
use crate::stream::IDLE_LIMIT;

/// Messages waiting for the mesh: sessions open and end; calls go directly to the peers.
const MAILBOX: usize = 1024;

/// What may differ between a cluster and a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshConfig {
    /// Silence that ends a session.
    pub idle: Duration,
    pub snapshot_limit: u64,
}

impl Default for MeshConfig {
    fn default() -> Self {
        Self { idle: IDLE_LIMIT, snapshot_limit: 256 << 20 }
    }
}

#[derive(Clone)]
pub struct MeshWiring {
    /// The starts of this data directory, up to this process.
    pub starts: Starts,
    /// `host:port` at which other managers dial it.
    pub advertise: String,
    /// This node's credentials, renewals included.
    pub credentials: watch::Receiver<Arc<NodeCredentials>>,
    pub replica: watch::Receiver<Arc<Replica>>,
    pub raft: Recipient<RaftMemberMsg>,
    pub calls: mpsc::Sender<IncomingCall>,
    /// Receives `RefusedByPeer`.
    pub agent: Recipient<AgentMsg>,
    pub dialer: Arc<dyn Dial>,
    pub services: Services,
    /// `host:port` addresses at which managers may be found when the members' own addresses fail.
    pub hints: Vec<String>,
}

/// The mesh before it runs; created once, where the tree is wired.
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
            member_set: Slot::new(),
            binding_store: BindingStore::new(own.map_or(NodeId::from_entropy(0), |(node, _)| node)),
        };
        Self { config, wiring, handle }
    }
    /// The handle for all users of the mesh.
    pub fn handle(&self) -> MeshHandle {
        self.handle.clone()
    }
    /// The child `mesh` of the manager runtime.
    pub fn spec(&self) -> Spec {
        let (config, wiring, handle) = (self.config.clone(), self.wiring.clone(), self.handle.clone());
        Spec::actor("mesh", self.handle.mesh.clone(), move || {
            Ok(MeshShell::new(&config, wiring.clone(), handle.clone()))
        })
        .with_children()
    }
}
