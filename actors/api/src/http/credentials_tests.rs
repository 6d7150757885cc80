use muster_messages::{ClusterId, Principal, WallTime};
use serde_json::json;

use crate::tests::{World, node, tables};

fn world() -> World {
    let root = muster_pki::Root::create(ClusterId::from_entropy(1), WallTime::from_unix_secs(1_700_000_000)).unwrap();
    let mut tables = tables();
    std::sync::Arc::make_mut(tables.cluster.as_mut().unwrap()).root_cert_pem = root.cert_pem;
    World::applying(tables)
}

#[tokio::test]
async fn default_tokens_are_rotated_and_shown_over_http() {
    let (world, by) = (world(), Principal::Operator);
    let default = "/v1/tokens/default/worker";
    assert_eq!(world.http(&by, "GET", default, "").await.0, 404, "there is none yet");
    let (status, made) = world.http(&by, "POST", &format!("{default}/rotate"), "").await;
    assert_eq!((status, &made["role"]), (200, &json!("worker")), "{made}");
    assert_eq!(world.http(&by, "GET", default, "").await, (200, made.clone()));
    let (_, next) = world.http(&by, "POST", &format!("{default}/rotate"), "").await;
    assert_ne!(next["token"], made["token"]);
    assert_eq!(world.http(&by, "GET", default, "").await.1, next);
    assert_eq!(world.http(&by, "GET", "/v1/tokens", "").await.1["items"].as_array().map(Vec::len), Some(1));
    for (method, target) in [("GET", "/v1/tokens/default/boss"), ("POST", "/v1/tokens/default/boss/rotate")] {
        assert_eq!(world.http(&by, method, target, "").await.0, 400);
    }
    for caller in [Principal::Reader("eye".parse().unwrap()), node(2)] {
        for (method, target) in [("GET", default.to_owned()), ("POST", format!("{default}/rotate"))] {
            let (status, answer) = world.http(&caller, method, &target, "").await;
            assert_eq!((status, &answer["error"]["code"]), (403, &json!("forbidden")), "{method} {target}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn users_are_made_from_certificate_requests() {
    let (world, by) = (world(), Principal::Operator);
    let csr = muster_pki::make_csr(&muster_pki::new_key()).unwrap();
    let user = json!({"name": "ann", "admin": true, "csr_pem": csr});
    // The authority does not run in this leader: the request got that far.
    let (status, answer) = world.http(&by, "POST", "/v1/users", &user.to_string()).await;
    assert_eq!(status, 503, "{answer}");
    assert_eq!(world.http(&node(2), "POST", "/v1/users", &user.to_string()).await.0, 403);
    for (body, word) in [
        (json!({"name": "ann"}), "csr_pem"),
        (json!({"name": "Ann!", "csr_pem": "x"}), "name"),
        (json!({"name": "ann", "csr_pem": "x", "admin": true, "read_only": true}), "mutually exclusive"),
        (json!({"name": "ann", "csr_pem": "x", "key_pem": "x"}), "key_pem"),
    ] {
        let (status, answer) = world.http(&by, "POST", "/v1/users", &body.to_string()).await;
        assert_eq!(status, 400, "{body}: {answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(word), "{body}: {answer}");
    }
}
