//! Every connection on the port, from its first packet to its end: the limits, and who is cut.
//!
//! Keeps  CONN-1  a connection is here under its principal before it is judged. So a block that is applied after the
//!                judgement finds it, and one applied before is seen by the judgement: nothing slips between.
//!        CONN-2  strangers never take a place from somebody who has shown a certificate: the waiting and the anonymous
//!                have pools of their own.
//!        CONN-3  a full pool of strangers still lets the next one in: the source with the most connections loses one,
//!                the one that has not moved on for the longest time. A legitimate client moves on within milliseconds;
//!                whoever floods evicts himself. (To let those go first that have shown least looks better and is
//!                worse: a pool full of half-finished handshakes then throws out every newcomer before its first byte.)
//!        CONN-4  who is served without a certificate competes with those of the same service alone: a joiner waits for
//!                a quorum, and a flood of HTTP clients from its address must not throw it out meanwhile.
//!        CONN-5  identities of workers, however many, take no connection from the mesh, from an agent of another node, or
//!                from operators: each of these kinds has places of its own, and what workers ask for is shared so that a
//!                few of them never have all.
//!
//! `K` is the kill switch of a connection, which this module hands out and never throws itself.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use muster_messages::protocol::Service;
use muster_messages::{CertIdentity, Moment, Principal, RefusalReason, Role, Subject, WallTime};

use super::admission::Standing;

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// With a certificate, of each kind of connection but the mesh.
    pub identified: usize,
    /// With one and the same certificate's principal, of one kind.
    pub per_principal: usize,
    /// Served without a certificate, by one service.
    pub anonymous: usize,
    /// Not served yet: silent, in the handshake, or without a first byte.
    pub waiting: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(u64);

/// What connections with a certificate compete for the same places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Of a manager to this one.
    Mesh,
    /// The session of a node's agent. A newer one takes the place of an older one that is not known to be dead yet.
    Agent,
    /// What else a worker's certificate opens: its own requests, and those that it passes on.
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

/// Sessions of managers with this one: ten times as many managers as Raft is good for.
const MESH: usize = 256;
/// Of one manager: both dial, and each may have been started again meanwhile.
const MESH_OF_ONE: usize = 8;
/// Sessions of one agent: the one that lives and the one that takes its place.
const AGENT_OF_ONE: usize = 2;
/// Of the places that are free, what one worker may have: the share that leaves room for others however many take theirs.
/// With four workers that take all they can get half of the places stay free, with sixteen a fifth.
const SHARE_OF_FREE: usize = 4;
/// What every worker may have while there are places: its reconcilers' watch, and a few requests that it passes on.
const LEAST_SHARE: usize = 4;

/// Which limit was in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    Identified,
    Principal,
}

#[derive(Clone, Debug)]
enum Phase {
    /// `moved`: counts up; the smallest has not moved on for the longest time.
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
        by_copy: bool,
        since: Moment,
    },
}

#[derive(Clone, Debug)]
struct Entry<K> {
    source: IpAddr,
    phase: Phase,
    switch: K,
}

/// All connections.
#[derive(Clone, Debug)]
pub struct Connections<K> {
    limits: Limits,
    /// Numbers connections and their moves.
    last: u64,
    entries: BTreeMap<ConnectionId, Entry<K>>,
    waiting: Pool,
    anonymous: BTreeMap<Service, Pool>,
    by_principal: BTreeMap<Principal, BTreeSet<ConnectionId>>,
    /// How many of each kind, and of each principal's.
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

    /// A stranger connected. The second value: the stranger who must go for it.
    pub fn open(&mut self, source: IpAddr, switch: K) -> (ConnectionId, Option<K>) {
        let evicted = self.make_room(self.waiting.full(self.limits.waiting));
        let moved = self.number();
        let id = ConnectionId(moved);
        let phase = Phase::Waiting { moved };
        self.waiting.insert(source, moved, id);
        self.entries.insert(id, Entry { source, phase, switch });
        (id, evicted)
    }

    /// A waiting connection has moved on: its first byte came, or its handshake is done.
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

