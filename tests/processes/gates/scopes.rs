//! A service that names a wrong scope: no floor would hold for it.

use super::{apply, items, member, status, submit, text};
use crate::harness::{EndedMuster, ForegroundMuster, World, eventually_so};

/// `muster wait-ready`, for a service below the floor of `db`, which would leave a file.
fn service(world: &World, args: &[&str]) -> EndedMuster {
    let all = [&["wait-ready"], args, &["--release", "0.1.0", "--timeout", "30s", "--exec", "--", "touch", "started"]];
    world.muster(&all.concat())
}

fn has_started(world: &World) -> bool {
    world.folder().join("started").exists()
}

#[test]
#[ignore = "full tier"]
fn service_of_a_wrong_scope_is_refused_unless_it_insists() {
    let mut world = World::new();
    world.node("n1").start(&["--init", "--release", "1.0.0"]).ready();
    apply(&world, "1.0.0", "1.0.0", &["a"]);
    eventually_so("it is applied", || status(&world)["phase"] == "idle");
    assert!(service(&world, &["db", "--reconciler", "schema"]).ended(3).stderr.contains("below-floor"));

    let other = service(&world, &["bd", "--reconciler", "schema"]).ended(6);
    assert_eq!(other.error_code(), "not_admitted");
    assert!(other.stderr.contains("schema belongs to scope db, not bd"), "{}", other.stderr);
    let mistyped = service(&world, &["bd"]).ended(6);
    assert_eq!(mistyped.error_code(), "undefined_scope");
    for part in ["no reconciler has scope bd", "defined are db, muster", "--allow-undefined-scope"] {
        assert!(mistyped.stderr.contains(part), "{part}: {}", mistyped.stderr);
    }

    // It waits for a reconciler that does not exist yet, and turns out to belong to another scope.
    let socket = world.socket("n1");
    let socket = socket.to_str().expect("the folder's path is text");
    let args = ["--socket", socket, "wait-ready", "bd", "--reconciler", "later", "--release", "0.1.0", "--exec"];
    let args = [&args[..3], &["--lease-duration", "1m"], &args[3..]].concat();
    let early = [&args[..], &["--", "touch", "started"]].concat();
    let mut early = ForegroundMuster::start_for_command(world.folder(), &early);
    early.wait_for_line("no-gate");
    let later = "name = \"later\"\nrelease = \"1.0.0\"\nscope = \"db\"\nfloor = \"0.1.0\"\nobjects = []\n";
    submit(&world, &[later], &[]).ended(0);
    early.wait_for_line("later belongs to scope db, not bd");
    assert_eq!(early.exit(), Some(6));
    assert!(!has_started(&world), "nothing of a wrong scope was started");

    // A scope without a definition needs the explicit option.
    service(&world, &["bd", "--allow-undefined-scope"]).ended(0);
    assert!(has_started(&world));
    let mut right = member(&world, "n1", "m1", "1.0.0");
    right.wait_for_line("serving in db");
    // The record of the service that has ended is gone at once, or with its lease.
    eventually_so("only m1 serves", || {
        let members = items(&world.muster(&["member", "list"]).ended(0).json(), "items");
        let serving = members.iter().filter(|m| m["phase"] == "serving" && m["scope"] != "muster");
        serving.map(|m| text(&m["member"])).collect::<Vec<_>>() == ["m1"]
    });
}
