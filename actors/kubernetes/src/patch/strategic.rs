//! Strategic merge patches: RFC 7386, except that lists with keys are merged by key, and directives (`$patch` …)
//! express what merging cannot.
//!
//! Of our kinds' lists, finalizers are a set of texts and owner references are keyed by uid. All others are replaced.

use serde_json::{Map, Value};

use crate::status::{Reason, Status};

/// Items of one list of a patch that are searched for in the document, one by one.
const MAX_MERGED_ITEMS: usize = 256;

/// How two lists are merged.
enum Lists {
    Replace,
    Set,
    ByKey(&'static str),
}

fn lists(key: &str) -> Lists {
    match key {
        "finalizers" => Lists::Set,
        "ownerReferences" => Lists::ByKey("uid"),
        _ => Lists::Replace,
    }
}

/// Merges a patch, an object, into a document.
pub(super) fn merge(document: &mut Value, patch: &Value) -> Result<(), Status> {
    match (document, patch) {
        (Value::Object(document), Value::Object(patch)) => merge_objects(document, patch),
        (document, patch) => {
            *document = without_directives(patch);
            Ok(())
        }
    }
}

fn merge_objects(document: &mut Map<String, Value>, patch: &Map<String, Value>) -> Result<(), Status> {
    match patch.get("$patch").map(|directive| directive.as_str().unwrap_or_default()) {
        None | Some("merge") => {}
        Some("replace") => document.clear(),
        Some("delete") => {
            document.clear();
            return Ok(());
        }
        Some(other) => return Err(Status::bad_request(format!("$patch: {other:?} must be merge, replace or delete"))),
    }
    if let Some(Value::Array(kept)) = patch.get("$retainKeys") {
        few(kept)?;
        document.retain(|key, _| kept.iter().any(|name| name.as_str() == Some(key)));
    }
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix("$deleteFromPrimitiveList/") {
            if let (Some(Value::Array(items)), Value::Array(gone)) = (document.get_mut(list), value) {
                few(gone)?;
                items.retain(|item| !gone.contains(item));
            }
            continue;
        }
        if key.starts_with('$') {
            continue;
        }
        match (document.get_mut(key), value) {
            (_, Value::Null) => {
                document.remove(key);
            }
            (Some(Value::Array(items)), Value::Array(new)) => merge_lists(items, new, &lists(key))?,
            (Some(old @ Value::Object(_)), Value::Object(_)) => merge(old, value)?,
            // Directives and nulls are also processed in an object that did not exist before.
            (_, Value::Object(_)) => {
                let mut fresh = Value::Object(Map::new());
                merge(&mut fresh, value)?;
                document.insert(key.clone(), fresh);
            }
            (_, Value::Array(new)) => {
                let mut items = Vec::new();
                merge_lists(&mut items, new, &lists(key))?;
                document.insert(key.clone(), Value::Array(items));
            }
            _ => {
                document.insert(key.clone(), value.clone());
            }
        }
    }
    Ok(())
}

fn few(items: &[Value]) -> Result<(), Status> {
    if items.len() <= MAX_MERGED_ITEMS {
        return Ok(());
    }
    let text =
        format!("a list of this patch has {} items; at most {MAX_MERGED_ITEMS} are merged in one request", items.len());
    Err(Status::new(Reason::RequestEntityTooLarge, text))
}

fn merge_lists(items: &mut Vec<Value>, new: &[Value], how: &Lists) -> Result<(), Status> {
    if !matches!(how, Lists::Replace) {
        few(new)?;
    }
    match how {
        Lists::Replace => *items = new.iter().map(without_directives).collect(),
        Lists::Set => {
            for item in new {
                if !items.contains(item) {
                    items.push(item.clone());
                }
            }
        }
        Lists::ByKey(key) => {
            if new.iter().any(|item| directive(item) == Some("replace")) {
                items.clear();
            }
            for item in new {
                let Some(id) = item.get(*key) else {
                    if directive(item) == Some("replace") {
                        continue;
                    }
                    return Err(Status::bad_request(format!("an item of the patch's list has no {key}")));
                };
                let place = items.iter().position(|old| old.get(*key) == Some(id));
                match (place, directive(item)) {
                    (Some(at), Some("delete")) => {
                        items.remove(at);
                    }
                    (None, Some("delete")) => {}
                    (Some(at), _) => merge(&mut items[at], item)?,
                    (None, _) => items.push(without_directives(item)),
                }
            }
        }
    }
    Ok(())
}

fn directive(item: &Value) -> Option<&str> {
    item.get("$patch").and_then(Value::as_str)
}

