//! Every path compared with its native request, before a raft member that is a closure.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Request as HttpRequest, StatusCode};
use muster_messages::Principal;
use serde_json::json;
use tower_service::Service as _;

use super::*;
use crate::tests::{Proposal, REQUEST, World, description, leading, node, tables, triple, users};

fn definition() -> Definition {
    crate::tests::definition(vec![])
}

impl World {
    async fn respond(&self, caller: &Principal, method: &str, target: &str, body: &str) -> Response {
        let peer = Peer::of(self.service.clone(), caller.clone(), None);
        let request = HttpRequest::builder().method(method).uri(target).extension(peer);
        let request = request.header("muster-request-id", format!("{REQUEST}"));
        let request = request.body(Body::from(body.to_owned())).unwrap();
        super::super::routes().call(request).await.unwrap()
    }

    /// The answer, and what was proposed for it.
    async fn over_http(
        &self,
        caller: &Principal,
        method: &str,
        target: &str,
        body: &str,
    ) -> (StatusCode, Value, Vec<Proposal>) {
        let response = self.respond(caller, method, target, body).await;
        let status = response.status();
        let text = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let answer = serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{method} {target}: {e}: {text:?}"));
        (status, answer, self.proposed())
    }
}

/// Every path with its native request.
fn rows() -> Vec<(&'static str, &'static str, Value, ReconcilerRequest)> {
    use ReconcilerRequest as R;
    let (name, two) = (|| "schema".to_owned(), || Some(triple("2.0.0")));
    let (scope, member) = (|| "db".to_owned(), || "m1".to_owned());
    let document = json!({"name": "schema", "release": "2.0.0", "scope": "db", "floor": "2.0.0", "objects": []});
    let definitions = || vec![definition()].into_iter().map(unsealed).collect::<Vec<_>>();
    let labels = BTreeMap::from([("tier".to_owned(), "one".to_owned())]);
    let written = json!({"labels": {"tier": "one"}, "body": {"columns": ["id", "name"]}});
    let body = r#"{"columns":["id","name"]}"#.to_owned();
    let floor = triple("3.0.0");
    let none = || Value::Null;
    vec![
        ("GET", "/v1/reconcilers", none(), R::List),
        ("POST", "/v1/reconcilers", document.clone(), R::Apply { definitions: definitions(), replace: false }),
        ("POST", "/v1/reconcilers", json!([document]), R::Apply { definitions: definitions(), replace: false }),
        ("POST", "/v1/reconcilers?replace=true", document, R::Apply { definitions: definitions(), replace: true }),
        ("GET", "/v1/reconcilers/schema", none(), R::Status { name: name(), seen: Revision(0), wait_ms: 0 }),
        ("DELETE", "/v1/reconcilers/schema", none(), R::Delete { name: name() }),
        ("DELETE", "/v1/reconcilers/schema?gate=true", none(), R::DeleteGate { name: name() }),
        ("GET", "/v1/reconcilers/schema/plan", none(), R::Plan { name: name(), release: None }),
        ("GET", "/v1/reconcilers/schema/plan?release=2.0.0", none(), R::Plan { name: name(), release: two() }),
        ("GET", "/v1/reconcilers/schema/history", none(), R::History { name: name() }),
        ("POST", "/v1/reconcilers/schema/pause", none(), R::Pause { name: name(), paused: true }),
        ("POST", "/v1/reconcilers/schema/resume", none(), R::Pause { name: name(), paused: false }),
        ("POST", "/v1/reconcilers/schema/finalize", none(), R::Finalize { name: name(), release: None }),
        ("POST", "/v1/reconcilers/schema/finalize?release=2.0.0", none(), R::Finalize { name: name(), release: two() }),
        ("POST", "/v1/reconcilers/schema/retry", none(), R::Retry { name: name(), release: None }),
        ("POST", "/v1/reconcilers/schema/retry?release=2.0.0", none(), R::Retry { name: name(), release: two() }),
        ("POST", "/v1/reconcilers/schema/repair", json!({"from_history": 1}), R::Repair { name: name(), epoch: 1 }),
        (
            "POST",
            "/v1/reconcilers/schema/force-floor",
            json!({"release": "3.0.0"}),
            R::ForceFloor { name: name(), floor, dry_run: true },
        ),
        (
            "POST",
            "/v1/reconcilers/schema/force-floor",
            json!({"release": "3.0.0", "yes_i_know": true}),
            R::ForceFloor { name: name(), floor, dry_run: false },
        ),
        ("GET", "/v1/members", none(), R::MemberList { scope: None }),
        ("GET", "/v1/members?scope=db", none(), R::MemberList { scope: Some(scope()) }),
        ("POST", "/v1/members/db/m1/drain", none(), R::MemberDrain { scope: scope(), member: member() }),
        ("DELETE", "/v1/members/db/m1", none(), R::MemberForget { scope: scope(), member: member() }),
        (
            "POST",
            "/v1/members/db/m1",
            json!({"release": "1.0.0", "needs": {"schema": "2.0.0"}}),
            R::MemberAnnounce {
                scope: scope(),
                member: member(),
                release: triple("1.0.0"),
                needs: BTreeMap::from([(name(), triple("2.0.0"))]),
                allow_undefined_scope: false,
            },
        ),
        (
            "GET",
            "/v1/objects?since=7&kind=table",
            none(),
            R::ObjectChanges { kind: Some("table".into()), namespace: None, seen: Revision(7), wait_ms: 0 },
        ),
        (
            "GET",
            "/v1/objects?watch=1",
            none(),
            R::ObjectChanges { kind: None, namespace: None, seen: Revision(0), wait_ms: 25_000 },
        ),
        ("GET", "/v1/objects", none(), R::ObjectList { kind: None, namespace: None }),
        (
            "GET",
            "/v1/objects?kind=table&namespace=other",
            none(),
            R::ObjectList { kind: Some("table".into()), namespace: Some("other".into()) },
        ),
        ("GET", "/v1/reconcilers/schema/runs", none(), R::Runs { name: name() }),
        (
            "GET",
            "/v1/reconcilers/schema/runs/1/log?offset=2&wait=1s",
            none(),
            R::Log { name: name(), run: Some(1), offset: 2, wait_ms: 1000 },
        ),
        ("GET", "/v1/objects/table/default/users", none(), R::ObjectGet { key: users() }),
        ("PUT", "/v1/objects/table/default/users", written, R::ObjectPut { key: users(), labels, body }),
        ("DELETE", "/v1/objects/table/default/users", none(), R::ObjectDelete { key: users() }),
    ]
}

