//! A cluster's certificates, a gateway on loopback in its own test harness, and clients.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_gateway::{
    Connection, DialError, Dialed, Dialer, Gateway, GatewayConfig, KnownManagers, LocalReplica, Msg, Port,
    Registration, ReplicaGuard, Services,
};
use muster_kernel::{Address, Clock, Spec};
use muster_messages::protocol::{NodeCredentials, Service};
use muster_messages::*;
use muster_pki::{CsrKey, Issuer, NodeProfile, PublicKey, Root, UserProfile, WorkloadProfile, make_csr, new_key};
use muster_testkit::ActorHarness;
pub use muster_testkit::{WAIT_LIMIT, eventually};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

pub const PATH: &str = "node/gateway";
pub const HOUR: Duration = Duration::from_secs(3600);

/// A cluster's root, and certificates that it signs.
pub struct World {
    pub cluster: ClusterId,
    pub root: Root,
    issuer: Issuer,
}

impl World {
    pub fn new(seed: u128) -> Self {
        let cluster = ClusterId::from_entropy(seed);
        let root = Root::create(cluster, WallTime(Clock.wall().0 - 10 * 3_600_000)).unwrap();
        let issuer = Issuer::from_pem(&root.cert_pem, &root.key_pem).unwrap();
        Self { cluster, root, issuer }
    }
    pub fn node(&self, n: u128, role: Role, granted: u64) -> Arc<NodeCredentials> {
        self.node_until(n, role, granted, HOUR * 24)
    }
    /// A certificate that is valid for this long from now.
    pub fn node_until(&self, n: u128, role: Role, granted: u64, left: Duration) -> Arc<NodeCredentials> {
        let (key_pem, csr) = key();
        let lifetime = left.max(HOUR * 2);
        let profile = NodeProfile {
            cluster: self.cluster,
            node: id(n),
            role,
            granted: Some(Revision(granted)),
            incarnation: Incarnation(1),
            ips: Vec::new(),
            lifetime,
            now: WallTime(Clock.wall().0 - lifetime.as_millis() as i64).plus(left),
        };
        self.credentials(self.issuer.sign_node(&profile, &csr).unwrap().cert_pem, key_pem)
    }
    pub fn user(&self, name: &str, kind: UserKind) -> Arc<NodeCredentials> {
        let (key_pem, csr) = key();
        let profile = UserProfile {
            cluster: self.cluster,
            name: name.parse().unwrap(),
            kind,
            incarnation: Incarnation(1),
            lifetime: HOUR,
            now: Clock.wall(),
        };
        self.credentials(self.issuer.sign_user(&profile, &csr).unwrap().cert_pem, key_pem)
    }
    pub fn workload(&self, name: &str) -> Arc<NodeCredentials> {
        let (key_pem, csr) = key();
        let profile = WorkloadProfile {
            cluster: self.cluster,
            workload: name.parse().unwrap(),
            dns: vec![],
            incarnation: Incarnation(1),
            lifetime: HOUR,
            now: Clock.wall(),
        };
        let public = PublicKey::parse(csr.spki()).unwrap();
        self.credentials(self.issuer.sign_workload(&profile, &public).unwrap().cert_pem, key_pem)
    }
    /// The identity as a gateway reads it that does not know its cluster's record.
    pub fn issued(&self, credentials: &NodeCredentials) -> CertIdentity {
        let issuer = muster_pki::root_id_of_pem(&self.root.cert_pem).ok();
        CertIdentity { issuer, ..credentials.identity.clone() }
    }
    fn credentials(&self, cert_pem: String, key_pem: Secret) -> Arc<NodeCredentials> {
        let identity = muster_pki::identity_of_pem(&cert_pem).unwrap();
        Arc::new(NodeCredentials { cert_pem, key_pem, root_pem: self.root.cert_pem.clone(), identity })
    }
}

fn key() -> (Secret, CsrKey) {
    let key = new_key();
    let csr = CsrKey::parse(&make_csr(&key).unwrap()).unwrap();
    (key, csr)
}

pub fn id(n: u128) -> NodeId {
    NodeId::from_entropy(n)
}

