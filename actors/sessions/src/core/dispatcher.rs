//! Dispatcher: which nodes are alive, from what the hosts of their sessions say. On the leader alone.
//!
//! Owns   the last digest of each host, the grace of nodes that nobody speaks of, the proposals under way.
//! Hears  digests, copies of the replicated state, outcomes of proposals.
//! Says   commands that set liveness and take over what a node reports of itself.
//! Keeps  DISP-1  the replicated liveness changes only when it changes: a heartbeat costs no log entry.
//!        DISP-2  one host that says ready outweighs every host that says down: the session has moved.
//!        DISP-3  a new leader believes the record. A node that was ready stays so, marked stale, until its host speaks,
//!                another one does, or the grace has passed.
//!        DISP-4  a host that falls silent is one that says nothing: its nodes get the grace, counted from its last word.
//!        DISP-5  of a node without a record nothing is written.
//!        DISP-7  that two processes use the identity of one node is told in the event log once, and once that it is over; the
//!                record does not follow them from one address to the other meanwhile.
//!        DISP-6  time during which this process stood still counts against nobody.
//! Why not by wall time: `since` comes from the hosts' clocks. It orders what a node reports of itself, never its liveness.

use std::collections::{BTreeMap, BTreeSet};

use muster_messages::wire::{SessionDigest, SessionFact};
use muster_messages::{
    CertificateState, Change, Command, IDENTITY_LEVEL, Liveness, Moment, NodeDoubts, NodeId, NodeRecord, Principal,
    Revision, Tables, WallTime,
};

use self::duplicates::Duplicates;
use super::news;
use crate::config::DispatcherConfig;

/// One command under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BatchId(pub u64);

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Applied(Revision),
    /// Applied as nothing: one of its nodes has gone.
    Refused,
    /// Not proposed, or nobody knows.
    Failed,
}

#[derive(Clone, Debug)]
pub enum Input {
    Digest { host: NodeId, digest: SessionDigest },
    Copy(Tables),
    Proposed { batch: BatchId, outcome: Outcome },
    Woke,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Propose {
        batch: BatchId,
        command: Command,
    },
    /// Two processes use the identity of this node, for the first time.
    Warn(NodeId),
    /// They do not any more.
    Over(NodeId),
}

/// Whether a digest was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Taken,
    /// Changes of a host that this leader has never heard: send a full one.
    NeedFull,
}

#[derive(Clone, Debug)]
struct Sight {
    fact: SessionFact,
    /// Another host said ready after this one said down: the session has moved on, and this says nothing any more.
    void: bool,
}

#[derive(Clone, Debug)]
struct HostSight {
    sequence: u64,
    heard: Moment,
    sessions: BTreeMap<NodeId, Sight>,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Dispatcher {
    config: DispatcherConfig,
    tables: Tables,
    started_wall: WallTime,
    stepped: Moment,
    hosts: BTreeMap<NodeId, HostSight>,
    /// Recorded ready, spoken of by nobody: down at this moment.
    grace: BTreeMap<NodeId, Moment>,
    /// Nodes to look at.
    dirty: BTreeSet<NodeId>,
    batches: BTreeMap<BatchId, Vec<NodeId>>,
    /// Written at this revision; looked at again once the copy has it.
    settling: BTreeMap<NodeId, Revision>,
    /// Nodes whose command was refused: proposed alone, after a pause.
    alone: BTreeMap<NodeId, Moment>,
    retry_at: Option<Moment>,
    next_batch: u64,
    duplicates: Duplicates,
    /// The process whose labels were taken over: an operator's later change of them stays.
    labelled: BTreeMap<NodeId, u64>,
    labels_left_out: u64,
    /// Nodes whose newest session has lost its connection, since when.
    no_contact: BTreeMap<NodeId, WallTime>,
}

impl Dispatcher {
    pub fn new(config: DispatcherConfig, now: Moment, wall: WallTime) -> Self {
        Self {
            config,
            tables: Tables::default(),
            started_wall: wall,
            stepped: now,
            hosts: BTreeMap::new(),
            grace: BTreeMap::new(),
            dirty: BTreeSet::new(),
            batches: BTreeMap::new(),
            settling: BTreeMap::new(),
            alone: BTreeMap::new(),
            retry_at: None,
            next_batch: 0,
            duplicates: Duplicates::default(),
            labelled: BTreeMap::new(),
            labels_left_out: 0,
            no_contact: BTreeMap::new(),
        }
    }

