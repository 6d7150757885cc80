//! One `muster elect`.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use muster_local_cluster::{ProcessId, parent};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::harness::WallClock;
use crate::harness::{MUSTER, WAIT_LIMIT, between_checks, eventually, eventually_so};

/// How a candidate is started.
pub struct Entry<'a> {
    pub folder: &'a Path,
    pub id: &'a str,
    /// Where it sends requests: flags of `muster`.
    pub asks: [&'a str; 2],
    pub lease: &'a str,
    /// Flags of `elect`.
    pub flags: &'a [&'a str],
    pub command: Vec<OsString>,
    pub clock: Option<WallClock>,
}

/// A candidate. On drop it is killed, and its guardian ends its command.
pub struct Candidate {
    pub id: String,
    child: Child,
    muster: ProcessId,
    pub clock: Option<WallClock>,
}

impl Candidate {
    pub fn start(entry: Entry<'_>) -> Self {
        let mut command = Command::new(MUSTER);
        command.args(entry.asks).args(["elect", entry.lease, "--id", entry.id]).args(entry.flags);
        command.arg("--").args(entry.command).current_dir(entry.folder).env_remove("MUSTER_SOCKET");
        let log = OpenOptions::new().create(true).append(true).open(entry.folder.join("candidates.log"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.expect("the log can be written"));
        parent::tie(&mut command);
        command.envs(entry.clock.iter().flat_map(WallClock::environment));
        let child = command.spawn().expect("muster starts");
        let muster = ProcessId::of(child.id()).unwrap_or(ProcessId { pid: 0, started: 0 });
        Self { id: entry.id.to_owned(), child, muster, clock: entry.clock }
    }

    /// Its three processes while the command runs: `muster`, guardian, command.
    pub fn family(&self, guardian: Option<u32>, command: Option<u32>) -> Option<Family> {
        let (guardian, command) = (ProcessId::of(guardian?)?, ProcessId::of(command?)?);
        Some(Family { muster: self.muster, guardian, command })
    }

    pub fn muster(&self) -> ProcessId {
        self.muster
    }

    /// Its exit status if it has ended; inside, `None` after a signal.
    pub fn ended(&mut self) -> Option<Option<i32>> {
        self.child.try_wait().expect("it is our child").map(|status| status.code())
    }

    #[track_caller]
    pub fn exit(&mut self) -> Option<i32> {
        eventually(&format!("{} ends", self.id), || self.ended())
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _status = self.child.wait();
    }
}

/// On drop, after the candidates of a folder, it waits until their processes have ended: they all work in that folder.
pub struct Leftovers(pub PathBuf);

impl Drop for Leftovers {
    fn drop(&mut self) {
        let end = Instant::now() + WAIT_LIMIT;
        while !self.left().is_empty() && Instant::now() < end {
            between_checks();
        }
        let left = self.left();
        left.iter().for_each(|process| process.signal(Signal::KILL));
        assert!(left.is_empty() || std::thread::panicking(), "processes are left: {left:?}");
    }
}

impl Leftovers {
    fn left(&self) -> Vec<ProcessId> {
        let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let works_here = |pid: u32| std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|folder| folder == self.0);
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| works_here(*pid)).filter_map(ProcessId::of).collect()
    }
}

/// The processes of a leading candidate.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    pub muster: ProcessId,
    pub guardian: ProcessId,
    pub command: ProcessId,
}

/// A candidate with all processes suspended. On drop, or when this process ends, a helper process kills them, because
/// neither guardian nor command would notice.
pub struct Frozen {
    pub family: Family,
    killer: Child,
}

impl Frozen {
    /// Resumes all of them, the command first: the most dangerous order.
    pub fn thaw(mut self) {
        let _killed = self.killer.kill();
        let _status = self.killer.wait();
        let Family { muster, guardian, command } = self.family;
        self.family.signal_group(Signal::CONT);
        [command, muster, guardian].into_iter().for_each(|process| process.signal(Signal::CONT));
    }
}

impl Family {
    /// Suspends all of them: those first that could start or end the others.
    pub fn freeze(self) -> Frozen {
        let all = [self.muster, self.guardian, self.command];
        let mut killer = Command::new("sh");
        killer.args(["-c", r#"cat > /dev/null; kill -KILL "$@""#, "sh"]);
        killer.args(all.map(|process| process.pid.to_string())).stdin(Stdio::piped()).stderr(Stdio::null());
        let killer = killer.spawn().expect("a shell exists");
        all.into_iter().for_each(|process| process.signal(Signal::STOP));
        self.signal_group(Signal::STOP);
        eventually_so("all processes are suspended", || all.into_iter().all(is_suspended));
        Frozen { family: self, killer }
    }

    /// Whether all of them run, frozen or not.
    pub fn is_alive(self) -> bool {
        [self.muster, self.guardian, self.command].into_iter().all(ProcessId::is_alive)
    }

    /// Signals the process group of the command.
    pub fn signal_group(self, signal: Signal) {
        if self.command.is_alive() {
            let _gone = kill_process_group(self.group(), signal);
        }
    }

    /// The command's pid.
    pub fn group(self) -> Pid {
        Pid::from_raw(self.command.pid).expect("it has a pid")
    }
}

/// Whether a suspended process no longer runs: it is stopped, has ended, or waits in the kernel, for example for a child
/// that was stopped between vfork and exec.
fn is_suspended(process: ProcessId) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid)).unwrap_or_default();
    let state = stat.rfind(')').and_then(|at| stat.get(at + 2..at + 3));
    !process.is_alive() || matches!(state, Some("T" | "D"))
}
