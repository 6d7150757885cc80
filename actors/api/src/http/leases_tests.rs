use muster_messages::Principal;
use serde_json::json;

use crate::tests::{World, node, tables};

#[tokio::test]
async fn leases_are_created_listed_and_deleted_over_http() {
    let world = World::applying(tables());
    let by = Principal::Operator;
    let lease = "/v1/leases/shop/cart";
    let (status, made) = world.http(&by, "POST", lease, r#"{"holder":"a","duration_ms":9000}"#).await;
    assert_eq!((status, &made["holder"], &made["lease_duration_ms"]), (200, &json!("a"), &json!(9000)), "{made}");
    let (status, again) = world.http(&by, "POST", lease, "").await;
    assert_eq!((status, &again["error"]["code"]), (409, &json!("conflict")), "{again}");
    let (_, shown) = world.http(&by, "GET", lease, "").await;
    assert_eq!((&shown["namespace"], &shown["name"], &shown["holder"]), (&json!("shop"), &json!("cart"), &json!("a")));
    assert_eq!(world.http(&by, "POST", "/v1/leases/other/free", "").await.1["holder"], json!(null));
    for (target, expected) in [("/v1/leases?namespace=shop", vec!["cart"]), ("/v1/leases?namespace=none", vec![])] {
        let (status, list) = world.http(&by, "GET", target, "").await;
        let names: Vec<&str> = list["items"].as_array().unwrap().iter().map(|l| l["name"].as_str().unwrap()).collect();
        assert_eq!((status, names), (200, expected), "{list}");
        assert!(list["revision"].is_number(), "{list}");
    }
    let all = world.http(&by, "GET", "/v1/leases", "").await.1;
    assert_eq!(all["items"].as_array().map(Vec::len), Some(3), "with that of the runner: {all}");
    let (status, gone) = world.http(&by, "DELETE", lease, "").await;
    assert_eq!((status, &gone["deleted"]), (200, &json!(true)), "{gone}");
    assert_eq!(world.http(&by, "DELETE", lease, "").await.0, 404);
    assert_eq!(world.http(&by, "GET", lease, "").await.0, 404);
    let (status, forced) = world.http(&by, "DELETE", "/v1/leases/other/free?force=true", "").await;
    assert_eq!((status, &forced["deleted"]), (200, &json!(true)), "{forced}");
}

#[tokio::test]
async fn lease_requests_over_http_have_the_commands_limits() {
    let world = World::applying(tables());
    let (operator, worker, user) = (Principal::Operator, node(2), Principal::User("ann".parse().unwrap()));
    for (caller, method, target, body, expected) in [
        (&operator, "POST", "/v1/leases/Not-A-Name/l", "", 400),
        (&operator, "POST", "/v1/leases/default/l", r#"{"duration_ms":1}"#, 400),
        (&operator, "POST", "/v1/leases/default/l", r#"{"holder":""}"#, 400),
        (&operator, "POST", "/v1/leases/default/l", r#"{"Holder":"a"}"#, 400),
        (&worker, "POST", "/v1/leases/shop/l", "", 403),
        (&worker, "DELETE", "/v1/leases/default/l?force=true", "", 403),
        (&user, "GET", "/v1/leases/default/l", "", 403),
        (&worker, "POST", "/v1/leases/default/l", "", 200),
        (&worker, "GET", "/v1/leases/default/l", "", 200),
    ] {
        let (status, answer) = world.http(caller, method, target, body).await;
        assert_eq!(status, expected, "{method} {target} {body} of {caller}: {answer}");
    }
}
