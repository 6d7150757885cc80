//! Patch types that read, change and write again.

use serde_json::{Value, json};

use crate::world::*;

const JSON_PATCH: &str = "application/json-patch+json";

#[test]
fn merge_patch_applies_to_the_current_object() {
    let mut server = Server::new();
    let lease = server.held("x", "a");
    // Another client writes between plan and command: the patch is planned again on its result.
    server
        .between(|s| drop(s.merge(&format!("{BASE}/x"), json!({"metadata": {"labels": {"other": "1"}}})).expect(200)));
    let patched = server.merge(&lease, json!({"metadata": {"labels": {"mine": "1"}}, "spec": {"renewTime": null}}));
    assert_eq!(patched.clone().expect(200).at("/metadata/labels"), json!({"mine": "1", "other": "1"}));
    assert_eq!(patched.at("/spec"), json!({"holderIdentity": "a", "leaseDurationSeconds": 15}));
}

#[test]
fn patch_that_names_a_revision_is_guarded_by_it() {
    let mut server = Server::new();
    let lease = server.held("x", "a");
    let seen = server.get(&*lease).revision().to_string();
    let patch = |label: &str| json!({"metadata": {"resourceVersion": seen, "labels": {label: "1"}}});
    server.between(|s| drop(s.merge(&format!("{BASE}/x"), json!({"metadata": {"labels": {"a": "1"}}})).expect(200)));
    assert_eq!(
        server.strategic(&lease, patch("b")).expect(409).reason(),
        "Conflict",
        "a write came between plan and command"
    );
    assert_eq!(server.merge(&lease, patch("c")).expect(409).reason(), "Conflict", "the revision is outdated");
    let uid = json!({"metadata": {"uid": "11111111-1111-1111-1111-111111111111"}});
    assert_eq!(server.merge(&lease, uid).expect(409).reason(), "Conflict");
}

#[test]
fn only_applying_creates() {
    let mut server = Server::new();
    let missing = format!("{BASE}/missing");
    server.merge(&missing, json!({})).expect(404);
    server.strategic(&missing, json!({})).expect(404);
    server.send(&request("PATCH", &*missing, json!([])).typed(JSON_PATCH)).expect(404);
    server.apply_patch(&format!("{missing}?fieldManager=m"), json!({})).expect(201);
}

#[test]
fn json_patches_test_and_set() {
    let mut server = Server::new();
    let lease = server.held("x", "a");
    let swap = |from: &str, to: &str| {
        let patch = json!([{"op": "test", "path": "/spec/holderIdentity", "value": from},
                           {"op": "replace", "path": "/spec/holderIdentity", "value": to}]);
        request("PATCH", &*lease, patch).typed(JSON_PATCH)
    };
    assert_eq!(server.send(&swap("b", "c")).expect(422).reason(), "Invalid");
    assert_eq!(server.send(&swap("a", "")).expect(200).holder(), "");
    // A test of the revision is a precondition: the write is not blind.
    let revision = server.send(&swap("", "a")).expect(200).revision().to_string();
    let guarded = json!([{"op": "test", "path": "/metadata/resourceVersion", "value": revision},
                         {"op": "replace", "path": "/spec/holderIdentity", "value": "c"}]);
    let taken = server.send(&request("PATCH", &*lease, guarded.clone()).typed(JSON_PATCH)).expect(200);
    assert_eq!(taken.holder(), "c");
    server.send(&request("PATCH", &*lease, guarded).typed(JSON_PATCH)).expect(422);
}

#[test]
fn patch_with_invalid_result_is_refused() {
    let mut server = Server::new();
    let lease = server.held("x", "a");
    server.merge(&lease, json!([])).expect(400);
    server.merge(&lease, json!({"metadata": {"name": "y"}})).expect(400);
    server.merge(&lease, json!({"metadata": "x"})).expect(400);
    server.merge(&lease, json!({"kind": "Pod"})).expect(400);
    server.merge(&lease, json!({"spec": {"leaseDurationSeconds": 0}})).expect(422);
    server.send(&request("PATCH", &*lease, json!({"op": "add"})).typed(JSON_PATCH)).expect(400);
    let empty = request("PATCH", &*lease, Value::Null).typed("application/merge-patch+json");
    server.send(&empty).expect(400);
    // A patch may contain fields that the server owns; they are ignored.
    let system = json!({"metadata": {"creationTimestamp": null, "managedFields": null, "resourceVersion": null}});
    let before = server.get(&*lease);
    assert_eq!(server.merge(&lease, system).expect(200).json, before.json);
}

#[test]
fn owner_references_are_merged_by_uid() {
    let mut server = Server::new();
    let lease = server.held("x", "a");
    let owner = |uid: &str, name: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid});
    let owners = |owners: Vec<Value>| json!({"metadata": {"ownerReferences": owners}});
    server.strategic(&lease, owners(vec![owner("1", "a"), owner("2", "b")])).expect(200);
    let patched = server.strategic(&lease, owners(vec![owner("2", "c"), json!({"uid": "1", "$patch": "delete"})]));
    assert_eq!(patched.expect(200).at("/metadata/ownerReferences"), json!([owner("2", "c")]));
    let replaced = server.merge(&lease, owners(vec![owner("3", "d")])).expect(200);
    assert_eq!(replaced.at("/metadata/ownerReferences"), json!([owner("3", "d")]));
}

#[test]
fn unnamed_writer_is_named_by_its_user_agent() {
    let mut server = Server::new();
    let post = request("POST", BASE, json!({"metadata": {"name": "x"}, "spec": {"holderIdentity": "a"}}));
    let created = server.send(&post.by("kubectl/v1.20.2 (linux/amd64) kubernetes/faecb19")).expect(201);
    assert_eq!(
        created.at("/metadata/managedFields/0"),
        json!({"manager": "kubectl", "operation": "Update", "apiVersion": "coordination.k8s.io/v1",
               "time": "2026-11-21T00:00:01Z", "fieldsType": "FieldsV1",
               "fieldsV1": {"f:spec": {"f:holderIdentity": {}}}})
    );
    let seen = json!({"resourceVersion": created.revision().to_string()});
    let release = json!({"metadata": seen, "spec": {"holderIdentity": ""}});
    let named = server.merge(&format!("{BASE}/x?fieldManager=me"), release).expect(200);
    assert_eq!(named.at("/metadata/managedFields/0/manager"), "me", "it is the only owner of the field");
    assert_eq!(named.at("/metadata/managedFields/1"), Value::Null);
}
