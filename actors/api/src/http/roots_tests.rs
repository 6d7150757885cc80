use muster_messages::{Principal, Role};
use serde_json::{Value, json};

use crate::tests::{World, tables};

const ID: &str = "0123456789abcdef";

#[tokio::test(start_paused = true)]
async fn changes_of_roots_reach_the_leader_for_operators_only() {
    let world = World::new();
    let readers = [Principal::Reader("eye".parse().unwrap()), crate::tests::node(2)];
    let changes = ["rotate", "csr", "abort"].map(str::to_owned).into_iter();
    let steps = ["activate", "retire?force=true", "revoke"].map(|step| format!("roots/{ID}/{step}"));
    for change in changes.chain(steps) {
        let target = format!("/v1/ca/{change}");
        for reader in &readers {
            assert_eq!(world.http(reader, "POST", &target, "").await.0, 403, "{target}");
        }
        // The actor that rotates the roots does not run in this leader: the request got that far.
        let (status, answer) = world.http(&Principal::Operator, "POST", &target, "").await;
        let text = answer["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert_eq!(status, 503, "{target}: {answer}");
        assert!(!text.contains("no such path"), "{target}: {answer}");
    }
    for (method, target, body) in [
        ("POST", "/v1/ca/roots/0123/activate", ""),
        ("POST", "/v1/ca/roots/0123456789ABCDEF/revoke", ""),
        ("POST", "/v1/ca/rotate", r#"{"compromise":true}"#),
        ("POST", "/v1/ca/csr", r#"{"prepare":true}"#),
        ("POST", "/v1/ca/issued", r#"{"certificates":"PEM","compromised":true}"#),
    ] {
        assert_eq!(world.http(&Principal::Operator, method, target, body).await.0, 400, "{target} {body}");
    }
}

#[tokio::test]
async fn roots_are_listed_for_readers() {
    let (world, root) = with_root();
    for caller in [Principal::Operator, Principal::Reader("eye".parse().unwrap()), crate::tests::node(2)] {
        let (status, roots) = world.http(&caller, "GET", "/v1/ca/roots", "").await;
        assert_eq!((status, roots["items"].as_array().map(Vec::len)), (200, Some(1)), "{roots}");
        assert_eq!((&roots["phase"], &roots["target"]), (&json!("done"), &Value::Null));
        let (_, ca) = world.http(&caller, "GET", "/v1/ca", "").await;
        assert_eq!((&ca["pem"], &ca["digest"]), (&json!(root), &roots["items"][0]["digest"]));
        assert_eq!(ca["bundle"], ca["pem"], "there is one root");
    }
}

/// An issuing certificate lasts as long as the authority above likes.
#[tokio::test]
async fn status_shows_a_root_that_expires_within_a_week() {
    let lifetime = i64::try_from(muster_pki::ROOT_LIFETIME.as_millis()).unwrap();
    let now = muster_kernel::Clock.wall().0;
    for (days_left, shown) in [(8, false), (6, true), (-1, true)] {
        let made = muster_messages::WallTime(now - lifetime + days_left * 24 * 3_600_000);
        let (world, root) = with_root_since(made);
        let (_, status) = world.http(&Principal::Operator, "GET", "/v1/status", "").await;
        let expires = &status["root_expires"];
        assert_eq!(expires.is_object(), shown, "{days_left} days: {status}");
        if shown {
            let id = muster_pki::root_id_of_pem(&root).unwrap().to_string();
            assert_eq!((&expires["root"], &expires["origin"]), (&json!(id), &json!("founded")));
        }
    }
}

/// Before managers of an earlier release could be asked for something that they cannot read.
#[tokio::test]
async fn changes_of_roots_need_feature_level_3() {
    let mut older = tables();
    let cluster = older.cluster.as_mut().unwrap();
    std::sync::Arc::make_mut(cluster).feature_level = 2;
    let world = World::with(older, |_, _| None);
    let (status, answer) = world.http(&Principal::Operator, "POST", "/v1/ca/rotate", "").await;
    assert_eq!(status, 409, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("feature level 3"), "{answer}");
}

/// A demoted manager has known the key of the root, too.
#[test]
fn node_that_was_a_manager_is_known_by_its_certificates() {
    use muster_messages::{IssuedCertificate, NodeCertificates, NodeId, Revision, WallTime};
    let mut tables = tables();
    let id = NodeId::from_entropy(2);
    let knew = |tables: &muster_messages::Tables| crate::lead::was_manager(tables, &tables.nodes[&id]);
    let issued = |role| IssuedCertificate {
        serial: "a".to_owned(),
        role,
        granted: Some(Revision(1)),
        not_after: WallTime(0),
        pin: None,
        issuer: None,
    };
    let row = |previous| NodeCertificates {
        current: Some(issued(Role::Worker)),
        previous: Some(issued(previous)),
        ..NodeCertificates::default()
    };
    tables.certificates.insert(id, std::sync::Arc::new(row(Role::Worker)));
    assert!(!knew(&tables));
    tables.certificates.insert(id, std::sync::Arc::new(row(Role::Manager)));
    assert!(knew(&tables));
}

fn with_root() -> (World, String) {
    with_root_since(muster_messages::WallTime::from_unix_secs(1_700_000_000))
}

fn with_root_since(made: muster_messages::WallTime) -> (World, String) {
    let root = muster_pki::Root::create(muster_messages::ClusterId::from_entropy(1), made).unwrap();
    let mut tables = tables();
    let cluster = std::sync::Arc::make_mut(tables.cluster.as_mut().unwrap());
    cluster.root_cert_pem = root.cert_pem.clone();
    (World::with(tables, |_, _| None), root.cert_pem)
}
