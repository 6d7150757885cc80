//! Host: all agent sessions of one manager.
//!
//! Owns        admission of sessions, the sessions' facts about their nodes, the digests to the leader, the agents to send away.
//! Inputs      arrivals, reports of sessions, changes of leader, answers to digests, each manager's share of the sessions.
//! Outputs     admit, refuse, move, digest, count the share.
//! Invariants  SESSION-5…8 and 12 (see `bucket`, `instances`, `digest`, `spread`).
//!             SESSION-9  a manager that has had no leader for `leaderless_after` keeps and accepts no agents: it cannot inform
//!                        them, and all other managers would see them as down. It sends them away at the rate at which others can
//!                        take them. A manager that has just started and not yet followed a leader accepts none from the first
//!                        moment on, and gives a short retry time.
//!             SESSION-11  a host that had no leader reports no node down before the node had `down_after` to come back, counted
//!                         from when there is a leader again: the host itself sent the nodes away, so their silence means
//!                         nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_messages::wire::{Refusal, SessionDigest, SessionFact};
use muster_messages::{Liveness, Moment, NodeId, RefusalReason, Term, millis};

use super::bucket::Bucket;
use super::digest::Digests;
use super::instances::{Duplicate, Instance, Instances};
use super::session::ConnId;
use super::spread::Spread;
use crate::config::SessionsConfig;

#[derive(Clone, Debug)]
pub enum Input {
    Arrived {
        node: NodeId,
        conn: ConnId,
    },
    Reported {
        node: NodeId,
        fact: Option<Box<SessionFact>>,
        connected: bool,
    },
    /// The leader according to the local replica.
    Leader {
        term: Term,
        leader: Option<NodeId>,
    },
    DigestAnswered {
        sequence: u64,
        ok: bool,
    },
    /// The answer to `CountShare`.
    Share(usize),
    Woke,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Admit {
        node: NodeId,
        conn: ConnId,
    },
    Refuse {
        conn: ConnId,
        refusal: Refusal,
    },
    Move {
        node: NodeId,
        /// For the agent's log.
        reason: &'static str,
    },
    /// Answered at once with `Share`: see [`share_of`](super::spread::share_of).
    CountShare,
    Digest(SessionDigest),
    /// Two processes with one identity; sent when first seen.
    DuplicateFound(Duplicate),
    /// They no longer alternate.
    DuplicateResolved(NodeId),
}

#[derive(Clone, Debug)]
pub struct Host {
    config: SessionsConfig,
    registrations: Bucket,
    moves: Bucket,
    digests: Digests,
    instances: Instances,
    connected: BTreeSet<NodeId>,
    /// Connected nodes still to be sent away.
    moving: BTreeSet<NodeId>,
    spread: Spread,
    leader: Option<(Term, NodeId)>,
    leaderless_since: Moment,
    /// Whether it has ever known a leader.
    followed: bool,
    /// SESSION-11. Nodes not yet reported to the leader: they look down, but their heartbeats could not arrive.
    unreported: BTreeMap<NodeId, SessionFact>,
    believe_silence_at: Moment,
    refused: u64,
    swept: Moment,
}

impl Host {
    /// `first_sequence`: see [`Digests::new`].
    pub fn new(config: SessionsConfig, now: Moment, first_sequence: u64) -> Self {
        let bucket = || Bucket::new(config.registrations_per_sec, config.registration_burst);
        Self {
            registrations: bucket(),
            moves: bucket(),
            digests: Digests::new(first_sequence),
            instances: Instances::default(),
            connected: BTreeSet::new(),
            moving: BTreeSet::new(),
            spread: Spread::new(&config, now),
            leader: None,
            leaderless_since: now,
            followed: false,
            unreported: BTreeMap::new(),
            believe_silence_at: Moment(0),
            refused: 0,
            swept: now,
            config,
        }
    }

