//! Deletions: which objects of reconcilers were deleted lately, so that a watch learns of each.
//!
//! Owns        the last 10,000 deletions: some 4 MB at most.
//! Inputs      the deletions of each entry, in log order.
//! Outputs     the deletions after a revision, or [`Expired`].
//! Invariants  WATCH-3  a watch that applies what has changed and what was deleted after its revision to what it saw then has
//!                      the newest state.
//! Local to a member: not replicated, and empty at first. An object that exists has the revision of its last change, so this is all
//! that a watch needs beside the state itself.

use std::cmp::Ordering;
use std::sync::Arc;

use imbl::ordmap::DiffItem;
use imbl::{OrdMap, Vector};
use muster_messages::{ManagedKey, ManagedObject, Revision};

use crate::history::Expired;

/// Deletions that are kept: more than the objects of one definition (5,000).
pub const MAX_DELETIONS: usize = 10_000;

/// The table of objects.
pub type Objects = OrdMap<ManagedKey, Arc<ManagedObject>>;

/// Deletions, oldest first. Clones share the keys.
pub type Deleted = Vector<(Revision, Arc<ManagedKey>)>;

/// What one entry, at this revision, has deleted. Of each entry, and not of each published state: one that was made and deleted between
/// two of those has been seen where both were published apart.
pub fn deleted_between(at: Revision, before: &Objects, after: &Objects) -> Vec<(Revision, ManagedKey)> {
    if before.ptr_eq(after) {
        return Vec::new();
    }
    let removed = before.diff(after).filter_map(|item| match item {
        DiffItem::Remove(key, _) => Some((at, key.clone())),
        DiffItem::Add(..) | DiffItem::Update { .. } => None,
    });
    removed.collect()
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Deletions {
    deleted: Deleted,
    /// All deletions after this revision are here.
    complete_after: Revision,
    newest: Revision,
}

impl Deletions {
    /// What was deleted up to this revision is unknown. Deletions that know more stay as they are.
    pub fn begin_at(&mut self, revision: Revision) {
        if revision > self.newest {
            *self = Self { deleted: Vector::new(), complete_after: revision, newest: revision };
        }
    }

    /// Records the deletions of the entries up to `through`, in log order. Known ones (a restarted member applies its log again) are
    /// ignored.
    pub fn record(&mut self, through: Revision, deleted: impl IntoIterator<Item = (Revision, ManagedKey)>) {
        let known = self.newest;
        let unknown = deleted.into_iter().filter(|(at, _)| *at > known);
        self.deleted.extend(unknown.map(|(at, key)| (at, Arc::new(key))));
        self.newest = known.max(through);
        while self.deleted.len() > MAX_DELETIONS
            && let Some((oldest, _)) = self.deleted.pop_front()
        {
            // Those of one revision are dropped together.
            self.complete_after = oldest;
            while self.deleted.front().is_some_and(|(next, _)| *next == oldest) {
                self.deleted.pop_front();
            }
        }
    }

    /// What was deleted after `seen`, oldest first. Shared, so that a reader leaves the lock around this at once, however many they are.
    pub fn since(&self, seen: Revision) -> Result<Deleted, Expired> {
        if seen < self.complete_after {
            return Err(Expired { oldest: self.complete_after });
        }
        // No element is equal to what is searched for: the place between those seen and the others.
        let place =
            self.deleted.binary_search_by(|(at, _)| if *at <= seen { Ordering::Less } else { Ordering::Greater });
        let (Ok(first) | Err(first)) = place;
        Ok(self.deleted.skip(first))
    }
}

#[cfg(test)]
mod tests {
    use muster_messages::FencingToken;

    use super::*;

    fn objects(names: &[&str]) -> Objects {
        let object = |name: &&str| {
            let key = ManagedKey { kind: "k".into(), namespace: "n".into(), name: (*name).to_owned() };
            let (labels, body, owner) = (Default::default(), "{}".to_owned(), None);
            let (term, created, revision) = (FencingToken(0), Revision(1), Revision(1));
            (key.clone(), Arc::new(ManagedObject { key, labels, body, owner, term, created, revision }))
        };
        names.iter().map(object).collect()
    }
    fn apply(deletions: &mut Deletions, at: u64, before: &[&str], after: &[&str]) {
        let at = Revision(at);
        deletions.record(at, deleted_between(at, &objects(before), &objects(after)));
    }
    fn names(deletions: &Deletions, seen: u64) -> Result<Vec<String>, Expired> {
        let found = deletions.since(Revision(seen))?;
        Ok(found.into_iter().map(|(at, key)| format!("{} {}", at.0, key.name)).collect())
    }

    #[test]
    fn deletions_after_a_revision_are_found_until_they_expire() {
        let mut deletions = Deletions::default();
        deletions.begin_at(Revision(4));
        apply(&mut deletions, 6, &["a", "b", "c"], &["b", "c", "d"]);
        apply(&mut deletions, 9, &["b", "c", "d"], &["c"]);
        assert_eq!(names(&deletions, 4).unwrap(), ["6 a", "9 b", "9 d"]);
        assert_eq!(names(&deletions, 6).unwrap(), ["9 b", "9 d"]);
        assert_eq!(names(&deletions, 9).unwrap(), [""; 0]);
        assert_eq!(names(&deletions, 3), Err(Expired { oldest: Revision(4) }));
        // A restarted member applies its log again.
        deletions.begin_at(Revision(5));
        apply(&mut deletions, 8, &["x"], &[]);
        assert_eq!(names(&deletions, 4).unwrap().len(), 3);
        deletions.begin_at(Revision(20));
        assert_eq!(names(&deletions, 9), Err(Expired { oldest: Revision(20) }));
    }

    /// A reader leaves the lock around them at once, and a writer changes nothing of what it took.
    #[test]
    fn readers_share_the_keys_of_deletions() {
        let mut deletions = Deletions::default();
        let names: Vec<String> = (0..200).map(|n| format!("n{n:03}")).collect();
        apply(&mut deletions, 2, &names.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
        let (first, second) = (deletions.since(Revision(1)).unwrap(), deletions.since(Revision(0)).unwrap());
        assert!(first.iter().zip(&second).all(|((_, a), (_, b))| Arc::ptr_eq(a, b)));
        apply(&mut deletions, 3, &["z"], &[]);
        assert_eq!((first.len(), deletions.since(Revision(0)).unwrap().len()), (200, 201));
    }

    #[test]
    fn oldest_deletions_are_forgotten_whole_revisions_at_a_time() {
        let mut deletions = Deletions::default();
        let many: Vec<String> = (0..MAX_DELETIONS).map(|n| format!("n{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        apply(&mut deletions, 2, &["a", "b"], &[]);
        apply(&mut deletions, 3, &many, &[]);
        assert_eq!(names(&deletions, 1), Err(Expired { oldest: Revision(2) }));
        assert_eq!(names(&deletions, 2).unwrap().len(), MAX_DELETIONS);
    }
}
