//! The real mesh: one process per node, and one mesh in this process with handwritten peers.

mod attacks;
mod bytes;
mod client;
mod harness;
mod node;
mod tree;

use std::time::Duration;

use harness::{DEADLINE, Node, connect, introduce};

/// Not a test: the entry point of the node processes.
#[test]
fn node_process() {
    let Ok(what) = std::env::var("MUSTER_MESH_NODE") else { return };
    let mut words = what.split(' ');
    let mut word = || words.next().expect("number and idle limit");
    let (number, idle) = (word().parse().expect("a number"), word().parse().expect("milliseconds"));
    node::run(number, Duration::from_millis(idle), words.map(str::to_owned).collect());
}

fn packets(lines: &[String], from: u128) -> u64 {
    let count = |l: &String| {
        let words: Vec<&str> = l.split(' ').collect();
        (words[1] == from.to_string()).then(|| words[2].parse::<u64>().expect("a count"))
    };
    lines.iter().filter_map(count).sum()
}

#[test]
fn three_managers_exchange_messages_calls_and_snapshots() {
    let mut nodes = [Node::start(1), Node::start(2), Node::start(3)];
    connect(&mut nodes);

    nodes[0].tell("raft 2 500 1000");
    nodes[1].tell("raft 1 500 1000");
    nodes[1].take_until("packets", |l| packets(l, 1) == 500);
    nodes[0].take_until("packets", |l| packets(l, 2) == 500);

    nodes[2].tell("call 1 hello");
    assert_eq!(nodes[2].wait_for("answer"), "answer ok hello");
    nodes[2].tell("call 1 hold");
    assert_eq!(nodes[2].wait_for("answer"), "answer timed_out");
    nodes[2].tell("call 9 hello");
    assert_eq!(nodes[2].wait_for("answer"), "answer unreachable");

    nodes[0].tell("snapshot 3 5000000");
    assert_eq!(nodes[2].wait_for("snapshot"), "snapshot 1 5000000");
    assert_eq!(nodes[0].wait_for("sent"), "sent true");
    nodes[0].tell("snapshot 3 0");
    assert_eq!(nodes[2].wait_for("snapshot"), "snapshot 1 0");
    assert_eq!(nodes[0].wait_for("sent"), "sent true");
    nodes[0].tell("snapshot 9 10");
    assert_eq!(nodes[0].wait_for("sent"), "sent false");

    nodes[0].tell("forge 2 3");
    // The announcement is counted, and so is the message if it was sent before the answer to the announcement ended the
    // session.
    nodes[1].wait_view("node/mesh", |v| {
        v["endpoint"]["dropped"]["foreign_member_id"].as_u64() >= Some(1)
            && v["offences"][0]["offence"] == "foreign_member_id"
    });
    assert!(nodes[1].received("packets").is_empty());
}

/// B7. A write that a follower forwards waits for that follower's own acknowledgement, which uses the same session.
#[test]
fn large_unanswered_calls_do_not_delay_raft() {
    let mut nodes = [Node::start(1), Node::start(2)];
    connect(&mut nodes);
    nodes[1].tell("hold 1 60 500000");
    assert_eq!(nodes[1].wait_for("held"), "held unreachable", "calls beyond the limit are refused immediately");
    nodes[1].tell("raft 1 100 1000");
    nodes[0].take_until("packets", |l| packets(l, 2) == 100);
    let held = nodes[1].received("held");
    assert!(held.iter().all(|l| l == "held unreachable"), "calls still wait: {held:?}");
}

/// By their bytes, and by their number: one caller may have 256 open to a leader elsewhere.
#[test]
fn calls_of_clients_leave_room_for_own_calls() {
    let mut nodes = [Node::start(1), Node::start(2)];
    connect(&mut nodes);
    nodes[1].tell("clients 1 8 900000");
    for _ in 0..6 {
        assert_eq!(nodes[1].wait_for("client"), "client unreachable", "two are in progress, the others retry");
    }
    nodes[1].tell("clients 1 254 10");
    let peer = format!("node/mesh/peer-{}", node::node(1));
    nodes[1].wait_view(&peer, |view| view["calls_waiting"] == 192 && view["window"]["client_calls"][0] == 64);
    nodes[1].tell("hold 1 1 600000");
    nodes[1].tell("call 1 hello");
    assert_eq!(nodes[1].wait_for("answer"), "answer ok hello");
    assert!(nodes[1].received("held").is_empty(), "the large own call is in progress");
    assert!(nodes[1].received("client").is_empty(), "each of the others still waits");
}

#[test]
fn new_member_announces_its_id_in_existing_session() {
    let mut nodes = [Node::start(1), Node::start(2)];
    // The leader has the greater id and has just probed: it need not wait for the smaller one to dial.
    let addr = nodes[0].addr.clone();
    nodes[1].tell(&format!("probe {addr} 1"));
    assert_eq!(nodes[1].wait_for("probe"), "probe ok");
    nodes[0].wait_for("session 2 up"); // the stream of the probe stays
    introduce(&mut nodes[1..]);
    let members = format!("members 1@{addr} 2@{}", nodes[1].addr);
    nodes[1].tell(&members);
    nodes[0].tell("raft 2 3 10");
    nodes[1].take_until("packets", |l| packets(l, 1) == 3);
    let ended = nodes[1].view("node/mesh")["sessions_ended"].clone();
    assert_eq!(ended, serde_json::json!({}));
}