    pub fn step(&mut self, now: Moment, wall: WallTime, input: Input, out: &mut Vec<Effect>) -> Verdict {
        self.stood_still(now);
        let mut verdict = Verdict::Taken;
        match input {
            Input::Digest { host, digest } => verdict = self.digest(now, host, digest),
            Input::Copy(tables) => self.copy(tables),
            Input::Proposed { batch, outcome } => self.proposed(now, batch, outcome),
            Input::Woke => {}
        }
        self.advance(now, wall, out);
        verdict
    }

    /// When to be woken, if nothing happens before. What is due already waits for the outcome of a proposal.
    pub fn wake_at(&self, now: Moment) -> Option<Moment> {
        let grace = self.grace.values().copied();
        let hosts = self.hosts.values().map(|h| h.heard + self.config.grace);
        let alone = self.alone.values().copied();
        let duplicates = self.duplicates.times(&self.config);
        let times = grace.chain(hosts).chain(alone).chain(duplicates).chain(self.retry_at);
        times.filter(|at| *at > now).min()
    }

    /// What people should be told with what is recorded.
    pub fn doubts(&self) -> NodeDoubts {
        NodeDoubts {
            unconfirmed: self.grace.keys().copied().collect(),
            duplicates: self.duplicates.shown(),
            no_contact: self.no_contact.clone(),
        }
    }
    /// For the view: host, sequence, sessions, when heard.
    pub fn hosts(&self) -> impl Iterator<Item = (NodeId, u64, usize, Moment)> + '_ {
        self.hosts.iter().map(|(id, h)| (*id, h.sequence, h.sessions.len(), h.heard))
    }
    pub fn in_flight(&self) -> usize {
        self.batches.len()
    }
    pub fn waiting(&self) -> usize {
        self.dirty.len()
    }

    /// DISP-6. Digests come far more often than this; a longer gap means that nobody here was listening.
    fn stood_still(&mut self, now: Moment) {
        let gap = now.since(self.stepped);
        self.stepped = now;
        if gap >= self.config.stood_still {
            self.hosts.values_mut().for_each(|h| h.heard = h.heard + gap);
            self.grace.values_mut().for_each(|at| *at = *at + gap);
        }
    }

    fn digest(&mut self, now: Moment, host: NodeId, digest: SessionDigest) -> Verdict {
        let known = self.hosts.get_mut(&host);
        let fresh = match &known {
            None => digest.full,
            // A host that restarted may count from below, should its clock have gone back; it begins with a full one.
            Some(h) => digest.sequence > h.sequence || (digest.full && now.since(h.heard) >= self.config.grace / 4),
        };
        if !fresh {
            return if known.is_none() { Verdict::NeedFull } else { Verdict::Taken };
        }
        let sight =
            self.hosts.entry(host).or_insert_with(|| HostSight { sequence: 0, heard: now, sessions: BTreeMap::new() });
        sight.sequence = digest.sequence;
        sight.heard = now;
        let mut before = if digest.full { std::mem::take(&mut sight.sessions) } else { BTreeMap::new() };
        for fact in digest.sessions {
            let node = fact.node;
            self.duplicates.look_at(node);
            let old = if digest.full { before.remove(&node) } else { sight.sessions.remove(&node) };
            let same = old.as_ref().is_some_and(|old| old.fact == fact);
            let void = same && old.is_some_and(|old| old.void);
            if !same {
                self.dirty.insert(node);
            }
            sight.sessions.insert(node, Sight { fact, void });
        }
        self.dirty.extend(before.keys()); // no longer named
        Verdict::Taken
    }

    fn copy(&mut self, tables: Tables) {
        if self.tables.revision == Revision(0) {
            self.dirty.extend(tables.nodes.keys()); // DISP-3: look at everyone once
        } else {
            self.dirty.extend(news::changed(&self.tables, &tables));
        }
        self.tables = tables;
        let revision = self.tables.revision;
        let settled: Vec<NodeId> = self.settling.iter().filter(|(_, at)| **at <= revision).map(|(n, _)| *n).collect();
        for node in settled {
            self.settling.remove(&node);
            self.dirty.insert(node);
        }
    }

