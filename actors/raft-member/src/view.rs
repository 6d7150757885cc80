//! The member in the live tree.

use muster_messages::{
    LogSpanView, PeerProgress, RaftActorView, RaftDiskView, RaftInFlightView, RaftPeerView, RaftSnapshotsView,
    RaftStatus, millis,
};

use crate::core::RaftCore;

pub(crate) fn view(
    status: RaftStatus,
    core: &RaftCore,
    disk: RaftDiskView,
    snapshots: RaftSnapshotsView,
) -> RaftActorView {
    let RaftStatus { raft_id, role, term, leader_node: leader, commit, applied, leading, progress, .. } = status;
    let (proposals, reads, disk_writes) = core.in_flight();
    let (first, last, snapshot) = core.log_span();
    RaftActorView {
        raft_id,
        role,
        term,
        leader,
        leading,
        leader_changes: core.leader_changes(),
        commit,
        applied,
        log: LogSpanView { first, last, snapshot },
        disk,
        in_flight: RaftInFlightView { proposals, reads, disk_writes },
        snapshots,
        dropped: core.counters().iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect(),
        progress: progress.into_iter().map(peer).collect(),
    }
}

fn peer(PeerProgress { raft_id, node, voter, matched, acked_ago, in_snapshot, .. }: PeerProgress) -> RaftPeerView {
    RaftPeerView { raft_id, node, voter, matched, acked_ago_ms: acked_ago.map(millis), in_snapshot }
}
