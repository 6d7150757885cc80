//! Who gets metrics and targets, on managers and workers, with and without a leader.

use std::sync::Arc;

use axum::body::to_bytes;
use axum::http::Request as HttpRequest;
use muster_messages::{
    AccessToken, Liveness, Name, NodeId, RaftId, RaftStatus, Revision, Tables, TokenRights, User, UserKind, WallTime,
    WorkloadName,
};
use muster_pki::BearerToken;
use serde_json::{Value, json};
use tokio::sync::watch;
use tower_service::Service as _;

use super::*;
use crate::http::routes;
use crate::service::Service;
use crate::tests::{World, node, runtime, service, tables, unreachable_actor};

/// What a caller is answered: the status, the headers and the text. Through `admit`, as over a connection.
async fn ask(service: &Service, caller: &Principal, path: &str, sent: &[(&str, &str)]) -> (u16, HeaderMap, String) {
    let mut request = HttpRequest::builder().uri(path).extension(Peer::of(service.clone(), caller.clone(), None));
    for (name, value) in sent {
        request = request.header(*name, *value);
    }
    let response = routes().call(request.body(Body::empty()).unwrap()).await.unwrap();
    let (head, body) = response.into_parts();
    let text = to_bytes(body, usize::MAX).await.unwrap();
    (head.status.as_u16(), head.headers, String::from_utf8(text.to_vec()).unwrap())
}

