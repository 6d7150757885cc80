use muster_messages::{Member, RaftId};

use super::*;

/// Managers join in any order, and one that was removed and joins again has a new Raft id.
#[test]
fn missing_managers_are_sorted_by_name() {
    let mut replica = Replica::default();
    for (raft_id, name) in [(1, "n1"), (2, "n3"), (3, "n2")] {
        let node = NodeId::from_entropy(u128::from(raft_id) * 7919);
        let record = NodeRecord::new(node, name.parse().unwrap(), Role::Manager, WallTime(0));
        replica.tables.nodes.insert(node, Arc::new(record));
        let member = Member { node, raft_id: RaftId(raft_id), addr: String::new(), voter: true };
        replica.tables.members.insert(member.raft_id, member);
    }
    let this = NodeId::from_entropy(7919);
    let (peers, roles, doubts) = (BTreeSet::new(), Arc::default(), Arc::default());
    let source = Source { replica: &replica, roles, this, peers, doubts, stale: None, certificate_lifetime: None };
    let missing = ["n2", "n3"].map(|name| name.parse().unwrap()).to_vec();
    assert_eq!(source.quorum(), QuorumView { needed: 2, reachable: 1, missing });
}
