//! The tree of a node: gateway, agent, api, and the switch of the manager runtime. Wiring only.

mod wire;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use muster_agent::{AgentPorts, NodeMemory, SessionStatus, agent_spec};
use muster_api::{AdminSocket, ApiShell, ManagerPorts, Service as Api};
use muster_gateway::{Dialer, Gateway, KnownManagers, LocalReplica, Port, Services};
use muster_kernel::{Address, Fault, Intensity, Recipient, Spec, Supervisor, Tree};
use muster_messages::protocol::{AgentMsg, GatewayMsg, NodeCredentials, Service};
use muster_messages::wire::Starts;
use muster_messages::{AutoUnlock, NodeId, Principal, Role, Trouble};
use muster_pki::IdentityStore;
use muster_reconciler::{Reconcilers, Releases};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, mpsc, watch};

use self::wire::{Wired, wire};
use super::boot::{Exit, boot};
use super::commands::Allowed;
use super::config::Config;
use super::feature_level;
use super::locked;
use super::manager::ManagerPlan;
use super::metrics;
use super::own;
use super::ready::{self, Readiness};
use super::reconcilers;
use super::recovery;
use super::releases;
use super::run_logs::RunLogs;
use super::sealing;
use super::settings::Reconcilers as ConfiguredReconcilers;
use super::startup_failure;
use super::systemd;
use super::workloads;
use muster_manager::RaftData;
use muster_manager::runs::Runs;
use muster_manager::switch::{Switch, SwitchMsg};

/// What all parts of this node share. Made once; outlives their restarts.
#[derive(Clone)]
pub struct Shared {
    pub config: Arc<Config>,
    pub me: NodeId,
    pub advertise: String,
    pub credentials: watch::Receiver<Arc<NodeCredentials>>,
    pub dialer: Dialer,
    pub services: Services,
    pub local_replica: LocalReplica,
    pub managers: KnownManagers,
    pub agent: Recipient<AgentMsg>,
    pub memory: muster_agent::NodeMemory,
    /// How this node would unlock itself at its next start.
    pub unlocks_by: AutoUnlock,
    /// Tells this process apart from others that ran on its directory: drawn when it starts.
    pub instance: u64,
    /// This process among the starts of its directory, once that is on disk. Until then it is not a manager.
    pub starts: Arc<OnceLock<Starts>>,
    pub gateway: Recipient<GatewayMsg>,
    pub api: Api,
    pub run_logs: Arc<RunLogs>,
    /// The manager runtime's ports while it runs.
    pub manager: Arc<watch::Sender<Option<Arc<ManagerPorts>>>>,
    /// What is wrong with this node's Raft data, as `status` shows it.
    pub raft_trouble: Arc<watch::Sender<Option<Trouble>>>,
    /// Why this build can no longer be a manager of this cluster. Final for this process.
    pub incompatible: Arc<watch::Sender<Option<String>>>,
    /// The manager runtime's candidacy for raising the feature level, while it is a candidate.
    pub raising: Arc<std::sync::Mutex<Option<Reconcilers>>>,
    /// How the manager runtime found its Raft data when this process started.
    pub raft_data: Arc<std::sync::Mutex<RaftData>>,
    /// The newest incarnation for which it is known that no older Raft data is here.
    pub raft_checked: Arc<AtomicU64>,
    pub founding: Arc<std::sync::Mutex<Option<muster_pki::Founding>>>,
    pub tree: Tree,
    pub metrics: metrics::Source,
}

/// A running node.
pub struct Node {
    root: Supervisor,
    shared: Shared,
    reconcilers: Option<Reconcilers>,
    allowed: Arc<Allowed>,
    session: watch::Receiver<Option<SessionStatus>>,
    fatal: Arc<watch::Sender<Option<String>>>,
}

/// How long reconcilers have to give their leases back before the rest is stopped: a command has 5 s between TERM and KILL.
/// Leases not given back by then expire.
const LEASE_RETURN_TIMEOUT: Duration = Duration::from_millis(5_500);

