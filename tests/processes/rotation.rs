//! Replacing the root that signs the cluster's certificates.

use std::path::PathBuf;

use muster_messages::wire::Request;
use muster_messages::{AuthorityState, Liveness, NodeView, RootId, RootsView};
use muster_pki::{IdentityStore, root_id_of_pem};
use serde_json::Value;

use crate::harness::{ForegroundMuster, World, Writer, assert_kept, eventually, eventually_so};

/// The former root is retired as soon as no node needs it.
pub const AT_ONCE: &str = "[roots]\nretire_after = \"0s\"\n";

pub fn roots(world: &World, name: &str) -> RootsView {
    serde_json::from_value(world.answer(name, Request::RootList)).expect("a typed document")
}

pub fn state(roots: &RootsView, id: RootId) -> Option<AuthorityState> {
    roots.items.iter().find(|root| root.id == id).map(|root| root.state)
}

/// The roots that a node trusts, by its disk.
pub fn trusted_by(world: &mut World, name: &str) -> Vec<RootId> {
    let store = IdentityStore::open(&world.node(name).folder).expect("the directory is a node's");
    let credentials = store.load_credentials().expect("readable").expect("an identity");
    let pem = credentials.root_pem;
    let blocks = pem.split_inclusive("-----END CERTIFICATE-----").filter(|block| block.contains("BEGIN"));
    blocks.map(|block| root_id_of_pem(block).expect("a root")).collect()
}

/// The fencing token of a lease, and how often it changed hands.
fn tenure(lease: &Value) -> (Option<u64>, Option<u64>) {
    (lease["fencing_token"].as_u64(), lease["transitions"].as_u64())
}

#[test]
fn rotation_replaces_the_root_and_disturbs_no_work() {
    let mut world = World::with_settings(AT_ONCE, 3, 2);
    let sockets: Vec<PathBuf> = ["n1", "n2", "n3"].map(|name| world.socket(name)).to_vec();
    let writer = Writer::start(sockets, world.seen("n1", "n1").expect("n1 is a node").id);
    let socket = world.socket("n2");
    let socket = socket.to_str().expect("the folder's path is text");
    let _holder = ForegroundMuster::start_for_command(
        world.folder(),
        &["--socket", socket, "elect", "kept", "--id", "holder", "--", "sleep", "3600"],
    );
    let lease = |world: &World| world.muster(&["lease", "get", "kept"]);
    let held = eventually("the lease is held", || {
        let lease = lease(&world);
        (lease.code == 0 && !lease.json()["holder"].is_null()).then(|| tenure(&lease.json()))
    });
    let before = roots(&world, "n1");
    let old = before.active.expect("a root signs");
    let written = writer.acknowledged();

    let done = world.muster(&["ca", "rotate", "--wait=300s"]).ended(0).json();
    let after = roots(&world, "n1");
    let new = after.active.expect("a root signs");
    assert_ne!(new, old, "{done}");
    assert_eq!(after.renewed.n, 5, "{after:?}");
    eventually_so("the old root is retired", || state(&roots(&world, "n1"), old) == Some(AuthorityState::Retired));
    for name in ["n1", "n2", "n3", "n4", "n5"] {
        eventually_so("each node trusts the new root only", || trusted_by(&mut world, name) == [new]);
    }
    let certificates = world.muster(&["cert", "ls"]).ended(0).json();
    let issuers: Vec<&str> =
        certificates["items"].as_array().expect("a list").iter().filter_map(|c| c["issuer"].as_str()).collect();
    assert_eq!(issuers, vec![new.to_string(); 5]);

    eventually_so("writes go on", || writer.acknowledged() > written + 20);
    assert_eq!(tenure(&lease(&world).ended(0).json()), held, "the lease was neither lost nor taken again");
    let events = world.muster(&["events"]).ended(0).json();
    let down = events["items"].as_array().expect("a list").iter().filter(|event| event["after"] == "down").count();
    assert_eq!(down, 0, "no node was shown down");
    let last = writer.stop();
    assert_kept(&last, &world.seen("n1", "n1").expect("n1 is a node"));
    // A token from before leads a new machine to the present root.
    let joined = world.join_more(1, muster_messages::Role::Worker);
    assert_eq!(trusted_by(&mut world, &joined[0]), [new]);
}

