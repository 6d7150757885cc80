//! Dispatcher: which nodes are alive, from the reports of their sessions' hosts. On the leader alone.
//!
//! Owns        each host's last digest, the grace periods of nodes that no host reports on, the proposals in flight.
//! Inputs      digests, newer replicas, outcomes of proposals.
//! Outputs     commands that set liveness and record what nodes report about themselves.
//! Invariants  DISP-1  the replicated liveness is written only when it changes: a heartbeat costs no log entry.
//!             DISP-2  one host that reports ready outweighs every host that reports down: the session has moved.
//!             DISP-3  a new leader trusts the record. A node that was ready stays so, marked stale, until its host or another one
//!                     reports, or the grace period has passed.
//!             DISP-4  a silent host counts as one that reports nothing: its nodes get the grace period, counted from its last
//!                     report.
//!             DISP-5  nothing is written about a node without a record.
//!             DISP-7  the event log records once that two processes use the identity of one node, and once that this is over;
//!                     meanwhile the record does not follow them from one address to the other.
//!             DISP-6  time during which this process was suspended counts against no node.
//!             DISP-9  at the end of a node's grace period it gets as much more time as the managers need to take back all nodes
//!                     without a session: a fleet that reconnects is not shown down.
//! Why not by wall time: `since` comes from the hosts' clocks. It orders a node's reports about itself, never its liveness.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_messages::wire::{SessionDigest, SessionFact};
use muster_messages::{
    CertificateState, Change, Command, IDENTITY_LEVEL, Liveness, Moment, NodeDoubts, NodeId, NodeRecord, Principal,
    Revision, Tables, WallTime,
};

use self::duplicates::Duplicates;
use super::node_update;
use crate::config::DispatcherConfig;

/// Sessions that managers take back in a second, each with a TLS handshake, if their processors are busy: two cores that they shared
/// with the agents took back 300.
const RETURNS_PER_SEC: u64 = 250;
/// The most by which a grace period is prolonged, in grace periods: beyond it, nodes are dead rather than waiting for their turn.
const MAX_PROLONGATION: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BatchId(pub u64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Applied(Revision),
    /// Refused without effect: one of its nodes is gone.
    Refused,
    /// Not proposed, or with unknown outcome.
    Failed,
}

#[derive(Clone, Debug)]
pub enum Input {
    Digest { host: NodeId, digest: SessionDigest },
    Replica(Tables),
    Proposed { batch: BatchId, outcome: Outcome },
    Woke,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Propose {
        batch: BatchId,
        command: Command,
    },
    /// Two processes use the identity of this node; sent when first seen.
    DuplicateFound(NodeId),
    /// They no longer do.
    DuplicateResolved(NodeId),
}

/// Whether a digest was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DigestOutcome {
    Accepted,
    /// Changes from a host of which this leader has no digest: send a full one.
    NeedFull,
}

#[derive(Clone, Debug)]
struct SessionReport {
    fact: SessionFact,
    /// Another host reported ready after this one reported down: the session has moved, and this fact no longer counts.
    superseded: bool,
}

#[derive(Clone, Copy, Debug)]
struct Grace {
    /// Down at this moment.
    until: Moment,
    /// DISP-9, once.
    prolonged: bool,
}

#[derive(Clone, Debug)]
struct HostReport {
    sequence: u64,
    received: Moment,
    sessions: BTreeMap<NodeId, SessionReport>,
}

