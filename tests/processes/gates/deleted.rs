//! A gate that is deleted, by mistake or on purpose: what ran once runs again only after a confirmation, and its history is kept.

use serde_json::Value;

use super::{items, shown, submit};
use crate::harness::{ForegroundMuster, World, eventually_so};

fn epochs(history: &Value) -> Vec<u64> {
    items(history, "history").iter().filter_map(|entry| entry["epoch"].as_u64()).collect()
}

#[test]
#[ignore = "full tier"]
fn deletion_of_a_gate_asks_and_keeps_its_history() {
    let mut world = World::new();
    world.node("n1").start(&["--init", "--release", "1.0.0"]).ready();
    let ran = world.folder().join("ran");
    let definition = format!(
        "name = \"migration\"\nrelease = \"1.0.0\"\nscope = \"shop\"\nfloor = \"1.0.0\"\nsettle = \"0s\"\nevery = \"once\"\n\
         [command]\nargv = [\"/bin/sh\", \"-c\", \"echo ran >> {}\"]\n",
        ran.display()
    );
    submit(&world, &[&definition], &[]).ended(0);
    let status = || world.muster(&["reconciler", "status", "migration"]).ended(0).json();
    let history = || world.muster(&["reconciler", "history", "migration"]).ended(0).json();
    let runs = || std::fs::read_to_string(&ran).unwrap_or_default().lines().count();
    let on = |args: &[&str]| world.muster(&[&["reconciler"], args].concat());
    eventually_so("it has run", || status()["phase"] == "idle");
    assert_eq!((runs(), epochs(&history())), (1, vec![1]));

    let asked = on(&["delete", "migration", "--gate"]).ended(6);
    assert_eq!(asked.error_code(), "needs_confirmation");
    for part in ["runs `/bin/sh -c echo ran", "again, even if it was to run once", "delete migration --gate --yes"] {
        assert!(asked.stderr.contains(part), "{part}: {}", asked.stderr);
    }
    assert_eq!((history()["deleted"].clone(), status()["gate"]["state"].clone()), (false.into(), "done".into()));

    // The mistake is repaired: nothing runs again.
    on(&["pause", "migration"]).ended(0);
    on(&["delete", "migration", "--gate", "--yes"]).ended(0);
    let kept = history();
    assert_eq!((&kept["deleted"], epochs(&kept)), (&true.into(), vec![1]), "{kept}");
    let text = shown(&world, &["history", "migration"]).ended(0).stdout;
    assert!(text.contains("`muster reconciler repair migration --from-history EPOCH` restores it"), "{text}");
    let socket = world.socket("n1");
    let socket = socket.to_str().expect("the folder's path is text");
    let ready = ["--socket", socket, "wait-ready", "shop", "--reconciler", "migration", "--release", "1.0.0"];
    let mut waiting = ForegroundMuster::start_for_command(world.folder(), &ready);
    waiting.wait_for_line("no-gate");
    on(&["repair", "migration", "--from-history", "1"]).ended(0);
    on(&["resume", "migration"]).ended(0);
    assert_eq!(waiting.exit(), Some(0), "with its gate a member is admitted: {}", waiting.seen());
    eventually_so("its runner has read the gate", || status()["phase"] == "idle");
    assert_eq!((&history()["deleted"], epochs(&history()), runs()), (&false.into(), vec![1, 2], 1));

    // Deleted on purpose: everything runs again, and the history continues.
    on(&["delete", "migration", "--gate", "--yes"]).ended(0);
    eventually_so("it has run again", || status()["gate"]["epoch"] == 3 && status()["phase"] == "idle");
    assert_eq!((epochs(&history()), runs()), (vec![1, 2, 3], 2));

    // The whole reconciler is deleted after a confirmation, too; one of which nothing was applied, without.
    let asked = on(&["delete", "migration"]).ended(6);
    assert_eq!(asked.error_code(), "needs_confirmation");
    for part in ["its gate with the history", "everything would run again", "delete migration --yes"] {
        assert!(asked.stderr.contains(part), "{part}: {}", asked.stderr);
    }
    assert_eq!(epochs(&history()), [1, 2, 3]);
    on(&["delete", "migration", "--yes"]).ended(0);
    on(&["status", "migration"]).ended(4);
    submit(&world, &[&definition.replace("release = \"1.0.0\"", "release = \"9.0.0\"")], &[]).ended(0);
    on(&["delete", "migration"]).ended(0);
}
