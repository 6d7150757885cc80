//! The port: everything of the gateway that outlives an incarnation of its actor. A gateway that crashes and comes back
//! finds its listener, its connections and its counters where they were.

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
use tokio::sync::watch;

use crate::copy::LocalCopy;
use crate::core::admission::{self, Admission, CONFIRMED_WITHIN, HereIs};
use crate::core::connections::{ConnectionId, Connections, Full, Limits};
use crate::core::offenders::{Line, Offender, Offenders};
use crate::core::rate::{Buckets, Rate};
use crate::core::source_of;
use crate::kill::Kill;
use crate::lobby::Lobby;
use crate::managers::KnownManagers;
use crate::metrics::{GatewayMetrics, word};
use crate::services::Services;
use crate::tls::ServerTls;

/// Limits and deadlines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayConfig {
    /// Connections with a certificate, of each kind: agents' sessions, what else workers ask for, operators and users. 10,000
    /// agents on three managers of which one is down are 5,000 each.
    pub max_identified: usize,
    /// Connections of one principal, of one kind. A load generator with 256 clients shares one. Each may cost 100 KiB when it is
    /// made to: one stolen certificate must not cost more memory than a manager has to spare.
    pub max_per_principal: usize,
    /// Connections served without a certificate, HTTP clients and joiners each. Each costs up to 64 KiB.
    pub max_anonymous: usize,
    /// Connections not served yet. At 5,000 new ones a second a stranger still has 200 ms for a handshake of three.
    pub max_waiting: usize,
    /// From the first packet to the end of the handshake.
    pub handshake_deadline: Duration,
    /// From the handshake of a stranger to the first byte (a whole frame on `muster-join/1`).
    pub first_byte_deadline: Duration,
    /// How long a decision may wait for a copy that is too old.
    pub catch_up: Duration,
    /// Join requests per source. (Only well-formed ones count: garbage ends its connection and costs others nothing.)
    pub join_rate: Rate,
    /// How long an offender is worth one line.
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
            // A rack behind one address that joins at once is 100 machines; tokens hold 128 bits, so nothing is guessed
            // at any rate. The limit protects the signing key's time.
            join_rate: Rate { per_second: 20, burst: 100 },
            log_window: Duration::from_secs(60),
        }
    }
}

/// How many sources the rate limit tells apart, and how many offenders the log: well above any honest number.
const MAX_SOURCES: usize = 16_384;
const MAX_OFFENDERS: usize = 1_024;

/// Connections that the kernel completes before we accept them; it allows as many on most machines. Tokio asks for 1,024:
/// a burst of that size makes the kernel drop first packets, and everybody's next attempt comes a second later.
const BACKLOG: i32 = 4_096;

/// The listening port with its connections. Clones are the same port.
#[derive(Clone, Debug)]
pub struct Port {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) config: GatewayConfig,
    pub(crate) listener: TcpListener,
    pub(crate) lobby: Lobby,
    pub(crate) credentials: watch::Receiver<Arc<NodeCredentials>>,
    pub(crate) services: Services,
    pub(crate) copy: LocalCopy,
    pub(crate) managers: KnownManagers,
    pub(crate) tls: ServerTls,
    connections: Mutex<Connections<Kill>>,
    joins: Mutex<Buckets<IpAddr>>,
    offenders: Mutex<Offenders>,
    counters: Mutex<GatewayMetrics>,
    judged: Mutex<Judged>,
}

/// The newest copies that have judged.
#[derive(Debug, Default)]
struct Judged {
    /// All live connections.
    live: Revision,
    /// A connection, live or new. An older copy (a raft member that starts again replays its log) must not judge live ones: it
    /// would miss what was granted since.
    any: Revision,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Port {
    /// A port on a listener that is bound already, perhaps long before this node had an identity. Its services live in
    /// the runtime that calls.
    ///
    /// # Errors
    /// The system gives no threads or file descriptors.
    pub fn new(
        config: GatewayConfig,
        listener: TcpListener,
        credentials: watch::Receiver<Arc<NodeCredentials>>,
        services: Services,
        copy: LocalCopy,
        managers: KnownManagers,
    ) -> io::Result<Self> {
        let lobby = Lobby::open()?;
        let listener = lobby.take_over(listener)?;
        // What it had before is good enough, should this fail.
        let _kept = rustix::net::listen(&listener, BACKLOG);
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
            judged: Mutex::default(),
            tls: ServerTls::default(),
            config,
            listener,
            lobby,
            credentials,
            services,
            copy,
            managers,
        };
        Ok(Self { inner: Arc::new(inner) })
    }
    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.listener.local_addr()
    }
    /// The runtimes of its own threads, where connections are accepted, and where they wait until a service has them.
    pub fn runtimes(&self) -> [Handle; 2] {
        let lobby = &self.inner.lobby;
        [lobby.accepting().clone(), lobby.waiting().clone()]
    }
    /// What it has counted.
    pub fn metrics(&self) -> GatewayMetrics {
        let mut metrics = locked(&self.inner.counters).clone();
        let connections = locked(&self.inner.connections);
        (metrics.waiting, metrics.anonymous, metrics.identified) = connections.counts();
        metrics.live = connections.by_service();
        metrics
    }
    /// Cuts the live connections of a principal, on the named services (none: on all). Returns how many there were.
    pub fn cut(&self, principal: &Principal, services: &[Service], reason: RefusalReason) -> usize {
        let switches = locked(&self.inner.connections).of_principal(principal, services);
        self.inner.throw(switches.into_iter().map(|k| (k, reason)))
    }
}

impl Inner {
    pub(crate) fn count(&self, count: impl FnOnce(&mut GatewayMetrics)) {
        count(&mut locked(&self.counters));
    }