/// As it comes from a document: the server fills in the digest.
fn unsealed(definition: Definition) -> Definition {
    Definition { digest: String::new(), ..definition }
}

#[tokio::test]
async fn every_path_equals_its_command_for_permitted_callers() {
    let world = World::new();
    let callers = [Principal::Operator, node(2), Principal::User("ann".parse().unwrap()), Principal::Anonymous];
    for (method, target, body, request) in rows() {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        for caller in &callers {
            let over_http = world.over_http(caller, method, target, &body).await;
            let natively = world.reconciler(caller, request.clone()).await;
            assert_eq!(over_http, natively, "{method} {target} of {caller}");
            let reads = method == "GET";
            let expected = match caller {
                Principal::Operator => 200,
                Principal::Node(_) if reads => 200,
                Principal::Anonymous => 401,
                _ => 403,
            };
            assert_eq!(over_http.0, expected, "{method} {target} of {caller}: {}", over_http.1);
            assert!(
                over_http.2.iter().all(|(request, ..)| *request == REQUEST),
                "{method} {target}: {:?}",
                over_http.2
            );
            let changes = over_http.0 == 200 && !reads && !over_http.1["changed"].eq(&json!(false));
            assert_eq!(!over_http.2.is_empty(), changes, "{method} {target}: {:?}", over_http.2);
        }
    }
}

#[test]
fn openapi_describes_exactly_the_served_paths() {
    let described = description();
    let ours = |path: &String| ["/v1/reconcilers", "/v1/members", "/v1/objects"].iter().any(|p| path.starts_with(p));
    let mut missing = BTreeSet::new();
    for (path, methods) in described["paths"].as_object().unwrap().iter().filter(|(path, _)| ours(path)) {
        let methods = methods.as_object().unwrap().keys();
        missing.extend(methods.map(|method| (method.to_uppercase(), path.clone())));
    }
    let all = missing.clone();
    for (method, target, ..) in rows() {
        let path: Vec<&str> = target.split('?').next().unwrap().split('/').collect();
        let fits = |(of, template): &&(String, String)| {
            let parts: Vec<&str> = template.split('/').collect();
            let same = |(part, word): (&&str, &&str)| part == word || part.starts_with('{');
            of == method && parts.len() == path.len() && parts.iter().zip(&path).all(same)
        };
        let described = all.iter().find(fits).unwrap_or_else(|| panic!("{method} {target} is not described"));
        missing.remove(described);
    }
    assert_eq!(missing, BTreeSet::new(), "described but not served");
}

