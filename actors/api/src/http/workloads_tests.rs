use muster_messages::{IDENTITY_LEVEL, Principal, RECONCILERS_LEVEL};
use serde_json::{Value, json};

use crate::tests::{World, node, tables};

async fn asked(world: &World, caller: &Principal, method: &str, target: &str, body: Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    world.http(caller, method, target, &body).await
}

fn world_at(level: u32) -> World {
    let mut tables = tables();
    if let Some(cluster) = &mut tables.cluster {
        std::sync::Arc::make_mut(cluster).feature_level = level;
    }
    World::applying(tables)
}

const WEB: &str = "/v1/workloads/shop/web";

#[tokio::test]
async fn workloads_are_set_listed_and_removed_over_http() {
    let (world, by) = (world_at(IDENTITY_LEVEL), Principal::Operator);
    let entry = json!({
        "selectors": ["unix:uid:1000"], "node_labels": {"zone": "a"}, "ttl_ms": 600_000, "dns": ["web.example"],
        "hint": "internal", "jwt": true,
    });
    let (status, set) = asked(&world, &by, "PUT", WEB, entry.clone()).await;
    assert_eq!((status, &set["changed"], &set["ttl_ms"]), (200, &json!(true), &json!(600_000)), "{set}");
    assert!(set["spiffe_id"].as_str().unwrap().ends_with("/workload/shop/web"), "{set}");
    assert_eq!(set["created_by"], "the admin socket");
    let (_, again) = asked(&world, &by, "PUT", WEB, entry).await;
    assert_eq!((&again["changed"], &again["revision"]), (&json!(false), &set["revision"]));
    let (status, _) = asked(&world, &by, "PUT", "/v1/workloads/shop/db", json!({"selectors": ["unix:gid:7"]})).await;
    assert_eq!(status, 200);
    for reader in [by.clone(), Principal::Reader("eye".parse().unwrap()), node(2)] {
        let (_, list) = asked(&world, &reader, "GET", "/v1/workloads", Value::Null).await;
        let names: Vec<&str> = list["items"].as_array().unwrap().iter().map(|i| i["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["shop/db", "shop/web"]);
    }
    let (_, page) = asked(&world, &by, "GET", "/v1/workloads?limit=1", Value::Null).await;
    assert_eq!((page["items"].as_array().unwrap().len(), &page["continue"]), (1, &json!("shop/db")));
    let (_, page) = asked(&world, &by, "GET", "/v1/workloads?limit=1&continue=shop/db", Value::Null).await;
    assert_eq!((&page["items"][0]["name"], &page["continue"]), (&json!("shop/web"), &Value::Null));
    let (status, removed) = asked(&world, &by, "DELETE", WEB, Value::Null).await;
    assert_eq!((status, &removed["removed"]), (200, &json!(true)));
    let (status, gone) = asked(&world, &by, "DELETE", WEB, Value::Null).await;
    assert_eq!((status, &gone["error"]["code"]), (404, &json!("not_found")));
}

#[tokio::test]
async fn malformed_workloads_are_refused_over_http() {
    let (world, by) = (world_at(IDENTITY_LEVEL), Principal::Operator);
    for (target, entry) in [
        (WEB, json!({})),
        (WEB, json!({"selectors": []})),
        (WEB, json!({"selectors": ["unix:user:root"]})),
        (WEB, json!({"selectors": ["unix:uid:0"]})),
        (WEB, json!({"selectors": ["unix:uid:1"], "ttl_ms": 1000})),
        (WEB, json!({"selectors": ["unix:uid:1"], "dns": ["muster-manager"]})),
        (WEB, json!({"selectors": ["unix:uid:1"], "hint": "a\u{1b}[2J"})),
        (WEB, json!({"selectors": ["unix:uid:1"], "node_labels": {"a": "b\n"}})),
        (WEB, json!({"selectors": ["unix:uid:1"], "admin": true})),
        ("/v1/workloads/shop/we%20b", json!({"selectors": ["unix:uid:1"]})),
        ("/v1/workloads/shop/..%2f", json!({"selectors": ["unix:uid:1"]})),
    ] {
        let (status, answer) = asked(&world, &by, "PUT", target, entry.clone()).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("invalid")), "{target} {entry}: {answer}");
    }
    assert!(world.proposed().is_empty());
    let (status, set) = asked(&world, &by, "PUT", WEB, json!({"selectors": ["unix:uid:0"], "root": true})).await;
    assert_eq!((status, &set["changed"]), (200, &json!(true)), "{set}");
}

#[tokio::test]
async fn only_operators_change_workloads() {
    let world = world_at(IDENTITY_LEVEL);
    let workload = Principal::Workload("shop/web".parse().unwrap());
    let user = Principal::User("ann".parse().unwrap());
    for caller in [Principal::Reader("eye".parse().unwrap()), node(2), user.clone(), workload.clone()] {
        for (method, body) in [("PUT", json!({"selectors": ["unix:uid:1"]})), ("DELETE", Value::Null)] {
            assert_eq!(asked(&world, &caller, method, WEB, body).await.0, 403, "{caller} {method}");
        }
    }
    for caller in [user, workload] {
        assert_eq!(asked(&world, &caller, "GET", "/v1/workloads", Value::Null).await.0, 403, "{caller}");
    }
    assert!(world.proposed().is_empty());
}

#[tokio::test]
async fn workloads_need_the_feature_level() {
    let world = world_at(RECONCILERS_LEVEL);
    let set = asked(&world, &Principal::Operator, "PUT", WEB, json!({"selectors": ["unix:uid:1"]})).await;
    assert_eq!((set.0, &set.1["error"]["code"]), (409, &json!("gate_closed")), "{}", set.1);
}
