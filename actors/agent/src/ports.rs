//! What the code that wires the tree gives to the agent, and the watched values that it gets.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use muster_kernel::{AdminAction, Slot};
use muster_messages::protocol::NodeCredentials;
use muster_messages::wire::{AGENT_PROTOCOL, ActorsAsk, AgentHello};
use muster_messages::{ErrorBody, Name, Role, WorkloadView};
use tokio::sync::watch;

use crate::config::AgentConfig;
use crate::core::SessionStatus;
use crate::install::Credentials;
use crate::line::Dial;
use crate::memory::NodeMemory;
use crate::status::{ManagerWanted, NodeTrouble, WantedBecause};
use crate::workloads::PublishedWorkloads;

/// Answers a request about this process's actors. An admin action is carried out once the answer has been sent: it may end
/// what the line depends on.
pub type Inspector = Arc<dyn Fn(ActorsAsk) -> BoxFuture<'static, Result<Inspected, ErrorBody>> + Send + Sync>;

/// An answer, and the admin action that follows.
pub type Inspected = (String, Option<AdminAction>);

/// The agent's settings from the code that wires the tree.
pub struct AgentSetup {
    pub config: AgentConfig,
    pub memory: NodeMemory,
    /// Random per process: tells two processes with one identity apart.
    pub instance: u64,
    /// The process's credentials. Once the agent runs, only it replaces them.
    pub credentials: Arc<watch::Sender<Arc<NodeCredentials>>>,
    pub dial: Arc<dyn Dial>,
    pub inspector: Inspector,
    pub name: Name,
    /// `host:port`; an unspecified host is replaced by the one that the hosts of its sessions see.
    pub advertise: String,
    pub release: String,
    pub labels: BTreeMap<String, String>,
    /// Addresses given on the command line, tried beside the remembered ones.
    pub seeds: Vec<String>,
}

/// Made once, shared by every incarnation of the agent. Keep a clone to subscribe.
#[derive(Clone)]
pub struct AgentPorts {
    pub(crate) config: AgentConfig,
    pub(crate) memory: NodeMemory,
    pub(crate) credentials: Arc<watch::Sender<Arc<NodeCredentials>>>,
    pub(crate) in_force: Credentials,
    pub(crate) wanted: Arc<watch::Sender<ManagerWanted>>,
    pub(crate) trouble: Arc<watch::Sender<Option<NodeTrouble>>>,
    pub(crate) session: Arc<watch::Sender<Option<SessionStatus>>>,
    pub(crate) managers: Arc<watch::Sender<Vec<String>>>,
    pub(crate) workloads: PublishedWorkloads,
    pub(crate) dial: Arc<dyn Dial>,
    pub(crate) inspector: Inspector,
    pub(crate) hello: AgentHello,
    pub(crate) seeds: Vec<String>,
    /// The certificate that a peer called demoted: an agent that restarts must not start its manager runtime with it.
    pub(crate) demoted: Slot<String>,
}

impl AgentPorts {
    /// The watched values start from credentials and disk; the agent corrects them when it starts.
    pub fn new(setup: AgentSetup) -> Self {
        let setup_credentials = setup.credentials.borrow().clone();
        let role = setup_credentials.identity.node().map(|(_, role)| role);
        let because = match role {
            Some(Role::Manager) => WantedBecause::CertificateSaysManager,
            _ => WantedBecause::CertificateSaysWorker,
        };
        let hello = AgentHello {
            protocol: AGENT_PROTOCOL,
            instance: setup.instance,
            name: setup.name,
            advertise: setup.advertise,
            release: setup.release,
            labels: setup.labels,
        };
        Self {
            config: setup.config,
            in_force: Credentials::new(setup.memory.store().clone(), Arc::clone(&setup.credentials)),
            memory: setup.memory,
            credentials: setup.credentials,
            wanted: Arc::new(watch::Sender::new(ManagerWanted::new(because))),
            trouble: Arc::new(watch::Sender::new(None)),
            session: Arc::new(watch::Sender::new(None)),
            managers: Arc::default(),
            workloads: PublishedWorkloads::new(&setup_credentials),
            dial: setup.dial,
            inspector: setup.inspector,
            hello,
            seeds: setup.seeds,
            demoted: Slot::new(),
        }
    }
    /// Whether the manager runtime should run.
    pub fn wanted(&self) -> watch::Receiver<ManagerWanted> {
        self.wanted.subscribe()
    }
    /// Why this node cannot do its work, if so.
    pub fn trouble(&self) -> watch::Receiver<Option<NodeTrouble>> {
        self.trouble.subscribe()
    }
    /// The session in force: set once the host has shown its first view.
    pub fn session(&self) -> watch::Receiver<Option<SessionStatus>> {
        self.session.subscribe()
    }
    /// The addresses of the managers, of the newest view that the agent has accepted; before its first one, as they are on disk.
    pub fn managers(&self) -> watch::Receiver<Vec<String>> {
        self.managers.subscribe()
    }
    /// The workloads that apply to this node, and the roots by which they verify each other.
    pub fn workloads(&self) -> watch::Receiver<WorkloadView> {
        self.workloads.subscribe()
    }
    pub fn credentials(&self) -> watch::Receiver<Arc<NodeCredentials>> {
        self.credentials.subscribe()
    }
    /// Random per process: tells two processes with one identity apart.
    pub fn instance(&self) -> u64 {
        self.hello.instance
    }
}
