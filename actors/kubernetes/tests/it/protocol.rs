//! Rules for all requests: media types, defaults, formats of time, nulls, unknown fields.

use serde_json::{Value, json};

use crate::world::*;

const RECORDED: &str = "6b3873000a1f0a16636f6f7264696e6174696f6e2e6b38732e696f2f763112054c6561736512410a1a0a036c6b31\
                        12001a0764656661756c7422002a0032003800420012230a014110041a0c08b3dc84d80610d8bdd1fa01220c08b3\
                        dc84d80610d8bdd1fa0128001a002200";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

fn recorded() -> Vec<u8> {
    let pair = |at: usize| u8::from_str_radix(&RECORDED[at..at + 2], 16).expect("hexadecimal");
    (0..RECORDED.len()).step_by(2).map(pair).collect()
}

#[test]
fn what_client_go_sends_is_stored_and_answered_in_json() {
    let mut server = Server::new();
    let target = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let body = recorded();
    let post = Request { method: "POST", target: target.into(), body, ..Request::default() };
    let created = server.send(&post.typed(PROTOBUF).accepting("application/vnd.kubernetes.protobuf,application/json"));
    assert_eq!(
        created.clone().expect(201).at("/spec"),
        json!({"holderIdentity": "A", "leaseDurationSeconds": 4, "leaseTransitions": 0,
               "acquireTime": "2026-11-21T05:37:55.525623Z", "renewTime": "2026-11-21T05:37:55.525623Z"})
    );
    assert_eq!(created.at("/metadata/creationTimestamp"), "2026-11-21T00:00:01Z", "the server's own clock");
    assert_eq!(server.get(format!("{target}/lk1")).expect(200), Reply { status: 200, ..created });
}

#[test]
fn body_without_type_kind_or_namespace_follows_the_path() {
    let mut server = Server::new();
    let lease = server.post(BASE, json!({"metadata": {"name": "x"}})).expect(201);
    assert_eq!(lease.at("/kind"), "Lease");
    assert_eq!(lease.at("/apiVersion"), "coordination.k8s.io/v1");
    assert_eq!(lease.at("/metadata/namespace"), "ns");
    assert_eq!(lease.at("/spec"), json!({}), "spec is present although empty");
    let typed = request("POST", BASE, json!({"metadata": {"name": "y"}})).typed("application/json; charset=UTF-8");
    server.send(&typed).expect(201);
}

#[test]
fn bodies_that_contradict_the_path_are_refused() {
    let mut server = Server::new();
    let lease = server.held("x", "a");
    for body in [
        json!({"kind": "Pod", "metadata": {"name": "y"}}),
        json!({"apiVersion": "v1", "metadata": {"name": "y"}}),
        json!({"metadata": {"name": "y", "namespace": "other"}}),
        json!({"metadata": {"name": 7}}),
        json!({"metadata": {"name": "y"}, "spec": {"leaseDurationSeconds": "15"}}),
        json!({"metadata": {"name": "y"}, "spec": {"leaseDurationSeconds": 9_999_999_999u64}}),
        json!({"metadata": {"name": "y"}, "spec": {"renewTime": "yesterday"}}),
        json!([]),
    ] {
        let refused = server.post(BASE, body).expect(400);
        assert_eq!(refused.reason(), "BadRequest");
    }
    server.put(&lease, json!({"metadata": {"name": "other"}})).expect(400);
    let broken = Request { body: b"{".to_vec(), ..request("POST", BASE, Value::Null) };
    server.send(&broken).expect(400);
}

#[test]
fn unsupported_media_type_is_refused_before_the_body() {
    let cbor = request("POST", BASE, json!({})).typed("application/cbor").ask();
    assert_eq!(cbor.unwrap_err().reason.code(), 415);
    let patch = request("PATCH", format!("{BASE}/x"), json!({})).typed("application/json").ask();
    assert_eq!(patch.unwrap_err().reason.code(), 415);
    let only_protobuf = request("GET", BASE, Value::Null).accepting(PROTOBUF).ask();
    assert_eq!(only_protobuf.unwrap_err().reason.code(), 406);
}