/// The command ends when the copy of a manager's disk has lost its worth: the root is revoked, the tokens in it admit no node.
#[test]
fn compromised_rotation_waits_until_the_root_is_revoked() {
    let mut world = World::with_settings("", 3, 1);
    let token = |world: &World, role: &str| world.muster(&["token", "show", role]).ended(0).json()["token"].clone();
    let before = ["manager", "worker"].map(|role| token(&world, role));
    let old = roots(&world, "n1").active.expect("a root signs");
    let signs = world.muster(&["ca", "revoke", &old.to_string()]).ended(8);
    assert_eq!(signs.error_code(), "conflict", "the root that signs");

    let done = world.muster(&["ca", "rotate", "--compromised", "--wait=300s"]).ended(0).json();
    assert_eq!(done["settled"], true, "{done}");
    let after = roots(&world, "n1");
    assert_eq!(state(&after, old), Some(AuthorityState::Revoked), "{after:?}");
    let digest = world.muster(&["ca", "show"]).ended(0).json()["digest"].as_str().expect("text").to_owned();
    for (role, before) in ["manager", "worker"].into_iter().zip(before) {
        let now = token(&world, role);
        let (now, before) = (now.as_str().expect("text"), before.as_str().expect("text"));
        assert!(now.contains(&digest), "{role}");
        assert_ne!(now.rsplit('-').next(), before.rsplit('-').next(), "another secret for {role}");
    }
    let refused = world.muster(&["ca", "activate", &old.to_string()]).ended(8);
    assert_eq!(refused.error_code(), "conflict", "it never signs again");
    world.join_more(1, muster_messages::Role::Worker);
}

/// A rotation does not wait for nodes that are away, and they come back by their recorded certificates, although their root is gone.
#[test]
#[ignore = "full tier"]
fn absent_nodes_return_after_their_root_was_retired() {
    let mut world = World::with_settings(AT_ONCE, 3, 3);
    for name in ["n3", "n5", "n6"] {
        // A node whose first host dies before it has reported it stays unknown, and is never down.
        world.is_recorded_as_ready("n1", name);
    }
    for name in ["n3", "n5", "n6"] {
        world.node(name).kill();
    }
    let is_down = |world: &World, name: &str| world.seen("n1", name).is_some_and(|node| node.state == Liveness::Down);
    for name in ["n3", "n5", "n6"] {
        eventually_so("it is down", || is_down(&world, name));
    }
    let mut old = Vec::new();
    for _ in 0..2 {
        old.extend(roots(&world, "n1").active);
        let done = world.muster(&["ca", "rotate", "--wait=300s"]).ended(0).json();
        let waits: Vec<&str> =
            done["renewed"]["missing"].as_array().expect("a list").iter().filter_map(|n| n["name"].as_str()).collect();
        assert_eq!(waits, ["n3", "n5", "n6"], "{done}");
    }
    let active = roots(&world, "n1").active.expect("a root signs");
    // A manager's absence keeps the first one, until the operator insists.
    assert_eq!(state(&roots(&world, "n1"), old[0]), Some(AuthorityState::Retiring));
    let refused = world.muster(&["ca", "retire", &old[0].to_string()]).ended(6);
    assert_eq!(refused.error_code(), "root_in_use");
    world.muster(&["ca", "retire", &old[0].to_string(), "--force"]).ended(0);
    world.muster(&["node", "rm", "n6", "--force"]).ended(0);
    // The manager must also be heard where there is no leader without it.
    let other = world.other_than(&["n3", "n1"]);
    world.node(&other).kill();
    for name in ["n3", "n5"] {
        world.node(name).start(&[]).ready();
    }
    let renewed = |node: &NodeView| node.state == Liveness::Ready && node.certificate.role.is_some();
    for name in ["n3", "n5"] {
        eventually_so("it is ready", || world.seen("n1", name).as_ref().is_some_and(renewed));
        eventually_so("it trusts the present root only", || trusted_by(&mut world, name) == [active]);
    }
    world.node(&other).start(&[]).ready();
    eventually_so("all have renewed", || {
        let roots = roots(&world, "n1");
        roots.renewed.n == 5 && roots.renewed.missing.is_empty()
    });
    // The removed one does not.
    world.node("n6").start(&[]);
    eventually_so("its refusal is logged", || world.nodes_log("n6").contains("reason=blocked"));
    assert!(world.seen("n1", "n6").is_none(), "it is not in the cluster");
}

/// Killed without notice at each step, the leader among them: the rotation ends, and no node is locked out.
#[test]
#[ignore = "full tier"]
fn rotation_ends_although_leaders_are_killed() {
    let mut world = World::with_settings(AT_ONCE, 3, 2);
    for round in 0..3 {
        let old = roots(&world, "n1").active.expect("a root signs");
        world.muster(&["ca", "rotate"]).ended(0);
        // Without a pause, then ever later in the rotation.
        for _ in 0..round * 3 {
            crate::harness::between_checks();
        }
        let leader = eventually("a leader", || Some(world.leader_seen_by("n1")).filter(|leader| !leader.is_empty()));
        let worker = if round % 2 == 0 { "n4" } else { "n5" };
        for name in [leader.as_str(), worker] {
            world.node(name).kill();
        }
        for name in [leader.as_str(), worker] {
            world.node(name).start(&[]).ready();
        }
        eventually_so("the old root is retired, and every node has renewed", || {
            let roots = roots(&world, "n1");
            state(&roots, old) == Some(AuthorityState::Retired) && roots.renewed.n == 5
        });
        world.all_settled();
    }
}
