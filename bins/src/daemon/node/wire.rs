//! What all parts of a node share, made before its tree starts: the API, the agent's ports, the list of managers.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;
use muster_agent::{AgentPorts, AgentSetup, NodeMemory, NodeTrouble, agent_address, trouble_of};
use muster_api::{ApiPorts, ManagerPorts, NodeFacts, Service as Api};
use muster_audit::AuditLog;
use muster_gateway::{Dialer, KnownManagers, LocalReplica, Services};
use muster_kernel::{Address, Tree};
use muster_messages::protocol::NodeCredentials;
use muster_messages::wire::ActorsAsk;
use muster_messages::{AutoUnlock, Name, NodeId, Role, Trouble};
use tokio::sync::watch;

use super::Shared;
use crate::daemon::boot::{Booted, Exit};
use crate::daemon::config::Config;
use crate::daemon::run_logs::RunLogs;
use crate::daemon::{audit, feature_level, metrics, workloads};

pub(super) struct Wired {
    pub shared: Shared,
    pub agent: Address<muster_agent::Msg>,
    pub agent_ports: AgentPorts,
    pub gateway: Address<muster_gateway::Msg>,
    /// The audit log's actor, if a log is configured.
    pub audit: Option<audit::Child>,
}

pub(super) fn wire(
    config: Config,
    (advertise, unlocks_by): (String, AutoUnlock),
    booted: Booted,
    tree: Tree,
) -> Result<Wired, Exit> {
    let Booted { memory, credentials, founding, raft, incompatible } = booted;
    let (me, role) = credentials.identity.node().ok_or_else(|| Exit::new(1, "the certificate is not a node's"))?;
    let local = memory.load()?;
    let booted_in = credentials.identity.incarnation;
    // The start is written when a manager runtime begins: a worker with a full disk keeps serving. An unreadable file fails here.
    let _readable = memory.store().load_starts()?;
    let seeds = seeds(&config, role, &advertise);
    let agent = agent_address();
    let gateway: Address<muster_gateway::Msg> = Address::new(1024);
    let (audit, audit_child) = audit::log(&config, me);
    let credentials = Arc::new(watch::Sender::new(Arc::new(credentials)));
    let parts = Parts {
        me,
        dialer: Dialer::new(credentials.subscribe()),
        managers: known_managers(&local.managers, &seeds),
        services: Services::new(),
        manager: Arc::new(watch::Sender::new(None)),
        raft_trouble: Arc::new(watch::Sender::new(None)),
        incompatible: Arc::new(watch::Sender::new(None)),
        trouble: Arc::default(),
        workloads: workloads::Known::default(),
        run_logs: RunLogs::new(&config.data_dir),
        instance: rand::random(),
        config: Arc::new(config),
        memory,
        credentials,
        audit,
        tree,
    };
    parts.services.close_to_others(local.admission_closed);
    let metrics = parts.metrics();
    let api = parts.api(metrics.clone());
    let agent_ports = parts.agent_ports(&api, &advertise, seeds);
    let _first = parts.trouble.set(agent_ports.trouble());
    let _first = parts.workloads.set(agent_ports.workloads());
    let _kept = local.ended.as_ref().and_then(trouble_of);
    let shared = Shared {
        config: parts.config,
        me,
        advertise,
        credentials: parts.credentials.subscribe(),
        dialer: parts.dialer,
        services: parts.services,
        local_replica: LocalReplica::new(),
        managers: parts.managers,
        agent: agent.recipient(),
        memory: parts.memory,
        unlocks_by,
        instance: parts.instance,
        starts: Arc::default(),
        gateway: gateway.recipient(),
        api,
        run_logs: parts.run_logs,
        manager: parts.manager,
        raft_trouble: parts.raft_trouble,
        incompatible: parts.incompatible,
        raising: Arc::default(),
        raft_data: Arc::new(std::sync::Mutex::new(raft)),
        raft_checked: Arc::new(AtomicU64::new(booted_in.0)),
        founding: Arc::new(std::sync::Mutex::new(founding)),
        tree: parts.tree,
        metrics,
    };
    if let Some(why) = incompatible {
        feature_level::report_incompatible(&shared, &why);
    }
    Ok(Wired { shared, agent, agent_ports, gateway, audit: audit_child })
}

/// Addresses that the agent dials first.
fn seeds(config: &Config, role: Role, advertise: &str) -> Vec<String> {
    let mut seeds = config.join.clone();
    // It may be the only manager: its agent must find its own host.
    if role == Role::Manager {
        seeds.push(advertise.to_owned());
    }
    seeds
}

