//! Requests of known clients, one scenario each.

use muster_messages::GuardMode;
use serde_json::{Value, json};

use crate::world::*;

const T: &str = "2026-11-21T05:00:00.000000Z";

#[test]
fn python_client_writes_back_without_content_type() {
    let mut server = Server::new();
    let target = format!("{BASE}/lock");
    server.get(&*target).expect(404);
    // Without kind and with nulls, times with an offset.
    let time = "2026-11-21T05:00:00.123456+00:00";
    let spec = json!({"holderIdentity": "me", "leaseDurationSeconds": 15, "acquireTime": time, "renewTime": time,
                      "leaseTransitions": null, "strategy": null});
    server
        .post(BASE, json!({"apiVersion": null, "metadata": {"name": "lock", "labels": null}, "spec": spec}))
        .expect(201);
    let mut read = server.get(&*target).expect(200).json;
    read["spec"]["renewTime"] = "2026-11-21T05:00:02.000001+00:00".into();
    let renewed = server.put(&target, read.clone()).expect(200);
    assert_eq!(renewed.at("/spec/renewTime"), "2026-11-21T05:00:02.000001Z");
    server.put(&target, read).expect(409);
}

#[test]
fn older_python_client_locks_with_a_config_map() {
    let mut server = Server::new();
    let key = "control-plane.alpha.kubernetes.io/leader";
    let record = |holder: &str| json!({"holderIdentity": holder, "leaseDurationSeconds": "17"}).to_string();
    let target = format!("{MAPS}/lock");
    server.get(&*target).expect(404);
    server.post(MAPS, json!({"metadata": {"name": "lock", "annotations": {key: record("a")}}})).expect(201);
    let mut map = server.get(&*target).expect(200).json;
    map["metadata"]["annotations"][key] = record("b").into();
    let taken = server.put(&target, map.clone()).expect(200);
    assert_eq!(taken.at("/metadata/annotations")[key], record("b"));
    server.put(&target, map).expect(409);
    // Config maps may be written without a revision, as in Kubernetes.
    server.put(&target, json!({"metadata": {"annotations": {key: record("c")}}})).expect(200);
}

#[test]
fn the_oldest_electors_lock_with_endpoints() {
    let mut server = Server::new();
    let base = "/api/v1/namespaces/ns/endpoints";
    let subsets = json!([{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 1}]}]);
    let body = json!({"kind": "Endpoints", "apiVersion": "v1", "metadata": {"name": "e", "annotations": {"a": "1"}}, "subsets": subsets});
    assert_eq!(server.post(base, body).expect(201).at("/subsets"), subsets);
    let target = format!("{base}/e");
    let patched = server.merge(&target, json!({"metadata": {"annotations": {"a": "2"}}})).expect(200);
    assert_eq!((patched.at("/subsets"), patched.at("/metadata/annotations/a")), (subsets, json!("2")));
    server.put(&format!("{base}/f"), json!({"subsets": []})).expect(201);
    server.merge(&target, json!({"subsets": [7]})).expect(422);
}

/// Overwrites with a merge patch, names no revision, and is distinguished by its field manager.
fn kube_leader_election(server: &mut Server, me: &str, renew_only: bool) -> Reply {
    let target = format!("{BASE}/lock?&fieldManager={me}");
    let spec = if renew_only {
        json!({"renewTime": format!("2026-11-21T05:00:{:02}.000000Z", server.now / 1000 % 60), "leaseDurationSeconds": 15})
    } else {
        json!({"holderIdentity": me, "acquireTime": T, "renewTime": T, "leaseDurationSeconds": 15, "leaseTransitions": 1})
    };
    server.merge(&target, json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec}))
}

#[test]
fn kube_leader_election_needs_the_guard_for_one_leader() {
    for (mode, leaders) in [(GuardMode::Off, 2), (GuardMode::Blind, 1)] {
        let mut server = Server::new();
        server.guard(mode);
        server.post(BASE, json!({"metadata": {"name": "lock"}, "spec": {}})).expect(201);
        let got = ["a", "b"].map(|me| kube_leader_election(&mut server, me, false).status);
        assert_eq!(got.iter().filter(|status| **status == 200).count(), leaders, "{mode:?}: {got:?}");
        if mode == GuardMode::Blind {
            kube_leader_election(&mut server, "a", true).expect(200);
            kube_leader_election(&mut server, "b", true).expect(409);
        }
    }
}