    pub fn step(&mut self, now: Moment, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Arrived { node, conn } => self.arrived(now, node, conn, out),
            Input::Reported { node, fact, connected } => self.reported(now, node, fact, connected, out),
            Input::Leader { term, leader } => self.leader(now, term, leader),
            Input::DigestAnswered { sequence, ok } => self.digests.answered(now, sequence, ok, &self.config),
            Input::Share(share) => self.spread.counted(now, self.connected.len(), share, &self.config),
            Input::Woke => {}
        }
        self.advance(now, out);
    }

    pub fn wake_at(&mut self, now: Moment) -> Option<Moment> {
        if self.leader.is_some() {
            let believe = (!self.unreported.is_empty()).then_some(self.believe_silence_at);
            let spread = self.spread.wake_at(now, self.connected.len(), &self.config);
            return self.digests.wake_at().into_iter().chain(believe).chain(spread).min();
        }
        let given_up = self.leaderless_since + self.config.leaderless_after;
        if now < given_up {
            return Some(given_up);
        }
        (!self.moving.is_empty()).then(|| self.moves.ready_at(now))
    }

    pub fn facts(&self) -> usize {
        self.digests.facts().len()
    }
    pub fn connected(&self) -> usize {
        self.connected.len()
    }
    /// Sessions that other managers are to have, because this one has more than its share.
    pub fn to_move(&self) -> usize {
        self.spread.left()
    }
    pub fn refused(&self) -> u64 {
        self.refused
    }
    pub fn sequence(&self) -> u64 {
        self.digests.sequence()
    }
    pub fn leader_node(&self) -> Option<NodeId> {
        self.leader.map(|(_, node)| node)
    }
    pub fn duplicates(&self) -> Vec<Duplicate> {
        self.instances.current()
    }

    fn leaderless(&self, now: Moment) -> bool {
        self.leader.is_none() && (!self.followed || now >= self.leaderless_since + self.config.leaderless_after)
    }

    fn arrived(&mut self, now: Moment, node: NodeId, conn: ConnId, out: &mut Vec<Effect>) {
        let turn = self.registrations.take(now);
        let refusal = if self.leaderless(now) {
            // The rate sets the retry time here too: agents of a cluster without quorum must not hammer it.
            let pause = if self.followed { self.config.leaderless_retry } else { UNFOLLOWED_RETRY };
            let after = turn.err().unwrap_or_default().max(pause);
            refusal(RefusalReason::NotKnownHereYet, "this manager has no leader at the moment", after)
        } else if let Err(after) = turn {
            refusal(RefusalReason::TooManyRequests, "too many agents are opening sessions here; retry later", after)
        } else {
            return out.push(Effect::Admit { node, conn });
        };
        self.refused += 1;
        out.push(Effect::Refuse { conn, refusal });
    }

    fn reported(
        &mut self,
        now: Moment,
        node: NodeId,
        fact: Option<Box<SessionFact>>,
        connected: bool,
        out: &mut Vec<Effect>,
    ) {
        if connected {
            self.connected.insert(node);
            if self.leaderless(now) {
                self.moving.insert(node);
            }
        } else {
            self.connected.remove(&node);
            self.moving.remove(&node);
        }
        let old = self.digests.facts().get(&node);
        let mut fact = fact.map(|f| *f);
        if let (Some(old), Some(new)) = (old, &fact)
            && old.instance != new.instance
        {
            let (old, new) = (Instance::of(old), Instance::of(new));
            out.extend(self.instances.changed(now, node, old, new).map(Effect::DuplicateFound));
        }
        if let Some(fact) = &mut fact {
            fact.turns = self.instances.turns(node);
        }
        self.report_fact(now, node, fact);
    }

    /// SESSION-11.
    fn report_fact(&mut self, now: Moment, node: NodeId, fact: Option<SessionFact>) {
        self.unreported.remove(&node);
        let is_down = |fact: &SessionFact| fact.liveness == Liveness::Down;
        let fact = match fact {
            Some(fact) if is_down(&fact) && (self.leaderless(now) || now < self.believe_silence_at) => {
                self.unreported.insert(node, fact);
                None
            }
            fact => fact,
        };
        self.digests.set(node, fact);
    }

    /// Facts from before the leader was lost stay: it received them then.
    fn leader_is_back(&mut self, now: Moment) {
        self.believe_silence_at = now + self.config.down_after();
    }

    fn leader(&mut self, now: Moment, term: Term, leader: Option<NodeId>) {
        let leader = leader.map(|node| (term, node));
        if leader == self.leader {
            return;
        }
        if leader.is_some() {
            if self.followed && self.leaderless(now) {
                self.leader_is_back(now);
            }
            self.digests.leader_changed();
            self.moving.clear();
            self.followed = true;
        } else {
            self.leaderless_since = now;
            self.spread.stop();
        }
        self.leader = leader;
    }

    fn advance(&mut self, now: Moment, out: &mut Vec<Effect>) {
        if now.since(self.swept) >= self.config.warn_every {
            self.swept = now;
            for node in self.instances.sweep(now, 2 * self.config.warn_every) {
                let fact = self.digests.facts().get(&node).cloned();
                self.digests.set(node, fact.map(|fact| SessionFact { turns: Vec::new(), ..fact }));
                out.push(Effect::DuplicateResolved(node));
            }
        }
        if self.leader.is_some() && now >= self.believe_silence_at {
            for (node, fact) in std::mem::take(&mut self.unreported) {
                self.digests.set(node, Some(fact));
            }
        }
        if self.leader.is_some() {
            out.extend(self.digests.due(now, &self.config).map(Effect::Digest));
            self.spread(now, out);
        } else if self.leaderless(now) {
            self.send_away(now, out);
        }
    }

    /// SESSION-12.
    fn spread(&mut self, now: Moment, out: &mut Vec<Effect>) {
        if self.spread.is_due(now, self.connected.len(), &self.config) {
            // Some may be moved once it is counted: not by a former share.
            return out.push(Effect::CountShare);
        }
        while let Some(node) = self.spread.next(now, &self.connected) {
            out.push(Effect::Move { node, reason: MORE_THAN_ITS_SHARE });
        }
    }

    /// SESSION-9.
    fn send_away(&mut self, now: Moment, out: &mut Vec<Effect>) {
        if self.moving.is_empty() {
            self.moving = self.connected.clone();
        }
        while !self.moving.is_empty() && self.moves.take(now).is_ok() {
            let node = self.moving.pop_first().expect("the set is not empty");
            out.push(Effect::Move { node, reason: NO_LEADER });
        }
    }
}

