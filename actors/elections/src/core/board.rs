//! Board: which leases are contended, and by which candidates.
//!
//! Owns        an index of the candidates by lease.
//! Inputs      replicas of the state.  Outputs  the scene of each election that changed; elections that are over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use muster_messages::{Object, ObjectKey, ObjectKind, Revision, Tables, is_dns_subdomain};

/// Everything that an election depends on, at one revision.
#[derive(Clone, Debug, PartialEq)]
pub struct Scene {
    /// The lease's key.
    pub key: ObjectKey,
    pub revision: Revision,
    /// Where this leader began to watch: a candidate created later has just shown that it lives.
    pub since: Revision,
    pub lease: Option<Arc<Object>>,
    /// By name.
    pub candidates: BTreeMap<String, Arc<Object>>,
    /// How many further candidates do not participate yet.
    pub beyond: usize,
}

/// A change of an election.
#[derive(Clone, Debug, PartialEq)]
pub enum BoardChange {
    Changed(Arc<Scene>),
    Closed(ObjectKey),
}

/// The candidates for a lease, by name.
#[derive(Clone, Debug, Default)]
struct Entrants {
    admitted: BTreeSet<String>,
    /// Beyond the bound. They participate once one of the others has left.
    waiting: BTreeSet<String>,
}

impl Entrants {
    /// Returns whether this changed the election.
    fn enter(&mut self, name: &str, most: usize) -> bool {
        let room = self.admitted.contains(name) || self.admitted.len() < most;
        let to = if room { &mut self.admitted } else { &mut self.waiting };
        to.insert(name.to_owned());
        room
    }
    /// Returns whether this changed the election.
    fn leave(&mut self, name: &str) -> bool {
        self.waiting.remove(name);
        let left = self.admitted.remove(name);
        if left && let Some(next) = self.waiting.pop_first() {
            self.admitted.insert(next);
        }
        left
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Board {
    since: Option<Revision>,
    revision: Revision,
    objects: OrdMap<ObjectKey, Arc<Object>>,
    contended: BTreeMap<ObjectKey, Entrants>,
    /// Maximum candidates of one election.
    most: usize,
}

impl Board {
    /// A board with at most this many candidates per election: a scene costs in proportion to them, with every sign of life.
    pub fn new(most: usize) -> Self {
        let (revision, objects, contended) = Default::default();
        Self { since: None, revision, objects, contended, most }
    }

    /// Applies a newer replica, at the cost of the difference.
    pub fn observe(&mut self, tables: &Tables) -> Vec<BoardChange> {
        self.since.get_or_insert(tables.revision);
        self.revision = tables.revision;
        let objects = tables.objects.clone();
        let before = std::mem::replace(&mut self.objects, objects.clone());
        let mut touched = BTreeSet::new();
        for item in before.diff(&objects) {
            let (key, was, is) = match item {
                DiffItem::Add(key, is) => (key, None, Some(is)),
                DiffItem::Update { old: (key, was), new: (_, is) } => (key, Some(was), Some(is)),
                DiffItem::Remove(key, was) => (key, Some(was), None),
            };
            match key.kind {
                ObjectKind::Lease if self.contended.contains_key(key) => {
                    touched.insert(key.clone());
                }
                ObjectKind::LeaseCandidate => {
                    let (was, is) = (was.and_then(|o| contended_lease(o)), is.and_then(|o| contended_lease(o)));
                    if let Some(lease) = was.filter(|was| Some(was) != is.as_ref())
                        && self.contended.get_mut(&lease).is_some_and(|entrants| entrants.leave(&key.name))
                    {
                        touched.insert(lease);
                    }
                    if let Some(lease) = is
                        && self.contended.entry(lease.clone()).or_default().enter(&key.name, self.most)
                    {
                        touched.insert(lease);
                    }
                }
                _ => {}
            }
        }
        touched.into_iter().filter_map(|key| self.news(key)).collect()
    }

    /// The scene of an election, from the newest replica.
    pub fn scene(&self, key: &ObjectKey) -> Option<Scene> {
        let entrants = self.contended.get(key)?;
        let candidate = |name: &String| {
            let key =
                ObjectKey { kind: ObjectKind::LeaseCandidate, namespace: key.namespace.clone(), name: name.clone() };
            Some((name.clone(), Arc::clone(self.objects.get(&key)?)))
        };
        Some(Scene {
            key: key.clone(),
            revision: self.revision,
            since: self.since.unwrap_or_default(),
            lease: self.objects.get(key).cloned(),
            candidates: entrants.admitted.iter().filter_map(candidate).collect(),
            beyond: entrants.waiting.len(),
        })
    }

    fn news(&mut self, key: ObjectKey) -> Option<BoardChange> {
        let scene = self.scene(&key)?;
        // Without candidates, only a preference for one of them remains to be cleared.
        let prefers = scene.lease.iter().filter_map(|o| o.lease()).any(|l| l.spec.preferred_holder.is_some());
        if scene.candidates.is_empty() && !prefers {
            self.contended.remove(&key);
            return Some(BoardChange::Closed(key));
        }
        Some(BoardChange::Changed(Arc::new(scene)))
    }
}

/// The lease that a candidate wants, if its name is a valid lease name.
fn contended_lease(candidate: &Object) -> Option<ObjectKey> {
    let name = candidate.candidate()?.lease_name.as_str();
    // Under any other name its holder could not write it.
    is_dns_subdomain(name).then(|| ObjectKey::lease(candidate.namespace.clone(), name))
}

#[cfg(test)]
mod tests {
    use muster_messages::{CandidateSpec, ObjectBody, ObjectMeta, Uid};

    use super::*;

    fn candidate(name: &str, lease: &str) -> Object {
        let spec = CandidateSpec { lease_name: lease.to_owned(), ..CandidateSpec::default() };
        let meta = ObjectMeta::fresh(Uid(1));
        Object { namespace: "ns".to_owned(), name: name.to_owned(), meta, body: ObjectBody::LeaseCandidate(spec) }
    }
    fn put(tables: &mut Tables, object: Object) {
        tables.revision = tables.revision.next();
        tables.objects.insert(object.key(), Arc::new(object));
    }
    fn remove(tables: &mut Tables, name: &str) {
        tables.revision = tables.revision.next();
        tables.objects.remove(&candidate(name, "l").key());
    }
    fn shown(news: Vec<BoardChange>) -> Option<(Vec<String>, usize)> {
        news.into_iter().find_map(|news| match news {
            BoardChange::Changed(scene) => Some((scene.candidates.keys().cloned().collect(), scene.beyond)),
            BoardChange::Closed(_) => None,
        })
    }

    #[test]
    fn candidates_are_bounded_and_the_first_ones_stay() {
        let (mut board, mut tables) = (Board::new(2), Tables::default());
        let mut after = |tables: &Tables| shown(board.observe(tables));
        put(&mut tables, candidate("c", "l"));
        put(&mut tables, candidate("d", "l"));
        assert_eq!(after(&tables), Some((vec!["c".into(), "d".into()], 0)));
        put(&mut tables, candidate("a", "l"));
        assert_eq!(after(&tables), None, "a further candidate changes nothing");
        let mut sign = candidate("c", "l");
        sign.meta.revision = Revision(7);
        put(&mut tables, sign);
        assert_eq!(after(&tables), Some((vec!["c".into(), "d".into()], 1)), "a sign of life displaces no candidate");
        remove(&mut tables, "d");
        assert_eq!(after(&tables), Some((vec!["a".into(), "c".into()], 0)));
    }

    #[test]
    fn lease_that_its_holder_could_not_write_is_not_contended() {
        for (lease, contended_lease) in [
            ("l", true),
            ("a.b-c.0", true),
            ("my_lock", false),
            ("-l", false),
            ("l-", false),
            ("a..b", false),
            ("", false),
        ] {
            let (mut board, mut tables) = (Board::new(2), Tables::default());
            put(&mut tables, candidate("c", lease));
            assert_eq!(!board.observe(&tables).is_empty(), contended_lease, "{lease:?}");
        }
    }
}