#[test]
fn times_are_accepted_in_any_format_and_written_in_one() {
    let mut server = Server::new();
    let lease = server.held("x", "a");
    let mut revision = server.get(&*lease).revision();
    for (given, shown) in [
        (json!("2026-11-21T05:37:55Z"), json!("2026-11-21T05:37:55.000000Z")),
        (json!("2026-11-21T05:37:55.5Z"), json!("2026-11-21T05:37:55.500000Z")),
        (json!("2026-11-21T05:37:55.525623789Z"), json!("2026-11-21T05:37:55.525623Z")),
        (json!("2026-11-21T06:37:55.525623+01:00"), json!("2026-11-21T05:37:55.525623Z")),
        (Value::Null, Value::Null),
    ] {
        let meta = json!({"resourceVersion": revision.to_string(), "creationTimestamp": "2020-01-01T00:00:00.000Z"});
        let put = server.put(&lease, json!({"metadata": meta, "spec": {"renewTime": given}})).expect(200);
        assert_eq!(put.at("/spec/renewTime"), shown);
        assert_eq!(put.at("/metadata/creationTimestamp"), "2026-11-21T00:00:01Z", "the client's timestamp is ignored");
        revision = put.revision();
    }
}

#[test]
fn null_is_absent_and_empty_is_not() {
    let mut server = Server::new();
    let spec = json!({"holderIdentity": "", "strategy": null, "leaseDurationSeconds": null});
    let meta = json!({"name": "x", "labels": {"a": null, "b": ""}, "annotations": null, "ownerReferences": null});
    let lease = server.post(BASE, json!({"metadata": meta, "spec": spec})).expect(201);
    assert_eq!(lease.at("/spec"), json!({"holderIdentity": ""}));
    assert_eq!(lease.at("/metadata/labels"), json!({"b": ""}));
}

#[test]
fn unknown_fields_are_dropped_unless_strict() {
    let mut server = Server::new();
    let body = |name: &str| json!({"metadata": {"name": name, "nme": 1}, "spec": {"holder": "x"}, "status": {}});
    let dropped = server.post(BASE, body("a")).expect(201);
    assert_eq!((dropped.at("/spec"), dropped.warnings.len()), (json!({}), 0));

    let strict = server.post(&format!("{BASE}?fieldValidation=Strict"), body("b")).expect(400);
    let message = strict.at("/message");
    for field in ["metadata.nme", "spec.holder", "status"] {
        assert!(message.as_str().unwrap().contains(&format!("unknown field \"{field}\"")), "{message}");
    }
    let warned = server.post(&format!("{BASE}?fieldValidation=Warn"), body("c")).expect(201);
    assert_eq!(warned.warnings.len(), 3);

    let hostile = json!({"metadata": {"name": "d"}, "spec": {"a\r\nSet-Cookie: \"b\"": 1}});
    let warned = server.post(&format!("{BASE}?fieldValidation=Warn"), hostile).expect(201);
    assert_eq!(warned.warnings, ["unknown field \"spec.a??Set-Cookie: ?b?\""], "safe for a header");
}

#[test]
fn fencing_token_is_shown_but_never_read() {
    let mut server = Server::new();
    let annotations = json!({"muster.dev/fencing-token": "999", "mine": "1"});
    let spec = json!({"holderIdentity": "a"});
    let first =
        server.post(BASE, json!({"metadata": {"name": "x", "annotations": annotations}, "spec": spec})).expect(201);
    assert_eq!(first.token(), first.revision(), "the revision at which the holder acquired it");
    assert_eq!(server.lease("x").meta.annotations.keys().collect::<Vec<_>>(), ["mine"]);

    let forged =
        server.merge(&format!("{BASE}/x"), json!({"metadata": {"annotations": {"muster.dev/fencing-token": "1000"}}}));
    assert_eq!((forged.token(), forged.revision()), (first.token(), first.revision()), "nothing has changed");
    assert!(!first.at("/metadata/managedFields").to_string().contains("fencing"), "it has no owner");

    let free = server.post(BASE, json!({"metadata": {"name": "y"}})).expect(201);
    assert_eq!(free.at("/metadata/annotations"), Value::Null, "it was never held");
}

