//! Wishes that meet: several at once, one after the other, and the ends that they are held to.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_messages::{Liveness, Membership, RaftId, Role};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;

use crate::harness::{Ran, World, between_looks, eventually, eventually_so};
use crate::removal::its_reason;
use crate::roles::{facts, four};

/// A number that the environment may raise: `MUSTER_FLIPS=100` for the long run.
fn at_least(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn raft(world: &World, by: &str) -> Value {
    world.muster_at(by, &["raft", "status"]).ended(0).json()
}

/// Of three that go, two may: who is refused hears why, and is not demoted later, when there would be room.
#[test]
#[ignore = "full tier"]
fn of_three_managers_demoted_at_once_by_three_clients_one_stays_and_nothing_follows_later() {
    let world = World::with(3, 1);
    let asking: Vec<_> = ["n1", "n2", "n3"]
        .map(|name| {
            let (folder, socket) = (world.folder().to_owned(), world.socket(name));
            std::thread::spawn(move || {
                let socket = socket.to_str().expect("the folder's path is text");
                let asked = ["--socket", socket, "-o", "json", "node", "demote", name, "--wait=300s"];
                (name, Ran::new(&folder, &asked))
            })
        })
        .into_iter()
        .collect();
    let answers: Vec<(&str, Ran)> = asking.into_iter().map(|client| client.join().expect("it has an answer")).collect();
    let refused: Vec<&(&str, Ran)> = answers.iter().filter(|(_, ran)| ran.code != 0).collect();
    let [(stays, ran)] = refused[..] else { panic!("one of three is refused: {:?}", codes(&answers)) };
    assert_eq!(ran.code, 6, "{}", ran.stderr);
    assert!(["last_manager", "quorum_at_risk"].contains(&ran.error_code().as_str()), "{}", ran.stderr);
    for (name, _) in answers.iter().filter(|(name, _)| name != stays) {
        assert_eq!(facts(&world, stays, name), four("worker"));
    }
    // Now there is room.
    world.muster_at(stays, &["node", "promote", "n4", "--wait=300s"]).ended(0);
    let again = world.muster_at(stays, &["node", "promote", stays]).ended(0).json();
    assert_eq!(again["changed"], false, "nobody wishes it away");
    assert_eq!(facts(&world, stays, stays), four("manager"));
}

/// It holds nobody up, and nobody is told that it is a manager before it is one.
#[test]
#[ignore = "full tier"]
fn who_waits_for_a_node_that_is_down_hears_what_is_left_for_it_to_do() {
    let mut world = World::with(1, 1);
    world.node("n2").kill();
    eventually_so("n2 is down", || world.seen("n1", "n2").is_some_and(|node| node.state == Liveness::Down));
    let promoted = world.muster(&["node", "promote", "n2", "--wait=300s"]).ended(0).json();
    assert_eq!((&promoted["changed"], &promoted["settled"]), (&true.into(), &false.into()));
    assert!(promoted["pending"].as_str().is_some_and(|why| why.starts_with("waiting_for_node: ")), "{promoted}");
    world.node("n2").start(&[]).ready();
    let now = world.muster(&["node", "promote", "n2", "--wait=300s"]).ended(0).json();
    assert_eq!((&now["changed"], &now["settled"], &now["pending"]), (&false.into(), &true.into(), &Value::Null));
}

fn codes(answers: &[(&str, Ran)]) -> Vec<(String, i32)> {
    answers.iter().map(|(name, ran)| ((*name).to_owned(), ran.code)).collect()
}

/// A manager is demoted and promoted at random moments of the earlier change. `MUSTER_FLIPS=100 MUSTER_FLIP_GAP_MS=3000` is the long run.
#[test]
#[ignore = "full tier"]
fn random_flips_of_a_manager_end_in_the_last_wish_and_no_seat_comes_twice() {
    let mut world = World::with(3, 0);
    let seed: u64 = at_least("MUSTER_SEED", rand::random());
    println!("MUSTER_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let processes: Vec<i32> = ["n1", "n2", "n3"].map(|name| world.node(name).pid()).into();
    let mut seats: Vec<RaftId> = Vec::new();
    for _ in 0..at_least("MUSTER_FLIPS", 12) {
        let verb = if random.random_bool(0.5) { "promote" } else { "demote" };
        world.muster(&["node", verb, "n3"]).ended(0);
        let gap = Duration::from_millis(random.random_range(0..=at_least("MUSTER_FLIP_GAP_MS", 300)));
        let end = std::time::Instant::now() + gap;
        while std::time::Instant::now() < end {
            let seat = world.seen("n1", "n3").and_then(|node| node.manager).map(|manager| manager.raft_id);
            seats.extend(seat.filter(|seat| seats.last() != Some(seat)));
            between_looks();
        }
    }
    for (verb, role) in [("promote", "manager"), ("demote", "worker"), ("promote", "manager")] {
        world.muster(&["node", verb, "n3", "--wait=300s"]).ended(0);
        assert_eq!(facts(&world, "n1", "n3"), four(role));
        let seat = world.seen("n1", "n3").and_then(|node| node.manager).map(|manager| manager.raft_id);
        seats.extend(seat.filter(|seat| seats.last() != Some(seat)));
    }
    assert!(
        seats.is_sorted() && seats.iter().collect::<BTreeSet<_>>().len() == seats.len(),
        "no seat twice: {seats:?}"
    );
    let still: Vec<i32> = ["n1", "n2", "n3"].map(|name| world.node(name).pid()).into();
    assert!(world.node("n3").is_running() && still == processes, "no process has ended");
}

/// It is killed when it has its seat and not yet its data. A learner has no vote: nobody waits for it.
#[test]
#[ignore = "full tier"]
fn a_promoted_node_that_is_killed_before_it_has_caught_up_holds_up_no_write() {
    let mut world = World::with(2, 1);
    let hang = world.folder().join("hang");
    world.node("n3").stop();
    world.node("n3").disk_hangs_while(&hang).start(&[]).ready();
    for round in 0..at_least("MUSTER_ROUNDS", 3) {
        std::fs::write(&hang, "").expect("the world's folder is writable");
        world.muster(&["node", "promote", "n3"]).ended(0);
        eventually("it has a seat, and no data", || {
            world.seen("n1", "n3").filter(|node| node.membership == Membership::Learner)
        });
        world.node("n3").kill();
        let begun = std::time::Instant::now();
        world.muster(&["node", "update", "n1", "--label-add", &format!("round={round}")]).ended(0);
        println!("a write {:?} after the learner was killed", begun.elapsed());
        std::fs::remove_file(&hang).expect("it was there");
        world.node("n3").start(&[]).ready();
        eventually("it comes back and votes", || {
            world.seen("n1", "n3").filter(|node| node.membership == Membership::Voter)
        });
        world.muster(&["node", "demote", "n3", "--wait=300s"]).ended(0);
    }
}

/// Forced out while it was dead, it comes back with all its data, or without its log: either way it is told, stops its manager half,
/// and nobody's term moves.
#[test]
#[ignore = "full tier"]
fn a_removed_manager_that_comes_back_is_told_and_disturbs_nobody() {
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
        let reason = eventually("it is told", || its_reason(&world, &removed));
        assert!(["blocked", "removed"].contains(&reason.as_str()), "{reason}");
        eventually_so("its manager half is gone", || {
            let tree = world.muster_at(&removed, &["actors"]);
            tree.code == 0 && !tree.stdout.contains("node/manager/raft-member")
        });
        let after = raft(&world, &leader);
        assert_eq!((&before["term"], &before["leader"]), (&after["term"], &after["leader"]), "nobody was disturbed");
        world.node(&removed).stop();
        let node = world.node(&removed).start(&[]);
        assert_eq!(node.exit(), Some(6), "{}", node.log());
    }
}

/// One change after the other, each by way of whoever leads then.
#[test]
#[ignore = "full tier"]
fn a_leader_is_demoted_another_node_removed_and_the_old_leader_promoted_again() {
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

/// Membership changes are made one at a time; whoever asks second waits in line, and is not refused.
#[test]
#[ignore = "full tier"]
fn two_workers_promoted_at_once_by_two_clients_both_vote() {
    let world = World::with(1, 2);
    let asking = ["n2", "n3"].map(|name| {
        let (folder, socket) = (world.folder().to_owned(), world.socket("n1"));
        std::thread::spawn(move || {
            let socket = socket.to_str().expect("the folder's path is text");
            Ran::new(&folder, &["--socket", socket, "-o", "json", "node", "promote", name, "--wait=300s"])
        })
    });
    for client in asking {
        client.join().expect("it has an answer").ended(0);
    }
    for name in ["n2", "n3"] {
        assert_eq!(facts(&world, "n1", name), four("manager"));
    }
}

/// Who has just begun to lead has not heard from anybody: a worker that lives is not taken for one that is down.
#[test]
#[ignore = "full tier"]
fn a_live_worker_is_not_removed_without_force_by_whoever_leads_next() {
    let mut world = World::with(3, 1);
    let old = world.leader_seen_by("n1");
    let by = world.other_than(&[&old, "n4"]);
    world.node(&old).kill();
    eventually_so("whoever leads says that it lives", || {
        let ran = world.muster_at(&by, &["node", "rm", "n4"]);
        assert_ne!(ran.code, 0, "it lives: {}", ran.stdout);
        ran.error_code() == "node_not_down"
    });
    assert_eq!(world.seen(&by, "n4").map(|node| node.state), Some(Liveness::Ready));
}
