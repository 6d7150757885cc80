//! Guardians of real commands. This test program, started once more, plays `muster`: so it can be frozen and killed like any process.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use muster::cli::elect::command::{End, guard};
use muster::guard::{Exit, Guarded, Launch, News, Report, adopt};
use muster_elector::{BootTime, Hold, Timekeeper};
use muster_local_cluster::{ProcessId, parent, until};
use muster_messages::Moment;
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, timeout};

/// Bound of every wait, far above what it takes. The core's tests check the guardian's precision, on their own clock.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Settings of the played `muster`, in the environment.
#[derive(Clone, Copy)]
struct Times {
    step_down: Duration,
    over: Duration,
}

const LONG: Times = Times { step_down: Duration::from_secs(300), over: Duration::from_secs(300) };
/// Far above the duration of a renewal, however busy the machine: every renewal arrives in time.
const SHORT: Times = Times { step_down: Duration::from_secs(4), over: Duration::from_secs(6) };

/// Interval of confirmed renewals. Each counts from its own time.
const RENEW: Duration = Duration::from_millis(50);
/// A file that stops the played `muster`'s renewals: written once the command is ready, however long that took.
const SILENCE: &str = "silence";

/// The part of `muster`: starts a guardian, confirms renewals, and prints the reports. Without the variable `SCRIPT` it does nothing:
/// the other tests start it with the variable set.
#[test]
fn played_muster() {
    let Ok(command) = std::env::var("SCRIPT") else { return };
    let var = |key: &str| std::env::var(key).expect("the other tests start it");
    let number = |key: &str| var(key).parse().map(Duration::from_millis).expect("a number of milliseconds");
    parent::die_with_parent();
    adopt().expect("a subreaper");
    let (step_down, over) = (number("STEP_DOWN"), number("OVER"));
    let launch = Launch {
        program: env!("CARGO_BIN_EXE_muster").into(),
        command: if command.starts_with('/') {
            vec![command.into()]
        } else {
            vec!["sh".into(), "-c".into(), command.into()]
        },
        environment: vec![("MUSTER_FENCING_TOKEN".into(), "7".into())],
    };
    let hold = |now: Moment| Hold { step_down_at: now + step_down, over_at: now + over };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut guarded = Guarded::start(&launch, std::io::stdin()).expect("a guardian");
        println!("guardian {}", guarded.guardian());
        let first = hold(BootTime.now());
        guarded.until(first).await;
        let (mut silent, mut renewals) = (false, tokio::time::interval(RENEW));
        renewals.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let news = tokio::select! {
                news = guarded.next() => news,
                _ = renewals.tick(), if !silent => {
                    let last = hold(BootTime.now());
                    guarded.until(last).await;
                    silent = Path::new(SILENCE).exists();
                    if silent {
                        println!("until {} {}", last.step_down_at.0, last.over_at.0);
                    }
                    continue;
                }
            };
            match news {
                Some(News::Started { group }) => println!("started {group}"),
                Some(News::Report(Report::Lapsed)) => println!("lapsed"),
                Some(News::Report(Report::Ended(Exit::Code(code)))) => return println!("exited {code}"),
                Some(News::Report(Report::Ended(Exit::Signal(number)))) => return println!("killed {number}"),
                None => {
                    guarded.end_orphans().await;
                    return println!("orphans ended");
                }
            }
        }
    });
}

/// A played `muster` with its guardian and command.
struct Play {
    muster: Child,
    lines: Receiver<String>,
    input: Option<ChildStdin>,
    folder: TempDir,
}