#[test]
fn all_versions_show_the_same_objects() {
    let mut server = Server::new();
    server.held("x", "a");
    let beta = server.get("/apis/coordination.k8s.io/v1beta1/namespaces/ns/leases/x").expect(200);
    assert_eq!((beta.at("/apiVersion"), beta.holder()), (json!("coordination.k8s.io/v1beta1"), json!("a")));
    let spec = json!({"leaseName": "x", "binaryVersion": "1.30.0", "emulationVersion": "1.29.0",
                      "strategy": "OldestEmulationVersion", "renewTime": "2026-11-21T05:37:55Z"});
    server.post(CANDIDATES, json!({"metadata": {"name": "Candidate_1"}, "spec": spec})).expect(201);
    let alpha = "/apis/coordination.k8s.io/v1alpha2/namespaces/ns/leasecandidates/Candidate_1";
    let candidate = server.get(alpha).expect(200);
    assert_eq!(candidate.at("/apiVersion"), "coordination.k8s.io/v1alpha2");
    assert_eq!(candidate.at("/spec/renewTime"), "2026-11-21T05:37:55.000000Z");
    assert_eq!(candidate.at("/metadata/annotations"), Value::Null);
}

#[test]
fn native_leases_keep_their_milliseconds() {
    use muster_messages::{Change, ObjectKey, SessionId, Uid};
    let mut server = Server::new();
    server.natively(Change::AcquireLease {
        key: ObjectKey::lease("ns", "x"),
        holder: "native".to_owned(),
        session: SessionId(1),
        duration_ms: 1200,
        uid: Uid(1),
    });
    let target = format!("{BASE}/x");
    let shown = server.get(&*target).expect(200);
    assert_eq!(shown.at("/spec/leaseDurationSeconds"), 2, "rounded up");
    let mut body = shown.json;
    body["metadata"]["labels"] = json!({"a": "b"});
    server.put(&target, body).expect(200);
    assert_eq!(server.lease("x").lease().unwrap().spec.duration_ms, Some(1200));
    // Its session relies on the duration that it acquired.
    server.merge(&target, json!({"spec": {"leaseDurationSeconds": 3}})).expect(200);
    assert_eq!(server.lease("x").lease().unwrap().spec.duration_ms, Some(1200));
}

#[test]
fn duplicate_keys_are_refused_when_strict() {
    let mut server = Server::new();
    let send = |server: &mut Server, validation: &str| {
        let body = br#"{"metadata": {"name": "x"}, "spec": {"holderIdentity": "a", "holderIdentity": "b"}}"#.to_vec();
        let target = format!("{BASE}?fieldValidation={validation}");
        server.send(&Request { method: "POST", target, body, ..Request::default() })
    };
    let refused = send(&mut server, "Strict").expect(400);
    let message = refused.at("/message").as_str().unwrap().to_owned();
    assert_eq!(message, "strict decoding error: duplicate field \"spec.holderIdentity\"");
    let warned = send(&mut server, "Warn").expect(201);
    assert!(warned.warnings[0].contains("duplicate field"), "{:?}", warned.warnings);
    assert_eq!(warned.holder(), "b", "the last key counts");
}

#[test]
fn rules_review_is_answered() {
    let mut server = Server::new();
    let target = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let rules = |server: &mut Server, namespace: &str| {
        let review = server.post(target, json!({"spec": {"namespace": namespace}})).expect(201);
        let rules = review.at("/status/resourceRules").as_array().unwrap().clone();
        rules
            .into_iter()
            .filter(|rule| rule["resources"].as_array().unwrap().contains(&"leases".into()))
            .collect::<Vec<_>>()
    };
    let own = rules(&mut server, "ns");
    assert_eq!((own.len(), &own[0]["resources"]), (1, &json!(["leases", "leasecandidates"])));
    assert!(own[0]["verbs"].as_array().unwrap().contains(&"update".into()));
    assert_eq!(rules(&mut server, "other").len(), 0);
    server.post(target, json!({"spec": {}})).expect(400);
}

#[test]
fn conflict_messages_match_kubernetes() {
    let mut server = Server::new();
    let lease = server.held("x", "a");
    let stale = json!({"metadata": {"resourceVersion": "999"}, "spec": {}});
    assert_eq!(
        server.put(&lease, stale).expect(409).at("/message"),
        "Operation cannot be fulfilled on leases.coordination.k8s.io \"x\": the object has been modified; please apply your \
         changes to the latest version and try again"
    );
}

#[test]
fn root_lists_the_discovery_paths() {
    let root = Server::new().get("/").expect(200);
    let paths = root.at("/paths").as_array().unwrap().clone();
    for path in paths.iter().filter(|path| path.as_str().is_some_and(|path| !path.starts_with("/openapi"))) {
        let ask = request("GET", path.as_str().unwrap(), Value::Null).ask();
        assert!(ask.is_ok(), "{path}");
    }
    assert!(paths.contains(&"/apis/coordination.k8s.io/v1".into()), "{paths:?}");
}
