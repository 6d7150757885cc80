//! One daemon.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use muster::cli::dev::process::{ProcessId, Ready, free_address};
use muster::cli::parent;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};

use super::network::Known;
use super::{MUSTERD, Network, PATIENCE, eventually};

/// A data directory with an address, and the process that serves it now, if one does.
pub struct Node {
    pub name: String,
    pub folder: PathBuf,
    pub listen: SocketAddr,
    /// What its processes have beside this one's environment.
    pub environment: Vec<(&'static str, OsString)>,
    running: Option<Running>,
    /// See [`Node::speaks`].
    level: Option<u32>,
    /// See [`Node::disk_hangs_while`].
    disk_hangs_while: Option<PathBuf>,
    /// See [`Node::disk_may_fill`].
    disk_may_fill: bool,
    /// See [`Node::disk_is_full_from_the_start`].
    disk_is_full: bool,
    /// Further tables of its configuration.
    settings: String,
    /// Where its metrics are.
    pub metrics: Option<String>,
    /// See [`Node::behind`].
    door: Option<(SocketAddr, Arc<Known>)>,
}

struct Running {
    child: Child,
    id: ProcessId,
    stdout: Receiver<String>,
}

impl Node {
    pub fn new(world: &Path, name: &str, settings: &str) -> Self {
        let listen = free_address().expect("a port is free");
        Self {
            name: name.to_owned(),
            folder: world.join(name),
            listen,
            environment: vec![],
            running: None,
            level: None,
            disk_hangs_while: None,
            disk_may_fill: false,
            disk_is_full: false,
            settings: settings.to_owned(),
            metrics: None,
            door: None,
        }
    }

    /// From now on it advertises a door of this network.
    pub fn behind(mut self, network: &Network) -> Self {
        self.door = Some((network.door(&self.name, self.listen), network.known()));
        self
    }

    /// Where others reach it.
    pub fn address(&self) -> SocketAddr {
        self.door.as_ref().map_or(self.listen, |(door, _)| *door)
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.join("muster.sock")
    }

    /// From its next start on it pretends to be a build of this feature level.
    pub fn speaks(&mut self, level: u32) -> &mut Self {
        self.level = Some(level);
        self
    }

    /// From its next start on the disk of its Raft log hangs while this file exists.
    pub fn disk_hangs_while(&mut self, file: &Path) -> &mut Self {
        self.disk_hangs_while = Some(file.to_owned());
        self
    }

    /// From its next start on [`Node::disk_is_full`] works. Its processes are told nothing by the signal that would end them otherwise.
    pub fn disk_may_fill(&mut self) -> &mut Self {
        self.disk_may_fill = true;
        self
    }

    /// Its next process begins on a full disk.
    pub fn disk_is_full_from_the_start(&mut self) -> &mut Self {
        self.disk_is_full = true;
        self.disk_may_fill()
    }

    /// Whether every write of its process to any file fails, until it is told otherwise: that of its log, too.
    pub fn disk_is_full(&mut self, full: bool) {
        assert!(self.disk_may_fill, "it would be ended by SIGXFSZ");
        self.disk_is_full &= full;
        let maximum = getrlimit(Resource::Fsize).maximum;
        let limit = Rlimit { current: if full { Some(0) } else { maximum }, maximum };
        prlimit(Pid::from_raw(self.pid()), Resource::Fsize, limit).expect("it is our child");
    }

    /// Starts the daemon with these flags beside directory, name, address and configuration.
    pub fn start(&mut self, flags: &[&str]) -> &mut Self {
        assert!(self.running.is_none(), "{} runs already", self.name);
        std::fs::create_dir_all(&self.folder).expect("the world's folder is writable");
        let config = self.folder.join("test.toml");
        let level = self.level.map_or_else(String::new, |level| format!("feature_level = {level}\n"));
        let hangs = |file: &PathBuf| format!("disk_hangs_while = {file:?}\n");
        let hangs = self.disk_hangs_while.as_ref().map_or_else(String::new, hangs);
        std::fs::write(&config, format!("[debug]\ncrash = true\n{level}{hangs}{}", self.settings))
            .expect("the world's folder is writable");
        let mut command = Command::new(if self.disk_may_fill { "sh" } else { MUSTERD });
        if self.disk_may_fill {
            let limit = if self.disk_is_full { "ulimit -S -f 0; " } else { "" };
            command.args(["-c", &format!("trap '' XFSZ; {limit}exec \"$0\" \"$@\""), MUSTERD]);
        }
        command.arg("--data-dir").arg(&self.folder).arg("--config").arg(&config);
        command.args(["--name", &self.name, "--listen", &self.listen.to_string()]).args(flags);
        command.args(["--advertise", &self.address().to_string()]);
        self.spawn(command)
    }

