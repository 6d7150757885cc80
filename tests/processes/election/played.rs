//! Programs that the scenarios start, all run by this test program itself: the commands that `muster elect` guards, and the
//! fenced resource of the documented example.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::exit;
use std::time::{Duration, SystemTime};

use muster_elector::{BootTime, Timekeeper};
use tokio::signal::unix::{SignalKind, signal};

#[expect(dead_code, reason = "its `main`; a program of its own otherwise")]
#[path = "../../../actors/elector/examples/fenced_resource.rs"]
mod fenced_resource;

/// The program to run.
pub enum ChildProgram {
    /// A guarded command that records, by the machine's clock, when it runs and under which token.
    Record { folder: PathBuf, term_handling: TermHandling },
    /// `fenced_resource` with these arguments, or with those in the variable `ARGS`, one per line.
    FencedResource(Vec<String>),
    /// Prints the wall clock.
    PrintTime,
    /// Holds so many streams at the socket of a node for workloads.
    Streams { socket: PathBuf, count: usize },
}

/// A script that is one of the documented examples, `scheduler` or `notifier`.
pub fn example_script(name: &str) -> String {
    let program = std::env::current_exe().expect("this program");
    let harness = "--exact election::played::run_child_program_if_requested --nocapture";
    let args = "ARGS=\"$(printf '%s\\n' \"$@\")\"";
    format!("#!/bin/sh\nexport PART={name} {args}\nexec '{}' {harness}\n", program.display())
}

/// A guarded command's reaction to TERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermHandling {
    Exits,
    /// Ignores it: must be killed.
    IgnoresTerm,
}

/// Interval of a guarded command's records.
const RECORD_INTERVAL: Duration = Duration::from_millis(2);

/// The command line of a program.
pub fn words(child_program: &ChildProgram) -> Vec<OsString> {
    words_for(&std::env::current_exe().expect("this program"), child_program)
}

/// The same, where a copy of this test program runs it.
pub fn words_for(program: &Path, child_program: &ChildProgram) -> Vec<OsString> {
    let harness = ["--exact", "election::played::run_child_program_if_requested", "--nocapture"].map(OsString::from);
    // `env` hides the arguments from the test harness.
    let child_program: Vec<OsString> = match child_program {
        ChildProgram::Record { folder, term_handling } => {
            vec!["PART=record".into(), set("FOLDER", folder.as_os_str()), format!("MANNERS={term_handling:?}").into()]
        }
        ChildProgram::FencedResource(args) if args.is_empty() => vec!["PART=resource".into()],
        ChildProgram::FencedResource(args) => vec!["PART=resource".into(), format!("ARGS={}", args.join("\n")).into()],
        ChildProgram::PrintTime => vec!["PART=time".into()],
        ChildProgram::Streams { socket, count } => {
            vec!["PART=streams".into(), set("SOCKET", socket.as_os_str()), format!("COUNT={count}").into()]
        }
    };
    ["env".into()].into_iter().chain(child_program).chain([program.into()]).chain(harness).collect()
}

fn set(key: &str, value: &std::ffi::OsStr) -> OsString {
    let mut setting = OsString::from(format!("{key}="));
    setting.push(value);
    setting
}

/// Does nothing without the variable `PART`, which the scenarios set.
#[test]
fn run_child_program_if_requested() {
    let var = |key: &str| std::env::var(key).unwrap_or_default();
    let args = || var("ARGS").lines().map(str::to_owned).collect::<Vec<String>>();
    match var("PART").as_str() {
        "record" => record(Path::new(&var("FOLDER")), var("MANNERS") == "Stubborn"),
        "resource" => {
            muster_local_cluster::parent::die_with_parent();
            exit(fenced_resource::run(&args()).into());
        }
        // A keeper ends what a walk has started.
        "scheduler" => exit(muster_example_scheduler::run(&args()).into()),
        "notifier" => {
            let args = ["notifier".to_owned()].into_iter().chain(args()).map(OsString::from).collect();
            let _ended = muster::daemon::main_with(args, muster_example_notifier::start);
            exit(0);
        }
        "streams" => {
            muster_local_cluster::parent::die_with_parent();
            crate::workload_streams::hold(Path::new(&var("SOCKET")), var("COUNT").parse().expect("a number"));
        }
        "time" => {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("this is after 1970");
            println!("\nit is {}", now.as_secs());
        }
        _ => {} // started as an ordinary test
    }
}

/// Each line's time is read before the line is written: the command ran then.
fn record(folder: &Path, stubborn: bool) {
    let begun = BootTime.now();
    let var = |key: &str| std::env::var(key).expect("muster sets it");
    let token = var("MUSTER_FENCING_TOKEN");
    // Renamed into place, so that a visible file has its first line.
    let (aside, path) = (folder.join(format!("{token}.new")), folder.join(&token));
    let mut file = std::fs::File::create(&aside).expect("the folder is writable");
    let guardian = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    let (pid, holder) = (std::process::id(), var("MUSTER_HOLDER"));
    writeln!(file, "start {} {token} {holder} {pid} {guardian}", begun.0).expect("it can be written");
    std::fs::rename(&aside, &path).expect("it can be renamed");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut reported = signal(SignalKind::terminate()).expect("signals can be heard");
        loop {
            let asked = tokio::time::timeout(RECORD_INTERVAL, reported.recv()).await.is_ok();
            let ends = asked && !stubborn;
            let word = if ends { "end" } else { "alive" };
            let now = BootTime.now();
            writeln!(file, "{word} {}", now.0).expect("it can be written");
            if ends {
                exit(0);
            }
        }
    });
}