    /// Writes a line about an offender, unless it is not its turn.
    pub(crate) fn complain(&self, offender: Offender, what: &'static str) {
        let line = locked(&self.offenders).note(Clock.now(), offender, what);
        if let Some(line) = line {
            write_line(&line);
        }
    }

    pub(crate) fn write_due_lines(&self) {
        let due = locked(&self.offenders).due(Clock.now());
        due.iter().for_each(write_line);
    }

    /// Who decides, and with what in hand.
    pub(crate) fn here(&self, replica: Option<&Replica>) -> HereIs {
        let credentials = self.credentials.borrow();
        let known = replica.and_then(|r| r.tables.cluster.as_ref()).map_or(Incarnation(0), |c| c.incarnation);
        let manager_half = [Service::Mesh, Service::Agent, Service::Join];
        HereIs {
            cluster: credentials.identity.cluster,
            incarnation: credentials.identity.incarnation.max(known),
            manager: manager_half.into_iter().any(|s| self.services.serves(s)),
            closed_to_others: self.services.is_closed_to_others(),
            me: credentials.identity.node().map(|(node, _)| node),
        }
    }

    pub(crate) fn judge(
        &self,
        identity: Option<&CertIdentity>,
        service: Service,
        replica: Option<&Replica>,
    ) -> Admission {
        if let Some(replica) = replica {
            let mut judged = locked(&self.judged);
            judged.any = judged.any.max(replica.tables.revision);
        }
        admission::admit(identity, service, replica, &self.here(replica), Clock.wall())
    }

    /// Judges the live connections by a newer copy. Every connection, every time the copy changes: a level cannot be
    /// missed, as a message could. (A few thousand look-ups in persistent maps take about a millisecond.)
    pub(crate) fn judge_live(&self) {
        self.judge_by_copy(false);
    }

    /// Judges them by the same copy once more where some wait too long for a copy that confirms them: in a quiet cluster it
    /// does not change.
    pub(crate) fn judge_unconfirmed(&self) {
        if locked(&self.connections).unconfirmed_for(Clock.now(), CONFIRMED_WITHIN) {
            self.judge_by_copy(true);
        }
    }

    fn judge_by_copy(&self, again: bool) {
        let Some(replica) = self.copy.get() else { return };
        let (here, wall, now) = (self.here(Some(&replica)), Clock.wall(), Clock.now());
        {
            let (mut judged, revision) = (locked(&self.judged), replica.tables.revision);
            let is_new = revision > judged.live || again && revision == judged.live;
            if !here.manager || !is_new || revision < judged.any {
                return;
            }
            *judged = Judged { live: revision, any: revision };
        }
        let ending = locked(&self.connections).judge_again(now, |identity, service, known| {
            admission::standing(identity, service, known, &replica, &here, wall)
        });
        self.throw(ending);
    }

    /// Ends connections whose certificate has expired.
    pub(crate) fn end_expired(&self) {
        let expired = locked(&self.connections).expired(Clock.wall());
        let fresh = expired.iter().filter(|k| k.cut_reason().is_none()).count();
        expired.iter().for_each(|k| k.cut(RefusalReason::Unauthenticated));
        self.count(|c| c.expired += fresh as u64);
    }

    fn throw(&self, switches: impl IntoIterator<Item = (Kill, RefusalReason)>) -> usize {
        let mut thrown = 0;
        for (switch, reason) in switches {
            if switch.cut_reason().is_none() {
                switch.cut(reason);
                self.count(|c| *c.cut.entry(word(reason)).or_default() += 1);
                thrown += 1;
            }
        }
        thrown
    }

    pub(crate) fn take_join(&self, address: IpAddr) -> Result<(), Duration> {
        locked(&self.joins).take(Clock.now(), source_of(address))
    }

    /// The managers to send somebody on to.
    pub(crate) fn known_managers(&self) -> Vec<String> {
        let copy = self.copy.get();
        let from_copy: Vec<String> =
            copy.iter().flat_map(|r| r.tables.managers()).map(|node| node.addr.clone()).collect();
        if from_copy.is_empty() { self.managers.get() } else { from_copy }
    }

    pub(crate) fn refusal(&self, reason: RefusalReason, message: String) -> Refusal {
        let retry_after_ms = match reason {
            // The copy changes with every heartbeat of its leader; a full inbox empties in milliseconds.
            RefusalReason::NotKnownHereYet | RefusalReason::TooManyRequests => Some(200),
            _ => None,
        };
        Refusal { reason, message, managers: self.known_managers(), retry_after_ms }
    }
}

fn write_line(line: &Line) {
    tracing::warn!(offender = %line.offender, what = line.what, count = line.count, "connections turned away");
}

/// A connection's place in the table, until dropped.
#[derive(Debug)]
pub(crate) struct Place {
    port: Arc<Inner>,
    id: ConnectionId,
    pub(crate) kill: Kill,
}

impl Place {
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
    pub(crate) fn confirmed(&self, by_copy: bool) {
        locked(&self.port.connections).confirmed(self.id, by_copy);
    }
    pub(crate) fn anonymous(&self, service: Service) {
        let evicted = locked(&self.port.connections).anonymous(self.id, service);
        evict(&self.port, evicted);
    }
}

fn evict(port: &Inner, stranger: Option<Kill>) {
    if let Some(stranger) = stranger {
        stranger.cut(RefusalReason::TooManyRequests);
        port.count(|c| c.evicted += 1);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        locked(&self.port.connections).close(self.id);
        if std::thread::panicking() {
            self.port.count(|c| c.panicked += 1);
        }
    }
}
