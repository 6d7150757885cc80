//! The feed: what happened to objects, for those who watch them from this member.
//!
//! It outlives the incarnations of its raft member, so that watchers go on where they were. It is written before the
//! copy that has the changes is published: whoever lists from a copy and follows the feed from that copy's revision
//! misses nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_messages::{Moment, ObjectChange, ObjectKey, Revision};
use muster_store::History;
use muster_store::history::Expired;
use tokio::sync::watch;

/// Clones are the same feed.
#[derive(Clone, Debug)]
pub struct ObjectFeed {
    history: Arc<Mutex<History>>,
    /// The revision of the newest change.
    news: Arc<watch::Sender<Revision>>,
}

impl Default for ObjectFeed {
    fn default() -> Self {
        Self { history: Arc::default(), news: Arc::new(watch::Sender::new(Revision(0))) }
    }
}

impl ObjectFeed {
    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// The revision up to which this member has told what happened.
    pub fn newest(&self) -> Revision {
        self.history().newest()
    }

    /// Wakes whoever waits for changes: each time there are some, and when the history begins anew.
    pub fn news(&self) -> watch::Receiver<Revision> {
        self.news.subscribe()
    }

    pub(crate) fn begin_at(&self, revision: Revision) {
        self.history().begin_at(revision);
        self.news.send_replace(revision);
    }

    pub(crate) fn record(&self, now: Moment, through: Revision, changes: Vec<ObjectChange>) {
        let newest = changes.last().map(|change| change.revision);
        self.history().record(now, through, changes);
        if let Some(newest) = newest {
            self.news.send_replace(newest);
        }
    }
}
