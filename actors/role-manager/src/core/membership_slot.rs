//! The order of membership changes, and the transfer targets that did not take leadership.
//!
//! Owns        the nodes whose membership change waits for its turn; the voters to which leadership was offered in vain.
//! Inputs      nodes that want a membership change, changes that start or were rejected, transfers that failed.
//! Outputs     the order in which changes are considered.
//! Invariants  a node that waits keeps its position as long as it wants a change.

use std::collections::{BTreeSet, VecDeque};

use muster_messages::NodeId;
use serde::{Deserialize, Serialize};

/// The order of membership changes, of which one is in flight at a time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MembershipSlot {
    /// In order of arrival.
    waiting: VecDeque<NodeId>,
    /// Transfer targets that did not take leadership.
    failed_targets: BTreeSet<NodeId>,
}

impl MembershipSlot {
    /// New nodes go to the end. One that wants no change any more loses its position.
    pub(crate) fn queue_up(&mut self, wanting: &BTreeSet<NodeId>, in_flight: Option<NodeId>) {
        self.waiting.retain(|node| wanting.contains(node));
        for node in wanting {
            if !self.waiting.contains(node) && in_flight != Some(*node) {
                self.waiting.push_back(*node);
            }
        }
    }
    pub(crate) fn put_first(&mut self, node: NodeId) {
        self.remove(node);
        self.waiting.push_front(node);
    }
    pub(crate) fn remove(&mut self, node: NodeId) {
        self.waiting.retain(|n| *n != node);
    }
    pub(crate) fn waiting(&self) -> impl Iterator<Item = NodeId> {
        self.waiting.iter().copied()
    }

    pub(crate) fn transfer_failed(&mut self, to: NodeId) {
        self.failed_targets.insert(to);
    }
    pub(crate) fn may_lead(&self, node: NodeId) -> bool {
        !self.failed_targets.contains(&node)
    }
    /// The leader does not leave, or not now: next time all are asked again.
    pub(crate) fn forget_transfers(&mut self) {
        self.failed_targets.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_nodes_keep_their_position() {
        let [a, b, c] = [1, 2, 3].map(NodeId::from_entropy);
        let mut slot = MembershipSlot::default();
        slot.queue_up(&BTreeSet::from([b, c]), None);
        slot.queue_up(&BTreeSet::from([a, b, c]), None);
        assert_eq!(slot.waiting().collect::<Vec<_>>(), [b, c, a]);
        slot.remove(b);
        slot.queue_up(&BTreeSet::from([a, b, c]), Some(b));
        assert_eq!(slot.waiting().collect::<Vec<_>>(), [c, a], "the change in flight does not wait");
        slot.put_first(b);
        slot.queue_up(&BTreeSet::from([a, b]), None);
        assert_eq!(slot.waiting().collect::<Vec<_>>(), [b, a]);
    }
}
