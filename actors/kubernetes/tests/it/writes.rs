//! Creations, updates, deletions: what they store, what they require, and how they interact.

use muster_messages::{GuardMode, ObjectKind};
use serde_json::{Value, json};

use crate::world::*;

#[test]
fn server_owns_identifying_fields() {
    let mut server = Server::new();
    let meta = json!({"name": "x", "uid": "11111111-1111-1111-1111-111111111111", "generation": 7,
                      "creationTimestamp": "2001-01-01T00:00:00Z", "selfLink": "/x", "managedFields": [{"manager": "m"}]});
    let lease = server.post(BASE, json!({"metadata": meta})).expect(201);
    assert_ne!(lease.at("/metadata/uid"), "11111111-1111-1111-1111-111111111111");
    assert_eq!(lease.at("/metadata/creationTimestamp"), "2026-11-21T00:00:01Z");
    assert_eq!(lease.at("/metadata/generation"), Value::Null);
    assert_eq!(lease.at("/metadata/managedFields"), Value::Null, "no written field can be owned");
    assert_eq!(lease.revision(), server.tables.revision.0);
}

#[test]
fn second_post_conflicts_with_the_existing_object() {
    let mut server = Server::new();
    server.held("x", "a");
    let clash = server.post(BASE, json!({"metadata": {"name": "x"}})).expect(409);
    assert_eq!((clash.reason(), clash.at("/details/name")), (json!("AlreadyExists"), json!("x")));
    // The same if another client was faster by a moment.
    server.between(|s| drop(s.held("y", "b")));
    let clash = server.post(BASE, json!({"metadata": {"name": "y"}})).expect(409);
    assert_eq!(clash.reason(), "AlreadyExists");
    server.post(BASE, json!({"metadata": {"name": "z", "resourceVersion": "7"}})).expect(400);
    let nameless = server.post(BASE, json!({"metadata": {}})).expect(422);
    assert_eq!(nameless.at("/details/causes/0/reason"), "FieldValueRequired");
}

#[test]
fn names_are_generated() {
    let mut server = Server::new();
    let one = server.post(BASE, json!({"metadata": {"generateName": "lock-"}})).expect(201);
    let two = server.post(BASE, json!({"metadata": {"generateName": "lock-"}})).expect(201);
    let name = one.at("/metadata/name").as_str().unwrap().to_owned();
    assert!(name.starts_with("lock-") && name.len() == 10, "{name}");
    assert_ne!(one.at("/metadata/name"), two.at("/metadata/name"));
    let long = server.post(BASE, json!({"metadata": {"generateName": "a".repeat(100)}})).expect(201);
    assert_eq!(long.at("/metadata/name").as_str().unwrap().len(), 63);
}

#[test]
fn a_put_replaces_the_revision_it_names() {
    let mut server = Server::new();
    let lease = server.held("x", "a");
    let mut body = server.get(&*lease).json;
    body["spec"]["holderIdentity"] = "b".into();
    let put = server.put(&lease, body.clone()).expect(200);
    assert_eq!((put.holder(), put.token()), (json!("b"), put.revision()));

    let late = server.put(&lease, body.clone()).expect(409);
    assert_eq!(late.reason(), "Conflict");
    // Only a moment too late: the plan was made on what the client saw.
    body["metadata"]["resourceVersion"] = put.revision().to_string().into();
    server.between(|s| drop(s.merge(&format!("{BASE}/x"), json!({"metadata": {"labels": {"a": "b"}}})).expect(200)));
    assert_eq!(server.put(&lease, body).expect(409).reason(), "Conflict");
    assert_eq!(server.lease("x").meta.labels.len(), 1, "the other client's write is kept");
}

#[test]
fn a_put_without_a_revision_is_refused_with_every_cause() {
    let mut server = Server::new();
    let lease = server.held("x", "a");
    for version in [json!({}), json!({"resourceVersion": ""}), json!({"resourceVersion": "0"})] {
        let refused = server.put(&lease, json!({"metadata": version})).expect(422);
        assert_eq!(refused.at("/details/causes/0/field"), "metadata.resourceVersion");
        assert_eq!((refused.at("/details/kind"), refused.reason()), (json!("Lease"), json!("Invalid")));
    }
    // Case 95, as an update.
    let refused = server.put(&lease, json!({"spec": {"leaseDurationSeconds": 0, "leaseTransitions": -1}})).expect(422);
    assert_eq!(refused.at("/details/causes").as_array().unwrap().len(), 3);
    server.put(&lease, json!({"metadata": {"resourceVersion": "abc"}})).expect(400);
}