#[test]
fn kube_lease_manager_is_distinguished_by_ownership() {
    let mut server = Server::new();
    server.post(BASE, json!({"metadata": {"name": "lock"}})).expect(201);
    let target = |me: &str| format!("{BASE}/lock?&fieldManager=kube-lease-manager-{me}");
    let lock = |me: &str| {
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
               "spec": {"holderIdentity": me, "acquireTime": T, "renewTime": T, "leaseDurationSeconds": 30}})
    };
    server.apply_patch(&target("a"), lock("a")).expect(200);
    server.strategic(&target("a"), json!({"spec": {"leaseTransitions": 1}})).expect(200);
    let refused = server.apply_patch(&target("b"), lock("b")).expect(409);
    assert_eq!((refused.reason(), refused.at("/code")), (json!("Conflict"), json!(409)), "the client checks both");
    // Released with nulls, the lease has no holder, and the next client applies without force.
    let nulls = json!({"acquireTime": null, "renewTime": null, "holderIdentity": null, "leaseDurationSeconds": null});
    let released = server.strategic(&target("a"), json!({"spec": nulls})).expect(200);
    assert_eq!(released.at("/spec"), json!({"leaseTransitions": 1}));
    assert_eq!(server.apply_patch(&target("b"), lock("b")).expect(200).holder(), "b");
}

#[test]
fn kubert_claims_with_force_and_a_revision() {
    let mut server = Server::new();
    let lease = server.held("lock", "a");
    let seen = server.get(&*lease).revision().to_string();
    let claim = |revision: &str, me: &str| {
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"resourceVersion": revision},
               "spec": {"holderIdentity": me, "acquireTime": T, "renewTime": T, "leaseDurationSeconds": 30, "leaseTransitions": 1}})
    };
    let target = format!("{lease}?&force=true&fieldManager=kubert");
    let claimed = server.apply_patch(&target, claim(&seen, "b")).expect(200);
    assert_eq!(server.apply_patch(&target, claim(&seen, "c")).expect(409).reason(), "Conflict");
    let vacated = json!({"metadata": {"resourceVersion": claimed.revision().to_string()},
                         "spec": {"acquireTime": null, "renewTime": null, "holderIdentity": null, "leaseDurationSeconds": null}});
    let vacated = server.strategic(&format!("{lease}?&fieldManager=kubert"), vacated).expect(200);
    assert_eq!(vacated.at("/spec"), json!({"leaseTransitions": 1}), "fields absent, spec present");
}

#[test]
fn client_go_renews_and_releases() {
    let mut server = Server::new();
    let agent = "elector/v0.0.0 (linux/amd64) kubernetes/$Format/leader-election";
    let spec = json!({"holderIdentity": "me", "leaseDurationSeconds": 15, "acquireTime": T, "renewTime": T, "leaseTransitions": 0});
    let post = request("POST", format!("{BASE}?timeout=5s"), json!({"metadata": {"name": "lock"}, "spec": spec}));
    let mut lease = server.send(&post.by(agent)).expect(201).json;
    let token = lease["metadata"]["annotations"]["muster.dev/fencing-token"].clone();
    let target = format!("{BASE}/lock?timeout=5s");
    for second in 1..4 {
        lease["spec"]["renewTime"] = format!("2026-11-21T05:00:0{second}.000000Z").into();
        lease = server.send(&request("PUT", &*target, lease).by(agent)).expect(200).json;
        assert_eq!(lease["metadata"]["annotations"]["muster.dev/fencing-token"], token, "renewed by the same holder");
        assert_eq!(lease["metadata"]["managedFields"][0]["manager"], "elector");
    }
    let spec = json!({"holderIdentity": "", "leaseDurationSeconds": 1, "acquireTime": T, "renewTime": T, "leaseTransitions": 0});
    lease["spec"] = spec;
    let released = server.send(&request("PUT", &*target, lease).by(agent)).expect(200);
    assert_eq!(released.holder(), "");
}

#[test]
fn kubectl_applies_by_strategic_merge_and_waits_for_a_deletion() {
    let mut server = Server::new();
    let lease = server.held("x", "a");
    let last = "kubectl.kubernetes.io/last-applied-configuration";
    let patch = json!({"metadata": {"annotations": {last: "{}\n"}, "labels": {"a": "b"}}, "spec": {"leaseDurationSeconds": 20}});
    let applied = server.strategic(&format!("{lease}?fieldManager=kubectl-client-side-apply"), patch).expect(200);
    assert_eq!(applied.at("/spec/leaseDurationSeconds"), 20);
    let options = json!({"propagationPolicy": "Background"});
    server.delete(&lease, options).expect(200);
    server.get(&*lease).expect(404);
    let can_i = json!({"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
                       "spec": {"resourceAttributes": {"verb": "get", "resource": "leases", "namespace": "ns"}}});
    let review = server.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", can_i).expect(201);
    assert_eq!(review.at("/status/allowed"), true);
    let me = server.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", json!({})).expect(201);
    assert_eq!(me.at("/status/userInfo/username"), "tester");
}

#[test]
fn javascript_deletes_with_an_empty_body_of_a_named_type() {
    let mut server = Server::new();
    let lease = server.held("x", "a");
    let delete = request("DELETE", &*lease, Value::Null).typed("application/json").accepting("*/*");
    server.send(&delete).expect(200);
}
