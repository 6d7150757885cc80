//! A cluster of a few lines with real hosts and agents. Pipes join them; the leader signs and takes digests.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_agent::core::Loss;
use muster_agent::{
    AgentConfig, AgentPorts, AgentSetup, Dial, Dialled, Inspector, Msg as AgentMailbox, NodeMemory, agent_address,
    agent_spec,
};
use muster_gateway::{BoxStream, Connection, Framed, Services};
use muster_kernel::Address;
use muster_messages::protocol::{DispatcherMsg, LeaderCalls, NodeCredentials, PeerAnswer, Service};
use muster_messages::wire::{ActorsAsk, MembershipReply, PeerCall, SessionFact, SignReply, encode};
use muster_messages::*;
use muster_pki::{IdentityStore, Issuer, NODE_LIFETIME, NodeProfile, Root};
use muster_sessions::{
    DispatcherMailbox, SessionsConfig, SessionsMailbox, SessionsPorts, sessions_address, sessions_spec,
};
use muster_testkit::{ActorHarness, Host, eventually};
use tokio::sync::watch;

/// A number for each process.
static PROCESSES: AtomicU64 = AtomicU64::new(1);

pub fn node(n: u128) -> NodeId {
    NodeId::from_entropy(n)
}
pub fn cluster() -> ClusterId {
    ClusterId::from_entropy(9)
}
fn wall() -> WallTime {
    muster_kernel::Clock.wall()
}

/// The cluster behind the hosts: one state, one root, one list of what the leader received.
pub struct Cluster {
    root: Root,
    pub state: watch::Sender<Arc<Replica>>,
    facts: Mutex<BTreeMap<NodeId, SessionFact>>,
    pub ever_down: Mutex<Vec<NodeId>>,
    pub dispatcher: Mutex<Option<Address<DispatcherMailbox>>>,
    /// The leader signs no certificates.
    pub signs_nothing: AtomicBool,
    /// `host:port` to the services behind it.
    pub hosts: Mutex<BTreeMap<String, Services>>,
}

impl Cluster {
    fn new() -> Arc<Self> {
        let root = Root::create(cluster(), wall()).unwrap();
        let record = ClusterRecord {
            id: cluster(),
            name: Name::sanitized("test"),
            incarnation: Incarnation(1),
            feature_level: 1,
            root_cert_pem: root.cert_pem.clone(),
            root_key_pem: root.key_pem.clone(),
            founded_at: wall(),
            revision: Revision(1),
        };
        let mut replica = Replica::default();
        replica.tables.revision = Revision(10);
        replica.tables.cluster = Some(Arc::new(record));
        replica.raft.leader = Some(RaftId(1));
        replica.raft.leader_node = Some(node(100));
        replica.raft.term = Term(1);
        Arc::new(Self {
            root,
            state: watch::Sender::new(Arc::new(replica)),
            facts: Mutex::default(),
            ever_down: Mutex::default(),
            dispatcher: Mutex::default(),
            signs_nothing: AtomicBool::new(false),
            hosts: Mutex::default(),
        })
    }
    /// One applied entry.
    pub fn apply(&self, change: impl FnOnce(&mut Replica)) -> Revision {
        let mut revision = Revision(0);
        self.state.send_modify(|replica| {
            let mut next = Replica::clone(replica);
            next.tables.revision = next.tables.revision.next();
            change(&mut next);
            revision = next.tables.revision;
            *replica = Arc::new(next);
        });
        revision
    }
    pub fn edit(&self, id: NodeId, change: impl FnOnce(&mut NodeRecord, Revision)) {
        self.apply(|replica| {
            let revision = replica.tables.revision;
            let mut record = NodeRecord::clone(&replica.tables.nodes[&id]);
            change(&mut record, revision);
            replica.tables.nodes.insert(id, Arc::new(record));
        });
    }
    pub fn grant(&self, id: NodeId, role: Role) {
        self.edit(id, |record, revision| {
            record.role = role;
            record.granted = revision;
        });
    }
    pub fn record(&self, id: NodeId) -> Arc<NodeRecord> {
        Arc::clone(&self.state.borrow().tables.nodes[&id])
    }
    pub fn admit(&self, id: NodeId) {
        self.apply(|replica| {
            let revision = replica.tables.revision;
            let record = NodeRecord {
                granted: revision,
                last_not_after: WallTime(0),
                revision,
                ..NodeRecord::new(id, Name::sanitized("w1"), Role::Worker, wall())
            };
            replica.tables.nodes.insert(id, Arc::new(record));
        });
    }
    fn sign(&self, id: NodeId, csr_pem: &str) -> String {
        let record = self.record(id);
        let issuer = Issuer::from_pem(&self.root.cert_pem, &self.root.key_pem).unwrap();
        let profile = NodeProfile {
            cluster: cluster(),
            node: id,
            role: record.role,
            granted: Some(record.granted),
            incarnation: Incarnation(1),
            ips: vec![],
            lifetime: NODE_LIFETIME,
            now: wall(),
        };
        let key = muster_pki::CsrKey::parse(csr_pem).unwrap();
        let signed = issuer.sign_node(&profile, &key).unwrap();
        self.edit(id, |r, _| {
            r.certificate = Some(CertificateRecord {
                role: profile.role,
                serial: signed.serial.clone(),
                granted: profile.granted,
                not_after: signed.not_after,
                state: CertificateState::Issued,
            });
        });
        signed.cert_pem
    }
    /// What the hosts report about a node.
    pub fn fact(&self, id: NodeId) -> Option<SessionFact> {
        self.facts.lock().unwrap().get(&id).cloned()
    }
    pub fn reported_liveness(&self, id: NodeId) -> Option<Liveness> {
        self.fact(id).map(|fact| fact.liveness)
    }
}

