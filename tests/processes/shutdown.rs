//! TERM in every state of a node's life: it ends by itself, in order, and leaves a directory that it goes on from.
//!
//! A state is held while the signal comes: by freezing whom the node waits for, or by a disk that hangs. Where a state is short,
//! the signal comes at many moments of it.

use std::time::{Duration, Instant};

use muster_messages::wire::{ActorsAsk, ActorsOf, Request};
use muster_messages::{Membership, Role, WaitReason};
use rustix::process::Signal;

use crate::harness::{Front, Node, World, Writer, assert_kept, eventually, eventually_so};

/// When the signal comes, after a start at that time.
type Comes = Box<dyn Fn(&Node, Instant) -> bool>;

fn after(delay: Duration) -> Comes {
    Box::new(move |_, started| started.elapsed() >= delay)
}

fn once_there_is(file: &'static str) -> Comes {
    Box::new(move |node, _| node.folder.join(file).exists())
}

fn once_it_says(text: &'static str) -> Comes {
    Box::new(move |node, _| node.log().contains(text))
}

/// Many moments of something that takes about so long, the first of them before it begins and the last after its end.
fn all_through(long: Duration, many: u32) -> impl Iterator<Item = Comes> {
    (0..many).map(move |n| after(long * n * 5 / (4 * many)))
}

/// Waits without giving the processor away for long: moments pass in less than a millisecond.
#[track_caller]
fn wait_until(node: &Node, comes: &Comes) {
    let started = Instant::now();
    eventually_so("the moment comes", || {
        let burst = Instant::now();
        while !comes(node, started) {
            if burst.elapsed() > Duration::from_secs(1) {
                return false;
            }
            std::thread::park_timeout(Duration::from_micros(200));
        }
        true
    });
}

/// TERM to one that has just been started. Before it listens to signals the system ends it, and it has touched nothing.
#[track_caller]
fn ends_at(node: &mut Node, comes: &Comes) -> Duration {
    wait_until(node, comes);
    match node.ends_of_its_own_accord() {
        (Some(0), took) => took,
        (None, took) if !node.folder.join("lock").exists() => {
            println!("{}: before it listened", node.name);
            took
        }
        (code, took) => panic!("{} ended with {code:?} after {took:?}:\n{}", node.name, node.log()),
    }
}

fn slowest(what: &str, took: &[Duration]) {
    println!("{what}: ended {} times, at the slowest in {:?}", took.len(), took.iter().max());
}

/// How long it takes until it is ready.
fn boot(node: &mut Node, flags: &[&str]) -> Duration {
    let started = Instant::now();
    node.start(flags).ready();
    started.elapsed()
}

#[test]
#[ignore = "full tier"]
fn a_founder_ends_in_order_at_any_moment_and_founds_one_cluster() {
    let mut world = World::new();
    let whole = boot(world.node("first"), &["--init"]);
    let files = ["lock", "identity/founding.json", "identity/credentials.pem", "muster.sock", "raft"];
    let words = ["starting the manager half", "this manager leads", "cluster founded"];
    let moments = all_through(whole, 20).chain(files.map(once_there_is)).chain(words.map(once_it_says));
    let mut took = vec![world.node("first").ends_in_order()];
    let mut names = vec!["first".to_owned()];
    for (number, comes) in moments.enumerate() {
        let name = format!("f{number}");
        took.push(ends_at(world.node(&name).start(&["--init"]), &comes));
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
        took.extend(some.iter().map(|name| world.node(name).ends_in_order()));
    }
    slowest("founding, and leading alone", &took);
}

#[test]
#[ignore = "full tier"]
fn a_joiner_ends_in_order_at_any_moment_and_joins_once() {
    let mut world = World::with(1, 0);
    let (seed, token) = (world.node("n1").listen.to_string(), world.token(Role::Worker));
    let flags = ["--join", seed.as_str(), "--token", token.as_str()];
    let whole = boot(world.node("w"), &flags);
    let files = ["identity/join.json", "identity/credentials.pem"];
    let (mut took, mut names) = (vec![world.node("w").ends_in_order()], vec!["w".to_owned()]);
    for (number, comes) in all_through(whole, 8).chain(files.map(once_there_is)).enumerate() {
        let name = format!("j{number}");
        took.push(ends_at(world.node(&name).start(&flags), &comes));
        names.push(name);
    }

    // Nobody answers: the manager is frozen.
    world.node("n1").signal(Signal::STOP);
    wait_until(world.node("held").start(&flags), &once_there_is("identity/join.json"));
    took.push(world.node("held").ends_in_order());
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
    took.extend(names.iter().map(|name| world.node(name).ends_in_order()));
    slowest("joining, and as a worker", &took);
}