#[test]
fn put_creates_a_missing_object_unless_it_names_a_deleted_one() {
    let mut server = Server::new();
    let lease = server.held("x", "a");
    let old = server.get(&*lease);
    server.delete(&lease, Value::Null).expect(200);

    // The old leader's fast path: its cached object, uid included, must not recreate the lock.
    let conflict = server.put(&lease, old.json.clone()).expect(409);
    assert!(conflict.at("/message").as_str().unwrap().contains("UID in precondition"), "{}", conflict.json);
    let fresh = server.put(&lease, json!({"spec": {"holderIdentity": "b"}})).expect(201);
    assert!(fresh.token() > old.token(), "the fencing token survives the deletion");
    // Recreated meanwhile: another uid.
    let conflict = server.put(&lease, old.json).expect(409);
    assert_eq!(conflict.reason(), "Conflict");
    server.put(&format!("{MAPS}/m"), json!({"data": {"a": "b"}})).expect(404);
}

#[test]
fn one_of_two_concurrent_creating_puts_succeeds() {
    let mut server = Server::new();
    server.between(|s| drop(s.held("x", "faster")));
    let slower = server.put(&format!("{BASE}/x"), json!({"spec": {"holderIdentity": "slower"}})).expect(422);
    assert_eq!(slower.at("/details/causes/0/field"), "metadata.resourceVersion", "now it is an update");
    assert_eq!(server.lease("x").lease().unwrap().spec.held_by(), Some("faster"));
}

#[test]
fn writing_the_same_again_changes_nothing() {
    let mut server = Server::new();
    let lease = server.held("x", "a");
    let seen = server.get(&*lease);
    server.now += 60_000;
    let again = server.put(&lease, seen.json.clone()).expect(200);
    assert_eq!(again.json, seen.json, "revision and managers are unchanged");
    let watched = server.watch(&format!("{BASE}?watch=1&resourceVersion={}", seen.revision())).observed(&server);
    assert_eq!(watched, [""; 0], "no event either");
}

#[test]
fn dry_runs_are_answered_but_not_applied() {
    let mut server = Server::new();
    let lease = server.held("x", "a");
    let before = server.tables.clone();
    let created = server.post(&format!("{BASE}?dryRun=All"), json!({"metadata": {"name": "y"}})).expect(201);
    assert_eq!(created.at("/metadata/resourceVersion"), Value::Null);
    let dry = format!("{lease}?dryRun=All");
    assert_eq!(server.merge(&dry, json!({"spec": {"holderIdentity": "b"}})).expect(200).holder(), "b");
    server.delete(&dry, Value::Null).expect(200);
    server.delete(&lease, json!({"dryRun": ["All"]})).expect(200);
    server.post(&format!("{BASE}?dryRun=All"), json!({"metadata": {"name": "x"}})).expect(409);
    assert_eq!(server.tables, before);
}

#[test]
fn deletions_respect_their_preconditions() {
    let mut server = Server::new();
    let lease = server.held("x", "a");
    let seen = server.get(&*lease);
    let uid = seen.at("/metadata/uid");
    let other = json!({"preconditions": {"uid": "11111111-1111-1111-1111-111111111111"}});
    assert_eq!(server.delete(&lease, other).expect(409).reason(), "Conflict");
    server.delete(&lease, json!({"preconditions": {"resourceVersion": "1000"}})).expect(409);
    // By the time the command is applied, another object has the name.
    server.between(|s| {
        s.delete(&format!("{BASE}/x"), Value::Null).expect(200);
        s.held("x", "b");
    });
    let uid_named = json!({"kind": "DeleteOptions", "propagationPolicy": "Background", "preconditions": {"uid": uid}});
    assert_eq!(server.delete(&lease, uid_named).expect(409).reason(), "Conflict");

    let version = server.get(&*lease).revision().to_string();
    let deleted = server.delete(&lease, json!({"preconditions": {"resourceVersion": version}})).expect(200);
    assert_eq!((deleted.at("/kind"), deleted.at("/status")), (json!("Status"), json!("Success")));
    assert_eq!((deleted.at("/details/kind"), deleted.at("/details/name")), (json!("leases"), json!("x")));
    assert_eq!(server.delete(&lease, Value::Null).expect(404).reason(), "NotFound");
}

#[test]
fn whole_collections_are_deleted() {
    let mut server = Server::new();
    for n in 0..3 {
        let labels = json!({"odd": (n % 2).to_string()});
        server.post(BASE, json!({"metadata": {"name": format!("l{n}"), "labels": labels}})).expect(201);
    }
    let other = "/apis/coordination.k8s.io/v1/namespaces/other/leases";
    server.post(other, json!({"metadata": {"name": "l0"}})).expect(201);
    // One of them is already deleted by then: the others are deleted all the same.
    server.between(|s| drop(s.delete(&format!("{BASE}/l0"), Value::Null).expect(200)));
    let deleted = server.delete(&format!("{BASE}?labelSelector=odd%3D0"), Value::Null).expect(200);
    assert_eq!((deleted.at("/kind"), deleted.at("/items/0/metadata/name")), (json!("LeaseList"), json!("l2")));
    let left = server.get("/apis/coordination.k8s.io/v1/leases");
    let names: Vec<Value> =
        left.at("/items").as_array().unwrap().iter().map(|o| o["metadata"]["name"].clone()).collect();
    assert_eq!(names, ["l1", "l0"]);
}

