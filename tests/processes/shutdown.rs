//! TERM in every state of a node: it stops by itself, cleanly, and leaves a directory from which it can continue.
//!
//! A state is held for the signal: by freezing the node that it waits for, or by a hung disk. In a short state
//! the signal is sent at many moments.

use std::time::{Duration, Instant};

use muster_messages::wire::{ActorsAsk, ActorsOf, Request};
use muster_messages::{ErrorCode, Membership, Role, WaitReason};
use rustix::process::Signal;

use crate::harness::{ForegroundMuster, Node, SLOW_HEARTBEAT, World, Writer, assert_kept, eventually, eventually_so};

/// When the signal comes, for a start at that time.
type Trigger = Box<dyn Fn(&Node, Instant) -> bool>;

fn after(delay: Duration) -> Trigger {
    Box::new(move |_, started| started.elapsed() >= delay)
}

fn when_file_exists(file: &'static str) -> Trigger {
    Box::new(move |node, _| node.folder.join(file).exists())
}

fn when_logged(text: &'static str) -> Trigger {
    Box::new(move |node, _| node.log().contains(text))
}

/// Many moments of something with this duration, from before its begin to after its end.
fn moments_throughout(long: Duration, many: u32) -> impl Iterator<Item = Trigger> {
    (0..many).map(move |n| after(long * n * 5 / (4 * many)))
}

/// Waits without long sleeps: moments pass within less than a millisecond.
#[track_caller]
fn wait_until(node: &Node, trigger: &Trigger) {
    let started = Instant::now();
    eventually_so("the moment comes", || {
        let burst = Instant::now();
        while !trigger(node, started) {
            if burst.elapsed() > Duration::from_secs(1) {
                return false;
            }
            std::thread::park_timeout(Duration::from_micros(200));
        }
        true
    });
}

/// TERM to a node that was just started. Before it listens to signals the system ends it, and it has written nothing.
#[track_caller]
fn ends_at(node: &mut Node, trigger: &Trigger) -> Duration {
    wait_until(node, trigger);
    match node.exits_by_itself() {
        (Some(0), took) => took,
        (None, took) if !node.folder.join("lock").exists() => {
            println!("{}: before it listened to signals", node.name);
            took
        }
        (code, took) => panic!("{} ended with {code:?} after {took:?}:\n{}", node.name, node.log()),
    }
}

fn slowest(what: &str, took: &[Duration]) {
    println!("{what}: ended {} times, at the slowest in {:?}", took.len(), took.iter().max());
}

/// The time until it is ready.
fn boot(node: &mut Node, flags: &[&str]) -> Duration {
    let started = Instant::now();
    node.start(flags).ready();
    started.elapsed()
}

#[test]
#[ignore = "full tier"]
fn founder_stops_cleanly_at_any_moment() {
    let mut world = World::new();
    let whole = boot(world.node("first"), &["--init"]);
    let files = ["lock", "identity/founding.json", "identity/credentials.pem", "muster.sock", "raft"];
    let words = ["starting the manager runtime", "this manager leads", "cluster founded"];
    let moments = moments_throughout(whole, 20).chain(files.map(when_file_exists)).chain(words.map(when_logged));
    let mut took = vec![world.node("first").stops_cleanly()];
    let mut names = vec!["first".to_owned()];
    for (number, trigger) in moments.enumerate() {
        let name = format!("f{number}");
        took.push(ends_at(world.node(&name).start(&["--init"]), &trigger));
        names.push(name);
    }
    for some in names.chunks(4) {
        for name in some {
            world.node(name).start(&["--init"]);
        }
        for name in some {
            world.node(name).ready();
            let seen = world.nodes_seen_by(name);
            let facts: Vec<_> = seen.iter().map(|node| (node.name.as_str(), node.membership)).collect();
            assert_eq!(facts, [(name.as_str(), Membership::Voter)]);
        }
        took.extend(some.iter().map(|name| world.node(name).stops_cleanly()));
    }
    slowest("founding, and leading alone", &took);
}

#[test]
#[ignore = "full tier"]
fn joiner_stops_cleanly_at_any_moment_and_joins_once() {
    let mut world = World::with(1, 0);
    let (seed, token) = (world.node("n1").listen.to_string(), world.token(Role::Worker));
    let flags = ["--join", seed.as_str(), "--token", token.as_str()];
    let whole = boot(world.node("w"), &flags);
    let files = ["identity/join.json", "identity/credentials.pem"];
    let (mut took, mut names) = (vec![world.node("w").stops_cleanly()], vec!["w".to_owned()]);
    for (number, trigger) in moments_throughout(whole, 8).chain(files.map(when_file_exists)).enumerate() {
        let name = format!("j{number}");
        took.push(ends_at(world.node(&name).start(&flags), &trigger));
        names.push(name);
    }

    // No answer: the manager is frozen.
    world.node("n1").freeze();
    wait_until(world.node("held").start(&flags), &when_file_exists("identity/join.json"));
    took.push(world.node("held").stops_cleanly());
    names.push("held".to_owned());
    world.node("n1").signal(Signal::CONT);

    for some in names.chunks(4) {
        for name in some {
            world.node(name).start(&flags);
        }
        for name in some {
            world.node(name).ready();
        }
    }
    let mut seen: Vec<_> = world.nodes_seen_by("n1").iter().map(|node| node.name.to_string()).collect();
    seen.sort();
    names.push("n1".to_owned());
    names.sort();
    assert_eq!(seen, names, "each has joined once");
    world.all_settled();
    took.extend(names.iter().map(|name| world.node(name).stops_cleanly()));
    slowest("joining, and as a worker", &took);
}

