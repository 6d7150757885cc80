//! History: recent changes of objects, so that a watch can continue from the revision it has seen.
//!
//! Owns        the last 10,000 changes within 64 MiB, and more of the last 10 minutes while all take less than 8 MiB.
//! Inputs      the changes of each entry, in log order.
//! Outputs     the changes after a revision, or [`Expired`].
//! Invariants  WATCH-1  a watch that applies everything after its revision to what it saw then has the newest state.
//!             WATCH-2  every member reports a change once, in log order.
//! Local to a member: not replicated, and empty at first. A member that installs a snapshot restarts it from there.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use muster_messages::{Moment, Object, ObjectBody, ObjectChange, ObjectKey, Revision};

/// This many changes are kept, whatever their age, within [`MAX_BYTES`].
pub const KEEP_AT_LEAST: usize = 10_000;
/// Further changes are kept while they are younger than this, within [`FURTHER_BYTES`].
pub const KEEP_FOR: Duration = Duration::from_secs(600);
/// The approximate size limit of the history.
pub const MAX_BYTES: usize = 64 << 20;
/// The approximate size of the history above which only [`KEEP_AT_LEAST`] changes are kept. A watch is seldom away for more than
/// a few seconds; 8 MiB are some 11,000 changes of leases.
pub const FURTHER_BYTES: usize = 8 << 20;

/// The history does not reach back that far: list again and continue from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the history begins at revision {oldest}; list again")]
pub struct Expired {
    /// The oldest revision to continue from.
    pub oldest: Revision,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct History {
    changes: VecDeque<Kept>,
    /// The newest change of each object. Every lease holder asks for its own; otherwise each would search all changes.
    latest: BTreeMap<ObjectKey, Revision>,
    bytes: usize,
    max_bytes: usize,
    /// All changes after this revision are here.
    complete_after: Revision,
    newest: Revision,
}

#[derive(Clone, Debug)]
struct Kept {
    at: Moment,
    change: Arc<ObjectChange>,
    /// What it added to the history's size; see [`weight`].
    weight: usize,
}

impl Default for History {
    fn default() -> Self {
        Self::bounded(MAX_BYTES)
    }
}

impl History {
    /// An empty history with a limit of its own.
    pub fn bounded(max_bytes: usize) -> Self {
        let (complete_after, newest) = (Revision(0), Revision(0));
        Self { changes: VecDeque::new(), latest: BTreeMap::new(), bytes: 0, max_bytes, complete_after, newest }
    }

    /// The changes up to this revision are unknown: a member starts from a snapshot or installs one. A history that knows
    /// more stays as it is.
    pub fn begin_at(&mut self, revision: Revision) {
        if revision > self.newest {
            let max_bytes = self.max_bytes;
            *self = Self { complete_after: revision, newest: revision, ..Self::bounded(max_bytes) };
        }
    }

    /// Records the changes of the entries up to `through`. Known changes (a restarted member applies its log again) are
    /// ignored.
    pub fn record(&mut self, now: Moment, through: Revision, changes: impl IntoIterator<Item = ObjectChange>) {
        for change in changes {
            if change.revision <= self.newest {
                continue;
            }
            let follows = match self.latest.get_mut(&change.key) {
                Some(at) => {
                    *at = change.revision;
                    true
                }
                None => {
                    self.latest.insert(change.key.clone(), change.revision);
                    false
                }
            };
            let weight = weight(&change, follows);
            self.bytes += weight;
            self.changes.push_back(Kept { at: now, change: Arc::new(change), weight });
        }
        self.newest = self.newest.max(through);
        self.forget(now);
    }

    /// At least one and about `most` of the changes after `seen`, oldest first, never half of an entry. For a revision in
    /// the future, from a watch that was on a member ahead of this one, nothing yet.
    pub fn since(&self, seen: Revision, most: usize) -> Result<Vec<Arc<ObjectChange>>, Expired> {
        if seen < self.complete_after {
            return Err(Expired { oldest: self.complete_after });
        }
        let first = self.changes.partition_point(|kept| kept.change.revision <= seen);
        let mut out: Vec<Arc<ObjectChange>> = Vec::new();
        for Kept { change, .. } in self.changes.range(first..) {
            if out.len() >= most && out.last().is_some_and(|last| last.revision != change.revision) {
                break;
            }
            out.push(Arc::clone(change));
        }
        Ok(out)
    }

