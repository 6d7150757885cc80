//! Role changes, checked by the four facts.

use muster_messages::{ErrorCode, Membership, NodeView, Role};
use rustix::process::Signal;
use serde_json::Value;

use self::walk::{Cast, WALK};
use crate::harness::{EndedMuster, SLOW_HEARTBEAT, World, eventually, eventually_so};

mod walk;

/// Desired role, role, certificate and member id, as `node ls -o json` shows them. Without `--fresh` a replica may answer after a
/// second and a half.
pub fn facts(world: &World, by: &str, name: &str) -> (String, String, String, String) {
    let list = world.muster_at(by, &["node", "ls", "--fresh"]).ended(0).json();
    let items = list["items"].as_array().expect("items");
    let node = items.iter().find(|node| node["name"] == name).expect("the node is listed");
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    (text(&node["desired_role"]), text(&node["role"]), text(&node["certificate"]["role"]), text(&node["membership"]))
}

pub fn four(role: &str) -> (String, String, String, String) {
    let member_id = if role == "manager" { "voter" } else { "none" };
    (role.into(), role.into(), role.into(), member_id.into())
}

/// Promotes n4 as docs/walks/promotion.md describes it: the command is typed at the follower that hosts its session.
/// Compares the steps that the replicated state records of it with those at the end of the page.
fn walks_to_manager(world: &World, cast: &Cast) {
    let documented =
        WALK.split("```text\n").nth(1).and_then(|rest| rest.split("\n```").next()).expect("its last block");
    let (by, node) = (cast.name("h"), world.seen("n1", "n4").expect("it has joined").id.to_string());
    let before = world.muster_at(by, &["events"]).ended(0).json()["revision"].to_string();
    world.muster_at(by, &["node", "promote", "n4", "--wait=300s"]).ended(0);
    let events = world.muster_at(by, &["events", "--since", &before]).ended(0).json();
    // A certificate's serial says nothing of the walk.
    let fact = |value: &Value| {
        let words = value.as_str().unwrap_or("-").split(' ').filter(|word| word.len() < 32);
        words.collect::<Vec<_>>().join(" ")
    };
    let recorded: Vec<String> = (events["items"].as_array().into_iter().flatten())
        .filter(|event| event["node"] == node && event["kind"] != "liveness" && event["kind"] != "node")
        .map(|event| format!("{}: {} → {}", fact(&event["kind"]), fact(&event["before"]), fact(&event["after"])))
        .collect();
    assert_eq!(recorded.join("\n"), documented);
}

#[test]
fn promotion_records_the_steps_of_its_walk() {
    let world = World::with(3, 1);
    let cast = eventually("leader and host stay during a promotion", || {
        let cast = Cast::of(&world, "n4");
        walks_to_manager(&world, &cast);
        let stayed = cast.is_unchanged(&world);
        if !stayed {
            world.muster(&["node", "demote", "n4", "--wait=300s"]).ended(0);
        }
        stayed.then_some(cast)
    });
    cast.enter_every_actor_of_the_walk(&world);
}

#[test]
fn promote_demote_promote_settles_each_time() {
    let world = World::with(3, 1);
    let mut member_ids = Vec::new();
    for (verb, role) in [("promote", "manager"), ("demote", "worker"), ("promote", "manager")] {
        let done = world.muster(&["node", verb, "n4", "--wait=300s"]).ended(0).json();
        assert_eq!((&done["name"], &done["changed"]), (&"n4".into(), &true.into()), "{done}");
        assert_eq!(facts(&world, "n1", "n4"), four(role));
        member_ids.extend(world.seen("n1", "n4").and_then(|n| n.manager).map(|m| m.raft_id));
        let again = world.muster(&["node", verb, "n4"]).ended(0).json();
        assert_eq!(again["changed"], false, "no change");
    }
    assert!(member_ids[0] < member_ids[1], "a raft id is never reused: {member_ids:?}");
}

#[test]
fn demoted_leader_hands_over_and_becomes_worker() {
    let world = World::with(3, 0);
    let leader = world.leader_seen_by("n1");
    world.muster_at(&leader, &["node", "demote", &leader, "--wait=300s"]).ended(0);
    let by = world.other_than(&[&leader]);
    assert_ne!(world.leader_seen_by(&by), leader);
    assert_eq!(facts(&world, &by, &leader), four("worker"));
}

#[test]
#[ignore = "full tier"]
fn last_manager_cannot_be_demoted() {
    let world = World::with(1, 1);
    let refused = world.muster(&["node", "demote", "n1"]).ended(6);
    assert_eq!(refused.error_code(), "last_manager");
    assert_eq!(facts(&world, "n1", "n1"), four("manager"));
    let removal = world.muster(&["node", "rm", "n1", "--force"]).ended(6);
    assert!(["demote_first", "last_manager", "node_not_down"].contains(&removal.error_code().as_str()));
}