    fn proposed(&mut self, now: Moment, batch: BatchId, outcome: Outcome) {
        let nodes = self.batches.remove(&batch).unwrap_or_default();
        self.duplicates.noted(batch, outcome != Outcome::Failed);
        match outcome {
            Outcome::Applied(revision) if revision > self.tables.revision => {
                self.settling.extend(nodes.into_iter().map(|node| (node, revision)));
            }
            Outcome::Applied(_) => self.dirty.extend(nodes),
            Outcome::Refused => {
                let at = now + self.config.retry;
                self.alone.extend(nodes.into_iter().map(|node| (node, at)));
            }
            Outcome::Failed => {
                self.retry_at = Some(now + self.config.retry);
                self.dirty.extend(nodes);
            }
        }
    }

    /// The only place that starts something.
    fn advance(&mut self, now: Moment, wall: WallTime, out: &mut Vec<Effect>) {
        self.forget_silent_hosts(now);
        let over: Vec<NodeId> = self.grace.iter().filter(|(_, at)| now >= **at).map(|(n, _)| *n).collect();
        self.dirty.extend(over);
        self.judge_duplicates(now, wall, out);
        if self.retry_at.is_some_and(|at| now < at) {
            return;
        }
        self.retry_at = None;
        self.note_duplicates(wall, out);
        self.propose_singly(now, wall, out);
        self.propose(now, wall, out);
    }

    /// DISP-4.
    fn forget_silent_hosts(&mut self, now: Moment) {
        let grace = self.config.grace;
        let silent = |h: &HostSight| now >= h.heard + grace;
        let gone: Vec<NodeId> = self.hosts.iter().filter(|(_, h)| silent(h)).map(|(id, _)| *id).collect();
        for host in gone.iter().filter_map(|id| self.hosts.remove(id)) {
            for node in host.sessions.into_keys() {
                self.grace.entry(node).or_insert(host.heard + grace);
                self.dirty.insert(node);
            }
        }
    }

    /// Looks at every dirty node that is not under way and writes what differs, many nodes to a command.
    fn propose(&mut self, now: Moment, wall: WallTime, out: &mut Vec<Effect>) {
        while self.batches.len() < self.config.in_flight && !self.dirty.is_empty() {
            let (mut nodes, mut changes) = (Vec::new(), Vec::new());
            while changes.len() + 2 <= self.config.batch.max(2)
                && let Some(node) = self.dirty.pop_first()
            {
                if self.is_under_way(node) {
                    continue; // it is looked at again when that has ended
                }
                let wanted = self.look(now, wall, node);
                if !wanted.is_empty() {
                    nodes.push(node);
                    changes.extend(wanted);
                }
            }
            if !nodes.is_empty() {
                self.send(wall, nodes, changes, out);
            }
        }
    }

    fn propose_singly(&mut self, now: Moment, wall: WallTime, out: &mut Vec<Effect>) {
        let due: Vec<NodeId> = self.alone.iter().filter(|(_, at)| now >= **at).map(|(n, _)| *n).collect();
        for node in due {
            if self.batches.len() >= self.config.in_flight {
                return;
            }
            self.alone.remove(&node);
            let wanted = self.look(now, wall, node);
            if !wanted.is_empty() {
                self.send(wall, vec![node], wanted, out);
            }
        }
    }

    fn send(&mut self, wall: WallTime, nodes: Vec<NodeId>, changes: Vec<Change>, out: &mut Vec<Effect>) {
        self.next_batch += 1;
        let batch = BatchId(self.next_batch);
        let mut command = Command::idempotent(wall, Principal::Cluster, "sessions");
        command.changes = changes;
        self.batches.insert(batch, nodes);
        out.push(Effect::Propose { batch, command });
    }

    fn is_under_way(&self, node: NodeId) -> bool {
        self.settling.contains_key(&node)
            || self.alone.contains_key(&node)
            || self.batches.values().any(|nodes| nodes.contains(&node))
    }