#[test]
#[ignore = "full tier"]
fn a_node_on_its_way_to_another_role_ends_in_order_and_arrives_there() {
    let mut world = World::with(2, 1);
    let (mut took, mut whole) = (Vec::new(), [Duration::ZERO; 2]);
    let wishes = [("promote", Membership::Voter), ("demote", Membership::None)];
    for (whole, (verb, _)) in whole.iter_mut().zip(wishes) {
        let began = Instant::now();
        world.muster(&["node", verb, "n3", "--wait=300s"]).ended(0);
        *whole = began.elapsed();
    }
    let rounds = 4;
    for round in 0..rounds {
        for (whole, (verb, membership)) in whole.into_iter().zip(wishes) {
            world.muster(&["node", verb, "n3"]).ended(0);
            let node = world.node("n3");
            wait_until(node, &after(whole * round / rounds));
            took.push(node.ends_in_order());
            node.start(&[]).ready();
            eventually_so("it has got there", || world.seen("n1", "n3").is_some_and(|n| n.membership == membership));
            world.all_settled();
        }
    }
    slowest("on the way to another role", &took);
}

/// Wishes of a frozen node are granted; a quorum that is lost before it thaws keeps it from its certificate.
#[test]
#[ignore = "full tier"]
fn a_node_that_waits_for_its_certificate_ends_in_order_and_gets_it_later() {
    let mut world = World::with(2, 1);
    let mut took = Vec::new();
    for (verb, role, membership) in
        [("promote", Role::Manager, Membership::Voter), ("demote", Role::Worker, Membership::None)]
    {
        world.node("n3").signal(Signal::STOP);
        world.muster(&["node", verb, "n3"]).ended(0);
        eventually_so("all but the certificate is done", || {
            let seen = world.seen("n1", "n3").expect("n3 is a node");
            let waits = seen.conditions.iter().any(|c| c.reason == WaitReason::WaitingForCertificate);
            seen.role == role && waits && seen.membership == Membership::None
        });
        world.node("n2").signal(Signal::STOP);
        world.node("n3").signal(Signal::CONT);
        // It has not what it wants yet, and asks; then again as one that has been started in this state.
        eventually_so("it is asking", || world.ask("n3", Request::NodeList { fresh: false }).is_ok());
        took.push(world.node("n3").ends_in_order());
        let node = world.node("n3").start(&[]);
        wait_until(node, &once_there_is("muster.sock"));
        took.push(node.ends_in_order());
        world.node("n2").signal(Signal::CONT);
        world.node("n3").start(&[]).ready();
        eventually_so("it has its role", || world.seen("n1", "n3").is_some_and(|n| n.membership == membership));
        world.all_settled();
    }
    slowest("waiting for a certificate", &took);
}

#[test]
#[ignore = "full tier"]
fn a_learner_ends_in_order_and_votes_later() {
    let mut world = World::with(2, 0);
    let hang = world.folder().join("hang");
    let (seed, token) = (world.node("n1").listen.to_string(), world.token(Role::Worker));
    world.node("n3").disk_hangs_while(&hang).start(&["--join", &seed, "--token", &token]).ready();

    // Its disk hangs, so it never catches up.
    std::fs::write(&hang, "").expect("the world's folder is writable");
    world.muster(&["node", "promote", "n3"]).ended(0);
    let learns = |world: &World| world.seen("n1", "n3").is_some_and(|node| node.membership == Membership::Learner);
    eventually_so("n3 learns", || learns(&world));
    let with_its_disk = world.node("n3").ends_in_order();
    assert!(learns(&world), "still");

    // Its disk works again, but there is no quorum that could make it a voter.
    std::fs::remove_file(&hang).expect("it was there");
    world.node("n2").signal(Signal::STOP);
    wait_until(world.node("n3").start(&[]), &once_there_is("muster.sock"));
    let seat = ActorsAsk::Inspect { path: "node/manager/seat".to_owned() };
    eventually_so("its manager half runs, and asks for its seat", || {
        let seen = world.ask("n3", Request::Actors { node: ActorsOf::Here, ask: seat.clone() });
        seen.is_ok_and(|seat| seat["state"] == "healthy")
    });
    let without_quorum = world.node("n3").ends_in_order();
    world.node("n2").signal(Signal::CONT);
    world.node("n3").start(&[]).ready();
    world.all_settled();
    println!("learning: ended in {with_its_disk:?} with a disk that hangs, in {without_quorum:?} without a quorum");
}

