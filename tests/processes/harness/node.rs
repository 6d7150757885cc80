//! One daemon.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_local_cluster::{Lifetime, LocalNode, NodeProcess, ProcessId, Ready};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};

use super::network::Known;
use super::{MUSTERD, Network, eventually, eventually_so};

/// A [`LocalNode`] for scenarios: its waits fail the test on timeout.
pub struct Node {
    local: LocalNode,
    /// Additional environment variables of its processes.
    pub environment: Vec<(&'static str, OsString)>,
    /// See [`Node::set_feature_level`].
    level: Option<u32>,
    /// See [`Node::disk_hangs_while`].
    disk_hangs_while: Option<PathBuf>,
    /// See [`Node::disk_may_fill`].
    disk_may_fill: bool,
    /// See [`Node::disk_is_full_from_the_start`].
    disk_is_full: bool,
    /// Additional tables of its configuration.
    settings: String,
    /// Where its metrics are.
    pub metrics: Option<String>,
    /// See [`Node::behind`].
    proxy: Option<(SocketAddr, Arc<Known>)>,
}

impl Deref for Node {
    type Target = LocalNode;
    fn deref(&self) -> &LocalNode {
        &self.local
    }
}

impl DerefMut for Node {
    fn deref_mut(&mut self) -> &mut LocalNode {
        &mut self.local
    }
}

impl Node {
    pub fn new(world: &Path, name: &str, settings: &str) -> Self {
        Self {
            local: LocalNode::at_free_address(world, name).expect("a port is free"),
            environment: vec![],
            level: None,
            disk_hangs_while: None,
            disk_may_fill: false,
            disk_is_full: false,
            settings: settings.to_owned(),
            metrics: None,
            proxy: None,
        }
    }

    /// Makes it advertise a proxy of this network.
    pub fn behind(mut self, network: &Network) -> Self {
        self.proxy = Some((network.proxy(&self.name, self.listen), network.known()));
        self
    }

    /// The address at which others reach it.
    pub fn address(&self) -> SocketAddr {
        self.proxy.as_ref().map_or(self.listen, |(proxy, _)| *proxy)
    }

    /// From its next start on it acts as a build of this feature level.
    pub fn set_feature_level(&mut self, level: u32) -> &mut Self {
        self.level = Some(level);
        self
    }

    /// From its next start on the disk of its Raft log hangs while this file exists.
    pub fn disk_hangs_while(&mut self, file: &Path) -> &mut Self {
        self.disk_hangs_while = Some(file.to_owned());
        self
    }

    /// From its next start on [`Node::disk_is_full`] works. Its processes ignore the signal that would otherwise end them.
    pub fn disk_may_fill(&mut self) -> &mut Self {
        self.disk_may_fill = true;
        self
    }

    /// Its next process starts on a full disk.
    pub fn disk_is_full_from_the_start(&mut self) -> &mut Self {
        self.disk_is_full = true;
        self.disk_may_fill()
    }

    /// Whether every file write of its process fails, including its log, until changed.
    pub fn disk_is_full(&mut self, full: bool) {
        assert!(self.disk_may_fill, "SIGXFSZ would end it");
        self.disk_is_full &= full;
        let maximum = getrlimit(Resource::Fsize).maximum;
        let limit = Rlimit { current: if full { Some(0) } else { maximum }, maximum };
        prlimit(Pid::from_raw(self.pid()), Resource::Fsize, limit).expect("it is our child");
    }

