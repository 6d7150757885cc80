//! What the member reports, as log lines.

use muster_messages::{NodeId, RaftId};

use crate::core::Notice;

pub(crate) fn log_notice(notice: &Notice) {
    match notice {
        Notice::DiskTooSlow { term, stepped_down: true } => {
            tracing::warn!(term = term.0, "disk write too slow; gave up Raft leadership");
        }
        Notice::DiskTooSlow { term, stepped_down: false } => {
            tracing::warn!(term = term.0, "disk write too slow; writes wait for it, because no other manager votes");
        }
        Notice::SnapshotUnreadable { index, why } => tracing::warn!(index, %why, "cannot read a received snapshot"),
        Notice::StateDiverged { member, node, index } => {
            tracing::error!(
                raft_id = member.0,
                node = %or_unknown(*node),
                index,
                "a manager's state differs from the leader's at the same revision"
            );
        }
        Notice::SnapshotNotTaken { to, why } => {
            tracing::warn!(raft_id = to.0, %why, "a manager needs a snapshot of the state and did not install it; \
                see `muster node inspect` of that node");
        }
        Notice::Leads { term } => tracing::info!(term = term.0, "became the Raft leader"),
        Notice::Follows { term, leader, node } => {
            tracing::info!(term = term.0, raft_id = leader.0, node = %or_unknown(*node), "Raft leader changed");
        }
        Notice::LostLeader { term } => tracing::info!(term = term.0, "no Raft leader"),
        Notice::BecameMember { raft_id } => tracing::info!(raft_id = raft_id.0, "this node became a Raft member"),
        Notice::MemberRemoved { raft_id } => {
            tracing::info!(raft_id = raft_id.0, "this node was removed from the Raft configuration");
        }
        Notice::Installed { index } => tracing::info!(index, "installed a snapshot"),
        Notice::Sending { to: RaftId(to), index } => {
            tracing::info!(raft_id = to, index, "sending a snapshot to a Raft member");
        }
        Notice::MembershipProposed { kind, .. } => tracing::debug!(?kind, "a membership change enters the log"),
        Notice::MembershipRefused { why } => tracing::debug!(%why, "membership change refused when applied"),
    }
}

/// A member's node, once this member's replica knows it.
fn or_unknown(node: Option<NodeId>) -> String {
    node.map_or_else(|| "unknown".to_owned(), |node| node.to_string())
}