    /// The change of an object by the entry at this revision; `None`: none, or it is forgotten.
    pub fn change_at(&self, revision: Revision, key: &ObjectKey) -> Option<Arc<ObjectChange>> {
        let first = self.changes.partition_point(|kept| kept.change.revision < revision);
        let mut entry = self.changes.range(first..).map(|kept| &kept.change).take_while(|c| c.revision == revision);
        entry.find(|change| change.key == *key).map(Arc::clone)
    }

    /// Whether an object changed after `seen`.
    pub fn touched_since(&self, key: &ObjectKey, seen: Revision) -> Result<bool, Expired> {
        if seen < self.complete_after {
            return Err(Expired { oldest: self.complete_after });
        }
        Ok(self.latest.get(key).is_some_and(|at| *at > seen))
    }

    /// The revision up to which changes were recorded.
    pub fn newest(&self) -> Revision {
        self.newest
    }

    /// The number of changes kept.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// True if nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    fn forget(&mut self, now: Moment) {
        while let Some(Kept { at, change: oldest, weight }) = self.changes.front() {
            let further = self.changes.len() > KEEP_AT_LEAST;
            let needless = further && (now.since(*at) > KEEP_FOR || self.bytes > FURTHER_BYTES);
            // An entry is dropped as a whole: `complete_after` lies between entries.
            let partial = oldest.revision == self.complete_after;
            if !needless && !partial && self.bytes <= self.max_bytes {
                break;
            }
            self.bytes -= weight;
            self.complete_after = oldest.revision;
            if self.latest.get(&oldest.key) == Some(&oldest.revision) {
                self.latest.remove(&oldest.key);
            }
            self.changes.pop_front();
        }
    }
}

/// The approximate memory that a change adds. The object as it was before is the same allocation as the former change of it left, so
/// it counts only where that change is not kept. (Once the former is forgotten, the allocation lasts as long as this change: at most
/// one version of each object is uncounted.)
fn weight(change: &ObjectChange, follows: bool) -> usize {
    let before = change.before.as_ref().filter(|_| !follows);
    let objects = [before, change.after.as_ref()].into_iter().flatten();
    let key = change.key.name.len() + change.key.namespace.len();
    let latest = if follows { 0 } else { key + size_of::<(ObjectKey, Revision)>() };
    size_of::<Kept>() + size_of::<ObjectChange>() + key + latest + objects.map(|o| weight_of(o)).sum::<usize>()
}

fn weight_of(object: &Object) -> usize {
    // A map entry costs the heads of two strings besides their text.
    let map = |m: &BTreeMap<String, String>| m.iter().map(|(k, v)| k.len() + v.len() + 2 * size_of::<String>()).sum();
    let text = |t: &Option<String>| t.as_ref().map_or(0, String::len);
    let meta = &object.meta;
    let owners = meta.owners.iter().map(|o| 128 + o.api_version.len() + o.kind.len() + o.name.len() + o.uid.len());
    let managers = meta.managers.iter().map(|m| 128 + m.fields.iter().map(|f| 32 + f.len()).sum::<usize>());
    let body: usize = match &object.body {
        ObjectBody::Lease(l) => text(&l.spec.holder) + text(&l.spec.strategy) + text(&l.spec.preferred_holder),
        ObjectBody::LeaseCandidate(c) => {
            c.lease_name.len() + c.binary_version.len() + c.emulation_version.len() + c.strategy.len()
        }
        ObjectBody::ConfigMap(c) => map(&c.data) + map(&c.binary_data),
        ObjectBody::Endpoints(json) => json.len(),
    };
    let labels: usize = map(&meta.labels);
    let annotations: usize = map(&meta.annotations);
    let names = object.name.len() + object.namespace.len();
    size_of::<Object>() + names + labels + annotations + owners.sum::<usize>() + managers.sum::<usize>() + body
}
