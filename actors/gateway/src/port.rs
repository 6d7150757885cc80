//! The port: the state of the gateway that outlives an incarnation of its actor. A restarted gateway continues with its
//! listener, connections and counters.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muster_kernel::Clock;
use muster_messages::protocol::{NodeCredentials, Service};
use muster_messages::wire::Refusal;
use muster_messages::{CertIdentity, Incarnation, Principal, RefusalReason, Replica, Revision};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

use crate::core::admission::{self, Admission, CONFIRMATION_TIMEOUT, LocalFacts};
use crate::core::connections::{ConnectionId, Connections, Full, Limits};
use crate::core::offenders::{Line, Offender, Offenders};
use crate::core::rate::{Buckets, Rate};
use crate::core::source_of;
use crate::handshake_pool::HandshakePool;
use crate::kill::Kill;
use crate::local_replica::LocalReplica;
use crate::managers::KnownManagers;
use crate::metrics::GatewayMetrics;
use crate::services::Services;
use crate::tls::ServerTls;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayConfig {
    /// Connections with a certificate, of each kind: agents' sessions, other connections of workers, operators and users. 10,000
    /// agents on three managers with one down are 5,000 each.
    pub max_identified: usize,
    /// Connections of one principal, of one kind. A load generator with 256 clients shares one principal. A hostile connection can
    /// cost 100 KiB: one stolen certificate must not cost more memory than a manager can spare.
    pub max_per_principal: usize,
    /// Connections served without a certificate, HTTP clients and joiners each. Each costs up to 64 KiB.
    pub max_anonymous: usize,
    /// Connections not served yet. At 5,000 new ones per second, each still has 200 ms for a handshake of 3 ms.
    pub max_waiting: usize,
    /// From the first packet to the end of the handshake.
    pub handshake_deadline: Duration,
    /// From the handshake of an unauthenticated client to the first byte (a whole frame on `muster-join/1`).
    pub first_byte_deadline: Duration,
    /// How long a decision may wait for a newer replica.
    pub catch_up: Duration,
    /// Join requests per source. (Only well-formed ones count: garbage ends its own connection and costs others nothing.)
    pub join_rate: Rate,
    /// The interval of log lines per offender and reason.
    pub log_window: Duration,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            max_identified: 8_192,
            max_per_principal: 512,
            max_anonymous: 512,
            max_waiting: 1_024,
            handshake_deadline: Duration::from_secs(5),
            first_byte_deadline: Duration::from_secs(10),
            catch_up: Duration::from_secs(1),
            // A rack of 100 machines may join at once from one address. Tokens have 128 bits and cannot be guessed at any
            // rate: the limit protects the time of the signer.
            join_rate: Rate { per_second: 20, burst: 100 },
            log_window: Duration::from_secs(60),
        }
    }
}

/// The number of sources that the rate limit distinguishes, and of offenders in the log: far above normal numbers.
/// Reached, they cost less than a megabyte, and less than 20 lines a second.
const MAX_SOURCES: usize = 16_384;
const MAX_OFFENDERS: usize = 1_024;

/// Connections that the kernel completes before they are accepted; most machines allow this many. Tokio requests 1,024: a
/// burst of that size makes the kernel drop first packets, which clients resend a second later.
const LISTEN_BACKLOG: i32 = 4_096;

/// How long an evicted HTTP client's requests may take to be answered, which is long for a request, and how many such
/// connections there may be beside those with a permit. One more is cut at once: only a flood evicts so many in a
/// second.
const RETIREMENT: Duration = Duration::from_secs(1);
const MAX_RETIRING: usize = 128;

/// The listening port with its connections. Clones share one port.
#[derive(Clone, Debug)]
pub struct Port {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) config: GatewayConfig,
    pub(crate) listener: TcpListener,
    pub(crate) handshake_pool: HandshakePool,
    pub(crate) credentials: watch::Receiver<Arc<NodeCredentials>>,
    pub(crate) services: Services,
    pub(crate) local_replica: LocalReplica,
    pub(crate) managers: KnownManagers,
    pub(crate) tls: ServerTls,
    connections: Mutex<Connections<Kill>>,
    joins: Mutex<Buckets<IpAddr>>,
    offenders: Mutex<Offenders>,
    counters: Mutex<GatewayMetrics>,
    evaluated: Mutex<Evaluated>,
    retiring: Arc<Semaphore>,
}

