//! Obstacles at start and join: each is reported where an operator can fix it.

use std::net::TcpListener;
use std::process::Command;

use muster_messages::wire::Request;
use muster_messages::{Membership, NodeView, Role};

use crate::harness::{EndedMuster, MUSTERD, WallClocks, World, eventually, eventually_so};

/// In seconds.
const FOUR_YEARS: i64 = (4 * 365 + 1) * 86_400;

/// A node's trouble in its own `status`.
fn trouble(world: &World, name: &str) -> String {
    let status = world.ask(name, Request::Status { fresh: false }).unwrap_or_default();
    status["self"]["trouble"].as_str().unwrap_or_default().to_owned()
}

fn message(node: &NodeView) -> String {
    node.conditions.first().map(|condition| condition.message.clone()).unwrap_or_default()
}

/// E41. It joins without a restart once its clock is right.
#[test]
#[ignore = "full tier"]
fn joiner_with_wrong_clock_sees_both_clocks_then_joins() {
    let mut world = World::with(1, 0);
    let clocks = WallClocks::new(world.folder());
    let (seed, token) = (world.node("n1").listen.to_string(), world.token(Role::Worker));
    let this_year = &muster_kernel::Clock.wall().to_string()[..4];
    for (name, years, words) in [("n2", 4, "days ago"), ("n3", -4, "days ahead")] {
        let clock = clocks.of(name);
        clock.set(years / 4 * FOUR_YEARS);
        let node = world.node(name);
        node.environment = clock.environment().into();
        node.start(&["--join", &seed, "--token", &token]);
        eventually_so("it logs the wrong clock", || world.node(name).log().contains("date -u"));
        let log = world.node(name).log();
        let lines: Vec<&str> = log.lines().filter(|line| line.contains("date -u")).collect();
        let [line] = lines[..] else { panic!("one line: {log}") };
        let its_year = (this_year.parse::<i64>().expect("a year") + years).to_string();
        for word in
            [&seed, "TLS", words, this_year, &its_year, "this machine's clock says", &format!("the one at {seed}")]
        {
            assert!(line.contains(word), "{word}: {line}");
        }
        assert!(world.node(name).is_starting());
        clock.set(0);
        world.node(name).ready();
    }
}

/// E41. The operator of this machine does not see what the leader shows.
#[test]
#[ignore = "full tier"]
fn undialable_promoted_node_reports_it_in_log_and_status() {
    let mut world = World::with(1, 0);
    let (seed, token) = (world.node("n1").listen.to_string(), world.token(Role::Worker));
    // A port without a listener.
    let nowhere = world.node("nobody").listen.to_string();
    let node = world.node("n2");
    let listen = node.listen.to_string();
    let mut command = Command::new(MUSTERD);
    command.arg("--data-dir").arg(&node.folder).args(["--name", "n2", "--listen", &listen, "--advertise", &nowhere]);
    std::fs::create_dir_all(&node.folder).expect("the world's folder is writable");
    command.args(["--join", &seed, "--token", &token]);
    node.spawn(command).ready();

    world.muster(&["node", "promote", "n2"]).ended(0);
    eventually_so("its own status shows why", || {
        let trouble = trouble(&world, "n2");
        ["dial_back_failed: ", &nowhere, "--advertise"].iter().all(|word| trouble.contains(word))
    });
    let warned = |line: &str| line.contains(" WARN ") && line.contains("dial_back_failed") && line.contains(&nowhere);
    eventually_so("its log shows why", || world.node("n2").log().lines().any(warned));
    eventually_so("the leader reports the same", || {
        message(&world.seen("n1", "n2").expect("n2 is a node")).contains(&nowhere)
    });

    // At a reachable address it becomes a manager, and the trouble ends.
    world.node("n2").stop();
    world.node("n2").start(&[]).ready();
    world.all_settled();
    eventually_so("its trouble has ended", || trouble(&world, "n2").is_empty());
}

/// E1, S130. A file occupies the path of its Raft directory.
#[test]
#[ignore = "full tier"]
fn failed_manager_runtime_is_reported_to_the_operator() {
    let mut world = World::new();
    world.settings += "[supervision]\nbackoff_cap = \"2s\"\n";
    world.node("n1").start(&["--init"]).ready();
    world.join_more(1, Role::Worker);
    let raft = world.node("n2").folder.join("raft");
    std::fs::write(&raft, "in the way").expect("a worker has no Raft directory");
    let path = raft.display().to_string();

    world.muster(&["node", "promote", "n2"]).ended(0);
    let names_the_cause =
        |text: &str| text.contains("the manager runtime of n2 is not running") && text.contains(&path);
    eventually_so("the leader shows why", || {
        world.seen("n1", "n2").is_some_and(|node| names_the_cause(&message(&node)))
    });
    let socket = world.socket("n1");
    let asked = ["--socket", socket.to_str().expect("text"), "node", "promote", "n2", "--wait=6s"];
    let output = EndedMuster::new(world.folder(), &asked).ended(3).stderr;
    assert!(output.lines().any(|line| line.starts_with("n2: waiting_for_join: ") && names_the_cause(line)), "{output}");
    eventually_so("its own status shows why", || {
        let trouble = trouble(&world, "n2");
        trouble.starts_with("manager_half_failing: ") && trouble.contains(&path)
    });
    let members = world.answer("n1", Request::RaftStatus { fresh: true });
    assert_eq!(
        (members["members"].as_array().map(Vec::len), members["removed_raft_ids"].to_string()),
        (Some(1), "[]".into())
    );

    std::fs::remove_file(&raft).expect("it was there");
    eventually("it votes", || world.seen("n1", "n2").filter(|node| node.membership == Membership::Voter));
    world.all_settled();
    eventually_so("its trouble has ended", || trouble(&world, "n2").is_empty());
}