impl Play {
    fn start(script: &str, times: Times) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "played_muster", "--nocapture"]).current_dir(folder.path());
        let millis = |time: Duration| time.as_millis().to_string();
        command.env("SCRIPT", script).env("STEP_DOWN", millis(times.step_down)).env("OVER", millis(times.over));
        parent::tie(&mut command);
        let mut muster = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let (tell, lines) = channel();
        let stdout = muster.stdout.take().expect("stdout is piped");
        std::thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).all(|line| tell.send(line).is_ok())
        });
        let input = muster.stdin.take();
        Self { muster, lines, input, folder }
    }

    /// Waits for a line with this beginning, and returns the rest of it.
    #[track_caller]
    fn wait_for_line(&self, word: &str) -> String {
        self.wait_for_one_of(&[word]).1
    }
    /// Waits until a command was killed: by its guardian, or together with it. A guardian that a busy machine holds up for longer than its
    /// grace counts as hung.
    #[track_caller]
    fn wait_for_kill(&self) {
        let (by, number) = self.wait_for_one_of(&["killed", "orphans ended"]);
        assert!(by == "orphans ended" || number == "9", "{number}");
    }
    /// Waits for a line with one of these beginnings, and returns it and the rest of the line.
    #[track_caller]
    fn wait_for_one_of<'a>(&self, words: &[&'a str]) -> (&'a str, String) {
        let mut others = Vec::new();
        loop {
            let line = self.lines.recv_timeout(WAIT_LIMIT);
            let line =
                line.unwrap_or_else(|why| panic!("{why}: no line begins with one of {words:?}, only {others:?}"));
            if let Some((word, rest)) = words.iter().find_map(|word| Some((*word, line.strip_prefix(word)?))) {
                return (word, rest.trim().to_owned());
            }
            others.push(line);
        }
    }
    fn guardian(&self) -> ProcessId {
        let pid = self.wait_for_line("guardian ").parse().expect("a pid");
        ProcessId::of(pid).expect("the guardian runs")
    }
    /// Stops renewals. Returns the times of the last one.
    fn fall_silent(&self) -> Hold {
        std::fs::write(self.file(SILENCE), "").expect("the folder is writable");
        let text = self.wait_for_line("until ");
        let mut numbers = text.split(' ').map(|number| Moment(number.parse().expect("a moment")));
        let mut next = || numbers.next().expect("two moments");
        Hold { step_down_at: next(), over_at: next() }
    }
    fn muster(&self) -> ProcessId {
        ProcessId::of(self.muster.id()).expect("it runs")
    }
    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
    /// The processes that have written their pids to `pids`, once there are this many.
    #[track_caller]
    fn processes(&self, count: usize) -> Vec<ProcessId> {
        let path = self.file("pids");
        let mut found = Vec::new();
        eventually("all of the command's processes run", || {
            found = lines_of(&path).iter().filter_map(|line| ProcessId::of(line.parse().ok()?)).collect();
            found.len() == count
        });
        found
    }
}

impl Drop for Play {
    fn drop(&mut self) {
        let _ended = self.muster.kill();
        let _status = self.muster.wait();
    }
}

