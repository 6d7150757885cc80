//! `muster elect` as a script uses it: run only if nobody else does, and do not wait for ever.

use std::path::Path;

use muster_messages::ErrorCode;

use super::candidate::{Candidate, Entry};
use crate::harness::{Ran, World, eventually_so};

fn elect(world: &World, before: &[&str], after: &[&str]) -> Ran {
    let socket = world.socket("n1");
    let asks = ["-o", "json", "--socket", socket.to_str().expect("text")];
    Ran::new(world.folder(), &[&asks, before, &["elect", "job"], after].concat())
}

#[test]
fn whoever_does_not_get_to_lead_in_time_says_who_does() {
    let world = World::with(1, 0);
    // The limit is for the wait alone.
    elect(&world, &[], &["--timeout", "1s", "--", "sleep", "2"]).ended(0);
    elect(&world, &[], &["--timeout", "1s", "--", "sh", "-c", "exit 42"]).ended(42);

    let socket = world.socket("n1");
    let holder = Candidate::start(Entry {
        folder: world.folder(),
        id: "the-one",
        asks: ["--socket", socket.to_str().expect("text")],
        lease: "job",
        flags: &[],
        command: vec!["sleep".into(), "600".into()],
        clock: None,
    });
    let lease = || world.muster(&["lease", "get", "job"]);
    eventually_so("it leads", || lease().code == 0 && lease().json()["holder"] == "the-one");
    for (before, after) in [(&[][..], &["--timeout", "1s", "--", "true"][..]), (&["--timeout", "1s"], &["--", "true"])]
    {
        let late = elect(&world, before, after).ended(ErrorCode::TimedOut.exit_status().into());
        assert_eq!(late.error_code(), "timed_out");
        assert!(late.stderr.contains("held by the-one"), "{}", late.stderr);
    }
    drop(holder);
}

#[test]
fn a_socket_that_never_was_is_a_mistake() {
    let nowhere = ["-o", "json", "--socket", "./nosuch.sock", "elect", "job", "--", "true"];
    let ran = Ran::new(Path::new("/"), &nowhere).ended(ErrorCode::Unreachable.exit_status().into());
    assert!(ran.error_code() == "unreachable" && ran.stderr.contains("there is no such socket"), "{}", ran.stderr);
}
