//! E33: a cluster with tens of thousands of nodes and blocks, as after years.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_kernel::Clock;
use muster_messages::{Blocked, Name, NodeId, NodeRecord, Principal, Role};

use crate::harness::World;

const BLOCKS: u128 = 50_000;
/// A node record is ten times as long as a block.
const NODES: u128 = 3_000;

/// They are added to a backup, which is restored.
#[test]
#[ignore = "full tier"]
fn thousands_of_nodes_and_blocks_survive_snapshot_and_restart() {
    let mut world = World::new();
    let (term, mut tables) = world.backup_of_founder();
    let now = Clock.wall();
    let far = |n: u128| NodeId::from_entropy(1 << 64 | n);
    for n in 0..BLOCKS {
        let expires_at = now.plus(std::time::Duration::from_secs(86_400));
        let blocked = Blocked { node: far(n), by: Principal::Operator, blocked_at: now, expires_at };
        tables.blocklist.insert(far(n), blocked);
    }
    for n in BLOCKS..BLOCKS + NODES {
        let record = NodeRecord::new(far(n), Name::sanitized(&format!("w{n}")), Role::Worker, now);
        tables.nodes.insert(record.id, Arc::new(record));
    }
    world.restored_as_m1(term, &tables);

    let ids = |name: &str, list: &[&str], key: &str| -> BTreeSet<String> {
        let document = world.muster_at(name, list).ended(0).json();
        assert!(document.get("continue").is_none(), "one document");
        let items = document["items"].as_array().expect("items");
        let ids: BTreeSet<String> = items.iter().filter_map(|i| i[key].as_str().map(str::to_owned)).collect();
        assert_eq!(ids.len(), items.len(), "each once");
        ids
    };
    let blocked = ids("m1", &["blocklist", "ls"], "node_id");
    assert!(blocked.len() >= 50_000, "{}", blocked.len());
    assert!(blocked.contains(far(7).as_str()));
    let nodes = ids("m1", &["node", "ls"], "id");
    assert!(nodes.len() > 3_000, "{}", nodes.len());
    assert_eq!(ids("m1", &["cert", "ls"], "node"), nodes);
    world.muster_at("m1", &["node", "update", "w50001", "--label-add", "kept=yes"]).ended(0);

    // A snapshot with all of it reaches a new manager, which lists the same.
    let seed = world.node("m1").listen.to_string();
    let shown = world.muster_at("m1", &["token", "show", "manager"]).ended(0).json();
    let token = shown["token"].as_str().expect("a token is text").to_owned();
    world.node("m2").start(&["--join", &seed, "--token", &token]).ready();
    let listed = |name: &str| {
        let document = world.muster_at(name, &["blocklist", "ls"]).ended(0).json();
        document["items"].as_array().map_or(0, Vec::len)
    };
    assert_eq!(listed("m2"), blocked.len());
    assert_eq!(listed("m1"), blocked.len());
    world.muster_at("m2", &["status"]).ended(0);
}