/// A replica that follows a leader.
pub fn replica_at(revision: u64) -> Replica {
    let mut replica = Replica::default();
    replica.tables.revision = Revision(revision);
    replica.raft.leader = Some(RaftId(99));
    replica
}
pub fn with_node(mut replica: Replica, n: u128, role: Role, granted: u64) -> Replica {
    let record = NodeRecord {
        addr: format!("10.0.0.{n}:4400"),
        granted: Revision(granted),
        liveness: Liveness::Ready,
        revision: Revision(granted),
        ..NodeRecord::new(id(n), Name::sanitized(&format!("n{n}")), role, WallTime(0))
    };
    replica.tables.nodes.insert(id(n), Arc::new(record));
    replica
}
pub fn with_block(mut replica: Replica, n: u128) -> Replica {
    let by = Principal::Operator;
    let expires_at = Clock.wall().plus(HOUR);
    replica.tables.blocklist.insert(id(n), Blocked { node: id(n), by, blocked_at: WallTime(0), expires_at });
    replica
}
pub fn with_user(mut replica: Replica, creds: &NodeCredentials) -> Replica {
    let (name, kind) = match &creds.identity.subject {
        Subject::User(name) => (name.clone(), UserKind::User),
        Subject::Admin(name) => (name.clone(), UserKind::Operator),
        Subject::Reader(name) => (name.clone(), UserKind::ReadOnly),
        Subject::Node { .. } | Subject::Workload(_) => unreachable!("a user"),
    };
    let user = User {
        name: name.clone(),
        kind,
        namespaces: Vec::new(),
        serial: creds.identity.serial.clone(),
        created_at: WallTime(0),
        not_after: creds.identity.not_after,
        revision: Revision(1),
    };
    replica.tables.users.insert(name, user);
    replica
}

/// A gateway, with an inbox for each service.
pub struct Gate {
    pub harness: ActorHarness,
    pub port: Port,
    pub addr: String,
    pub services: Services,
    pub managers: KnownManagers,
    pub local_replica: watch::Sender<Arc<Replica>>,
    pub credentials: watch::Sender<Arc<NodeCredentials>>,
    pub gateway: Address<Msg>,
    pub inboxes: BTreeMap<Service, mpsc::Receiver<Connection>>,
    registered: Vec<Registration>,
    attached: Option<ReplicaGuard>,
}

impl Gate {
    /// Node 1, a manager with this replica.
    pub async fn manager(world: &World, config: GatewayConfig, replica: Replica) -> Self {
        let credentials = world.node(1, Role::Manager, 1);
        let holder = LocalReplica::new();
        let mut gate = Self::bare(config, credentials, holder.clone(), replica).await;
        gate.attached = Some(holder.attach(gate.local_replica.subscribe()));
        for service in Service::ALL {
            gate.serve(service, 64);
        }
        gate
    }
    pub async fn worker(world: &World) -> Self {
        let credentials = world.node(1, Role::Worker, 1);
        let mut gate = Self::bare(GatewayConfig::default(), credentials, LocalReplica::new(), replica_at(0)).await;
        gate.serve(Service::Api, 64);
        gate.serve(Service::Http, 64);
        gate
    }
    async fn bare(config: GatewayConfig, own: Arc<NodeCredentials>, holder: LocalReplica, replica: Replica) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let (credentials, current) = watch::channel(own);
        let (services, managers) = (Services::new(), KnownManagers::default());
        let mut harness = ActorHarness::start().await;
        let port = Port::new(config, listener, current, services.clone(), holder, managers.clone()).unwrap();
        port.runtimes().iter().for_each(|runtime| harness.includes(runtime));
        let (gateway, shell_port) = (Address::new(1024), port.clone());
        let make = move || Ok(Gateway::on(shell_port.clone()));
        harness.start_actor(Spec::actor("gateway", gateway.clone(), make));
        harness.healthy(PATH, 1).await;
        Self {
            harness,
            port,
            addr,
            services,
            managers,
            local_replica: watch::Sender::new(Arc::new(replica)),
            credentials,
            gateway,
            inboxes: BTreeMap::new(),
            registered: Vec::new(),
            attached: None,
        }
    }
    pub fn serve(&mut self, service: Service, inbox: usize) {
        let (sink, receiver) = mpsc::channel(inbox);
        self.registered.push(self.services.register(service, sink));
        self.inboxes.insert(service, receiver);
    }
    pub fn publish(&self, replica: Replica) {
        self.local_replica.send_replace(Arc::new(replica));
    }
    pub async fn received(&mut self, service: Service) -> Connection {
        let inbox = self.inboxes.get_mut(&service).expect("served");
        tokio::time::timeout(WAIT_LIMIT, inbox.recv()).await.expect("a connection in time").expect("served")
    }
    pub async fn dial(&self, who: &Arc<NodeCredentials>, service: Service) -> Result<Dialed, DialError> {
        dialer(who).dial(&self.addr, service, None).await
    }
    /// Runs the final checks. Waiting unauthenticated connections are leaks: tests close theirs before.
    pub async fn finish(self) {
        self.harness.finish().await;
    }
}

pub fn dialer(who: &Arc<NodeCredentials>) -> Dialer {
    Dialer::new(watch::Sender::new(who.clone()).subscribe())
}
