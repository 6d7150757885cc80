//! Documented walks, run as written: every line of their shell blocks, in order, in an empty folder.

use std::fs::{File, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use muster::guard::{Exit, Guarded, Launch, News, Report, Streams};
use muster_elector::{BootTime, Hold, Timekeeper};
use muster_local_cluster::temporary_folder;
use tempfile::TempDir;

use crate::election::played::example_script;
use crate::harness::{MUSTER, WAIT_LIMIT, permit};

/// The time limit of a whole walk: each of its lines may wait as long as one wait of any other scenario.
const WALK_LIMIT: Duration = WAIT_LIMIT.saturating_mul(2);

/// A file of the walk's folder: each command when it begins, so that a line that hangs is known, too.
const TRACE: &str = "trace";

const MIGRATION: &str = include_str!("../../docs/walks/migration.md");
const TWO_APPLICATIONS: &str = include_str!("../../docs/walks/two-applications.md");
const ON_CALL: &str = include_str!("../../docs/walks/on-call.md");
const SCHEDULER: &str = include_str!("../../docs/scheduler.md");
const EMBEDDING: &str = include_str!("../../docs/embedding.md");
const PYTHON: &str = include_str!("../../docs/python.md");
/// What that document copies into its folder.
const PYTHON_MODULES: [(&str, &str); 2] = [
    ("muster.py", include_str!("../../examples/python/muster.py")),
    ("muster_lease.py", include_str!("../../examples/python/muster_lease.py")),
];

/// A document's shell blocks, in order.
fn shell_of(document: &str) -> String {
    let mut blocks = document.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default());
    blocks.by_ref().collect()
}

