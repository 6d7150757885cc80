//! All connections on the port, from first packet to end: limits, and which connections are disconnected.
//!
//! Owns        the entry of each connection, and the counts of each pool, principal and kind.
//! Invariants  CONN-1  a connection is registered under its principal before it is judged. A block that is applied after the
//!                     decision finds the connection, and one applied before is part of the decision: nothing slips between.
//!             CONN-2  unauthenticated connections never take a permit from an authenticated one: waiting and anonymous
//!                     connections have pools of their own.
//!             CONN-3  a full pool of unauthenticated connections still admits the next one: the source with the most
//!                     connections loses the one that has made no progress for the longest time. A legitimate client makes
//!                     progress within milliseconds; a flooding client evicts itself. (Evicting first those that have
//!                     presented least looks better and is worse: a pool full of half-finished handshakes then throws out
//!                     every newcomer before its first byte.)
//!             CONN-4  a client served without a certificate competes only with those of the same service: a joiner waits for
//!                     a quorum, and a flood of HTTP clients from its address must not evict it meanwhile. An evicted HTTP
//!                     client gets notice before its connection is cut; its place is free at once.
//!             CONN-5  worker identities, however many, take no connection from the mesh, from an agent of another node, or
//!                     from operators: each of these kinds has its own permits, and those for workers' requests are shared so
//!                     that a few workers never have all.
//!
//! `K` is the kill switch of a connection, which this module returns and never triggers itself.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use muster_messages::protocol::Service;
use muster_messages::{CertIdentity, Moment, Principal, RefusalReason, Role, Subject, WallTime};

use super::admission::LiveDecision;

/// Limits on the number of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// With a certificate, of each kind of connection but the mesh.
    pub identified: usize,
    /// Of one principal with a certificate, of one kind.
    pub per_principal: usize,
    /// Served without a certificate, by one service.
    pub anonymous: usize,
    /// Not served yet: silent, in the handshake, or without a first byte.
    pub waiting: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(u64);

/// Kinds of connections with a certificate. Each kind has its own permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Of another manager.
    Mesh,
    /// The session of a node's agent. A newer one replaces an older one that is not yet known to be dead.
    Agent,
    /// Other connections with a worker's certificate: its own requests, and those that it forwards.
    Worker,
    /// Operators, users, and managers as clients.
    Others,
}

impl Kind {
    fn of(identity: &CertIdentity, service: Service) -> Self {
        match (&identity.subject, service) {
            (Subject::Node { role: Role::Manager, .. }, Service::Mesh) => Kind::Mesh,
            (Subject::Node { .. }, Service::Agent) => Kind::Agent,
            (Subject::Node { role: Role::Worker, .. }, _) => Kind::Worker,
            _ => Kind::Others,
        }
    }
}

/// Mesh sessions: ten times as many managers as Raft is suited for.
const MAX_MESH_CONNECTIONS: usize = 256;
/// Of one manager: both sides dial, and each may have restarted meanwhile.
const MAX_MESH_PER_MANAGER: usize = 8;
/// Sessions of one agent: the live one and its replacement.
const MAX_SESSIONS_PER_AGENT: usize = 2;
/// The part of the free permits that one worker may have, which leaves room however many take theirs. With four greedy
/// workers half of the permits stay free, with sixteen a fifth.
const FREE_SHARE_DIVISOR: usize = 4;
/// What every worker may have while permits are free: its reconcilers' watch, and a few forwarded requests.
const MIN_WORKER_SHARE: usize = 4;

/// The limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    Identified,
    Principal,
}

#[derive(Clone, Debug)]
enum Phase {
    /// `moved`: increasing; the smallest has made no progress for the longest time.
    Waiting {
        moved: u64,
    },
    Anonymous {
        service: Service,
        since: u64,
    },
    Identified {
        identity: Box<CertIdentity>,
        service: Service,
        kind: Kind,
        by_replica: bool,
        since: Moment,
    },
}

#[derive(Clone, Debug)]
struct Entry<K> {
    source: IpAddr,
    phase: Phase,
    switch: K,
}

#[derive(Clone, Debug)]
pub struct Connections<K> {
    limits: Limits,
    /// The last number of a connection or its progress.
    last: u64,
    entries: BTreeMap<ConnectionId, Entry<K>>,
    waiting: Pool,
    anonymous: BTreeMap<Service, Pool>,
    by_principal: BTreeMap<Principal, BTreeSet<ConnectionId>>,
    /// Connections of each kind, and of each principal.
    by_kind: BTreeMap<Kind, usize>,
    shares: BTreeMap<(Kind, Principal), usize>,
    by_expiry: BTreeSet<(WallTime, ConnectionId)>,
}