#[test]
#[ignore = "full tier"]
fn node_stops_cleanly_during_role_change_and_completes_it() {
    let mut world = World::with(2, 1);
    let (mut took, mut whole) = (Vec::new(), [Duration::ZERO; 2]);
    let requests = [("promote", Membership::Voter), ("demote", Membership::None)];
    for (whole, (verb, _)) in whole.iter_mut().zip(requests) {
        let began = Instant::now();
        world.muster(&["node", verb, "n3", "--wait=300s"]).ended(0);
        *whole = began.elapsed();
    }
    let rounds = 4;
    for round in 0..rounds {
        for (whole, (verb, membership)) in whole.into_iter().zip(requests) {
            // On a busy machine a manager may not answer in time: for that moment a demotion is refused.
            eventually(verb, || world.muster(&["node", verb, "n3"]).done_unless(&[ErrorCode::QuorumAtRisk]));
            let node = world.node("n3");
            wait_until(node, &after(whole * round / rounds));
            took.push(node.stops_cleanly());
            node.start(&[]).ready();
            eventually_so("it has the new role", || world.seen("n1", "n3").is_some_and(|n| n.membership == membership));
            world.all_settled();
        }
    }
    slowest("on the way to another role", &took);
}

/// A frozen node's role change is granted; a quorum lost before its thaw withholds its certificate.
#[test]
#[ignore = "full tier"]
fn node_awaiting_certificate_stops_cleanly_and_gets_it_later() {
    let mut world = World::with_settings(SLOW_HEARTBEAT, 2, 1);
    let mut took = Vec::new();
    for (verb, role, membership) in
        [("promote", Role::Manager, Membership::Voter), ("demote", Role::Worker, Membership::None)]
    {
        world.node("n3").freeze();
        world.muster(&["node", verb, "n3"]).ended(0);
        eventually_so("all but the certificate is done", || {
            let seen = world.seen("n1", "n3").expect("n3 is a node");
            let waits = seen.conditions.iter().any(|c| c.reason == WaitReason::WaitingForCertificate);
            seen.role == role && waits && seen.membership == Membership::None
        });
        world.node("n2").freeze();
        world.node("n3").signal(Signal::CONT);
        // It asks for the missing certificate; then again after a restart in this state.
        eventually_so("it asks for its certificate", || world.ask("n3", Request::NodeList { fresh: false }).is_ok());
        took.push(world.node("n3").stops_cleanly());
        let node = world.node("n3").start(&[]);
        wait_until(node, &when_file_exists("muster.sock"));
        took.push(node.stops_cleanly());
        world.node("n2").signal(Signal::CONT);
        world.node("n3").start(&[]).ready();
        eventually_so("it has its role", || world.seen("n1", "n3").is_some_and(|n| n.membership == membership));
        world.all_settled();
    }
    slowest("waiting for a certificate", &took);
}

#[test]
#[ignore = "full tier"]
fn learner_stops_cleanly_and_votes_later() {
    let mut world = World::with(2, 0);
    let hang = world.folder().join("hang");
    let (seed, token) = (world.node("n1").listen.to_string(), world.token(Role::Worker));
    world.node("n3").disk_hangs_while(&hang).start(&["--join", &seed, "--token", &token]).ready();

    // Its disk hangs, so it never catches up.
    std::fs::write(&hang, "").expect("the world's folder is writable");
    world.muster(&["node", "promote", "n3"]).ended(0);
    let learns = |world: &World| world.seen("n1", "n3").is_some_and(|node| node.membership == Membership::Learner);
    eventually_so("n3 is a learner", || learns(&world));
    let with_its_disk = world.node("n3").stops_cleanly();
    assert!(learns(&world), "still");

    // Its disk works again, but no quorum can make it a voter.
    std::fs::remove_file(&hang).expect("it was there");
    world.node("n2").freeze();
    wait_until(world.node("n3").start(&[]), &when_file_exists("muster.sock"));
    let member_id = ActorsAsk::Inspect { path: "node/manager/membership".to_owned() };
    eventually_so("its manager runtime runs and requests membership", || {
        let seen = world.ask("n3", Request::Actors { node: ActorsOf::Here, ask: member_id.clone() });
        seen.is_ok_and(|member_id| member_id["state"] == "healthy")
    });
    let without_quorum = world.node("n3").stops_cleanly();
    world.node("n2").signal(Signal::CONT);
    world.node("n3").start(&[]).ready();
    world.all_settled();
    println!("learning: ended in {with_its_disk:?} with a disk that hangs, in {without_quorum:?} without a quorum");
}