#[test]
#[ignore = "full tier"]
fn demotion_that_would_lose_quorum_is_refused() {
    // The quorum check depends on Raft's timing.
    let mut world = World::with_default_timing(3, 0);
    let leader = world.leader_seen_by("n1");
    let down = world.other_than(&[&leader]);
    let up = world.other_than(&[&leader, &down]);
    world.node(&down).kill();
    // On a busy machine the other one may be silent for an election timeout, and is named as well.
    let refused = eventually("the refusal names only the missing one", || {
        let refused = world.muster_at(&leader, &["node", "demote", &up]).ended(6);
        assert_eq!(refused.error_code(), "quorum_at_risk");
        let missing = refused.missing();
        assert!(missing.contains(&down), "{}", refused.stderr);
        (missing.len() == 1).then_some(refused)
    });
    assert!(refused.stderr.contains(&format!("missing: {down}")), "{}", refused.stderr);
    assert_eq!(world.seen(&leader, &up).map(|n| n.desired_role), Some(Role::Manager), "the desired role is unchanged");
    eventually_so("the leader reports it missing", || {
        world.seen(&leader, &down).and_then(|n| n.manager).is_some_and(|m| !m.reachable)
    });
    // Refused as well while the remaining manager is silent for an election timeout, as on a busy machine, and only then.
    eventually("the missing one may leave", || {
        let ran = world.muster_at(&leader, &["node", "demote", &down, "--wait=60s"]);
        let done = ran.done_unless(&[ErrorCode::QuorumAtRisk]);
        assert!(done.is_some() || ran.missing().iter().any(|name| *name != down), "{}", ran.stderr);
        done
    });
}

#[test]
#[ignore = "full tier"]
fn cluster_grows_from_one_manager_to_two_and_back() {
    let world = World::with(1, 1);
    world.muster(&["node", "promote", "n2", "--wait=300s"]).ended(0);
    assert_eq!(facts(&world, "n2", "n2"), four("manager"));
    world.muster(&["node", "demote", "n1", "--wait=300s"]).ended(0);
    assert_eq!(world.leader_seen_by("n2"), "n2");
    assert_eq!(facts(&world, "n2", "n1"), four("worker"));
}

#[test]
#[ignore = "full tier"]
fn alternating_role_changes_end_in_the_last_request() {
    let world = World::with(3, 1);
    for _ in 0..5 {
        world.muster(&["node", "promote", "n4"]).ended(0);
        world.muster(&["node", "demote", "n4"]).ended(0);
    }
    world.muster(&["node", "promote", "n4", "--wait=300s"]).ended(0);
    assert_eq!(facts(&world, "n1", "n4"), four("manager"));
    world.muster(&["node", "demote", "n4", "--wait=300s"]).ended(0);
    assert_eq!(facts(&world, "n1", "n4"), four("worker"));
}

#[test]
#[ignore = "full tier"]
fn frozen_node_is_pending_and_promoted_after_thaw() {
    let mut world = World::with_settings(SLOW_HEARTBEAT, 3, 1);
    world.node("n4").freeze();
    let gave_up = world.muster(&["node", "promote", "n4", "--wait=2s"]).ended(3);
    assert_eq!(gave_up.error_code(), "timed_out");
    let pending = |node: &NodeView| !node.conditions.is_empty();
    assert!(world.seen("n1", "n4").is_some_and(|node| pending(&node)), "the pending change has a reason");
    let socket = world.socket("n1");
    let asked = ["--socket", socket.to_str().expect("text"), "node", "promote", "n4", "--wait=6s"];
    let output = EndedMuster::new(world.folder(), &asked).ended(3).stderr;
    let said: Vec<&str> = output.lines().filter(|line| line.starts_with("n4: waiting_for_certificate: ")).collect();
    assert_eq!(said.len(), 1, "the reason is printed once: {output}");
    let waits = r#"muster_role_changes_pending{wants="manager",reason="waiting_for_certificate"} 1"#;
    eventually_so("the metric counts it by its reason", || {
        let leader = world.leader_seen_by("n1");
        world.metrics(&leader).lines().any(|line| line == waits)
    });
    world.node("n4").signal(Signal::CONT);
    eventually("the accepted request completes", || {
        world.seen("n1", "n4").filter(|node| node.membership == Membership::Voter)
    });
    // A new leader counts from zero.
    eventually_so("its duration is counted, and nothing is pending", || {
        world.muster(&["node", "demote", "n4", "--wait=300s"]).ended(0);
        let leader = world.leader_seen_by("n1");
        let metrics = world.metrics(&leader);
        world.muster(&["node", "promote", "n4", "--wait=300s"]).ended(0);
        let counted = metrics.contains(r#"muster_role_change_settle_seconds_count{wants="worker"} "#);
        counted && !metrics.contains("muster_role_changes_pending{")
    });
}

#[test]
#[ignore = "full tier"]
fn multi_node_command_returns_highest_exit_status() {
    let world = World::with(3, 2);
    let ran = world.muster(&["node", "promote", "n4", "nobody", "n5", "--wait=300s"]).ended(4);
    assert_eq!(ran.json()["items"].as_array().map(Vec::len), Some(2));
    assert_eq!(ran.error_code(), "not_found");
    assert_eq!((facts(&world, "n1", "n4"), facts(&world, "n1", "n5")), (four("manager"), four("manager")));
}
