//! The point of no return of a definition with `finalize = "manual"`: passed when an operator says so, and never by itself.

use rustix::process::Signal;

use super::{apply, blockers, gate_history, member, shown, status, submit, world_with_workers};
use crate::harness::{World, eventually, eventually_so};

const MANUAL: &str = "name = \"schema\"\nrelease = \"2.0.0\"\nscope = \"db\"\nfloor = \"2.0.0\"\nfinalize = \"manual\"\n\
                      [[objects]]\nkind = \"table\"\nname = \"a\"\n[objects.body]\nrelease = \"2.0.0\"\n";

/// No incompatible member serves, and the new release waits for an operator. It has not begun.
#[track_caller]
fn offers(world: &World) {
    let phases = ["ready-to-finalize", "settling", "running"];
    let offered = eventually("the member's end is seen", || {
        Some(status(world)).filter(|s| blockers(s).is_empty() && phases.iter().any(|phase| s["phase"] == *phase))
    });
    assert_eq!(
        offered["phase"], "ready-to-finalize",
        "the end of a member has passed the point of no return: {offered}"
    );
    assert_eq!(gate_history(world), ["done 1.0.0 1.0.0"]);
}

#[test]
#[ignore = "full tier"]
fn end_of_a_member_never_finalizes_a_release() {
    let mut world = world_with_workers(&["n2"]);
    apply(&world, "1.0.0", "1.0.0", &["a"]);
    eventually_so("1.0.0 is applied", || status(&world)["phase"] == "idle");
    // No lease ends it: however slow the machine is, it blocks until it is forgotten.
    world.muster(&["member", "announce", "db/m1", "--release", "1.0.0"]).ended(0);
    submit(&world, &[MANUAL], &[]).ended(0);
    eventually_so("the old member blocks", || blockers(&status(&world)) == ["m1"]);
    let finalize = || world.muster(&["reconciler", "finalize", "schema", "--release", "2.0.0"]);
    let refused = finalize().ended(6);
    for part in ["m1", "muster reconciler blockers schema", "just because a member ends"] {
        assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
    assert!(status(&world)["finalized"].is_null());
    world.muster(&["member", "forget", "db/m1"]).ended(0);
    offers(&world);

    // Given while no node could use it: it is kept and shown, until the admission of a member that it would exclude withdraws it.
    world.node("n2").stop();
    world.muster(&["reconciler", "finalize", "schema", "--release", "2.0.0"]).ended(0);
    assert_eq!(status(&world)["finalized"], "2.0.0");
    let text = shown(&world, &["status", "schema"]).ended(0).stdout;
    assert!(text.contains("2.0.0 may pass the point of no return; withdrawn if an incompatible member"), "{text}");
    let mut again = member(&world, "n1", "m1", "1.0.0");
    again.wait_for_line("serving in db");
    assert!(status(&world)["finalized"].is_null(), "an old member that is admitted withdraws it");
    world.node("n2").start(&["--release", "2.0.0"]).ready();
    again.signal(Signal::TERM);
    // 7: it had lost its lease before. That is an end, too.
    let ended = again.exit();
    assert!([Some(128 + 15), Some(7)].contains(&ended), "{ended:?}: {}", again.seen());
    offers(&world);

    world.muster(&["reconciler", "finalize", "schema"]).ended(0);
    eventually_so("2.0.0 is applied", || status(&world)["gate"]["reconciled"] == "2.0.0");
    assert_eq!(gate_history(&world), ["done 1.0.0 1.0.0", "working 1.0.0 2.0.0", "done 2.0.0 2.0.0"]);
    assert!(status(&world)["finalized"].is_null(), "it was used");
}