impl<K: Clone> Connections<K> {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            last: 0,
            entries: BTreeMap::new(),
            waiting: Pool::default(),
            anonymous: BTreeMap::new(),
            by_principal: BTreeMap::new(),
            by_kind: BTreeMap::new(),
            shares: BTreeMap::new(),
            by_expiry: BTreeSet::new(),
        }
    }

    /// A new connection. The second value: the connection evicted for it.
    pub fn open(&mut self, source: IpAddr, switch: K) -> (ConnectionId, Option<K>) {
        let evicted = self.make_room(self.waiting.full(self.limits.waiting));
        let moved = self.number();
        let id = ConnectionId(moved);
        let phase = Phase::Waiting { moved };
        self.waiting.insert(source, moved, id);
        self.entries.insert(id, Entry { source, phase, switch });
        (id, evicted)
    }

    /// A waiting connection has made progress: its first byte arrived, or its handshake is done.
    pub fn advance(&mut self, id: ConnectionId) {
        let to = self.number();
        if let Some(entry) = self.entries.get_mut(&id)
            && let Phase::Waiting { moved } = &mut entry.phase
        {
            self.waiting.remove(entry.source, *moved, id);
            self.waiting.insert(entry.source, to, id);
            *moved = to;
        }
    }

    /// It has presented a certificate, and can be disconnected by principal from now on.
    pub fn identify(
        &mut self,
        id: ConnectionId,
        identity: &CertIdentity,
        service: Service,
        now: Moment,
    ) -> Result<(), Full> {
        let principal = identity.principal();
        let kind = Kind::of(identity, service);
        self.has_room(kind, &principal)?;
        let identified =
            Phase::Identified { identity: Box::new(identity.clone()), service, kind, by_replica: false, since: now };
        if self.set_phase(id, identified) {
            self.by_expiry.insert((identity.not_after, id));
            *self.by_kind.entry(kind).or_default() += 1;
            *self.shares.entry((kind, principal.clone())).or_default() += 1;
            self.by_principal.entry(principal).or_default().insert(id);
        }
        Ok(())
    }

    /// CONN-5.
    fn has_room(&self, kind: Kind, principal: &Principal) -> Result<(), Full> {
        let taken = self.by_kind.get(&kind).copied().unwrap_or_default();
        let limit = if kind == Kind::Mesh { MAX_MESH_CONNECTIONS } else { self.limits.identified };
        let share = match kind {
            Kind::Mesh => MAX_MESH_PER_MANAGER,
            Kind::Agent => MAX_SESSIONS_PER_AGENT,
            Kind::Worker => {
                let of_free = limit.saturating_sub(taken) / FREE_SHARE_DIVISOR;
                of_free.max(MIN_WORKER_SHARE).min(self.limits.per_principal)
            }
            Kind::Others => self.limits.per_principal,
        };
        let held = self.shares.get(&(kind, principal.clone())).copied().unwrap_or_default();
        if taken >= limit {
            Err(Full::Identified)
        } else if held >= share {
            Err(Full::Principal)
        } else {
            Ok(())
        }
    }

    /// Whether a replica has confirmed its identity, beyond its certificate.
    pub fn confirmed(&mut self, id: ConnectionId, confirmed: bool) {
        if let Some(Entry { phase: Phase::Identified { by_replica, .. }, .. }) = self.entries.get_mut(&id) {
            *by_replica = confirmed;
        }
    }

    /// It is served without identity: it has none, or its identity was refused and it waits for that answer. Returns the
    /// connection evicted for it.
    pub fn anonymous(&mut self, id: ConnectionId, service: Service) -> Option<K> {
        let source = self.entries.get(&id)?.source;
        let pool = self.anonymous.entry(service).or_default();
        let victim = pool.full(self.limits.anonymous);
        let evicted = self.make_room(victim);
        let since = self.number();
        if self.set_phase(id, Phase::Anonymous { service, since }) {
            self.anonymous.entry(service).or_default().insert(source, since, id);
        }
        evicted
    }

    /// It ended. Repeated, or evicted before: no effect.
    pub fn close(&mut self, id: ConnectionId) {
        if let Some(entry) = self.entries.remove(&id) {
            self.unlink(id, &entry);
        }
    }

    /// The switches of a principal's connections to these services (none: to all).
    pub fn of_principal(&self, principal: &Principal, services: &[Service]) -> Vec<K> {
        let ids = self.by_principal.get(principal).into_iter().flatten();
        let entries = ids.filter_map(|id| self.entries.get(id));
        entries
            .filter(|e| match e.phase {
                Phase::Identified { service, .. } => services.is_empty() || services.contains(&service),
                _ => false,
            })
            .map(|e| e.switch.clone())
            .collect()
    }

    /// The switches of connections whose certificate has expired.
    pub fn expired(&self, now: WallTime) -> Vec<K> {
        let expired = self.by_expiry.iter().take_while(|(at, _)| *at <= now);
        let entries = expired.filter_map(|(_, id)| self.entries.get(id));
        entries.map(|e| e.switch.clone()).collect()
    }

    /// Whether a connection has been open for this long without confirmation by a replica.
    pub fn unconfirmed_for(&self, now: Moment, long: Duration) -> bool {
        self.entries.values().any(|entry| match entry.phase {
            Phase::Identified { by_replica, since, .. } => !by_replica && now.since(since) >= long,
            _ => false,
        })
    }

    /// Evaluates all identified connections again, by whether a replica has confirmed them and how long they have been open.
    /// Returns the switches of those that end.
    pub fn reevaluate(
        &mut self,
        now: Moment,
        evaluate: impl Fn(&CertIdentity, Service, (bool, Duration)) -> LiveDecision,
    ) -> Vec<(K, RefusalReason)> {
        let mut ending = Vec::new();
        for entry in self.entries.values_mut() {
            let Phase::Identified { identity, service, by_replica, since, .. } = &mut entry.phase else {
                continue;
            };
            match evaluate(identity, *service, (*by_replica, now.since(*since))) {
                LiveDecision::Stays { by_replica: confirmed } => *by_replica = confirmed,
                LiveDecision::Ends(reason) => ending.push((entry.switch.clone(), reason)),
            }
        }
        ending
    }

    /// The numbers of connections: waiting, anonymous, identified.
    pub fn counts(&self) -> (usize, usize, usize) {
        (self.waiting.len, self.anonymous.values().map(|pool| pool.len).sum(), self.by_expiry.len())
    }

    /// The numbers of served connections, by service.
    pub fn by_service(&self) -> BTreeMap<Service, usize> {
        let mut counts = BTreeMap::new();
        for entry in self.entries.values() {
            if let Phase::Anonymous { service, .. } | Phase::Identified { service, .. } = entry.phase {
                *counts.entry(service).or_default() += 1;
            }
        }
        counts
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn make_room(&mut self, victim: Option<ConnectionId>) -> Option<K> {
        let victim = victim?;
        let entry = self.entries.remove(&victim)?;
        self.unlink(victim, &entry);
        Some(entry.switch)
    }

    /// False: it was evicted.
    fn set_phase(&mut self, id: ConnectionId, phase: Phase) -> bool {
        let Some(mut entry) = self.entries.remove(&id) else {
            return false;
        };
        self.unlink(id, &entry);
        entry.phase = phase;
        self.entries.insert(id, entry);
        true
    }

    fn unlink(&mut self, id: ConnectionId, entry: &Entry<K>) {
        match &entry.phase {
            Phase::Waiting { moved } => self.waiting.remove(entry.source, *moved, id),
            Phase::Anonymous { service, since } => {
                self.anonymous.entry(*service).or_default().remove(entry.source, *since, id);
            }
            Phase::Identified { identity, kind, .. } => {
                self.by_expiry.remove(&(identity.not_after, id));
                let principal = identity.principal();
                let left = self.by_kind.get(kind).map_or(0, |taken| taken.saturating_sub(1));
                self.by_kind.insert(*kind, left);
                let share = (*kind, principal.clone());
                match self.shares.get_mut(&share) {
                    Some(held) if *held > 1 => *held -= 1,
                    _ => drop(self.shares.remove(&share)),
                }
                if let Some(ids) = self.by_principal.get_mut(&principal) {
                    ids.remove(&id);
                    if ids.is_empty() {
                        self.by_principal.remove(&principal);
                    }
                }
            }
        }
    }
}