#[tokio::test(start_paused = true)]
async fn watched_status_returns_on_change_or_after_the_wait() {
    let world = World::new();
    let target = "/v1/reconcilers/schema?watch=1&since=9";
    let begun = tokio::time::Instant::now();
    let (_, unchanged, _) = world.over_http(&Principal::Operator, "GET", target, "").await;
    assert_eq!(unchanged["revision"], 10);
    assert!(begun.elapsed().as_secs() >= 25, "the read did not wait");
    let changed = async {
        let mut tables = tables();
        tables.revision = Revision(11);
        tables.reconcilers.changed = Revision(11);
        world.published.send_replace(leading(tables));
    };
    let begun = tokio::time::Instant::now();
    let ((_, news, _), ()) = tokio::join!(world.over_http(&Principal::Operator, "GET", target, ""), changed);
    assert_eq!(news["revision"], 11);
    assert!(begun.elapsed().as_secs() < 25, "the read kept waiting after the change");
}

#[tokio::test]
async fn mistyped_input_is_named_and_proposes_nothing() {
    let world = World::new();
    let document = json!({"name": "schema", "release": "2.0.0", "scope": "db", "floor": "2.0.0", "objects": []});
    let with = |key: &str, value: Value| {
        let mut document = document.clone();
        document[key] = value;
        document.to_string()
    };
    for (method, target, body, word) in [
        ("POST", "/v1/reconcilers", with("flor", json!("1.0.0")), "flor"),
        ("POST", "/v1/reconcilers", with("every", json!("30")), "30s"),
        ("POST", "/v1/reconcilers", format!(" [{document}, 7]"), "invalid type"),
        ("POST", "/v1/reconcilers", "[]".to_owned(), "1 to"),
        (
            "POST",
            "/v1/reconcilers",
            json!({"name": "x", "release": "2.0.0", "scope": "db", "floor": "2.0.0", "handler": true,
                   "command": {"argv": ["true"]}})
            .to_string(),
            "mutually exclusive",
        ),
        ("POST", "/v1/reconcilers/schema/repair", String::new(), "from_history"),
        ("POST", "/v1/reconcilers/schema/force-floor", r#"{"release":"3.0.0","yes":true}"#.to_owned(), "yes_i_know"),
        ("POST", "/v1/reconcilers/schema/retry?release=2.0", String::new(), "MAJOR.MINOR.PATCH"),
        // The answer of `GET` is not what `PUT` takes: its labels are elsewhere, and would be lost.
        ("PUT", "/v1/objects/table/default/users", r#"{"metadata":{"labels":{}},"body":{}}"#.to_owned(), "metadata"),
    ] {
        let (status, answer, proposed) = world.over_http(&Principal::Operator, method, target, &body).await;
        let message = answer["error"]["message"].as_str().unwrap();
        assert_eq!((status.as_u16(), proposed.len()), (400, 0), "{method} {target} {body}: {message}");
        assert!(message.contains(word), "{method} {target} {body}: {message}");
    }
}

/// One at a time is built on the threads that Raft uses.
#[tokio::test]
async fn lists_wait_for_their_turn() {
    let world = World::new();
    for path in ["/v1/nodes", "/v1/reconcilers", "/v1/objects", "/v1/actors"] {
        let turn = world.service.builders.turn().await;
        let mut list = std::pin::pin!(world.respond(&Principal::Operator, "GET", path, ""));
        assert!(tokio::time::timeout(Duration::from_millis(100), &mut list).await.is_err(), "{path}");
        drop(turn);
        assert_eq!(list.await.status(), 200, "{path}");
    }
}

/// Others build apart from these threads meanwhile, and no more than some.
#[tokio::test]
async fn longest_lists_wait_for_a_builder() {
    for path in ["/v1/events", "/api/v1/namespaces/default/configmaps", "/v1/actors?all=true"] {
        waits_for_a_builder(path).await;
    }
}

async fn waits_for_a_builder(path: &str) {
    let world = World::new();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let ended = std::sync::Arc::new(std::sync::Mutex::new(ended));
    let others: Vec<_> = std::iter::repeat_with(|| {
        let (builders, ended) = (world.service.builders.clone(), std::sync::Arc::clone(&ended));
        tokio::spawn(async move { builders.build(move || ended.lock().unwrap().recv().is_ok()).await })
    })
    .take(2)
    .collect();
    tokio::task::yield_now().await;
    let mut list = std::pin::pin!(world.respond(&Principal::Operator, "GET", path, ""));
    assert!(tokio::time::timeout(Duration::from_millis(100), &mut list).await.is_err(), "{path}");
    others.iter().for_each(|_| end.send(()).unwrap());
    assert_eq!(list.await.status(), 200, "{path}");
}

#[tokio::test]
async fn unread_lists_are_bounded_over_http() {
    let world = World::new();
    let mut unread = Vec::new();
    loop {
        let response = world.respond(&Principal::Operator, "GET", "/v1/objects", "").await;
        if response.status() == StatusCode::TOO_MANY_REQUESTS {
            break;
        }
        unread.push(response);
        assert!(unread.len() <= 100, "unread answers are not bounded");
    }
    drop(unread);
    assert_eq!(world.respond(&Principal::Operator, "GET", "/v1/objects", "").await.status(), 200);
}

#[tokio::test]
async fn unread_long_objects_are_bounded_over_http() {
    let world = World::applying(tables());
    let (path, body) = ("/v1/objects/table/default/users", json!({"body": {"text": "x".repeat(80 * 1024)}}));
    let written = world.respond(&Principal::Operator, "PUT", path, &body.to_string()).await;
    assert_eq!(written.status(), 200);
    let mut unread = Vec::new();
    for n in 1..=17 {
        let response = world.respond(&node(2), "GET", path, "").await;
        assert_eq!(response.status(), if n <= 16 { 200 } else { 429 }, "{n}");
        unread.push(response);
    }
    assert_eq!(world.respond(&node(2), "GET", "/v1/nodes", "").await.status(), 200, "a short answer needs no share");
    drop(unread);
    assert_eq!(world.respond(&node(2), "GET", path, "").await.status(), 200);
}

#[tokio::test]
async fn only_operators_send_large_definitions_and_objects() {
    let world = World::new();
    let text = |kib: usize| json!({"text": "x".repeat(kib * 1024)});
    let object = json!({"kind": "table", "name": "users", "body": text(200)});
    let other = json!({"kind": "table", "name": "groups", "body": text(200)});
    let document = json!({"name": "schema", "release": "2.0.0", "scope": "db", "floor": "2.0.0",
                          "objects": [object, other]});
    let usual = json!({"role": "worker", "padding": "x".repeat(64 * 1024)});
    let (definitions, object) = ("/v1/reconcilers", "/v1/objects/table/default/users");
    let (operator, admin, node) = (Principal::Operator, Principal::Admin("ann".parse().unwrap()), node(2));
    for (caller, method, target, body, expected) in [
        (&operator, "POST", definitions, document.clone(), 200),
        (&admin, "POST", definitions, document.clone(), 200),
        (&operator, "POST", definitions, json!([document, document]), 413),
        (&node, "POST", definitions, document, 413),
        (&operator, "PUT", object, json!({"body": text(400)}), 200),
        (&operator, "PUT", object, json!({"body": text(650)}), 413),
        (&node, "PUT", object, json!({"body": text(65)}), 413),
        (&operator, "POST", "/v1/tokens", usual, 413),
    ] {
        let (status, answer, proposed) = world.over_http(caller, method, target, &body.to_string()).await;
        assert_eq!(status.as_u16(), expected, "{method} {target} of {caller}: {answer}");
        assert_eq!(proposed.len(), usize::from(expected == 200), "{method} {target} of {caller}");
    }
    let described = description();
    for (path, method) in [(definitions, "post"), ("/v1/objects/{kind}/{namespace}/{name}", "put")] {
        let limit_text = described["paths"][path][method]["requestBody"]["description"].to_string();
        let limit = format!("Up to {} KiB", world.service.ports.limits.definitions() / 1024);
        assert!(limit_text.contains(&limit), "{path}: {limit_text}");
    }
}

/// RIGHTS-2.
#[tokio::test]
async fn read_only_operator_reads_over_http_but_changes_nothing() {
    let world = World::new();
    let eye = Principal::Reader("eye".parse().unwrap());
    for target in
        ["/v1/status", "/v1/nodes", "/v1/users", "/v1/tokens", "/v1/certificates", "/v1/events", "/v1/reconcilers"]
    {
        let (status, answer, _) = world.over_http(&eye, "GET", target, "").await;
        assert_eq!(status.as_u16(), 200, "{target}: {answer}");
    }
    for (method, target, body) in [
        ("GET", "/v1/backup", json!({})),
        ("POST", "/v1/tokens", json!({"role": "worker"})),
        ("POST", "/v1/nodes/n1/promote", json!({})),
        ("DELETE", "/v1/nodes/n1", json!({})),
        ("DELETE", "/v1/users/ann", json!({})),
        ("POST", "/v1/actors/node/manager?action=restart", json!({})),
        ("PUT", "/v1/objects/table/default/users", json!({"body": {}})),
    ] {
        let (status, answer, proposed) = world.over_http(&eye, method, target, &body.to_string()).await;
        assert_eq!((status.as_u16(), proposed.len()), (403, 0), "{method} {target}: {answer}");
        assert_eq!(answer["error"]["code"], "forbidden", "{method} {target}");
    }
}
