//! What the member publishes: its replica, twice, the feed of changed objects, and that this build is incompatible.

use std::sync::Arc;

use muster_messages::{Moment, RaftStatus, Replica, Revision};
use tokio::sync::watch;

use crate::core::{Batch, Incompatible};
use crate::feed::ObjectFeed;

/// The replica, for its readers.
#[derive(Clone)]
pub struct ReplicaSenders {
    /// After each applied write.
    pub every: Arc<watch::Sender<Arc<Replica>>>,
    /// After each that changes not only objects, and at most [`RaftConfig::publish_every`](crate::core::RaftConfig::publish_every)
    /// after any other: for readers that leases do not concern.
    pub cluster: Arc<watch::Sender<Arc<Replica>>>,
}

impl Default for ReplicaSenders {
    fn default() -> Self {
        let empty = || Arc::new(watch::Sender::new(Arc::new(Replica::default())));
        Self { every: empty(), cluster: empty() }
    }
}

pub(crate) struct Published {
    replica: ReplicaSenders,
    feed: ObjectFeed,
    incompatible: Arc<watch::Sender<Option<Incompatible>>>,
}

impl Published {
    /// `revision`: that of the recovered state, where the feed begins.
    pub fn new(
        replica: ReplicaSenders,
        feed: ObjectFeed,
        incompatible: Arc<watch::Sender<Option<Incompatible>>>,
        revision: Revision,
    ) -> Self {
        feed.begin_at(revision);
        Self { replica, feed, incompatible }
    }

    /// Publishes the news of a batch, with the revision after it.
    pub fn update(&self, now: Moment, revision: Revision, batch: &mut Batch) {
        if let Some(installed) = batch.installed {
            self.feed.begin_at(installed);
        }
        if !batch.changes.is_empty() || !batch.deletions.is_empty() || batch.publish.is_some() {
            self.feed.record_deletions(revision, std::mem::take(&mut batch.deletions));
            self.feed.record(now, revision, std::mem::take(&mut batch.changes));
        }
        if let Some(replica) = batch.publish.take() {
            self.replica.every.send_replace(replica);
        }
        if let Some(replica) = batch.publish_cluster.take() {
            self.replica.cluster.send_replace(replica);
        }
        if batch.incompatible.is_some() {
            // Of several snapshots the first is enough.
            self.incompatible
                .send_if_modified(|said| std::mem::replace(said, batch.incompatible) != batch.incompatible);
        }
    }
}

impl Drop for Published {
    /// A member that does not run must not be published as leader.
    fn drop(&mut self) {
        for sender in [&self.replica.every, &self.replica.cluster] {
            sender.send_modify(|replica| {
                let RaftStatus { raft_id, term, commit, applied, .. } = replica.raft.clone();
                let raft = RaftStatus { raft_id, term, commit, applied, ..RaftStatus::default() };
                *replica = Arc::new(Replica { tables: replica.tables.clone(), raft });
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_without_their_member_do_not_lead() {
        let senders = ReplicaSenders::default();
        let both = [&senders.every, &senders.cluster];
        for sender in both {
            sender.send_modify(|replica| Arc::make_mut(replica).raft.leading = true);
        }
        drop(Published::new(senders.clone(), ObjectFeed::default(), Arc::default(), Revision(0)));
        assert_eq!(both.map(|sender| sender.borrow().raft.leading), [false, false]);
    }
}
