//! Leaders that die, freeze, or return with a stale state.

use std::time::{Duration, Instant};

use muster_messages::wire::Request;
use muster_messages::{Liveness, NodeView, Role};
use rustix::process::Signal;

use crate::harness::{EndedMuster, World, Writer, assert_kept, eventually, eventually_so, scenario_pause};

/// A running cluster and a writer that writes the labels of its own node n1.
fn writing(world: &World, managers: &[&str]) -> Writer {
    let node = world.seen("n1", "n1").expect("n1 is a node").id;
    Writer::start(managers.iter().map(|name| world.socket(name)).collect(), node)
}

fn writes_continue(writer: &Writer) {
    let seen = writer.acknowledged();
    eventually_so("writes continue", || writer.acknowledged() > seen + 20);
}

#[test]
fn killed_leader_loses_no_write_and_returns_as_follower() {
    let mut world = World::with(3, 0);
    let leader = world.leader_seen_by("n1");
    let writer = writing(&world, &["n1", "n2", "n3"]);
    writes_continue(&writer);
    world.node(&leader).kill();
    writes_continue(&writer);
    let by = world.other_than(&[&leader]);
    assert_ne!(world.leader_seen_by(&by), leader);
    world.node(&leader).start(&[]).ready();
    let follows = |node: &NodeView| {
        node.state == Liveness::Ready && node.manager.as_ref().is_some_and(|m| m.reachable && !m.leader)
    };
    eventually_so("the old leader follows", || world.seen(&by, &leader).is_some_and(|node| follows(&node)));
    writes_continue(&writer);
    let acknowledged = writer.stop();
    for name in ["n1", "n2", "n3"] {
        assert_kept(&acknowledged, &world.seen(name, "n1").expect("n1 is a node"));
    }
}

/// The dead leader's lease clock is gone. Long enough for every lease to expire by that clock.
#[test]
#[ignore = "full tier"]
fn thousand_leases_survive_leader_loss() {
    let world = World::new();
    // Holders give up after 20 s without a renewal; the run is longer than a lease, so that a missing lease clock would show.
    let leases = ["--leases", "1000", "--sessions", "10", "--lease-duration", "30s"];
    let args = ["--for", "40s", "--kill-leader", "5s", "-o", "json"];
    let held =
        EndedMuster::new(world.folder(), &[&["bench", "leases"], &leases[..], &args[..]].concat()).ended(0).json();
    assert_eq!((&held["leases"], &held["lost"]), (&1000.into(), &0.into()), "{held}");
    assert!(held["killed_leader"]["node"].is_string(), "{held}");
    assert!(held["renewals"].as_u64().is_some_and(|renewals| renewals > 4000), "holders renew: {held}");
}

#[test]
#[ignore = "full tier"]
fn all_managers_killed_at_once_keep_acknowledged_writes() {
    let mut world = World::with(3, 0);
    let writer = writing(&world, &["n1", "n2", "n3"]);
    writes_continue(&writer);
    for name in ["n1", "n2", "n3"] {
        world.node(name).signal(Signal::KILL);
    }
    for name in ["n1", "n2", "n3"] {
        assert_eq!(world.node(name).exit(), None);
        world.node(name).start(&[]);
    }
    for name in ["n1", "n2", "n3"] {
        world.node(name).ready();
    }
    writes_continue(&writer);
    let acknowledged = writer.stop();
    assert_kept(&acknowledged, &world.seen("n2", "n1").expect("n1 is a node"));
}

#[test]
#[ignore = "full tier"]
fn a_frozen_leader_is_replaced_and_follows_when_it_thaws() {
    let mut world = World::with(3, 0);
    let leader = world.leader_seen_by("n1");
    let by = world.other_than(&[&leader]);
    world.node(&leader).freeze();
    eventually_so("another node leads", || {
        let seen = world.ask(&by, Request::RaftStatus { fresh: true }).ok();
        let leads = seen.and_then(|status| status["leader"].as_str().map(str::to_owned));
        let old = world.seen(&by, &leader).expect("it is still a node").id;
        leads.is_some_and(|id| id != old.as_str())
    });
    world.node(&leader).signal(Signal::CONT);
    eventually_so("the thawed one agrees", || {
        let theirs = world.ask(&leader, Request::RaftStatus { fresh: true }).ok();
        let ours = world.ask(&by, Request::RaftStatus { fresh: true }).ok();
        matches!((theirs, ours), (Some(a), Some(b)) if a["leader"] == b["leader"])
    });
}

