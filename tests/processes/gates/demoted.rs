//! Members on a node whose role changes, or whose manager runtime restarts: nothing of that concerns them.

use std::time::{Duration, Instant};

use muster_local_cluster::ProcessId;
use muster_messages::Role;

use super::{apply, items, managers_of, member_for, text};
use crate::harness::{ForegroundMuster, World, eventually, eventually_so};

/// A member that is not renewed is revoked after two thirds of this, and its record is gone at its end.
const LEASE: Duration = Duration::from_secs(30);

/// A member that must outlive what happens to its node.
struct LongLived {
    name: String,
    program: ForegroundMuster,
    family: Vec<ProcessId>,
    incarnation: String,
}

impl LongLived {
    fn on(world: &World, node: &str, name: &str) -> Self {
        let mut program = member_for(world, node, name, "1.0.0", "30s");
        program.wait_for_line("serving in db");
        // A guardian and a command.
        let family = eventually("its command runs", || Some(program.descendants()).filter(|family| family.len() >= 2));
        let (phase, incarnation) = record(world, name).expect("it is recorded");
        assert_eq!(phase, "serving");
        Self { name: name.to_owned(), program, family, incarnation }
    }

    /// Until a lease that was last renewed before has ended, all its processes run and its record is the same.
    fn outlives_its_lease(&self, world: &World, what: &str) {
        let since = Instant::now();
        eventually_so("a lease's duration has passed", || {
            assert!(
                self.family.iter().all(|process| process.is_alive()),
                "{what}: a process of {} has ended",
                self.name
            );
            since.elapsed() > LEASE
        });
        let expected = Some(("serving".to_owned(), self.incarnation.clone()));
        assert_eq!(record(world, &self.name), expected, "{what}: {}", self.program.seen());
    }
}

/// Phase and incarnation of a member.
fn record(world: &World, name: &str) -> Option<(String, String)> {
    let list = world.muster(&["member", "list", "db"]).ended(0).json();
    let found = items(&list, "items").into_iter().find(|member| member["member"] == name)?;
    Some((text(&found["phase"]), text(&found["incarnation"])))
}

#[test]
#[ignore = "full tier"]
fn members_outlive_role_changes_of_their_node() {
    let mut world = managers_of("1.0.0");
    world.join_more(1, Role::Worker);
    apply(&world, "1.0.0", "1.0.0", &["a"]);
    // Announced through a worker's socket, which acts as the node.
    let first = LongLived::on(&world, "n4", "first");
    world.muster(&["node", "promote", "n4", "--wait=300s"]).ended(0);
    first.outlives_its_lease(&world, "promoted");
    // Announced through a manager's socket, which acts as operator.
    let mut second = LongLived::on(&world, "n4", "second");
    world.muster_at("n4", &["actors", "restart", "node/manager"]).ended(0);
    second.outlives_its_lease(&world, "the manager runtime restarted");
    world.muster(&["node", "demote", "n4", "--wait=300s"]).ended(0);
    second.outlives_its_lease(&world, "demoted");
    first.outlives_its_lease(&world, "promoted and demoted");
    world.muster(&["node", "promote", "n4", "--wait=300s"]).ended(0);
    second.outlives_its_lease(&world, "promoted again");
    // Only the removal of the node ends it, and says so.
    world.muster(&["node", "demote", "n4", "--wait=300s"]).ended(0);
    world.muster(&["node", "rm", "n4", "--force"]).ended(0);
    second.program.wait_for_line("admission to db was revoked: its lease was lost: ");
    assert_eq!(second.program.exit(), Some(7));
    // The node itself gives the reason, or a manager does.
    let seen = second.program.seen();
    assert!(seen.contains("removed from the cluster"), "{seen}");
    // A service that is started there later gets the same reason, and what would help.
    let ready = ["wait-ready", "db", "--reconciler", "schema", "--release", "1.0.0", "--timeout", "1m"];
    let late = eventually("the node has learned of its removal", || {
        Some(world.muster_at("n4", &ready).ended(6)).filter(|late| late.stderr.contains("this node is "))
    });
    for part in ["removed from the cluster", "join it as a new node"] {
        assert!(late.stderr.contains(part), "{part}: {}", late.stderr);
    }
}
