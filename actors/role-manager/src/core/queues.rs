//! The two queues: what remains to be done between requests and facts, and why it is not done yet.
//!
//! Owns        for each node that is not settled: what is pending, since when, and what it waits for.

use std::collections::{BTreeMap, BTreeSet};

use muster_messages::{
    Condition, ConditionKind, Name, NodeId, PendingView, RoleView, SettleTimes, Tables, WaitReason, WallTime, Wants,
};
use serde::{Deserialize, Serialize};

use super::plan::Wait;

/// One node that is not settled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// What was requested.
    pub wants: Wants,
    /// What it waits for, as a word.
    pub reason: WaitReason,
    /// The same as a sentence.
    pub message: String,
    /// Since when for this reason.
    pub since: WallTime,
    /// Since when for any reason, as seen by this leader.
    pub began: WallTime,
    /// When it is tried again, if that is known.
    pub retry_at: Option<WallTime>,
    /// Whether callers that wait for the node to settle wait for this.
    pub holds: bool,
}

/// A node is in one of them while work on it remains, and in neither once it is settled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queues {
    /// Nodes whose role or membership is being changed.
    pub reconciliation: BTreeMap<NodeId, Pending>,
    /// Nodes that are being removed.
    pub removal: BTreeMap<NodeId, Pending>,
}

impl Queues {
    /// The entry of a node; `None`: it is settled.
    pub fn get(&self, node: NodeId) -> Option<&Pending> {
        self.removal.get(&node).or_else(|| self.reconciliation.get(&node))
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &Pending)> {
        (self.reconciliation.iter()).chain(&self.removal).map(|(n, p)| (*n, p))
    }

    /// Puts or keeps a node. `since` is used when this is a new reason, `now` when the node is new.
    pub(crate) fn put(
        &mut self,
        node: NodeId,
        wants: Wants,
        wait: Wait,
        holds: bool,
        (since, now): (WallTime, WallTime),
    ) {
        let known = self.get(node).filter(|p| p.wants == wants);
        // A leader that did not see it begin knows its time from the replicated state.
        let began = known.map_or(since.min(now), |p| p.began);
        let since = known.filter(|p| p.reason == wait.reason).map_or(since, |p| p.since);
        let pending =
            Pending { wants, reason: wait.reason, message: wait.message, since, began, retry_at: None, holds };
        self.remove_node(node);
        match wants {
            Wants::Removed => self.removal.insert(node, pending),
            Wants::Manager | Wants::Worker => self.reconciliation.insert(node, pending),
        };
    }

    /// Removes a node that is settled or gone; returns its entry.
    pub(crate) fn remove_node(&mut self, node: NodeId) -> Option<Pending> {
        let (change, removal) = (self.reconciliation.remove(&node), self.removal.remove(&node));
        removal.or(change)
    }

    /// Sets the next retry of everything that a retry can help. A node that is down is left to return
    /// by itself.
    pub(crate) fn set_retry(&mut self, retry_at: Option<WallTime>) {
        for pending in self.reconciliation.values_mut().chain(self.removal.values_mut()) {
            pending.retry_at = if retries(pending.reason) { retry_at } else { None };
        }
    }

    pub(crate) fn want_retry(&self) -> bool {
        self.iter().any(|(_, p)| retries(p.reason))
    }

    /// As all other readers see it.
    pub(crate) fn view(&self, tables: &Tables, settled: &BTreeMap<Wants, SettleTimes>) -> RoleView {
        let mut pending = Vec::new();
        let mut conditions: BTreeMap<NodeId, Vec<Condition>> = BTreeMap::new();
        let (mut holding, mut began) = (BTreeSet::new(), BTreeMap::new());
        for (node, p) in self.iter() {
            let name = name_of(tables, node);
            began.insert(node, p.began);
            pending.push(PendingView {
                node,
                name,
                wants: p.wants,
                reason: p.reason,
                message: p.message.clone(),
                since: p.since,
                retry_at: p.retry_at,
            });
            let kind = condition_kind(p.wants).into();
            conditions.entry(node).or_default().push(Condition {
                kind,
                reason: p.reason,
                message: p.message.clone(),
                since: p.since,
                retry_at: p.retry_at,
            });
            if p.holds {
                holding.insert(node);
            }
        }
        pending.sort_by_key(|p| p.node);
        RoleView { revision: tables.revision, pending, began, conditions, holding, settled: settled.clone() }
    }
}

fn retries(reason: WaitReason) -> bool {
    reason != WaitReason::WaitingForNode
}

/// The `type` of a condition.
pub(crate) fn condition_kind(wants: Wants) -> ConditionKind {
    match wants {
        Wants::Removed => ConditionKind::Removal,
        Wants::Manager | Wants::Worker => ConditionKind::RoleChange,
    }
}

/// A node's name; its id if it has no record.
pub(crate) fn name_of(tables: &Tables, node: NodeId) -> Name {
    let record = tables.nodes.get(&node);
    record.map_or_else(|| Name::sanitized(node.as_str()), |r| r.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_of_a_pending_change_outlives_its_reason() {
        let (mut queues, node) = (Queues::default(), NodeId::from_entropy(1));
        let wait = |reason| Wait { reason, message: String::new() };
        let began = |queues: &Queues| queues.view(&Tables::default(), &BTreeMap::new()).began[&node];
        let times = |since, now| (WallTime(since), WallTime(now));
        queues.put(node, Wants::Manager, wait(WaitReason::CatchingUp), true, times(10, 12));
        assert_eq!(began(&queues), WallTime(10), "a new leader has it from the state");
        queues.put(node, Wants::Manager, wait(WaitReason::QuorumAtRisk), true, times(50, 50));
        assert_eq!(began(&queues), WallTime(10));
        queues.put(node, Wants::Worker, wait(WaitReason::QuorumAtRisk), true, times(70, 71));
        assert_eq!(began(&queues), WallTime(70), "another change");
    }
}
