use std::sync::Arc;

use muster_messages::{Name, NodeId, NodeRecord, Secret, Token, WallTime};

use super::*;

fn tables() -> Tables {
    let mut tables = Tables::default();
    let node = NodeRecord::new(NodeId::from_entropy(4), Name::sanitized("n4"), Role::Worker, WallTime(0));
    tables.nodes.insert(node.id, Arc::new(node));
    let token = Token {
        id: "default-worker".to_owned(),
        role: Role::Worker,
        secret: Secret::new("s3cret"),
        default: true,
        created_at: WallTime(0),
        expires_at: None,
        uses_left: None,
        revision: muster_messages::Revision(1),
    };
    tables.tokens.insert(token.id.clone(), token);
    tables
}

fn kube(method: &str, target: &str, body: &str) -> Request {
    Request::Kube(KubeCall {
        method: method.to_owned(),
        target: target.to_owned(),
        content_type: None,
        accept: None,
        user_agent: None,
        body: body.as_bytes().to_vec(),
    })
}

#[test]
fn nodes_are_named_by_id_and_name_where_they_are_known() {
    let request = Request::SetRole { node: "n4".to_owned(), role: Role::Manager };
    let tables = tables();
    let (shown, object) = described(&request, Some(&tables));
    let id = NodeId::from_entropy(4).to_string();
    assert_eq!((class_of(&request, Some(&tables)), shown.as_str()), (Class::Change, "node.promote"));
    assert_eq!(object, Object { kind: "node", id: Some(id), name: Some("n4".to_owned()) });
    assert_eq!(described(&request, None).1, Object::named("node", "n4"));
}

