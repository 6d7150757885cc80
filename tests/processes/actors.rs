//! The live tree, and crashes of actors in it.

use std::collections::BTreeMap;

use muster_messages::Role;
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{SLOW_HEARTBEAT, World, Writer, assert_kept, eventually, eventually_so};

/// Every actor of a tree by path.
fn by_path(root: &Value) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    let mut open = vec![root.clone()];
    while let Some(mut actor) = open.pop() {
        if let Some(children) = actor["children"].as_array_mut() {
            open.append(children);
        }
        all.insert(actor["path"].as_str().expect("an actor has a path").to_owned(), actor);
    }
    all
}

/// Every actor of a node by path, from its own socket.
pub fn tree(world: &World, name: &str) -> BTreeMap<String, Value> {
    by_path(&world.muster_at(name, &["actors"]).ended(0).json())
}

#[test]
fn actors_are_separate_and_inspectable() {
    let world = World::with(3, 2);
    let leader = world.leader_seen_by("n1");
    let actors = tree(&world, &leader);
    let kinds: Vec<&str> = actors.values().filter_map(|actor| actor["kind"].as_str()).collect();
    for kind in ["RoleManager", "RaftMember", "CertAuthority", "Blocklist"] {
        assert_eq!(kinds.iter().filter(|k| **k == kind).count(), 1, "{kind}: {kinds:?}");
    }
    // A replaced session may still be ending.
    eventually_so("each connected node has one session, on some manager", || {
        let all = world.muster(&["actors", "--all"]).ended(0).json();
        let roots = all["items"].as_array().expect("a tree per node");
        assert_eq!(roots.len(), 5);
        let is_session = |actor: &Value| actor["kind"] == "AgentSession";
        roots.iter().map(|item| by_path(&item["root"]).values().filter(|a| is_session(a)).count()).sum::<usize>() == 5
    });
    let path = "node/manager/leader/role-manager";
    let one = world.muster_insists(&["actors", "inspect", path, "--node", "leader"]);
    assert!(one["view"]["pending_reconciliation"].is_array() && one["view"]["pending_removal"].is_array(), "{one}");
    let missing = world.muster(&["actors", "inspect", "node/nobody"]).ended(4);
    assert_eq!(missing.error_code(), "not_found");
}

/// Crashes an actor in each way; every other subtree must keep its incarnations.
fn crashed(path: &str) {
    let world = World::with(3, 1);
    let leader = world.leader_seen_by("n1");
    let node = world.seen("n1", "n1").expect("n1 is a node").id;
    let writer = Writer::start(["n1", "n2", "n3"].map(|name| world.socket(name)).to_vec(), node);
    for how in ["panic", "error", "kill"] {
        // A new leader's own actors follow a moment after its election.
        let (now, before, old) = eventually("the actor runs on the leader", || {
            let now = world.leader_seen_by("n1");
            let before = tree(&world, &now);
            let old = before.get(path).filter(|actor| actor["state"] == "healthy")?["incarnation"].as_u64()?;
            Some((now, before, old))
        });
        let written = writer.acknowledged();
        world.muster_at(&now, &["actors", "crash", path, "--how", how]).ended(0);
        let holder = eventually("the tree is healthy again", || {
            // A crash of a Raft member may move leadership, and with it the leader's actors.
            let holder = if path.contains("/leader/") { world.leader_seen_by("n1") } else { now.clone() };
            let actor = tree(&world, &holder).remove(path)?;
            let reborn = holder != now || actor["incarnation"].as_u64() > Some(old);
            (reborn && actor["state"] == "healthy").then_some(holder)
        });
        eventually_so("writes continue", || writer.acknowledged() > written + 20);
        if holder == now {
            let after = tree(&world, &now);
            for (other, actor) in before.iter().filter(|(other, _)| is_outside_manager_runtime(path, other)) {
                let incarnation = after.get(other).map(|actor| &actor["incarnation"]);
                assert_eq!(
                    incarnation,
                    Some(&actor["incarnation"]),
                    "{other} restarted when {path} was crashed by {how}"
                );
            }
        }
    }
    let acknowledged = writer.stop();
    assert_kept(&acknowledged, &world.seen(&leader, "n1").expect("n1 is a node"));
    world.muster(&["node", "promote", "n4", "--wait=300s"]).ended(0);
}

/// The subtrees outside the manager runtime, which its failures must not affect.
fn is_outside_manager_runtime(path: &str, other: &str) -> bool {
    let outside_runtime = ["node/gateway", "node/agent", "node/api"].iter().any(|top| other.starts_with(top));
    let beside = path.contains("/leader/")
        && ["node/manager/mesh", "node/manager/raft-member", "node/manager/blocklist"].contains(&other);
    outside_runtime || beside
}

#[test]
#[ignore = "full tier"]
fn crashed_role_manager_recovers_under_load() {
    crashed("node/manager/leader/role-manager");
}

#[test]
#[ignore = "full tier"]
fn crashed_raft_member_recovers_under_load() {
    crashed("node/manager/raft-member");
}

#[test]
fn pending_work_survives_the_crash_of_its_role_manager() {
    let mut world = World::with_settings(SLOW_HEARTBEAT, 3, 1);
    world.node("n4").freeze();
    world.muster(&["node", "promote", "n4"]).ended(0);
    let path = "node/manager/leader/role-manager";
    let pending = |world: &World| {
        let ran = world.muster(&["actors", "inspect", path, "--node", "leader"]);
        let actor = (ran.code == 0).then(|| ran.json())?;
        let queue = actor["view"]["pending_reconciliation"].as_array().map_or(0, Vec::len);
        (queue == 1).then(|| actor["incarnation"].as_u64())?
    };
    let before = eventually("the promotion is pending", || pending(&world));
    world.muster_at(&world.leader_seen_by("n1"), &["actors", "crash", path]).ended(0);
    eventually("the next incarnation keeps it pending", || pending(&world).filter(|now| *now > before));
    world.node("n4").signal(Signal::CONT);
    eventually_so("the next incarnation completes it", || {
        world.seen("n1", "n4").is_some_and(|n| n.role == Role::Manager && n.manager.is_some())
    });
}

#[test]
#[ignore = "full tier"]
fn crash_requests_need_the_debug_setting() {
    let mut world = World::new();
    let (folder, listen) = (world.node("n1").folder.clone(), world.node("n1").listen.to_string());
    std::fs::create_dir_all(&folder).expect("the folder is writable");
    let mut command = std::process::Command::new(crate::harness::MUSTERD);
    command.arg("--data-dir").arg(&folder).args(["--listen", &listen, "--init"]);
    world.node("n1").spawn(command).ready();
    let refused = world.muster(&["actors", "crash", "node/agent"]).ended(6);
    assert_eq!(refused.error_code(), "forbidden");
}