/// The leader as a host reaches it.
struct Leader {
    host: NodeId,
    cluster: Arc<Cluster>,
}

impl LeaderCalls for Leader {
    fn call(&self, call: PeerCall) -> PeerAnswer {
        let (host, cluster) = (self.host, Arc::clone(&self.cluster));
        Box::pin(async move {
            match call {
                PeerCall::SignNode { .. } if cluster.signs_nothing.load(Ordering::SeqCst) => {
                    Err(ErrorBody::new(ErrorCode::NoQuorum, "no quorum"))
                }
                PeerCall::SignNode { identity, csr_pem, .. } => {
                    let (node, _) = identity.node().unwrap();
                    let cert_pem = cluster.sign(node, &csr_pem);
                    let root_pem = cluster.root.cert_pem.clone();
                    Ok(encode(&SignReply { cert_pem, root_pem }).unwrap())
                }
                PeerCall::Membership { .. } => Ok(encode(&MembershipReply::IsMember { raft_id: RaftId(7) }).unwrap()),
                PeerCall::Sessions(digest) => {
                    if digest.full {
                        cluster.facts.lock().unwrap().clear();
                    }
                    for fact in &digest.sessions {
                        if fact.liveness == Liveness::Down {
                            cluster.ever_down.lock().unwrap().push(fact.node);
                        }
                        cluster.facts.lock().unwrap().insert(fact.node, fact.clone());
                    }
                    let dispatcher = cluster.dispatcher.lock().unwrap().clone();
                    if let Some(dispatcher) = dispatcher {
                        let make = |reply| DispatcherMsg::Digest { host, digest, reply }.into();
                        dispatcher.ask(Duration::from_secs(1), make).await??;
                    }
                    Ok(vec![])
                }
                other => panic!("no session makes the call {other:?}"),
            }
        })
    }
}

/// Pipes instead of TLS, with the credentials that are current at the time.
struct Pipes {
    cluster: Arc<Cluster>,
    credentials: watch::Receiver<Arc<NodeCredentials>>,
}

impl Dial for Pipes {
    fn dial(&self, addr: String) -> BoxFuture<'static, Result<Dialled, Loss>> {
        let services = self.cluster.hosts.lock().unwrap().get(&addr).cloned();
        let identity = self.credentials.borrow().identity.clone();
        Box::pin(async move {
            let refused = || Loss::Broken(format!("cannot connect to {addr}: connection refused"));
            let sink = services.and_then(|s| s.sink(Service::Agent)).ok_or_else(refused)?;
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            let remote: SocketAddr = "192.0.2.7:50000".parse().unwrap();
            let theirs: BoxStream = Box::pin(theirs);
            let connection = Connection::detached(theirs, Service::Agent, Some(identity), remote);
            sink.send(connection).await.map_err(|_| refused())?;
            let ours: BoxStream = Box::pin(ours);
            Ok(Dialled { stream: Framed::new(ours), host: node(100), incarnation: Incarnation(1) })
        })
    }
}

