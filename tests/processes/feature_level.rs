//! Muster's own release gate: the feature level rises with the last manager, and an incompatible build is refused.

use std::time::{Duration, Instant};

use muster_messages::{Liveness, Membership, Role};
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{World, eventually, eventually_so};

/// Three managers with a build of feature level 2, all participating.
fn at_level_two() -> World {
    at_level_two_with("")
}

/// The same, with more keys of `[raft]`.
pub fn at_level_two_with(raft: &str) -> World {
    let mut world = World::new();
    world.settings += raft;
    for name in ["n1", "n2", "n3"] {
        world.node(name).set_feature_level(2);
    }
    world.node("n1").start(&["--init"]).ready();
    // So that joining nodes can be told from existing ones.
    for name in ["n2", "n3"] {
        let (seed, token) = (world.node("n1").listen.to_string(), world.token(Role::Manager));
        world.node(name).start(&["--join", &seed, "--token", &token]).ready();
    }
    world.all_settled();
    eventually_so("three managers participate", || {
        let status = status(&world, "n1");
        status["participants"]["serving"] == 3 && status["gate"]["reconciled"] == "2.0.0"
    });
    world
}

fn status(world: &World, at: &str) -> Value {
    let ran = world.muster_at(at, &["reconciler", "status", "feature-level"]);
    if ran.code == 0 { ran.json() } else { Value::Null }
}

pub fn level(world: &World, at: &str) -> u64 {
    let status = world.muster_at(at, &["status"]).ended(0).json();
    status["cluster"]["feature_level"].as_u64().expect("a level is a number")
}

/// Restarts a manager with another build.
pub fn becomes(world: &mut World, name: &str, level: u32) {
    world.node(name).stop();
    world.node(name).set_feature_level(level).start(&[]);
}

/// The reported blockers: the name of each node, whose id the member is, and since when it has served. Two starts of one node are
/// two members, which differ in that.
fn blockers(world: &World, at: &str) -> Vec<(String, String)> {
    let status = status(world, at);
    let nodes = world.nodes_seen_by(at);
    let blocker = |blocker: &Value| {
        let node = nodes.iter().find(|node| blocker["member"] == node.id.to_string())?;
        Some((node.name.to_string(), blocker["since"].to_string()))
    };
    let mut all: Vec<_> = status["blockers"].as_array().into_iter().flatten().filter_map(blocker).collect();
    all.sort();
    if status["reason"] == "blockers" { all } else { vec![] }
}

/// Their names.
fn in_the_way(world: &World, at: &str) -> Vec<String> {
    blockers(world, at).into_iter().map(|(name, _)| name).collect()
}

const LEVEL_MESSAGE: &str = "the cluster is at feature level 3, and";

/// What an operator sees of a refused manager: on its own socket, and at the others.
fn is_refused(world: &mut World, name: &str, by: &str) {
    eventually_so("it logs why", || world.nodes_log(name).contains(LEVEL_MESSAGE));
    eventually_so("its agent has a session", || {
        world.seen(by, name).is_some_and(|node| {
            let reported = node.conditions.iter().any(|c| c.message.contains(LEVEL_MESSAGE));
            node.state == Liveness::Ready && reported
        })
    });
    eventually_so("its own status shows why", || {
        let ran = world.muster_at(name, &["status"]);
        let own = if ran.code == 0 { ran.json() } else { Value::Null };
        let trouble = own["self"]["trouble"].as_str().unwrap_or_default();
        trouble.starts_with("feature_level_too_low: ") && trouble.contains(LEVEL_MESSAGE)
    });
    assert!(world.node(name).is_starting(), "it runs but is not ready");
}

#[test]
#[ignore = "full tier"]
fn feature_level_rises_and_older_build_is_refused() {
    let mut world = at_level_two();
    for (name, others) in [("n1", vec!["n2", "n3"]), ("n2", vec!["n3"])] {
        becomes(&mut world, name, 3);
        world.node(name).ready();
        eventually_so("the incompatible managers are named", || in_the_way(&world, "n1") == others);
        assert_eq!(level(&world, "n1"), 2);
    }
    becomes(&mut world, "n3", 3);
    world.node("n3").ready();
    eventually_so("the level is raised", || level(&world, "n3") == 3);
    let gate = eventually("the reconciler is idle", || Some(status(&world, "n1")).filter(|s| s["phase"] == "idle"));
    assert_eq!((&gate["gate"]["reconciled"], &gate["gate"]["floor"]), (&"3.0.0".into(), &"3.0.0".into()));
    let list = world.muster(&["reconciler", "history", "feature-level"]).ended(0).json();
    let entry = |g: &Value| format!("{} {} {}", g["state"], g["reconciled"], g["floor"]).replace('"', "");
    let reported: Vec<String> = list["history"].as_array().into_iter().flatten().map(entry).collect();
    assert_eq!(reported, ["done 2.0.0 2.0.0", "working 2.0.0 3.0.0", "done 3.0.0 3.0.0"]);

    becomes(&mut world, "n2", 2);
    is_refused(&mut world, "n2", "n1");
    let said = world.nodes_log("n2").matches("its manager runtime stops").count();
    assert_eq!(said, 1, "once: {}", world.nodes_log("n2"));
    becomes(&mut world, "n2", 3);
    world.node("n2").ready();
    eventually_so("the refusal is no longer reported", || {
        world.seen("n1", "n2").is_some_and(|node| node.conditions.is_empty() && node.membership == Membership::Voter)
    });

    let (seed, token) = (world.node("n1").listen.to_string(), world.token(Role::Manager));
    world.node("n4").set_feature_level(2).start(&["--join", &seed, "--token", &token]);
    is_refused(&mut world, "n4", "n1");
    assert_eq!(world.seen("n1", "n4").map(|node| node.membership), Some(Membership::None));
    becomes(&mut world, "n4", 3);
    world.node("n4").ready();
    world.all_settled();
}

