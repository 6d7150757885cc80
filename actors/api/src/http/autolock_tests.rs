use axum::body::{Body, to_bytes};
use axum::http::Request as HttpRequest;
use muster_messages::{IDENTITY_LEVEL, Principal, Tables};
use serde_json::{Value, json};
use tower_service::Service as _;

use crate::http::{Peer, routes};
use crate::tests::{World, node, tables};

async fn asked(world: &World, caller: &Principal, method: &str, target: &str, body: &str) -> (u16, Value) {
    let peer = Peer::of(world.service.clone(), caller.clone(), None);
    let request = HttpRequest::builder().method(method).uri(target).extension(peer);
    let response = routes().call(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap();
    let status = response.status().as_u16();
    let text = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, serde_json::from_slice(&text).unwrap_or_default())
}

/// A leader that applies what is proposed.
fn world() -> World {
    let apply = |tables: &mut Tables, command: &_| {
        let at = tables.revision.next();
        Some(muster_store::apply(tables, at, command))
    };
    World::with(Tables { ..tables() }, apply)
}

#[tokio::test]
async fn unlock_key_is_made_shown_and_rotated_over_http() {
    let world = world();
    let by = Principal::Operator;
    let (status, off) = asked(&world, &by, "GET", "/v1/autolock/key", "").await;
    assert_eq!((status, &off["error"]["code"]), (409, &json!("not_enabled")));
    let (status, on) = asked(&world, &by, "POST", "/v1/autolock/on", "").await;
    assert_eq!((status, &on["enabled"], &on["changed"]), (200, &json!(true), &json!(true)), "{on}");
    let (_, again) = asked(&world, &by, "POST", "/v1/autolock/on", "").await;
    assert_eq!((&again["key"], &again["changed"]), (&on["key"], &json!(false)));
    let (_, next) = asked(&world, &by, "POST", "/v1/autolock/rotate", "").await;
    assert!(next["key"] != on["key"] && next["version"].as_u64() > on["version"].as_u64(), "{next}");
    let (_, key) = asked(&world, &by, "GET", "/v1/autolock/key", "").await;
    assert_eq!((&key["key"], &key["changed"]), (&next["key"], &Value::Null));
    let former = format!("/v1/autolock/key?version={}", on["version"]);
    assert_eq!(asked(&world, &by, "GET", &former, "").await.1["key"], on["key"]);
    assert_eq!(asked(&world, &by, "GET", "/v1/autolock/key?version=3", "").await.0, 404);
    let (_, status) = asked(&world, &node(2), "GET", "/v1/autolock", "").await;
    assert_eq!((&status["enabled"], &status["version"]), (&json!(true), &next["version"]), "{status}");
    assert!(!status.to_string().contains(key["key"].as_str().unwrap()));
    let (_, off) = asked(&world, &by, "POST", "/v1/autolock/off", "").await;
    assert_eq!((&off["enabled"], &off["changed"]), (&json!(false), &json!(true)));
    assert_eq!(asked(&world, &by, "POST", "/v1/autolock/rotate", "").await.1["error"]["code"], "not_enabled");
}

#[tokio::test]
async fn only_operators_read_or_change_the_unlock_key() {
    let world = world();
    for caller in [Principal::Reader("eye".parse().unwrap()), node(2)] {
        for (method, target) in
            [("POST", "on"), ("POST", "off"), ("POST", "rotate"), ("GET", "key"), ("GET", "key?version=1")]
        {
            let (status, answer) = asked(&world, &caller, method, &format!("/v1/autolock/{target}"), "").await;
            assert_eq!((status, &answer["error"]["code"]), (403, &json!("forbidden")), "{method} {target}");
        }
    }
    assert!(world.proposed().is_empty());
}

#[tokio::test]
async fn daemon_that_is_not_locked_says_so() {
    let world = world();
    for caller in [Principal::Operator, node(1)] {
        let (status, answer) = asked(&world, &caller, "POST", "/v1/unlock", r#"{"key":"x"}"#).await;
        assert_eq!((status, &answer["error"]["code"]), (409, &json!("not_locked")), "{answer}");
    }
    assert_eq!(asked(&world, &Principal::Operator, "POST", "/v1/unlock", "{}").await.0, 400, "no key");
}

#[tokio::test]
async fn autolock_needs_feature_level_3() {
    let mut older = tables();
    let cluster = older.cluster.as_mut().unwrap();
    std::sync::Arc::make_mut(cluster).feature_level = IDENTITY_LEVEL - 1;
    let world = World::with(older, |_, _| None);
    let (status, answer) = asked(&world, &Principal::Operator, "POST", "/v1/autolock/on", "").await;
    assert_eq!(status, 409, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("feature level 3"), "{answer}");
}
