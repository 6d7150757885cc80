//! Field ownership: recorded by every write, and used to judge server-side apply.
//!
//! Clients own leaves: each label, each annotation, each field of `spec`, each key of `data`. A manager that applies
//! and the same manager that updates are two owners, as in Kubernetes.
//!
//! Invariants  FIELDS-1  a manager that changes a field owns it alone, unless it applied the field's existing value.
//!             FIELDS-2  a write that changes no field changes no owner and no owner's time.

use std::collections::{BTreeMap, BTreeSet};

use muster_messages::{FieldManager, WallTime};
use serde_json::{Map, Value, json};

use crate::document::{Document, FENCING_TOKEN, Fields, to_value};
use crate::status::Cause;
use crate::time::Seconds;

/// Updating managers that are distinguished. The oldest beyond that are merged into one.
const MAX_UPDATERS: usize = 10;
/// The name of the merged oldest managers.
const MERGED_MANAGER: &str = "ancient-changes";

/// The leaves of a document, by path.
pub(crate) type Leaves = BTreeMap<String, Value>;

/// The writer and the time of a write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writer<'a> {
    pub manager: &'a str,
    pub api_version: &'a str,
    pub now: WallTime,
}

/// The parts of a document that can be owned.
pub(crate) fn leaves(document: &Document) -> Leaves {
    let mut leaves = Leaves::new();
    let mut add = |parents: &[&str], map: Value| {
        let Value::Object(map) = map else { return };
        for (key, value) in map.into_iter().filter(|(key, _)| key != FENCING_TOKEN) {
            leaves.insert(path(parents.iter().copied().chain([key.as_str()])), value);
        }
    };
    let Document { meta, fields } = document;
    add(&["metadata", "labels"], to_value(&meta.labels));
    add(&["metadata", "annotations"], to_value(&meta.annotations));
    let whole = match fields {
        Fields::Lease(spec) => {
            add(&["spec"], to_value(spec));
            None
        }
        Fields::LeaseCandidate(spec) => {
            add(&["spec"], to_value(spec));
            None
        }
        Fields::ConfigMap(map) => {
            add(&["data"], to_value(&map.data));
            add(&["binaryData"], to_value(&map.binary_data));
            map.immutable.map(|immutable| ("immutable", immutable.into()))
        }
        Fields::Endpoints(subsets) => (!subsets.is_empty()).then(|| ("subsets", to_value(subsets))),
    };
    let owners = (!meta.owner_references.is_empty()).then(|| to_value(&meta.owner_references));
    let whole = whole.into_iter().chain(owners.map(|owners| ("metadata.ownerReferences", owners)));
    leaves.extend(whole.map(|(path, value)| (path.to_owned(), value)));
    leaves
}

/// `metadata.labels["a.b/c"]`.
fn path<'a>(keys: impl Iterator<Item = &'a str>) -> String {
    let mut path = String::new();
    for key in keys {
        if !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric()) {
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(key);
        } else {
            path.push_str(&format!("[{}]", Value::from(key)));
        }
    }
    path
}

/// The keys of a path. A malformed path ends at its first malformed key.
fn keys(path: &str) -> Vec<String> {
    let (mut keys, mut rest) = (Vec::new(), path);
    while !rest.is_empty() {
        if let Some(quoted) = rest.strip_prefix('[') {
            let mut texts = serde_json::Deserializer::from_str(quoted).into_iter::<String>();
            let Some(Ok(key)) = texts.next() else { break };
            keys.push(key);
            rest = quoted.get(texts.byte_offset() + 1..).unwrap_or_default();
        } else {
            let plain = rest.strip_prefix('.').unwrap_or(rest);
            let end = plain.find(['.', '[']).unwrap_or(plain.len());
            keys.push(plain[..end].to_owned());
            rest = &plain[end..];
        }
    }
    keys
}

/// Changes a document's leaves from `before` to `after`.
pub(crate) fn assemble(document: &mut Value, before: &Leaves, after: &Leaves) {
    for path in before.keys().filter(|path| !after.contains_key(*path)) {
        set(document, path, Value::Null);
    }
    for (path, value) in after.iter().filter(|(path, value)| before.get(*path) != Some(value)) {
        set(document, path, value.clone());
    }
}

fn set(document: &mut Value, path: &str, leaf: Value) {
    let mut place = document;
    for key in keys(path) {
        if !place.is_object() {
            *place = Value::Object(Map::new());
        }
        place = &mut place[key];
    }
    *place = leaf;
}