/// The managers that this node knew when it stopped, and the seeds.
fn known_managers(before: &[String], seeds: &[String]) -> KnownManagers {
    let mut known = before.to_vec();
    known.extend(seeds.iter().filter(|seed| !before.contains(seed)).cloned());
    KnownManagers::new(known)
}

/// What the API, the agent and the metrics are made of.
struct Parts {
    config: Arc<Config>,
    me: NodeId,
    instance: u64,
    memory: NodeMemory,
    credentials: Arc<watch::Sender<Arc<NodeCredentials>>>,
    dialer: Dialer,
    services: Services,
    managers: KnownManagers,
    manager: Arc<watch::Sender<Option<Arc<ManagerPorts>>>>,
    raft_trouble: Arc<watch::Sender<Option<Trouble>>>,
    incompatible: Arc<watch::Sender<Option<String>>>,
    /// Set once the agent's ports exist: the API is made before them.
    trouble: Arc<OnceLock<watch::Receiver<Option<NodeTrouble>>>>,
    /// The same.
    workloads: workloads::Known,
    run_logs: Arc<RunLogs>,
    audit: AuditLog,
    tree: Tree,
}

impl Parts {
    fn metrics(&self) -> metrics::Source {
        metrics::Source {
            release: self.config.release.clone(),
            tree: self.tree.clone(),
            credentials: self.credentials.subscribe(),
            manager: self.manager.subscribe(),
            audit: self.audit.clone(),
        }
    }

    fn api(&self, measured: metrics::Source) -> Api {
        Api::new(ApiPorts {
            facts: self.facts(),
            open_admission: self.open_admission(),
            manager: self.manager.subscribe(),
            tree: self.tree.clone(),
            dialer: self.dialer.clone(),
            crash_allowed: self.config.settings.debug.crash,
            audit: self.audit.clone(),
            limits: self.config.settings.api(),
            metrics: metrics::port(measured),
            explain_workloads: workloads::explain(&self.config, &self.workloads),
            certificate_lifetime: Some(self.config.settings.certificates().node_lifetime),
            run_logs: Some(Arc::clone(&self.run_logs) as _),
            locked: None,
        })
    }

    /// What the node says of itself, as of the moment of the question.
    fn facts(&self) -> Arc<dyn Fn() -> NodeFacts + Send + Sync> {
        let (me, services, audit) = (self.me, self.services.clone(), self.audit.clone());
        let (config, managers, credentials) =
            (Arc::clone(&self.config), self.managers.clone(), self.credentials.subscribe());
        let (trouble, raft_trouble) = (Arc::clone(&self.trouble), self.raft_trouble.subscribe());
        let incompatible = self.incompatible.subscribe();
        Arc::new(move || {
            let credentials = credentials.borrow();
            let reported = trouble.get().and_then(|t| t.borrow().as_ref().map(|t| t.reason.into()));
            let unaudited = || audit.trouble();
            let closed = || services.is_closed_to_others().then_some(Trouble::AdmissionClosed);
            let too_old = incompatible.borrow().clone().map(Trouble::FeatureLevelTooLow);
            NodeFacts {
                id: me,
                name: Name::sanitized(&config.name),
                role: credentials.identity.node().map_or(Role::Worker, |(_, role)| role),
                managers: managers.get(),
                cluster: credentials.identity.cluster.to_string(),
                root_pem: credentials.root_pem.clone(),
                trouble: reported
                    .or(too_old)
                    .or_else(|| raft_trouble.borrow().clone())
                    .or_else(closed)
                    .or_else(unaudited),
            }
        })
    }

    /// Opens a restored cluster to others. False: it was open already.
    fn open_admission(&self) -> Arc<dyn Fn() -> Result<bool, String> + Send + Sync> {
        let (services, memory) = (self.services.clone(), self.memory.clone());
        Arc::new(move || {
            if !services.is_closed_to_others() {
                return Ok(false);
            }
            memory.update(|node| node.admission_closed = false).map_err(|fault| fault.to_string())?;
            services.close_to_others(false);
            Ok(true)
        })
    }

    fn agent_ports(&self, api: &Api, advertise: &str, seeds: Vec<String>) -> AgentPorts {
        let api = api.clone();
        let inspector = Arc::new(move |ask: ActorsAsk| -> BoxFuture<'static, _> {
            let api = api.clone();
            Box::pin(async move { api.inspect(&ask).await })
        });
        AgentPorts::new(AgentSetup {
            config: self.config.settings.agent(),
            memory: self.memory.clone(),
            instance: self.instance,
            credentials: Arc::clone(&self.credentials),
            dial: Arc::new(self.dialer.clone()),
            inspector,
            name: Name::sanitized(&self.config.name),
            advertise: advertise.to_owned(),
            release: self.config.release.clone(),
            labels: self.config.labels.clone(),
            seeds,
        })
    }
}
