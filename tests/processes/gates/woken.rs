//! A runner that is frozen in the middle of its work, and woken after another has continued: what an operator then reads is true.

use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;

use super::{items, submit, text, world_with_workers};
use crate::harness::{World, eventually, eventually_so};

/// The runner's lease. A runner that is not frozen on purpose renews it in time, also if its machine stalls for ten seconds: it stops
/// two thirds of the lease after the last renewal.
const LEASE_SECS: u64 = 20;

/// A command under a runner with that lease.
fn definition(world: &World, release: &str, script: &str) -> String {
    let folder = world.folder().display();
    format!(
        "name = \"migration\"\nrelease = \"{release}\"\nscope = \"shop\"\nfloor = \"1.0.0\"\nsettle = \"0s\"\n\
         timing = {{ lease = \"{LEASE_SECS}s\" }}\n[command]\nargv = [\"/bin/sh\", \"-c\", '''cd {folder}; {script}''']\n"
    )
}

fn status(world: &World) -> Value {
    world.muster_insists(&["reconciler", "status", "migration"])
}

fn history(world: &World) -> Vec<Value> {
    items(&world.muster_insists(&["reconciler", "history", "migration"]), "history")
}

/// The terms in which the command was begun.
fn begun(world: &World) -> Vec<String> {
    let written = std::fs::read_to_string(world.folder().join("begun")).unwrap_or_default();
    written.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(str::to_owned).collect()
}

#[test]
#[ignore = "full tier"]
fn woken_runner_and_history_tell_what_happened() {
    let mut world = world_with_workers(&["n2", "n3"]);
    submit(&world, &[&definition(&world, "1.0.0", "true")], &[]).ended(0);
    eventually_so("1.0.0 is applied", || status(&world)["gate"]["reconciled"] == "1.0.0");
    let work = "echo $MUSTER_FENCING_TOKEN >> begun; until test -e finish; do sleep 0.05; done";
    submit(&world, &[&definition(&world, "2.0.0", work)], &[]).ended(0);
    let is_running = |status: &Value, after: u64| {
        let term = status["runner"]["term"].as_u64();
        term > Some(after) && status["phase"] == "running" && status["runner"]["node"].is_string()
    };
    eventually_so("2.0.0 runs", || begun(&world).len() == 1);
    let runs = eventually("its runner has reported it", || Some(status(&world)).filter(|s| is_running(s, 0)));
    let (victim, term) = (text(&runs["runner"]["node"]), runs["runner"]["term"].as_u64().expect("a term"));
    assert_eq!((text(&runs["gate"]["state"]), begun(&world)), ("working".to_owned(), vec![term.to_string()]), "{runs}");
    let lease = world.muster_insists(&["lease", "get", "migration", "-n", "muster-reconcilers"]);
    assert_eq!(lease["lease_duration_ms"], LEASE_SECS * 1000, "of the definition: {lease}");

    world.node(&victim).freeze();
    let frozen = Instant::now();
    eventually_so("its successor has begun", || begun(&world).len() == 2);
    println!("taken over after {:?}", frozen.elapsed());
    let taken = eventually("its successor is shown", || Some(status(&world)).filter(|s| is_running(s, term)));
    assert_ne!(text(&taken["runner"]["node"]), victim);
    let epoch = runs["gate"]["epoch"].as_u64().expect("an epoch");
    let why = format!("after the runner of epoch {epoch}, term {term}, had not completed it");
    let continued = history(&world).pop().expect("an entry");
    assert!(text(&continued["why"]).contains(&why), "{continued}");

    // It wakes up, and finds that its term is over. Nothing of it outlived the term, and its log claims nothing else.
    let before = world.nodes_log(&victim).len();
    world.node(&victim).signal(Signal::CONT);
    let said = |world: &World| world.nodes_log(&victim)[before..].to_owned();
    eventually_so("it finds that its term is over", || said(&world).contains("reconciler term ended"));
    std::fs::write(world.folder().join("finish"), "").expect("the world's folder is writable");
    let done = eventually("2.0.0 is applied", || Some(status(&world)).filter(|s| s["phase"] == "idle"));
    assert_eq!((&done["gate"]["reconciled"], &done["last_failure"]), (&"2.0.0".into(), &Value::Null), "{done}");
    world.is_recorded_as_ready("n1", &victim);
    let said = said(&world);
    for untrue in ["ERROR", "outlives", "is a candidate for"] {
        assert!(!said.contains(untrue), "{untrue}: {said}");
    }
    assert_eq!(begun(&world).len(), 2, "once in each term");
    assert!(history(&world).iter().any(|entry| text(&entry["why"]).contains(&why)), "{:?}", history(&world));
}