    /// Starts the daemon with exactly this command line, its log beside the others'.
    pub fn spawn(&mut self, mut command: Command) -> &mut Self {
        let log = OpenOptions::new().create(true).append(true).open(self.log_path());
        command.env_remove("MUSTER_SOCKET").env("RUST_BACKTRACE", "0").stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(log.expect("the log can be written")).envs(self.environment.iter().cloned());
        parent::tie(&mut command);
        let mut child = command.spawn().expect("musterd starts");
        let stdout = child.stdout.take().expect("stdout is piped");
        let id = ProcessId::of(child.id()).unwrap_or(ProcessId { pid: 0, started: 0 });
        if let Some((_, known)) = &self.door {
            known.runs(&self.name, id.pid);
        }
        let (tell, hear) = channel();
        std::thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).all(|line| tell.send(line).is_ok())
        });
        self.running = Some(Running { child, id, stdout: hear });
        self
    }

    fn log_path(&self) -> PathBuf {
        self.folder.with_extension("log")
    }

    /// Everything its processes have logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn process(&mut self) -> &mut Running {
        let name = &self.name;
        self.running.as_mut().unwrap_or_else(|| panic!("{name} does not run"))
    }

    pub fn pid(&mut self) -> i32 {
        self.process().id.pid
    }

    /// The process that serves it now.
    pub fn process_id(&mut self) -> ProcessId {
        self.process().id
    }

    /// Waits for the one line on stdout.
    #[track_caller]
    pub fn ready(&mut self) -> Ready {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.process().stdout.recv_timeout(left) {
                Ok(line) => {
                    if let Some(ready) = Ready::parse(&line) {
                        self.metrics = Some(ready.metrics.clone());
                        return ready;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    panic!("{} is not ready within {PATIENCE:?}:\n{}", self.name, self.log())
                }
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("{} ended before it was ready:\n{}", self.name, self.log())
                }
            }
        }
    }

    /// Whether the ready line has not come yet and the process still tries.
    pub fn still_tries(&mut self) -> bool {
        let process = self.process();
        process.stdout.try_recv().is_err() && process.id.is_alive()
    }

    pub fn signal(&mut self, signal: Signal) -> &mut Self {
        self.process().id.signal(signal);
        self
    }

    /// Waits for its end; the exit status, or `None` after a signal.
    #[track_caller]
    pub fn exit(&mut self) -> Option<i32> {
        let what = format!("{} ends", self.name);
        let process = self.process();
        let status: ExitStatus = eventually(&what, || process.child.try_wait().expect("it is our child"));
        self.running = None;
        status.code()
    }

    /// Whether TERM would reach it. The system ends a process that does not listen to signals yet.
    pub fn listens_to_signals(&mut self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        let caught = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigCgt:")?.trim(), 16).ok());
        caught.is_some_and(|caught| caught & (1 << (Signal::TERM.as_raw() - 1)) != 0)
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        assert_eq!(self.exit(), None, "{} was killed", self.name);
    }

    /// TERM, and a clean end.
    pub fn stop(&mut self) {
        self.signal(Signal::TERM);
        assert_eq!(self.exit(), Some(0), "{} ends cleanly:\n{}", self.name, self.log());
    }

    /// TERM; the exit status, and how long it took to end. The promise is 10 s, to which the daemon keeps by its own clock.
    #[track_caller]
    pub fn ends_of_its_own_accord(&mut self) -> (Option<i32>, Duration) {
        let told = Instant::now();
        let code = self.signal(Signal::TERM).exit();
        (code, told.elapsed())
    }

    /// TERM, a clean end, and nothing in all it has ever logged that somebody should look at. How long it took.
    #[track_caller]
    pub fn ends_in_order(&mut self) -> Duration {
        let (code, took) = self.ends_of_its_own_accord();
        assert_eq!(code, Some(0), "{} ends cleanly:\n{}", self.name, self.log());
        let log = self.log();
        let wrong: Vec<&str> = log.lines().filter(|line| line.contains(" ERROR ")).collect();
        assert!(wrong.is_empty(), "{} had trouble: {wrong:#?}\n{log}", self.name);
        took
    }

    pub fn is_running(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.id.is_alive())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut running) = self.running.take() {
            let _ = running.child.kill(); // KILL also ends a frozen process
            let _ = running.child.wait();
        }
    }
}
