//! Where the local copy of the replicated state is found, while this node is a manager.

use std::sync::Arc;

use muster_messages::Replica;
use tokio::sync::watch;

type Source = watch::Receiver<Arc<Replica>>;

/// The place of the local copy. The manager half attaches its raft member's copy while it runs; on a worker it is
/// empty. Clones are the same place.
#[derive(Clone, Debug)]
pub struct LocalCopy {
    current: Arc<watch::Sender<Option<(u64, Source)>>>,
}

impl Default for LocalCopy {
    fn default() -> Self {
        Self { current: Arc::new(watch::Sender::new(None)) }
    }
}

impl LocalCopy {
    /// No copy.
    pub fn new() -> Self {
        Self::default()
    }
    /// From now on this is the local copy; a newer one replaces it.
    #[must_use = "dropping the guard takes the copy away"]
    pub fn attach(&self, source: Source) -> CopyGuard {
        let mut number = 0;
        self.current.send_modify(|current| {
            number = current.as_ref().map_or(0, |(n, _)| *n) + 1;
            *current = Some((number, source));
        });
        CopyGuard { of: self.clone(), number }
    }
    /// The copy as it is now.
    pub fn get(&self) -> Option<Arc<Replica>> {
        self.current.borrow().as_ref().map(|(_, source)| source.borrow().clone())
    }
    /// Follows the copy, whichever it is.
    pub fn watch(&self) -> CopyWatch {
        let mut current = self.current.subscribe();
        let source = current.borrow_and_update().as_ref().map(|(_, source)| source.clone());
        CopyWatch { current, source }
    }
}

/// Keeps a copy attached. Dropped: there is none, unless a newer one was attached.
#[derive(Debug)]
pub struct CopyGuard {
    of: LocalCopy,
    number: u64,
}

impl Drop for CopyGuard {
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

/// A reader of the local copy.
#[derive(Debug)]
pub struct CopyWatch {
    current: watch::Receiver<Option<(u64, Source)>>,
    source: Option<Source>,
}

impl CopyWatch {
    /// The copy as it is now, if there is one.
    pub fn get(&mut self) -> Option<Arc<Replica>> {
        self.source.as_mut().map(|source| source.borrow_and_update().clone())
    }
    /// Waits until the copy is another than [`CopyWatch::get`] last returned. Safe to drop and call again.
    pub async fn changed(&mut self) {
        let ended = tokio::select! {
            Ok(()) = self.current.changed() => None,
            ended = newer(self.source.as_mut()) => Some(ended),
            // The place itself has gone, and with it every copy: the process is ending.
            else => return std::future::pending().await,
        };
        match ended {
            Some(false) => {}
            // Its raft member is gone; another copy will be attached.
            Some(true) => self.source = None,
            None => self.source = self.current.borrow_and_update().as_ref().map(|(_, source)| source.clone()),
        }
    }
}

/// True: nothing newer will come.
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
    fn revision(watch: &mut CopyWatch) -> Option<u64> {
        watch.get().map(|r| r.tables.revision.0)
    }

    #[tokio::test]
    async fn a_reader_follows_the_copy_across_its_raft_members() {
        let place = LocalCopy::new();
        let mut watch = place.watch();
        assert_eq!(revision(&mut watch), None);
        let first = watch::Sender::new(at(1));
        let old = place.attach(first.subscribe());
        watch.changed().await;
        assert_eq!(revision(&mut watch), Some(1));
        first.send_replace(at(2));
        watch.changed().await;
        assert_eq!(revision(&mut watch), Some(2));
        let second = watch::Sender::new(at(7));
        let new = place.attach(second.subscribe());
        drop(old);
        watch.changed().await;
        assert_eq!((revision(&mut watch), place.get().map(|r| r.tables.revision.0)), (Some(7), Some(7)));
        drop(new);
        watch.changed().await;
        assert_eq!(revision(&mut watch), None);
    }
}
