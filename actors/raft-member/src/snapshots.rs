//! Work on whole states: encoding takes milliseconds to tens of them, so it is done on the blocking pool.

use std::sync::Arc;
use std::time::Duration;

use muster_kernel::{Address, Cx, Undeliverable};
use muster_messages::RaftSnapshotsView;
use muster_messages::protocol::RaftTransport;

use crate::core::{DigestJob, OutboundSnapshot, SnapshotJob};
use crate::disk::SnapshotFiles;
use crate::shell::Msg;

/// Snapshots for the own disk and for other members.
pub(crate) struct SnapshotWork {
    transport: Arc<dyn RaftTransport>,
    taken: u64,
    sent: u64,
}

impl SnapshotWork {
    pub fn new(transport: Arc<dyn RaftTransport>) -> Self {
        Self { transport, taken: 0, sent: 0 }
    }

    pub fn send(&mut self, cx: &Cx<Msg>, snapshot: OutboundSnapshot) {
        self.sent += 1;
        let (transport, me) = (Arc::clone(&self.transport), cx.me().clone());
        cx.spawn(async move {
            let OutboundSnapshot { node, addr, mut packet, job } = snapshot;
            let index = job.index;
            match tokio::task::spawn_blocking(move || job.run_shared()).await {
                Ok((head, data)) => {
                    packet.snapshot = Some(head.clone());
                    transport.send_snapshot(node, &addr, head, data, packet);
                }
                // If the mailbox refuses this, the core gives the snapshot up after a while.
                Err(_) => drop(me.tell(Msg::SnapshotLost { to: packet.to, index })),
            }
        });
    }

    /// If the directory is sealed anew meanwhile, the log does not name the snapshot, and the next one is taken as usual.
    pub fn take(&mut self, cx: &Cx<Msg>, files: SnapshotFiles, job: SnapshotJob) {
        self.taken += 1;
        let me = cx.me().clone();
        cx.spawn(async move {
            let work = move || {
                let (head, data) = job.run();
                files.store(&head, &data).map(|()| head)
            };
            let head = match tokio::task::spawn_blocking(work).await {
                Ok(Ok(head)) => Some(head),
                Ok(Err(fault)) => {
                    tracing::warn!(%fault, "cannot write a snapshot");
                    None
                }
                Err(_) => None,
            };
            send_until_accepted(&me, || Msg::SnapshotTaken(head.clone())).await;
        });
    }

    pub fn view(&self) -> RaftSnapshotsView {
        RaftSnapshotsView { taken: self.taken, sent: self.sent }
    }
}

pub(crate) fn digest(cx: &Cx<Msg>, job: DigestJob) {
    let me = cx.me().clone();
    cx.spawn(async move {
        let index = job.index;
        let digest = tokio::task::spawn_blocking(move || job.run()).await.ok();
        send_until_accepted(&me, || Msg::StateDigested { index, digest }).await;
    });
}

/// The core waits for this message before it asks for another, so it is retried while the mailbox is full.
async fn send_until_accepted(me: &Address<Msg>, msg: impl Fn() -> Msg) {
    while let Err(Undeliverable::Full) = me.tell(msg()) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
