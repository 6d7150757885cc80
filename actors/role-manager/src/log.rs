//! Membership changes, as log lines.

use muster_messages::MembershipChangeKind;

/// What this change does.
pub(crate) fn described(change: &MembershipChangeKind) -> String {
    match change {
        MembershipChangeKind::AddLearner { node, raft_id, addr } => {
            format!("add {node} at {addr} as learner, Raft id {raft_id}")
        }
        MembershipChangeKind::PromoteLearner { node, raft_id } => {
            format!("make learner {node} a voter, Raft id {raft_id}")
        }
        MembershipChangeKind::Remove { raft_id } => format!("remove the member of Raft id {raft_id}"),
        MembershipChangeKind::SetAddress { raft_id, addr } => {
            format!("set the address of the member of Raft id {raft_id} to {addr}")
        }
    }
}