/// The owners after a write that is not an apply.
pub(crate) fn after_update(
    managers: &[FieldManager],
    writer: Writer<'_>,
    before: &Leaves,
    after: &Leaves,
) -> Vec<FieldManager> {
    let changed: BTreeSet<&String> = changed(before, after).collect();
    if changed.is_empty() {
        return managers.to_vec();
    }
    let mut managers = managers.to_vec();
    for entry in &mut managers {
        entry.fields.retain(|field| !changed.contains(field));
    }
    let gained = changed.into_iter().filter(|field| after.contains_key(*field)).cloned().collect::<BTreeSet<_>>();
    match managers.iter_mut().find(|entry| !entry.applied && entry.manager == writer.manager) {
        Some(entry) => {
            entry.fields.extend(gained);
            entry.at = writer.now;
            entry.api_version = writer.api_version.to_owned();
        }
        None => managers.push(writer.entry(false, gained)),
    }
    managers.retain(|entry| !entry.fields.is_empty());
    bound(&mut managers);
    managers
}

/// The leaves and their owners after a manager applies `wanted`; or the fields owned by others.
pub(crate) fn after_apply(
    managers: &[FieldManager],
    writer: Writer<'_>,
    force: bool,
    live: &Leaves,
    wanted: &Leaves,
) -> Result<(Leaves, Vec<FieldManager>), Vec<Cause>> {
    let mine = |entry: &FieldManager| entry.applied && entry.manager == writer.manager;
    let differs = |path: &String| live.get(path) != wanted.get(path);
    let contested: BTreeSet<&String> = wanted.keys().filter(|path| differs(path)).collect();
    let mut conflicts = Vec::new();
    for entry in managers.iter().filter(|entry| !mine(entry)) {
        let owner = format!("{:?} using {}", entry.manager, entry.api_version);
        let lost = entry.fields.iter().filter(|field| contested.contains(field));
        conflicts.extend(lost.map(|field| Cause::owned(format!(".{field}"), &owner)));
    }
    if !force && !conflicts.is_empty() {
        return Err(conflicts);
    }
    let mut managers = managers.to_vec();
    for entry in managers.iter_mut().filter(|entry| !mine(entry)) {
        entry.fields.retain(|field| !contested.contains(field));
    }
    let mut after = live.clone();
    after.extend(wanted.iter().map(|(path, value)| (path.clone(), value.clone())));
    let had = managers.iter().find(|entry| mine(entry)).map(|entry| entry.fields.clone()).unwrap_or_default();
    for path in had.iter().filter(|path| !wanted.contains_key(*path)) {
        if !managers.iter().any(|entry| !mine(entry) && entry.fields.contains(path)) {
            after.remove(path);
        }
    }
    let has: BTreeSet<String> = wanted.keys().cloned().collect();
    let moved = had != has || changed(live, &after).next().is_some();
    match managers.iter_mut().find(|entry| mine(entry)) {
        Some(_) if !moved => {}
        Some(entry) => *entry = writer.entry(true, has),
        None => managers.push(writer.entry(true, has)),
    }
    managers.retain(|entry| !entry.fields.is_empty());
    Ok((after, managers))
}

/// Paths whose values differ, or that exist on one side only.
fn changed<'a>(before: &'a Leaves, after: &'a Leaves) -> impl Iterator<Item = &'a String> {
    let gone = before.keys().filter(|path| !after.contains_key(*path));
    after.iter().filter(|(path, value)| before.get(*path) != Some(value)).map(|(path, _)| path).chain(gone)
}

/// Merges the oldest updating managers into one until the number fits.
fn bound(managers: &mut Vec<FieldManager>) {
    while managers.iter().filter(|entry| !entry.applied).count() > MAX_UPDATERS {
        let updates = |(_, entry): &(usize, &FieldManager)| !entry.applied && entry.manager != MERGED_MANAGER;
        let Some((oldest, _)) = managers.iter().enumerate().filter(updates).min_by_key(|(_, entry)| entry.at) else {
            return;
        };
        let old = managers.remove(oldest);
        match managers.iter_mut().find(|entry| !entry.applied && entry.manager == MERGED_MANAGER) {
            Some(ancient) => {
                ancient.at = ancient.at.max(old.at);
                ancient.fields.extend(old.fields);
            }
            None => managers.insert(oldest, FieldManager { manager: MERGED_MANAGER.to_owned(), ..old }),
        }
    }
}

impl Writer<'_> {
    fn entry(self, applied: bool, fields: BTreeSet<String>) -> FieldManager {
        let (manager, api_version) = (self.manager.to_owned(), self.api_version.to_owned());
        FieldManager { manager, applied, api_version, at: self.now, fields }
    }
}

