//! Members outside of Muster, for which an operator vouches.

use super::{apply, blockers, gate_history, managers_of, status, text};
use crate::harness::{eventually, eventually_so};

#[test]
#[ignore = "full tier"]
fn external_member_blocks_until_forgotten_on_the_command_line() {
    let mut world = managers_of("1.0.0");
    apply(&world, "1.0.0", "1.0.0", &["users"]);
    eventually_so("1.0.0 is applied", || status(&world)["phase"] == "idle");
    // Nothing holds back a member of a scope that was mistyped, and a release below the floor may not serve.
    let mistyped = world.muster(&["member", "announce", "dB", "--release", "1.0.0"]).ended(2);
    assert!(mistyped.stderr.contains("SCOPE/MEMBER"), "{}", mistyped.stderr);
    let undefined = world.muster(&["member", "announce", "bd/legacy", "--release", "1.0.0"]).ended(2);
    assert!(undefined.stderr.contains("no reconciler has the scope bd"), "{}", undefined.stderr);
    let below = world.muster(&["member", "announce", "db/legacy", "--release", "0.9.0"]).ended(6);
    assert_eq!(below.error_code(), "gate_closed");
    assert!(below.stderr.contains("0.9.0 is below 1.0.0") && below.stderr.contains("nothing was recorded"));
    let unmet = ["member", "announce", "db/legacy", "--release", "1.0.0", "--needs", "schema=1.1.0"];
    assert_eq!(world.muster(&unmet).ended(6).error_code(), "gate_closed");
    let list = world.muster(&["member", "list", "db"]).ended(0).json();
    assert_eq!(list["items"].as_array().map(Vec::len), Some(0), "{list}");
    let announce = ["member", "announce", "db/legacy", "--release", "1.0.0", "--needs", "schema=1.0.0"];
    for _ in 0..2 {
        let member = world.muster(&announce).ended(0).json();
        assert_eq!((&member["phase"], &member["external"]), (&"serving".into(), &true.into()), "{member}");
    }
    let other = world.muster(&["member", "announce", "db/legacy", "--release", "1.1.0"]).ended(8);
    assert!(other.stderr.contains("muster member forget db/legacy"), "{}", other.stderr);
    // It blocks a definition with a higher floor, on another node's word, too, until it is forgotten.
    for name in ["n1", "n2", "n3"] {
        world.node(name).stop();
        world.node(name).start(&["--release", "2.0.0"]).ready();
    }
    apply(&world, "2.0.0", "2.0.0", &["users", "roles"]);
    let waiting = eventually("it is blocked", || Some(status(&world)).filter(|status| status["phase"] == "waiting"));
    assert_eq!(blockers(&waiting), ["legacy"], "{waiting}");
    assert_eq!(gate_history(&world), ["done 1.0.0 1.0.0"]);
    world.muster(&["member", "forget", "db/legacy"]).ended(0);
    let done = eventually("2.0.0 is applied", || Some(status(&world)).filter(|status| status["phase"] == "idle"));
    assert_eq!(text(&done["gate"]["reconciled"]), "2.0.0");
}
