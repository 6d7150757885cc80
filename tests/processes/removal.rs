//! Removed nodes, and that they can no longer do anything.

use muster_messages::Liveness;
use muster_messages::wire::{ActorsAsk, ActorsOf, Request};
use rustix::process::Signal;

use crate::harness::{World, eventually, eventually_so};

/// The reason given to a removed node's agent, from its own socket.
pub fn removal_reason(world: &World, name: &str) -> Option<String> {
    let ask = ActorsAsk::Inspect { path: "node/agent".to_owned() };
    let agent = world.ask(name, Request::Actors { node: ActorsOf::Here, ask }).ok()?;
    agent["view"]["trouble"]["reason"].as_str().map(str::to_owned)
}

#[test]
fn removed_worker_is_disconnected_and_never_returns() {
    let mut world = World::with(3, 1);
    let id = world.seen("n1", "n4").expect("n4 is a node").id;
    let refused = world.muster(&["node", "rm", "n4"]).ended(6);
    assert_eq!(refused.error_code(), "node_not_down", "it is up");
    world.muster(&["node", "rm", "n4", "--force"]).ended(0);
    let hosts = |world: &World| {
        let trees = ["n1", "n2", "n3"].map(|name| world.muster_at(name, &["actors"]).ended(0).stdout);
        trees.iter().any(|tree| tree.contains(&format!("session-{id}")))
    };
    // It runs and sends heartbeats, so only the block ends its session. The gateway's tests show how soon.
    eventually_so("no manager hosts its session", || !hosts(&world));
    for name in ["n1", "n2", "n3"] {
        assert!(world.seen(name, "n4").is_none(), "{name} no longer lists it");
        // By its own replica, which may be older than the leader's answers so far.
        eventually_so("it lists it as blocked", || {
            let blocked = world.muster_at(name, &["blocklist", "ls"]).ended(0).json();
            blocked["items"].as_array().is_some_and(|items| items.iter().any(|b| b["node_id"] == id.as_str()))
        });
    }
    eventually("it learns the reason", || removal_reason(&world, "n4"));
    let ran = world.muster_at("n4", &["node", "ls"]).ended(6);
    assert!(["blocked", "removed"].contains(&ran.error_code().as_str()), "{}", ran.stderr);
    world.node("n4").stop();
    let node = world.node("n4").start(&[]);
    assert_eq!(node.exit(), Some(6), "{}", node.log());
}

#[test]
#[ignore = "full tier"]
fn down_worker_is_removed_without_force() {
    let mut world = World::with(1, 1);
    world.node("n2").kill();
    eventually_so("n2 is down", || world.seen("n1", "n2").is_some_and(|node| node.state == Liveness::Down));
    world.muster(&["node", "rm", "n2"]).ended(0);
    assert!(world.seen("n1", "n2").is_none());
    // Its previous process did not learn it; this one does, and the next one exits at once.
    world.node("n2").start(&[]);
    eventually("it learns the reason", || removal_reason(&world, "n2"));
    world.node("n2").stop();
    let node = world.node("n2").start(&[]);
    assert_eq!(node.exit(), Some(6), "{}", node.log());
}

#[test]
#[ignore = "full tier"]
fn manager_removal_needs_demotion_or_force_when_down() {
    let mut world = World::with(3, 0);
    let leader = world.leader_seen_by("n1");
    let victim = world.other_than(&[&leader]);
    let refused = world.muster_at(&leader, &["node", "rm", &victim]).ended(6);
    assert_eq!(refused.error_code(), "demote_first");
    let before = world.muster_at(&leader, &["raft", "status"]).ended(0).json();
    world.node(&victim).kill();
    eventually_so("it is down", || world.seen(&leader, &victim).is_some_and(|node| node.state == Liveness::Down));
    world.muster_at(&leader, &["node", "rm", &victim, "--force"]).ended(0);
    let after = world.muster_at(&leader, &["raft", "status"]).ended(0).json();
    let members = |status: &serde_json::Value| status["members"].as_array().map_or(0, Vec::len);
    assert_eq!((members(&before), members(&after)), (3, 2));
    assert!(world.seen(&leader, &victim).is_none());
}

#[test]
#[ignore = "full tier"]
fn removed_frozen_worker_is_rejected_after_thaw() {
    let mut world = World::with(3, 1);
    world.node("n4").freeze();
    world.muster(&["node", "rm", "n4", "--force"]).ended(0);
    world.node("n4").signal(Signal::CONT);
    eventually("it learns the reason", || removal_reason(&world, "n4"));
    assert!(world.seen("n1", "n4").is_none());
}
