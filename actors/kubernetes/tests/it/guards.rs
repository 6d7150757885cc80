//! What the lease guard refuses and what it permits.

use muster_messages::{GuardMode, ObjectKind};
use serde_json::{Value, json};

use crate::world::*;

const JSON_PATCH: &str = "application/json-patch+json";

fn empty() -> Value {
    json!({"spec": {"holderIdentity": null, "renewTime": null, "acquireTime": null, "leaseDurationSeconds": null}})
}

fn renewal(holder: &str) -> Value {
    json!({"spec": {"holderIdentity": holder, "renewTime": "2026-11-21T05:00:09.000000Z"}})
}

/// An elector that believes the lease expired empties it first and takes it with the next write.
#[test]
fn blind_write_by_another_manager_empties_no_living_lease() {
    for mode in [GuardMode::Blind, GuardMode::All] {
        let mut server = Server::new();
        server.guard(mode);
        server.post(BASE, json!({"metadata": {"name": "x"}})).expect(201);
        let of = |manager: &str| format!("{BASE}/x?fieldManager=klm-{manager}");
        let lock = |me: &str| json!({"spec": {"holderIdentity": me, "leaseDurationSeconds": 30}});
        server.apply_patch(&of("good"), lock("good")).expect(200);
        server.strategic(&of("good"), json!({"spec": {"leaseTransitions": 1}})).expect(200);

        for other in ["klm-ahead", "kubectl-patch"] {
            let target = format!("{BASE}/x?fieldManager={other}");
            let refused = server.strategic(&target, empty()).expect(409);
            assert_eq!(refused.reason(), "Conflict", "{mode:?}");
            let message = refused.at("/message").as_str().unwrap().to_owned();
            assert!(message.contains("held by \"good\"") && message.contains("resourceVersion"), "{message}");
            server.merge(&target, json!({"spec": {"holderIdentity": ""}})).expect(409);
        }
        assert_eq!(server.lease("x").lease().unwrap().spec.held_by(), Some("good"));
        // The manager that wrote the holder releases it.
        server.strategic(&of("good"), empty()).expect(200);
        assert_eq!(server.apply_patch(&of("ahead"), lock("ahead")).expect(200).holder(), "ahead");
    }
}

#[test]
fn without_a_guard_or_a_living_holder_a_lease_is_emptied() {
    let mut server = Server::new();
    let lease = server.held("x", "a");
    server.guard(GuardMode::Off);
    server.merge(&lease, empty()).expect(200);
    server.guard(GuardMode::All);
    let lease = server.held("y", "a");
    let key = server.lease("y").key();
    server.natively(muster_messages::Change::ExpireLease(key));
    server.merge(&lease, empty()).expect(200);
}

#[test]
fn holder_releases_its_lease_under_its_own_name() {
    let mut server = Server::new();
    let lease = server.held("x", "a");
    server.merge(&format!("{lease}?fieldManager=b"), empty()).expect(409);
    server.merge(&format!("{lease}?fieldManager=a"), empty()).expect(200);
}

/// `kubectl create`, then `kubectl patch`: two managers, and one person.
#[test]
fn patch_that_names_the_holder_renews_under_any_manager() {
    for mode in [GuardMode::Blind, GuardMode::All] {
        let mut server = Server::new();
        server.guard(mode);
        let lease = server.held("x", "me");
        let patch = format!("{lease}?fieldManager=kubectl-patch");
        server.merge(&patch, renewal("me")).expect(200);
        let mut later = renewal("me");
        later["spec"]["renewTime"] = "2026-11-21T05:00:10.000000Z".into();
        server.strategic(&patch, later.clone()).expect(200);
        later["spec"]["renewTime"] = "2026-11-21T05:00:11.000000Z".into();
        server.apply_patch(&format!("{patch}&force=true"), later).expect(200);
        // Naming another holder does not prove that the lease was read.
        server.merge(&patch, renewal("you")).expect(409);
        let nameless = json!({"spec": {"renewTime": "2026-11-21T05:00:12.000000Z"}});
        server.merge(&format!("{lease}?fieldManager=stranger"), nameless).expect(409);
    }
}

#[test]
fn json_patch_that_tests_the_holder_is_not_blind() {
    let mut server = Server::new();
    let lease = server.held("x", "me");
    let mut patch = |operations: Value| {
        let target = format!("{lease}?fieldManager=kubectl-patch");
        server.send(&request("PATCH", target, operations).typed(JSON_PATCH))
    };
    let test = |holder: &str| json!({"op": "test", "path": "/spec/holderIdentity", "value": holder});
    let set = |holder: &str| json!({"op": "replace", "path": "/spec/holderIdentity", "value": holder});
    let renew = json!({"op": "replace", "path": "/spec/renewTime", "value": "2026-11-21T05:00:09.000000Z"});
    patch(json!([renew])).expect(409);
    patch(json!([set("")])).expect(409);
    patch(json!([test("me"), renew])).expect(200);
    // A test of what the patch itself wrote proves nothing.
    patch(json!([set("you"), test("you")])).expect(409);
    patch(json!([test("me"), set("")])).expect(200);
}

#[test]
fn guard_all_covers_deletions_without_a_precondition() {
    let mut server = Server::new();
    server.guard(GuardMode::All);
    let lease = server.held("x", "a");
    let refused = server.delete(&lease, Value::Null).expect(409);
    assert!(refused.at("/message").as_str().unwrap().contains("precondition"), "{}", refused.json);
    server.delete(BASE, Value::Null).expect(409);
    // Taken while its deletion was in flight.
    let key = server.lease("x").key();
    server.natively(muster_messages::Change::ExpireLease(key));
    server.between(|s| {
        let again = renewal("a");
        drop(s.merge(&format!("{BASE}/x?fieldManager=a"), again).expect(200));
    });
    server.delete(&lease, Value::Null).expect(409);
    let uid = server.get(&*lease).at("/metadata/uid");
    server.delete(&lease, json!({"preconditions": {"uid": uid}})).expect(200);
    assert!(server.object(ObjectKind::Lease, "x").is_none());

    server.guard(GuardMode::Blind);
    let lease = server.held("x", "a");
    server.delete(&lease, Value::Null).expect(200);
}
