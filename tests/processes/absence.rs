//! Nodes that were away: until their certificates expired, or until they returned at another address.

use std::time::Duration;

use muster_kernel::Clock;
use muster_local_cluster::free_address;
use muster_messages::wire::Request;
use muster_messages::{NodeView, RaftId, Role};

use crate::harness::{WallClocks, World, eventually_so};

const DAY: i64 = 86_400;

fn member_of(node: &NodeView) -> Option<RaftId> {
    node.manager.as_ref().map(|manager| manager.raft_id)
}

/// E39, S165. No node can renew certificates any more: the managers sign for themselves, the worker needs a token.
#[test]
#[ignore = "full tier"]
fn cluster_restarts_after_certificates_expired() {
    let mut world = World::new();
    let clock = WallClocks::new(world.folder()).of("everybody");
    for name in ["n1", "n2", "n3"] {
        world.node(name).environment = clock.environment().into();
    }
    world.node("n1").start(&["--init"]).ready();
    let seed = world.node("n1").listen.to_string();
    for (name, role) in [("n2", Role::Manager), ("n3", Role::Worker)] {
        let token = world.token(role);
        world.node(name).start(&["--join", &seed, "--token", &token]).ready();
    }
    world.all_settled();
    let before: Vec<_> = world.nodes_seen_by("n1").into_iter().map(|n| (n.name, n.id, n.role)).collect();
    for name in ["n3", "n2", "n1"] {
        world.node(name).stop();
    }
    clock.set(100 * DAY);
    for name in ["n1", "n2"] {
        world.node(name).start(&[]);
    }
    for name in ["n1", "n2"] {
        world.node(name).ready();
    }
    // A token for its own role: any other would make a stolen old key more powerful than before.
    let token = world.token(Role::Worker);
    world.node("n3").start(&["--join", &seed, "--token", &token]).ready();
    world.all_settled();
    let after: Vec<_> = world.nodes_seen_by("n1").into_iter().map(|n| (n.name, n.id, n.role)).collect();
    assert_eq!(before, after, "ids and roles are unchanged");
    // The certificates that managers signed for themselves are replaced by recorded ones, and renewed like any other.
    let later = Clock.wall().plus(Duration::from_secs(101 * DAY.unsigned_abs()));
    let is_long_lived = |node: &NodeView| node.certificate.not_after.is_some_and(|end| end > later);
    eventually_so("every node has a full-length certificate", || world.nodes_seen_by("n1").iter().all(is_long_lived));
    world.muster(&["cert", "rotate", "n1", "n2"]).ended(0);
    world.all_settled();
}

/// E30.
#[test]
#[ignore = "full tier"]
fn restart_at_new_address_keeps_node_id_and_member_id() {
    let mut world = World::with(3, 1);
    let before = world.nodes_seen_by("n1");
    // One manager; a worker; then two of the three managers at once.
    for movers in [&["n2"][..], &["n4"], &["n2", "n3"]] {
        for name in movers {
            world.node(name).stop();
        }
        for name in movers {
            let node = world.node(name);
            node.listen = free_address().expect("a port is free");
            node.start(&[]);
        }
        for name in movers {
            let now = world.node(name).ready().listen;
            eventually_so("the cluster knows its new address", || {
                world.seen("n1", name).is_some_and(|node| node.addr == now)
            });
        }
        world.all_settled();
    }
    world.muster(&["node", "update", "n4", "--label-add", "written=after"]).ended(0);
    for old in before {
        let new = world.seen("n1", old.name.as_str()).expect("it is a node");
        assert_eq!((new.id, member_of(&new)), (old.id, member_of(&old)), "{}", old.name);
    }
    members_are_where_they_listen(&mut world, &["n1", "n2", "n3"]);
}

/// Peers dial members at the addresses in the log.
#[track_caller]
fn members_are_where_they_listen(world: &mut World, names: &[&str]) {
    let listens: Vec<String> = names.iter().map(|name| world.node(name).listen.to_string()).collect();
    eventually_so("the members' addresses are current", || {
        let members = world.answer("n1", Request::RaftStatus { fresh: true })["members"].to_string();
        listens.iter().all(|address| members.contains(address))
    });
}

/// No other node can dial it back.
#[test]
#[ignore = "full tier"]
fn only_manager_may_change_address() {
    let mut world = World::with(1, 0);
    world.node("n1").stop();
    world.node("n1").listen = free_address().expect("a port is free");
    world.node("n1").start(&[]).ready();
    members_are_where_they_listen(&mut world, &["n1"]);
    world.join_more(1, Role::Worker);
}

/// E30, S94. All addresses in the cluster are outdated. Two managers and the worker are given the third manager's new address; the third
/// is given none.
#[test]
#[ignore = "full tier"]
fn managers_reconnect_after_all_changed_address() {
    let mut world = World::with(3, 1);
    let names = ["n1", "n2", "n3", "n4"];
    let before = world.nodes_seen_by("n1");
    for name in names {
        world.node(name).stop();
        world.node(name).listen = free_address().expect("a port is free");
    }
    let seed = world.node("n1").listen.to_string();
    world.node("n1").start(&[]);
    for name in ["n2", "n3", "n4"] {
        world.node(name).start(&["--join", &seed]);
    }
    for name in names {
        let now = world.node(name).ready().listen;
        eventually_so("the cluster knows its new address", || {
            world.seen("n1", name).is_some_and(|node| node.addr == now)
        });
    }
    world.all_settled();
    members_are_where_they_listen(&mut world, &["n1", "n2", "n3"]);
    world.muster(&["node", "update", "n4", "--label-add", "written=after"]).ended(0);
    for old in before {
        let new = world.seen("n1", old.name.as_str()).expect("it is a node");
        assert_eq!((new.id, member_of(&new)), (old.id, member_of(&old)), "{}", old.name);
    }
    // The next start needs no address.
    for name in names {
        world.node(name).stop();
    }
    for name in names {
        world.node(name).start(&[]);
    }
    for name in names {
        world.node(name).ready();
    }
}
