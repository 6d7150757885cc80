//! `muster lease delete` of a lease that a command runs under.

use muster_messages::ErrorCode;

use super::candidate::{Candidate, Entry};
use crate::harness::{World, eventually_so};

/// Runs until it is killed, and records an overlap with another instance: the kernel releases the lock with the last process.
const COMMAND: &str = r#"trap "" TERM
flock --nonblock --conflict-exit-code 9 job.lock sh -c 'touch "began-$MUSTER_HOLDER"; while :; do sleep 0.05; done'
[ $? != 9 ] || touch overlap"#;

fn candidate<'a>(world: &'a World, socket: &'a str, id: &'a str) -> Candidate {
    Candidate::start(Entry {
        folder: world.folder(),
        id,
        asks: ["--socket", socket],
        lease: "job",
        // Long enough that no lease is lost by itself.
        flags: &["--lease-duration", "10s", "--renew-deadline", "8s", "--retry-period", "500ms"],
        command: vec!["sh".into(), "-c".into(), COMMAND.into()],
        clock: None,
    })
}

#[test]
#[ignore = "full tier"]
fn forced_deletion_never_runs_two_commands_at_once() {
    let world = World::with(1, 0);
    let socket = world.socket("n1");
    let socket = socket.to_str().expect("text");
    let began = |id: &str| world.folder().join(format!("began-{id}")).exists();
    let mut one = candidate(&world, socket, "one");
    eventually_so("the first command runs", || began("one"));
    let two = candidate(&world, socket, "two");

    let refused = world.muster(&["lease", "delete", "job"]).ended(ErrorCode::Conflict.exit_status().into());
    assert!(refused.stderr.contains("--force"), "{}", refused.stderr);
    assert_eq!(world.muster(&["lease", "get", "job"]).json()["holder"], "one");

    world.muster(&["lease", "delete", "job", "--force"]).ended(0);
    assert_eq!(one.exit(), Some(7), "it lost the lease");
    eventually_so("the second command runs", || began("two"));
    assert!(!world.folder().join("overlap").exists(), "both commands ran at once");
    drop((one, two));
}