#[derive(Clone, Debug)]
pub struct Dispatcher {
    config: DispatcherConfig,
    tables: Tables,
    started_wall: WallTime,
    stepped: Moment,
    hosts: BTreeMap<NodeId, HostReport>,
    /// Recorded ready, reported on by no host.
    grace: BTreeMap<NodeId, Grace>,
    /// Nodes to check.
    dirty: BTreeSet<NodeId>,
    batches: BTreeMap<BatchId, Vec<NodeId>>,
    /// Written at this revision; checked again once the replica has it.
    settling: BTreeMap<NodeId, Revision>,
    /// Nodes whose command was refused: proposed alone, after a pause.
    retry_alone: BTreeMap<NodeId, Moment>,
    retry_at: Option<Moment>,
    next_batch: u64,
    duplicates: Duplicates,
    /// The process whose labels were recorded: an operator's later change of them stays.
    labelled: BTreeMap<NodeId, u64>,
    labels_left_out: u64,
    /// Nodes whose newest session has lost its connection, and since when.
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
            retry_alone: BTreeMap::new(),
            retry_at: None,
            next_batch: 0,
            duplicates: Duplicates::default(),
            labelled: BTreeMap::new(),
            labels_left_out: 0,
            no_contact: BTreeMap::new(),
        }
    }

    pub fn step(&mut self, now: Moment, wall: WallTime, input: Input, out: &mut Vec<Effect>) -> DigestOutcome {
        self.stood_still(now);
        let mut digest_outcome = DigestOutcome::Accepted;
        match input {
            Input::Digest { host, digest } => digest_outcome = self.digest(now, host, digest),
            Input::Replica(tables) => self.copy(tables),
            Input::Proposed { batch, outcome } => self.proposed(now, batch, outcome),
            Input::Woke => {}
        }
        self.advance(now, wall, out);
        digest_outcome
    }

    /// When to wake it if there is no earlier input. Anything already due waits for the outcome of a proposal.
    pub fn wake_at(&self, now: Moment) -> Option<Moment> {
        let grace = self.grace.values().map(|grace| grace.until);
        let hosts = self.hosts.values().map(|h| h.received + self.config.grace);
        let retry_alone = self.retry_alone.values().copied();
        let duplicates = self.duplicates.times(&self.config);
        let times = grace.chain(hosts).chain(retry_alone).chain(duplicates).chain(self.retry_at);
        times.filter(|at| *at > now).min()
    }

    /// What people should see beside the record.
    pub fn doubts(&self) -> NodeDoubts {
        NodeDoubts {
            unconfirmed: self.grace.keys().copied().collect(),
            duplicates: self.duplicates.shown(),
            no_contact: self.no_contact.clone(),
        }
    }
    /// For the view: host, sequence, sessions, time of the last digest.
    pub fn hosts(&self) -> impl Iterator<Item = (NodeId, u64, usize, Moment)> + '_ {
        self.hosts.iter().map(|(id, h)| (*id, h.sequence, h.sessions.len(), h.received))
    }
    pub fn in_flight(&self) -> usize {
        self.batches.len()
    }
    pub fn waiting(&self) -> usize {
        self.dirty.len()
    }

    /// DISP-6. Digests arrive far more often than this; a longer gap means that this process was suspended.
    fn stood_still(&mut self, now: Moment) {
        let gap = now.since(self.stepped);
        self.stepped = now;
        if gap >= self.config.stood_still {
            self.hosts.values_mut().for_each(|h| h.received = h.received + gap);
            self.grace.values_mut().for_each(|grace| grace.until = grace.until + gap);
        }
    }

    fn digest(&mut self, now: Moment, host: NodeId, digest: SessionDigest) -> DigestOutcome {
        let known = self.hosts.get_mut(&host);
        let fresh = match &known {
            None => digest.full,
            // A host that restarted may count from a lower number if its clock has gone back; it starts with a full digest.
            Some(h) => digest.sequence > h.sequence || (digest.full && now.since(h.received) >= self.config.grace / 4),
        };
        if !fresh {
            return if known.is_none() { DigestOutcome::NeedFull } else { DigestOutcome::Accepted };
        }
        let session_report = self.hosts.entry(host).or_insert_with(|| HostReport {
            sequence: 0,
            received: now,
            sessions: BTreeMap::new(),
        });
        session_report.sequence = digest.sequence;
        session_report.received = now;
        let mut before = if digest.full { std::mem::take(&mut session_report.sessions) } else { BTreeMap::new() };
        for fact in digest.sessions {
            let node = fact.node;
            self.duplicates.mark(node);
            let old = if digest.full { before.remove(&node) } else { session_report.sessions.remove(&node) };
            let same = old.as_ref().is_some_and(|old| old.fact == fact);
            let superseded = same && old.is_some_and(|old| old.superseded);
            if !same {
                self.dirty.insert(node);
            }
            session_report.sessions.insert(node, SessionReport { fact, superseded });
        }
        self.dirty.extend(before.keys()); // no longer named
        DigestOutcome::Accepted
    }

    fn copy(&mut self, tables: Tables) {
        if self.tables.revision == Revision(0) {
            self.dirty.extend(tables.nodes.keys()); // DISP-3: check every node once
        } else {
            self.dirty.extend(node_update::changed(&self.tables, &tables));
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
        self.duplicates.recorded(batch, outcome != Outcome::Failed);
        match outcome {
            Outcome::Applied(revision) if revision > self.tables.revision => {
                self.settling.extend(nodes.into_iter().map(|node| (node, revision)));
            }
            Outcome::Applied(_) => self.dirty.extend(nodes),
            Outcome::Refused => {
                let at = now + self.config.retry;
                self.retry_alone.extend(nodes.into_iter().map(|node| (node, at)));
            }
            Outcome::Failed => {
                self.retry_at = Some(now + self.config.retry);
                self.dirty.extend(nodes);
            }
        }
    }

    /// The only place that starts proposals.
    fn advance(&mut self, now: Moment, wall: WallTime, out: &mut Vec<Effect>) {
        self.forget_silent_hosts(now);
        let over: Vec<NodeId> = self.grace.iter().filter(|(_, g)| now >= g.until).map(|(n, _)| *n).collect();
        self.dirty.extend(over);
        self.judge_duplicates(now, wall, out);
        if self.retry_at.is_some_and(|at| now < at) {
            return;
        }
        self.retry_at = None;
        self.record_duplicates(wall, out);
        self.propose_singly(now, wall, out);
        self.propose(now, wall, out);
    }

    /// DISP-4.
    fn forget_silent_hosts(&mut self, now: Moment) {
        let grace = self.config.grace;
        let silent = |h: &HostReport| now >= h.received + grace;
        let gone: Vec<NodeId> = self.hosts.iter().filter(|(_, h)| silent(h)).map(|(id, _)| *id).collect();
        let gone: Vec<HostReport> = gone.iter().filter_map(|id| self.hosts.remove(id)).collect();
        for host in gone {
            for node in host.sessions.into_keys() {
                if self.newest_ready(node).is_none() {
                    self.grace.entry(node).or_insert(Grace { until: host.received + grace, prolonged: false });
                }
                self.dirty.insert(node);
            }
        }
    }

    /// Checks every dirty node without a proposal in flight and writes the differences, many nodes per command.
    fn propose(&mut self, now: Moment, wall: WallTime, out: &mut Vec<Effect>) {
        while self.batches.len() < self.config.in_flight && !self.dirty.is_empty() {
            let (mut nodes, mut changes) = (Vec::new(), Vec::new());
            while changes.len() + 2 <= self.config.batch.max(2)
                && let Some(node) = self.dirty.pop_first()
            {
                if self.is_in_flight(node) {
                    continue; // checked again when that has ended
                }
                let wanted = self.changes_for(now, wall, node);
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
        let due: Vec<NodeId> = self.retry_alone.iter().filter(|(_, at)| now >= **at).map(|(n, _)| *n).collect();
        for node in due {
            if self.batches.len() >= self.config.in_flight {
                return;
            }
            self.retry_alone.remove(&node);
            let wanted = self.changes_for(now, wall, node);
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

    fn is_in_flight(&self, node: NodeId) -> bool {
        self.settling.contains_key(&node)
            || self.retry_alone.contains_key(&node)
            || self.batches.values().any(|nodes| nodes.contains(&node))
    }

    /// The changes to write for one node, given its hosts' reports. Level-triggered: the record against the facts.
    fn changes_for(&mut self, now: Moment, wall: WallTime, node: NodeId) -> Vec<Change> {
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
            self.supersede_downs(node);
            return self.ready(&record, &fact);
        }
        if self.is_reported_down(node) {
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

    /// A node whose certificates were revoked, or are of a former root, has connected with its new one: from now on it does not
    /// need the old one.
    fn renewed(&self, record: &NodeRecord, fact: &SessionFact) -> Option<Change> {
        let row = self.tables.certificates.get(&record.id)?;
        let newest = record.certificate.as_ref().filter(|newest| newest.state != CertificateState::Rotate)?;
        let seen = Change::CertificateSeen { node: record.id, serial: fact.serial.clone() };
        let outdated = || row.older().any(|issued| self.tables.is_outdated(issued));
        (newest.serial == fact.serial && (row.revoking || outdated())).then_some(seen)
    }

    /// DISP-3, DISP-4: no host reports on it. Down and unknown stay as they are.
    fn silent(&mut self, now: Moment, record: &NodeRecord) -> Vec<Change> {
        if record.liveness != Liveness::Ready {
            self.grace.remove(&record.id);
            return Vec::new();
        }
        let longer = self.time_for_the_rest();
        let until = now + self.config.grace;
        let grace = self.grace.entry(record.id).or_insert(Grace { until, prolonged: false });
        if now >= grace.until && !grace.prolonged {
            *grace = Grace { until: grace.until + longer, prolonged: true };
        }
        if now < grace.until { Vec::new() } else { set(record, Liveness::Down) }
    }

    /// DISP-9. How much longer a node whose grace period ends may be away: nothing if few are.
    fn time_for_the_rest(&self) -> Duration {
        let waiting = u64::try_from(self.grace.len()).unwrap_or(u64::MAX);
        Duration::from_secs(waiting / RETURNS_PER_SEC).min(self.config.grace * MAX_PROLONGATION)
    }

    /// DISP-2. One with a connection before one without, then by `since`, so that every check picks the same one.
    fn newest_ready(&self, node: NodeId) -> Option<&SessionFact> {
        let facts = self.hosts.values().filter_map(|h| h.sessions.get(&node));
        let ready = facts.filter(|s| s.fact.liveness != Liveness::Down);
        ready.map(|s| &s.fact).max_by_key(|f| (f.liveness == Liveness::Ready, f.since, f.instance))
    }
    fn is_reported_down(&self, node: NodeId) -> bool {
        let mut session_reports = self.hosts.values().filter_map(|h| h.sessions.get(&node));
        session_reports.any(|s| s.fact.liveness == Liveness::Down && !s.superseded)
    }
    fn supersede_downs(&mut self, node: NodeId) {
        for host in self.hosts.values_mut() {
            if let Some(session_report) = host.sessions.get_mut(&node)
                && session_report.fact.liveness == Liveness::Down
            {
                session_report.superseded = true;
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