    /// Starts the daemon with these flags in addition to directory, name, address and configuration.
    pub fn start(&mut self, flags: &[&str]) -> &mut Self {
        std::fs::create_dir_all(&self.folder).expect("the world's folder is writable");
        let config = self.folder.join("test.toml");
        let level = self.level.map_or_else(String::new, |level| format!("feature_level = {level}\n"));
        let hangs = |file: &PathBuf| format!("disk_hangs_while = {file:?}\n");
        let hangs = self.disk_hangs_while.as_ref().map_or_else(String::new, hangs);
        let commands = if self.settings.contains("[reconcilers]") { "" } else { "\n[reconcilers]\ncommands = true\n" };
        std::fs::write(&config, format!("[debug]\ncrash = true\n{level}{hangs}{}{commands}", self.settings))
            .expect("the world's folder is writable");
        let mut command = Command::new(if self.disk_may_fill { "sh" } else { MUSTERD });
        if self.disk_may_fill {
            let limit = if self.disk_is_full { "ulimit -S -f 0; " } else { "" };
            command.args(["-c", &format!("trap '' XFSZ; {limit}exec \"$0\" \"$@\""), MUSTERD]);
        }
        command.args(self.arguments()).arg("--config").arg(&config).args(flags);
        command.args(["--advertise", &self.address().to_string()]);
        self.spawn(command)
    }

    /// Starts the daemon with exactly this command line, with its log in the usual place.
    pub fn spawn(&mut self, mut command: Command) -> &mut Self {
        assert!(self.local.process_id().is_none(), "{} runs already", self.name);
        command.env("RUST_BACKTRACE", "0").envs(self.environment.iter().cloned());
        let id = self.local.start(command, Lifetime::Tied).expect("musterd starts");
        if let Some((_, known)) = &self.proxy {
            known.runs(&self.name, id.pid);
        }
        self
    }

    #[track_caller]
    fn process(&mut self) -> &mut NodeProcess {
        self.local.process().unwrap_or_else(|failure| panic!("{failure}"))
    }

    pub fn pid(&mut self) -> i32 {
        self.process_id().pid
    }

    /// The current process.
    pub fn process_id(&mut self) -> ProcessId {
        self.process().id()
    }

    /// Waits for the ready line on stdout.
    #[track_caller]
    pub fn ready(&mut self) -> Ready {
        let what = format!("{} is ready", self.name);
        let ready = eventually(&what, || match self.process().try_ready() {
            Ok(ready) => ready,
            Err(status) => panic!("{} ended before it was ready ({status}):\n{}", self.name, self.log()),
        });
        self.metrics = Some(ready.metrics.clone());
        ready
    }

    /// Whether the process runs but has not printed its ready line.
    pub fn is_starting(&mut self) -> bool {
        self.process().try_ready() == Ok(None) && self.is_running()
    }

    pub fn signal(&mut self, signal: Signal) -> &mut Self {
        self.process().signal(signal);
        self
    }

    /// SIGSTOP, and waits until all its threads are stopped.
    #[track_caller]
    pub fn freeze(&mut self) {
        let id = self.signal(Signal::STOP).process().id();
        eventually_so("it is frozen", || id.is_stopped());
    }

    /// Waits for its end; returns the exit status, or `None` after a signal.
    #[track_caller]
    pub fn exit(&mut self) -> Option<i32> {
        let what = format!("{} ends", self.name);
        eventually(&what, || self.local.try_exit().unwrap_or_else(|failure| panic!("{failure}"))).code()
    }

    /// Whether TERM reaches a handler. Before, the system ends the process.
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

    /// TERM, and a clean exit.
    pub fn stop(&mut self) {
        self.signal(Signal::TERM);
        assert_eq!(self.exit(), Some(0), "{} exits cleanly:\n{}", self.name, self.log());
    }

    /// TERM; returns the exit status and the time it took. The promised limit is 10 s, by the daemon's own clock.
    #[track_caller]
    pub fn exits_by_itself(&mut self) -> (Option<i32>, Duration) {
        let signalled_at = Instant::now();
        let code = self.signal(Signal::TERM).exit();
        (code, signalled_at.elapsed())
    }

    /// TERM, a clean exit, and no error in its whole log. Returns the time it took.
    #[track_caller]
    pub fn stops_cleanly(&mut self) -> Duration {
        let (code, took) = self.exits_by_itself();
        assert_eq!(code, Some(0), "{} exits cleanly:\n{}", self.name, self.log());
        let log = self.log();
        let wrong: Vec<&str> = log.lines().filter(|line| line.contains(" ERROR ")).collect();
        assert!(wrong.is_empty(), "{} logged errors: {wrong:#?}\n{log}", self.name);
        took
    }
}