/// S168, S169.
#[test]
#[ignore = "full tier"]
fn token_of_another_cluster_is_refused_with_explanation() {
    let mut world = World::with(1, 1);
    let mut other = World::with(1, 0);
    let there = (other.node("n1").listen.to_string(), other.token(Role::Worker));
    let here = (world.node("n1").listen.to_string(), world.token(Role::Worker));
    let before = world.seen("n1", "n2").expect("it is a node").id;
    world.node("n2").stop();
    let node = world.node("n2").start(&["--join", &there.0, "--token", &there.1]);
    assert_eq!(node.exit(), Some(6), "{}", node.log());
    let last = node.log().lines().last().unwrap_or_default().to_owned();
    let digests = [&here.1, &there.1].map(|token| token.split('-').nth(2).expect("a digest").to_owned());
    let folder = node.folder.display().to_string();
    for word in ["digest_mismatch", &before.to_string(), &digests[0], &digests[1], &folder, "empty directory"] {
        assert!(last.contains(word), "{word}: {last}");
    }
    assert_eq!(other.nodes_seen_by("n1").len(), 1);
    // A token of its own cluster may stay in its unit file, even long after its rotation.
    world.muster(&["token", "rotate", "worker"]).ended(0);
    world.node("n2").start(&["--join", &here.0, "--token", &here.1]).ready();
    assert!(world.node("n2").log().contains("it resumes"), "{}", world.node("n2").log());
    let now: Vec<_> = world.nodes_seen_by("n1").into_iter().map(|node| node.id).collect();
    assert!(now.len() == 2 && now.contains(&before), "the same nodes: {now:?}");
}

/// S154.
#[test]
#[ignore = "full tier"]
fn taken_port_or_socket_is_named_and_exits_with_status_1() {
    let mut world = World::with(1, 0);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = taken.local_addr().expect("it listens");
    let (socket, file) = (world.socket("n1"), world.folder().join("a file"));
    std::fs::write(&file, "another's").expect("the world's folder is writable");
    let ways: [(&str, Vec<String>, String); 4] = [
        ("n2", vec![], port.to_string()),
        ("n3", vec!["--metrics".into(), port.to_string()], port.to_string()),
        ("n4", vec!["--socket".into(), socket.display().to_string()], socket.display().to_string()),
        ("n5", vec!["--socket".into(), file.display().to_string()], file.display().to_string()),
    ];
    for (name, flags, named) in ways {
        let node = world.node(name);
        if name == "n2" {
            node.listen = port;
        }
        let flags: Vec<&str> = ["--init"].into_iter().chain(flags.iter().map(String::as_str)).collect();
        node.start(&flags);
        assert_eq!(node.exit(), Some(1), "{}", node.log());
        let last = node.log().lines().last().unwrap_or_default().to_owned();
        assert!(last.starts_with("musterd: ") && last.contains(&named), "{name}: {last}");
    }
    assert_eq!(std::fs::read_to_string(&file).expect("it is there"), "another's");
    let (manager, token) = (world.node("n1").listen.to_string(), world.token(Role::Worker));
    let node = world.node("n6");
    node.start(&["--join", &manager, "--token", &token, "--socket", &socket.display().to_string()]);
    assert_eq!(node.exit(), Some(1), "{}", node.log());
    assert_eq!(world.nodes_seen_by("n1").len(), 1, "a node that cannot serve does not join");
}

/// S20, S23. Every client at every manager sees five managers, never two leaders.
#[test]
#[ignore = "full tier"]
fn five_managers_agree_on_one_leader_even_while_killed() {
    let mut world = World::with(5, 0);
    let names = ["n1", "n2", "n3", "n4", "n5"];
    let leaders = |nodes: &[NodeView]| nodes.iter().filter(|n| n.manager.as_ref().is_some_and(|m| m.leader)).count();
    for name in names {
        let nodes = eventually("all managers are reachable", || {
            let nodes = world.nodes_seen_by(name);
            let reachable = |node: &NodeView| node.manager.as_ref().is_some_and(|m| m.reachable);
            (nodes.len() == 5 && nodes.iter().all(reachable)).then_some(nodes)
        });
        assert_eq!(leaders(&nodes), 1, "as {name} sees it");
    }
    for _ in 0..2 {
        let old = world.leader_seen_by(&world.other_than(&[]));
        world.node(&old).kill();
        let mut without = 0;
        eventually_so("all remaining managers name the same new leader", || {
            let mut named = Vec::new();
            for name in names.iter().filter(|name| **name != old) {
                let Ok(list) = world.ask(name, Request::NodeList { fresh: false }) else { continue };
                let list: muster_messages::NodeListView = serde_json::from_value(list).expect("a list of nodes");
                assert!(leaders(&list.items) <= 1, "two lead, as {name} sees it: {:?}", list.items);
                without += usize::from(leaders(&list.items) == 0);
                let leads = |n: &&NodeView| n.manager.as_ref().is_some_and(|m| m.leader);
                named.extend(list.items.iter().find(leads).map(|node| node.name.to_string()));
            }
            named.len() == 4 && named.iter().all(|name| *name == named[0] && *name != old)
        });
        println!("{without} answers of the interregnum named no leader");
        world.node(&old).start(&[]).ready();
        world.all_settled();
    }
}
