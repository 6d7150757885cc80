//! A malicious manager with a valid certificate. Each attack costs it its session and is counted; the other managers
//! are not affected.

use std::time::{Duration, Instant};

use muster_messages::RaftId;
use muster_messages::wire::{PeerMessage, PeerReply, SnapshotHead};
use serde_json::Value;

use crate::client::{Client, ENDPOINT, announce, call, control, envelope, nested, number};
use crate::harness::{DEADLINE, Node, connect};
use crate::node::packet;

/// Two managers in session, and the address of the first one.
fn pair() -> (Vec<Node>, String) {
    let mut nodes = vec![Node::start(1), Node::start(2)];
    connect(&mut nodes);
    let addr = nodes[0].addr.clone();
    (nodes, addr)
}
fn offences(view: &Value, kind: &str) -> u64 {
    let rows = view["offences"].as_array().into_iter().flatten();
    rows.filter(|r| r["offence"] == kind).filter_map(|r| r["count"].as_u64()).sum()
}
fn assert_in_session(nodes: &mut [Node]) {
    nodes[1].tell("call 1 still");
    assert_eq!(nodes[1].wait_for("answer"), "answer ok still");
    assert!(nodes[1].received("session 1 down").is_empty());
}
/// One attack, by a separate node: it ends that node's session, and is counted as `kind`.
async fn check(nodes: &mut [Node], (by, kind): (u8, &str), payload: impl FnOnce(&Client) -> Vec<u8>) {
    let before = offences(&nodes[0].view("node/mesh"), kind);
    let mut client = Client::join(&nodes[0].addr, by).await;
    let payload = payload(&client);
    client.send(&payload).await;
    client.wait_end().await;
    nodes[0].wait_view("node/mesh", |v| offences(v, kind) == before + 1);
}

#[tokio::test]
async fn malicious_manager_loses_only_its_own_session() {
    let (mut nodes, _) = pair();
    let nodes = nodes.as_mut_slice();
    check(nodes, (10, "foreign_actor"), |_| announce([ENDPOINT + 1])).await;
    check(nodes, (11, "foreign_actor"), |_| announce([ENDPOINT, ENDPOINT + 1])).await;
    let group = [nested(1, b"managers"), nested(2, &number(1, ENDPOINT)), nested(3, b"mesh")].concat();
    check(nodes, (12, "group"), |_| control(5, &group)).await;
    check(nodes, (13, "sessions"), |_| control(7, &nested(1, b"me"))).await;
    check(nodes, (14, "sessions"), |_| control(8, &nested(1, &nested(3, b"127.0.0.1:1")))).await;
    check(nodes, (15, "cast"), |c| nested(2, &nested(1, &number(1, c.victim.endpoint_pid)))).await;
    let message = envelope(1, PeerMessage::Raft(vec![]));
    check(nodes, (16, "foreign_endpoint"), |c| call(c.victim.endpoint_pid + 1, &message, 1, 100)).await;
    check(nodes, (17, "wrong_tag"), |c| {
        let message = envelope(c.victim.tag ^ 1, PeerMessage::Raft(vec![packet(17, 1, 1, 1)]));
        call(c.victim.endpoint_pid, &message, 1, 100)
    })
    .await;
    check(nodes, (18, "unasked_reply"), |_| {
        nested(2, &nested(3, &[number(1, ENDPOINT), number(2, 99), nested(3, b"x")].concat()))
    })
    .await;
    check(nodes, (19, "malformed"), |_| vec![0xff; 50]).await;
    assert_in_session(nodes);
    assert!(nodes[0].received("packets").is_empty());
}

