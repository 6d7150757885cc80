//! Instances: two processes with one identity (a cloned disk) take one session from each other. Neither is at fault by
//! itself, so that both must be named.
//!
//! Keeps  SESSION-6  a process that was replaced by a newer one of the same node is gone for good if the node was merely
//!                   restarted; if it comes back, there are two.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::{Moment, NodeId};
use serde::Serialize;

/// A process of a node, as a host sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Instance {
    pub instance: u64,
    /// Where its connection comes from.
    pub remote: String,
}

/// Two or more processes of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Duplicate {
    pub node: NodeId,
    pub instances: Vec<Instance>,
}

/// The most displaced processes remembered per node, and how long.
const MOST: usize = 4;
const REMEMBERED: Duration = Duration::from_secs(600);
/// Two processes that stopped taking turns this long ago are no longer shown.
const SETTLED: Duration = Duration::from_secs(120);

#[derive(Clone, Debug, Default)]
struct History {
    displaced: Vec<(Instance, Moment)>,
    /// When one came back last.
    returned: Option<Moment>,
    warned: Option<Moment>,
    newest: Option<Instance>,
}

/// Only nodes whose process changed take room here.
#[derive(Clone, Debug, Default)]
pub struct Instances {
    nodes: BTreeMap<NodeId, History>,
}

impl Instances {
    /// The session of `node` went from one process to another. Returns what should be said aloud, at most once per
    /// `warn_every`.
    pub fn changed(
        &mut self,
        now: Moment,
        node: NodeId,
        old: Instance,
        new: Instance,
        warn_every: Duration,
    ) -> Option<Duplicate> {
        let history = self.nodes.entry(node).or_default();
        history.displaced.retain(|(i, at)| i.instance != old.instance && now.since(*at) < REMEMBERED);
        history.displaced.push((old, now));
        if history.displaced.len() > MOST {
            history.displaced.remove(0);
        }
        let returned = history.displaced.iter().any(|(i, _)| i.instance == new.instance);
        history.newest = Some(new);
        if !returned {
            return None;
        }
        history.returned = Some(now);
        if history.warned.is_some_and(|at| now.since(at) < warn_every) {
            return None;
        }
        history.warned = Some(now);
        Some(history.duplicate(node))
    }

    /// Those that still take turns, for the view.
    pub fn current(&self, now: Moment) -> Vec<Duplicate> {
        let fresh = |h: &History| h.returned.is_some_and(|at| now.since(at) < SETTLED);
        let shown = self.nodes.iter().filter(|(_, h)| fresh(h));
        shown.map(|(node, h)| h.duplicate(*node)).collect()
    }

    /// Forgets what no longer matters.
    pub fn sweep(&mut self, now: Moment) {
        self.nodes.retain(|_, history| {
            history.displaced.retain(|(_, at)| now.since(*at) < REMEMBERED);
            !history.displaced.is_empty()
        });
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
        Instance { instance, remote: format!("10.0.0.{instance}:1") }
    }
    fn at(secs: u64) -> Moment {
        Moment(secs * 1_000_000)
    }
    const MINUTE: Duration = Duration::from_secs(60);

    /// E45: cloned machines took one session from each other for ever, and nothing said so.
    #[test]
    fn two_processes_with_one_identity_are_named_once_a_minute() {
        let mut instances = Instances::default();
        let node = NodeId::from_entropy(1);
        let (mut old, mut new) = (process(1), process(2));
        let mut warnings = vec![];
        for second in 0..180 {
            warnings.extend(instances.changed(at(second), node, old.clone(), new.clone(), MINUTE));
            std::mem::swap(&mut old, &mut new);
        }
        assert_eq!(warnings.len(), 3);
        let mut named: Vec<u64> = warnings[0].instances.iter().map(|i| i.instance).collect();
        named.sort_unstable();
        assert_eq!(named, [1, 2]);
        assert_eq!(instances.current(at(181)).len(), 1);
        assert!(instances.current(at(400)).is_empty());
        instances.sweep(at(2000));
        assert!(instances.nodes.is_empty());
    }

    #[test]
    fn a_node_that_restarts_again_and_again_is_no_duplicate() {
        let mut instances = Instances::default();
        let node = NodeId::from_entropy(1);
        for n in 0..100 {
            let warning = instances.changed(at(n), node, process(n), process(n + 1), MINUTE);
            assert_eq!(warning, None);
        }
        assert!(instances.nodes[&node].displaced.len() <= MOST);
    }
}