    /// What should be written of one node, given what its hosts say. Level-triggered: the record against the facts.
    fn look(&mut self, now: Moment, wall: WallTime, node: NodeId) -> Vec<Change> {
        let newest = self.newest_ready(node).map(|fact| fact.liveness);
        if newest == Some(Liveness::Unknown) && self.tables.nodes.contains_key(&node) {
            self.no_contact.entry(node).or_insert(wall);
        } else {
            self.no_contact.remove(&node);
        }
        let record = self.tables.nodes.get(&node).cloned();
        let Some(record) = record.filter(|_| !self.tables.blocklist.contains_key(&node)) else {
            self.grace.remove(&node); // DISP-5
            self.labelled.remove(&node);
            return Vec::new();
        };
        if let Some(fact) = self.newest_ready(node).cloned() {
            self.grace.remove(&node);
            self.void_downs(node);
            return self.ready(&record, &fact);
        }
        if self.is_said_down(node) {
            self.grace.remove(&node);
            return set(&record, Liveness::Down);
        }
        self.silent(now, &record)
    }

    fn ready(&mut self, record: &NodeRecord, fact: &SessionFact) -> Vec<Change> {
        let mut changes = set(record, Liveness::Ready);
        changes.extend(self.renewed(record, fact));
        if self.duplicates.is_shown(record.id) {
            return changes; // DISP-7
        }
        if self.tables.feature_level() >= IDENTITY_LEVEL {
            changes.extend(self.report(record, fact));
            return changes;
        }
        let name = self.free_name(record, fact);
        let labels = self.labels(record, fact);
        if name != record.name || fact.addr != record.addr || fact.release != record.release || !labels.is_empty() {
            changes.push(Change::Report {
                node: record.id,
                name,
                addr: fact.addr.clone(),
                release: fact.release.clone(),
                labels,
            });
        }
        changes
    }

    /// A node whose certificates were revoked is seen with its new one: from here on the old one is of no use to it.
    fn renewed(&self, record: &NodeRecord, fact: &SessionFact) -> Option<Change> {
        let row = self.tables.certificates.get(&record.id)?;
        let newest = record.certificate.as_ref().filter(|newest| newest.state != CertificateState::Rotate)?;
        let seen = Change::CertificateSeen { node: record.id, serial: fact.serial.clone() };
        (row.revoking && newest.serial == fact.serial).then_some(seen)
    }

    /// DISP-3, DISP-4: nobody speaks of it. Down and unknown stay what they are.
    fn silent(&mut self, now: Moment, record: &NodeRecord) -> Vec<Change> {
        if record.liveness != Liveness::Ready {
            self.grace.remove(&record.id);
            return Vec::new();
        }
        let until = *self.grace.entry(record.id).or_insert(now + self.config.grace);
        if now < until { Vec::new() } else { set(record, Liveness::Down) }
    }

    /// DISP-2. One with a connection before one without, then by `since`, so that every look sees the same one.
    fn newest_ready(&self, node: NodeId) -> Option<&SessionFact> {
        let facts = self.hosts.values().filter_map(|h| h.sessions.get(&node));
        let ready = facts.filter(|s| s.fact.liveness != Liveness::Down);
        ready.map(|s| &s.fact).max_by_key(|f| (f.liveness == Liveness::Ready, f.since, f.instance))
    }
    fn is_said_down(&self, node: NodeId) -> bool {
        let mut sights = self.hosts.values().filter_map(|h| h.sessions.get(&node));
        sights.any(|s| s.fact.liveness == Liveness::Down && !s.void)
    }
    fn void_downs(&mut self, node: NodeId) {
        for host in self.hosts.values_mut() {
            if let Some(sight) = host.sessions.get_mut(&node)
                && sight.fact.liveness == Liveness::Down
            {
                sight.void = true;
            }
        }
    }
}

/// DISP-1.
fn set(record: &NodeRecord, liveness: Liveness) -> Vec<Change> {
    if record.liveness == liveness {
        return Vec::new();
    }
    vec![Change::SetLiveness { node: record.id, liveness }]
}

mod duplicates;
mod reports;
#[cfg(test)]
#[path = "dispatcher_tests.rs"]
mod tests;
