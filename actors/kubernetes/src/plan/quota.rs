//! Limits on the number of objects and their total size.
//!
//! Every manager holds all objects in memory, and sends them in one snapshot to a manager that has fallen behind: if
//! they exceeded a snapshot's limit, that manager could never catch up. So the limits stay well below
//! `max_snapshot_bytes`. They are checked on the leader's replica when a write is planned, so concurrent writes may
//! exceed them by what is in flight. A write that shrinks or deletes an object is never refused.

use muster_messages::{Object, ObjectBody, Tables};

use crate::status::{Reason, Status};

/// Objects of all kinds: several times the leases that the cluster is designed for.
const MAX_OBJECTS: usize = 50_000;
/// The share of one namespace once half of all objects exist: no namespace takes the others' room.
const MAX_OBJECTS_IN_NAMESPACE: usize = MAX_OBJECTS / 4;
/// The size below which an object is not counted as large: fits every lease and every lock that electors write.
const SMALL_OBJECT_BYTES: usize = 2 * 1024;
/// The total size of large objects, overall and within one namespace.
const MAX_BYTES: usize = 64 * 1024 * 1024;
const MAX_BYTES_IN_NAMESPACE: usize = MAX_BYTES / 4;

/// Refuses an object for which there is no room. `old` is the object that it replaces.
pub(super) fn quota(tables: &Tables, new: &Object, old: Option<&Object>) -> Result<(), Status> {
    if old.is_none() {
        check_object_quota(tables, &new.namespace)?;
    }
    let weight = weight(new);
    if weight <= SMALL_OBJECT_BYTES || old.is_some_and(|old| self::weight(old) >= weight) {
        return Ok(());
    }
    // Costs a visit to each object, far less than what a large write costs elsewhere.
    let (mut all, mut own) = (weight, weight);
    for (key, object) in &tables.objects {
        let other = self::weight(object);
        if other > SMALL_OBJECT_BYTES && old.is_none_or(|old| *key != old.key()) {
            all += other;
            own += if object.namespace == new.namespace { other } else { 0 };
        }
    }
    let full = |what: &str, bytes: usize| {
        let text = format!("exceeded quota: objects above {SMALL_OBJECT_BYTES} bytes may take {bytes} bytes {what}");
        Err(Status::new(Reason::Forbidden, text))
    };
    if own > MAX_BYTES_IN_NAMESPACE {
        return full("in one namespace", MAX_BYTES_IN_NAMESPACE);
    }
    if all > MAX_BYTES { full("in total", MAX_BYTES) } else { Ok(()) }
}

/// Refuses one more object of any size.
pub fn check_object_quota(tables: &Tables, namespace: &str) -> Result<(), Status> {
    let there = tables.objects.len();
    if there >= MAX_OBJECTS {
        let text = format!("exceeded quota: the cluster has {there} objects; at most {MAX_OBJECTS} are allowed");
        return Err(Status::new(Reason::Forbidden, text));
    }
    if there >= MAX_OBJECTS / 2 {
        let own = tables.objects.keys().filter(|key| key.namespace == namespace).count();
        if own >= MAX_OBJECTS_IN_NAMESPACE {
            let text = format!("exceeded quota: {namespace} has {own} of the cluster's {there} objects");
            return Err(Status::new(Reason::Forbidden, text));
        }
    }
    Ok(())
}

/// The approximate size of its texts in bytes.
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
    fn object_above_quota_is_refused_but_existing_are_writable() {
        let half = MAX_OBJECTS / 2;
        let mut tables = with((0..half).map(|n| lease("a", n)));
        assert_eq!(
            reason(quota(&tables, &lease("a", half), None)),
            Some(Reason::Forbidden),
            "the namespace has reached its share"
        );
        assert_eq!(reason(quota(&tables, &lease("b", 0), None)), None);
        for n in 0..half {
            tables.objects.insert(lease("b", n).key(), Arc::new(lease("b", n)));
        }
        assert_eq!(reason(quota(&tables, &lease("c", 0), None)), Some(Reason::Forbidden));
        assert_eq!(reason(quota(&tables, &lease("a", 0), Some(&lease("a", 0)))), None);
    }

    #[test]
    fn large_objects_share_their_bytes_and_small_ones_do_not_count() {
        let large = 128 * 1024;
        let most = MAX_BYTES_IN_NAMESPACE / large;
        let tables = with((0..most).map(|n| map("a", n, large - 1)));
        assert_eq!(reason(quota(&tables, &map("a", most, large), None)), Some(Reason::Forbidden));
        assert_eq!(reason(quota(&tables, &map("b", 0, large), None)), None, "another namespace has its own share");
        assert_eq!(reason(quota(&tables, &map("a", most, 1000), None)), None);
        let old = map("a", 0, large - 1);
        assert_eq!(
            reason(quota(&tables, &map("a", 0, large), Some(&old))),
            Some(Reason::Forbidden),
            "an object that grows is refused"
        );
        assert_eq!(
            reason(quota(&tables, &map("a", 0, large / 2), Some(&old))),
            None,
            "an object that shrinks is accepted"
        );
        let everywhere = (0..4).flat_map(|ns| (0..most).map(move |n| map(&format!("n{ns}"), n, large - 1)));
        assert_eq!(reason(quota(&with(everywhere), &map("b", 0, large), None)), Some(Reason::Forbidden));
    }
}