#[test]
fn audit_names_tokens_only_by_id() {
    let tables = tables();
    let show = Request::TokenShow { role: Role::Worker };
    assert_eq!(class_of(&show, Some(&tables)), Class::Secret);
    assert_eq!(described(&show, Some(&tables)).1.id.as_deref(), Some("default-worker"));
    let revoke = |id: &str| described(&Request::TokenRevoke { id: id.to_owned() }, Some(&tables)).1.id;
    assert_eq!(revoke("default-worker").as_deref(), Some("default-worker"));
    assert_eq!(revoke("s3cret"), None, "text that is not an id may be the token itself");
    let create = Request::TokenCreate { role: Role::Worker, ttl_ms: None, uses: None };
    assert_eq!(object_of(&create, r#"{"id":"t7","token":"MSTR-1-x-y"}"#).as_deref(), Some("t7"));
    assert_eq!(object_of(&Request::TokenList, r#"{"id":"t7"}"#), None);
}

#[test]
fn audit_log_never_delays_leadership_leases_and_inspection() {
    let lease = LeaseRef { namespace: "default".to_owned(), name: "l".to_owned() };
    let session = muster_messages::SessionId(1);
    let acquire = LeaseRequest::Acquire { lease: lease.clone(), holder: "h".to_owned(), session, duration_ms: 1 };
    let restart = ActorsAsk::Restart { path: "node/audit".to_owned() };
    let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l";
    for (request, class) in [
        (Request::Status { fresh: false }, Class::Read),
        (Request::TokenList, Class::Read),
        (Request::Lease(LeaseRequest::Renew { session, held: vec![] }), Class::Read),
        (Request::Lease(acquire), Class::Vital),
        (Request::Lease(LeaseRequest::Delete { lease }), Class::Change),
        (Request::TransferLeader { to: None }, Class::Vital),
        (Request::Actors { node: ActorsOf::Here, ask: restart }, Class::Vital),
        (Request::Actors { node: ActorsOf::All, ask: ActorsAsk::Tree }, Class::Read),
        (Request::Reconciler(ReconcilerRequest::List), Class::Read),
        (Request::Reconciler(ReconcilerRequest::Delete { name: "r".to_owned() }), Class::Change),
        (Request::OpenAdmission, Class::Change),
        (Request::UserRevoke { name: "ann".parse().unwrap() }, Class::Change),
        (kube("PUT", path, "{}"), Class::Vital),
        (kube("DELETE", path, ""), Class::Change),
    ] {
        assert_eq!(class_of(&request, None), class, "{request:?}");
    }
}

#[test]
fn kubernetes_renewals_are_reads_and_takeovers_are_not() {
    let mut tables = tables();
    let (key, path) = (ObjectKey::lease("default", "l"), "/apis/coordination.k8s.io/v1/namespaces/default/leases/l");
    let spec = muster_messages::LeaseSpec { holder: Some("a".to_owned()), ..Default::default() };
    let lease = muster_messages::Lease { spec, holding: Default::default() };
    let object = muster_messages::Object {
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        meta: muster_messages::ObjectMeta::fresh(muster_messages::Uid(1)),
        body: muster_messages::ObjectBody::Lease(lease),
    };
    tables.objects.insert(key, Arc::new(object));
    let body = |holder: &str| format!(r#"{{"spec":{{"holderIdentity":{holder}}},"metadata":{{}}}}"#);
    // Of two holders in one body a parser may take either.
    let twice = r#""a","holderIdentity":"b""#;
    let all = [(r#""a""#, Class::Read), (r#""b""#, Class::Vital), (r#""""#, Class::Vital), ("null", Class::Vital)];
    for (holder, class) in all.into_iter().chain([("7", Class::Vital), (twice, Class::Vital)]) {
        let request = kube("PUT", path, &body(holder));
        let (shown, object) = described(&request, Some(&tables));
        assert_eq!((class_of(&request, Some(&tables)), shown.as_str()), (class, "PUT leases"), "{holder:?}");
        assert_eq!(object.name.as_deref(), Some("default/l"));
    }
    let holder = r#""holderIdentity":"a""#;
    let patches = [
        format!(r#"[{{"op":"replace","path":"/spec/holderIdentity","value":"b",{holder}}}]"#),
        format!(r#"[{{{holder}}}]"#),
        r#"{"spec":["a"]}"#.to_owned(),
    ];
    for patch in &patches {
        for method in ["PUT", "PATCH"] {
            assert_eq!(class_of(&kube(method, path, patch), Some(&tables)), Class::Vital, "{method} {patch}");
        }
    }
    let deleting = format!(r#"{{"spec":{{{holder},"$patch":"delete"}}}}"#);
    let Request::Kube(call) = kube("PATCH", path, &deleting) else { unreachable!() };
    let strategic = Some("application/strategic-merge-patch+json".to_owned());
    let call = Request::Kube(KubeCall { content_type: strategic, ..call });
    assert_eq!(class_of(&call, Some(&tables)), Class::Vital);
}

#[test]
fn slow_requests_are_accepted_and_no_change_requests_are_done() {
    let request = Request::SetRole { node: "n4".to_owned(), role: Role::Manager };
    assert_eq!(outcome_of(&request, r#"{"changed":true}"#), Outcome::Accepted);
    assert_eq!(outcome_of(&request, r#"{"changed":false}"#), Outcome::Done);
    assert_eq!(outcome_of(&Request::CaShow, "{}"), Outcome::Done);
    let rotate = Request::RootRotate { prepare: false, compromised: false };
    assert_eq!(outcome_of(&rotate, r#"{"changed":true}"#), Outcome::Accepted);
}

#[test]
fn steps_of_a_rotation_name_their_root() {
    let root = RootId([0xab; 8]);
    let id = Some("abababababababab".to_owned());
    for (request, verb, known) in [
        (Request::RootActivate { root }, "root.activate", id.clone()),
        (Request::RootRetire { root, force: false }, "root.retire", id.clone()),
        (Request::RootRetire { root, force: true }, "root.retire_by_force", id.clone()),
        (Request::RootRevoke { root }, "root.revoke", id.clone()),
        (Request::RootAbort, "root.abort", None),
        (Request::RootRequest { compromised: false }, "root.request", None),
        (Request::RootRequest { compromised: true }, "root.request_compromised", None),
        (Request::RootIssued { prepare: false, answer: "PEM".to_owned() }, "root.issued", None),
        (Request::RootRotate { prepare: true, compromised: false }, "root.rotate", None),
        (Request::RootRotate { prepare: false, compromised: true }, "root.rotate_compromised", None),
    ] {
        let (shown, object) = described(&request, None);
        assert_eq!((class_of(&request, None), shown.as_str()), (Class::Change, verb));
        assert_eq!((object.kind, &object.id), ("root", &known), "{verb}");
        let answered = object_of(&request, r#"{"root":"abababababababab","changed":true}"#);
        assert_eq!(known.or(answered), id, "{verb}");
        assert_eq!(object_of(&request, r#"{"root":null,"changed":false}"#), None, "{verb}");
    }
    assert_eq!(class_of(&Request::RootList, None), Class::Read);
}

#[test]
fn changes_of_the_unlock_key_name_its_version() {
    let (key, version) = (muster_messages::Secret::new("key"), Some(Revision(7)));
    for (request, verb, class, known) in [
        (Request::AutolockStatus, "autolock.status", Class::Read, None),
        (Request::AutolockOn, "autolock.on", Class::Change, None),
        (Request::AutolockOff, "autolock.off", Class::Change, None),
        (Request::AutolockRotate, "autolock.rotate", Class::Change, None),
        (Request::AutolockKey { version: None }, "autolock.key", Class::Secret, None),
        (Request::AutolockKey { version }, "autolock.key", Class::Secret, Some("7")),
    ] {
        let (shown, object) = described(&request, None);
        assert_eq!((class_of(&request, None), shown.as_str()), (class, verb));
        if class != Class::Read {
            assert_eq!((object.kind, object.id.as_deref()), ("unlock_key", known), "{verb}");
            assert_eq!(object_of(&request, r#"{"version":9,"key":"MUSTER-1-x"}"#).as_deref(), Some("9"), "{verb}");
        }
    }
    let (shown, object) = described(&Request::Unlock { key, version }, None);
    assert_eq!((shown.as_str(), object.id.as_deref()), ("unlock", Some("7")));
}
