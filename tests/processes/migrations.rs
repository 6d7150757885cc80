//! Commands that reconcilers run on nodes: once, with their environment, and never in two terms at a time.

use std::path::PathBuf;

use muster_local_cluster::ProcessId;
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{World, eventually, eventually_so};

/// Writes a line at each start, and one every few milliseconds while it runs, each with its fencing token.
const LOOPING_SCRIPT: &str = r#"echo "$MUSTER_FENCING_TOKEN begins $$" >> trace
trap '' TERM
while :; do echo "$MUSTER_FENCING_TOKEN works" >> trace; sleep 0.02; done"#;

struct Scenario {
    world: World,
}

impl Scenario {
    /// Three nodes, the last two of release 2.0.0, and a definition for that release that runs a script.
    fn of(script: &str) -> Self {
        Self::within(script, "10m")
    }
    /// The same, with a timeout for each attempt.
    fn within(script: &str, timeout: &str) -> Self {
        let mut world = World::with(1, 2);
        for name in ["n2", "n3"] {
            world.node(name).stop();
            world.node(name).start(&["--release", "2.0.0"]).ready();
        }
        let scenario = Self { world };
        let text = format!(
            "name = \"migration\"\nrelease = \"2.0.0\"\nscope = \"db\"\nfloor = \"2.0.0\"\nsettle = \"100ms\"\ntimeout = \"{timeout}\"\n\
             [command]\nargv = [\"sh\", \"-c\", '''cd {}\n{script}''']\nenv = {{ COLOUR = \"blue\" }}\n",
            scenario.world.folder().display()
        );
        let file = scenario.file("migration.toml");
        std::fs::write(&file, text).expect("the world's folder is writable");
        let file = file.to_str().expect("the folder's path is text");
        scenario.world.muster(&["reconciler", "apply", "-f", file]).ended(0);
        scenario
    }

    fn file(&self, name: &str) -> PathBuf {
        self.world.folder().join(name)
    }
    /// Complete lines of a file that commands write.
    fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.file(name)).unwrap_or_default();
        text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(str::to_owned).collect()
    }
    /// How often a command was begun.
    fn begun(&self) -> usize {
        self.lines("trace").iter().filter(|line| line.contains("begins")).count()
    }
    fn status(&self) -> Value {
        self.world.muster(&["reconciler", "status", "migration"]).ended(0).json()
    }
    #[track_caller]
    fn reaches(&self, phase: &str) -> Value {
        eventually(phase, || Some(self.status()).filter(|status| status["phase"] == phase))
    }
    /// The name of the node that runs it, once its command has written something.
    fn runner(&self) -> String {
        eventually_so("the command works", || self.lines("trace").len() > 2);
        let status = eventually("a runner", || Some(self.status()).filter(|status| status["runner"].is_object()));
        self.runner_of(&status)
    }
    /// The name of the runner's node in a status.
    fn runner_of(&self, status: &Value) -> String {
        let nodes = self.world.nodes_seen_by("n1");
        let runs = nodes.iter().find(|node| status["runner"]["member"] == node.id.to_string().as_str());
        runs.expect("the runner is a node").name.to_string()
    }
    /// Terms in the order in which their commands wrote. Each appears once: a replaced command writes nothing more.
    fn terms(&self) -> Vec<u64> {
        let of = |line: &String| line.split(' ').next().and_then(|term| term.parse().ok());
        let mut terms: Vec<u64> = self.lines("trace").iter().filter_map(of).collect();
        terms.dedup();
        terms
    }
    #[track_caller]
    fn another_term(&self, than: &str) {
        eventually_so("another node's command works", || self.terms().len() > 1);
        let terms = self.terms();
        assert!(terms.windows(2).all(|pair| pair[0] < pair[1]), "one after the other, each larger: {terms:?}");
        assert_ne!(self.runner(), than);
    }
    /// Live processes of this scenario's commands.
    fn commands(&self) -> Vec<ProcessId> {
        let begun = self.lines("trace").into_iter().filter(|line| line.contains("begins"));
        let pids = begun.filter_map(|line| line.rsplit(' ').next().and_then(|pid| pid.parse().ok()));
        pids.filter_map(ProcessId::of).filter(|process| process.is_alive()).collect()
    }
}

