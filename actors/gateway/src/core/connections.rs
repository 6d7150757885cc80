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
//!
//! `K` is the kill switch of a connection, which this module hands out and never throws itself.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use muster_messages::protocol::Service;
use muster_messages::{CertIdentity, Principal, RefusalReason, WallTime};

use super::admission::Standing;

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// With a certificate.
    pub identified: usize,
    /// With one and the same certificate's principal.
    pub per_principal: usize,
    /// Served without a certificate, by one service.
    pub anonymous: usize,
    /// Not served yet: silent, in the handshake, or without a first byte.
    pub waiting: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(u64);

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
        by_copy: bool,
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
    pub fn identify(&mut self, id: ConnectionId, identity: &CertIdentity, service: Service) -> Result<(), Full> {
        let principal = identity.principal();
        let held = self.by_principal.get(&principal).map_or(0, BTreeSet::len);
        if held >= self.limits.per_principal {
            return Err(Full::Principal);
        }
        if self.by_expiry.len() >= self.limits.identified {
            return Err(Full::Identified);
        }
        if self.set_phase(id, Phase::Identified { identity: Box::new(identity.clone()), service, by_copy: false }) {
            self.by_expiry.insert((identity.not_after, id));
            self.by_principal.entry(principal).or_default().insert(id);
        }
        Ok(())
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

    /// Judges every identified connection again; returns the switches of those that end.
    pub fn judge_again(&mut self, judge: impl Fn(&CertIdentity, Service, bool) -> Standing) -> Vec<(K, RefusalReason)> {
        let mut ending = Vec::new();
        for entry in self.entries.values_mut() {
            let Phase::Identified { identity, service, by_copy } = &mut entry.phase else {
                continue;
            };
            match judge(identity, *service, *by_copy) {
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
            Phase::Identified { identity, .. } => {
                self.by_expiry.remove(&(identity.not_after, id));
                let principal = identity.principal();
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
    use muster_messages::{ClusterId, Incarnation, NodeId, Revision, Role, Subject};

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
        assert!(all.identify(honest, &node(1, 9), Service::Agent).is_ok());
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
            assert!(all.identify(id, &node(n, 9), Service::Agent).is_ok());
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
        assert_eq!(all.identify(id, &node(5, 9), Service::Agent), Err(Full::Identified));
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
        let held: Vec<_> = ids.iter().map(|i| all.identify(*i, &node(1, 9), Service::Api)).collect();
        assert_eq!(held, [Ok(()), Ok(()), Err(Full::Principal)]);
        all.close(ids[0]);
        assert_eq!(all.identify(ids[2], &node(1, 9), Service::Api), Ok(()));
    }

    #[test]
    fn a_cut_finds_the_principals_connections_of_the_named_services_only() {
        let mut all = Connections::new(Limits { per_principal: 9, ..LIMITS });
        let wanted = node(1, 9);
        for (who, service) in [(&wanted, Service::Mesh), (&wanted, Service::Agent), (&node(2, 9), Service::Mesh)] {
            let (id, _) = all.open(ip(1), (who.serial.clone(), service));
            assert!(all.identify(id, who, service).is_ok());
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
        assert!(all.identify(early, &node(1, 100), Service::Api).is_ok());
        assert!(all.identify(late, &node(2, 200), Service::Api).is_ok());
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
        assert!(all.identify(id, &node(1, 9), Service::Http).is_ok());
        assert_eq!(all.anonymous(id, Service::Http), None);
        let ends = |_: &CertIdentity, _, _| Standing::Ends(RefusalReason::Blocked);
        assert!(all.judge_again(ends).is_empty());
        assert_eq!(all.counts(), (0, 1, 0));
        all.close(id);
        assert_eq!(all.counts(), (0, 0, 0));
    }
}