#[test]
#[ignore = "full tier"]
fn absent_manager_with_old_build_stops_manager_runtime() {
    let mut world = at_level_two();
    for name in ["n1", "n2"] {
        becomes(&mut world, name, 3);
        world.node(name).ready();
    }
    eventually_so("the third manager blocks", || in_the_way(&world, "n1") == ["n3"]);
    world.node("n3").freeze();
    eventually_so("the level rises after its lease ended", || level(&world, "n1") == 3);
    world.node("n3").signal(Signal::CONT);
    eventually_so("it logs why", || world.nodes_log("n3").contains(LEVEL_MESSAGE));
    eventually_so("its agent keeps its session", || {
        world.seen("n1", "n3").is_some_and(|node| node.state == Liveness::Ready)
    });
    becomes(&mut world, "n3", 3);
    world.node("n3").ready();
    eventually_so("three managers participate", || status(&world, "n1")["participants"]["serving"] == 3);
}

/// The lease of a participant, when its manager stops, lasts at least this much longer.
const LEFT_OF_LEASE: Duration = Duration::from_secs(10);

/// The last manager of its level is restarted with the same build: the others wait for it as for a killed one,
/// and then it participates again.
#[test]
#[ignore = "full tier"]
fn last_manager_of_a_level_may_restart_in_time() {
    let mut world = at_level_two();
    for name in ["n1", "n2"] {
        becomes(&mut world, name, 3);
        world.node(name).ready();
    }
    let first = eventually("the third manager blocks", || {
        let blockers = blockers(&world, "n1");
        (blockers.len() == 1 && blockers[0].0 == "n3").then_some(blockers)
    });
    let stopped = Instant::now();
    becomes(&mut world, "n3", 2);
    // Its earlier start blocks as well, until its lease ends.
    let second_blocks = |world: &World| blockers(world, "n1").iter().any(|blocker| !first.contains(blocker));
    let participates = eventually("its second start blocks, or the level has risen", || {
        let second = second_blocks(&world);
        (second || level(&world, "n1") == 3).then_some(second)
    });
    let took = stopped.elapsed();
    if !participates {
        assert!(took > LEFT_OF_LEASE, "the level rose {took:?} after its stop");
        return;
    }
    eventually_so("only its second start blocks", || {
        let now = blockers(&world, "n1");
        assert_eq!(level(&world, "n1"), 2);
        now.len() == 1 && now[0].0 == "n3" && now != first
    });
}

#[test]
#[ignore = "full tier"]
fn builtin_reconciler_scope_is_reserved() {
    let world = World::with(1, 1);
    eventually_so("it participates", || status(&world, "n1")["participants"]["serving"] == 1);
    let file = world.folder().join("mine.toml");
    let text = "name = \"mine\"\nrelease = \"1.0.0\"\nscope = \"muster\"\nfloor = \"1.0.0\"\nobjects = []\n";
    std::fs::write(&file, text).expect("the world's folder is writable");
    let id = world.seen("n1", "n1").expect("n1 is a node").id.to_string();
    let member = format!("muster/{id}");
    for args in [
        &["reconciler", "apply", "-f", file.to_str().expect("text")][..],
        &["reconciler", "delete", "feature-level", "--yes"],
        &["reconciler", "delete", "feature-level", "--gate", "--yes"],
        &["reconciler", "force-floor", "feature-level", "9.0.0", "--yes-i-know"],
        &["member", "forget", &member],
        &["member", "drain", &member],
        &["wait-ready", "muster", "--release", "9.0.0", "--timeout", "20s"],
    ] {
        let refused = world.muster(args).ended(6);
        assert!(refused.stderr.contains("built in") || refused.stderr.contains("manager"), "{}", refused.stderr);
    }
    assert_eq!(status(&world, "n1")["participants"]["serving"], 1);
    world.muster(&["reconciler", "pause", "feature-level"]).ended(0);
    world.muster(&["reconciler", "resume", "feature-level"]).ended(0);
}
