//! A migration that fails wherever it is tried, as an operator sees it.

use muster_messages::wire::{ReconcilerRequest, Request};
use serde_json::Value;

use super::{items, shown, submit, text, world_with_workers};
use crate::harness::{Follower, WAIT_MS, World, eventually, eventually_so};

/// A definition of release 2.0.0 that fails until the file `fixed` exists in the world's folder.
fn apply_failing(world: &World) {
    let folder = world.folder().display().to_string();
    let script =
        format!("cd {folder}; echo tried >> tries; test -e fixed && exit 0; echo 'no such table: users'; exit 1");
    let text = format!(
        "name = \"migration\"\nrelease = \"2.0.0\"\nscope = \"shop\"\nfloor = \"1.0.0\"\nsettle = \"0s\"\n\
         timing = {{ resign_pause = \"20s\" }}\n[command]\nargv = [\"/bin/sh\", \"-c\", {script:?}]\n"
    );
    submit(world, &[&text], &[]).ended(0);
}

fn status(world: &World) -> Value {
    world.muster(&["reconciler", "status", "migration"]).ended(0).json()
}

/// What was shown at every revision from the first failure on: never as if nothing had happened.
#[track_caller]
fn shows_the_failure(seen: &[Value]) {
    let failures = |status: &Value| status["consecutive_failures"].as_u64().expect("a number");
    let first = seen.iter().position(|status| failures(status) > 0).expect("it has failed");
    for pair in seen[first..].windows(2) {
        let status = &pair[1];
        assert!(failures(status) >= failures(&pair[0]), "failures are forgotten: {} then {status}", pair[0]);
        assert_eq!(status["last_error"], "the command exited with 1", "{status}");
        assert!(status["last_failure"]["name"].is_string(), "{status}");
        assert!(text(&status["output"]).contains("no such table: users"), "{status}");
    }
    let phases: std::collections::BTreeSet<String> = seen.iter().map(|status| text(&status["phase"])).collect();
    println!("{} statuses, phases {phases:?}", seen.len());
    assert!(phases.contains("failed"), "{phases:?}");
}

/// On two nodes, each of which gives up for the other, keeps out, and tries again by itself.
#[test]
#[ignore = "full tier"]
fn failure_on_every_node_stays_visible_until_success() {
    let world = world_with_workers(&["n2", "n3"]);
    apply_failing(&world);
    let statuses = Follower::start(vec![world.socket("n1")], |seen| {
        Request::Reconciler(ReconcilerRequest::Status { name: "migration".to_owned(), seen, wait_ms: WAIT_MS })
    });
    let failures = |status: &Value| status["consecutive_failures"].as_u64().expect("a number");
    let tries = || std::fs::read_to_string(world.folder().join("tries")).unwrap_or_default().lines().count();
    eventually_so("each node has tried five times", || tries() >= 10);
    let failed = eventually("both nodes keep out", || {
        Some(status(&world)).filter(|status| status["runner"].is_null() && failures(status) >= 10)
    });
    assert_eq!((&failed["phase"], &failed["reason"]), (&"failed".into(), &"candidates-failed".into()), "{failed}");
    assert_eq!(failed["last_error"], "the command exited with 1");
    assert!(text(&failed["output"]).contains("no such table: users"), "{failed}");
    let last = text(&failed["last_failure"]["name"]);
    assert!(["n2", "n3"].contains(&last.as_str()), "{failed}");
    let help = text(&failed["message"]);
    assert!(help.contains("muster reconciler retry migration") && help.contains(&last), "{help}");

    let events = world.muster(&["events"]).ended(0).json();
    let of_failures = |event: &&Value| text(&event["after"]).starts_with("migration: 2.0.0 failed");
    let named: Vec<Value> = items(&events, "items").iter().filter(of_failures).cloned().collect();
    assert!(named.len() >= 2, "one for each term: {events}");
    assert!(named.iter().all(|event| text(&event["after"]).contains("no such table: users")), "{named:?}");
    let logs = ["n2", "n3"].map(|name| world.nodes_log(name)).concat();
    assert!(logs.contains("resigning for another: the command exited with 1; output: no such table: users"), "{logs}");
    let metric = "muster_reconciler_consecutive_failures{reconciler=\"migration\"}";
    assert!(world.metric("n1", metric) >= 10);
    assert!(world.metrics("n1").contains("muster_reconciler_last_failure_timestamp_seconds{reconciler=\"migration\""));

    // On a slow machine they may be trying again by now, and keep out again later.
    let shows = |args: &[&str], parts: &[&str]| {
        eventually_so(&format!("{args:?} shows {parts:?}"), || {
            let read = shown(&world, args).ended(0).stdout;
            parts.iter().all(|part| read.contains(part))
        });
    };
    let all = ["failed on every candidate that tried", "retry migration", "no such table: users", "last failure"];
    shows(&["status", "migration"], &all[..]);
    shows(&["list"], &all[..1]);
    let again = eventually("they have tried again by themselves, and keep out again", || {
        Some(status(&world)).filter(|status| status["reason"] == "candidates-failed" && failures(status) >= 20)
    });
    shows_the_failure(&statuses.answers_until(again["revision"].as_u64().expect("a revision")));

    std::fs::write(world.folder().join("fixed"), "").expect("the world's folder is writable");
    world.muster(&["reconciler", "retry", "migration"]).ended(0);
    let done = eventually("it succeeds without another minute's wait", || {
        Some(status(&world)).filter(|status| status["phase"] == "idle")
    });
    assert_eq!((&done["consecutive_failures"], &done["last_failure"]), (&0.into(), &Value::Null), "{done}");
    eventually_so("the metric is gone", || !world.metrics("n1").contains("muster_reconciler_last_failure_timestamp"));
    let events = world.muster(&["events"]).ended(0).json();
    let after: Vec<String> = items(&events, "items").iter().map(|event| text(&event["after"])).collect();
    assert!(after.contains(&"migration: 2.0.0 is applied".to_owned()), "{after:?}");
}
