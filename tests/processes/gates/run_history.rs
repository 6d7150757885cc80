//! The history of runs and their whole output, as an operator sees them at each moment.

use std::os::unix::fs::MetadataExt;

use muster_messages::Role;
use serde_json::Value;

use super::{items, shown, text, world_with_workers};
use crate::harness::{ForegroundMuster, World, eventually};

/// A command of release 2.0.0 whose runner gives way after two failures.
fn apply(world: &World, script: &str) {
    let script = format!("cd {}; {script}", world.folder().display());
    let text = format!(
        "name = \"migration\"\nrelease = \"2.0.0\"\nscope = \"shop\"\nfloor = \"1.0.0\"\nsettle = \"0s\"\nresign_after = 2\n\
         [command]\nargv = [\"/bin/sh\", \"-c\", {script:?}]\n"
    );
    let file = world.folder().join("migration.toml");
    std::fs::write(&file, text).expect("the world's folder is writable");
    world.muster(&["reconciler", "apply", "-f", file.to_str().expect("the folder's path is text")]).ended(0);
}

fn put(world: &World, file: &str, there: bool) {
    let path = world.folder().join(file);
    let changed = if there { std::fs::write(path, "") } else { std::fs::remove_file(path) };
    changed.expect("the world's folder is writable");
}

fn status(world: &World) -> Value {
    world.muster_insists(&["reconciler", "status", "migration"])
}
fn runs(world: &World) -> Vec<Value> {
    items(&world.muster_insists(&["reconciler", "runs", "migration"]), "items")
}
/// The newest run, once it has succeeded.
fn last_done(world: &World) -> Value {
    eventually("it is applied", || {
        let mut status = status(world);
        let done = status["phase"] == "idle" && status["last_run"]["outcome"] == "done";
        done.then(|| status["last_run"].take())
    })
}
fn log(world: &World, number: &str) -> String {
    shown(world, &["logs", "migration", "--run", number]).ended(0).stdout
}

#[test]
#[ignore = "full tier"]
fn failing_migration_is_followed_from_first_run_to_success() {
    let mut world = world_with_workers(&["n2", "n3"]);
    let none = world.muster(&["reconciler", "logs", "migration"]).ended(4);
    assert_eq!(none.error_code(), "not_found");
    put(&world, "hold", true);
    apply(
        &world,
        "echo one; while test -e hold; do sleep 0.05; done; test -e fixed && echo done && exit 0; echo 'no such table: users' >&2; exit 3",
    );

    // The first run is running: it is on record, and its output can be read.
    let first = eventually("the first run is on record", || runs(&world).first().cloned());
    assert_eq!(
        (&first["number"], &first["outcome"], &first["ran_for_ms"]),
        (&1.into(), &"running".into(), &Value::Null)
    );
    let socket = world.socket("n1");
    let socket = socket.to_str().expect("the folder's path is text");
    let follow = ["--socket", socket, "--timeout", "60s", "reconciler", "logs", "migration", "--run", "1", "--follow"];
    let mut follower = ForegroundMuster::start(world.folder(), &follow);
    follower.wait_for_line("one");
    assert_eq!(log(&world, "1"), "one\n", "what is there so far");
    let running =
        eventually("its runner has reported it", || Some(status(&world)).filter(|status| status["phase"] == "running"));
    assert_eq!(running["last_run"]["outcome"], "running", "{running}");
    let table = shown(&world, &["status", "migration"]).ended(0).stdout;
    assert!(table.contains("`muster reconciler logs migration --run 1 --follow`"), "{table}");

    // It fails, here and on the other node.
    put(&world, "hold", false);
    follower.wait_for_line("no such table: users");
    assert_eq!(follower.exit(), Some(0), "{}", follower.seen());
    let (failed, all) = eventually("both nodes have tried and keep out", || {
        let (status, all) = (status(&world), runs(&world));
        let failed = status["reason"] == "candidates-failed" && status["last_run"]["outcome"] == "failed";
        let tried = |name: &str| all.iter().filter(|run| run["node_name"] == name).count() >= 2;
        (failed && tried("n2") && tried("n3")).then_some((status, all))
    });
    let last = &failed["last_run"];
    assert_eq!((&last["outcome"], &last["exit"]["status"]), (&"failed".into(), &3.into()), "{failed}");
    for (run, number) in all.iter().zip(1..) {
        assert_eq!(
            (&run["number"], &run["outcome"], &run["message"]),
            (&number.into(), &"failed".into(), &"the command exited with 3".into())
        );
        assert_eq!(
            (&run["head"], &run["tail"], &run["release"]),
            (&run["tail"], &"one\nno such table: users\n".into(), &"2.0.0".into())
        );
        assert!(run["ran_for_ms"].is_u64(), "{run}");
    }
    let table = shown(&world, &["runs", "migration"]).ended(0).stdout;
    let row: Vec<&str> = table.lines().nth(1).expect("a row").split_whitespace().collect();
    assert!(table.starts_with("RUN ") && row[..2] == ["1", "1"] && row[6..] == ["3", "failed"], "{table}");

    // The node that ran the last one is away, and returns.
    let (number, node) = (last["number"].to_string(), text(&last["node_name"]));
    world.node(&node).stop();
    let away = eventually("the node is away", || {
        let asked = world.muster(&["reconciler", "logs", "migration", "--run", &number]);
        (asked.code == 5).then_some(asked)
    });
    assert!(away.stderr.contains(&format!("the output of run {number} of migration is on {node}")), "{}", away.stderr);
    let seen = shown(&world, &["logs", "migration", "--run", &number]).ended(5);
    assert_eq!(seen.stdout, "output on record:\n  one\n  no such table: users\n");
    world.node(&node).start(&["--release", "2.0.0"]).ready();
    let kept = eventually("its log can be read again", || {
        let asked = shown(&world, &["logs", "migration", "--run", &number]);
        (asked.code == 0).then_some(asked.stdout)
    });
    assert_eq!(kept, "one\nno such table: users\n");

    // It is fixed.
    put(&world, "fixed", true);
    world.muster(&["reconciler", "retry", "migration"]).ended(0);
    let done = last_done(&world);
    assert_eq!(done["exit"]["status"], 0, "{done}");
    assert_eq!(shown(&world, &["logs", "migration"]).ended(0).stdout, "one\ndone\n");
    let all = runs(&world);
    assert!(all.windows(2).all(|pair| pair[0]["number"].as_u64() < pair[1]["number"].as_u64()), "{all:?}");
    // A node that tried by itself just before the retry may have succeeded already; the retry then runs it once more.
    let is_done = |run: &&Value| run["outcome"] == "done";
    assert!(all.iter().skip_while(|run| !is_done(run)).all(|run| is_done(&run)), "{all:?}");
}

