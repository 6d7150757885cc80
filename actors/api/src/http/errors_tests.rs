use axum::http::Request as HttpRequest;
use muster_messages::Principal;
use tower_service::Service as _;

use super::*;
use crate::http::{Peer, routes};
use crate::tests::{World, tables};

async fn asked(accept: &str, method: &str, target: &str) -> (StatusCode, HeaderMap, Value) {
    let world = World::applying(tables());
    let peer = Peer::of(world.service.clone(), Principal::Operator, None);
    let request = HttpRequest::builder().method(method).uri(target).header("accept", accept).extension(peer);
    let response = routes().call(request.body(Body::empty()).unwrap()).await.unwrap();
    let (head, body) = response.into_parts();
    let bytes = to_bytes(body, usize::MAX).await.unwrap();
    (head.status, head.headers, serde_json::from_slice(&bytes).unwrap())
}

#[tokio::test]
async fn errors_are_problems_for_clients_that_accept_them() {
    for (method, target, status, code) in [
        ("GET", "/v1/nodes/nobody", 404, "not_found"),
        ("GET", "/v1/nothing", 404, "not_found"),
        ("GET", "/v1/status?fresh=maybe", 400, "invalid"),
        ("GET", "/v1/autolock/key", 409, "not_enabled"),
        ("PUT", "/v1/status", 405, "invalid"),
    ] {
        let (got, headers, problem) = asked("application/problem+json, application/json", method, target).await;
        assert_eq!((got.as_u16(), &problem["status"]), (status, &json!(status)), "{target}: {problem}");
        assert_eq!(headers[header::CONTENT_TYPE], PROBLEM, "{target}");
        assert_eq!(problem["type"], format!("urn:muster:error:{code}"), "{problem}");
        assert_eq!(problem["code"], code);
        assert!(!problem["title"].as_str().unwrap().is_empty() && problem["details"].is_object(), "{problem}");
        assert!(!problem["detail"].as_str().unwrap().is_empty(), "{problem}");
        assert_eq!(problem["request"].as_str().unwrap(), headers["muster-request-id"], "{problem}");
        for accept in [
            "*/*",
            "application/json",
            "application/problem+json;q=0",
            "application/json, application/problem+json;q=0.5",
        ] {
            let (got, headers, envelope) = asked(accept, method, target).await;
            assert_eq!(got.as_u16(), status);
            assert_eq!(headers[header::CONTENT_TYPE], "application/json", "{accept}");
            assert_eq!(envelope["error"]["code"], code, "{target} for {accept}: {envelope}");
            assert_eq!(envelope["error"]["message"], problem["detail"]);
        }
    }
    let (_, headers, _) = asked("application/problem+json", "PUT", "/v1/status").await;
    assert_eq!(headers[header::ALLOW], "GET,HEAD");
}

#[tokio::test(start_paused = true)]
async fn problem_says_when_to_retry() {
    // No actor of the leader runs: the request got that far.
    let (status, headers, problem) = asked("application/problem+json", "POST", "/v1/ca/abort").await;
    assert_eq!(status.as_u16(), 503, "{problem}");
    assert!(problem["retry_after_ms"].as_u64().is_some() && headers.contains_key(header::RETRY_AFTER), "{problem}");
}