/// MESH-26. No change of members concerns this session, and no gateway knows it.
#[test]
fn session_of_a_probe_ends_when_its_node_is_demoted() {
    let mut nodes = [Node::start(1), Node::start(2)];
    let addr = nodes[0].addr.clone();
    nodes[1].tell(&format!("probe {addr} 1"));
    assert_eq!(nodes[1].wait_for("probe"), "probe ok");
    nodes[0].wait_for("session 2 up");
    nodes[1].tell("demoted 1");
    nodes[0].wait_for("session 2 down");
    // The other end of a session may notice its end first.
    nodes[1].wait_view("node/mesh", |view| view["sessions_ended"] == serde_json::json!({"cut": 1}));
}

#[test]
fn probe_checks_who_answers() {
    let mut nodes = [Node::start(1), Node::start(2)];
    introduce(&mut nodes[..1]); // node 2 has an empty replica and no member id
    let addr = nodes[1].addr.clone();
    nodes[0].tell(&format!("probe {addr} 2"));
    assert_eq!(nodes[0].wait_for("probe"), "probe ok");
    nodes[0].tell(&format!("probe {addr} 3"));
    assert_eq!(nodes[0].wait_for("probe"), "probe unreachable");
    // A leader that has moved probes itself.
    let own = nodes[0].addr.clone();
    for (addr, answer) in [(&own, "probe ok"), (&addr, "probe unreachable")] {
        nodes[0].tell(&format!("probe {addr} 1"));
        assert_eq!(nodes[0].wait_for("probe"), answer);
    }
    nodes[1].kill();
    nodes[0].tell(&format!("probe {addr} 2"));
    assert_eq!(nodes[0].wait_for("probe"), "probe unreachable");
}

#[test]
fn greater_id_dials_if_smaller_does_not_know_it() {
    let mut nodes = [Node::start(1), Node::start(2)];
    let members = format!("members 1@{} 2@{}", nodes[0].addr, nodes[1].addr);
    nodes[1].tell(&members);
    nodes[1].wait_for("session 1 up");
    nodes[0].wait_for("session 2 up");
}

/// E30. Each knows only the others' old addresses; two have a hint.
#[test]
fn managers_that_all_moved_find_each_other_by_hints() {
    let first = Node::start(1);
    let hinted = [2, 3].map(|number| Node::start_with_hints(number, &[&first.addr]));
    let [second, third] = hinted;
    let mut nodes = [first, second, third];
    for node in &mut nodes {
        node.tell("members 1@127.0.0.1:1 2@127.0.0.1:2 3@127.0.0.1:3");
    }
    for n in [1, 2] {
        nodes[n].wait_for("session 1 up");
        nodes[0].wait_for(&format!("session {} up", nodes[n].number));
    }
    nodes[2].tell("call 1 hello");
    assert_eq!(nodes[2].wait_for("answer"), "answer ok hello");
}

#[test]
fn killed_leader_is_reported_and_its_restart_is_found() {
    let mut nodes = vec![Node::start(1), Node::start(2)];
    connect(&mut nodes);
    nodes[0].tell("leader 2");
    nodes[0].view("node/mesh"); // commands are executed in order: it knows the leader now
    nodes[1].kill();
    nodes[0].wait_for("session 2 down");
    nodes[0].wait_for("leader_gone 2");
    nodes[1] = Node::start(2);
    connect(&mut nodes);
}

#[test]
fn paused_peer_costs_bounded_memory_and_reconnects() {
    let mut nodes = vec![Node::start_with_idle(1, Duration::from_secs(7)), Node::start(2)];
    connect(&mut nodes);
    nodes[1].pause();
    let before = nodes[0].rss_mib();
    nodes[0].tell("raft 2 40000 4000"); // 160 MB if all were kept
    nodes[0].wait_for("session 2 down");
    let grown = nodes[0].rss_mib().saturating_sub(before);
    assert!(grown < 48, "a paused peer cost {grown} MiB");
    nodes[1].resume();
    nodes[0].wait_for("session 2 up");
    nodes[0].tell("call 2 hello");
    assert_eq!(nodes[0].wait_for("answer"), "answer ok hello");
}

#[test]
fn crashed_endpoint_peer_or_mesh_recovers() {
    let mut nodes = vec![Node::start(1), Node::start(2)];
    connect(&mut nodes);
    let peer = format!("node/mesh/peer-{}", node::node(2));
    for path in ["node/mesh/endpoint", peer.as_str(), "node/mesh"] {
        nodes[0].tell(&format!("crash {path}"));
        nodes[0].wait_view(path, |v| v["incarnation"] == 2);
        let text = format!("after-{}", path.len());
        // A call may fail during the restart; the test waits until calls are answered again.
        let until = std::time::Instant::now() + DEADLINE;
        let mut answered = String::new();
        while !answered.starts_with("answer ok") && std::time::Instant::now() < until {
            nodes[1].tell(&format!("call 1 {text}"));
            answered = nodes[1].wait_for("answer");
        }
        assert_eq!(answered, format!("answer ok {text}"), "after the crash of {path}");
        nodes[0].tell(&format!("view node/mesh/peer-{}", node::node(1)));
        assert_eq!(nodes[0].wait_for("view"), "view {}", "no peer actor for the node itself after the crash of {path}");
    }
    nodes[0].wait_view("node/mesh", |v| v["peers"][0]["state"] == "up");
}
