//! Programs that the stories start, all played by this test program, started once more: what `muster elect` guards, and the
//! resource of the documents' example.

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

/// What is played.
pub enum Part {
    /// A guarded command: writes down, on the machine's clock, when it runs and under which token.
    Record { folder: PathBuf, manners: Manners },
    /// `fenced_resource` with these arguments. Without any: with those in the variable `ARGS`, one in a line.
    FencedResource(Vec<String>),
    /// Prints the wall clock.
    TellTime,
}

/// What a guarded command does when it is told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manners {
    Polite,
    /// Nothing: it must be killed.
    Stubborn,
}

/// How often a guarded command writes that it runs.
const BEAT: Duration = Duration::from_millis(2);

/// The command line that plays it.
pub fn words(part: &Part) -> Vec<OsString> {
    let program = std::env::current_exe().expect("this program");
    let harness = ["--exact", "election::played::a_part", "--nocapture"].map(OsString::from);
    // What the test harness does not know, it must not see: `env` keeps it apart.
    let part: Vec<OsString> = match part {
        Part::Record { folder, manners } => {
            vec!["PART=record".into(), set("FOLDER", folder.as_os_str()), format!("MANNERS={manners:?}").into()]
        }
        Part::FencedResource(args) if args.is_empty() => vec!["PART=resource".into()],
        Part::FencedResource(args) => vec!["PART=resource".into(), format!("ARGS={}", args.join("\n")).into()],
        Part::TellTime => vec!["PART=time".into()],
    };
    ["env".into()].into_iter().chain(part).chain([program.into()]).chain(harness).collect()
}

fn set(key: &str, value: &std::ffi::OsStr) -> OsString {
    let mut setting = OsString::from(format!("{key}="));
    setting.push(value);
    setting
}

/// Without the variable `PART` it does nothing: the scenarios start it, and set that.
#[test]
fn a_part() {
    let var = |key: &str| std::env::var(key).unwrap_or_default();
    match var("PART").as_str() {
        "record" => record(Path::new(&var("FOLDER")), var("MANNERS") == "Stubborn"),
        "resource" => {
            muster_local_cluster::parent::obey();
            let args: Vec<String> = var("ARGS").lines().map(str::to_owned).collect();
            exit(fenced_resource::run(&args).into());
        }
        "time" => {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("this is after 1970");
            println!("\nit is {}", now.as_secs());
        }
        _ => {} // it runs as one of all tests
    }
}

/// Each line's time is read before the line is written: it ran then, whatever happened to it since.
fn record(folder: &Path, stubborn: bool) {
    let begun = BootTime.now();
    let var = |key: &str| std::env::var(key).expect("muster sets it");
    let token = var("MUSTER_FENCING_TOKEN");
    // Written aside first: whoever sees the file sees its first line.
    let (aside, path) = (folder.join(format!("{token}.new")), folder.join(&token));
    let mut file = std::fs::File::create(&aside).expect("the folder is writable");
    let guardian = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    let (pid, holder) = (std::process::id(), var("MUSTER_HOLDER"));
    writeln!(file, "start {} {token} {holder} {pid} {guardian}", begun.0).expect("it can be written");
    std::fs::rename(&aside, &path).expect("it can be renamed");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut told = signal(SignalKind::terminate()).expect("signals can be heard");
        loop {
            let ends = tokio::select! {
                _ = told.recv() => !stubborn,
                () = tokio::time::sleep(BEAT) => false,
            };
            let word = if ends { "end" } else { "alive" };
            let now = BootTime.now();
            writeln!(file, "{word} {}", now.0).expect("it can be written");
            if ends {
                exit(0);
            }
        }
    });
}
