//! The feed: the changes of objects, and the deletions of reconcilers' objects, for watches on this member.
//!
//! It outlives the incarnations of its raft member, so that watches continue. It is written before the replica with the
//! changes is published: a reader that lists from a replica and follows the feed from that replica's revision misses
//! nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_messages::{ManagedKey, Moment, ObjectChange, ObjectKey, Revision};
use muster_store::history::Expired;
use muster_store::{Deleted, Deletions, History};
use tokio::sync::watch;

/// Clones share one feed.
#[derive(Clone, Debug)]
pub struct ObjectFeed {
    history: Arc<Mutex<History>>,
    deletions: Arc<Mutex<Deletions>>,
    /// The revision of the newest change.
    news: Arc<watch::Sender<Revision>>,
    /// Per-object receivers.
    waiting: Arc<Mutex<Waiting>>,
}

/// An entry for each object with a waiting reader.
type Waiting = BTreeMap<ObjectKey, watch::Sender<Revision>>;

/// Changes of one object. Every lease holder waits for some: a change wakes only the readers of its object.
#[derive(Debug)]
pub struct ObjectNews {
    key: ObjectKey,
    news: watch::Receiver<Revision>,
    waiting: Arc<Mutex<Waiting>>,
}

impl ObjectNews {
    /// Waits until the object changes, or the history restarts, after this was created or last waited for. Returns the
    /// revision.
    pub async fn changed(&mut self) -> Revision {
        self.news.changed().await.expect("an entry exists while a reader waits");
        *self.news.borrow_and_update()
    }
}

impl Drop for ObjectNews {
    fn drop(&mut self) {
        let mut waiting = locked(&self.waiting);
        if waiting.get(&self.key).is_some_and(|news| news.receiver_count() == 1) {
            waiting.remove(&self.key);
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for ObjectFeed {
    fn default() -> Self {
        let news = Arc::new(watch::Sender::new(Revision(0)));
        Self { history: Arc::default(), deletions: Arc::default(), news, waiting: Arc::default() }
    }
}

impl ObjectFeed {
    fn history(&self) -> MutexGuard<'_, History> {
        locked(&self.history)
    }

    /// See [`History::since`].
    pub fn since(&self, seen: Revision, most: usize) -> Result<Vec<Arc<ObjectChange>>, Expired> {
        self.history().since(seen, most)
    }

    /// See [`History::change_at`].
    pub fn change_at(&self, revision: Revision, key: &ObjectKey) -> Option<Arc<ObjectChange>> {
        self.history().change_at(revision, key)
    }

    /// See [`History::touched_since`].
    pub fn touched_since(&self, key: &ObjectKey, seen: Revision) -> Result<bool, Expired> {
        self.history().touched_since(key, seen)
    }

    /// The revision up to which this member has recorded changes.
    pub fn newest(&self) -> Revision {
        self.history().newest()
    }

    /// Wakes its receivers on every change, and when the history restarts.
    pub fn news(&self) -> watch::Receiver<Revision> {
        self.news.subscribe()
    }

    /// The same for one object, from now on.
    pub fn news_of(&self, key: ObjectKey) -> ObjectNews {
        let mut waiting = locked(&self.waiting);
        let news = waiting.entry(key.clone()).or_insert_with(|| watch::Sender::new(Revision(0))).subscribe();
        ObjectNews { key, news, waiting: Arc::clone(&self.waiting) }
    }

    /// See [`History::begin_at`].
    pub fn begin_at(&self, revision: Revision) {
        let waiting = locked(&self.waiting);
        self.history().begin_at(revision);
        locked(&self.deletions).begin_at(revision);
        self.news.send_replace(revision);
        for news in waiting.values() {
            news.send_replace(revision);
        }
    }

    /// See [`Deletions::since`]. The raft member waits for this lock when it publishes: the answer is shared, not copied.
    pub fn deleted_since(&self, seen: Revision) -> Result<Deleted, Expired> {
        locked(&self.deletions).since(seen)
    }

    /// See [`Deletions::record`].
    pub fn record_deletions(&self, through: Revision, deleted: Vec<(Revision, ManagedKey)>) {
        locked(&self.deletions).record(through, deleted);
    }

    pub(crate) fn record(&self, now: Moment, through: Revision, changes: Vec<ObjectChange>) {
        let newest = changes.last().map(|change| change.revision);
        // Locked until the history has the change: a new reader either finds it there or is woken.
        let waiting = locked(&self.waiting);
        let awaited: Vec<_> =
            changes.iter().filter_map(|change| Some((waiting.get(&change.key)?, change.revision))).collect();
        self.history().record(now, through, changes);
        if let Some(newest) = newest {
            self.news.send_replace(newest);
        }
        for (news, revision) in awaited {
            news.send_replace(revision);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::lease("default".to_owned(), name.to_owned())
    }
    fn record(feed: &ObjectFeed, revision: u64, name: &str) {
        let revision = Revision(revision);
        let change = ObjectChange { revision, key: key(name), before: None, after: None };
        feed.record(Moment(0), revision, vec![change]);
    }
    /// The current value, without waiting.
    async fn current(news: &mut ObjectNews) -> Option<Revision> {
        tokio::select! {
            biased;
            at = news.changed() => Some(at),
            () = std::future::ready(()) => None,
        }
    }

    #[tokio::test]
    async fn receiver_of_one_object_gets_no_others() {
        let feed = ObjectFeed::default();
        record(&feed, 1, "a");
        let (mut a, mut b) = (feed.news_of(key("a")), feed.news_of(key("b")));
        assert_eq!(current(&mut a).await, None, "that change was earlier");
        record(&feed, 2, "b");
        record(&feed, 3, "b");
        assert_eq!((current(&mut a).await, current(&mut b).await), (None, Some(Revision(3))));
        assert_eq!(current(&mut b).await, None, "once");
        feed.begin_at(Revision(9));
        assert_eq!((current(&mut a).await, current(&mut b).await), (Some(Revision(9)), Some(Revision(9))));
    }

    #[tokio::test]
    async fn dropped_receivers_leave_nothing_behind() {
        let feed = ObjectFeed::default();
        let (first, mut second) = (feed.news_of(key("a")), feed.news_of(key("a")));
        drop(first);
        record(&feed, 1, "a");
        assert_eq!(current(&mut second).await, Some(Revision(1)), "another reader still waits");
        drop(second);
        assert!(locked(&feed.waiting).is_empty());
    }
}