#[test]
#[ignore = "full tier"]
fn followers_and_leaders_stop_cleanly_during_writes() {
    let mut world = World::with(3, 1);
    let node = world.seen("n1", "n1").expect("n1 is a node").id;
    let writer = Writer::start(["n1", "n2", "n3"].map(|name| world.socket(name)).to_vec(), node);
    let makes_progress = || {
        let seen = writer.acknowledged();
        eventually_so("writes continue", || writer.acknowledged() > seen + 20);
    };
    let leader = world.leader_seen_by("n1");
    let follower = world.other_than(&[&leader, "n4"]);
    // A pending promotion is work in progress of the leader.
    world.node("n4").freeze();
    world.muster(&["node", "promote", "n4"]).ended(0);
    for (state, name) in [("following", &follower), ("leading", &leader)] {
        makes_progress();
        let took = world.node(name).stops_cleanly();
        makes_progress();
        let by = world.other_than(&[name, "n4"]);
        assert_ne!(&world.leader_seen_by(&by), name);
        world.node(name).start(&[]).ready();
        eventually_so("it is a voter and ready", || {
            let seen = world.seen(&by, name).expect("a node");
            seen.membership == Membership::Voter && seen.manager.is_some_and(|m| m.reachable)
        });
        println!("{state}: ended in {took:?}");
    }
    world.node("n4").signal(Signal::CONT);
    world.all_settled();
    assert_eq!(world.seen("n1", "n4").map(|node| node.membership), Some(Membership::Voter), "the request was kept");
    let acknowledged = writer.stop();
    assert_kept(&acknowledged, &world.seen("n2", "n1").expect("n1 is a node"));
}

#[test]
#[ignore = "full tier"]
fn leader_without_target_or_with_hung_disk_stops_cleanly() {
    let mut world = World::new();
    let hang = world.folder().join("hang");
    world.node("n1").disk_hangs_while(&hang).start(&["--init"]).ready();
    world.join_more(2, Role::Manager);
    world.all_settled();
    let lead = |world: &World| {
        world.all_settled();
        world.make_lead("n1");
    };
    lead(&world);
    for name in ["n2", "n3"] {
        world.node(name).freeze();
    }
    let without_target = world.node("n1").stops_cleanly();
    for name in ["n2", "n3"] {
        world.node(name).signal(Signal::CONT);
    }
    world.node("n1").start(&[]).ready();
    lead(&world);
    std::fs::write(&hang, "").expect("the world's folder is writable");
    let disk = |world: &World| world.muster(&["actors", "inspect", "node/manager/raft-member/disk"]).ended(0).json();
    world.muster_at("n2", &["--timeout", "1s", "node", "update", "n1", "--label-add", "a=b"]);
    eventually_so("a write hangs", || disk(&world)["handling"]["message"] == "write");
    let with_its_disk = world.node("n1").stops_cleanly();
    std::fs::remove_file(&hang).expect("it was there");
    world.node("n1").start(&[]).ready();
    world.all_settled();
    println!(
        "leading: ended in {without_target:?} without a transfer target, in {with_its_disk:?} with a disk that hangs"
    );
}

#[test]
#[ignore = "full tier"]
fn nodes_without_quorum_stop_cleanly_and_return() {
    let mut world = World::with(2, 1);
    let (seed, token) = (world.node("n1").listen.to_string(), world.token(Role::Worker));
    world.node("n2").freeze();
    // Requests that cannot be answered: a write, and a join.
    let write = ["--timeout", "60s", "node", "update", "n1", "--label-add", "a=b"];
    let socket = world.socket("n1");
    let args = [&["--socket", socket.to_str().expect("text")], &write[..]].concat();
    let waiting = ForegroundMuster::start(world.folder(), &args);
    world.node("n4").start(&["--join", &seed, "--token", &token]);
    eventually_so("the join conversation is open", || {
        let join = world.muster(&["actors", "inspect", "node/manager/join"]).ended(0).json();
        join["view"]["conversations"].as_u64() > Some(0)
    });
    eventually("n1 knows that it lost quorum", || {
        let status = world.muster(&["status"]).ended(0).json();
        (status["stale"] == true).then_some(())
    });
    for name in ["n4", "n3", "n1"] {
        println!("{name} without a quorum: ended in {:?}", world.node(name).stops_cleanly());
    }
    drop(waiting);
    // A manager without a leader since its start.
    wait_until(world.node("n1").start(&[]), &when_file_exists("muster.sock"));
    println!("a candidate: ended in {:?}", world.node("n1").stops_cleanly());
    world.node("n2").signal(Signal::CONT);
    println!("thawed alone: ended in {:?}", world.node("n2").stops_cleanly());
    for name in ["n1", "n2", "n3"] {
        world.node(name).start(&[]);
    }
    world.node("n4").start(&["--join", &seed, "--token", &token]);
    for name in ["n1", "n2", "n3", "n4"] {
        world.node(name).ready();
    }
    world.all_settled();
    assert_eq!(world.nodes_seen_by("n1").len(), 4);
}
