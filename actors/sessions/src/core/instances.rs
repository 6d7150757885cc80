//! Instances: two processes with one identity (a cloned disk) take one session from each other. Neither alone is at
//! fault, so both must be named.
//!
//! Owns        the processes of each node whose process changed.
//! Invariants  SESSION-6  a process that a newer one of the same node replaced never comes back if the node was merely
//!                        restarted; if it does, there are two.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::wire::SessionFact;
use muster_messages::{Moment, NodeId, NodeProcess};
use serde::Serialize;

/// A process of a node, as a host sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Instance {
    pub instance: u64,
    /// The address at which it wants to be dialled.
    pub addr: String,
    /// The remote address of its connection.
    pub remote: String,
}

impl Instance {
    pub fn of(fact: &SessionFact) -> Self {
        Self { instance: fact.instance, addr: fact.addr.clone(), remote: fact.remote.clone() }
    }
    /// The form shown to people.
    pub fn shown(&self) -> NodeProcess {
        let instance = format!("{:016x}", self.instance);
        NodeProcess { instance, addr: self.addr.clone(), remote: self.remote.clone() }
    }
}

/// Two or more processes of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Duplicate {
    pub node: NodeId,
    pub instances: Vec<Instance>,
}

/// The most displaced processes remembered per node, and how long.
const MAX_DISPLACED: usize = 4;
const DISPLACED_RETENTION: Duration = Duration::from_secs(600);

#[derive(Clone, Debug, Default)]
struct History {
    displaced: Vec<(Instance, Moment)>,
    /// When one last came back, while they alternate.
    returned: Option<Moment>,
    newest: Option<Instance>,
}

/// Only nodes whose process changed are kept.
#[derive(Clone, Debug, Default)]
pub struct Instances {
    nodes: BTreeMap<NodeId, History>,
}

impl Instances {
    /// The session of `node` went from one process to another. Returns what to report: that they alternate, once they
    /// begin to.
    pub fn changed(&mut self, now: Moment, node: NodeId, old: Instance, new: Instance) -> Option<Duplicate> {
        let history = self.nodes.entry(node).or_default();
        history.displaced.retain(|(i, at)| i.instance != old.instance && now.since(*at) < DISPLACED_RETENTION);
        history.displaced.push((old, now));
        if history.displaced.len() > MAX_DISPLACED {
            history.displaced.remove(0);
        }
        let returned = history.displaced.iter().any(|(i, _)| i.instance == new.instance);
        history.newest = Some(new);
        if !returned {
            return None;
        }
        let begins = history.returned.replace(now).is_none();
        begins.then(|| history.duplicate(node))
    }

    /// The processes that alternate as this node; empty: it has one.
    pub fn turns(&self, node: NodeId) -> Vec<NodeProcess> {
        let history = self.nodes.get(&node).filter(|history| history.returned.is_some());
        let mut turns: Vec<NodeProcess> =
            history.into_iter().flat_map(|h| h.duplicate(node).instances).map(|i| i.shown()).collect();
        turns.sort();
        turns
    }

    /// Those that alternate, for the view.
    pub fn current(&self) -> Vec<Duplicate> {
        let shown = self.nodes.iter().filter(|(_, h)| h.returned.is_some());
        shown.map(|(node, h)| h.duplicate(*node)).collect()
    }

    /// Drops old entries. Returns the nodes whose processes have not alternated for so long.
    pub fn sweep(&mut self, now: Moment, settled: Duration) -> Vec<NodeId> {
        let (long, mut settled) = (settled, Vec::new());
        self.nodes.retain(|node, history| {
            if history.returned.is_some_and(|at| now.since(at) >= long) {
                history.returned = None;
                settled.push(*node);
            }
            history.displaced.retain(|(_, at)| now.since(*at) < DISPLACED_RETENTION);
            !history.displaced.is_empty()
        });
        settled
    }
}

impl History {
    fn duplicate(&self, node: NodeId) -> Duplicate {
        let mut instances: Vec<Instance> = self.newest.iter().cloned().collect();
        for (instance, _) in &self.displaced {
            if instances.iter().all(|i| i.instance != instance.instance) {
                instances.push(instance.clone());
            }
        }
        Duplicate { node, instances }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(instance: u64) -> Instance {
        let (addr, remote) = (format!("10.0.0.{instance}:4400"), format!("10.0.0.{instance}:1"));
        Instance { instance, addr, remote }
    }
    const SETTLED: Duration = Duration::from_secs(120);
    fn at(secs: u64) -> Moment {
        Moment(secs * 1_000_000)
    }

    /// E45: cloned machines took one session from each other endlessly, without any message.
    #[test]
    fn duplicate_identity_is_reported_once_while_it_lasts() {
        let mut instances = Instances::default();
        let node = NodeId::from_entropy(1);
        let (mut old, mut new) = (process(1), process(2));
        for round in [0, 1000] {
            let mut reported = vec![];
            for second in round..round + 180 {
                reported.extend(instances.changed(at(second), node, old.clone(), new.clone()));
                std::mem::swap(&mut old, &mut new);
                assert_eq!(instances.sweep(at(second), SETTLED), []);
            }
            assert_eq!(reported.len(), 1, "not at every change");
            let mut named: Vec<u64> = reported[0].instances.iter().map(|i| i.instance).collect();
            named.sort_unstable();
            assert_eq!(named, [1, 2]);
            assert_eq!(instances.turns(node), [process(1).shown(), process(2).shown()]);
            assert_eq!(instances.sweep(at(round + 290), SETTLED), []);
            assert_eq!(instances.sweep(at(round + 300), SETTLED), [node], "no change for two minutes");
            assert!(instances.current().is_empty() && instances.turns(node).is_empty());
        }
        instances.sweep(at(3000), SETTLED);
        assert!(instances.nodes.is_empty());
    }

    #[test]
    fn a_node_that_restarts_again_and_again_is_no_duplicate() {
        let mut instances = Instances::default();
        let node = NodeId::from_entropy(1);
        for n in 0..100 {
            let warning = instances.changed(at(n), node, process(n), process(n + 1));
            assert_eq!(warning, None);
        }
        assert!(instances.nodes[&node].displaced.len() <= MAX_DISPLACED);
    }
}
