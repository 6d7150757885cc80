//! Duplicates: nodes whose identity two processes use, from what the hosts say.
//!
//! Two signs: processes that take turns on one host, and two hosts that call one node ready under different processes for longer
//! than a session that is dead can look alive.

use std::collections::{BTreeMap, BTreeSet};

use muster_messages::{Change, Command, Duplicated, Liveness, Moment, NodeId, NodeProcess, Principal, WallTime};

use super::{BatchId, Dispatcher, Effect};
use crate::config::DispatcherConfig;
use crate::core::instances::Instance;

/// Processes that are named: nobody runs more copies of one directory.
const MOST: usize = 8;

#[derive(Clone, Debug)]
struct Shown {
    what: Duplicated,
    /// When there was a sign of it last.
    seen: Moment,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Duplicates {
    /// Since when two hosts disagree.
    overlaps: BTreeMap<NodeId, Moment>,
    shown: BTreeMap<NodeId, Shown>,
    /// Nodes that a digest named since the last look.
    look: BTreeSet<NodeId>,
    /// To be told in the event log; none: it is over.
    tell: BTreeMap<NodeId, Vec<String>>,
    telling: BTreeMap<BatchId, (NodeId, Vec<String>)>,
}

impl Duplicates {
    pub(super) fn look_at(&mut self, node: NodeId) {
        self.look.insert(node);
    }
    pub(super) fn is_shown(&self, node: NodeId) -> bool {
        self.shown.contains_key(&node)
    }
    pub(super) fn shown(&self) -> BTreeMap<NodeId, Duplicated> {
        self.shown.iter().map(|(node, shown)| (*node, shown.what.clone())).collect()
    }
    /// When to look again.
    pub(super) fn times(&self, config: &DispatcherConfig) -> impl Iterator<Item = Moment> {
        let (overlap, quiet) = (config.overlap, config.quiet);
        let overlaps = self.overlaps.values().map(move |since| *since + overlap);
        overlaps.chain(self.shown.values().map(move |shown| shown.seen + quiet))
    }
    /// The event of this command is written, or will never be; otherwise it is told again.
    pub(super) fn noted(&mut self, batch: BatchId, done: bool) {
        if let Some((node, processes)) = self.telling.remove(&batch)
            && !done
        {
            self.tell.entry(node).or_insert(processes);
        }
    }
}

impl Dispatcher {
    pub(super) fn judge_duplicates(&mut self, now: Moment, wall: WallTime, out: &mut Vec<Effect>) {
        let mut look = std::mem::take(&mut self.duplicates.look);
        look.extend(self.duplicates.shown.keys());
        look.extend(self.duplicates.overlaps.keys());
        for node in look {
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
                    out.push(Effect::Over(node));
                    self.duplicates.tell.insert(node, Vec::new());
                }
                None if processes.len() > 1 && known => {
                    self.duplicates.tell.insert(node, processes.iter().map(ToString::to_string).collect());
                    let what = Duplicated { since: wall, processes };
                    self.duplicates.shown.insert(node, Shown { what, seen: now });
                    out.push(Effect::Warn(node));
                }
                None => {}
            }
        }
    }

    /// The processes of a node of which there are signs now, by their instance.
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
        named.into_values().take(MOST).collect()
    }

    pub(super) fn note_duplicates(&mut self, wall: WallTime, out: &mut Vec<Effect>) {
        let ready = |node: &NodeId| !self.is_under_way(*node);
        let nodes: Vec<NodeId> = self.duplicates.tell.keys().copied().filter(ready).collect();
        for node in nodes {
            let Some(processes) = self.duplicates.tell.remove(&node) else { continue };
            if !self.tables.nodes.contains_key(&node) {
                continue;
            }
            let reason = if processes.is_empty() { "duplicate identity is over" } else { "duplicate identity" };
            self.next_batch += 1;
            let batch = BatchId(self.next_batch);
            let command = Command::idempotent(wall, Principal::Cluster, reason);
            let command = command.change(Change::NoteDuplicate { node, processes: processes.clone() });
            self.batches.insert(batch, vec![node]);
            self.duplicates.telling.insert(batch, (node, processes));
            out.push(Effect::Propose { batch, command });
        }
    }
}
