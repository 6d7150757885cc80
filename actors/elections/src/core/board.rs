//! Board: which leases are contested, and by whom.
//!
//! Owns   an index of the candidates by lease.
//! Hears  copies of the replicated state.     Says  the scene of each contest that changed; contests that are over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use muster_messages::{Object, ObjectKey, ObjectKind, Revision, Tables, is_dns_subdomain};

/// All that a contest is decided by, at one revision.
#[derive(Clone, Debug, PartialEq)]
pub struct Scene {
    /// Of the lease.
    pub key: ObjectKey,
    pub revision: Revision,
    /// Where this leader began to watch: a candidate that was created later has just shown that it lives.
    pub since: Revision,
    pub lease: Option<Arc<Object>>,
    /// By name.
    pub candidates: BTreeMap<String, Arc<Object>>,
    /// How many more there are, which take no part yet.
    pub beyond: usize,
}

/// What became of a contest.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    Changed(Arc<Scene>),
    Closed(ObjectKey),
}

/// Who wants a lease, by name.
#[derive(Clone, Debug, Default)]
struct Entrants {
    admitted: BTreeSet<String>,
    /// Beyond the bound. They take part when one of the others has gone.
    waiting: BTreeSet<String>,
}

impl Entrants {
    /// Whether the contest has changed by it.
    fn enter(&mut self, name: &str, most: usize) -> bool {
        let room = self.admitted.contains(name) || self.admitted.len() < most;
        let to = if room { &mut self.admitted } else { &mut self.waiting };
        to.insert(name.to_owned());
        room
    }
    /// Whether the contest has changed by it.
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
    contests: BTreeMap<ObjectKey, Entrants>,
    /// Candidates of one contest that are looked at.
    most: usize,
}

impl Board {
    /// A board that shows so many candidates of each contest: each scene costs what its candidates do, with every sign of
    /// life of one of them.
    pub fn new(most: usize) -> Self {
        let (revision, objects, contests) = Default::default();
        Self { since: None, revision, objects, contests, most }
    }

    /// Looks at a newer copy, at the cost of what differs.
    pub fn observe(&mut self, tables: &Tables) -> Vec<News> {
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
                ObjectKind::Lease if self.contests.contains_key(key) => {
                    touched.insert(key.clone());
                }
                ObjectKind::LeaseCandidate => {
                    let (was, is) = (was.and_then(|o| contested(o)), is.and_then(|o| contested(o)));
                    if let Some(lease) = was.filter(|was| Some(was) != is.as_ref())
                        && self.contests.get_mut(&lease).is_some_and(|entrants| entrants.leave(&key.name))
                    {
                        touched.insert(lease);
                    }
                    if let Some(lease) = is
                        && self.contests.entry(lease.clone()).or_default().enter(&key.name, self.most)
                    {
                        touched.insert(lease);
                    }
                }
                _ => {}
            }
        }
        touched.into_iter().filter_map(|key| self.news(key)).collect()
    }

    /// The scene of a contest as of the newest copy.
    pub fn scene(&self, key: &ObjectKey) -> Option<Scene> {
        let entrants = self.contests.get(key)?;
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

    fn news(&mut self, key: ObjectKey) -> Option<News> {
        let scene = self.scene(&key)?;
        // Without candidates the last thing to do is to take back a preference for one of them.
        let prefers = scene.lease.iter().filter_map(|o| o.lease()).any(|l| l.spec.preferred_holder.is_some());
        if scene.candidates.is_empty() && !prefers {
            self.contests.remove(&key);
            return Some(News::Closed(key));
        }
        Some(News::Changed(Arc::new(scene)))
    }
}

/// The lease that a candidate wants, if its name could be a lease's.
fn contested(candidate: &Object) -> Option<ObjectKey> {
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
    fn shown(news: Vec<News>) -> Option<(Vec<String>, usize)> {
        news.into_iter().find_map(|news| match news {
            News::Changed(scene) => Some((scene.candidates.keys().cloned().collect(), scene.beyond)),
            News::Closed(_) => None,
        })
    }

    #[test]
    fn a_contest_has_a_bounded_number_of_candidates_and_whoever_came_first_stays() {
        let (mut board, mut tables) = (Board::new(2), Tables::default());
        let mut after = |tables: &Tables| shown(board.observe(tables));
        put(&mut tables, candidate("c", "l"));
        put(&mut tables, candidate("d", "l"));
        assert_eq!(after(&tables), Some((vec!["c".into(), "d".into()], 0)));
        put(&mut tables, candidate("a", "l"));
        assert_eq!(after(&tables), None, "one more changes nothing");
        let mut sign = candidate("c", "l");
        sign.meta.revision = Revision(7);
        put(&mut tables, sign);
        assert_eq!(after(&tables), Some((vec!["c".into(), "d".into()], 1)), "a sign of life costs nobody its place");
        remove(&mut tables, "d");
        assert_eq!(after(&tables), Some((vec!["a".into(), "c".into()], 0)));
    }

    #[test]
    fn a_lease_that_its_holder_could_not_write_is_not_contested() {
        for (lease, contested) in [
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
            assert_eq!(!board.observe(&tables).is_empty(), contested, "{lease:?}");
        }
    }
}
