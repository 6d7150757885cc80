//! `musterd` started by hand, as its contract describes.

use std::process::Command;

use muster_messages::wire::Request;
use muster_messages::{Membership, Role, WaitReason};
use rustix::process::Signal;

use crate::harness::{EndedMuster, MUSTERD, World, eventually, eventually_so};

/// Member ids by node name.
fn raft_id(world: &World, by: &str, name: &str) -> Option<u64> {
    world.seen(by, name)?.manager.map(|manager| manager.raft_id.0)
}

#[test]
fn restart_keeps_ids_and_does_not_join_again() {
    let mut world = World::new();
    let first = world.node("n1").start(&["--init"]).ready();
    assert_eq!(first.role, Role::Manager);
    let (nodes, member_id) = (world.nodes_seen_by("n1").len(), raft_id(&world, "n1", "n1"));
    world.node("n1").stop();
    let again = world.node("n1").start(&["--init"]).ready();
    assert_eq!(again.node, first.node);
    world.node("n1").kill();
    let third = world.node("n1").start(&[]).ready();
    assert_eq!(third.node, first.node, "also without flags, also after kill -9");
    assert_eq!((world.nodes_seen_by("n1").len(), raft_id(&world, "n1", "n1")), (nodes, member_id));
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
fn wrong_token_is_final_and_error_names_wrong_part() {
    let mut world = World::new();
    world.node("n1").start(&["--init"]).ready();
    let (seed, token) = (world.node("n1").listen.to_string(), world.token(Role::Worker));
    let (head, secret) = token.rsplit_once('-').expect("a token ends with its secret");
    let (start, digest) = head.rsplit_once('-').expect("the digest precedes the secret");
    let turned = |text: &str| text.chars().rev().collect::<String>();
    let wrong_secret = format!("{head}-{}", turned(secret));
    let wrong_digest = format!("{start}-{}-{secret}", turned(digest));
    for (name, token, reason) in [("n2", wrong_secret, "bad_token"), ("n3", wrong_digest, "digest_mismatch")] {
        let node = world.node(name).start(&["--join", &seed, "--token", &token]);
        assert_eq!(node.exit(), Some(6), "{}", node.log());
        assert!(node.log().contains(reason), "{}", node.log());
    }
    assert_eq!(world.nodes_seen_by("n1").len(), 1, "no node joined");
}

#[test]
#[ignore = "full tier"]
fn unreachable_seed_is_retried_and_logged() {
    let mut world = World::new();
    let nobody = world.node("nobody").listen.to_string();
    world.node("n1").start(&["--init"]).ready();
    let token = world.token(Role::Worker);
    world.node("n2").start(&["--join", &nobody, "--token", &token]);
    eventually_so("it logs that it cannot connect", || {
        let log = world.node("n2").log();
        log.contains(&nobody) && log.contains("connect")
    });
    assert!(world.node("n2").is_starting());
    world.node("n2").stop();
}

#[test]
fn empty_directory_without_flags_exits_with_instructions() {
    let mut world = World::new();
    let node = world.node("n1").start(&[]);
    assert_eq!(node.exit(), Some(2));
    let log = node.log();
    assert!(log.contains("--init") && log.contains("--join"), "{log}");
}

#[test]
fn too_long_socket_path_is_refused() {
    let mut world = World::new();
    let long = world.folder().join("x".repeat(120));
    let long = long.to_str().expect("text").to_owned();
    let node = world.node("n1").start(&["--init", "--socket", &long]);
    assert_eq!(node.exit(), Some(2));
    assert!(node.log().contains("107"), "{}", node.log());
}

#[test]
#[ignore = "full tier"]
fn second_daemon_on_directory_names_the_first() {
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
fn manager_without_raft_data_gets_new_member_id() {
    let mut world = World::with(3, 0);
    let victim = "n3";
    let before = raft_id(&world, "n1", victim).expect("n3 is a manager");
    world.node(victim).kill();
    let raft = world.node(victim).folder.join("raft");
    std::fs::remove_dir_all(&raft).unwrap_or_else(|e| panic!("{}: {e}", raft.display()));
    world.node(victim).start(&[]);
    let mut shown = false;
    let after = eventually("n3 votes with a new member id", || {
        let node = world.seen("n1", victim)?;
        shown |= node.conditions.iter().any(|c| c.reason == WaitReason::RaftDataMissing);
        let member_id = node.manager.as_ref()?.raft_id.0;
        (member_id != before && node.membership == Membership::Voter).then_some(member_id)
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
fn only_manager_without_raft_data_exits_with_instructions() {
    let mut world = World::new();
    world.node("n1").start(&["--init"]).ready();
    world.node("n1").stop();
    let raft = world.node("n1").folder.join("raft");
    std::fs::remove_dir_all(&raft).unwrap_or_else(|e| panic!("{}: {e}", raft.display()));
    let node = world.node("n1").start(&["--init"]);
    assert_eq!(node.exit(), Some(1), "it never founds a second cluster");
}

#[test]
fn sigterm_exits_cleanly_and_second_signal_immediately() {
    let mut world = World::new();
    world.node("n1").start(&["--init"]).ready();
    world.node("n1").signal(Signal::INT);
    assert_eq!(world.node("n1").exit(), Some(0));
    let ran = EndedMuster::new(
        world.folder(),
        &["--socket", world.socket("n1").to_str().expect("text"), "-o", "json", "status"],
    );
    assert_eq!((ran.code, ran.error_code().as_str()), (5, "unreachable"));
}
