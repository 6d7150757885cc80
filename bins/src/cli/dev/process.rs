//! One daemon as a process of this machine: found free ports for, started, waited for, signalled.

use std::fs::OpenOptions;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use muster_messages::Role;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::cli::failure::{Failure, Outcome};
use crate::cli::parent;

/// How long a daemon may take until it serves its role: it takes well under a second, a busy machine may take more.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// How long a daemon may take to end after TERM; the contract's ten seconds.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// A process, told apart from a later one with the same pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    pub pid: i32,
    /// Clock ticks since boot.
    pub started: u64,
}

impl ProcessId {
    /// The process that has this pid now.
    pub fn of(pid: u32) -> Option<Self> {
        let pid = i32::try_from(pid).ok()?;
        Some(Self { pid, started: started(pid)? })
    }
    /// Whether that very process still runs.
    pub fn is_alive(self) -> bool {
        started(self.pid) == Some(self.started)
    }
    /// The processor time that it has used, of all its threads together; `None` once it has ended.
    pub fn cpu_time(self) -> Option<Duration> {
        let stat = self.is_alive().then(|| stat(self.pid))??;
        let ticks = |field: usize| stat.split_whitespace().nth(field)?.parse::<u64>().ok();
        Some(Duration::from_millis((ticks(UTIME)? + ticks(UTIME + 1)?) * 1000 / TICKS_PER_S))
    }
    /// Sends a signal, unless the process has ended.
    pub fn signal(self, signal: Signal) {
        if let (true, Some(pid)) = (self.is_alive(), Pid::from_raw(self.pid)) {
            let _ = kill_process(pid, signal); // it may end between the look and the signal
        }
    }
}

/// Time in user mode, in what [`stat`] returns; after it that in the kernel.
const UTIME: usize = 11;
/// The unit of both. The kernel shows hundredths of a second, whatever it counts in itself.
const TICKS_PER_S: u64 = 100;

/// `/proc/PID/stat` from its third field on (proc(5)): the name before stands in parentheses and may contain anything.
fn stat(pid: i32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.get(stat.rfind(')')? + 1..).map(str::to_owned)
}

/// When a process started, field 22. A zombie has ended.
fn started(pid: i32) -> Option<u64> {
    let stat = stat(pid)?;
    let mut fields = stat.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.nth(18)?.parse().ok() }
}

/// Where ports are taken from: below the range that outgoing connections take theirs from, because a node that is
/// restarted must find its port free.
const PORTS: std::ops::Range<u16> = 12_000..32_000;

/// Each process takes its ports from a part of its own, in turn: between choosing a port and listening on it another
/// process, or another test of this one, must not choose the same; nor while a node that had it is down.
const PART: u16 = 200;

/// A part that is ours as long as this process lives: it listens on the first port of it.
fn part() -> Option<u16> {
    static PART_OF_OURS: OnceLock<Option<(TcpListener, u16)>> = OnceLock::new();
    let taken = PART_OF_OURS.get_or_init(|| {
        let parts = (PORTS.end - PORTS.start) / PART;
        let first = u16::try_from(std::process::id() % u32::from(parts)).expect("there are fewer than 65,536 parts");
        let bases = (0..parts).map(|next| PORTS.start + (first + next) % parts * PART);
        bases.filter_map(|base| Some((TcpListener::bind(("127.0.0.1", base)).ok()?, base))).next()
    });
    taken.as_ref().map(|(_, base)| *base)
}

/// An address on loopback that nobody listens on.
pub fn free_address() -> Outcome<SocketAddr> {
    static NEXT: OnceLock<AtomicU16> = OnceLock::new();
    let next = NEXT.get_or_init(|| AtomicU16::new(rand::random_range(0..PART)));
    let base = part().ok_or_else(|| Failure::internal("a hundred processes look for free ports on 127.0.0.1"))?;
    for _ in 0..PART {
        let port = base + next.fetch_add(1, Ordering::Relaxed) % PART;
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return listener.local_addr().map_err(|e| Failure::io("cannot find a free port", &e));
        }
    }
    Err(Failure::internal("cannot find a free port on 127.0.0.1"))
}

/// The line a daemon prints once it serves its role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    pub node: String,
    pub role: Role,
    pub listen: String,
    /// Where metrics are, or `off`.
    pub metrics: String,
}

impl Ready {
    /// Reads `musterd ready node=<id> role=<role> listen=<addr> …`.
    pub fn parse(line: &str) -> Option<Self> {
        let rest = line.strip_prefix("musterd ready ")?;
        let field = |key: &str| rest.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        Some(Self {
            node: field("node")?.to_owned(),
            role: field("role")?.parse().ok()?,
            listen: field("listen")?.to_owned(),
            metrics: field("metrics")?.to_owned(),
        })
    }
}

/// What a daemon starts with.
pub enum Entry {
    /// It founds the cluster.
    Found,
    Join {
        seeds: Vec<String>,
        token: String,
    },
    /// Its folder says who it is.
    Resume,
}

/// How to start one.
pub struct Launch<'a> {
    pub name: &'a str,
    /// Its data, its socket and its log.
    pub folder: &'a Path,
    pub listen: SocketAddr,
    pub config: &'a Path,
    pub entry: &'a Entry,
    /// Whether it ends with this process.
    pub tied: bool,
}

