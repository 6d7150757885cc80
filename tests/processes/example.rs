//! The worked example of the documents, as it stands there: every line of its shell blocks, in order, in an empty folder.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use muster::cli::dev::process::ProcessId;
use muster::cli::dev::story::temporary_folder;
use muster::cli::parent;
use rustix::process::{Signal, kill_process_group};

use crate::harness::{MUSTER, PATIENCE, between_looks};

const WALK: &str = include_str!("../../docs/walks/migration.md");

/// The shell blocks of a document, one after the other.
fn shell_of(document: &str) -> String {
    let mut blocks = document.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default());
    blocks.by_ref().collect()
}

/// Daemons that were started in a folder and live.
fn daemons(folder: &Path) -> Vec<ProcessId> {
    let locks = (1..=3).filter_map(|n| std::fs::read_to_string(folder.join(format!("n{n}/lock"))).ok());
    let pids = locks.filter_map(|pid| pid.trim().parse().ok());
    pids.filter_map(ProcessId::of).filter(|process| process.is_alive()).collect()
}

#[test]
fn the_migration_walk_goes_as_it_is_written() {
    use std::os::unix::process::CommandExt;
    let folder = temporary_folder("walk").expect("a temporary folder");
    let programs = Path::new(MUSTER).parent().expect("programs are in a folder");
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", &shell_of(WALK)]).current_dir(folder.path()).env("PATH", path);
    command.env_remove("MUSTER_SOCKET").stdin(Stdio::null()).process_group(0);
    let out = folder.path().join("out");
    let written = std::fs::File::create(&out).expect("the folder is writable");
    command.stdout(written.try_clone().expect("a file can be written twice")).stderr(written);
    parent::tie(&mut command);
    let mut shell = command.spawn().expect("bash starts");
    let end = Instant::now() + 4 * PATIENCE;
    let status = loop {
        match shell.try_wait().expect("it is our child") {
            None if Instant::now() < end => between_looks(),
            ended => break ended,
        }
    };
    // Whatever came of it: nothing of it is left behind.
    let group = i32::try_from(shell.id()).ok().and_then(rustix::process::Pid::from_raw).expect("a pid");
    if status.is_none() {
        let _gone = kill_process_group(group, Signal::KILL);
        let _reaped = shell.wait();
    }
    let left = daemons(folder.path());
    left.iter().for_each(|daemon| daemon.signal(Signal::KILL));
    let said = std::fs::read_to_string(&out).unwrap_or_default();
    assert!(status.is_some_and(|status| status.success()), "{status:?}\n{said}");
    assert!(left.is_empty(), "its end ends them\n{said}");
    // What its text says that one sees.
    for line in [
        "1.0.0 after nothing, token",
        "2.0.0 after 1.0.0, token",
        "reconciler-too-old",
        "release 1.0.0 is below 2.0.0",
        "start it as 2.0.0 or later",
        "# names,born",
        "ada,?",
        "exit 3",
    ] {
        let served =
            (1..=3).map(|n| std::fs::read_to_string(folder.path().join(format!("n{n}.service"))).unwrap_or_default());
        assert!(said.contains(line) || served.into_iter().any(|s| s.contains(line)), "{line}\n{said}");
    }
}
