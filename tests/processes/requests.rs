//! Concurrent and successive requests, and the outcomes that they must have.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_messages::{Liveness, Membership, RaftId, Role};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;

use crate::harness::{EndedMuster, World, between_checks, eventually, eventually_so};
use crate::removal::removal_reason;
use crate::roles::{facts, four};

/// A number that the environment may raise: `MUSTER_FLIPS=100` for the long run.
fn at_least(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn raft(world: &World, by: &str) -> Value {
    world.muster_at(by, &["raft", "status"]).ended(0).json()
}

/// Two of three managers may leave: the refused one learns why, and is not demoted later, when it would be possible.
#[test]
#[ignore = "full tier"]
fn one_manager_remains_when_three_are_demoted_at_once() {
    let world = World::with(3, 1);
    let asking: Vec<_> = ["n1", "n2", "n3"]
        .map(|name| {
            let (folder, socket) = (world.folder().to_owned(), world.socket(name));
            std::thread::spawn(move || {
                let socket = socket.to_str().expect("the folder's path is text");
                let asked = ["--socket", socket, "-o", "json", "node", "demote", name, "--wait=300s"];
                (name, EndedMuster::new(&folder, &asked))
            })
        })
        .into_iter()
        .collect();
    let answers: Vec<(&str, EndedMuster)> =
        asking.into_iter().map(|client| client.join().expect("it has an answer")).collect();
    let refused: Vec<&(&str, EndedMuster)> = answers.iter().filter(|(_, ran)| ran.code != 0).collect();
    let [(stays, ran)] = refused[..] else { panic!("one of three is refused: {:?}", codes(&answers)) };
    assert_eq!(ran.code, 6, "{}", ran.stderr);
    assert!(["last_manager", "quorum_at_risk"].contains(&ran.error_code().as_str()), "{}", ran.stderr);
    for (name, _) in answers.iter().filter(|(name, _)| name != stays) {
        assert_eq!(facts(&world, stays, name), four("worker"));
    }
    // Now a demotion would be possible.
    world.muster_at(stays, &["node", "promote", "n4", "--wait=300s"]).ended(0);
    let again = world.muster_at(stays, &["node", "promote", stays]).ended(0).json();
    assert_eq!(again["changed"], false, "no demotion is pending");
    assert_eq!(facts(&world, stays, stays), four("manager"));
}

/// It blocks no command, and is not reported as a manager before it is one.
#[test]
#[ignore = "full tier"]
fn wait_for_down_node_prints_what_remains() {
    let mut world = World::with(1, 1);
    world.node("n2").kill();
    eventually_so("n2 is down", || world.seen("n1", "n2").is_some_and(|node| node.state == Liveness::Down));
    let promoted = world.muster(&["node", "promote", "n2", "--wait=300s"]).ended(0).json();
    assert_eq!((&promoted["changed"], &promoted["settled"]), (&true.into(), &false.into()));
    assert!(promoted["pending"].as_str().is_some_and(|why| why.starts_with("waiting_for_node: ")), "{promoted}");
    world.node("n2").start(&[]).ready();
    world.is_recorded_as_ready("n1", "n2");
    let now = world.muster(&["node", "promote", "n2", "--wait=300s"]).ended(0).json();
    assert_eq!((&now["changed"], &now["settled"], &now["pending"]), (&false.into(), &true.into(), &Value::Null));
}

fn codes(answers: &[(&str, EndedMuster)]) -> Vec<(String, i32)> {
    answers.iter().map(|(name, ran)| ((*name).to_owned(), ran.code)).collect()
}

/// A manager is demoted and promoted at random moments of the earlier change. `MUSTER_FLIPS=100 MUSTER_FLIP_GAP_MS=3000` is the long run.
#[test]
#[ignore = "full tier"]
fn random_role_flips_end_in_last_request_with_new_member_ids() {
    let mut world = World::with(3, 0);
    let seed: u64 = at_least("MUSTER_SEED", rand::random());
    println!("MUSTER_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let processes: Vec<i32> = ["n1", "n2", "n3"].map(|name| world.node(name).pid()).into();
    let mut member_ids: Vec<RaftId> = Vec::new();
    for _ in 0..at_least("MUSTER_FLIPS", 12) {
        let verb = if random.random_bool(0.5) { "promote" } else { "demote" };
        world.muster(&["node", verb, "n3"]).ended(0);
        let gap = Duration::from_millis(random.random_range(0..=at_least("MUSTER_FLIP_GAP_MS", 300)));
        let end = std::time::Instant::now() + gap;
        while std::time::Instant::now() < end {
            let member_id = world.seen("n1", "n3").and_then(|node| node.manager).map(|manager| manager.raft_id);
            member_ids.extend(member_id.filter(|member_id| member_ids.last() != Some(member_id)));
            between_checks();
        }
    }
    for (verb, role) in [("promote", "manager"), ("demote", "worker"), ("promote", "manager")] {
        world.muster(&["node", verb, "n3", "--wait=300s"]).ended(0);
        assert_eq!(facts(&world, "n1", "n3"), four(role));
        let member_id = world.seen("n1", "n3").and_then(|node| node.manager).map(|manager| manager.raft_id);
        member_ids.extend(member_id.filter(|member_id| member_ids.last() != Some(member_id)));
    }
    assert!(
        member_ids.is_sorted() && member_ids.iter().collect::<BTreeSet<_>>().len() == member_ids.len(),
        "no member id twice: {member_ids:?}"
    );
    let still: Vec<i32> = ["n1", "n2", "n3"].map(|name| world.node(name).pid()).into();
    assert!(world.node("n3").is_running() && still == processes, "no process has ended");
}

/// It is killed when it is a member without data. A learner has no vote, so no write waits for it.
#[test]
#[ignore = "full tier"]
fn learner_killed_before_catching_up_blocks_no_write() {
    let mut world = World::with(2, 1);
    let hang = world.folder().join("hang");
    world.node("n3").stop();
    world.node("n3").disk_hangs_while(&hang).start(&[]).ready();
    for round in 0..at_least("MUSTER_ROUNDS", 3) {
        std::fs::write(&hang, "").expect("the world's folder is writable");
        world.muster(&["node", "promote", "n3"]).ended(0);
        eventually("it is a member without data", || {
            world.seen("n1", "n3").filter(|node| node.membership == Membership::Learner)
        });
        world.node("n3").kill();
        let begun = std::time::Instant::now();
        world.muster(&["node", "update", "n1", "--label-add", &format!("round={round}")]).ended(0);
        println!("a write {:?} after the learner was killed", begun.elapsed());
        std::fs::remove_file(&hang).expect("it was there");
        world.node("n3").start(&[]).ready();
        eventually("it returns and votes", || {
            world.seen("n1", "n3").filter(|node| node.membership == Membership::Voter)
        });
        world.muster(&["node", "demote", "n3", "--wait=300s"]).ended(0);
    }
}

/// Removed by force while it was down, it returns with all its data, or without its log: either way it learns it, stops its manager runtime,
/// and causes no new term.
#[test]
#[ignore = "full tier"]
fn returning_removed_manager_is_informed_and_harmless() {
    for loses_its_log in [false, true] {
        let mut world = World::with(3, 0);
        let leader = world.leader_seen_by("n1");
        let removed = world.other_than(&[&leader]);
        world.node(&removed).kill();
        eventually_so("it is down", || world.seen(&leader, &removed).is_some_and(|node| node.state == Liveness::Down));
        world.muster_at(&leader, &["node", "rm", &removed, "--force"]).ended(0);
        let before = raft(&world, &leader);
        if loses_its_log {
            std::fs::remove_dir_all(world.node(&removed).folder.join("raft")).expect("its log was there");
        }
        world.node(&removed).start(&[]);
        let reason = eventually("it learns the reason", || removal_reason(&world, &removed));
        assert!(["blocked", "removed"].contains(&reason.as_str()), "{reason}");
        eventually_so("its manager runtime has stopped", || {
            let tree = world.muster_at(&removed, &["actors"]);
            tree.code == 0 && !tree.stdout.contains("node/manager/raft-member")
        });
        let after = raft(&world, &leader);
        assert_eq!(
            (&before["term"], &before["leader"]),
            (&after["term"], &after["leader"]),
            "term and leader are unchanged"
        );
        world.node(&removed).stop();
        let node = world.node(&removed).start(&[]);
        assert_eq!(node.exit(), Some(6), "{}", node.log());
    }
}

/// One change after the other, each through the current leader.
#[test]
#[ignore = "full tier"]
fn leader_is_demoted_and_promoted_again_around_a_removal() {
    let world = World::with(3, 2);
    let old = world.leader_seen_by("n1");
    let by = world.other_than(&[&old, "n4", "n5"]);
    world.muster_at(&by, &["node", "demote", &old, "--wait=300s"]).ended(0);
    world.muster_at(&by, &["node", "rm", "n5", "--force"]).ended(0);
    world.muster_at(&by, &["node", "promote", &old, "--wait=300s"]).ended(0);
    assert_eq!(facts(&world, &by, &old), four("manager"));
    assert!(world.seen(&by, "n5").is_none());
    let members = world.nodes_seen_by(&by).iter().filter(|node| node.role == Role::Manager).count();
    assert_eq!((members, raft(&world, &by)["members"].as_array().map(Vec::len)), (3, Some(3)));
}

/// Membership changes run one at a time; the second request waits and is not refused.
#[test]
#[ignore = "full tier"]
fn two_workers_promoted_at_once_both_become_voters() {
    let world = World::with(1, 2);
    let asking = ["n2", "n3"].map(|name| {
        let (folder, socket) = (world.folder().to_owned(), world.socket("n1"));
        std::thread::spawn(move || {
            let socket = socket.to_str().expect("the folder's path is text");
            EndedMuster::new(&folder, &["--socket", socket, "-o", "json", "node", "promote", name, "--wait=300s"])
        })
    });
    for client in asking {
        client.join().expect("it has an answer").ended(0);
    }
    for name in ["n2", "n3"] {
        assert_eq!(facts(&world, "n1", name), four("manager"));
    }
}

/// A new leader has no reports yet: it must not take a live worker for one that is down.
#[test]
#[ignore = "full tier"]
fn new_leader_does_not_remove_live_worker_without_force() {
    let mut world = World::with(3, 1);
    let old = world.leader_seen_by("n1");
    let by = world.other_than(&[&old, "n4"]);
    world.node(&old).kill();
    eventually_so("the new leader reports that it is up", || {
        let ran = world.muster_at(&by, &["node", "rm", "n4"]);
        assert_ne!(ran.code, 0, "it lives: {}", ran.stdout);
        ran.error_code() == "node_not_down"
    });
    assert_eq!(world.seen(&by, "n4").map(|node| node.state), Some(Liveness::Ready));
}
