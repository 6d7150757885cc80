//! What has changed of reconcilers' objects since a revision.

use std::sync::Arc;

use muster_messages::{DeletedObjectView, ManagedKey, ManagedObject, ObjectChangesView, Revision, Tables};

use crate::status::object;

/// Bytes of bodies and labels in one answer; and one object more.
const MAX_CHANGES_BYTES: usize = 512 * 1024;

/// Which objects.
#[derive(Clone, Copy, Debug, Default)]
pub struct ObjectFilter<'a> {
    pub kind: Option<&'a str>,
    pub namespace: Option<&'a str>,
}

impl ObjectFilter<'_> {
    pub fn wants(&self, key: &ManagedKey) -> bool {
        self.kind.is_none_or(|kind| key.kind == kind)
            && self.namespace.is_none_or(|namespace| key.namespace == namespace)
    }
}

/// Changes after `seen`, and of the `deleted` objects those that do not exist. A long answer ends early, between two revisions; one from
/// the beginning never does, because what is deleted in between could be forgotten before the next part is asked for.
pub fn object_changes(
    tables: &Tables,
    deleted: impl IntoIterator<Item = (Revision, Arc<ManagedKey>)>,
    filter: ObjectFilter<'_>,
    seen: Revision,
) -> ObjectChangesView {
    let there = &tables.reconcilers.objects;
    let changed = |object: &&Arc<ManagedObject>| object.revision > seen && filter.wants(&object.key);
    let mut changed: Vec<_> = there.values().filter(changed).collect();
    changed.sort_by_key(|object| object.revision);
    let (mut bytes, mut revision) = (0, tables.revision);
    let fit = changed.iter().position(|object| {
        bytes += object.body.len() + object.labels.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
        bytes > MAX_CHANGES_BYTES && seen != Revision(0)
    });
    if let Some(last) = fit.and_then(|at| changed.get(at)).map(|object| object.revision) {
        changed.retain(|object| object.revision <= last);
        revision = last;
    }
    let gone =
        |(at, key): &(Revision, Arc<ManagedKey>)| *at <= revision && filter.wants(key) && !there.contains_key(key);
    let shown = |(revision, key): (Revision, Arc<ManagedKey>)| {
        let ManagedKey { kind, namespace, name } = ManagedKey::clone(&key);
        DeletedObjectView { kind, namespace, name, revision }
    };
    ObjectChangesView {
        revision,
        items: changed.into_iter().map(|found| object(found)).collect(),
        deleted: deleted.into_iter().filter(gone).map(shown).collect(),
    }
}

#[cfg(test)]
mod tests {
    use muster_messages::FencingToken;

    use super::*;

    fn key(kind: &str, name: &str) -> ManagedKey {
        ManagedKey { kind: kind.into(), namespace: "default".into(), name: name.into() }
    }
    fn gone(at: u64, key: ManagedKey) -> (Revision, Arc<ManagedKey>) {
        (Revision(at), Arc::new(key))
    }
    fn tables(objects: &[(&str, &str, u64, usize)]) -> Tables {
        let mut tables = Tables { revision: Revision(100), ..Tables::default() };
        for (kind, name, revision, bytes) in objects {
            let (key, revision) = (key(kind, name), Revision(*revision));
            let body = format!("{{\"a\":\"{}\"}}", "x".repeat(*bytes));
            let (labels, owner, term) = (Default::default(), None, FencingToken(0));
            let object = ManagedObject { key: key.clone(), labels, body, owner, term, created: revision, revision };
            tables.reconcilers.objects.insert(key, Arc::new(object));
        }
        tables
    }
    fn names(view: &ObjectChangesView) -> (Vec<&str>, Vec<&str>) {
        let items = view.items.iter().map(|object| object.metadata.name.as_str());
        (items.collect(), view.deleted.iter().map(|object| object.name.as_str()).collect())
    }

    #[test]
    fn changes_have_what_is_new_and_what_is_gone() {
        let tables = tables(&[("job", "b", 5, 1), ("job", "a", 7, 1), ("table", "t", 9, 1)]);
        // `a` was deleted and made again.
        let deleted = || vec![gone(6, key("job", "a")), gone(6, key("job", "c")), gone(8, key("table", "u"))];
        let jobs = ObjectFilter { kind: Some("job"), namespace: Some("default") };
        let view = object_changes(&tables, deleted(), jobs, Revision(5));
        assert_eq!((names(&view), view.revision), ((vec!["a"], vec!["c"]), Revision(100)));
        let all = object_changes(&tables, deleted(), ObjectFilter::default(), Revision(4));
        assert_eq!(names(&all), (vec!["b", "a", "t"], vec!["c", "u"]));
        assert_eq!(names(&object_changes(&tables, vec![], jobs, Revision(100))), (vec![], vec![]));
    }

    #[test]
    fn long_answer_ends_between_two_revisions() {
        let half = MAX_CHANGES_BYTES / 2;
        let objects = [("k", "a", 5, half), ("k", "b", 6, half), ("k", "c", 6, half), ("k", "d", 7, half)];
        let deleted = || vec![gone(6, key("k", "x")), gone(7, key("k", "y"))];
        let mut tables = tables(&objects);
        // Labels count as bodies do.
        for name in ["a", "b"] {
            let object = tables.reconcilers.objects.get_mut(&key("k", name)).map(Arc::make_mut).unwrap();
            object.body = "{}".to_owned();
            object.labels = [("label".to_owned(), "x".repeat(half))].into();
        }
        let first = object_changes(&tables, deleted(), ObjectFilter::default(), Revision(1));
        assert_eq!((names(&first), first.revision), ((vec!["a", "b", "c"], vec!["x"]), Revision(6)));
        let second = object_changes(&tables, deleted().split_off(1), ObjectFilter::default(), first.revision);
        assert_eq!((names(&second), second.revision), ((vec!["d"], vec!["y"]), Revision(100)));
        assert_eq!(object_changes(&tables, vec![], ObjectFilter::default(), Revision(0)).items.len(), 4);
    }
}