impl Node {
    /// Boots and starts everything. Returns once the tree runs; the ready line follows when the node can serve.
    pub async fn start(config: Config, own: Option<own::Start>) -> Result<Self, Exit> {
        let config = super::boot::with_kept_name(config)?;
        let listener =
            TcpListener::bind(&config.listen).await.map_err(|e| Exit::new(1, cannot_listen(&config.listen, &e)))?;
        let listens = listener.local_addr()?;
        let metrics_listener = metrics::listen(&config.metrics).await?;
        let store = IdentityStore::open(&config.data_dir)?;
        let unlocked = locked::wait_for_key(&config, &store, &listener, metrics_listener.as_ref()).await?;
        let known = NodeMemory::new(store.clone()).load()?.managers;
        let others: Vec<String> = config.join.iter().cloned().chain(known).collect();
        let advertise = ready::advertised(&config, listens, &others).await;
        let bad_socket = |fault| Exit::new(1, Fault::from(fault).0);
        if unlocked.socket.is_none() {
            // A join uses a token and adds a node. The socket is bound after it: until then nothing would answer there.
            AdminSocket::check_vacant(&config.socket).map_err(bad_socket)?;
        }
        let booted = boot(&config, &store, &advertise).await?;
        let socket = match unlocked.socket {
            Some(bound) => bound,
            None => Arc::new(AdminSocket::bind(&config.socket).map_err(bad_socket)?),
        };

        let tree = Tree::new();
        let root = Supervisor::root("node", tree.clone(), Intensity::default()).await.map_err(|f| Exit::new(1, f.0))?;
        let wired = wire(config, (advertise, unlocked.means), booted, tree)?;
        let shared = wired.shared.clone();
        let readiness = Readiness::new(&shared, wired.agent_ports.session());
        let fatal = Arc::new(watch::Sender::new(None));

        start_tree(&root, &wired, listener, Arc::clone(&socket))
            .map_err(|e| Exit::new(1, format!("cannot start the port's threads: {e}")))?;
        let allowed = Arc::new(Allowed::new(shared.config.settings.reconcilers.clone()));
        let declarations = shared.config.settings.reconcilers.releases_in(&shared.config.data_dir);
        let declared = declarations.map_or_else(Releases::default, |directory| {
            let (spec, declared) = releases::spec(directory, shared.config.release.clone());
            root.children().start(spec);
            declared
        });
        let reconcilers = reconcilers::spec(&shared, Arc::clone(&allowed), declared).map(|(spec, reconcilers)| {
            root.children().start(spec);
            reconcilers
        });
        if let Some(start) = own {
            root.children().start(own::spec(&shared, start));
        }
        let (config, memory) = (Arc::clone(&shared.config), shared.memory.clone());
        tokio::spawn(recovery::delete_expired_periodically(
            shared.config.data_dir.clone(),
            shared.config.settings.recovery.keep_set_aside.0,
            shared.credentials.clone(),
            Arc::new(move |worker: &NodeCredentials| sealing::settle_worker(&config, &memory, worker)),
        ));
        let metrics_addr = metrics::serve(metrics_listener, shared.metrics.clone(), readiness.clone());
        ready::announce_when_ready(readiness, listens, metrics_addr, shared.config.socket.clone());
        let session = wired.agent_ports.session();
        Ok(Self { root, shared, reconcilers, allowed, session, fatal })
    }

    /// Returns when the root supervisor has given up.
    pub async fn ended(&self) -> Exit {
        let mut fatal = self.fatal.subscribe();
        tokio::select! {
            () = self.root.ended() => Exit::new(1, "the root supervisor gave up; the log says which actor kept failing"),
            why = fatal.wait_for(Option::is_some) => {
                Exit::new(1, why.ok().and_then(|w| w.clone()).unwrap_or_default())
            }
        }
    }

    /// Reopens the audit log after its file was renamed.
    pub fn reopen_audit_log(&self) {
        self.shared.api.audit().reopen();
    }

    /// Replaces what this node runs for definitions. It is no longer a candidate for others: their commands are asked to end.
    pub fn allow(&self, configured: ConfiguredReconcilers) {
        self.allowed.replace(configured);
    }

    /// Keeps the status line and the watchdog up to date. Never returns.
    pub async fn report_to_systemd(&self) {
        tokio::join!(
            systemd::report_status(|| self.summary().to_string()),
            systemd::feed_watchdog(Some(&self.shared.tree), async || self.root.beat().await),
        );
    }

    fn summary(&self) -> systemd::Summary {
        let shared = &self.shared;
        let raft = shared.manager.borrow().as_ref().map(|manager| {
            let replica = manager.replica.borrow().clone();
            let name =
                |id: NodeId| replica.tables.nodes.get(&id).map_or_else(|| id.to_string(), |n| n.name.to_string());
            let raft = &replica.raft;
            let leads = raft.leader_node == Some(shared.me);
            systemd::Raft { leader: raft.leader_node.map(name), leads, quorum: manager.quorum() }
        });
        let facts = shared.api.facts();
        let session = self.session.borrow().as_ref().map(|session| session.addr.clone());
        systemd::Summary { role: facts.role, session, raft, trouble: facts.trouble.map(|trouble| trouble.to_string()) }
    }

