//! Node names, who sets them, and commands that must affect the intended node.

use std::process::Command;

use muster_messages::{Liveness, Role, WaitReason};

use crate::harness::{MUSTERD, World, eventually, eventually_so};

/// Starts a stopped node with exactly these name flags, or none.
fn restart_called(world: &mut World, node: &str, name: &[&str]) {
    let mut command = Command::new(MUSTERD);
    let folder = world.folder().join(node);
    let listen = world.node(node).listen.to_string();
    command.arg("--data-dir").arg(folder).args(["--listen", &listen]).args(name);
    world.node(node).spawn(command).ready();
}

#[test]
#[ignore = "full tier"]
fn restart_without_name_keeps_the_name() {
    let mut world = World::with(1, 1);
    world.node("n2").stop();
    restart_called(&mut world, "n2", &[]);
    let reports = |world: &World| world.muster(&["node", "inspect", "n2"]).ended(0).json();
    // Its record may still be that of its last process, with a lost connection.
    world.is_recorded_as_ready("n1", "n2");
    eventually_so("it calls itself n2", || reports(&world)["conditions"] == serde_json::json!([]));
}

#[test]
#[ignore = "full tier"]
fn only_operator_renames_a_node() {
    let mut world = World::with(1, 1);
    let id = world.seen("n1", "n2").expect("n2 is a node").id;
    world.node("n2").stop();
    restart_called(&mut world, "n2", &["--name", "db-1"]);
    // The name of a future machine: an operator who promotes db-1 does not mean this node.
    let node = eventually("the other name is a condition", || {
        let node = world.seen("n1", "n2")?;
        node.conditions.iter().any(|c| c.reason == WaitReason::ReportedNameDiffers).then_some(node)
    });
    assert_eq!((node.id, node.name.as_str()), (id, "n2"));
    assert_eq!(world.muster(&["node", "promote", "db-1"]).ended(4).error_code(), "not_found");

    let renamed = world.muster(&["node", "rename", "n2", "db-1"]).ended(0).json();
    assert_eq!(
        (&renamed["before"], &renamed["name"], &renamed["changed"]),
        (&"n2".into(), &"db-1".into(), &true.into())
    );
    let node = world.seen("n1", "db-1").expect("it has that name now");
    assert!(node.id == id && node.conditions.is_empty(), "{node:?}");
    assert_eq!(world.muster(&["node", "rename", "db-1", "n1"]).ended(8).error_code(), "conflict");
    let short = &id.as_str()[..5];
    assert_eq!(world.muster(&["node", "rm", short, "--force"]).ended(2).error_code(), "invalid");
    let removed = world.muster(&["node", "rm", &id.as_str()[..8], "--force"]).ended(0).json();
    assert_eq!((&removed["node"], &removed["name"]), (&id.as_str().into(), &"db-1".into()));
    assert!(removed["addr"].is_string() && removed["member_since"].is_string(), "{removed}");
}

/// B15: after the first part of the command its node no longer led, and the second part was refused.
#[test]
#[ignore = "full tier"]
fn several_demotions_follow_leader_changes() {
    let world = World::with(3, 0);
    let leader = world.leader_seen_by("n1");
    let other = world.other_than(&[&leader]);
    let demoted = world.muster_at(&leader, &["node", "demote", &leader, &other]).ended(0).json();
    assert_eq!(demoted["items"].as_array().map(Vec::len), Some(2), "{demoted}");
    let last = world.other_than(&[&leader, &other]);
    eventually_so("one manager remains", || {
        let nodes = world.nodes_seen_by(&last);
        let managers: Vec<&str> = nodes.iter().filter(|n| n.role == Role::Manager).map(|n| n.name.as_str()).collect();
        managers == [last.as_str()]
    });
}

#[test]
#[ignore = "full tier"]
fn killed_node_shows_no_contact_before_it_is_down() {
    let mut world = World::with(1, 1);
    world.node("n2").kill();
    let state = eventually("it is without contact", || {
        let node = world.seen("n1", "n2")?;
        node.conditions.iter().any(|c| c.reason == WaitReason::NoContact).then_some(node.state)
    });
    assert_eq!(state, Liveness::Ready);
    eventually_so("it is down", || world.seen("n1", "n2").is_some_and(|n| n.state == Liveness::Down));
    assert!(world.seen("n1", "n2").is_some_and(|n| n.conditions.is_empty()));
}

#[test]
#[ignore = "full tier"]
fn leader_actors_are_reachable_from_follower_socket() {
    let world = World::with(3, 0);
    let leader = world.leader_seen_by("n1");
    let follower = world.other_than(&[&leader]);
    let path = "node/manager/leader/role-manager";
    let seen = world.muster_insists_at(&follower, &["actors", "inspect", path]);
    assert_eq!((&seen["node_name"], &seen["kind"]), (&leader.as_str().into(), &"RoleManager".into()));
    let root = world.muster_at(&follower, &["actors", "inspect", "node"]).ended(0).json();
    assert_eq!((&root["node_name"], root["view"].is_object()), (&follower.as_str().into(), true), "{root}");
    let missed = world.muster_at(&follower, &["actors", "inspect", path, "--node", &follower]).ended(4);
    assert!(missed.stderr.contains(&format!("the leader is {leader}")), "{}", missed.stderr);
    let all = world.muster(&["actors", "--all"]).ended(0).json();
    let names: Vec<&str> = all["items"].as_array().into_iter().flatten().filter_map(|i| i["name"].as_str()).collect();
    assert_eq!(names, ["n1", "n2", "n3"]);
}