/// Ten megabytes in one line, and a terminal's control characters.
#[test]
#[ignore = "full tier"]
fn hostile_output_is_bounded_on_disk_and_in_answers() {
    let mut world = world_with_workers(&["n2"]);
    apply(&world, r"printf '\033]0;evil\007'; head -c 10000000 /dev/zero | tr '\0' x; printf '\033[2Jlast\377\n'");
    let run = last_done(&world);
    let (head, tail) = (text(&run["head"]), text(&run["tail"]));
    assert!(head.starts_with("\x1b]0;evil\x07xxx") && head.len() <= 1024, "{head:?}");
    assert!(tail.ends_with("xxx\x1b[2Jlast\u{fffd}\n") && tail.len() <= 1024, "{tail:?}");
    let folder = world.node("n2").folder.join("runs/migration");
    let files: Vec<_> =
        std::fs::read_dir(folder).expect("it is there").map(|file| file.unwrap().metadata().unwrap()).collect();
    let bytes: u64 = files.iter().map(MetadataExt::size).sum();
    assert!(files.len() == 4 && bytes <= 4 << 20 && files.iter().all(|file| file.mode() & 0o777 == 0o600), "{bytes}");

    // Every part is small, the missing middle is named, and both ends are there.
    let parts = world.muster(&["reconciler", "logs", "migration"]).ended(0).stdout;
    let parts: Vec<Value> = parts.lines().map(|line| serde_json::from_str(line).expect("a document")).collect();
    let all: String = parts.iter().map(|part| text(&part["text"])).collect();
    assert!(all.starts_with(&head) && all.ends_with("xxx\x1b[2Jlast\u{fffd}\n"), "{}", all.len());
    assert!(parts.iter().all(|part| text(&part["text"]).len() <= 80 * 1024));
    let skipped: u64 = parts.iter().filter_map(|part| part["skipped"].as_u64()).sum();
    let written = parts.last().and_then(|part| part["next_offset"].as_u64()).expect("an offset");
    assert_eq!((written, skipped), (10_000_000 + 9 + 10, written - bytes));
    let printed = shown(&world, &["logs", "migration"]).ended(0);
    assert!(
        printed.stdout == all && printed.stderr.contains(&format!("{skipped} bytes of the output are missing here"))
    );
    let table = shown(&world, &["status", "migration"]).ended(0).stdout;
    assert!(!table.contains('\x1b') && table.len() < 100_000, "{}", table.len());
}

/// The disk of the node that runs it takes nothing.
#[test]
#[ignore = "full tier"]
fn full_disk_costs_the_log_and_not_the_run() {
    let mut world = world_with_workers(&[]);
    let (seed, token) = (world.node("n1").listen.to_string(), world.token(Role::Worker));
    world.node("n2").disk_may_fill().start(&["--join", &seed, "--token", &token, "--release", "2.0.0"]).ready();
    world.all_settled();
    world.node("n2").disk_is_full(true);
    apply(&world, "echo it works; exit 0");
    let run = last_done(&world);
    assert_eq!((&run["outcome"], &run["tail"]), (&"done".into(), &"it works\n".into()));
    // A file can be created there, and nothing be written: the log says how much is missing.
    let lost = world.muster(&["reconciler", "logs", "migration"]).ended(0).json();
    assert_eq!((&lost["skipped"], &lost["text"]), (&9.into(), &"".into()), "{lost}");
    let inspected = world.muster(&["actors", "inspect", "node/reconcilers", "--node", "n2"]).ended(0).json();
    assert_eq!(inspected["view"]["lost_log_bytes"], 9, "{inspected}");
}
