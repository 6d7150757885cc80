use axum::body::{Body, to_bytes};
use axum::http::Request as HttpRequest;
use muster_messages::Principal;
use serde_json::{Value, json};
use tower_service::Service as _;

use super::*;
use crate::http::{Peer, routes};
use crate::tests::{World, tables};

/// The status, the id that the answer carries, and the answer.
async fn asked(
    world: &World,
    caller: &Principal,
    head: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, String, Value) {
    let (method, target) = head.split_once(' ').unwrap();
    let peer = Peer::of(world.service.clone(), caller.clone(), None);
    let mut request = HttpRequest::builder().method(method).uri(target).extension(peer);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = routes().call(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap();
    let id = response.headers().get(HEADER).map(|id| id.to_str().unwrap().to_owned()).unwrap_or_default();
    let status = response.status().as_u16();
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, id, serde_json::from_slice(&bytes).unwrap_or_default())
}

const MUSTER: &str = "Muster-Request-Id";
const KEY: &str = "Idempotency-Key";
const UUID: &str = "01932f1c-7c00-7000-8000-0000000000ff";
const HEX: &str = "01932f1c7c00700080000000000000ff";

#[tokio::test]
async fn malformed_request_id_is_refused_with_its_form() {
    let world = World::applying(tables());
    let by = Principal::Operator;
    for bad in ["x", "", "0", "+5", "0x5", " ", "00112233445566778899aabbccddeeff0", "01932f1c-7c00"] {
        for name in [MUSTER, KEY] {
            for target in ["POST /v1/tokens", "GET /v1/status"] {
                let (status, id, answer) = asked(&world, &by, target, &[(name, bad)], "").await;
                assert_eq!((status, &answer["error"]["code"]), (400, &json!("invalid")), "{bad:?}: {answer}");
                let text = answer["error"]["message"].as_str().unwrap();
                assert!(text.contains(name) && text.contains("32 hexadecimal digits"), "{text}");
                assert_eq!(id.len(), 32, "{id:?}");
            }
        }
    }
    for headers in [[(MUSTER, "5"), (KEY, "6")], [(MUSTER, "5"), (MUSTER, "6")], [(KEY, "5"), (KEY, "6")]] {
        let (status, _, answer) = asked(&world, &by, "POST /v1/nodes/n2/rename", &headers, r#"{"name":"x"}"#).await;
        assert_eq!(status, 400, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("two names of one id"), "{answer}");
    }
    assert!(world.proposed().is_empty());
    // Who may not ask learns nothing else.
    assert_eq!(asked(&world, &Principal::Anonymous, "GET /v1/status", &[(MUSTER, "x")], "").await.0, 401);
}

#[tokio::test]
async fn every_answer_carries_its_request_id() {
    let world = World::applying(tables());
    let by = Principal::Operator;
    let forms =
        [(MUSTER, HEX), (MUSTER, UUID), (KEY, UUID), (KEY, HEX), (KEY, r#""01932f1c-7c00-7000-8000-0000000000FF""#)];
    for form in forms {
        for target in
            ["GET /v1/status", "GET /v1/nodes/nobody", "POST /v1/status", "GET /v1/nothing", "GET /v1/openapi.json"]
        {
            assert_eq!(asked(&world, &by, target, &[form], "").await.1, HEX, "{target} {form:?}");
        }
    }
    assert_eq!(asked(&world, &by, "GET /v1/nodes", &[(MUSTER, "5eed")], "").await.1, format!("{:032x}", 0x5eed));
    assert_eq!(asked(&world, &Principal::Anonymous, "GET /v1/status", &[(MUSTER, HEX)], "").await.1, HEX);
    let mut fresh = Vec::new();
    for _ in 0..2 {
        fresh.push(asked(&world, &by, "GET /v1/status", &[], "").await.1);
    }
    assert!(fresh[0] != fresh[1] && fresh[0].len() == 32, "{fresh:?}");
}

#[tokio::test]
async fn same_request_id_with_another_body_or_path_is_a_conflict() {
    let world = World::applying(tables());
    let by = Principal::Operator;
    let id = fresh().to_string();
    let label = |value: &str| json!({"add": {"rack": value}}).to_string();
    for (target, body, name, expected) in [
        ("PATCH /v1/nodes/n2", label("a"), MUSTER, 200),
        ("PATCH /v1/nodes/n2", label("a"), KEY, 200),
        ("PATCH /v1/nodes/n2", label("b"), MUSTER, 409),
        ("PATCH /v1/nodes/n1", label("a"), KEY, 409),
        ("POST /v1/tokens", json!({"role": "worker"}).to_string(), MUSTER, 409),
    ] {
        let (status, _, answer) = asked(&world, &by, target, &[(name, &id)], &body).await;
        assert_eq!(status, expected, "{target} {body}: {answer}");
        if expected == 409 {
            assert_eq!(answer["error"]["code"], "conflict", "{answer}");
            assert!(answer["error"]["message"].as_str().unwrap().contains(&id), "{answer}");
        }
    }
    let (_, nodes) = world.http(&by, "GET", "/v1/nodes", "").await;
    let labels: Vec<&Value> = nodes["items"].as_array().unwrap().iter().map(|node| &node["labels"]).collect();
    assert_eq!(labels, [&json!({}), &json!({"rack": "a"})], "nothing else was done");
}