#[test]
#[ignore = "full tier"]
fn command_runs_once_on_newest_release_with_environment() {
    let scenario = Scenario::of(
        r#"env | grep -E '^(MUSTER|COLOUR)' | sort >> seen
           echo "to stdout"; echo "to stderr" >&2
           test -e go || exit 75"#,
    );
    // Read between two attempts: during one no next attempt is scheduled.
    let later = eventually("a retry is scheduled", || {
        Some(scenario.status())
            .filter(|status| status["last_error"].as_str().is_some_and(|e| e.contains("75")))
            .filter(|status| status["next_retry_at"].is_string())
    });
    assert_eq!((&later["phase"], &later["gate"]), (&"running".into(), &Value::Null), "{later}");
    std::fs::write(scenario.file("go"), "").expect("the world's folder is writable");
    let done = scenario.reaches("idle");
    assert_eq!((&done["gate"]["state"], &done["gate"]["reconciled"]), (&"done".into(), &"2.0.0".into()), "{done}");
    let term = done["runner"]["term"].as_u64().expect("a term");
    let seen = scenario.lines("seen");
    for line in [
        "COLOUR=blue",
        "MUSTER_ATTEMPT=1",
        "MUSTER_FROM_RELEASE=",
        &format!("MUSTER_FENCING_TOKEN={term}"),
        "MUSTER_RECONCILER=migration",
        "MUSTER_TARGET_RELEASE=2.0.0",
    ] {
        assert!(seen.iter().any(|seen| seen == line), "{line}: {seen:?}");
    }
    assert!(seen.iter().any(|line| line.starts_with("MUSTER_SOCKET=/")), "{seen:?}");
    assert!(seen.iter().any(|line| line.starts_with("MUSTER_DEADLINE=20")), "{seen:?}");
    assert!(!seen.iter().any(|line| line.starts_with("MUSTER_DIE")), "no variable of the daemon's own: {seen:?}");
    let output = done["output"].as_str().unwrap_or_default();
    assert!(output.contains("to stdout") && output.contains("to stderr"), "{done}");
    let runs = seen.iter().filter(|line| line.starts_with("MUSTER_ATTEMPT")).count();

    // A new runner does not repeat completed work.
    let runner = scenario.runner_of(&done);
    let mut world = scenario.world;
    world.node(&runner).stop();
    let scenario = Scenario { world };
    let taken = eventually("the other node runs it", || {
        Some(scenario.status()).filter(|s| s["runner"]["term"].as_u64() > Some(term) && s["phase"] == "idle")
    });
    assert_eq!(taken["gate"]["epoch"], done["gate"]["epoch"]);
    assert_eq!(scenario.lines("seen").iter().filter(|line| line.starts_with("MUSTER_ATTEMPT")).count(), runs);
}

#[test]
#[ignore = "full tier"]
fn command_that_fails_for_good_waits_for_operator_retry() {
    let scenario = Scenario::of("echo tried >> tries; test -e fixed && exit 0; echo 'wrong schema'; exit 78");
    let failed = scenario.reaches("failed");
    assert!(failed["last_error"].as_str().is_some_and(|error| error.contains("78")), "{failed}");
    assert!(failed["message"].as_str().is_some_and(|help| help.contains("muster reconciler retry")), "{failed}");
    assert_eq!(scenario.lines("tries").len(), 1);
    std::fs::write(scenario.file("fixed"), "").expect("the world's folder is writable");
    scenario.world.muster(&["reconciler", "retry", "migration"]).ended(0);
    scenario.reaches("idle");
    assert_eq!(scenario.lines("tries").len(), 2);
}

/// The daemon is killed. Only the guardian can end the command.
#[test]
#[ignore = "full tier"]
fn killed_runner_command_ends_before_the_next_begins() {
    let mut scenario = Scenario::of(LOOPING_SCRIPT);
    let runner = scenario.runner();
    let commands = scenario.commands();
    assert_eq!(commands.len(), 1);
    scenario.world.node(&runner).kill();
    scenario.another_term(&runner);
    assert!(!commands[0].is_alive());
}

/// The daemon is frozen for longer than its lease, the guardian is not; after its thaw the daemon has lost.
#[test]
#[ignore = "full tier"]
fn frozen_runner_command_ends_before_the_next_begins() {
    let mut scenario = Scenario::of(LOOPING_SCRIPT);
    let runner = scenario.runner();
    let commands = scenario.commands();
    scenario.world.node(&runner).freeze();
    scenario.another_term(&runner);
    assert!(!commands[0].is_alive());
    scenario.world.node(&runner).signal(Signal::CONT);
    let before = scenario.lines("trace").len();
    eventually_so("the successor keeps working", || scenario.lines("trace").len() > before + 100);
    let terms = scenario.terms();
    assert!(terms.windows(2).all(|pair| pair[0] < pair[1]), "{terms:?}");
    assert_eq!(scenario.commands().len(), 1);
}

/// A stopping daemon sends its command TERM, kills it after its grace, and releases the lease at once.
#[test]
#[ignore = "full tier"]
fn stopping_daemon_ends_its_command_and_hands_over() {
    let mut scenario = Scenario::of(
        r#"trap 'echo "$MUSTER_FENCING_TOKEN told" >> trace; exit 0' TERM
           for i in 1 2 3; do echo "$MUSTER_FENCING_TOKEN works" >> trace; done
           while :; do sleep 0.02; done"#,
    );
    let runner = scenario.runner();
    scenario.world.node(&runner).stop();
    scenario.another_term(&runner);
    let lines = scenario.lines("trace");
    let first = lines[0].split(' ').next().expect("a term").to_owned();
    assert!(lines.contains(&format!("{first} told")), "{lines:?}");
}

