//! A declared number of managers, with real processes.

use std::time::{Duration, Instant};

use muster_messages::{Liveness, Role};
use serde_json::Value;

use crate::api::http;
use crate::autolock::{file, key_of, restarted_locked, switched_on};
use crate::harness::{EndedMuster, World, eventually, eventually_so};

/// Managers 1 to 3 and two workers, declared to be three.
fn declared(settings: &[&str]) -> World {
    let world = World::with(3, 2);
    world.all_settled();
    world.muster(&[&["cluster", "set", "managers=3", "stabilize=5s"], settings].concat()).ended(0);
    world
}

fn state(world: &World, by: &str) -> Value {
    world.muster_insists_at(by, &["autopilot", "state"])
}

/// Why it waits.
fn reason(state: &Value) -> &str {
    word(&state["next"], "reason")
}

/// The changes that it made, oldest first: action and outcome.
fn changes(state: &Value) -> Vec<(&str, &str)> {
    let history = state["history"].as_array().expect("changes");
    history.iter().map(|change| (word(change, "action"), word(change, "outcome"))).collect()
}

fn word<'a>(of: &'a Value, key: &str) -> &'a str {
    of[key].as_str().unwrap_or_default()
}

/// What the leader sees of a manager.
fn manager(state: &Value, name: &str) -> Value {
    let managers = state["managers"].as_array().expect("managers");
    managers.iter().find(|manager| manager["name"] == name).cloned().unwrap_or_default()
}

/// For people: without `-o json`.
fn text(world: &World, by: &str, args: &[&str]) -> EndedMuster {
    let socket = world.socket(by).display().to_string();
    EndedMuster::new(world.folder(), &[&["--socket", socket.as_str(), "--timeout", "60s"], args].concat())
}

fn managers(world: &World, by: &str) -> Vec<String> {
    let nodes = world.nodes_seen_by(by).into_iter().filter(|node| node.role == Role::Manager);
    nodes.map(|node| node.name.to_string()).collect()
}

#[test]
#[ignore = "full tier"]
fn dead_manager_is_replaced_and_returns_as_a_worker() {
    let mut world = declared(&["replace-after=1m"]);
    world.node("n3").kill();
    eventually_so("it reports that it waits", || reason(&state(&world, "n1")) == "not_dead_yet");
    let replaced = eventually("three managers answer", || {
        Some(state(&world, "n1")).filter(|state| state["answering"] == 3 && reason(state) == "content")
    });
    assert_eq!(changes(&replaced), [("demote", "settled"), ("promote", "settled")], "{replaced}");
    assert_eq!(replaced["history"][0]["node"], replaced["history"][1]["for"], "{replaced}");
    world.node("n3").start(&[]);
    eventually_so("it returns as a worker", || {
        world.seen("n1", "n3").is_some_and(|node| node.role == Role::Worker && node.state == Liveness::Ready)
    });
    eventually_so("it is a candidate", || {
        let all = state(&world, "n1")["candidates"].as_array().cloned().unwrap_or_default();
        all.iter().any(|candidate| candidate["name"] == "n3" && candidate["rank"].is_u64())
    });
    assert_eq!(managers(&world, "n1").len(), 3);
    let events = text(&world, "n1", &["events", "--kind", "role"]).ended(0).stdout;
    assert!(events.contains("autopilot: promote: 2 of 3 declared managers"), "{events}");
}

#[test]
#[ignore = "full tier"]
fn declared_number_is_explained_paused_and_withdrawn() {
    let world = World::with(1, 1);
    let socket = world.socket("n1").display().to_string();
    let muster = |args: &[&str]| EndedMuster::new(world.folder(), &[&["--socket", &socket], args].concat());
    let nothing = muster(&["autopilot", "state"]).ended(0).stdout;
    assert!(nothing.contains("roles are changed by operators only"), "{nothing}");
    let refused = muster(&["cluster", "set", "managers=4"]).ended(2).stderr;
    assert!(refused.contains("declare 1, 3, 5 or 7"), "{refused}");
    assert!(muster(&["cluster", "set", "shrink=true"]).ended(2).stderr.contains("say how many managers"));
    assert!(muster(&["autopilot", "pause"]).ended(8).stderr.contains("nothing to pause"));
    let preview = muster(&["cluster", "set", "managers=3", "--dry-run"]).ended(0).stdout;
    assert!(preview.contains("would declare 3 managers"), "{preview}");
    assert!(muster(&["autopilot", "state"]).ended(0).stdout.contains("operators only"), "a preview changes nothing");
    let set = muster(&["cluster", "set", "managers=3", "stabilize=5s"]).ended(0).stdout;
    assert!(set.contains("declared: 3 managers") && set.contains("root key"), "{set}");
    // One worker makes no pair.
    eventually_so("it says why nothing happens", || {
        muster(&["autopilot", "state"]).ended(0).stdout.contains("no_pair")
    });
    for preview in [&[][..], &["--dry-run"]] {
        let args = [&["cluster", "set", "managers=5", "--generation", "7"], preview].concat();
        assert!(muster(&args).ended(8).stderr.contains("generation 1"));
    }
    assert!(muster(&["autopilot", "state"]).ended(0).stdout.contains("(generation 1)"));
    muster(&["node", "update", "n2", "--manager", "never"]).ended(0);
    let unused = muster(&["node", "update", "n2", "--manager", "allow", "--generation", "1"]).ended(2).stderr;
    assert!(unused.contains("--generation applies only to labels"), "{unused}");
    let explained = muster(&["autopilot", "explain", "n2"]).ended(0).stdout;
    assert!(explained.contains("never") && !explained.contains("n1"), "{explained}");
    let manager = muster(&["autopilot", "explain", "n1"]).ended(0).stdout;
    assert!(manager.contains("n1") && !manager.contains("no workers"), "{manager}");
    assert!(muster(&["autopilot", "explain", "n9"]).ended(4).stderr.contains("no node"));
    let target = "/v1/autopilot?dry_run=true";
    assert_eq!(http(&world.socket("n1"), "DELETE", target, "", "").status, 400, "it would not be a preview");
    let paused = muster(&["autopilot", "pause", "--why", "moving racks"]).ended(0).stdout;
    assert!(paused.contains("(paused)"), "{paused}");
    assert!(muster(&["autopilot", "state"]).ended(0).stdout.contains("moving racks"));
    muster(&["autopilot", "resume"]).ended(0);
    assert!(muster(&["cluster", "set", "managers=off"]).ended(0).stdout.contains("operators only"));
}