    /// Hands leadership over, closes sessions, stops everything in reverse start order.
    pub async fn stop(&self) {
        let return_leases = async {
            if let Some(reconcilers) = &self.reconcilers {
                let _in_time = tokio::time::timeout(LEASE_RETURN_TIMEOUT, reconcilers.hand_over()).await;
            }
        };
        let as_manager = async {
            feature_level::hand_over(&self.shared).await;
            super::manager::hand_over(&self.shared).await;
        };
        tokio::join!(return_leases, as_manager);
        self.root.shut_down().await;
    }
}

fn cannot_listen(addr: &str, why: &std::io::Error) -> String {
    let help = match why.kind() {
        std::io::ErrorKind::AddrInUse => "; another process listens there (`ss -ltnp` names it)",
        std::io::ErrorKind::AddrNotAvailable => {
            "; --listen must be an address of this machine (--advertise may differ)"
        }
        _ => "",
    };
    format!("cannot listen on {addr}: {why}{help}")
}

fn start_tree(
    root: &Supervisor,
    wired: &Wired,
    listener: TcpListener,
    socket: Arc<AdminSocket>,
) -> std::io::Result<()> {
    let shared = wired.shared.clone();
    let children = root.children();
    let port = Port::new(
        shared.config.settings.gateway(),
        listener,
        shared.credentials.clone(),
        shared.services.clone(),
        shared.local_replica.clone(),
        shared.managers.clone(),
    )?;
    // Started first and so stopped last: every later actor may have a line to write.
    if let Some(audit) = &wired.audit {
        children.start(audit.spec());
    }
    children.start(Spec::actor("gateway", wired.gateway.clone(), move || Ok(Gateway::on(port.clone()))));
    children.start(api_spec(&shared, socket));
    children.start(agent_spec(wired.agent.clone(), wired.agent_ports.clone()));
    if let Some(workloads) = workloads::spec(&shared.config, shared.agent.clone(), &wired.agent_ports) {
        children.start(workloads);
    }
    children.start(manager_switch(&shared, &wired.agent_ports, children.clone()));
    follow_managers(&shared, wired.agent_ports.clone());
    startup_failure::report(&shared, wired.agent_ports.wanted());
    Ok(())
}

fn api_spec(shared: &Shared, socket: Arc<AdminSocket>) -> Spec {
    let (sink, incoming) = mpsc::channel(256);
    let incoming = Arc::new(Mutex::new(incoming));
    let registrations = [Service::Api, Service::Http].map(|s| shared.services.register(s, sink.clone()));
    let registrations = Arc::new(registrations);
    let (api, credentials, me) = (shared.api.clone(), shared.credentials.clone(), shared.me);
    let incompatible = shared.incompatible.subscribe();
    let caller = Arc::new(move || match credentials.borrow().identity.node() {
        // A manager without a running manager runtime asks others, as workers do.
        Some((_, Role::Manager)) if incompatible.borrow().is_none() => Principal::Operator,
        _ => Principal::Node(me),
    });
    Spec::actor("api", Address::new(64), move || {
        let _held = &registrations;
        Ok(ApiShell::new(api.clone(), Arc::clone(&incoming), Some(Arc::clone(&socket)), caller.clone()))
    })
}

fn manager_switch(shared: &Shared, agent: &AgentPorts, siblings: muster_kernel::Children) -> Spec {
    let (wanted, incompatible) = (agent.wanted(), shared.incompatible.subscribe());
    let (shared, runs) = (shared.clone(), muster_manager::runs::runs(wanted, incompatible, shared.credentials.clone()));
    let address: Address<SwitchMsg<Runs>> = Address::new(64);
    Spec::actor("manager-switch", address, move || {
        Ok(Switch::new(Arc::new(ManagerPlan::new(shared.clone())), siblings.clone(), runs.clone()))
    })
}

/// Keeps the shared list of managers as the local replica and the agent's sessions report it.
fn follow_managers(shared: &Shared, _agent: AgentPorts) {
    let (local_replica, managers) = (shared.local_replica.clone(), shared.managers.clone());
    let memory = shared.memory.clone();
    let mut watch = local_replica.watch();
    tokio::spawn(async move {
        loop {
            match watch.get() {
                Some(replica) => managers.set(replica.tables.members.values().map(|m| m.addr.clone()).collect()),
                None => {
                    let memory = memory.clone();
                    if let Ok(Ok(local)) = tokio::task::spawn_blocking(move || memory.load()).await {
                        managers.set(local.managers);
                    }
                }
            }
            tokio::select! {
                () = watch.changed() => {}
                () = tokio::time::sleep(Duration::from_secs(2)) => {}
            }
        }
    });
}
