//! Board: which leases are contested, and by whom.
//!
//! Owns   an index of the candidates by lease.
//! Hears  copies of the replicated state.     Says  the scene of each contest that changed; contests that are over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use muster_messages::{Object, ObjectKey, ObjectKind, Revision, Tables};

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
}

/// What became of a contest.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    Changed(Arc<Scene>),
    Closed(ObjectKey),
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Board {
    since: Option<Revision>,
    revision: Revision,
    objects: OrdMap<ObjectKey, Arc<Object>>,
    contests: BTreeMap<ObjectKey, BTreeSet<String>>,
}

impl Board {
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
                    if let Some(lease) = was {
                        if let Some(names) = self.contests.get_mut(&lease) {
                            names.remove(&key.name);
                        }
                        touched.insert(lease);
                    }
                    if let Some(lease) = is {
                        self.contests.entry(lease.clone()).or_default().insert(key.name.clone());
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
        let names = self.contests.get(key)?;
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
            candidates: names.iter().filter_map(candidate).collect(),
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
    let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.' | b'_');
    let named = (1..=253).contains(&name.len()) && name.bytes().all(legal);
    named.then(|| ObjectKey::lease(candidate.namespace.clone(), name))
}