/// Case 13 of docs/autopilot.md. Each manager is away for much longer than `replace-after`: without a drain it would be replaced.
#[test]
#[ignore = "full tier"]
fn rolling_restart_with_drains_replaces_nothing() {
    const AWAY: Duration = Duration::from_secs(12);
    let mut world = declared(&["replace-after=2s"]);
    for name in ["n2", "n3", "n1"] {
        let by = world.other_than(&[name, "n4", "n5"]);
        world.muster_at(&by, &["node", "drain", name, "--for", "1h"]).ended(0);
        eventually_so("another manager leads", || world.leader_seen_by(&by) != name);
        world.node(name).stop();
        let down = || Some(state(&world, &by)).filter(|state| !manager(state, name)["down_since"].is_null());
        eventually("the leader sees that it is down", down);
        let since = Instant::now();
        eventually_so("it is away for long enough", || {
            let seen = state(&world, &by);
            assert!(changes(&seen).is_empty(), "{seen}");
            since.elapsed() > AWAY && reason(&seen) == "not_dead_yet" && !manager(&seen, name)["down_since"].is_null()
        });
        world.node(name).start(&[]).ready();
        eventually_so("the leader sees that it is back", || {
            let seen = manager(&state(&world, &by), name);
            seen["answers"] == true && seen["down_since"].is_null()
        });
        world.muster_at(&by, &["node", "undrain", name]).ended(0);
    }
    let restarted = eventually("all are back", || Some(state(&world, "n1")).filter(|state| reason(state) == "content"));
    assert!(changes(&restarted).is_empty(), "{restarted}");
    world.node("n3").kill();
    eventually_so("without a drain it is replaced", || {
        changes(&state(&world, "n1")).first() == Some(&("demote", "settled"))
    });
}

/// Case 34: a manager under autolock is restarted while it is drained, and waits for its key. The other managers see it down: it is not
/// replaced before the drain ends, then it is, and once it is unlocked it is a worker.
#[test]
#[ignore = "full tier"]
fn drained_manager_that_stays_locked_is_replaced() {
    const LOCKED: Duration = Duration::from_secs(12);
    let mut world = declared(&["replace-after=2s"]);
    let on = switched_on(&world);
    world.muster_at("n1", &["node", "drain", "n3", "--for", "1h"]).ended(0);
    eventually_so("another manager leads", || world.leader_seen_by("n1") != "n3");
    restarted_locked(&mut world, "n3", &[]);
    let down = || Some(state(&world, "n1")).filter(|state| !manager(state, "n3")["down_since"].is_null());
    eventually("the leader sees that it is down", down);
    let since = Instant::now();
    eventually_so("it is locked for long enough", || {
        let seen = state(&world, "n1");
        assert!(changes(&seen).is_empty(), "{seen}");
        since.elapsed() > LOCKED && reason(&seen) == "not_dead_yet"
    });
    world.muster_at("n1", &["node", "undrain", "n3"]).ended(0);
    let replaced = eventually("three managers answer", || {
        Some(state(&world, "n1")).filter(|state| state["answering"] == 3 && reason(state) == "content")
    });
    assert_eq!(changes(&replaced), [("demote", "settled"), ("promote", "settled")], "{replaced}");
    let key = file(&world, "key", key_of(&on));
    world.muster_at("n3", &["unlock", "--key-file", &key]).ended(0);
    eventually_so("it returns as a worker", || {
        world.seen("n1", "n3").is_some_and(|node| node.role == Role::Worker && node.state == Liveness::Ready)
    });
}

/// Without a declared number: a drain changes no role by itself.
#[test]
#[ignore = "full tier"]
fn drained_leader_hands_leadership_over() {
    let world = World::with(3, 1);
    world.all_settled();
    world.make_lead("n1");
    let refused = text(&world, "n2", &["node", "drain", "n1", "--replace"]).ended(8).stderr;
    assert!(refused.contains("nothing would take its place"), "{refused}");
    let drained = text(&world, "n2", &["node", "drain", "n1", "--for", "1h"]).ended(0).stdout;
    assert!(drained.starts_with("n1 is drained until "), "{drained}");
    eventually_so("another manager leads", || {
        let leads = |name: &str| world.seen("n2", name).and_then(|node| node.manager).is_some_and(|it| it.leader);
        leads("n2") || leads("n3")
    });
    let listed = text(&world, "n2", &["node", "ls"]).ended(0).stdout;
    assert!(listed.contains("(drained)"), "{listed}");
    let shown = world.muster_at("n2", &["node", "inspect", "n1"]).ended(0).json();
    assert_eq!(shown["conditions"][0]["reason"], "drained", "{shown}");
    let ended = text(&world, "n2", &["node", "undrain", "n1"]).ended(0).stdout;
    assert_eq!(ended, "n1 is not drained\n");
    assert!(!text(&world, "n2", &["node", "ls"]).ended(0).stdout.contains("(drained)"));
    assert_eq!(managers(&world, "n2").len(), 3);
}
