//! A chain of migrations over several releases: each step runs once, wherever the node that runs it has been meanwhile.

use std::fmt::Write;

use super::{items, manager_and_workers, submit, text};
use crate::harness::{World, eventually, eventually_so};

/// The definition of a release, with these steps.
fn chain(world: &World, release: &str, steps: &[&str]) -> String {
    let mut definition = format!(
        "name = \"migration\"\nrelease = \"{release}\"\nscope = \"shop\"\nfloor = \"1.0.0\"\nsettle = \"0s\"\napplies = \"or-later\"\n"
    );
    let ran = world.folder().join("ran").display().to_string();
    for step in steps {
        let script = format!("echo $MUSTER_STEP by $MUSTER_TARGET_RELEASE >> {ran}");
        write!(definition, "[[steps]]\nname = \"{step}\"\nargv = [\"/bin/sh\", \"-c\", {script:?}]\n").expect("text");
    }
    // No stall of the machine may end a run, which would then begin a step again.
    definition.push_str("[timing]\nlease = \"60s\"\n");
    definition
}

#[test]
#[ignore = "full tier"]
fn node_that_was_off_for_two_releases_runs_only_what_is_missing() {
    let mut world = manager_and_workers("0.1.0", "1.0.0", &["n2", "n3"]);
    let ran = |world: &World| std::fs::read_to_string(world.folder().join("ran")).unwrap_or_default();
    let applied = |world: &World, release: &str| {
        let status = world.muster_insists(&["reconciler", "status", "migration"]);
        (status["phase"] == "idle" && status["gate"]["reconciled"] == release).then_some(status)
    };
    submit(&world, &[&chain(&world, "1.0.0", &["customers"])], &[]).ended(0);
    eventually("1.0.0 is applied", || applied(&world, "1.0.0"));
    world.node("n3").stop();

    submit(&world, &[&chain(&world, "1.1.0", &["customers", "orders"])], &[]).ended(0);
    world.muster_at("n2", &["release", "declare", "shop", "1.1.0"]).ended(0);
    eventually("1.1.0 is applied", || applied(&world, "1.1.0"));
    world.node("n2").stop();

    submit(&world, &[&chain(&world, "1.2.0", &["customers", "orders", "invoices"])], &[]).ended(0);
    world.node("n3").start(&["--release", "1.2.0"]).ready();
    let done = eventually("1.2.0 is applied", || applied(&world, "1.2.0"));
    let all = "customers by 1.0.0\norders by 1.1.0\ninvoices by 1.2.0\n";
    assert_eq!(ran(&world), all, "each once, the last one on the node that was off");
    let steps: Vec<(String, String)> =
        items(&done, "steps").iter().map(|step| (text(&step["name"]), text(&step["node"]))).collect();
    assert_eq!(
        steps[1..],
        [("orders".to_owned(), "n2".to_owned()), ("invoices".to_owned(), "n3".to_owned())],
        "{done}"
    );

    // n2 returns, takes over, and finds nothing to do.
    world.node("n2").start(&["--release", "0.1.0"]).ready();
    world.muster_at("n2", &["release", "declare", "shop", "1.2.0"]).ended(0);
    world.node("n3").stop();
    eventually_so("n2 has taken over", || {
        applied(&world, "1.2.0").is_some_and(|status| status["runner"]["node"] == "n2")
    });
    assert_eq!(ran(&world), all);
}