#[test]
#[ignore = "full tier"]
fn followers_and_leaders_end_in_order_while_others_write() {
    let mut world = World::with(3, 1);
    let node = world.seen("n1", "n1").expect("n1 is a node").id;
    let writer = Writer::start(["n1", "n2", "n3"].map(|name| world.socket(name)).to_vec(), node);
    let goes_on = || {
        let seen = writer.acknowledged();
        eventually_so("writes go on", || writer.acknowledged() > seen + 20);
    };
    let leader = world.leader_seen_by("n1");
    let follower = world.other_than(&[&leader, "n4"]);
    // A promotion that waits is work in progress of the leader.
    world.node("n4").signal(Signal::STOP);
    world.muster(&["node", "promote", "n4"]).ended(0);
    for (state, name) in [("following", &follower), ("leading", &leader)] {
        goes_on();
        let took = world.node(name).ends_in_order();
        goes_on();
        let by = world.other_than(&[name, "n4"]);
        assert_ne!(&world.leader_seen_by(&by), name);
        world.node(name).start(&[]).ready();
        eventually_so("it takes its place", || {
            let seen = world.seen(&by, name).expect("a node");
            seen.membership == Membership::Voter && seen.manager.is_some_and(|m| m.reachable)
        });
        println!("{state}: ended in {took:?}");
    }
    world.node("n4").signal(Signal::CONT);
    world.all_settled();
    assert_eq!(world.seen("n1", "n4").map(|node| node.membership), Some(Membership::Voter), "the wish was kept");
    let acknowledged = writer.stop();
    assert_kept(&acknowledged, &world.seen("n2", "n1").expect("n1 is a node"));
}

#[test]
#[ignore = "full tier"]
fn a_leader_without_heirs_and_one_whose_disk_hangs_end_in_order() {
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
        world.node(name).signal(Signal::STOP);
    }
    let without_heirs = world.node("n1").ends_in_order();
    for name in ["n2", "n3"] {
        world.node(name).signal(Signal::CONT);
    }
    world.node("n1").start(&[]).ready();
    lead(&world);
    std::fs::write(&hang, "").expect("the world's folder is writable");
    let disk = |world: &World| world.muster(&["actors", "inspect", "node/manager/raft-member/disk"]).ended(0).json();
    world.muster_at("n2", &["--timeout", "1s", "node", "update", "n1", "--label-add", "a=b"]);
    eventually_so("a write hangs", || disk(&world)["handling"]["message"] == "write");
    let with_its_disk = world.node("n1").ends_in_order();
    std::fs::remove_file(&hang).expect("it was there");
    world.node("n1").start(&[]).ready();
    world.all_settled();
    println!("leading: ended in {without_heirs:?} without heirs, in {with_its_disk:?} with a disk that hangs");
}

#[test]
#[ignore = "full tier"]
fn without_a_quorum_everybody_ends_in_order_and_comes_back() {
    let mut world = World::with(2, 1);
    let (seed, token) = (world.node("n1").listen.to_string(), world.token(Role::Worker));
    world.node("n2").signal(Signal::STOP);
    // Requests that nobody can answer: a write, and a stranger who joins.
    let write = ["--timeout", "60s", "node", "update", "n1", "--label-add", "a=b"];
    let socket = world.socket("n1");
    let args = [&["--socket", socket.to_str().expect("text")], &write[..]].concat();
    let waiting = Front::start(world.folder(), &args);
    world.node("n4").start(&["--join", &seed, "--token", &token]);
    eventually_so("the stranger is being talked to", || {
        let join = world.muster(&["actors", "inspect", "node/manager/join"]).ended(0).json();
        join["view"]["conversations"].as_u64() > Some(0)
    });
    eventually("n1 knows that it lost quorum", || {
        let status = world.muster(&["status"]).ended(0).json();
        (status["stale"] == true).then_some(())
    });
    for name in ["n4", "n3", "n1"] {
        println!("{name} without a quorum: ended in {:?}", world.node(name).ends_in_order());
    }
    drop(waiting);
    // One that has never had a leader since it was started.
    wait_until(world.node("n1").start(&[]), &once_there_is("muster.sock"));
    println!("a candidate: ended in {:?}", world.node("n1").ends_in_order());
    world.node("n2").signal(Signal::CONT);
    println!("whoever thaws alone: ended in {:?}", world.node("n2").ends_in_order());
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
