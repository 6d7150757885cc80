//! S10, S14: every request that names a node, over every path, refuses an impossible node name as invalid.

use muster_messages::ManagerPreference;
use muster_messages::wire::{ActorsAsk, ActorsOf, AutopilotRequest};

use super::*;
use crate::tests::World;

/// Every request about a node, with this as its name.
fn requests(node: &str) -> Vec<Request> {
    let node = || node.to_owned();
    vec![
        Request::NodeInspect { node: node(), fresh: true },
        Request::NodeInspect { node: node(), fresh: false },
        Request::SetRole { node: node(), role: Role::Manager },
        Request::SetRole { node: node(), role: Role::Worker },
        Request::NodeRemove { node: node(), force: false },
        Request::NodeRemove { node: node(), force: true },
        Request::NodeUpdate { node: node(), add: Default::default(), remove: vec![], generation: None },
        Request::NodeMayStop { node: node() },
        Request::Autopilot(AutopilotRequest::Prefer { node: node(), preference: ManagerPreference::Never }),
        Request::Autopilot(AutopilotRequest::Drain { node: node(), for_ms: None, replace: false }),
        Request::Autopilot(AutopilotRequest::Undrain { node: node() }),
        Request::CertRotate { node: node() },
        Request::CertRevoke { node: node() },
        Request::TransferLeader { to: Some(node()) },
        Request::Actors { node: ActorsOf::Node(node()), ask: ActorsAsk::Tree },
        Request::Actors { node: ActorsOf::Node(node()), ask: ActorsAsk::Inspect { path: "node".to_owned() } },
        Request::Actors { node: ActorsOf::Node(node()), ask: ActorsAsk::Restart { path: "node/api".to_owned() } },
    ]
}

/// The same over HTTP: method, path with the encoded name, body.
fn calls(node: &str) -> Vec<(&'static str, String, String)> {
    let none = String::new;
    vec![
        ("GET", format!("/v1/nodes/{node}"), none()),
        ("GET", format!("/v1/nodes/{node}/may-stop"), none()),
        ("DELETE", format!("/v1/nodes/{node}"), none()),
        ("PATCH", format!("/v1/nodes/{node}"), "{}".to_owned()),
        ("POST", format!("/v1/nodes/{node}/promote"), none()),
        ("POST", format!("/v1/nodes/{node}/demote"), none()),
        ("POST", format!("/v1/nodes/{node}/manager-preference"), r#"{"preference":"never"}"#.to_owned()),
        ("POST", format!("/v1/nodes/{node}/drain"), none()),
        ("POST", format!("/v1/nodes/{node}/undrain"), none()),
        ("POST", format!("/v1/certificates/{node}/rotate"), none()),
        ("GET", format!("/v1/actors?node={node}"), none()),
        ("GET", format!("/v1/actors/node?node={node}"), none()),
        ("POST", format!("/v1/actors/node/api?action=restart&node={node}"), none()),
    ]
}

#[tokio::test]
async fn impossible_node_name_is_invalid_in_every_node_request() {
    let world = World::new();
    let long = "n".repeat(64);
    let wrong = [
        ("", ""),
        (" ", "%20"),
        ("\t", "%09"),
        ("n1 ", "n1%20"),
        ("n\u{0}1", "n%001"),
        ("n\n1", "n%0A1"),
        ("\u{a0}", "%C2%A0"),
    ];
    for (name, in_a_path) in wrong.into_iter().chain([(&*long, &*long)]) {
        for request in requests(name) {
            let (status, answer, proposed) = world.native(&Principal::Operator, request.clone()).await;
            assert_eq!((status.as_u16(), &answer["error"]["code"]), (400, &"invalid".into()), "{request:?}: {answer}");
            assert!(answer["error"]["message"].as_str().unwrap().contains("not a valid node reference"), "{answer}");
            assert_eq!(proposed, []);
        }
        for (method, target, body) in calls(in_a_path) {
            let (status, answer) = world.http(&Principal::Operator, method, &target, &body).await;
            assert_eq!((status, &answer["error"]["code"]), (400, &"invalid".into()), "{method} {target}: {answer}");
        }
        assert_eq!(world.proposed(), []);
    }
}

#[tokio::test]
async fn unused_valid_node_name_is_not_found() {
    let world = World::new();
    let longest = "n".repeat(63);
    for name in ["nobody", "n-1.example", &longest] {
        let inspect = Request::NodeInspect { node: name.to_owned(), fresh: true };
        let (status, answer, _) = world.native(&Principal::Operator, inspect).await;
        assert_eq!((status.as_u16(), &answer["error"]["code"]), (404, &"not_found".into()), "{name}: {answer}");
    }
    let (status, _) = world.http(&Principal::Operator, "GET", "/v1/nothing", "").await;
    assert_eq!(status, 404);
}
