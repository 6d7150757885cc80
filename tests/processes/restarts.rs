//! Nodes that are restarted one by one, as for an upgrade.

use serde_json::Value;

use crate::harness::{EndedMuster, World, Writer, assert_kept, eventually_so};

fn may_stop(world: &World, by: &str, node: &str) -> EndedMuster {
    world.muster_at(by, &["node", "may-stop", node])
}

#[test]
#[ignore = "full tier"]
fn a_node_may_stop_while_the_others_keep_a_quorum() {
    let mut world = World::with(3, 1);
    let leader = world.leader_seen_by("n1");
    let follower = world.other_than(&[&leader]);
    let third = world.other_than(&[&leader, &follower]);
    world.all_settled();
    let worker = may_stop(&world, "n1", "n4").ended(0).json();
    assert_eq!((&worker["may_stop"], &worker["role"]), (&true.into(), &"worker".into()), "{worker}");
    let own = may_stop(&world, "n4", "n4").ended(0).json();
    assert_eq!(own, worker, "a worker's daemon asks, too");
    for node in [&leader, &follower, &third] {
        let asked = may_stop(&world, &follower, node).ended(0).json();
        assert_eq!((&asked["leader"], &asked["answering"]), (&Value::from(*node == leader), &2.into()), "{asked}");
    }
    world.node(&third).kill();
    // Recorded as ready for some seconds: it is asked.
    let refused = may_stop(&world, &leader, &follower).ended(6);
    assert_eq!((refused.error_code().as_str(), refused.missing()), ("quorum_at_risk", vec![third.clone()]));
    let late = world.muster_at(&leader, &["node", "may-stop", &follower, "--wait=1s"]).ended(3);
    assert_eq!(late.error_code(), "timed_out");
    let socket = world.socket(&leader).display().to_string();
    let waiting = std::thread::scope(|scope| {
        let folder = world.folder().to_owned();
        let waits = scope
            .spawn(move || EndedMuster::new(&folder, &["--socket", &socket, "node", "may-stop", &follower, "--wait"]));
        world.node(&third).start(&[]).ready();
        waits.join().expect("it ends")
    });
    assert!(waiting.ended(0).stdout.contains("may be stopped: 2 other managers answer, 2 needed"));
    may_stop(&world, "n1", "nowhere").ended(4);

    let alone = World::with(1, 0);
    let refused = may_stop(&alone, "n1", "n1").ended(6);
    assert!(refused.stderr.contains("the only manager"), "{}", refused.stderr);
}

/// The loop of `docs/operating.md`, under load.
#[test]
#[ignore = "full tier"]
fn rolling_restart_loses_no_write() {
    let mut world = World::with(3, 1);
    world.all_settled();
    let id = world.seen("n1", "n1").expect("n1 is a node").id;
    let writer = Writer::start(["n1", "n2", "n3"].map(|name| world.socket(name)).to_vec(), id);
    let leader = world.leader_seen_by("n1");
    let mut order = ["n1", "n2", "n3", "n4"].map(str::to_owned).to_vec();
    order.sort_by_key(|node| *node == leader);
    for node in order {
        let by = world.other_than(&[&node, "n4"]);
        world.muster_at(&by, &["node", "may-stop", &node, "--wait=2m"]).ended(0);
        world.node(&node).stops_cleanly();
        world.node(&node).start(&[]).ready();
        let seen = writer.acknowledged();
        eventually_so("writes continue", || writer.acknowledged() > seen + 10);
    }
    let acknowledged = writer.stop();
    for name in ["n1", "n2", "n3"] {
        eventually_so("it has caught up", || world.seen(name, "n1").is_some_and(|node| !node.stale));
        assert_kept(&acknowledged, &world.seen(name, "n1").expect("n1 is a node"));
    }
}