#[tokio::test]
async fn mass_announcements_cost_the_session_and_little_memory() {
    let (mut nodes, addr) = pair();
    let before = nodes[0].rss_mib();
    // In one frame, and one at a time.
    check(&mut nodes, (8, "foreign_actor"), |_| announce(0..100_000)).await;
    let mut client = Client::join(&addr, 9).await;
    let frame = announce([ENDPOINT + 1]);
    let one = [&(frame.len() as u64).to_be_bytes()[..], &frame].concat();
    client.send_raw(&one.repeat(100_000)).await;
    client.wait_end().await;
    nodes[0].wait_view("node/mesh", |v| offences(v, "foreign_actor") == 2);
    let grown = nodes[0].rss_mib().saturating_sub(before);
    assert!(grown < 16, "100,000 announcements cost {grown} MiB");
    assert_in_session(&mut nodes);
}

#[tokio::test]
async fn a_frame_over_the_limit_ends_the_session_before_it_is_read() {
    let (mut nodes, addr) = pair();
    for (by, length) in [(9, 2 << 20), (10, u64::MAX / 2), (11, u64::MAX)] {
        let mut client = Client::join(&addr, by).await;
        client.send_raw(&length.to_be_bytes()).await;
        client.wait_end().await;
    }
    nodes[0].wait_view("node/mesh", |v| offences(v, "oversized") == 3);
    assert_in_session(&mut nodes);
}

#[tokio::test]
async fn a_flood_of_pings_ends_the_session() {
    let (mut nodes, addr) = pair();
    let mut client = Client::join(&addr, 9).await;
    let frame = control(3, &nested(1, &number(1, 5)));
    let one = [&(frame.len() as u64).to_be_bytes()[..], &frame].concat();
    client.send_raw(&one.repeat(100_000)).await;
    client.wait_end().await;
    nodes[0].wait_view("node/mesh", |v| offences(v, "flood") == 1);
    assert_in_session(&mut nodes);
}

#[tokio::test]
async fn another_nodes_name_opens_no_session() {
    let (mut nodes, addr) = pair();
    let mut client = Client::greet(&addr, 9).await;
    client.authenticate(2).await;
    client.wait_end().await;
    nodes[0].wait_view("node/mesh", |v| offences(v, "handshake") == 1);
    assert_in_session(&mut nodes);
}

/// Its member id changed and this replica does not know: its messages are dropped, without an offence.
#[tokio::test]
async fn messages_with_unknown_member_id_are_no_offence() {
    let (mut nodes, addr) = pair();
    let mut client = Client::join(&addr, 9).await;
    let tag = client.victim.tag;
    let other_member_ids =
        envelope(tag, PeerMessage::Raft(vec![packet(30, 1, 1, 1), packet(8, 1, 2, 1), packet(9, 1, 3, 1)]));
    assert_eq!(client.ask(&other_member_ids).await, Some(PeerReply::Taken));
    let head = SnapshotHead { index: 5, term: 1, voters: vec![1], learners: vec![], bytes: 1, digest: [0; 32] };
    let piece = PeerMessage::SnapshotChunk { head, from: RaftId(30), offset: 0, data: vec![1], last: None };
    let answer = client.ask(&envelope(tag, piece)).await;
    assert!(matches!(answer, Some(PeerReply::Refused { .. })), "{answer:?}");
    let view = nodes[0].wait_view("node/mesh", |v| v["endpoint"]["dropped"]["unknown_member_id"] == 3);
    assert_eq!(
        (&view["endpoint"]["dropped"]["foreign_member_id"], &view["offences"]),
        (&0.into(), &serde_json::json!([]))
    );
    // Messages of the announced member id, in the same batch, arrive.
    assert_eq!(nodes[0].wait_for("packets"), "packets 9 1 3");
    assert_in_session(&mut nodes);
}

