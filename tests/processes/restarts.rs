//! Nodes that are restarted one by one, as for an upgrade.

use serde_json::Value;

use crate::harness::{EndedMuster, ForegroundMuster, World, Writer, assert_kept, eventually, eventually_so};

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
    let socket = world.socket(&follower).display().to_string();
    let people = EndedMuster::new(world.folder(), &["--socket", &socket, "node", "may-stop", &leader]).ended(0);
    assert!(people.stdout.contains("leadership is handed over"), "{}", people.stdout);
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

    let two = World::with(2, 0);
    two.all_settled();
    let refused = may_stop(&two, "n1", "n2").ended(6);
    assert!(refused.stderr.contains("would not be a majority"), "{}", refused.stderr);
    drop(two);
    let alone = World::with(1, 0);
    let refused = may_stop(&alone, "n1", "n1").ended(6);
    assert!(refused.stderr.contains("the only manager"), "{}", refused.stderr);
}

/// A16. The loop of `docs/operating.md`, under load: also a lease stays with its holder, which asks any of the managers.
#[test]
#[ignore = "full tier"]
fn rolling_restart_loses_no_write_and_no_lease() {
    let mut world = World::with(3, 1);
    world.all_settled();
    let id = world.seen("n1", "n1").expect("n1 is a node").id;
    let identity = world.folder().join("ann.json").display().to_string();
    world.muster(&["user", "create", "ann", "--admin", "--out", &identity]).ended(0);
    let elect = ["--identity", &identity, "elect", "job", "--lease-duration", "60s", "--", "sleep", "600"];
    let holder = ForegroundMuster::start_for_command(world.folder(), &elect);
    let lease = |world: &World| {
        let got = world.muster_at("n1", &["lease", "get", "job"]);
        (got.code == 0).then(|| got.json()).filter(|lease| lease["holder"].is_string())
    };
    let held = eventually("the lease is held", || lease(&world));
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
    let kept = lease(&world).expect("the lease is held");
    assert!(kept["expired"] == false && holder.id.is_alive(), "{kept}");
    for field in ["holder", "fencing_token", "transitions"] {
        assert_eq!(kept[field], held[field], "{field}");
    }
    let acknowledged = writer.stop();
    for name in ["n1", "n2", "n3"] {
        eventually_so("it has caught up", || world.seen(name, "n1").is_some_and(|node| !node.stale));
        assert_kept(&acknowledged, &world.seen(name, "n1").expect("n1 is a node"));
    }
}