async fn status(service: &Service, caller: &Principal, path: &str) -> u16 {
    ask(service, caller, path, &[]).await.0
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// Node 1 is a manager and node 2 a worker, as in [`tables`].
fn with_addresses() -> Tables {
    let mut tables = tables();
    for n in [1, 2] {
        let record = tables.nodes.get_mut(&NodeId::from_entropy(n)).unwrap();
        let record = Arc::make_mut(record);
        (record.addr, record.release) = (format!("10.0.0.{n}:4400"), "1.2.3".to_owned());
    }
    // Listed although it is down, unlike one without an address.
    Arc::make_mut(tables.nodes.get_mut(&NodeId::from_entropy(2)).unwrap()).liveness = Liveness::Down;
    let (id, mut unreachable) = (NodeId::from_entropy(3), tables.nodes[&NodeId::from_entropy(2)].clone());
    let record = Arc::make_mut(&mut unreachable);
    (record.id, record.name, record.addr) = (id, name("n3"), String::new());
    tables.nodes.insert(id, unreachable);
    tables
}

/// A manager that has this state and whose Raft member does not answer.
fn alone(tables: Tables, raft: RaftStatus) -> Service {
    let replica = watch::Sender::new(Arc::new(Replica { tables, raft })).subscribe();
    service(watch::Sender::new(Some(runtime(replica, unreachable_actor()))).subscribe())
}

#[tokio::test]
async fn metrics_are_for_operators_readers_and_managers() {
    let world = World::new();
    let may = [Principal::Operator, Principal::Admin(name("ann")), Principal::Reader(name("prom")), node(1)];
    let token = "0123456789".to_owned();
    let may_not = [
        (node(2), 403),
        (node(9), 403),
        (Principal::User(name("bob")), 403),
        (Principal::Bearer { user: name("bob"), token }, 403),
        (Principal::Cluster, 403),
        (Principal::Workload("default/w".parse::<WorkloadName>().unwrap()), 403),
        (Principal::Anonymous, 401),
    ];
    for path in [METRICS, TARGETS] {
        for caller in &may {
            assert_eq!(status(&world.service, caller, path).await, 200, "{caller}: {path}");
        }
        for (caller, expected) in &may_not {
            assert_eq!(status(&world.service, caller, path).await, *expected, "{caller}: {path}");
        }
    }
}

#[tokio::test]
async fn metrics_are_rendered_for_the_accepted_format() {
    let world = World::new();
    let accept = [("accept", "application/openmetrics-text")];
    let (code, headers, text) = ask(&world.service, &Principal::Operator, METRICS, &accept).await;
    assert_eq!((code, text.as_str()), (200, "# for application/openmetrics-text\n"));
    assert_eq!(headers["content-type"], "text/plain; version=0.0.4", "the renderer's");
}

#[tokio::test]
async fn worker_serves_its_own_metrics_and_no_targets() {
    // Node 1, without a manager runtime. Its socket acts as operator until its certificate says otherwise.
    let worker = service(watch::Sender::new(None).subscribe());
    for caller in [Principal::Operator, node(1), Principal::Reader(name("prom"))] {
        assert_eq!(status(&worker, &caller, METRICS).await, 200, "{caller}");
        let (code, _, text) = ask(&worker, &caller, TARGETS, &[]).await;
        assert_eq!(code, 409, "{text}");
    }
    for caller in [node(2), Principal::User(name("bob"))] {
        assert_eq!(status(&worker, &caller, METRICS).await, 403, "{caller}");
    }
    let token = format!("Bearer {}", BearerToken::random().to_text());
    let (code, _, text) = ask(&worker, &Principal::Anonymous, METRICS, &[("authorization", &token)]).await;
    assert!(code == 409 && text.contains("knows no access tokens"), "{code} {text}");
}

#[tokio::test]
async fn targets_are_listed_without_a_leader_and_marked_stale() {
    let led = RaftStatus { raft_id: Some(RaftId(1)), leader: Some(RaftId(2)), ..RaftStatus::default() };
    let lost = RaftStatus { leader: None, ..led.clone() };
    // It was elected, and does not know yet what was committed before.
    let elected = RaftStatus { leader: Some(RaftId(1)), leading: false, ..led.clone() };
    for (raft, stale) in [(led, "false"), (lost, "true"), (elected, "true")] {
        let manager = alone(with_addresses(), raft);
        let (code, headers, text) = ask(&manager, &Principal::Operator, TARGETS, &[]).await;
        assert_eq!((code, &headers[STALE], &headers[REVISION]), (200, &stale.parse().unwrap(), &"10".parse().unwrap()));
        assert_eq!(headers["content-type"], "application/json");
        let group = |n: u128, role: &str| {
            json!({"targets": [format!("10.0.0.{n}:4400")], "labels": {
                "__meta_muster_node": NodeId::from_entropy(n).to_string(), "__meta_muster_node_name": format!("n{n}"),
                "__meta_muster_role": role, "__meta_muster_release": "1.2.3"}})
        };
        let expected = json!([group(1, "manager"), group(2, "worker")]);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
    }
}

#[tokio::test]
async fn manager_without_a_replica_fails_rather_than_lists_nothing() {
    let manager = alone(Tables::default(), RaftStatus::default());
    assert_eq!(status(&manager, &Principal::Operator, TARGETS).await, 503);
    assert_eq!(status(&manager, &Principal::Operator, METRICS).await, 200);
}

/// A state with a user of this kind and its token.
fn with_token(kind: UserKind) -> (Tables, String) {
    let (mut tables, token) = (with_addresses(), BearerToken::random());
    let user = User {
        name: name("prom"),
        kind,
        namespaces: vec!["default".to_owned()],
        serial: String::new(),
        created_at: WallTime(0),
        not_after: WallTime(0),
        revision: Revision(1),
    };
    let access = AccessToken {
        id: token.id.clone(),
        user: user.name.clone(),
        digest: token.digest(),
        created_at: WallTime(0),
        expires_at: None,
    };
    tables.token_rights.insert(token.id.clone(), TokenRights { kind, namespaces: user.namespaces.clone() });
    tables.users.insert(user.name.clone(), user);
    tables.access_tokens.insert(token.id.clone(), access);
    (tables, format!("Bearer {}", token.to_text()))
}

#[tokio::test]
async fn token_of_a_read_only_user_scrapes_without_a_certificate() {
    for (kind, expected) in [(UserKind::ReadOnly, 200), (UserKind::Operator, 200), (UserKind::User, 403)] {
        let (tables, token) = with_token(kind);
        let manager = alone(tables, RaftStatus::default());
        for path in [METRICS, TARGETS] {
            let (code, _, text) = ask(&manager, &Principal::Anonymous, path, &[("authorization", &token)]).await;
            assert_eq!(code, expected, "{kind:?} {path}: {text}");
        }
        // Everywhere else only certificates count.
        let (code, ..) = ask(&manager, &Principal::Anonymous, "/v1/status", &[("authorization", &token)]).await;
        assert_eq!(code, 401);
    }
}

/// The sender of a token is unknown until the token is checked: until then nothing that it sends is kept or waited for.
#[tokio::test(start_paused = true)]
async fn body_beside_a_token_is_never_read() {
    let (tables, token) = with_token(UserKind::ReadOnly);
    let manager = alone(tables, RaftStatus::default());
    let endless = Body::from_stream(futures_util::stream::pending::<Result<axum::body::Bytes, std::io::Error>>());
    let request = HttpRequest::builder().uri(METRICS).header("authorization", token);
    let request = request.extension(Peer::of(manager, Principal::Anonymous, None)).body(endless).unwrap();
    let began = tokio::time::Instant::now();
    assert_eq!(routes().call(request).await.unwrap().status(), 200);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn unknown_token_is_refused_only_by_a_confirmed_replica() {
    let unknown = format!("Bearer {}", BearerToken::random().to_text());
    let cases = [(unknown.as_str(), 401, 503), ("Bearer nonsense", 401, 401), ("Basic eDp5", 401, 401)];
    for (token, confirmed, unconfirmed) in cases {
        let token = [("authorization", token)];
        let world = World::new();
        assert_eq!(ask(&world.service, &Principal::Anonymous, METRICS, &token).await.0, confirmed);
        let manager = alone(tables(), RaftStatus::default());
        assert_eq!(ask(&manager, &Principal::Anonymous, METRICS, &token).await.0, unconfirmed);
    }
}

#[test]
fn both_routes_are_described() {
    let described = crate::tests::description();
    for path in [METRICS, TARGETS] {
        assert!(described["paths"][path]["get"]["summary"].is_string(), "{path}");
    }
    assert!(described["paths"][TARGETS]["get"]["responses"]["200"]["headers"]["Muster-Stale"].is_object());
}
