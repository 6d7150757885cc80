//! E33: tens of thousands of removed nodes.

use muster_messages::*;
use muster_store::snapshot::{decode, encode};

use crate::world::*;

const MANY: u128 = 50_000;

fn far(n: u128) -> NodeId {
    NodeId::from_entropy(1 << 64 | n)
}

/// However many nodes were removed, commands are accepted, snapshots succeed, and sweeps finish.
#[test]
fn fifty_thousand_blocks_are_written_kept_and_swept() {
    let mut world = World::founded();
    let ends = |n: u128| WallTime(T0.0 + if n.is_multiple_of(2) { HOUR } else { 2 * HOUR });
    let block =
        |n: u128| Change::Block(Blocked { node: far(n), by: Principal::Operator, blocked_at: T0, expires_at: ends(n) });
    for first in (0..MANY).step_by(500) {
        world.apply(command((first..first + 500).map(block))).unwrap();
    }
    muster_store::invariants::check(&world.tables).unwrap();
    assert_eq!(world.tables.blocklist.len(), 50_000);
    world.refused(command([Change::CreateNode(Box::new(NodeRecord { id: far(7), ..node(9, Role::Worker) }))]));

    let bytes = encode(&world.tables);
    assert!(bytes.len() < 16 << 20, "{} bytes", bytes.len());
    assert_eq!(decode(&bytes).unwrap(), world.tables);

    let now = WallTime(T0.0 + HOUR);
    let over: Vec<NodeId> = world.tables.blocklist.values().filter(|b| b.expires_at <= now).map(|b| b.node).collect();
    assert_eq!(over.len(), 25_000);
    for page in over.chunks(256) {
        let sweep = command(page.iter().map(|node| Change::Unblock(*node)));
        let sweep = page.iter().fold(sweep, |c, node| c.guard(Guard::BlockExpired { node: *node, at: now }));
        world.apply(sweep).unwrap();
    }
    assert_eq!(world.tables.blocklist.len(), 25_000);
    assert!(world.tables.blocklist.values().all(|b| b.expires_at > now));
    muster_store::invariants::check(&world.tables).unwrap();
}

#[test]
fn duplicate_identity_is_an_event_and_changes_nothing() {
    let mut world = World::founded().with([(2, Role::Worker)]);
    let before = world.record(2).clone();
    let duplicate = |n, processes: &[&str]| {
        let processes = processes.iter().map(|p| (*p).to_owned()).collect();
        command([Change::RecordDuplicate { node: id(n), processes }])
    };
    world.must(duplicate(2, &["10.0.0.1:4400", "10.0.0.2:4400"]));
    world.must(duplicate(2, &[]));
    let events: Vec<_> = world.tables.events.iter().rev().take(2).map(|e| (e.kind, e.node, e.after.clone())).collect();
    let event = |text: &str| (EventKind::Node, Some(id(2)), Some(text.to_owned()));
    assert_eq!(events, [event("one process uses its identity"), event("10.0.0.1:4400 and 10.0.0.2:4400")]);
    assert_eq!(*world.record(2), before);
    world.refused(duplicate(9, &["a", "b"]));
}