const NO_LEADER: &str = "this manager has no leader";
const MORE_THAN_ITS_SHARE: &str = "this manager has more sessions than the others";

/// When an agent may retry a host that has just started: it will soon follow a leader.
const UNFOLLOWED_RETRY: Duration = Duration::from_millis(50);

fn refusal(reason: RefusalReason, message: &str, after: Duration) -> Refusal {
    Refusal { reason, message: message.to_owned(), managers: Vec::new(), retry_after_ms: Some(millis(after)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::testing::{fact, node};

    fn at(ms: u64) -> Moment {
        Moment(ms * 1000)
    }
    fn host() -> Host {
        let mut host = Host::new(SessionsConfig::default(), at(0), 0);
        host.step(at(0), Input::Leader { term: Term(1), leader: Some(node(100)) }, &mut vec![]);
        host
    }
    fn report(host: &mut Host, now: Moment, n: u128, instance: u64) -> Vec<Effect> {
        let mut out = vec![];
        let fact = SessionFact { instance, ..fact(n) };
        let input = Input::Reported { node: node(n), fact: Some(Box::new(fact)), connected: true };
        host.step(now, input, &mut out);
        out
    }
    fn arrive(host: &mut Host, now: Moment, n: u128) -> Effect {
        let mut out = vec![];
        host.step(now, Input::Arrived { node: node(n), conn: ConnId(n as u64) }, &mut out);
        out.retain(|e| matches!(e, Effect::Admit { .. } | Effect::Refuse { .. }));
        out.pop().unwrap()
    }

    /// E44: three registrations in eight seconds once were too many, and a leader change made an outage of it.
    #[test]
    fn thousand_agents_register_at_once_and_others_get_retry_times() {
        let mut host = host();
        let refused: Vec<u64> = (0..3000)
            .filter_map(|n| match arrive(&mut host, at(10), n) {
                Effect::Refuse { refusal, .. } => refusal.retry_after_ms,
                _ => None,
            })
            .collect();
        assert_eq!(refused.len(), 2000);
        assert!(refused.iter().all(|ms| *ms <= 4_010), "{:?}", refused.last());
        assert!(refused.is_sorted());
    }

    #[test]
    fn leader_change_moves_no_agent_and_sends_a_full_digest() {
        let mut host = host();
        for n in 0..50 {
            report(&mut host, at(1), n, 1);
        }
        let mut out = vec![];
        host.step(at(100), Input::Leader { term: Term(1), leader: None }, &mut out);
        host.step(at(4_900), Input::Woke, &mut out);
        assert_eq!(out, vec![], "a short time without a leader disturbs no session");
        host.step(at(4_960), Input::Leader { term: Term(2), leader: Some(node(101)) }, &mut out);
        assert!(matches!(&out[..], [Effect::Digest(d)] if d.full && d.sessions.len() == 50), "{out:?}");
    }

    /// SESSION-12.
    #[test]
    fn host_with_most_sessions_moves_its_surplus() {
        let mut host = host();
        for n in 0..300 {
            report(&mut host, at(1), n, 1);
        }
        let (mut now, mut moved) = (at(1), 0);
        while now < at(60_000) {
            let mut out = vec![];
            host.step(now, Input::Woke, &mut out);
            while let Some(effect) = out.pop() {
                match effect {
                    Effect::CountShare => host.step(now, Input::Share(100), &mut out),
                    Effect::Move { node, .. } => {
                        moved += 1;
                        host.step(now, Input::Reported { node, fact: None, connected: false }, &mut out);
                    }
                    _ => {}
                }
            }
            assert!(moved == 0 || now >= at(30_000), "a manager that restarts is awaited");
            now = host.wake_at(now).expect("digests are sent periodically").max(now + Duration::from_millis(1));
        }
        assert_eq!((moved, host.connected()), (200, 100));
    }

    /// SESSION-12. The process was suspended after it had begun to move some, and the other managers have ended meanwhile.
    #[test]
    fn share_is_counted_again_before_sessions_are_moved() {
        let mut host = host();
        for n in 0..300 {
            report(&mut host, at(1), n, 1);
        }
        let mut moved = |ms, share| {
            let (mut out, mut moved) = (vec![], 0);
            host.step(at(ms), Input::Woke, &mut out);
            while let Some(effect) = out.pop() {
                match effect {
                    Effect::CountShare => host.step(at(ms), Input::Share(share), &mut out),
                    Effect::Move { .. } => moved += 1,
                    _ => {}
                }
            }
            moved
        };
        assert_eq!([10_000, 40_000, 41_000].map(|ms| moved(ms, 100)), [0, 1, 1]);
        assert_eq!(moved(90_000, 300), 0);
    }

    /// Two managers that started at the same time used to take each other's agents, and to keep them for 5 s in vain.
    #[test]
    fn new_host_accepts_no_agent_until_it_follows_a_leader() {
        let mut host = Host::new(SessionsConfig::default(), at(0), 0);
        let refused = arrive(&mut host, at(1), 1);
        assert!(matches!(refused, Effect::Refuse { refusal, .. }
            if refusal.reason == RefusalReason::NotKnownHereYet && refusal.retry_after_ms < Some(1_000)));
        host.step(at(2), Input::Leader { term: Term(1), leader: Some(node(100)) }, &mut vec![]);
        assert_eq!(arrive(&mut host, at(3), 1), Effect::Admit { node: node(1), conn: ConnId(1) });
    }

    #[test]
    fn leaderless_host_moves_agents_slowly_and_accepts_none() {
        let mut host = host();
        for n in 0..3000 {
            report(&mut host, at(1), n, 1);
        }
        let mut out = vec![];
        host.step(at(100), Input::Leader { term: Term(1), leader: None }, &mut out);
        assert_eq!(host.wake_at(at(100)), Some(at(5_100)));
        host.step(at(5_100), Input::Woke, &mut out);
        assert_eq!(out.iter().filter(|e| matches!(e, Effect::Move { .. })).count(), 1000);
        let wake = host.wake_at(at(5_100)).unwrap();
        assert!(wake > at(5_100));
        let refused = arrive(&mut host, at(5_200), 9_999);
        assert!(matches!(refused, Effect::Refuse { refusal, .. }
            if refusal.reason == RefusalReason::NotKnownHereYet && refusal.retry_after_ms >= Some(5_000)));
        let (mut left, mut gone) = (std::mem::take(&mut out), 0);
        for ms in 5_100..12_000 {
            for effect in std::mem::take(&mut left) {
                if let Effect::Move { node, .. } = effect {
                    gone += 1;
                    let input = Input::Reported { node, fact: None, connected: false };
                    host.step(at(ms), input, &mut left);
                }
            }
            host.step(at(ms), Input::Woke, &mut left);
            assert!(gone <= 1000 + (ms - 5_100) / 2 + 2, "{gone} after {ms} ms");
        }
        assert_eq!((gone, host.connected()), (3000, 0));
    }

    /// SESSION-11. All agents were sent away, and the host had no contact with them for longer than the down limit.
    #[test]
    fn nodes_without_contact_to_leaderless_host_are_not_down() {
        let mut host = host();
        let silent = |n: u128| Input::Reported {
            node: node(n),
            fact: Some(Box::new(SessionFact { liveness: Liveness::Down, ..fact(n) })),
            connected: false,
        };
        let mut out = vec![];
        for n in 1..=3 {
            report(&mut host, at(1), n, 1);
        }
        host.step(at(50), silent(3), &mut out); // while there was a leader: it is down
        host.step(at(100), Input::Leader { term: Term(1), leader: None }, &mut out);
        host.step(at(30_000), silent(1), &mut out);
        let back = 31_000;
        out.clear();
        host.step(at(back), Input::Leader { term: Term(2), leader: Some(node(101)) }, &mut out);
        host.step(at(back + 1_000), silent(2), &mut out);
        let down = |host: &Host| -> Vec<NodeId> {
            let facts = host.digests.facts().values();
            facts.filter(|f| f.liveness == Liveness::Down).map(|f| f.node).collect()
        };
        assert_eq!(down(&host), [node(3)]);
        report(&mut host, at(back + 3_000), 2, 1);
        let late = back + millis(host.config.down_after());
        assert_eq!(host.wake_at(at(back + 3_000)).map(|at| at <= Moment(late * 1000)), Some(true));
        host.step(at(late), Input::Woke, &mut out);
        let mut both = vec![node(1), node(3)];
        both.sort();
        assert_eq!(down(&host), both, "it had time to come back and did not");
    }

    #[test]
    fn alternating_processes_are_named() {
        let mut host = host();
        let mut warned = vec![];
        for round in 0..100 {
            let out = report(&mut host, at(round * 1000), 1, 1 + round % 2);
            warned.extend(out.into_iter().filter_map(|e| match e {
                Effect::DuplicateFound(duplicate) => Some(duplicate),
                _ => None,
            }));
        }
        assert_eq!(warned.len(), 1);
        assert_eq!(warned[0].instances.len(), 2);
        assert_eq!(host.duplicates().len(), 1);
        let turns = |host: &Host| host.digests.facts()[&node(1)].turns.len();
        assert_eq!(turns(&host), 2, "a digest is sent to the leader");
        let mut out = vec![];
        for ms in [200_000, 300_000] {
            host.step(at(ms), Input::Woke, &mut out);
        }
        assert!(out.contains(&Effect::DuplicateResolved(node(1))) && turns(&host) == 0 && host.duplicates().is_empty());
    }
}
