//! The local replica of the replicated state, while this node is a manager.

use std::sync::Arc;

use muster_messages::Replica;
use tokio::sync::watch;

type Source = watch::Receiver<Arc<Replica>>;

/// Holds the local replica. The manager runtime attaches its raft member's replica while it runs; on a worker it is
/// empty. Clones share one holder.
#[derive(Clone, Debug)]
pub struct LocalReplica {
    current: Arc<watch::Sender<Option<(u64, Source)>>>,
}

impl Default for LocalReplica {
    fn default() -> Self {
        Self { current: Arc::new(watch::Sender::new(None)) }
    }
}

impl LocalReplica {
    pub fn new() -> Self {
        Self::default()
    }
    /// Makes this the local replica; a newer attachment replaces it.
    #[must_use = "dropping the guard detaches the replica"]
    pub fn attach(&self, source: Source) -> ReplicaGuard {
        let mut number = 0;
        self.current.send_modify(|current| {
            number = current.as_ref().map_or(0, |(n, _)| *n) + 1;
            *current = Some((number, source));
        });
        ReplicaGuard { of: self.clone(), number }
    }
    pub fn get(&self) -> Option<Arc<Replica>> {
        self.current.borrow().as_ref().map(|(_, source)| source.borrow().clone())
    }
    /// Follows the replica across attachments.
    pub fn watch(&self) -> ReplicaWatch {
        let mut current = self.current.subscribe();
        let source = current.borrow_and_update().as_ref().map(|(_, source)| source.clone());
        ReplicaWatch { current, source }
    }
}

/// Keeps a replica attached until dropped, unless a newer one was attached.
#[derive(Debug)]
pub struct ReplicaGuard {
    of: LocalReplica,
    number: u64,
}

impl Drop for ReplicaGuard {
    fn drop(&mut self) {
        self.of.current.send_if_modified(|current| {
            let mine = current.as_ref().is_some_and(|(n, _)| *n == self.number);
            if mine {
                *current = None;
            }
            mine
        });
    }
}

/// A reader of the local replica.
#[derive(Debug)]
pub struct ReplicaWatch {
    current: watch::Receiver<Option<(u64, Source)>>,
    source: Option<Source>,
}

impl ReplicaWatch {
    /// The current replica, if one is attached.
    pub fn get(&mut self) -> Option<Arc<Replica>> {
        self.source.as_mut().map(|source| source.borrow_and_update().clone())
    }
    /// Waits until the replica differs from the one that [`ReplicaWatch::get`] last returned. Safe to drop and call again.
    pub async fn changed(&mut self) {
        let ended = tokio::select! {
            Ok(()) = self.current.changed() => None,
            ended = newer(self.source.as_mut()) => Some(ended),
            // The holder itself is gone: the process is ending.
            else => return std::future::pending().await,
        };
        match ended {
            Some(false) => {}
            // Its raft member is gone; another replica will be attached.
            Some(true) => self.source = None,
            None => self.source = self.current.borrow_and_update().as_ref().map(|(_, source)| source.clone()),
        }
    }
}

/// True: the source has ended.
async fn newer(source: Option<&mut Source>) -> bool {
    match source {
        Some(source) => source.changed().await.is_err(),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_messages::Revision;

    fn at(revision: u64) -> Arc<Replica> {
        let mut replica = Replica::default();
        replica.tables.revision = Revision(revision);
        Arc::new(replica)
    }
    fn revision(watch: &mut ReplicaWatch) -> Option<u64> {
        watch.get().map(|r| r.tables.revision.0)
    }

    #[tokio::test]
    async fn reader_follows_replica_across_raft_members() {
        let holder = LocalReplica::new();
        let mut watch = holder.watch();
        assert_eq!(revision(&mut watch), None);
        let first = watch::Sender::new(at(1));
        let old = holder.attach(first.subscribe());
        watch.changed().await;
        assert_eq!(revision(&mut watch), Some(1));
        first.send_replace(at(2));
        watch.changed().await;
        assert_eq!(revision(&mut watch), Some(2));
        let second = watch::Sender::new(at(7));
        let new = holder.attach(second.subscribe());
        drop(old);
        watch.changed().await;
        assert_eq!((revision(&mut watch), holder.get().map(|r| r.tables.revision.0)), (Some(7), Some(7)));
        drop(new);
        watch.changed().await;
        assert_eq!(revision(&mut watch), None);
    }
}