/// The newest replicas that were used for decisions.
#[derive(Debug, Default)]
struct Evaluated {
    /// For all live connections.
    live: Revision,
    /// For any connection, live or new. An older replica (a restarting raft member replays its log) must not be used for live
    /// ones: it lacks later grants.
    any: Revision,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Port {
    /// A port on a bound listener, which may be older than this node's identity. Its services run in the calling runtime.
    ///
    /// # Errors
    /// Out of threads or file descriptors.
    pub fn new(
        config: GatewayConfig,
        listener: TcpListener,
        credentials: watch::Receiver<Arc<NodeCredentials>>,
        services: Services,
        local_replica: LocalReplica,
        managers: KnownManagers,
    ) -> io::Result<Self> {
        let handshake_pool = HandshakePool::open()?;
        let listener = handshake_pool.take_over(listener)?;
        // If this fails, the previous backlog remains.
        let _kept = rustix::net::listen(&listener, LISTEN_BACKLOG);
        let limits = Limits {
            identified: config.max_identified,
            per_principal: config.max_per_principal,
            anonymous: config.max_anonymous,
            waiting: config.max_waiting,
        };
        let inner = Inner {
            connections: Mutex::new(Connections::new(limits)),
            joins: Mutex::new(Buckets::new(config.join_rate, MAX_SOURCES)),
            offenders: Mutex::new(Offenders::new(config.log_window, MAX_OFFENDERS)),
            counters: Mutex::default(),
            evaluated: Mutex::default(),
            retiring: Arc::new(Semaphore::new(MAX_RETIRING)),
            tls: ServerTls::default(),
            config,
            listener,
            handshake_pool,
            credentials,
            services,
            local_replica,
            managers,
        };
        Ok(Self { inner: Arc::new(inner) })
    }
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.listener.local_addr()
    }
    /// The runtimes of its own threads: for accepting, and for connections that no service has yet.
    pub fn runtimes(&self) -> [Handle; 2] {
        let handshake_pool = &self.inner.handshake_pool;
        [handshake_pool.accepting().clone(), handshake_pool.waiting().clone()]
    }
    pub fn metrics(&self) -> GatewayMetrics {
        let mut metrics = locked(&self.inner.counters).clone();
        let connections = locked(&self.inner.connections);
        (metrics.waiting, metrics.anonymous, metrics.identified) = connections.counts();
        metrics.live = connections.by_service();
        metrics
    }
    /// Disconnects the live connections of a principal to the named services (none: to all). Returns their number.
    pub fn cut(&self, principal: &Principal, services: &[Service], reason: RefusalReason) -> usize {
        let switches = locked(&self.inner.connections).of_principal(principal, services);
        self.inner.trigger(switches.into_iter().map(|k| (k, reason)))
    }
}

impl Inner {
    pub(crate) fn count(&self, count: impl FnOnce(&mut GatewayMetrics)) {
        count(&mut locked(&self.counters));
    }

    /// Counts an offence, and logs it if a line is due.
    pub(crate) fn report_offence(&self, offender: Offender, what: &'static str) {
        let line = locked(&self.offenders).report(Clock.now(), offender, what);
        if let Some(line) = line {
            write_line(&line);
        }
    }

    pub(crate) fn write_due_lines(&self) {
        let due = locked(&self.offenders).due(Clock.now());
        due.iter().for_each(write_line);
    }

    /// The facts about this node for a decision.
    pub(crate) fn here(&self, replica: Option<&Replica>) -> LocalFacts {
        let credentials = self.credentials.borrow();
        let known = replica.and_then(|r| r.tables.cluster.as_ref()).map_or(Incarnation(0), |c| c.incarnation);
        let manager_services = [Service::Mesh, Service::Agent, Service::Join];
        LocalFacts {
            cluster: credentials.identity.cluster,
            incarnation: credentials.identity.incarnation.max(known),
            manager: manager_services.into_iter().any(|s| self.services.serves(s)),
            closed_to_others: self.services.is_closed_to_others(),
            me: credentials.identity.node().map(|(node, _)| node),
        }
    }

    pub(crate) fn evaluate(
        &self,
        identity: Option<&CertIdentity>,
        service: Service,
        replica: Option<&Replica>,
    ) -> Admission {
        if let Some(replica) = replica {
            let mut evaluated = locked(&self.evaluated);
            evaluated.any = evaluated.any.max(replica.tables.revision);
        }
        admission::admit(identity, service, replica, &self.here(replica), Clock.wall())
    }

    /// Evaluates all live connections with a newer replica, each time it changes: unlike a message, a watched value cannot be
    /// missed. (A few thousand look-ups in persistent maps take about a millisecond.)
    pub(crate) fn reevaluate_live(&self) {
        self.reevaluate_with_replica(false);
    }

    /// Evaluates them once more with the same replica if a connection has waited too long for confirmation: in an idle cluster
    /// the replica does not change.
    pub(crate) fn reevaluate_unconfirmed(&self) {
        if locked(&self.connections).unconfirmed_for(Clock.now(), CONFIRMATION_TIMEOUT) {
            self.reevaluate_with_replica(true);
        }
    }