    /// It has shown a certificate. From now on it can be cut by name.
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
            Phase::Identified { identity: Box::new(identity.clone()), service, kind, by_copy: false, since: now };
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
        let limit = if kind == Kind::Mesh { MESH } else { self.limits.identified };
        let share = match kind {
            Kind::Mesh => MESH_OF_ONE,
            Kind::Agent => AGENT_OF_ONE,
            Kind::Worker => {
                let of_free = limit.saturating_sub(taken) / SHARE_OF_FREE;
                of_free.max(LEAST_SHARE).min(self.limits.per_principal)
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

    /// Whether a copy has confirmed its identity, not only its certificate.
    pub fn confirmed(&mut self, id: ConnectionId, confirmed: bool) {
        if let Some(Entry { phase: Phase::Identified { by_copy, .. }, .. }) = self.entries.get_mut(&id) {
            *by_copy = confirmed;
        }
    }

    /// It is served without identity: it has none, or its identity was refused and an answer has to say so. Returns the
    /// one who must go for it.
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

    /// It is over. Repeated, or evicted before: nothing.
    pub fn close(&mut self, id: ConnectionId) {
        if let Some(entry) = self.entries.remove(&id) {
            self.unlink(id, &entry);
        }
    }

    /// The switches of a principal's connections to these services (none named: to all).
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

    /// Whether one has been there for so long without a copy that confirmed it.
    pub fn unconfirmed_for(&self, now: Moment, long: Duration) -> bool {
        self.entries.values().any(|entry| match entry.phase {
            Phase::Identified { by_copy, since, .. } => !by_copy && now.since(since) >= long,
            _ => false,
        })
    }

    /// Judges every identified connection again, by whether a copy has confirmed it and how long it is there; returns the
    /// switches of those that end.
    pub fn judge_again(
        &mut self,
        now: Moment,
        judge: impl Fn(&CertIdentity, Service, (bool, Duration)) -> Standing,
    ) -> Vec<(K, RefusalReason)> {
        let mut ending = Vec::new();
        for entry in self.entries.values_mut() {
            let Phase::Identified { identity, service, by_copy, since, .. } = &mut entry.phase else {
                continue;
            };
            match judge(identity, *service, (*by_copy, now.since(*since))) {
                Standing::Stays { by_copy: confirmed } => *by_copy = confirmed,
                Standing::Ends(reason) => ending.push((entry.switch.clone(), reason)),
            }
        }
        ending
    }

    /// How many there are: waiting, anonymous, identified.
    pub fn counts(&self) -> (usize, usize, usize) {
        (self.waiting.len, self.anonymous.values().map(|pool| pool.len).sum(), self.by_expiry.len())
    }

    /// How many are served, by service.
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

    /// False: it is not there any more (evicted).
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

/// Strangers, by where they come from.
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
    /// Who must go, if there are as many as there may be.
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
        }
    }

    #[test]
    fn a_full_pool_of_strangers_lets_the_next_one_in_at_the_cost_of_the_greediest() {
        let mut all = Connections::new(LIMITS);
        let (honest, _) = all.open(ip(1), "honest");
        let (_, none) = all.open(ip(2), "a");
        assert_eq!(none, None);
        let (b, _) = all.open(ip(2), "b");
        assert_eq!(all.open(ip(2), "c").1, Some("a"), "the oldest of the greediest");
        all.advance(b);
        assert_eq!(all.open(ip(3), "d").1, Some("c"), "the one that has not moved on");
        assert_eq!(all.counts().0, 3);
        all.advance(honest);
        assert!(all.identify(honest, &node(1, 9), Service::Agent, Moment(0)).is_ok());
        assert_eq!(all.counts(), (2, 0, 1));
    }

    #[test]
    fn a_flood_throws_out_its_own_oldest_and_not_the_newcomer() {
        let mut all = Connections::new(Limits { waiting: 50, ..LIMITS });
        for n in 0..1000 {
            let (id, evicted) = all.open(ip(1), n);
            assert_eq!(evicted, (n >= 50).then(|| n - 50));
            all.advance(id); // half a handshake, each of them
        }
    }

    #[test]
    fn strangers_never_take_a_place_from_somebody_with_a_certificate() {
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
    fn a_flood_of_http_clients_does_not_throw_out_a_joiner_of_the_same_address() {
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
    fn workers_that_take_all_they_can_leave_places_for_others() {
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
        for _ in 0..LEAST_SHARE {
            assert_eq!(connect(&honest, Service::Api), Ok(()), "a worker that asks for little");
        }
        // The session of its agent, and a newer one; a third only when one of them is gone.
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
    fn agents_that_fill_their_places_take_none_from_the_mesh() {
        let mut all = Connections::new(LIMITS);
        let mut connect = |who: &CertIdentity, service| {
            let (id, _) = all.open(ip(1), ());
            all.identify(id, who, service, Moment(0))
        };
        for n in 0..4 {
            assert_eq!(connect(&node(n, 9), Service::Agent), Ok(()));
        }
        assert_eq!(connect(&node(9, 9), Service::Agent), Err(Full::Identified));
        // What a worker does on the mesh is not of the mesh's places: it is refused there.
        let workers: Vec<_> = (0..5).map(|n| connect(&node(n, 9), Service::Mesh)).collect();
        assert_eq!(workers[4], Err(Full::Identified));
        let manager = CertIdentity {
            subject: Subject::Node { node: NodeId::from_entropy(8), role: Role::Manager },
            ..node(8, 9)
        };
        let sessions: Vec<_> = (0..MESH_OF_ONE + 1).map(|_| connect(&manager, Service::Mesh)).collect();
        assert!(sessions[..MESH_OF_ONE].iter().all(Result::is_ok) && sessions[MESH_OF_ONE] == Err(Full::Principal));
    }

    #[test]
    fn a_cut_finds_the_principals_connections_of_the_named_services_only() {
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
    fn connections_end_with_their_certificate_and_leave_nothing_behind() {
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
    fn a_refused_identity_that_waits_for_its_answer_is_not_judged_again() {
        let mut all = Connections::new(LIMITS);
        let (id, _) = all.open(ip(1), "refused");
        assert!(all.identify(id, &node(1, 9), Service::Http, Moment(0)).is_ok());
        assert_eq!(all.anonymous(id, Service::Http), None);
        let ends = |_: &CertIdentity, _, _| Standing::Ends(RefusalReason::Blocked);
        assert!(all.judge_again(Moment(0), ends).is_empty());
        assert_eq!(all.counts(), (0, 1, 0));
        all.close(id);
        assert_eq!(all.counts(), (0, 0, 0));
    }
}