/// Runs a script in a folder under a keeper, which ends everything that the script started.
fn run(script: &str, folder: &Path) -> (Option<Exit>, String) {
    let programs = Path::new(MUSTER).parent().expect("programs are in a folder");
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let there = format!("cd '{}'\nexec 9> {TRACE}\nBASH_XTRACEFD=9\nset -x\n{script}", folder.display());
    let launch = Launch {
        program: MUSTER.into(),
        command: ["bash", "-euo", "pipefail", "-c", &there].map(Into::into).to_vec(),
        environment: vec![("PATH".to_owned(), path)],
    };
    let out = folder.join("out");
    let written = File::create(&out).expect("the folder is writable");
    let errors = OwnedFd::from(written.try_clone().expect("a file can be written twice"));
    let input = OwnedFd::from(File::open("/dev/null").expect("it is there"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let exit = runtime.block_on(async {
        let streams = Streams { input, output: written.into(), errors };
        let mut kept = Guarded::start_with_keeper(&launch, streams).expect("a keeper");
        let end = BootTime.now() + WALK_LIMIT;
        kept.until(Hold { step_down_at: end, over_at: end + Duration::from_secs(5) }).await;
        let mut exit = None;
        while let Some(news) = kept.next().await {
            if let News::Report(Report::Ended(ended)) = news {
                exit = Some(ended);
            }
        }
        kept.collect().expect("the keeper has ended");
        exit
    });
    (exit, std::fs::read_to_string(&out).unwrap_or_default())
}

/// What a document's lines print, which all succeed.
#[track_caller]
fn walk(document: &str, folder: &Path) -> String {
    let (exit, said) = run(&shell_of(document), folder);
    let trace = std::fs::read_to_string(folder.join(TRACE)).unwrap_or_default();
    // The end first: of a long message, a summary shows the beginning.
    let (command, line) = (last(&trace, 4), last(&said, 4));
    assert_eq!(exit, Some(Exit::Code(0)), "at {command}\nafter {line}\n{}\nof all this:\n{said}", logs(folder));
    said
}

fn last(text: &str, lines: usize) -> String {
    let skipped = text.lines().count().saturating_sub(lines);
    text.lines().skip(skipped).collect::<Vec<_>>().join(" | ")
}

/// The last line of each log that the lines of a document have written.
fn logs(folder: &Path) -> String {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let logs = files.filter(|path| path.extension().is_some_and(|end| end == "log"));
    let ends = logs.filter_map(|path| {
        let text = std::fs::read_to_string(&path).ok().filter(|text| !text.is_empty())?;
        Some(format!("{}: {}", path.file_name()?.display(), last(&text, 1)))
    });
    ends.collect::<Vec<_>>().join("\n")
}

#[test]
#[ignore = "full tier"]
fn migration_walk_runs_as_written() {
    let _permit = permit();
    let folder = temporary_folder("walk").expect("a temporary folder");
    let said = walk(MIGRATION, folder.path());
    // The output that the text promises.
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    let services: String = (1..=3).map(|n| read(&format!("n{n}.service"))).collect();
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
        assert!(said.contains(line) || services.contains(line), "{line}\n{said}\n{services}");
    }
}

#[test]
#[ignore = "full tier"]
fn two_applications_walk_runs_as_written() {
    let _permit = permit();
    let folder = temporary_folder("walk").expect("a temporary folder");
    let said = walk(TWO_APPLICATIONS, folder.path());
    for line in [
        "shop         1.0.0",
        "the node's own",
        "customers by 1.0.0",
        "orders by 1.1.0",
        "no live node can run it now",
        "run    step orders: sh -c",
        "step customers ran with the definition of 1.0.0",
        "different content under that name",
        "exit 6",
    ] {
        assert!(said.contains(line), "{line}\n{said}");
    }
}

/// A folder with one of the examples in it.
fn folder_with(example: &str) -> TempDir {
    let folder = temporary_folder("walk").expect("a temporary folder");
    let program = folder.path().join(example);
    std::fs::write(&program, example_script(example)).expect("the folder is writable");
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("it is ours");
    folder
}

/// Its leader is frozen and killed meanwhile. That each job is done once, and that tokens only rise, is checked by its own lines.
#[test]
#[ignore = "full tier"]
fn scheduler_walk_runs_as_written() {
    let _permit = permit();
    let folder = folder_with("scheduler");
    let said = walk(SCHEDULER, folder.path());
    for line in ["schema 1", "schema 2", "all is done, once"] {
        assert!(said.contains(line), "{line}\n{said}");
    }
}

#[test]
#[ignore = "full tier"]
fn embedding_walk_runs_as_written() {
    let _permit = permit();
    let folder = folder_with("notifier");
    let said = walk(EMBEDDING, folder.path());
    for line in ["notifier", "notes", "learner -> voter", "voter -> none"] {
        assert!(said.contains(line), "{line}\n{said}");
    }
}

#[test]
#[ignore = "full tier"]
fn on_call_walk_runs_as_written() {
    let _permit = permit();
    let folder = temporary_folder("walk").expect("a temporary folder");
    let said = walk(ON_CALL, folder.path());
    // The output that the text promises, in its order.
    let mut rest = said.as_str();
    for line in [
        "the configuration can be used",
        "cannot read the join token",
        "exit 2",
        "held: 3 of 3, may lose 1",
        "held: 2 of 3, may lose none; missing: n3",
        "without n2 2 of the other managers must answer, and 1 does; missing: n3",
        "exit 6",
        "removed",
        "this node is blocked",
        "exit 6",
        "reloaded the configuration applied=\"log\"",
        "n2 may be stopped",
        "n4 may be stopped",
        "n1 may be stopped: leadership is handed over",
    ] {
        let at = rest.find(line).unwrap_or_else(|| panic!("{line}\n{said}"));
        rest = &rest[at + line.len()..];
    }
}

#[test]
#[ignore = "full tier"]
fn python_walk_runs_as_written() {
    let _permit = permit();
    let folder = temporary_folder("walk").expect("a temporary folder");
    for (name, text) in PYTHON_MODULES {
        std::fs::write(folder.path().join(name), text).expect("the folder is writable");
    }
    let said = walk(PYTHON, folder.path());
    // The output that the text promises, in its order.
    let mut rest = said.as_str();
    for line in [
        "n4 is a voter",
        "no node \"n9\"",
        "a retry is useless",
        "exit 1",
        "user before",
        "user after",
        "user meanwhile",
        "exit 7",
        "one holds the lease",
        "one stops: the lease job is over, or may be soon",
        "two holds the lease",
        "tokens only grow",
    ] {
        let at = rest.find(line).unwrap_or_else(|| panic!("{line}\n{said}"));
        rest = &rest[at + line.len()..];
    }
    assert_eq!(said.matches("user certificate signed").count(), 3, "no event is lost or doubled\n{said}");
}
