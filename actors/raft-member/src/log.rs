//! What the member reports, as log lines.

use crate::core::Notice;

pub(crate) fn log_notice(notice: &Notice) {
    match notice {
        Notice::DiskTooSlow { .. } => tracing::warn!(?notice, "disk write too slow; gave up Raft leadership"),
        Notice::SnapshotUnreadable { .. } => tracing::warn!(?notice, "cannot read a received snapshot"),
        Notice::StateDiverged { member, node, index } => {
            tracing::error!(
                raft_id = member.0,
                ?node,
                index,
                "a manager's state differs from the leader's at the same revision"
            );
        }
        Notice::SnapshotNotTaken { to, why } => {
            tracing::warn!(raft_id = to.0, %why, "a manager needs a snapshot of the state and did not install it; \
                see `muster node inspect` of that node");
        }
        Notice::Leads { .. } | Notice::Follows { .. } | Notice::LostLeader { .. } => {
            tracing::info!(?notice, "Raft leader changed")
        }
        Notice::BecameMember { .. } => tracing::info!(?notice, "this node became a Raft member"),
        Notice::MemberRemoved { .. } => tracing::info!(?notice, "this node was removed from the Raft configuration"),
        Notice::Installed { .. } => tracing::info!(?notice, "installed a snapshot"),
        Notice::Sending { .. } => tracing::info!(?notice, "sending a snapshot to a Raft member"),
        Notice::MembershipRefused { .. } => tracing::debug!(?notice, "membership change refused when applied"),
    }
}
