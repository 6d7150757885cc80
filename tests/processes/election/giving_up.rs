//! `muster elect` in a script: run only if no other holder exists, with a bounded wait.

use std::path::Path;

use muster_messages::ErrorCode;

use super::candidate::{Candidate, Entry};
use crate::harness::{EndedMuster, World, eventually_so};

fn elect(world: &World, before: &[&str], after: &[&str]) -> EndedMuster {
    let socket = world.socket("n1");
    let asks = ["-o", "json", "--socket", socket.to_str().expect("text")];
    EndedMuster::new(world.folder(), &[&asks, before, &["elect", "job"], after].concat())
}

#[test]
#[ignore = "full tier"]
fn elect_timeout_names_the_holder() {
    let world = World::with(1, 0);
    let timed_out = i32::from(ErrorCode::TimedOut.exit_status());
    // The timeout limits the wait only. A busy machine may take longer to grant a free lease.
    for (timeout, command, code) in [("2s", "sleep 3", 0), ("2s", "exit 42", 42)] {
        eventually_so("the lease is granted in time", || {
            let ran = elect(&world, &[], &["--timeout", timeout, "--", "sh", "-c", command]);
            assert!([code, timed_out].contains(&ran.code), "{command}: {} {}", ran.code, ran.stderr);
            ran.code == code
        });
    }

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
        // Before it has asked once, it knows no holder.
        eventually_so("it names the holder", || {
            let late = elect(&world, before, after).ended(timed_out);
            assert_eq!(late.error_code(), "timed_out");
            late.stderr.contains("held by the-one")
        });
    }
    drop(holder);
}

#[test]
fn missing_socket_is_a_usage_error() {
    let nowhere = ["-o", "json", "--socket", "./nosuch.sock", "elect", "job", "--", "true"];
    let ran = EndedMuster::new(Path::new("/"), &nowhere).ended(ErrorCode::Unreachable.exit_status().into());
    assert!(ran.error_code() == "unreachable" && ran.stderr.contains("there is no such socket"), "{}", ran.stderr);
}