    fn reevaluate_with_replica(&self, again: bool) {
        let Some(replica) = self.local_replica.get() else { return };
        let (here, wall, now) = (self.here(Some(&replica)), Clock.wall(), Clock.now());
        {
            let (mut evaluated, revision) = (locked(&self.evaluated), replica.tables.revision);
            let is_new = revision > evaluated.live || again && revision == evaluated.live;
            if !here.manager || !is_new || revision < evaluated.any {
                return;
            }
            *evaluated = Evaluated { live: revision, any: revision };
        }
        let ending = locked(&self.connections).reevaluate(now, |identity, service, known| {
            admission::evaluate_live(identity, service, known, &replica, &here, wall)
        });
        self.trigger(ending);
    }

    pub(crate) fn end_expired(&self) {
        let expired = locked(&self.connections).expired(Clock.wall());
        let fresh = expired.iter().filter(|k| k.disconnect_reason().is_none()).count();
        expired.iter().for_each(|k| k.cut(RefusalReason::Unauthenticated));
        self.count(|c| c.expired += fresh as u64);
    }

    fn trigger(&self, switches: impl IntoIterator<Item = (Kill, RefusalReason)>) -> usize {
        let mut triggered = 0;
        for (switch, reason) in switches {
            if switch.disconnect_reason().is_none() {
                switch.cut(reason);
                self.count(|c| *c.cut.entry(reason).or_default() += 1);
                triggered += 1;
            }
        }
        triggered
    }

    pub(crate) fn take_join(&self, address: IpAddr) -> Result<(), Duration> {
        locked(&self.joins).take(Clock.now(), source_of(address))
    }

    /// The managers to redirect clients to.
    pub(crate) fn known_managers(&self) -> Vec<String> {
        let local_replica = self.local_replica.get();
        let from_replica: Vec<String> =
            local_replica.iter().flat_map(|r| r.tables.managers()).map(|node| node.addr.clone()).collect();
        if from_replica.is_empty() { self.managers.get() } else { from_replica }
    }

    pub(crate) fn refusal(&self, reason: RefusalReason, message: String) -> Refusal {
        let retry_after_ms = match reason {
            // The replica changes with every heartbeat of its leader; a full inbox empties in milliseconds.
            RefusalReason::NotKnownHereYet | RefusalReason::TooManyRequests => Some(200),
            _ => None,
        };
        Refusal { reason, message, managers: self.known_managers(), retry_after_ms }
    }
}

fn write_line(line: &Line) {
    tracing::warn!(offender = %line.offender, what = line.what, count = line.count, "connections rejected");
}

/// A connection's slot in the table, until dropped.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    port: Arc<Inner>,
    id: ConnectionId,
    pub(crate) kill: Kill,
}

impl ConnectionSlot {
    pub(crate) fn take(port: &Arc<Inner>, address: IpAddr) -> Self {
        let kill = Kill::new();
        let (id, evicted) = locked(&port.connections).open(source_of(address), kill.clone());
        evict(port, evicted);
        Self { port: port.clone(), id, kill }
    }
    pub(crate) fn moved_on(&self) {
        locked(&self.port.connections).advance(self.id);
    }
    pub(crate) fn identify(&self, identity: &CertIdentity, service: Service) -> Result<(), Full> {
        locked(&self.port.connections).identify(self.id, identity, service, Clock.now())
    }
    pub(crate) fn confirmed(&self, by_replica: bool) {
        locked(&self.port.connections).confirmed(self.id, by_replica);
    }
    pub(crate) fn anonymous(&self, service: Service) {
        let evicted = locked(&self.port.connections).anonymous(self.id, service);
        match service {
            Service::Http => retire(&self.port, evicted),
            _ => evict(&self.port, evicted),
        }
    }
}

/// Evicts a served HTTP client: it gets notice first, so that it knows which of its requests it may repeat.
fn retire(port: &Inner, victim: Option<Kill>) {
    let Some(victim) = victim else { return };
    let Ok(permit) = Arc::clone(&port.retiring).try_acquire_owned() else { return evict(port, Some(victim)) };
    port.count(|c| c.evicted += 1);
    victim.retire();
    port.handshake_pool.waiting().spawn(async move {
        tokio::time::sleep(RETIREMENT).await;
        victim.cut(RefusalReason::TooManyRequests);
        drop(permit);
    });
}

fn evict(port: &Inner, victim: Option<Kill>) {
    if let Some(victim) = victim {
        victim.cut(RefusalReason::TooManyRequests);
        port.count(|c| c.evicted += 1);
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        locked(&self.port.connections).close(self.id);
        if std::thread::panicking() {
            self.port.count(|c| c.panicked += 1);
        }
    }
}