fn without_directives(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(key, _)| !key.starts_with('$'));
            Value::Object(kept.map(|(key, value)| (key.clone(), without_directives(value))).collect())
        }
        Value::Array(items) => items.iter().map(without_directives).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn merged(mut document: Value, patch: Value) -> Value {
        merge(&mut document, &patch).unwrap();
        document
    }

    #[test]
    fn fields_are_merged_and_nulls_delete() {
        assert_eq!(
            merged(
                json!({"spec": {"holderIdentity": "a", "renewTime": "t", "leaseTransitions": 3}}),
                json!({"spec": {"holderIdentity": null, "renewTime": null, "leaseDurationSeconds": 5}})
            ),
            json!({"spec": {"leaseTransitions": 3, "leaseDurationSeconds": 5}})
        );
        assert_eq!(merged(json!({}), json!({"spec": {"a": null, "b": 1}})), json!({"spec": {"b": 1}}));
    }

    #[test]
    fn strategic_merge_directives_are_obeyed() {
        let labels = || json!({"labels": {"a": "1", "b": "2"}});
        assert_eq!(merged(labels(), json!({"labels": {"$patch": "replace", "c": "3"}})), json!({"labels": {"c": "3"}}));
        assert_eq!(merged(labels(), json!({"labels": {"$patch": "delete"}})), json!({"labels": {}}));
        assert_eq!(
            merged(labels(), json!({"labels": {"$retainKeys": ["a", "c"], "c": "3"}})),
            json!({"labels": {"a": "1", "c": "3"}})
        );
        assert!(merge(&mut labels(), &json!({"labels": {"$patch": "paint"}})).is_err());
    }

    #[test]
    fn lists_with_keys_are_merged_by_them() {
        let document = || json!({"ownerReferences": [{"uid": "1", "name": "a"}, {"uid": "2", "name": "b"}]});
        assert_eq!(
            merged(
                document(),
                json!({"ownerReferences": [{"uid": "2", "name": "c"}, {"uid": "3", "name": "d"}, {"uid": "1", "$patch": "delete"}],
                                      "$setElementOrder/ownerReferences": [{"uid": "2"}]})
            ),
            json!({"ownerReferences": [{"uid": "2", "name": "c"}, {"uid": "3", "name": "d"}]})
        );
        assert_eq!(
            merged(document(), json!({"ownerReferences": [{"$patch": "replace"}, {"uid": "9", "name": "z"}]})),
            json!({"ownerReferences": [{"uid": "9", "name": "z"}]})
        );
        let finalizers = merged(
            json!({"finalizers": ["a", "b"]}),
            json!({"finalizers": ["b", "c"], "$deleteFromPrimitiveList/finalizers": ["a"]}),
        );
        assert_eq!(finalizers, json!({"finalizers": ["b", "c"]}));
        assert_eq!(merged(json!({"subsets": [1, 2]}), json!({"subsets": [3]})), json!({"subsets": [3]}));
    }

    #[test]
    fn long_merged_lists_are_refused() {
        let owners =
            |count: usize| json!({"ownerReferences": (0..count).map(|n| json!({"uid": n})).collect::<Vec<_>>()});
        let texts = |key: &str| json!({key: (0..257).map(|n| n.to_string()).collect::<Vec<_>>()});
        assert!(merge(&mut json!({}), &owners(256)).is_ok());
        let refused =
            [owners(257), texts("finalizers"), texts("$retainKeys"), texts("$deleteFromPrimitiveList/finalizers")];
        for patch in refused {
            let refused = merge(&mut json!({"finalizers": []}), &patch).unwrap_err();
            assert_eq!(refused.reason, Reason::RequestEntityTooLarge, "{patch}");
        }
        assert!(merge(&mut json!({}), &texts("subsets")).is_ok(), "a replaced list may be long");
    }

    fn tree() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![Just(Value::Null), any::<bool>().prop_map(Value::from), (0..3i64).prop_map(Value::from)];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                proptest::collection::btree_map("[ab]|\\$patch|ownerReferences", inner.clone(), 0..3)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
                proptest::collection::vec(inner, 0..3).prop_map(Value::Array),
            ]
        })
    }

    /// Without lists and directives it equals the plain merge patch.
    fn plain() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![Just(Value::Null), (0..3i64).prop_map(Value::from)];
        let map = |inner| proptest::collection::btree_map("[abc]", inner, 0..4);
        leaf.prop_recursive(3, 16, 4, move |inner| map(inner).prop_map(|m| Value::Object(m.into_iter().collect())))
    }

    proptest! {
        #[test]
        fn strategic_patch_never_breaks_a_document(mut document in tree(), patch in tree()) {
            let _may_refuse = merge(&mut document, &patch);
        }
        #[test]
        fn plain_patches_are_merge_patches(document in plain(), patch in plain()) {
            let (mut ours, mut theirs) = (json!({"top": document}), json!({"top": document}));
            let patch = json!({"top": patch});
            merge(&mut ours, &patch).unwrap();
            json_patch::merge(&mut theirs, &patch);
            prop_assert_eq!(ours, theirs);
        }
    }
}
