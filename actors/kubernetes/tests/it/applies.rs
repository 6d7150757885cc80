//! Server-side apply: ownership, conflicts, force, and fields that are no longer applied.

use serde_json::{Value, json};

use crate::world::*;

fn target(manager: &str) -> String {
    format!("{BASE}/x?fieldManager={manager}")
}

fn holder(name: &str) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "x"}, "spec": {"holderIdentity": name}})
}

#[test]
fn apply_creates_and_then_changes_its_own_fields() {
    let mut server = Server::new();
    let created = server.apply_patch(&target("one"), holder("a")).expect(201);
    assert_eq!(created.at("/metadata/managedFields/0/operation"), "Apply");
    let again = server.apply_patch(&target("one"), holder("a")).expect(200);
    assert_eq!(again.json, created.json, "a repeated apply changes nothing, not even times");
    let with_labels =
        json!({"metadata": {"labels": {"l": "1"}}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 5}});
    let grown = server.apply_patch(&target("one"), with_labels).expect(200);
    assert_eq!(grown.at("/metadata/labels/l"), "1");
    let shrunk = server.apply_patch(&target("one"), holder("a")).expect(200);
    assert_eq!((shrunk.at("/metadata/labels"), shrunk.at("/spec/leaseDurationSeconds")), (Value::Null, Value::Null));
}

#[test]
fn a_conflict_names_each_field_and_its_owner() {
    let mut server = Server::new();
    server.apply_patch(&target("one"), holder("a")).expect(201);
    let mut wanted = holder("b");
    wanted["spec"]["leaseDurationSeconds"] = 7.into();
    let conflict = server.apply_patch(&target("two"), wanted.clone()).expect(409);
    assert_eq!((conflict.reason(), conflict.at("/code")), (json!("Conflict"), json!(409)));
    assert_eq!(
        conflict.at("/details/causes"),
        json!([{"reason": "FieldManagerConflict", "field": ".spec.holderIdentity",
                "message": "conflict with \"one\" using coordination.k8s.io/v1"}])
    );
    // The guard is off, so that force decides.
    server.guard(muster_messages::GuardMode::Off);
    let forced = server.apply_patch(&format!("{}&force=true", target("two")), wanted).expect(200);
    assert_eq!(forced.holder(), "b");
    let managers = forced.at("/metadata/managedFields");
    assert_eq!((managers.as_array().unwrap().len(), &managers[0]["manager"]), (1, &json!("two")));
}

#[test]
fn force_does_not_take_a_guarded_lease() {
    let mut server = Server::new();
    server.apply_patch(&target("one"), holder("a")).expect(201);
    let forced = server.apply_patch(&format!("{}&force=true", target("two")), holder("b")).expect(409);
    assert_eq!(forced.reason(), "Conflict");
    assert!(forced.at("/message").as_str().unwrap().contains("time has not run out"), "{}", forced.json);
}

#[test]
fn one_of_two_concurrent_applies_creates() {
    let mut server = Server::new();
    server.between(|s| drop(s.apply_patch(&format!("{}&force=true", target("fast")), holder("fast")).expect(201)));
    server.apply_patch(&format!("{}&force=true", target("slow")), holder("slow")).expect(409);
    assert_eq!(server.lease("x").lease().unwrap().spec.held_by(), Some("fast"));
}

#[test]
fn revisions_and_uids_are_preconditions_of_applying_too() {
    let mut server = Server::new();
    let mut body = holder("a");
    body["metadata"]["resourceVersion"] = "5".into();
    assert_eq!(
        server.apply_patch(&target("one"), body.clone()).expect(409).reason(),
        "Conflict",
        "the object does not exist yet"
    );
    let created = server.apply_patch(&target("one"), holder("a")).expect(201);
    server.apply_patch(&target("one"), body.clone()).expect(409);
    body["metadata"]["resourceVersion"] = created.at("/metadata/resourceVersion");
    body["spec"]["holderIdentity"] = "b".into();
    server.apply_patch(&target("one"), body).expect(200);
    let gone = json!({"metadata": {"uid": "11111111-1111-1111-1111-111111111111"}});
    server.apply_patch(&target("one"), gone.clone()).expect(409);
    server.apply_patch(&format!("{BASE}/y?fieldManager=one"), gone).expect(409);
}

#[test]
fn apply_needs_a_manager_name_and_accepts_yaml() {
    let mut server = Server::new();
    let nameless = server.apply_patch(&format!("{BASE}/x"), holder("a")).expect(422);
    assert_eq!(nameless.at("/details/causes/0/field"), "fieldManager");
    let yaml = b"metadata:\n  labels: {a: b}\nspec:\n  holderIdentity: me\n".to_vec();
    let patch = Request { method: "PATCH", target: target("one"), body: yaml, ..Request::default() };
    let applied = server.send(&patch.typed("application/apply-patch+yaml; charset=utf-8")).expect(201);
    assert_eq!((applied.holder(), applied.at("/metadata/labels")), (json!("me"), json!({"a": "b"})));
}

#[test]
fn other_writes_take_fields_from_their_applier() {
    let mut server = Server::new();
    let labels = |value: &str| json!({"metadata": {"labels": {"l": value}}});
    server.apply_patch(&target("one"), labels("1")).expect(201);
    let patched = server.merge(&target("two"), labels("2")).expect(200);
    assert_eq!(patched.at("/metadata/managedFields/0/manager"), "two");
    server.apply_patch(&target("one"), labels("3")).expect(409);
    assert_eq!(server.apply_patch(&target("one"), labels("2")).expect(200).at("/metadata/labels/l"), "2", "shared");
    // Once another manager has deleted the field, it has no owner.
    server.merge(&target("two"), json!({"metadata": {"labels": null}})).expect(200);
    server.apply_patch(&target("three"), labels("4")).expect(200);
}

#[test]
fn managed_fields_are_not_applied() {
    let mut server = Server::new();
    let mut body = holder("a");
    body["metadata"]["managedFields"] = json!([{"manager": "me"}]);
    let refused = server.apply_patch(&target("one"), body.clone()).expect(400);
    assert_eq!(refused.at("/message"), "metadata.managedFields must be nil");
    body["metadata"]["managedFields"] = json!([]);
    server.apply_patch(&target("one"), body).expect(201);
}
