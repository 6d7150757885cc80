//! Guardians of real commands. `muster`'s part is played by this test program, started once more: so that it can be frozen and
//! killed like any process.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use muster::cli::elect::command::{End, guard};
use muster::guard::{Exit, Guarded, Launch, News, Report, adopt};
use muster_elector::{BootTime, Hold, Timekeeper};
use muster_local_cluster::{ProcessId, parent};
use muster_messages::Moment;
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::sync::watch;

/// How long anything may take before a test fails; far above what it takes. How exact the guardian is, its core's tests say, on a
/// clock of their own.
const PATIENCE: Duration = Duration::from_secs(60);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// What the played `muster` is told, in the environment.
#[derive(Clone, Copy)]
struct Times {
    step_down: Duration,
    over: Duration,
}

const LONG: Times = Times { step_down: Duration::from_secs(300), over: Duration::from_secs(300) };
/// Far above what a renewal takes, however busy the machine: it comes in time as long as it comes.
const SHORT: Times = Times { step_down: Duration::from_secs(4), over: Duration::from_secs(6) };

/// How often the played `muster` confirms a renewal. Each counts from then.
const RENEW: Duration = Duration::from_millis(50);
/// A file that makes the played `muster` renew no more: once the command is ready for what follows, however long that took.
const SILENCE: &str = "silence";

