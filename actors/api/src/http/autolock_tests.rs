use muster_messages::{IDENTITY_LEVEL, Principal};
use serde_json::{Value, json};

use crate::tests::{World, node, tables};

#[tokio::test]
async fn unlock_key_is_made_shown_and_rotated_over_http() {
    let world = World::applying(tables());
    let by = Principal::Operator;
    let (status, off) = world.http(&by, "GET", "/v1/autolock/key", "").await;
    assert_eq!((status, &off["error"]["code"]), (409, &json!("not_enabled")));
    let (status, on) = world.http(&by, "POST", "/v1/autolock/on", "").await;
    assert_eq!((status, &on["enabled"], &on["changed"]), (200, &json!(true), &json!(true)), "{on}");
    let (_, again) = world.http(&by, "POST", "/v1/autolock/on", "").await;
    assert_eq!((&again["key"], &again["changed"]), (&on["key"], &json!(false)));
    let (_, next) = world.http(&by, "POST", "/v1/autolock/rotate", "").await;
    assert!(next["key"] != on["key"] && next["version"].as_u64() > on["version"].as_u64(), "{next}");
    let (_, key) = world.http(&by, "GET", "/v1/autolock/key", "").await;
    assert_eq!((&key["key"], &key["changed"]), (&next["key"], &Value::Null));
    let former = format!("/v1/autolock/key?version={}", on["version"]);
    assert_eq!(world.http(&by, "GET", &former, "").await.1["key"], on["key"]);
    assert_eq!(world.http(&by, "GET", "/v1/autolock/key?version=3", "").await.0, 404);
    let (_, status) = world.http(&node(2), "GET", "/v1/autolock", "").await;
    assert_eq!((&status["enabled"], &status["version"]), (&json!(true), &next["version"]), "{status}");
    assert!(!status.to_string().contains(key["key"].as_str().unwrap()));
    let (_, off) = world.http(&by, "POST", "/v1/autolock/off", "").await;
    assert_eq!((&off["enabled"], &off["changed"]), (&json!(false), &json!(true)));
    assert_eq!(world.http(&by, "POST", "/v1/autolock/rotate", "").await.1["error"]["code"], "not_enabled");
}

#[tokio::test]
async fn only_operators_read_or_change_the_unlock_key() {
    let world = World::applying(tables());
    for caller in [Principal::Reader("eye".parse().unwrap()), node(2)] {
        for (method, target) in
            [("POST", "on"), ("POST", "off"), ("POST", "rotate"), ("GET", "key"), ("GET", "key?version=1")]
        {
            let (status, answer) = world.http(&caller, method, &format!("/v1/autolock/{target}"), "").await;
            assert_eq!((status, &answer["error"]["code"]), (403, &json!("forbidden")), "{method} {target}");
        }
    }
    assert!(world.proposed().is_empty());
}

#[tokio::test]
async fn daemon_that_is_not_locked_says_so() {
    let world = World::applying(tables());
    for caller in [Principal::Operator, node(1)] {
        let (status, answer) = world.http(&caller, "POST", "/v1/unlock", r#"{"key":"x"}"#).await;
        assert_eq!((status, &answer["error"]["code"]), (409, &json!("not_locked")), "{answer}");
    }
    assert_eq!(world.http(&Principal::Operator, "POST", "/v1/unlock", "{}").await.0, 400, "no key");
}

#[tokio::test]
async fn autolock_needs_feature_level_3() {
    let mut older = tables();
    let cluster = older.cluster.as_mut().unwrap();
    std::sync::Arc::make_mut(cluster).feature_level = IDENTITY_LEVEL - 1;
    let world = World::with(older, |_, _| None);
    let (status, answer) = world.http(&Principal::Operator, "POST", "/v1/autolock/on", "").await;
    assert_eq!(status, 409, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("feature level 3"), "{answer}");
}

#[tokio::test]
async fn locked_daemon_serves_two_paths_over_http() {
    let mut world = World::applying(tables());
    world.service.ports_mut().locked = Some(std::sync::Arc::new(crate::locked::tests::Fixed));
    let by = Principal::Operator;
    assert_eq!(world.http(&by, "GET", "/livez", "").await.0, 200);
    let (status, locked) = world.http(&by, "GET", "/v1/status", "").await;
    assert_eq!((status, &locked["locked"], &locked["version"]), (200, &json!(true), &json!(418)), "{locked}");
    for (method, target) in [
        ("GET", "/v1/nodes"),
        ("GET", "/v1/autolock/key"),
        ("GET", "/v1/status/"),
        ("POST", "/v1/unlock/now"),
        ("GET", "/v1/openapi.json"),
        ("GET", "/api/v1/namespaces/default/configmaps"),
        ("GET", "/nothing"),
    ] {
        let (status, answer) = world.http(&by, method, target, "").await;
        assert_eq!((status, &answer["error"]["code"]), (503, &json!("locked")), "{method} {target}: {answer}");
        assert_eq!(answer["error"]["details"], json!({"version": 418}), "{method} {target}");
    }
    let unlock = |key: &str| json!({ "key": key }).to_string();
    let (status, wrong) = world.http(&by, "POST", "/v1/unlock", &unlock("wrong")).await;
    assert_eq!(wrong["error"]["code"], "bad_unlock_key", "{status} {wrong}");
    let (status, right) = world.http(&by, "POST", "/v1/unlock", &unlock("right")).await;
    assert_eq!((status, &right["unlocked"]), (200, &json!(true)), "{right}");
    assert_eq!(world.proposed(), []);
}