/// A daemon that was started.
pub struct Daemon {
    pub id: ProcessId,
    child: Child,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Daemon {
    /// Starts this very program as `musterd`.
    pub fn start(launch: &Launch<'_>) -> Outcome<Self> {
        let program = std::env::current_exe().map_err(|e| Failure::io("cannot find this program", &e))?;
        let failed = |e: io::Error| Failure::io(format!("cannot start {}", launch.name), &e);
        std::fs::create_dir_all(launch.folder).map_err(failed)?;
        let log = OpenOptions::new().create(true).append(true).open(launch.folder.join("musterd.log"));
        let mut command = std::process::Command::new(program);
        command.arg("musterd").args(arguments(launch));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log.map_err(failed)?);
        // Settings meant for `muster`, MUSTER_SOCKET above all, must not reach every daemon.
        let ours = |key: &std::ffi::OsString| key.to_string_lossy().starts_with("MUSTER_") && key != "MUSTER_LOG";
        for (key, _) in std::env::vars_os().filter(|(key, _)| ours(key)) {
            command.env_remove(key);
        }
        if launch.tied {
            parent::tie(&mut command);
        } else {
            parent::untie(&mut command);
        }
        // A group of its own: Ctrl-C reaches only us, and we say goodbye in order.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = Command::from(command).kill_on_drop(launch.tied).spawn().map_err(failed)?;
        let stdout = child.stdout.take().expect("stdout is piped");
        let id = child.id().and_then(ProcessId::of);
        let ended = || Failure::internal(format!("{} ended at once", launch.name));
        Ok(Self { id: id.ok_or_else(ended)?, child, stdout: BufReader::new(stdout).lines() })
    }

    /// Waits for the ready line. The inner error is the exit status of a daemon that ended first.
    pub async fn ready(&mut self) -> Outcome<Result<Ready, Option<i32>>> {
        let lines = async {
            while let Ok(Some(line)) = self.stdout.next_line().await {
                if let Some(ready) = Ready::parse(&line) {
                    return Ok(ready);
                }
            }
            let status = self.child.wait().await;
            Err(status.ok().and_then(|status| status.code()))
        };
        tokio::time::timeout(READY_WITHIN, lines)
            .await
            .map_err(|_| Failure::internal(format!("not ready within {READY_WITHIN:?}")))
    }

    /// Waits for its end and says how it ended.
    pub async fn ended(&mut self) -> String {
        match self.child.wait().await {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        }
    }

    /// The exit status once it has ended by itself; `None` if a signal ended it.
    pub async fn exit_code(&mut self) -> Option<i32> {
        self.child.wait().await.ok().and_then(|status| status.code())
    }

    /// TERM, and KILL for one that does not end in time. The result says whether it ended by itself.
    pub async fn stop(&mut self) -> bool {
        self.id.signal(Signal::TERM);
        let in_time = tokio::time::timeout(STOP_WITHIN, self.child.wait()).await.is_ok();
        if !in_time {
            self.kill().await;
        }
        in_time
    }

    /// KILL, which works on a frozen process too.
    pub async fn kill(&mut self) {
        let _ = self.child.kill().await; // it has ended already
    }
}

fn arguments(launch: &Launch<'_>) -> Vec<String> {
    let path = |path: &Path| path.display().to_string();
    let mut arguments = vec![
        "--data-dir".to_owned(),
        path(launch.folder),
        "--socket".to_owned(),
        path(&launch.folder.join("muster.sock")),
        "--listen".to_owned(),
        launch.listen.to_string(),
        "--name".to_owned(),
        launch.name.to_owned(),
        "--config".to_owned(),
        path(launch.config),
    ];
    match launch.entry {
        Entry::Found => arguments.push("--init".to_owned()),
        Entry::Join { seeds, token } => {
            arguments.extend(["--join".to_owned(), seeds.join(","), "--token".to_owned(), token.clone()]);
        }
        Entry::Resume => {}
    }
    arguments
}

/// Ends processes that are not our children: TERM, then KILL. The result counts those that needed KILL.
pub async fn stop_strangers(processes: &[ProcessId]) -> usize {
    for process in processes {
        process.signal(Signal::TERM);
    }
    let gone = async {
        while processes.iter().any(|p| p.is_alive()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(STOP_WITHIN, gone).await.is_ok() {
        return 0;
    }
    let stubborn: Vec<_> = processes.iter().filter(|p| p.is_alive()).collect();
    for process in &stubborn {
        process.signal(Signal::KILL);
    }
    stubborn.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_is_read_by_its_keys() {
        let line = "musterd ready node=abc role=manager listen=127.0.0.1:4400 socket=/s metrics=127.0.0.1:1";
        let ready = Ready {
            node: "abc".into(),
            role: Role::Manager,
            listen: "127.0.0.1:4400".into(),
            metrics: "127.0.0.1:1".into(),
        };
        assert_eq!(Ready::parse(line), Some(ready));
        assert_eq!(Ready::parse("musterd starting"), None);
    }

    #[test]
    fn a_process_is_known_by_pid_and_start() {
        let me = ProcessId::of(std::process::id()).unwrap();
        assert!(me.is_alive());
        assert!(!ProcessId { started: me.started + 1, ..me }.is_alive(), "another process with our pid");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let id = ProcessId::of(child.id());
        child.wait().unwrap();
        assert!(!id.is_some_and(ProcessId::is_alive));
        assert_eq!(id.and_then(ProcessId::cpu_time), None);
    }

    #[test]
    fn the_processor_time_of_a_process_grows_with_its_work() {
        let me = ProcessId::of(std::process::id()).unwrap();
        let before = me.cpu_time().unwrap();
        while me.cpu_time().unwrap() < before + Duration::from_millis(30) {}
    }
}