/// Unauthenticated connections, by source.
#[derive(Clone, Debug, Default)]
struct Pool {
    len: usize,
    by_source: BTreeMap<IpAddr, BTreeSet<(u64, ConnectionId)>>,
}

impl Pool {
    fn insert(&mut self, source: IpAddr, number: u64, id: ConnectionId) {
        if self.by_source.entry(source).or_default().insert((number, id)) {
            self.len += 1;
        }
    }
    fn remove(&mut self, source: IpAddr, number: u64, id: ConnectionId) {
        let Some(ids) = self.by_source.get_mut(&source) else {
            return;
        };
        if ids.remove(&(number, id)) {
            self.len -= 1;
        }
        if ids.is_empty() {
            self.by_source.remove(&source);
        }
    }
    /// The connection to evict, if the pool is full.
    fn full(&self, limit: usize) -> Option<ConnectionId> {
        if self.len < limit {
            return None;
        }
        let greediest = self.by_source.values().max_by_key(|ids| ids.len())?;
        greediest.first().map(|(_, id)| *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_messages::{ClusterId, Incarnation, NodeId, Revision};

    const LIMITS: Limits = Limits { identified: 4, per_principal: 2, anonymous: 2, waiting: 3 };

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }
    fn node(n: u128, not_after: i64) -> CertIdentity {
        CertIdentity {
            cluster: ClusterId::from_entropy(1),
            subject: Subject::Node { node: NodeId::from_entropy(n), role: Role::Worker },
            serial: n.to_string(),
            granted: Some(Revision(1)),
            incarnation: Incarnation(1),
            not_after: WallTime(not_after),
            pin: None,
            issuer: None,
        }
    }

    #[test]
    fn full_pool_evicts_from_the_greediest_source() {
        let mut all = Connections::new(LIMITS);
        let (honest, _) = all.open(ip(1), "honest");
        let (_, none) = all.open(ip(2), "a");
        assert_eq!(none, None);
        let (b, _) = all.open(ip(2), "b");
        assert_eq!(all.open(ip(2), "c").1, Some("a"), "the oldest connection of the greediest source");
        all.advance(b);
        assert_eq!(all.open(ip(3), "d").1, Some("c"), "the one without progress");
        assert_eq!(all.counts().0, 3);
        all.advance(honest);
        assert!(all.identify(honest, &node(1, 9), Service::Agent, Moment(0)).is_ok());
        assert_eq!(all.counts(), (2, 0, 1));
    }

    #[test]
    fn flood_evicts_its_own_oldest_connections() {
        let mut all = Connections::new(Limits { waiting: 50, ..LIMITS });
        for n in 0..1000 {
            let (id, evicted) = all.open(ip(1), n);
            assert_eq!(evicted, (n >= 50).then(|| n - 50));
            all.advance(id); // each with half a handshake
        }
    }

    #[test]
    fn anonymous_clients_take_no_permit_of_identified_ones() {
        let mut all = Connections::new(LIMITS);
        for n in 0..4 {
            let (id, _) = all.open(ip(1), "node");
            assert!(all.identify(id, &node(n, 9), Service::Agent, Moment(0)).is_ok());
        }
        for n in 0..100 {
            let (id, evicted) = all.open(ip(9), "stranger");
            assert_ne!(evicted, Some("node"));
            if n % 2 == 0 {
                assert_ne!(all.anonymous(id, Service::Http), Some("node"));
            }
        }
        assert_eq!(all.counts(), (3, 2, 4));
        let (id, _) = all.open(ip(1), "fifth");
        assert_eq!(all.identify(id, &node(5, 9), Service::Agent, Moment(0)), Err(Full::Identified));
    }

    #[test]
    fn http_flood_does_not_evict_joiner_of_same_address() {
        let mut all = Connections::new(LIMITS);
        let (joiner, _) = all.open(ip(1), "joiner");
        assert_eq!(all.anonymous(joiner, Service::Join), None);
        let flood = (0..100).filter_map(|_| {
            let (id, _) = all.open(ip(1), "http");
            all.anonymous(id, Service::Http)
        });
        assert!(flood.collect::<Vec<_>>().iter().all(|evicted| *evicted == "http"));
        assert_eq!(all.counts(), (0, 3, 0));
    }

    #[test]
    fn one_principal_cannot_fill_the_port() {
        let mut all = Connections::new(LIMITS);
        let ids: Vec<_> = (0..3).map(|_| all.open(ip(1), ()).0).collect();
        let held: Vec<_> = ids.iter().map(|i| all.identify(*i, &node(1, 9), Service::Api, Moment(0))).collect();
        assert_eq!(held, [Ok(()), Ok(()), Err(Full::Principal)]);
        all.close(ids[0]);
        assert_eq!(all.identify(ids[2], &node(1, 9), Service::Api, Moment(0)), Ok(()));
    }

    /// CONN-5.
    #[test]
    fn greedy_workers_leave_permits_for_others() {
        let mut all = Connections::new(Limits { identified: 400, per_principal: 100, ..LIMITS });
        let mut connect = |who: &CertIdentity, service| {
            let (id, _) = all.open(ip(1), ());
            let outcome = all.identify(id, who, service, Moment(0));
            if outcome.is_err() {
                all.close(id);
            }
            outcome
        };
        for round in 0..400 {
            for greedy in 0..16 {
                let service = if round % 2 == 0 { Service::Api } else { Service::Http };
                let _as_many_as_it_gets = connect(&node(greedy, 9), service);
            }
        }
        let honest = node(77, 9);
        for _ in 0..MIN_WORKER_SHARE {
            assert_eq!(connect(&honest, Service::Api), Ok(()), "a worker with few requests");
        }
        // The session of its agent, and a newer one; a third only after one of them has ended.
        assert_eq!([(); 3].map(|()| connect(&honest, Service::Agent)), [Ok(()), Ok(()), Err(Full::Principal)]);
        let manager = CertIdentity {
            subject: Subject::Node { node: NodeId::from_entropy(5), role: Role::Manager },
            ..node(5, 9)
        };
        assert_eq!(connect(&manager, Service::Mesh), Ok(()));
        let operator = CertIdentity { subject: Subject::Admin("ann".parse().unwrap()), ..node(6, 9) };
        assert_eq!(connect(&operator, Service::Api), Ok(()));
    }

    #[test]
    fn full_agent_permits_leave_mesh_permits_free() {
        let mut all = Connections::new(LIMITS);
        let mut connect = |who: &CertIdentity, service| {
            let (id, _) = all.open(ip(1), ());
            all.identify(id, who, service, Moment(0))
        };
        for n in 0..4 {
            assert_eq!(connect(&node(n, 9), Service::Agent), Ok(()));
        }
        assert_eq!(connect(&node(9, 9), Service::Agent), Err(Full::Identified));
        // A worker's mesh connection takes none of the mesh's permits: it is refused there.
        let workers: Vec<_> = (0..5).map(|n| connect(&node(n, 9), Service::Mesh)).collect();
        assert_eq!(workers[4], Err(Full::Identified));
        let manager = CertIdentity {
            subject: Subject::Node { node: NodeId::from_entropy(8), role: Role::Manager },
            ..node(8, 9)
        };
        let sessions: Vec<_> = (0..MAX_MESH_PER_MANAGER + 1).map(|_| connect(&manager, Service::Mesh)).collect();
        assert!(
            sessions[..MAX_MESH_PER_MANAGER].iter().all(Result::is_ok)
                && sessions[MAX_MESH_PER_MANAGER] == Err(Full::Principal)
        );
    }

    #[test]
    fn disconnect_finds_only_the_named_services() {
        let mut all = Connections::new(Limits { per_principal: 9, ..LIMITS });
        let wanted = node(1, 9);
        for (who, service) in [(&wanted, Service::Mesh), (&wanted, Service::Agent), (&node(2, 9), Service::Mesh)] {
            let (id, _) = all.open(ip(1), (who.serial.clone(), service));
            assert!(all.identify(id, who, service, Moment(0)).is_ok());
        }
        let cut = all.of_principal(&wanted.principal(), &[Service::Mesh]);
        assert_eq!(cut, [("1".to_owned(), Service::Mesh)]);
        assert_eq!(all.of_principal(&wanted.principal(), &[]).len(), 2);
    }

    #[test]
    fn connections_end_with_their_certificate_without_leaks() {
        let mut all = Connections::new(LIMITS);
        let (early, _) = all.open(ip(1), "early");
        let (late, _) = all.open(ip(1), "late");
        assert!(all.identify(early, &node(1, 100), Service::Api, Moment(0)).is_ok());
        assert!(all.identify(late, &node(2, 200), Service::Api, Moment(0)).is_ok());
        assert_eq!(all.expired(WallTime(99)), [""; 0]);
        assert_eq!(all.expired(WallTime(100)), ["early"]);
        all.close(early);
        all.close(early);
        all.close(late);
        assert_eq!(all.counts(), (0, 0, 0));
        assert!(all.entries.is_empty() && all.by_principal.is_empty() && all.by_expiry.is_empty());
        assert!(all.waiting.by_source.is_empty());
    }

    #[test]
    fn refused_identity_awaiting_answer_is_not_reevaluated() {
        let mut all = Connections::new(LIMITS);
        let (id, _) = all.open(ip(1), "refused");
        assert!(all.identify(id, &node(1, 9), Service::Http, Moment(0)).is_ok());
        assert_eq!(all.anonymous(id, Service::Http), None);
        let ends = |_: &CertIdentity, _, _| LiveDecision::Ends(RefusalReason::Blocked);
        assert!(all.reevaluate(Moment(0), ends).is_empty());
        assert_eq!(all.counts(), (0, 1, 0));
        all.close(id);
        assert_eq!(all.counts(), (0, 0, 0));
    }
}
