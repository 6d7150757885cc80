//! `musterd` by hand, as the contract writes it.

use std::process::Command;

use muster_messages::wire::Request;
use muster_messages::{Membership, Role, WaitReason};
use rustix::process::Signal;

use crate::harness::{MUSTERD, Ran, World, eventually, eventually_so};

/// Seats as the cluster hands them out: node name to raft id.
fn raft_id(world: &World, by: &str, name: &str) -> Option<u64> {
    world.seen(by, name)?.manager.map(|manager| manager.raft_id.0)
}

#[test]
fn a_restart_keeps_node_id_and_raft_id_and_joins_no_second_time() {
    let mut world = World::new();
    let first = world.node("n1").start(&["--init"]).ready();
    assert_eq!(first.role, Role::Manager);
    let (nodes, seat) = (world.nodes_seen_by("n1").len(), raft_id(&world, "n1", "n1"));
    world.node("n1").stop();
    let again = world.node("n1").start(&["--init"]).ready();
    assert_eq!(again.node, first.node);
    world.node("n1").kill();
    let third = world.node("n1").start(&[]).ready();
    assert_eq!(third.node, first.node, "also without flags, also after kill -9");
    assert_eq!((world.nodes_seen_by("n1").len(), raft_id(&world, "n1", "n1")), (nodes, seat));
}

#[test]
#[ignore = "full tier"]
fn a_token_decides_what_a_node_becomes() {
    let world = World::with(2, 1);
    let seen = world.nodes_seen_by("n1");
    let facts: Vec<_> = seen.iter().map(|n| (n.name.to_string(), n.role, n.membership)).collect();
    for (name, role, membership) in facts {
        let manager = name != "n3";
        assert_eq!(role == Role::Manager, manager, "{name}");
        assert_eq!(membership == Membership::Voter, manager, "{name}");
    }
}

#[test]
fn wrong_tokens_are_refused_for_good_and_say_which_part_is_wrong() {
    let mut world = World::new();
    world.node("n1").start(&["--init"]).ready();
    let (seed, token) = (world.node("n1").listen.to_string(), world.token(Role::Worker));
    let (head, secret) = token.rsplit_once('-').expect("a token ends with its secret");
    let (start, digest) = head.rsplit_once('-').expect("before it stands the digest");
    let turned = |text: &str| text.chars().rev().collect::<String>();
    let wrong_secret = format!("{head}-{}", turned(secret));
    let wrong_digest = format!("{start}-{}-{secret}", turned(digest));
    for (name, token, reason) in [("n2", wrong_secret, "bad_token"), ("n3", wrong_digest, "digest_mismatch")] {
        let node = world.node(name).start(&["--join", &seed, "--token", &token]);
        assert_eq!(node.exit(), Some(6), "{}", node.log());
        assert!(node.log().contains(reason), "{}", node.log());
    }
    assert_eq!(world.nodes_seen_by("n1").len(), 1, "nobody joined");
}

#[test]
#[ignore = "full tier"]
fn an_unreachable_seed_is_tried_for_ever_and_the_log_says_where_it_stands() {
    let mut world = World::new();
    let nobody = world.node("nobody").listen.to_string();
    world.node("n1").start(&["--init"]).ready();
    let token = world.token(Role::Worker);
    world.node("n2").start(&["--join", &nobody, "--token", &token]);
    eventually_so("it says that it cannot connect", || {
        let log = world.node("n2").log();
        log.contains(&nobody) && log.contains("connect")
    });
    assert!(world.node("n2").still_tries());
    world.node("n2").stop();
}

#[test]
fn an_empty_directory_without_flags_ends_with_a_sentence_that_says_what_to_do() {
    let mut world = World::new();
    let node = world.node("n1").start(&[]);
    assert_eq!(node.exit(), Some(2));
    let log = node.log();
    assert!(log.contains("--init") && log.contains("--join"), "{log}");
}

#[test]
fn a_socket_path_that_no_kernel_takes_is_refused_at_once() {
    let mut world = World::new();
    let long = world.folder().join("x".repeat(120));
    let long = long.to_str().expect("text").to_owned();
    let node = world.node("n1").start(&["--init", "--socket", &long]);
    assert_eq!(node.exit(), Some(2));
    assert!(node.log().contains("107"), "{}", node.log());
}

#[test]
#[ignore = "full tier"]
fn a_second_daemon_on_one_directory_names_the_first() {
    let mut world = World::new();
    world.node("n1").start(&["--init"]).ready();
    let pid = world.node("n1").pid().to_string();
    let folder = world.node("n1").folder.clone();
    let other = world.node("n2");
    std::fs::create_dir_all(&other.folder).expect("the folder is writable");
    let mut command = Command::new(MUSTERD);
    command.arg("--data-dir").arg(folder).args(["--listen", &other.listen.to_string(), "--init"]);
    assert_eq!(other.spawn(command).exit(), Some(1));
    assert!(other.log().contains(&pid), "{}", other.log());
}

#[test]
#[ignore = "full tier"]
fn a_manager_whose_raft_data_was_deleted_asks_for_a_new_seat() {
    let mut world = World::with(3, 0);
    let victim = "n3";
    let before = raft_id(&world, "n1", victim).expect("n3 is a manager");
    world.node(victim).kill();
    let raft = world.node(victim).folder.join("raft");
    std::fs::remove_dir_all(&raft).unwrap_or_else(|e| panic!("{}: {e}", raft.display()));
    world.node(victim).start(&[]);
    let mut shown = false;
    let after = eventually("n3 votes from another seat", || {
        let node = world.seen("n1", victim)?;
        shown |= node.conditions.iter().any(|c| c.reason == WaitReason::RaftDataMissing);
        let seat = node.manager.as_ref()?.raft_id.0;
        (seat != before && node.membership == Membership::Voter).then_some(seat)
    });
    assert!(after > before, "raft ids only grow");
    world.node(victim).ready();
    let log = world.node(victim).log();
    assert!(shown || log.contains("raft_data_missing"), "the reason was shown:\n{log}");
    let status = world.answer("n1", Request::RaftStatus { fresh: true });
    assert!(status["removed_raft_ids"].as_array().is_some_and(|ids| ids.contains(&before.into())), "{status}");
}

#[test]
#[ignore = "full tier"]
fn the_only_manager_without_its_raft_data_ends_and_says_what_can_be_done() {
    let mut world = World::new();
    world.node("n1").start(&["--init"]).ready();
    world.node("n1").stop();
    let raft = world.node("n1").folder.join("raft");
    std::fs::remove_dir_all(&raft).unwrap_or_else(|e| panic!("{}: {e}", raft.display()));
    let node = world.node("n1").start(&["--init"]);
    assert_eq!(node.exit(), Some(1), "it never founds a second cluster");
}

#[test]
fn termination_is_clean_and_a_second_signal_ends_at_once() {
    let mut world = World::new();
    world.node("n1").start(&["--init"]).ready();
    world.node("n1").signal(Signal::INT);
    assert_eq!(world.node("n1").exit(), Some(0));
    let ran =
        Ran::new(world.folder(), &["--socket", world.socket("n1").to_str().expect("text"), "-o", "json", "status"]);
    assert_eq!((ran.code, ran.error_code().as_str()), (5, "unreachable"));
}