fn quick() -> SessionsConfig {
    SessionsConfig {
        digest_every: Duration::from_millis(200),
        leaderless_after: Duration::from_millis(100),
        leaderless_retry: Duration::from_millis(50),
        registrations_per_sec: 100_000.0,
        registration_burst: 100_000.0,
        ..SessionsConfig::default()
    }
}

pub const M1: &str = "m1:4400";
pub const M2: &str = "m2:4400";

/// A cluster that knows one node. The test starts its processes.
pub struct Stage {
    pub harness: ActorHarness,
    pub cluster: Arc<Cluster>,
}

/// A manager's session host.
pub struct HostProcess {
    pub process: Host,
    pub sessions: Address<SessionsMailbox>,
}

/// A node's agent.
pub struct AgentProcess {
    pub process: Host,
    pub agent: Address<AgentMailbox>,
    pub ports: AgentPorts,
    pub memory: NodeMemory,
    _dir: tempfile::TempDir,
}

impl Stage {
    pub async fn set() -> Self {
        let cluster = Cluster::new();
        cluster.admit(node(1));
        Self { harness: ActorHarness::start().await, cluster }
    }

    pub async fn host(&self, addr: &str) -> HostProcess {
        let process = self.harness.another("manager").await;
        let services = Services::new();
        let leader = Arc::new(Leader { host: node(100), cluster: Arc::clone(&self.cluster) });
        let replica = self.cluster.state.subscribe();
        let ports = SessionsPorts { config: quick(), services: services.clone(), replica, leader };
        let sessions = sessions_address(&ports.config);
        process.start_actor(sessions_spec(sessions.clone(), ports));
        self.cluster.hosts.lock().unwrap().insert(addr.to_owned(), services);
        HostProcess { process, sessions }
    }

    pub async fn agent(&self, seeds: &[&str]) -> AgentProcess {
        self.agent_after(seeds, || {}).await
    }

    /// `meanwhile` happens between the certificate and the first connection.
    pub async fn agent_after(&self, seeds: &[&str], meanwhile: impl FnOnce()) -> AgentProcess {
        let cluster = &self.cluster;
        let dir = tempfile::tempdir().unwrap();
        let memory = NodeMemory::new(IdentityStore::open(dir.path()).unwrap());
        let key_pem = muster_pki::new_key();
        let cert_pem = cluster.sign(node(1), &muster_pki::make_csr(&key_pem).unwrap());
        let identity = muster_pki::identity_of_pem(&cert_pem).unwrap();
        let root_pem = cluster.root.cert_pem.clone();
        let credentials = NodeCredentials { cert_pem, key_pem, root_pem, identity };
        memory.store().save_credentials(&credentials).unwrap();
        let credentials = Arc::new(watch::Sender::new(Arc::new(credentials)));
        let process = self.harness.another("node").await;
        let tree = process.tree().clone();
        let inspector: Inspector = Arc::new(move |ask| {
            let admin_action = match &ask {
                ActorsAsk::Crash { path, how } => tree.crash(path, *how).map(Some),
                _ => Ok(None),
            };
            Box::pin(async move { Ok((format!("{ask:?}"), admin_action?)) })
        });
        let ports = AgentPorts::new(AgentSetup {
            config: AgentConfig::default(),
            memory: memory.clone(),
            instance: PROCESSES.fetch_add(1, Ordering::Relaxed),
            dial: Arc::new(Pipes { cluster: Arc::clone(cluster), credentials: credentials.subscribe() }),
            credentials,
            inspector,
            name: Name::sanitized("w1"),
            advertise: "0.0.0.0:4400".to_owned(),
            release: "0.1.0".to_owned(),
            labels: BTreeMap::new(),
            seeds: seeds.iter().map(|s| (*s).to_owned()).collect(),
        });
        meanwhile();
        let agent = agent_address();
        process.start_actor(agent_spec(agent.clone(), ports.clone()));
        AgentProcess { process, agent, ports, memory, _dir: dir }
    }

    /// Stops the remaining processes, in this order.
    pub async fn end(self, processes: impl IntoIterator<Item = Host>) {
        for process in processes {
            process.stop().await;
        }
        self.harness.finish().await;
    }
}

impl AgentProcess {
    pub async fn has_session(&self) {
        let session = self.ports.session();
        eventually("the agent has a session", || session.borrow().is_some()).await;
    }
}

/// The path of the node's session on its host.
pub fn session_path() -> String {
    format!("manager/sessions/session-{}", node(1))
}
