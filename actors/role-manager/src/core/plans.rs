//! The plans of all nodes that are not settled.
//!
//! Owns        one plan per node, and the nodes whose facts changed since they were last planned for.
//! Inputs      nodes whose facts changed.
//! Outputs     the next steps; nodes that are settled.
//! Invariants  a node without a plan is settled, or marked.
//! Why every plan is made again: a plan also follows from the time and from the commit index, which change without a mark.

use std::collections::{BTreeMap, BTreeSet};

use muster_messages::{MembershipChangeKind, NodeId};

use super::Observations;
use super::plan::{Next, Plan, Scene, plan};

#[derive(Clone, Debug, Default)]
pub(crate) struct Plans {
    of: BTreeMap<NodeId, Plan>,
    dirty: BTreeSet<NodeId>,
}

impl Plans {
    /// A new leader plans for all nodes.
    pub fn start_over(&mut self, nodes: BTreeSet<NodeId>) {
        self.of.clear();
        self.dirty = nodes;
    }
    /// The facts of a node changed.
    pub fn mark(&mut self, node: NodeId) {
        self.dirty.insert(node);
    }
    /// Plans for all nodes that are marked or have a plan. `settled` gets those that need none.
    pub fn renew(&mut self, scene: &Scene<'_>, observations: &Observations, mut settled: impl FnMut(NodeId)) {
        let mut concerned = std::mem::take(&mut self.dirty);
        concerned.extend(self.of.keys());
        for node in concerned {
            match plan(scene, node, &observations.of(node)) {
                Some(plan) => {
                    self.of.insert(node, plan);
                }
                None => {
                    self.of.remove(&node);
                    settled(node);
                }
            }
        }
    }

    pub fn get(&self, node: NodeId) -> Option<&Plan> {
        self.of.get(&node)
    }
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &Plan)> {
        self.of.iter().map(|(node, plan)| (*node, plan))
    }
    /// The nodes whose next step is a change of the Raft configuration.
    pub fn membership_changes(&self) -> impl Iterator<Item = NodeId> {
        self.iter().filter(|(_, plan)| matches!(plan.next, Some(Next::Membership(_)))).map(|(node, _)| node)
    }
    pub fn membership_change(&self, node: NodeId) -> Option<&MembershipChangeKind> {
        match self.get(node)?.next.as_ref()? {
            Next::Membership(kind) => Some(kind),
            Next::Write { .. } | Next::DialBack { .. } => None,
        }
    }
}