#[test]
fn finalizers_are_refused_explicitly() {
    let mut server = Server::new();
    let refused = server.post(BASE, json!({"metadata": {"name": "x", "finalizers": ["a/b"]}})).expect(422);
    assert_eq!(refused.at("/details/causes/0/field"), "metadata.finalizers");
    let lease = server.held("x", "a");
    server.merge(&lease, json!({"metadata": {"finalizers": ["a/b"]}})).expect(422);
    server.apply_patch(&format!("{lease}?fieldManager=m"), json!({"metadata": {"finalizers": ["a/b"]}})).expect(422);
}

#[test]
fn objects_do_not_grow_without_bound() {
    let mut server = Server::new();
    let map = format!("{MAPS}/m");
    server.post(MAPS, json!({"metadata": {"name": "m"}})).expect(201);
    let mut add = |n: usize| server.merge(&map, json!({"data": {format!("k{n}"): "x".repeat(60_000)}}));
    for n in 0..4 {
        add(n).expect(200);
    }
    assert_eq!(add(4).expect(413).reason(), "RequestEntityTooLarge", "300 kB in 256 KiB");
}

#[test]
fn guarded_lease_is_not_taken_by_a_blind_write() {
    let mut server = Server::new();
    let lease = server.held("x", "a");
    let taking = json!({"spec": {"holderIdentity": "b"}});
    let refused = server.merge(&lease, taking.clone()).expect(409);
    assert_eq!(refused.reason(), "Conflict");
    assert!(refused.at("/message").as_str().unwrap().contains("held by \"a\""), "{}", refused.json);
    let revision = server.get(&*lease).revision();
    let with_revision = json!({"metadata": {"resourceVersion": revision.to_string()}, "spec": {"holderIdentity": "b"}});
    let taken = server.merge(&lease, with_revision).expect(200);
    assert_eq!(taken.warnings, [""; 0]);

    server.guard(GuardMode::Off);
    let taken = server.merge(&lease, json!({"spec": {"holderIdentity": "c"}})).expect(200);
    assert!(taken.warnings[0].contains("names no resourceVersion"), "{:?}", taken.warnings);
    server.guard(GuardMode::All);
    let with_revision =
        json!({"metadata": {"resourceVersion": taken.revision().to_string()}, "spec": {"holderIdentity": "d"}});
    server.put(&lease, with_revision).expect(409);
    assert!(server.object(ObjectKind::Lease, "x").is_some());
}

#[test]
fn object_deleted_during_a_write_counts_as_missing() {
    let mut server = Server::new();
    let gone = |s: &mut Server| drop(s.delete(&format!("{BASE}/x"), Value::Null).expect(200));
    let lease = server.held("x", "a");
    server.between(gone);
    server.merge(&lease, json!({"metadata": {"labels": {"a": "b"}}})).expect(404);

    let lease = server.held("x", "a");
    let seen = server.get(&*lease).json;
    server.between(gone);
    server.put(&lease, seen).expect(409);

    let lease = server.held("x", "a");
    server.between(gone);
    server.delete(&lease, Value::Null).expect(404);
    assert!(server.tables.objects.is_empty(), "no object was recreated");
}

#[test]
fn taken_generated_name_is_generated_again() {
    use muster_kubernetes::{Context, Refused, plan};
    let refusal = |meta: Value| {
        let request = request("POST", BASE, json!({"metadata": meta}));
        let context = Context { now: T0, entropy: 7 };
        let plan = plan(&request.ask().unwrap(), &request.body, &Server::new().tables, context).unwrap();
        plan.refused(&muster_messages::CommandRefusal::Exists { what: "object".into(), id: "x".into() })
    };
    assert_eq!(refusal(json!({"generateName": "x-"})), Refused::Replan);
    assert!(matches!(refusal(json!({"name": "x"})), Refused::Final(status) if status.reason.name() == "AlreadyExists"));
}

#[test]
fn large_collection_is_deleted_in_several_commands() {
    use muster_kubernetes::{Context, plan};
    let mut server = Server::new();
    for n in 0..501 {
        server.post(MAPS, json!({"metadata": {"name": format!("m{n}")}})).expect(201);
    }
    let request = request("DELETE", MAPS, Value::Null);
    let plan = plan(&request.ask().unwrap(), &[], &server.tables, Context { now: T0, entropy: 7 }).unwrap();
    assert_eq!((plan.changes.len(), plan.more), (500, true));
    for change in plan.changes {
        server.natively(change);
    }
    assert_eq!(server.delete(MAPS, Value::Null).expect(200).at("/items").as_array().unwrap().len(), 1);
}
