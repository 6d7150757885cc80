//! Duplicates: nodes whose identity two processes use, according to the hosts' reports.
//!
//! Owns        since when hosts disagree about a node, the duplicates that are shown, and the events to write.
//!
//! Two signs: processes that alternate on one host, and two hosts that call one node ready with different processes for longer
//! than a dead session can look alive.

use std::collections::{BTreeMap, BTreeSet};

use muster_messages::{Change, Command, Duplicated, Liveness, Moment, NodeId, NodeProcess, Principal, WallTime};

use super::{BatchId, Dispatcher, Effect};
use crate::config::DispatcherConfig;
use crate::core::instances::Instance;

/// The most processes named: no operator runs more copies of one directory.
const MAX_PROCESSES_NAMED: usize = 8;

#[derive(Clone, Debug)]
struct Shown {
    what: Duplicated,
    /// When a sign of it was last seen.
    seen: Moment,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Duplicates {
    /// Since when two hosts disagree.
    overlaps: BTreeMap<NodeId, Moment>,
    shown: BTreeMap<NodeId, Shown>,
    /// Nodes named in a digest since the last check.
    to_check: BTreeSet<NodeId>,
    /// Events to write; an empty list: it is over.
    to_write: BTreeMap<NodeId, Vec<String>>,
    being_written: BTreeMap<BatchId, (NodeId, Vec<String>)>,
}

impl Duplicates {
    pub(super) fn mark(&mut self, node: NodeId) {
        self.to_check.insert(node);
    }
    pub(super) fn is_shown(&self, node: NodeId) -> bool {
        self.shown.contains_key(&node)
    }
    pub(super) fn shown(&self) -> BTreeMap<NodeId, Duplicated> {
        self.shown.iter().map(|(node, shown)| (*node, shown.what.clone())).collect()
    }
    /// When to check again.
    pub(super) fn times(&self, config: &DispatcherConfig) -> impl Iterator<Item = Moment> {
        let (overlap, quiet) = (config.overlap, config.quiet);
        let overlaps = self.overlaps.values().map(move |since| *since + overlap);
        overlaps.chain(self.shown.values().map(move |shown| shown.seen + quiet))
    }
    /// The event of this command was written, or never will be; otherwise it is written again.
    pub(super) fn recorded(&mut self, batch: BatchId, done: bool) {
        if let Some((node, processes)) = self.being_written.remove(&batch)
            && !done
        {
            self.to_write.entry(node).or_insert(processes);
        }
    }
}

impl Dispatcher {
    pub(super) fn judge_duplicates(&mut self, now: Moment, wall: WallTime, out: &mut Vec<Effect>) {
        let mut to_check = std::mem::take(&mut self.duplicates.to_check);
        to_check.extend(self.duplicates.shown.keys());
        to_check.extend(self.duplicates.overlaps.keys());
        for node in to_check {
            let processes = self.processes(now, node);
            let known = self.tables.nodes.contains_key(&node);
            match self.duplicates.shown.get_mut(&node) {
                Some(shown) if processes.len() > 1 => {
                    shown.seen = now;
                    shown.what.processes = processes;
                }
                Some(shown) if known && now < shown.seen + self.config.quiet => {}
                Some(_) => {
                    self.duplicates.shown.remove(&node);
                    self.dirty.insert(node);
                    out.push(Effect::DuplicateResolved(node));
                    self.duplicates.to_write.insert(node, Vec::new());
                }
                None if processes.len() > 1 && known => {
                    self.duplicates.to_write.insert(node, processes.iter().map(ToString::to_string).collect());
                    let what = Duplicated { since: wall, processes };
                    self.duplicates.shown.insert(node, Shown { what, seen: now });
                    out.push(Effect::DuplicateFound(node));
                }
                None => {}
            }
        }
    }

    /// The processes of a node with present signs, by their instance.
    fn processes(&mut self, now: Moment, node: NodeId) -> Vec<NodeProcess> {
        let facts: Vec<_> = self.hosts.values().filter_map(|h| h.sessions.get(&node)).map(|s| &s.fact).collect();
        let ready: BTreeMap<u64, NodeProcess> = facts
            .iter()
            .filter(|fact| fact.liveness == Liveness::Ready)
            .map(|fact| (fact.instance, Instance::of(fact).shown()))
            .collect();
        let turns = facts.iter().flat_map(|fact| fact.turns.iter().cloned());
        let mut named: BTreeMap<String, NodeProcess> = turns.map(|p| (p.instance.clone(), p)).collect();
        if ready.len() < 2 {
            self.duplicates.overlaps.remove(&node);
        } else {
            let since = *self.duplicates.overlaps.entry(node).or_insert(now);
            if now >= since + self.config.overlap || !named.is_empty() {
                named.extend(ready.into_values().map(|p| (p.instance.clone(), p)));
            }
        }
        named.into_values().take(MAX_PROCESSES_NAMED).collect()
    }

    pub(super) fn record_duplicates(&mut self, wall: WallTime, out: &mut Vec<Effect>) {
        let ready = |node: &NodeId| !self.is_in_flight(*node);
        let nodes: Vec<NodeId> = self.duplicates.to_write.keys().copied().filter(ready).collect();
        for node in nodes {
            let Some(processes) = self.duplicates.to_write.remove(&node) else { continue };
            if !self.tables.nodes.contains_key(&node) {
                continue;
            }
            let reason = if processes.is_empty() { "duplicate identity is over" } else { "duplicate identity" };
            self.next_batch += 1;
            let batch = BatchId(self.next_batch);
            let command = Command::idempotent(wall, Principal::Cluster, reason);
            let command = command.change(Change::RecordDuplicate { node, processes: processes.clone() });
            self.batches.insert(batch, vec![node]);
            self.duplicates.being_written.insert(batch, (node, processes));
            out.push(Effect::Propose { batch, command });
        }
    }
}
