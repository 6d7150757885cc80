//! What changed between two versions of the replicated state: the nodes whose facts changed.

use std::collections::BTreeSet;

use imbl::ordmap::DiffItem;
use muster_messages::{NodeId, Tables};

pub(crate) fn changed_nodes(old: &Tables, new: &Tables) -> BTreeSet<NodeId> {
    let mut changed = BTreeSet::new();
    if !old.nodes.ptr_eq(&new.nodes) {
        for item in old.nodes.diff(&new.nodes) {
            changed.insert(match item {
                DiffItem::Add(id, _) | DiffItem::Remove(id, _) => *id,
                DiffItem::Update { new: (id, _), .. } => *id,
            });
        }
    }
    if !old.members.ptr_eq(&new.members) && old.members != new.members {
        for member in old.members.values() {
            if new.members.get(&member.raft_id) != Some(member) {
                changed.insert(member.node);
            }
        }
        for member in new.members.values() {
            if old.members.get(&member.raft_id) != Some(member) {
                changed.insert(member.node);
            }
        }
    }
    changed
}