#[tokio::test]
async fn forged_and_malformed_messages_are_dropped_and_counted() {
    let (mut nodes, addr) = pair();
    let mut client = Client::join(&addr, 9).await;
    let tag = client.victim.tag;
    let forged = envelope(tag, PeerMessage::Raft(vec![packet(2, 1, 1, 1), packet(2, 1, 2, 1)]));
    assert_eq!(client.ask(&forged).await, Some(PeerReply::Taken));
    nodes[0].wait_view("node/mesh", |v| v["endpoint"]["dropped"]["foreign_member_id"] == 2);
    // A message that is correct up to its tag, then declares 2^46 packets.
    let mut bomb = envelope(tag, PeerMessage::Raft(vec![]));
    bomb.pop();
    bomb.extend([253, 0, 0, 0, 0, 0, 64, 0, 0]);
    let refused = PeerReply::Refused { reason: "malformed".into() };
    assert_eq!(client.ask(&bomb).await, Some(refused.clone()));
    let mut garbage = envelope(tag, PeerMessage::Raft(vec![]));
    garbage.extend([0xff; 1000]);
    assert_eq!(client.ask(&garbage).await, Some(refused));
    nodes[0].wait_view("node/mesh", |v| v["endpoint"]["dropped"]["malformed"] == 2);
    assert!(nodes[0].received("packets").is_empty());
    // Its own member id still works: the session is open.
    let own = envelope(tag, PeerMessage::Raft(vec![packet(9, 1, 1, 1)]));
    assert_eq!(client.ask(&own).await, Some(PeerReply::Taken));
    assert_eq!(nodes[0].wait_for("packets"), "packets 9 1 1");
    assert_in_session(&mut nodes);
}

#[tokio::test]
async fn endless_calls_are_gated_and_cost_bounded_memory() {
    let (mut nodes, addr) = pair();
    let mut client = Client::join(&addr, 9).await;
    let before = nodes[0].rss_mib();
    let request = muster_messages::wire::MembershipRequest {
        advertise: "hold".into(),
        held: None,
        data_lost: None,
        feature_level: muster_messages::FEATURE_LEVEL,
    };
    let asked = muster_messages::wire::PeerCall::Membership { node: crate::node::node(9), request };
    let message = envelope(client.victim.tag, PeerMessage::Call(asked));
    let frame = call(client.victim.endpoint_pid, &message, 1, 60_000);
    let one = [&(frame.len() as u64).to_be_bytes()[..], &frame].concat();
    let many = one.repeat(1000);
    // 100,000 unanswered calls, from a client that reads nothing.
    let flooding = async {
        for _ in 0..100 {
            client.send_raw(&many).await;
        }
    };
    let _stuck = tokio::time::timeout(Duration::from_secs(3), flooding).await;
    let grown = nodes[0].rss_mib().saturating_sub(before);
    assert!(grown < 48, "unanswered calls cost {grown} MiB");
    assert_in_session(&mut nodes);
}

#[tokio::test]
async fn manager_that_stops_reading_costs_bounded_memory() {
    let (mut nodes, addr) = pair();
    let _mute = Client::join(&addr, 9).await;
    nodes[0].wait_for("session 9 up");
    let before = nodes[0].rss_mib();
    nodes[0].tell("raft 9 40000 4000"); // 160 MB if all were kept
    nodes[0].wait_for("session 9 down");
    let grown = nodes[0].rss_mib().saturating_sub(before);
    assert!(grown < 48, "a mute peer cost {grown} MiB");
    let view = nodes[0].view("node/mesh");
    assert_eq!(view["sessions_ended"]["unanswered"], 1, "{view:#}");
    assert_in_session(&mut nodes);
}

#[tokio::test]
async fn an_offender_waits_before_its_next_session() {
    let (mut nodes, addr) = pair();
    let mut offended = Instant::now();
    let offence = |_: &Client| {
        offended = Instant::now();
        vec![0xff; 50]
    };
    check(&mut nodes, (9, "malformed"), offence).await;
    // On a busy machine it may be over before the first attempt.
    while Client::try_greet(&addr, 9).await.is_none() {
        assert!(offended.elapsed() < DEADLINE, "it is never accepted again");
    }
    let waited = offended.elapsed();
    assert!(waited >= Duration::from_secs(1), "accepted after {waited:?}");
    assert_in_session(&mut nodes);
}