/// The part of `muster`: starts a guardian, confirms renewals, and prints what it hears. Without the variable `SCRIPT` it does
/// nothing: the other tests start it, and set that.
#[test]
fn played_muster() {
    let Ok(command) = std::env::var("SCRIPT") else { return };
    let var = |key: &str| std::env::var(key).expect("it is started by the others");
    let number = |key: &str| var(key).parse().map(Duration::from_millis).expect("a number of milliseconds");
    parent::obey();
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
        let mut silent = false;
        loop {
            let news = tokio::select! {
                news = guarded.next() => news,
                () = tokio::time::sleep(RENEW), if !silent => {
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

    /// Waits for a line that begins so, and returns the rest of it.
    #[track_caller]
    fn says(&self, word: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("it never said {word:?}"));
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }
    fn guardian(&self) -> ProcessId {
        let pid = self.says("guardian ").parse().expect("a pid");
        ProcessId::of(pid).expect("the guardian runs")
    }
    /// Lets no more renewals be confirmed. The result is what the last one was good for.
    fn fall_silent(&self) -> Hold {
        std::fs::write(self.file(SILENCE), "").expect("the folder is writable");
        let text = self.says("until ");
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
    /// The processes that have written their pids to `pids`, once there are so many.
    #[track_caller]
    fn family(&self, many: usize) -> Vec<ProcessId> {
        let path = self.file("pids");
        let mut found = Vec::new();
        eventually("all of the command's processes run", || {
            found = lines_of(&path).iter().filter_map(|line| ProcessId::of(line.parse().ok()?)).collect();
            found.len() == many
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
    let end = BootTime.now() + PATIENCE;
    while !holds() {
        assert!(BootTime.now() < end, "not so within {PATIENCE:?}: {what}");
        std::thread::park_timeout(ms(1));
    }
    BootTime.now()
}

#[track_caller]
fn gone(family: &[ProcessId]) -> Moment {
    eventually("nothing of the command is left", || !family.iter().any(|process| process.is_alive()))
}

/// Ignores TERM, starts something that ignores it as well, and something that leaves its group and session.
const STUBBORN: &str = r#"
    body='trap "" TERM; echo $$ >> pids; while :; do sleep 0.01; done'
    sh -c "$body" & setsid sh -c "$body" &
    eval "$body"
"#;

/// Notes that it was told to end, and ends.
const POLITE: &str = r#"
    trap 'echo told >> told; exit 5' TERM
    echo $$ >> pids; while :; do sleep 0.01; done
"#;

#[test]
fn the_commands_own_end_is_passed_on() {
    for (script, told, rest) in [("exit 3", "exited", "3"), ("kill -KILL $$", "killed", "9")] {
        assert_eq!(Play::start(script, LONG).says(told), rest);
    }
}

#[test]
fn the_command_has_our_input_output_environment_and_folder() {
    let mut play = Play::start("cat > copy; echo token $MUSTER_FENCING_TOKEN; pwd", LONG);
    let mut input = play.input.take().expect("stdin is piped");
    input.write_all(b"through three processes\n").expect("somebody reads");
    drop(input);
    assert_eq!(play.says("token"), "7");
    play.says("exited");
    assert_eq!(lines_of(&play.file("copy")), ["through three processes"]);
}

#[test]
fn a_command_that_is_not_there_ends_as_it_would_in_a_shell() {
    assert_eq!(Play::start("/nowhere/nothing", LONG).says("exited"), "127");
}

#[test]
fn without_renewals_the_command_is_told_at_the_deadline() {
    let play = Play::start(POLITE, Times { step_down: SHORT.step_down, ..LONG });
    let family = play.family(1);
    let until = play.fall_silent();
    play.says("lapsed");
    assert!(gone(&family) >= until.step_down_at);
    // Told, not killed: the end of its time is far beyond this test's patience.
    assert_eq!(lines_of(&play.file("told")), ["told"]);
    assert_eq!(play.says("exited"), "5");
}

#[test]
fn whatever_ignores_it_is_killed_before_the_lease_can_be_anothers_and_so_is_all_it_started() {
    let play = Play::start(STUBBORN, SHORT);
    let family = play.family(3);
    let until = play.fall_silent();
    assert!(gone(&family) >= until.over_at, "it had its time");
    assert_eq!(play.says("killed"), "9");
}

#[test]
fn whatever_ignores_being_told_is_killed_in_time_although_its_lease_is_renewed_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let ready = folder.path().join("ready");
    let script = format!("trap '' TERM; echo > {}; while :; do sleep 0.01; done", ready.display());
    let command = ["sh".into(), "-c".into(), script.into()];
    let launch = Launch { program: env!("CARGO_BIN_EXE_muster").into(), command: command.into(), environment: vec![] };
    // Its time runs out only by being told: renewals keep `over_at` ahead.
    let hold = || Hold { step_down_at: BootTime.now() + LONG.step_down, over_at: BootTime.now() + SHORT.over };
    let (renew, renewed) = watch::channel(hold());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let end = runtime.block_on(async {
        let told = async {
            while !ready.exists() {
                tokio::time::sleep(RENEW).await;
            }
        };
        let renewals = async {
            loop {
                tokio::time::sleep(RENEW).await;
                renew.send_replace(hold());
            }
        };
        tokio::select! {
            end = guard(&launch, renewed, told, None) => Some(end),
            () = renewals => None,
            () = tokio::time::sleep(PATIENCE) => None,
        }
    });
    assert!(matches!(end, Some(End::Exited(Exit::Signal(9)))), "{end:?}");
}

#[test]
fn renewals_keep_the_command_running() {
    let play = Play::start(STUBBORN, SHORT);
    let family = play.family(3);
    let seen = BootTime.now();
    eventually("two deadlines have passed", || BootTime.now() > seen + 2 * SHORT.over);
    assert!(family.iter().all(|process| process.is_alive()));
}

#[test]
fn when_muster_is_killed_its_command_is_told_at_once_and_gone_in_time() {
    let play = Play::start(POLITE, LONG);
    let family = play.family(1);
    play.muster().signal(Signal::KILL);
    gone(&family); // long before its time is over
    assert_eq!(lines_of(&play.file("told")), ["told"]);

    let play = Play::start(STUBBORN, SHORT);
    let family = play.family(3);
    play.muster().signal(Signal::KILL);
    gone(&family);
}

#[test]
fn when_muster_is_frozen_its_command_is_gone_in_time() {
    let play = Play::start(STUBBORN, SHORT);
    let family = play.family(3);
    play.muster().signal(Signal::STOP);
    gone(&family);
    play.muster().signal(Signal::CONT);
    play.says("lapsed");
    assert_eq!(play.says("killed"), "9");
}

#[test]
fn after_a_freeze_of_everything_past_its_time_the_command_is_gone_at_once() {
    let play = Play::start(STUBBORN, SHORT);
    let guardian = play.guardian();
    let family = play.family(3);
    let all: Vec<ProcessId> = family.iter().copied().chain([play.muster(), guardian]).collect();
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
    let took = gone(&family).since(thawed);
    // A tenth of a second is promised; how much a busy machine adds is not this test's business.
    println!("gone {took:?} after the thaw");
}

#[test]
fn when_the_guardian_is_killed_the_command_is_and_all_it_started() {
    let play = Play::start(STUBBORN, LONG);
    let guardian = play.guardian();
    let family = play.family(3);
    guardian.signal(Signal::KILL);
    gone(&family);
    play.says("orphans ended");
}

#[test]
fn what_the_command_leaves_behind_is_killed_before_its_end_is_told() {
    let script = r#"body='trap "" TERM; echo $$ >> pids; while :; do sleep 0.01; done'
        sh -c "$body" & setsid sh -c "$body" & while [ "$(wc -l < pids)" != 2 ]; do sleep 0.01; done 2> errors; exit 4"#;
    let play = Play::start(script, LONG);
    play.says("started");
    let family = {
        let mut family = Vec::new();
        eventually("both have said who they are", || {
            family = lines_of(&play.file("pids"));
            family.len() == 2
        });
        family
    };
    assert_eq!(play.says("exited"), "4");
    for pid in family {
        assert!(ProcessId::of(pid.parse().expect("a pid")).is_none(), "{pid} is left");
    }
}

#[test]
fn interrupting_everybody_in_the_terminal_reaches_neither_guardian_nor_command() {
    let play = Play::start(POLITE, LONG);
    let guardian = play.guardian();
    let family = play.family(1);
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        guardian.signal(signal);
    }
    let session = |process: ProcessId| {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid)).expect("it runs");
        stat[stat.rfind(')').expect("a name in parentheses") + 1..].split_whitespace().nth(3).map(str::to_owned)
    };
    assert_eq!(session(guardian), session(family[0]));
    assert_ne!(session(guardian), session(play.muster()), "a terminal's signals go to its own session");
    family[0].signal(Signal::TERM);
    assert_eq!(play.says("exited"), "5", "the guardian is still there to tell");
}
