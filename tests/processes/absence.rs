//! Nodes that were away: for so long that their certificates expired, or until they came back somewhere else.

use std::time::Duration;

use muster_kernel::Clock;
use muster_local_cluster::free_address;
use muster_messages::wire::Request;
use muster_messages::{NodeView, RaftId, Role};

use crate::harness::{WallClocks, World, eventually_so};

const DAY: i64 = 86_400;

fn seat_of(node: &NodeView) -> Option<RaftId> {
    node.manager.as_ref().map(|manager| manager.raft_id)
}

/// E39, S165. Nobody is left who could renew a certificate: the managers sign for themselves, the worker needs a token.
#[test]
#[ignore = "full tier"]
fn a_cluster_that_was_off_for_longer_than_a_certificate_lives_comes_back() {
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
    // A token of its own role: another one would make a stolen old key worth more than it was.
    let token = world.token(Role::Worker);
    world.node("n3").start(&["--join", &seed, "--token", &token]).ready();
    world.all_settled();
    let after: Vec<_> = world.nodes_seen_by("n1").into_iter().map(|n| (n.name, n.id, n.role)).collect();
    assert_eq!(before, after, "ids and roles are what they were");
    // What the managers signed for themselves is replaced by what is on record, and renewed like any other.
    let later = Clock.wall().plus(Duration::from_secs(101 * DAY.unsigned_abs()));
    let lives_on = |node: &NodeView| node.certificate.not_after.is_some_and(|end| end > later);
    eventually_so("everybody has a whole certificate", || world.nodes_seen_by("n1").iter().all(lives_on));
    world.muster(&["cert", "rotate", "n1", "n2"]).ended(0);
    world.all_settled();
}

/// E30.
#[test]
#[ignore = "full tier"]
fn nodes_that_come_back_at_another_address_keep_identity_and_seat() {
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
            eventually_so("the cluster knows where it is", || {
                world.seen("n1", name).is_some_and(|node| node.addr == now)
            });
        }
        world.all_settled();
    }
    world.muster(&["node", "update", "n4", "--label-add", "written=after"]).ended(0);
    for old in before {
        let new = world.seen("n1", old.name.as_str()).expect("it is a node");
        assert_eq!((new.id, seat_of(&new)), (old.id, seat_of(&old)), "{}", old.name);
    }
    members_are_where_they_listen(&mut world, &["n1", "n2", "n3"]);
}

/// Others dial members where the log says.
#[track_caller]
fn members_are_where_they_listen(world: &mut World, names: &[&str]) {
    let listens: Vec<String> = names.iter().map(|name| world.node(name).listen.to_string()).collect();
    eventually_so("the members' addresses are those at which they listen", || {
        let members = world.answer("n1", Request::RaftStatus { fresh: true })["members"].to_string();
        listens.iter().all(|address| members.contains(address))
    });
}

/// Nobody else is there to dial it back.
#[test]
#[ignore = "full tier"]
fn the_only_manager_may_move() {
    let mut world = World::with(1, 0);
    world.node("n1").stop();
    world.node("n1").listen = free_address().expect("a port is free");
    world.node("n1").start(&[]).ready();
    members_are_where_they_listen(&mut world, &["n1"]);
    world.join_more(1, Role::Worker);
}

/// E30, S94. Nobody is where anybody knows him to be. Two managers and the worker are told where the third is now; that one is
/// told nothing.
#[test]
#[ignore = "full tier"]
fn managers_that_all_come_back_at_other_addresses_at_once_find_each_other() {
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
        eventually_so("the cluster knows where it is", || world.seen("n1", name).is_some_and(|node| node.addr == now));
    }
    world.all_settled();
    members_are_where_they_listen(&mut world, &["n1", "n2", "n3"]);
    world.muster(&["node", "update", "n4", "--label-add", "written=after"]).ended(0);
    for old in before {
        let new = world.seen("n1", old.name.as_str()).expect("it is a node");
        assert_eq!((new.id, seat_of(&new)), (old.id, seat_of(&old)), "{}", old.name);
    }
    // They need no telling the next time.
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
