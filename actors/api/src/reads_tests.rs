use std::sync::Arc;
use std::time::Duration;

use muster_messages::wire::Request;
use muster_messages::*;
use tokio::time::{Instant, sleep};

use crate::tests::{World, leading, tables};

fn id() -> NodeId {
    NodeId::from_entropy(7)
}

fn with_node(desired_role: Role) -> Tables {
    let mut tables = tables();
    let node = NodeRecord { desired_role, ..NodeRecord::new(id(), "n7".parse().unwrap(), Role::Worker, WallTime(0)) };
    tables.nodes.insert(node.id, Arc::new(node));
    tables
}

fn watch(seen: u64) -> Request {
    Request::NodeWatch { node: "n7".to_owned(), seen, wait_ms: 250 }
}

#[tokio::test(start_paused = true)]
async fn watch_of_a_node_ends_with_its_change_or_its_time() {
    let world = World::with(with_node(Role::Worker), |_, _| Some(Ok(())));
    let began = Instant::now();
    let (_, first, _) = world.native(&Principal::Operator, watch(0)).await;
    assert_eq!((began.elapsed(), &first["node"]["desired_role"]), (Duration::ZERO, &"worker".into()));
    let seen = first["seen"].as_u64().unwrap();

    // Nothing of the node changes, although the state does.
    let elsewhere = async {
        sleep(Duration::from_millis(10)).await;
        let mut tables = with_node(Role::Worker);
        tables.revision = Revision(1_000);
        world.published.send_replace(leading(tables));
    };
    let ((_, same, _), ()) = tokio::join!(world.native(&Principal::Operator, watch(seen)), elsewhere);
    assert_eq!((began.elapsed(), &same), (Duration::from_millis(250), &first));

    let change = async {
        sleep(Duration::from_millis(10)).await;
        world.published.send_replace(leading(with_node(Role::Manager)));
    };
    let ((_, changed, _), ()) = tokio::join!(world.native(&Principal::Operator, watch(seen)), change);
    assert_eq!((began.elapsed(), &changed["node"]["desired_role"]), (Duration::from_millis(260), &"manager".into()));

    // A change between two requests is not missed.
    let (_, again, _) = world.native(&Principal::Operator, watch(seen)).await;
    assert_eq!((began.elapsed(), again), (Duration::from_millis(260), changed));
}

#[tokio::test(start_paused = true)]
async fn watch_of_an_unknown_node_is_refused_in_time() {
    let world = World::with(tables(), |_, _| Some(Ok(())));
    let (status, answer, _) = world.native(&Principal::Operator, watch(0)).await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (404, &"not_found".into()), "{answer}");
}