/// Members {A, B, C}, C is off. D is promoted, A demoted, B killed: of {B, C, D} only D remains. C returns with a state
/// without D and without A's demotion: the two must find each other, whichever has the smaller id.
fn stale_manager_returns(c_is_smaller: bool) {
    let mut world = World::with(3, 3);
    let a = world.leader_seen_by("n1");
    let seen = world.nodes_seen_by("n1");
    let id = |name: &str| seen.iter().find(|n| n.name.as_str() == name).expect("a node").id;
    let managers = ["n1", "n2", "n3"].into_iter().filter(|name| *name != a);
    let pairs = managers.flat_map(|c| ["n4", "n5", "n6"].map(|d| (c, d)));
    let Some((c, d)) = pairs.into_iter().find(|(c, d)| (id(c) < id(d)) == c_is_smaller) else {
        return stale_manager_returns(c_is_smaller); // no pair has the wanted order of random ids
    };
    let b = world.other_than(&[&a, c, "n4", "n5", "n6"]);
    world.node(c).kill();
    world.muster_at(&a, &["node", "promote", d, "--wait=300s"]).ended(0);
    world.muster_at(&b, &["node", "demote", &a, "--wait=300s"]).ended(0);
    world.node(&b).kill();
    world.node(c).start(&[]);
    let leader = eventually("C and D have a leader", || {
        let status = world.ask(d, Request::RaftStatus { fresh: true }).ok()?;
        status["leader"].as_str().map(str::to_owned)
    });
    assert!([id(c), id(d)].iter().any(|id| id.as_str() == leader), "one of the two leads");
    world.node(c).ready();
    let seen = world.seen(c, &a).expect("A is a node");
    assert_eq!(seen.role, Role::Worker, "C has caught up");
}

#[test]
#[ignore = "full tier"]
fn stale_manager_with_smaller_id_restores_quorum() {
    stale_manager_returns(true);
}

#[test]
#[ignore = "full tier"]
fn stale_manager_with_greater_id_restores_quorum() {
    stale_manager_returns(false);
}

#[test]
#[ignore = "full tier"]
fn without_quorum_reads_are_stale_and_writes_name_missing() {
    let mut world = World::with(3, 0);
    world.node("n2").kill();
    world.node("n3").kill();
    // An answer may be stale before the others have been silent long enough to count as missing.
    let status = eventually("n1 knows its missing peers", || {
        let status = world.muster(&["status"]).ended(0).json();
        let missing = status["quorum"]["missing"].as_array().expect("a list").len();
        (status["stale"] == true && missing == 2).then_some(status)
    });
    assert!(status["as_of"].is_string(), "{status}");
    let fresh = world.muster(&["--timeout", "3s", "status", "--fresh"]).ended(5);
    assert_eq!(fresh.error_code(), "no_quorum");
    let write = world.muster(&["--timeout", "3s", "node", "update", "n1", "--label-add", "a=b"]).ended(5);
    assert!(write.stderr.contains("n2") && write.stderr.contains("n3"), "{}", write.stderr);
    world.node("n2").start(&[]).ready();
    world.muster(&["node", "update", "n1", "--label-add", "a=b"]).ended(0);
}

/// B7. The machine stood still: no manager answered the others, and none was at fault. Their sessions, and with these the calls in
/// them, stay.
#[test]
#[ignore = "full tier"]
fn managers_that_stood_still_keep_their_sessions() {
    let mut world = World::with(3, 0);
    let names = ["n1", "n2", "n3"];
    let ended = |world: &World| names.map(|name| mesh(world, name)["sessions_ended"].clone());
    let before = ended(&world);
    // Longer than the deadline of Raft's calls (5 s), then about the limit of silence (13 s).
    for still in [6, 9, 13, 16].map(Duration::from_secs) {
        for name in names {
            world.node(name).freeze();
        }
        scenario_pause("the machine stands still", still);
        for name in names {
            world.node(name).signal(Signal::CONT);
        }
        let resumed = Instant::now();
        eventually_so("calls are answered after the checks that began then have ended", || {
            let checks_have_ended = resumed.elapsed() > 2 * CHECK_DEADLINE;
            for name in names {
                let label = format!("by={name}");
                world.muster_at(name, &["node", "update", "n1", "--label-add", &label]).ended(0);
            }
            checks_have_ended
        });
        // The leader may be another one: it gives leadership up for its disk, which others may keep busy.
        assert_eq!(ended(&world), before, "no session ended after {still:?}");
    }
}

/// The mesh's, of the check before it ends a session.
const CHECK_DEADLINE: Duration = Duration::from_secs(1);

fn mesh(world: &World, name: &str) -> serde_json::Value {
    let mut shown = world.muster_at(name, &["actors", "inspect", "node/manager/mesh"]).ended(0).json();
    shown["view"].take()
}