/// `metadata.managedFields`, with each owner's fields as a tree (`f:spec` → `f:renewTime` → nothing).
pub(crate) fn to_json(managers: &[FieldManager]) -> Value {
    let entry = |entry: &FieldManager| {
        let mut tree = Value::Object(Map::new());
        for field in &entry.fields {
            let mut place = &mut tree;
            for key in keys(field) {
                place = &mut place[format!("f:{key}")];
                if place.is_null() {
                    *place = Value::Object(Map::new());
                }
            }
        }
        let operation = if entry.applied { "Apply" } else { "Update" };
        json!({
            "manager": entry.manager, "operation": operation, "apiVersion": entry.api_version,
            "time": Seconds(entry.at).to_string(), "fieldsType": "FieldsV1", "fieldsV1": tree,
        })
    };
    managers.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::resource::SERVED;

    fn writer(manager: &str, now: i64) -> Writer<'_> {
        Writer { manager, api_version: "coordination.k8s.io/v1", now: WallTime(now) }
    }

    fn spec(fields: &[(&str, i64)]) -> Leaves {
        fields.iter().map(|(key, value)| (format!("spec.{key}"), Value::from(*value))).collect()
    }

    /// Owners and their fields, in short form.
    fn owners(managers: &[FieldManager]) -> Vec<(String, bool, Vec<&str>)> {
        managers
            .iter()
            .map(|e| (e.manager.clone(), e.applied, e.fields.iter().map(|f| f.trim_start_matches("spec.")).collect()))
            .collect()
    }

    fn owner<'a>(manager: &str, applied: bool, fields: &[&'a str]) -> (String, bool, Vec<&'a str>) {
        (manager.to_owned(), applied, fields.to_vec())
    }

    #[test]
    fn leaves_are_what_clients_write() {
        let metadata = json!({
            "name": "x", "uid": "u", "labels": {"app": "a", "a.b/c": "d"},
            "annotations": {"muster.dev/fencing-token": "7", "": "odd"}, "ownerReferences": [{"uid": "o"}],
        });
        let parts = [
            (SERVED[0], json!({"spec": {"holderIdentity": "me", "strategy": null}}), vec!["spec.holderIdentity"]),
            (SERVED[2], json!({"spec": {"leaseName": "l", "binaryVersion": ""}}), vec!["spec.leaseName"]),
            (
                SERVED[4],
                json!({"data": {"k.json": "v"}, "binaryData": {"b": "AA=="}, "immutable": true}),
                vec!["binaryData.b", "data[\"k.json\"]", "immutable"],
            ),
            (SERVED[4], json!({}), vec![]),
            (SERVED[5], json!({"subsets": [{"ports": []}]}), vec!["subsets"]),
            (SERVED[5], json!({"subsets": []}), vec![]),
        ];
        for (resource, mut document, own) in parts {
            document["metadata"] = metadata.clone();
            let mut document = Document::read(resource, document, &mut Vec::new()).unwrap();
            document.meta.annotations.insert(FENCING_TOKEN.to_owned(), "7".to_owned());
            let paths: BTreeSet<String> = leaves(&document).into_keys().collect();
            let common = [
                "metadata.annotations[\"\"]",
                "metadata.labels.app",
                "metadata.labels[\"a.b/c\"]",
                "metadata.ownerReferences",
            ];
            assert_eq!(paths, common.into_iter().chain(own).map(str::to_owned).collect(), "{resource:?}");
        }
    }

    #[test]
    fn manager_that_changes_a_field_owns_it() {
        let (before, after) = (spec(&[("a", 1), ("b", 1)]), spec(&[("a", 2), ("c", 1)]));
        let first = after_update(&[], writer("one", 1), &Leaves::new(), &before);
        assert_eq!(owners(&first), [owner("one", false, &["a", "b"])]);
        let second = after_update(&first, writer("two", 2), &before, &after);
        assert_eq!(owners(&second), [owner("two", false, &["a", "c"])], "one has no fields left");
        let unchanged = after_update(&second, writer("three", 3), &after, &after);
        assert_eq!(unchanged, second, "owners and times are unchanged");
    }

    #[test]
    fn applying_over_others_fields_conflicts() {
        let live = spec(&[("a", 1), ("b", 1)]);
        let managers = after_update(&[], writer("one", 1), &Leaves::new(), &live);
        let wanted = spec(&[("a", 2), ("b", 1)]);
        let causes = after_apply(&managers, writer("two", 2), false, &live, &wanted).unwrap_err();
        assert_eq!(causes.len(), 1, "a field with the same value is not a conflict");
        assert_eq!(causes[0].field, ".spec.a");
        assert_eq!(causes[0].message, "conflict with \"one\" using coordination.k8s.io/v1");

        let (after, managers) = after_apply(&managers, writer("two", 2), true, &live, &wanted).unwrap();
        assert_eq!(after, wanted);
        assert_eq!(owners(&managers), [owner("one", false, &["b"]), owner("two", true, &["a", "b"])]);
    }

    #[test]
    fn field_no_longer_applied_is_removed_unless_shared() {
        let both = spec(&[("a", 1), ("b", 1)]);
        let (live, managers) = after_apply(&[], writer("one", 1), false, &Leaves::new(), &both).unwrap();
        let (live, managers) = after_apply(&managers, writer("two", 2), false, &live, &spec(&[("b", 1)])).unwrap();
        let (live, managers) = after_apply(&managers, writer("one", 3), false, &live, &spec(&[("c", 1)])).unwrap();
        assert_eq!(live, spec(&[("b", 1), ("c", 1)]), "only one owned a, two owns b as well");
        assert_eq!(owners(&managers), [owner("one", true, &["c"]), owner("two", true, &["b"])]);
        let (live, _) = after_apply(&managers, writer("two", 4), false, &live, &Leaves::new()).unwrap();
        assert_eq!(live, spec(&[("c", 1)]));
    }

    #[test]
    fn applying_the_same_again_changes_nothing() {
        let wanted = spec(&[("a", 1)]);
        let (live, managers) = after_apply(&[], writer("one", 1), false, &Leaves::new(), &wanted).unwrap();
        let again = after_apply(&managers, writer("one", 9), false, &live, &wanted).unwrap();
        assert_eq!(again, (live, managers));
    }

    #[test]
    fn updater_and_applier_of_one_name_are_two_owners() {
        let live = spec(&[("renew", 1)]);
        let (live, managers) = after_apply(&[], writer("me", 1), false, &Leaves::new(), &live).unwrap();
        let renewed = spec(&[("renew", 2)]);
        let managers = after_update(&managers, writer("me", 2), &live, &renewed);
        assert_eq!(owners(&managers), [owner("me", false, &["renew"])]);
        assert!(after_apply(&managers, writer("me", 3), false, &renewed, &live).is_err());
    }

    #[test]
    fn number_of_updaters_is_bounded() {
        let (mut managers, mut live) = (Vec::new(), Leaves::new());
        for n in 0..50 {
            let mut after = live.clone();
            after.insert(format!("spec.f{n}"), Value::from(n));
            managers = after_update(&managers, writer(&format!("m{n}"), n), &live, &after);
            live = after;
        }
        assert_eq!(managers.len(), MAX_UPDATERS);
        assert_eq!(managers.iter().map(|entry| entry.fields.len()).sum::<usize>(), 50, "no field loses its owner");
        let named = |name: &str| managers.iter().filter(|entry| entry.manager == name).count();
        assert_eq!((named(MERGED_MANAGER), named("m49")), (1, 1));
    }

    #[test]
    fn owners_are_shown_as_trees() {
        let fields = ["spec.renewTime", "metadata.labels[\"a.b/c\"]", "metadata.labels.app"];
        let entry = writer("me", 1_700_000_000_000).entry(true, fields.map(str::to_owned).into());
        assert_eq!(
            to_json(&[entry]),
            json!([{
                "manager": "me", "operation": "Apply", "apiVersion": "coordination.k8s.io/v1",
                "time": "2023-11-14T22:13:20Z", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:metadata": {"f:labels": {"f:a.b/c": {}, "f:app": {}}}, "f:spec": {"f:renewTime": {}}},
            }])
        );
    }

    proptest! {
        #[test]
        fn paths_round_trip(keys_ in proptest::collection::vec(".{0,6}", 1..4)) {
            prop_assert_eq!(keys(&path(keys_.iter().map(String::as_str))), keys_);
        }
        #[test]
        fn field_path_parser_never_panics(text in ".{0,20}") {
            let _keys = keys(&text);
        }
        #[test]
        fn assembled_document_has_the_given_leaves(labels in proptest::collection::btree_map("[a-z./]{1,4}", "[a-z]{0,2}", 0..5),
                                                   others in proptest::collection::btree_map("[a-z./]{1,4}", "[a-z]{0,2}", 0..5)) {
            let read = |json| Document::read(SERVED[0], json, &mut Vec::new()).unwrap();
            let mut document = json!({"metadata": {"name": "x", "labels": labels}});
            let wanted = leaves(&read(json!({"metadata": {"labels": others}})));
            let before = leaves(&read(document.clone()));
            assemble(&mut document, &before, &wanted);
            let read = read(document);
            prop_assert_eq!(read.meta.labels, others);
            prop_assert_eq!(read.meta.name, "x");
        }
    }
}
