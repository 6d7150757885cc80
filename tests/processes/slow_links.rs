//! Slow and long links: a manager that must catch up by a snapshot while clients keep writing, and role changes.

use std::time::{Duration, Instant};

use muster_messages::ErrorCode;
use muster_messages::wire::{ActorsAsk, ActorsOf, KubeCall, Request};
use serde_json::Value;

use crate::harness::{SLOW_RAFT_TIMING, World, Writer, assert_kept, eventually, eventually_so};

/// The size of the state. With `MUSTER_SLOW_MIB=62` it is 62 MiB, with more writers and the shipped timing.
fn mebibytes() -> Option<usize> {
    std::env::var("MUSTER_SLOW_MIB").ok().map(|text| text.parse().expect("a number"))
}

/// A short log, so that an absent manager needs a snapshot.
const SHORT_LOG: &str = "snapshot_entries = 300\nkeep_entries = 50\nkeep_time = \"1s\"\n";

/// A config map of nearly the maximum size.
const BYTES: usize = 250_000;

fn fill(world: &World, leader: &str, mebibytes: usize) {
    for n in 0..(mebibytes << 20) / BYTES {
        let (namespace, data) = (format!("part-{}", n % 5), "x".repeat(BYTES));
        let map = format!(r#"{{"metadata": {{"name": "m{n}"}}, "data": {{"x": "{data}"}}}}"#);
        let call = KubeCall {
            method: "POST".to_owned(),
            target: format!("/api/v1/namespaces/{namespace}/configmaps"),
            content_type: None,
            accept: None,
            user_agent: None,
            body: map.into_bytes(),
        };
        let made = world.answer(leader, Request::Kube(call));
        assert_eq!(made["status"], 201, "{made}");
    }
}

/// A node's Raft member, from its own socket.
pub fn raft_member(world: &World, name: &str) -> Value {
    let ask = ActorsAsk::Inspect { path: "node/manager/raft-member".to_owned() };
    eventually("its Raft member has started", || {
        let mut actor = world.ask(name, Request::Actors { node: ActorsOf::Here, ask: ask.clone() }).ok()?;
        Some(actor["view"].take()).filter(Value::is_object)
    })
}

fn number(view: &Value, pointer: &str) -> u64 {
    view.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {pointer} in {view}"))
}

/// Repeatedly kills a manager, which returns to a compacted log, over links of this many bytes per second.
fn catches_up_over_slow_links(speeds: &[u32]) {
    let (timing, mebibytes, writers) = match mebibytes() {
        Some(mebibytes) => ("[raft]\n", mebibytes, 24),
        None => (SLOW_RAFT_TIMING, 4, 4),
    };
    let mut world = World::with_a_network_and(&format!("{timing}{SHORT_LOG}"), 3, 0);
    let leader = world.leader_seen_by("n1");
    let away = world.other_than(&[&leader]);
    let node = world.seen(&leader, "n1").expect("n1 is a node").id;
    fill(&world, &leader, mebibytes);
    let before = raft_member(&world, &leader);
    for (nth, speed) in speeds.iter().enumerate() {
        // Until then it may be installing an earlier snapshot, and the leader keeps the log that it needs.
        let last = |world: &World, name: &str| number(&raft_member(world, name), "/log/last");
        eventually_so("it has every entry", || last(&world, &away) >= last(&world, &leader));
        // Not those that were sent: a transfer ends with its session, and two managers that dial each other at the same time
        // replace one by the other.
        let installs = |world: &World| world.nodes_log(&away).matches("installed a snapshot").count();
        let installed = installs(&world);
        let had = last(&world, &away);
        world.node(&away).kill();
        let writers: Vec<Writer> = (0..writers).map(|_| Writer::start(vec![world.socket(&leader)], node)).collect();
        let written = || writers.iter().map(Writer::acknowledged).sum::<u64>();
        eventually_so("the log is compacted past its position", || {
            number(&raft_member(&world, &leader), "/log/first") > had + 1
        });
        world.network().slow(*speed);
        let (begun, at_first) = (Instant::now(), written());
        world.node(&away).start(&[]);
        let behind = last(&world, &leader);
        eventually("it has caught up", || (number(&raft_member(&world, &away), "/applied") >= behind).then_some(()));
        let took = begun.elapsed();
        let writes = (written() - at_first) as f64 / took.as_secs_f64();
        println!("{mebibytes} MiB at {speed} bytes/s: {took:.1?}, {writes:.0} writes/s meanwhile");
        let after = raft_member(&world, &leader);
        assert_eq!(installs(&world), installed + 1, "one snapshot sufficed (round {nth})");
        assert_eq!(after["term"], before["term"], "leadership has not moved");
        for writer in writers {
            writer.stop();
        }
    }
    let writer = Writer::start(vec![world.socket(&leader)], node);
    eventually_so("writes continue", || writer.acknowledged() > 20);
    assert_kept(&writer.stop(), &world.seen(&leader, "n1").expect("n1 is a node"));
}

/// Half a round trip of 100 ms, as between continents.
const DISTANCE: Duration = Duration::from_millis(50);

/// The shipped timing suits distant managers. The printed times, of one to three changes each, are counted in round trips in
/// docs/performance.md.
#[test]
#[ignore = "full tier"]
fn roles_change_between_distant_managers() {
    let world = World::with_a_network_and("[raft]\n", 3, 1);
    let by = world.other_than(&[&world.leader_seen_by("n1"), "n4"]);
    world.network().lengthen(DISTANCE);
    let term = || raft_member(&world, &by)["term"].clone();
    let timed = |what: &str, by: &str, args: &[&str]| {
        let begun = Instant::now();
        // A demotion is refused as well while the others are silent for an election timeout, as on a busy machine.
        let transient: &[ErrorCode] = if args.contains(&"demote") { &[ErrorCode::QuorumAtRisk] } else { &[] };
        eventually(what, || world.muster_at(by, args).done_unless(transient));
        let took = begun.elapsed();
        println!(
            "{what}: {} ms, {:.1} round trips",
            took.as_millis(),
            took.as_secs_f64() / (DISTANCE * 2).as_secs_f64()
        );
    };
    // Other programs may also cost a leader its leadership: then the run is repeated once.
    let quiet = (0..2).any(|_| {
        let before = term();
        for _ in 0..3 {
            timed("promotion", &by, &["node", "promote", "n4", "--wait=60s"]);
            timed("demotion", &by, &["node", "demote", "n4", "--wait=60s"]);
        }
        term() == before
    });
    assert!(quiet, "the distance causes an election in each run");
    let leader = world.leader_seen_by(&by);
    timed("demotion of the leader", &by, &["node", "demote", &leader, "--wait=60s"]);
}

#[test]
#[ignore = "full tier"]
fn follower_catches_up_by_one_snapshot_over_slow_links() {
    catches_up_over_slow_links(&[12_000_000, 900_000]);
}
