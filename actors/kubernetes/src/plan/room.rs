//! How many objects there may be, and how large in all.
//!
//! Every manager holds all objects in memory, and sends them in one snapshot to a manager that has fallen behind: more
//! than a snapshot may hold, and that manager could never be brought up again. So the bounds stay well below
//! `max_snapshot_bytes`. They are judged by the leader's copy when a write is planned: writes that are on their way
//! together may exceed them by what is on its way. What makes an object smaller, or deletes it, is never refused.

use muster_messages::{Object, ObjectBody, Tables};

use crate::status::{Reason, Status};

/// Objects of all kinds. As many leases as the cluster is made for, several times.
const MOST_OBJECTS: usize = 50_000;
/// Of these, one namespace's, once half of them are there: nobody takes the others' room.
const MOST_IN_NAMESPACE: usize = MOST_OBJECTS / 4;
/// What an object may weigh without being counted among the large ones: every lease and every lock that electors write.
const SMALL: usize = 2 * 1024;
/// What the large ones may weigh in all, and within one namespace.
const MOST_BYTES: usize = 64 * 1024 * 1024;
const MOST_BYTES_IN_NAMESPACE: usize = MOST_BYTES / 4;

/// Refuses an object for which there is no room. `old` is what it replaces.
pub(super) fn room(tables: &Tables, new: &Object, old: Option<&Object>) -> Result<(), Status> {
    if old.is_none() {
        room_for_another(tables, &new.namespace)?;
    }
    let weight = weight(new);
    if weight <= SMALL || old.is_some_and(|old| self::weight(old) >= weight) {
        return Ok(());
    }
    // At the cost of a look at each object, which is far less than what a large write costs elsewhere.
    let (mut all, mut own) = (weight, weight);
    for (key, object) in &tables.objects {
        let other = self::weight(object);
        if other > SMALL && old.is_none_or(|old| *key != old.key()) {
            all += other;
            own += if object.namespace == new.namespace { other } else { 0 };
        }
    }
    let full = |what: &str, bytes: usize| {
        let text = format!("exceeded quota: objects above {SMALL} bytes may have {bytes} bytes {what}");
        Err(Status::new(Reason::Forbidden, text))
    };
    if own > MOST_BYTES_IN_NAMESPACE {
        return full("in one namespace", MOST_BYTES_IN_NAMESPACE);
    }
    if all > MOST_BYTES { full("in all", MOST_BYTES) } else { Ok(()) }
}

/// Refuses one more object, however small.
pub fn room_for_another(tables: &Tables, namespace: &str) -> Result<(), Status> {
    let there = tables.objects.len();
    if there >= MOST_OBJECTS {
        let text = format!("exceeded quota: there are {there} objects, at most {MOST_OBJECTS} are kept");
        return Err(Status::new(Reason::Forbidden, text));
    }
    if there >= MOST_OBJECTS / 2 {
        let own = tables.objects.keys().filter(|key| key.namespace == namespace).count();
        if own >= MOST_IN_NAMESPACE {
            let text = format!("exceeded quota: {namespace} has {own} objects, where {there} are kept in all");
            return Err(Status::new(Reason::Forbidden, text));
        }
    }
    Ok(())
}

/// About the bytes that its texts take.
fn weight(object: &Object) -> usize {
    let meta = &object.meta;
    let pairs = [&meta.labels, &meta.annotations].into_iter().flatten();
    let owners = meta.owners.iter().map(|o| o.api_version.len() + o.kind.len() + o.name.len() + o.uid.len());
    let managers = meta.managers.iter().map(|m| m.manager.len() + m.fields.iter().map(String::len).sum::<usize>());
    let body = match &object.body {
        ObjectBody::Lease(lease) => {
            let texts = [&lease.spec.holder, &lease.spec.strategy, &lease.spec.preferred_holder];
            texts.into_iter().flatten().map(String::len).sum()
        }
        ObjectBody::LeaseCandidate(spec) => {
            let texts = [&spec.lease_name, &spec.binary_version, &spec.emulation_version, &spec.strategy];
            texts.into_iter().map(String::len).sum()
        }
        ObjectBody::ConfigMap(map) => {
            let data = map.data.iter().map(|(key, text)| key.len() + text.len());
            data.chain(map.binary_data.iter().map(|(key, bytes)| key.len() + bytes.len())).sum()
        }
        ObjectBody::Endpoints(subsets) => subsets.len(),
    };
    pairs.map(|(key, value)| key.len() + value.len()).chain(owners).chain(managers).sum::<usize>() + body
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_messages::{ConfigMap, Lease, ObjectMeta, Uid};

    use super::*;

    fn lease(namespace: &str, number: usize) -> Object {
        let meta = ObjectMeta::fresh(Uid(1));
        let (namespace, name) = (namespace.to_owned(), format!("l{number}"));
        Object { namespace, name, meta, body: ObjectBody::Lease(Lease::default()) }
    }
    fn map(namespace: &str, number: usize, bytes: usize) -> Object {
        let map = ConfigMap { data: [("k".to_owned(), "x".repeat(bytes))].into(), ..ConfigMap::default() };
        Object { body: ObjectBody::ConfigMap(map), ..lease(namespace, number) }
    }
    fn with(objects: impl IntoIterator<Item = Object>) -> Tables {
        let mut tables = Tables::default();
        for object in objects {
            tables.objects.insert(object.key(), Arc::new(object));
        }
        tables
    }
    fn reason(result: Result<(), Status>) -> Option<Reason> {
        result.err().map(|status| status.reason)
    }

    #[test]
    fn one_more_than_the_most_is_refused_and_what_is_there_may_still_be_written() {
        let half = MOST_OBJECTS / 2;
        let mut tables = with((0..half).map(|n| lease("a", n)));
        assert_eq!(reason(room(&tables, &lease("a", half), None)), Some(Reason::Forbidden), "it has its share");
        assert_eq!(reason(room(&tables, &lease("b", 0), None)), None);
        for n in 0..half {
            tables.objects.insert(lease("b", n).key(), Arc::new(lease("b", n)));
        }
        assert_eq!(reason(room(&tables, &lease("c", 0), None)), Some(Reason::Forbidden));
        assert_eq!(reason(room(&tables, &lease("a", 0), Some(&lease("a", 0)))), None);
    }

    #[test]
    fn large_objects_share_their_bytes_and_small_ones_do_not_count() {
        let large = 128 * 1024;
        let most = MOST_BYTES_IN_NAMESPACE / large;
        let tables = with((0..most).map(|n| map("a", n, large - 1)));
        assert_eq!(reason(room(&tables, &map("a", most, large), None)), Some(Reason::Forbidden));
        assert_eq!(reason(room(&tables, &map("b", 0, large), None)), None, "another namespace has its own");
        assert_eq!(reason(room(&tables, &map("a", most, 1000), None)), None);
        let old = map("a", 0, large - 1);
        assert_eq!(
            reason(room(&tables, &map("a", 0, large), Some(&old))),
            Some(Reason::Forbidden),
            "larger than it was"
        );
        assert_eq!(reason(room(&tables, &map("a", 0, large / 2), Some(&old))), None, "it becomes smaller");
        let everywhere = (0..4).flat_map(|ns| (0..most).map(move |n| map(&format!("n{ns}"), n, large - 1)));
        assert_eq!(reason(room(&with(everywhere), &map("b", 0, large), None)), Some(Reason::Forbidden));
    }
}