fn lines_of(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[track_caller]
fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> Moment {
    let end = BootTime.now() + WAIT_LIMIT;
    while !holds() {
        assert!(BootTime.now() < end, "not so within {WAIT_LIMIT:?}: {what}");
        std::thread::park_timeout(ms(1));
    }
    BootTime.now()
}

#[track_caller]
fn gone(processes: &[ProcessId]) -> Moment {
    eventually("no process of the command is left", || !processes.iter().any(|process| process.is_alive()))
}

/// Ignores TERM, starts a process that ignores it as well, and one that leaves its group and session.
const IGNORES_TERM: &str = r#"
    body='trap "" TERM; echo $$ >> pids; while :; do sleep 0.01; done'
    sh -c "$body" & setsid sh -c "$body" &
    eval "$body"
"#;

/// Records that it was asked to end, and ends.
const ENDS_ON_TERM: &str = r#"
    trap 'echo told >> told; exit 5' TERM
    echo $$ >> pids; while :; do sleep 0.01; done
"#;

#[test]
fn exit_status_of_the_command_is_forwarded() {
    for (script, report, rest) in [("exit 3", "exited", "3"), ("kill -KILL $$", "killed", "9")] {
        assert_eq!(Play::start(script, LONG).wait_for_line(report), rest);
    }
}

#[test]
fn command_inherits_input_output_environment_and_folder() {
    let mut play = Play::start("cat > copy; echo token $MUSTER_FENCING_TOKEN; pwd", LONG);
    let mut input = play.input.take().expect("stdin is piped");
    input.write_all(b"through three processes\n").expect("the command reads");
    drop(input);
    assert_eq!(play.wait_for_line("token"), "7");
    play.wait_for_line("exited");
    assert_eq!(lines_of(&play.file("copy")), ["through three processes"]);
}

#[test]
fn missing_command_ends_as_in_a_shell() {
    assert_eq!(Play::start("/nowhere/nothing", LONG).wait_for_line("exited"), "127");
}

#[test]
fn command_without_renewals_is_terminated_at_the_deadline() {
    let play = Play::start(ENDS_ON_TERM, Times { step_down: SHORT.step_down, ..LONG });
    let processes = play.processes(1);
    let until = play.fall_silent();
    play.wait_for_line("lapsed");
    assert!(gone(&processes) >= until.step_down_at);
    // Asked, not killed: the end of its time is far beyond this test's timeout.
    assert_eq!(lines_of(&play.file("told")), ["told"]);
    assert_eq!(play.wait_for_line("exited"), "5");
}

#[test]
fn command_ignoring_term_dies_before_its_lease_can_move() {
    let play = Play::start(IGNORES_TERM, SHORT);
    let processes = play.processes(3);
    let until = play.fall_silent();
    assert!(gone(&processes) >= until.over_at, "it had its time");
    play.wait_for_kill();
}

#[test]
fn command_ignoring_term_is_killed_despite_renewals() {
    let folder = tempfile::tempdir().expect("a folder");
    let ready = folder.path().join("ready");
    let script = format!("trap '' TERM; echo > {}; while :; do sleep 0.01; done", ready.display());
    let command = ["sh".into(), "-c".into(), script.into()];
    let launch = Launch { program: env!("CARGO_BIN_EXE_muster").into(), command: command.into(), environment: vec![] };
    // Its time runs out only when it is asked to end: renewals keep `over_at` ahead.
    let hold = || Hold { step_down_at: BootTime.now() + LONG.step_down, over_at: BootTime.now() + SHORT.over };
    let (renew, renewed) = watch::channel(hold());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let end = runtime.block_on(async {
        let report = async {
            let is_ready = until("the command is ready", async || Ok(ready.exists().then_some(())));
            is_ready.await.expect("it begins");
        };
        let renewals = async {
            let mut due = tokio::time::interval(RENEW);
            loop {
                due.tick().await;
                renew.send_replace(hold());
            }
        };
        let guarded = async {
            tokio::select! {
                end = guard(&launch, renewed, report, None) => Some(end),
                () = renewals => None,
            }
        };
        timeout(WAIT_LIMIT, guarded).await.ok().flatten()
    });
    assert!(matches!(end, Some(End::Exited(Exit::Signal(9)))), "{end:?}");
}

#[test]
#[ignore = "full tier"]
fn renewals_keep_the_command_running() {
    let play = Play::start(IGNORES_TERM, SHORT);
    let processes = play.processes(3);
    let seen = BootTime.now();
    eventually("two deadlines have passed", || BootTime.now() > seen + 2 * SHORT.over);
    assert!(processes.iter().all(|process| process.is_alive()));
}

#[test]
fn killing_muster_ends_its_command_in_time() {
    let play = Play::start(ENDS_ON_TERM, LONG);
    let processes = play.processes(1);
    play.muster().signal(Signal::KILL);
    gone(&processes); // long before its time is over
    assert_eq!(lines_of(&play.file("told")), ["told"]);

    let play = Play::start(IGNORES_TERM, SHORT);
    let processes = play.processes(3);
    play.muster().signal(Signal::KILL);
    gone(&processes);
}

#[test]
#[ignore = "full tier"]
fn when_muster_is_frozen_its_command_is_gone_in_time() {
    let play = Play::start(IGNORES_TERM, SHORT);
    let processes = play.processes(3);
    play.muster().signal(Signal::STOP);
    gone(&processes);
    play.muster().signal(Signal::CONT);
    play.wait_for_line("lapsed");
    play.wait_for_kill();
}

#[test]
#[ignore = "full tier"]
fn command_is_gone_at_once_after_a_long_total_freeze() {
    let play = Play::start(IGNORES_TERM, SHORT);
    let guardian = play.guardian();
    let processes = play.processes(3);
    let all: Vec<ProcessId> = processes.iter().copied().chain([play.muster(), guardian]).collect();
    for process in &all {
        process.signal(Signal::STOP);
    }
    let frozen = BootTime.now();
    eventually("its time is over", || BootTime.now() > frozen + SHORT.over + RENEW);
    assert!(all.iter().all(|process| process.is_alive()), "the dead do not thaw");
    for process in &all {
        process.signal(Signal::CONT); // the guardian last
    }
    let thawed = BootTime.now();
    let took = gone(&processes).since(thawed);
    // A tenth of a second is promised; how much a busy machine adds is not tested here.
    println!("gone {took:?} after the thaw");
}

#[test]
fn killing_the_guardian_kills_all_command_processes() {
    let play = Play::start(IGNORES_TERM, LONG);
    let guardian = play.guardian();
    let processes = play.processes(3);
    guardian.signal(Signal::KILL);
    gone(&processes);
    play.wait_for_line("orphans ended");
}

#[test]
fn leftovers_of_a_real_command_are_killed_before_its_end() {
    let script = r#"body='trap "" TERM; echo $$ >> pids; while :; do sleep 0.01; done'
        sh -c "$body" & setsid sh -c "$body" & while [ "$(wc -l < pids)" != 2 ]; do sleep 0.01; done 2> errors; exit 4"#;
    let play = Play::start(script, LONG);
    play.wait_for_line("started");
    let processes = {
        let mut processes = Vec::new();
        eventually("both have written their pids", || {
            processes = lines_of(&play.file("pids"));
            processes.len() == 2
        });
        processes
    };
    assert_eq!(play.wait_for_line("exited"), "4");
    for pid in processes {
        assert!(ProcessId::of(pid.parse().expect("a pid")).is_none(), "{pid} is left");
    }
}

#[test]
fn terminal_signals_reach_neither_guardian_nor_command() {
    let play = Play::start(ENDS_ON_TERM, LONG);
    let guardian = play.guardian();
    let processes = play.processes(1);
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        guardian.signal(signal);
    }
    let session = |process: ProcessId| {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid)).expect("it runs");
        stat[stat.rfind(')').expect("a name in parentheses") + 1..].split_whitespace().nth(3).map(str::to_owned)
    };
    assert_eq!(session(guardian), session(processes[0]));
    assert_ne!(session(guardian), session(play.muster()), "a terminal's signals go to its own session");
    processes[0].signal(Signal::TERM);
    assert_eq!(play.wait_for_line("exited"), "5", "the guardian still runs and reports it");
}