/// A killed guardian takes the command along; after a killed keeper the guardian ends the command. Either way the run
/// has failed and is retried, by one command at a time.
#[test]
#[ignore = "full tier"]
fn command_is_retried_after_its_guardian_or_keeper_is_killed() {
    let mut scenario = Scenario::of(LOOPING_SCRIPT);
    let runner = scenario.runner();
    let daemon = scenario.world.node(&runner).pid();
    for (role, times) in [("guard-guardian", 2), ("guard-keeper", 3)] {
        let commands = scenario.commands();
        assert_eq!(commands.len(), 1);
        let keeper = child_of(daemon, "guard-keeper");
        let victim = if role == "guard-keeper" { keeper } else { child_of(keeper, role) };
        ProcessId::of(u32::try_from(victim).expect("a pid")).expect("it runs").signal(Signal::KILL);
        eventually_so("it is retried", || scenario.begun() == times);
        assert!(!commands[0].is_alive(), "one at a time");
    }
    assert_eq!(scenario.terms().len(), 1, "the lease was held throughout");
}

/// A frozen keeper does not report what its guardian has done, and blocks nothing beyond the timeout.
#[test]
#[ignore = "full tier"]
fn frozen_keeper_is_abandoned_at_run_timeout() {
    let mut scenario = Scenario::within(LOOPING_SCRIPT, "20s");
    let runner = scenario.runner();
    let commands = scenario.commands();
    let keeper = child_of(scenario.world.node(&runner).pid(), "guard-keeper");
    let guardian = child_of(keeper, "guard-guardian");
    let [keeper, guardian] =
        [keeper, guardian].map(|pid| ProcessId::of(u32::try_from(pid).expect("a pid")).expect("it runs"));
    for frozen in [&guardian, &keeper] {
        frozen.signal(Signal::STOP);
    }
    eventually_so("it is retried", || scenario.begun() == 2);
    assert!(!commands[0].is_alive(), "one at a time");
    assert!(!keeper.is_alive(), "the keeper was abandoned");
    assert_eq!(scenario.terms().len(), 1, "the lease was held throughout");
    // The frozen guardian does nothing more, and ends after its thaw.
    guardian.signal(Signal::CONT);
    eventually_so("it ends", || !guardian.is_alive());
}

/// A frozen guardian cannot end its command. Its keeper kills it, and the command dies with it.
#[test]
#[ignore = "full tier"]
fn frozen_guardian_is_killed_at_run_timeout() {
    let mut scenario = Scenario::within(LOOPING_SCRIPT, "20s");
    let runner = scenario.runner();
    let keeper = child_of(scenario.world.node(&runner).pid(), "guard-keeper");
    let guardian = child_of(keeper, "guard-guardian");
    let guardian = ProcessId::of(u32::try_from(guardian).expect("a pid")).expect("it runs");
    guardian.signal(Signal::STOP);
    let (commands, begun) = (scenario.commands(), scenario.begun());
    assert_eq!(commands.len(), 1);
    eventually_so("it is retried", || scenario.begun() == begun + 1);
    assert!(!commands[0].is_alive() && !guardian.is_alive(), "one at a time");
    assert_eq!(scenario.terms().len(), 1, "the lease was held throughout");
}

/// The node's log and keys are a manager's: a command inherits none of its files, whichever code opened them
/// without close-on-exec. Nor may it become another user, whom its guardian could not kill.
#[test]
#[ignore = "full tier"]
fn command_inherits_no_files_and_gains_no_privileges() {
    let world = World::with(1, 0);
    let file = world.folder().join("look.toml");
    let script = "readlink /proc/self/fd/* > open; grep NoNewPrivs /proc/self/status > rights";
    let text = format!(
        "name = \"look\"\nrelease = \"0.1.0\"\nscope = \"db\"\nfloor = \"0.1.0\"\n\
         [command]\nargv = [\"sh\", \"-c\", '''cd {}; {script}''']\n",
        world.folder().display()
    );
    std::fs::write(&file, text).expect("the world's folder is writable");
    world.muster(&["reconciler", "apply", "-f", file.to_str().expect("text")]).ended(0);
    eventually_so("it has run", || world.muster(&["reconciler", "status", "look"]).ended(0).json()["phase"] == "idle");
    let read = |name: &str| std::fs::read_to_string(world.folder().join(name)).expect("it wrote that");
    let theirs = world.folder().join("n1").display().to_string();
    let open = read("open");
    assert!(open.contains("/dev/null") && !open.contains(&theirs), "{open}");
    assert_eq!(read("rights").split_whitespace().last(), Some("1"));
}

/// The child of a process with this part.
fn child_of(parent: i32, part: &str) -> i32 {
    eventually(part, || {
        let lists = std::fs::read_dir(format!("/proc/{parent}/task")).ok()?.flatten();
        let children = lists.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        let children: Vec<i32> =
            children.flat_map(|list| list.split(' ').filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect();
        let plays = |pid: &i32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|word| word == part.as_bytes())
        };
        children.into_iter().find(plays)
    })
}
