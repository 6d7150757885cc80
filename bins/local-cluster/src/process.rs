//! The process of a node: started, polled until it is ready or has ended, signalled, and never left as a zombie.
//!
//! Owns        the child, the read end of its stdout, and its exit status once it has ended.
//! Invariants  a tied process is killed and reaped when its [`NodeProcess`] is dropped, and killed by the kernel when the thread
//!             that started it ends ([`parent`]).
//! Why polled: one core serves blocking tests and async code. Nothing here starts a thread or needs a runtime.

use std::io::{ErrorKind, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use muster_client::{Failure, Outcome};
use muster_pki::private::append_to_own_file;
use rustix::process::Signal;

use crate::parent;
use crate::process_id::ProcessId;
use crate::ready::Ready;
use crate::wait::pause;

/// How long a daemon may take until it is ready: a person waits for it.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a daemon may take to end after TERM; the contract's ten seconds.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a process may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// It ends with this process, and with its [`NodeProcess`].
    Tied,
    /// It outlives both.
    Detached,
}

/// A process that serves a node.
pub struct NodeProcess {
    id: ProcessId,
    lifetime: Lifetime,
    child: Child,
    stdout: Option<ChildStdout>,
    /// Output not parsed yet: an incomplete line.
    unread: Vec<u8>,
    exit: Option<ExitStatus>,
}

impl NodeProcess {
    /// Starts the process. Its stderr is appended to `log`.
    pub fn start(mut command: Command, log: &Path, lifetime: Lifetime) -> Outcome<Self> {
        let program = command.get_program().to_owned();
        let failed = |e| Failure::io(format!("cannot start {}", program.display()), &e);
        let log = append_to_own_file(log).map_err(|e| Failure::io(format!("cannot use {}", log.display()), &e))?;
        clean_environment(&mut command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        match lifetime {
            Lifetime::Tied => parent::tie(&mut command),
            Lifetime::Detached => parent::untie(&mut command),
        }
        // Its own group: Ctrl-C reaches only this process, which then stops its nodes in order.
        command.process_group(0);
        let mut child = command.spawn().map_err(failed)?;
        let stdout = child.stdout.take().expect("stdout is piped");
        // Only this end of the pipe: the daemon's end still blocks.
        rustix::io::ioctl_fionbio(&stdout, true).map_err(|e| failed(e.into()))?;
        let id = ProcessId::of_child(&child);
        Ok(Self { id, lifetime, child, stdout: Some(stdout), unread: Vec::new(), exit: None })
    }

    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// The ready line, if it was written; an error if the process ended without one.
    pub fn try_ready(&mut self) -> Result<Option<Ready>, ExitStatus> {
        let ended = self.try_exit(); // before the read, so that all output is read
        match self.next_ready_line() {
            Some(ready) => Ok(Some(ready)),
            None => ended.map_or(Ok(None), Err),
        }
    }

    /// The exit status, if the process has ended.
    pub fn try_exit(&mut self) -> Option<ExitStatus> {
        if self.exit.is_none() {
            // An error means that SIGCHLD is ignored in this process: the kernel has reaped the child and its status is lost.
            self.exit = self.child.try_wait().unwrap_or_else(|_| Some(ExitStatus::from_raw(255 << 8)));
        }
        self.exit
    }

    /// Sends a signal, unless it has ended.
    pub fn signal(&self, signal: Signal) {
        self.id.signal(signal);
    }

    /// Waits for the ready line. The inner error is the status of a process that ended without one.
    pub async fn ready(&mut self) -> Outcome<Result<Ready, ExitStatus>> {
        let line = async {
            loop {
                match self.try_ready() {
                    Ok(None) => pause().await,
                    Ok(Some(ready)) => return Ok(ready),
                    Err(status) => return Err(status),
                }
            }
        };
        let line = tokio::time::timeout(READY_TIMEOUT, line).await;
        line.map_err(|_| Failure::internal(format!("not ready within {READY_TIMEOUT:?}")))
    }

    /// Waits without limit until the process ends.
    pub async fn exit(&mut self) -> ExitStatus {
        loop {
            if let Some(status) = self.try_exit() {
                return status;
            }
            pause().await;
        }
    }

    /// Sends TERM, then KILL if the process does not end in time. Returns whether TERM was enough.
    pub async fn stop(&mut self) -> bool {
        self.signal(Signal::TERM);
        let in_time = tokio::time::timeout(STOP_TIMEOUT, self.exit()).await.is_ok();
        if !in_time {
            self.kill().await;
        }
        in_time
    }

    /// Sends KILL, which also ends a frozen process, and waits for its end.
    pub async fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.exit().await;
    }

    fn next_ready_line(&mut self) -> Option<Ready> {
        let mut buffer = [0; 1024];
        while let Some(stdout) = &mut self.stdout {
            match stdout.read(&mut buffer) {
                Ok(0) => self.stdout = None,
                Ok(read) => self.unread.extend(&buffer[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.stdout = None,
            }
        }
        while let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.unread.drain(..=end).collect();
            if let Some(ready) = Ready::parse(String::from_utf8_lossy(&line).trim_end()) {
                return Some(ready);
            }
        }
        None
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        if self.lifetime == Lifetime::Tied {
            let _ended = self.child.kill(); // KILL also ends a frozen process
            let _reaped = self.child.wait();
        }
    }
}

/// Removes inherited `MUSTER_…` variables, MUSTER_SOCKET above all, except those that the command sets itself and MUSTER_LOG.
fn clean_environment(command: &mut Command) {
    let own_keys: Vec<_> = command.get_envs().map(|(key, _)| key.to_owned()).collect();
    for (key, _) in std::env::vars_os() {
        if key.as_encoded_bytes().starts_with(b"MUSTER_") && key != "MUSTER_LOG" && !own_keys.contains(&key) {
            command.env_remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::eventually;

    const READY_LINE: &str = "musterd ready node=abc role=worker listen=127.0.0.1:4400 socket=/s metrics=off";

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn start(command: Command, lifetime: Lifetime) -> (NodeProcess, tempfile::NamedTempFile) {
        let log = tempfile::NamedTempFile::new().unwrap();
        (NodeProcess::start(command, log.path(), lifetime).unwrap(), log)
    }

    #[test]
    fn ready_line_is_found_among_other_lines_and_in_parts() {
        let (head, tail) = READY_LINE.split_at(20);
        let script = format!("echo starting; printf '{head}'; read -r _ < \"$0\"; echo '{tail}'; exec sleep 600");
        let folder = tempfile::tempdir().unwrap();
        let gate = folder.path().join("gate");
        assert!(Command::new("mkfifo").arg(&gate).status().unwrap().success());
        let mut command = shell(&script);
        command.arg(&gate);
        let (mut process, _log) = start(command, Lifetime::Tied);
        eventually("the first part is there", || {
            assert_eq!(process.try_ready(), Ok(None));
            (process.unread == head.as_bytes()).then_some(())
        });
        std::fs::write(&gate, "go\n").unwrap();
        let ready = eventually("the second part is there", || process.try_ready().unwrap());
        assert_eq!((ready.node.as_str(), ready.role), ("abc", muster_messages::Role::Worker));
        assert_eq!(process.try_exit(), None);
    }

    #[tokio::test]
    async fn process_that_ends_before_ready_reports_its_status() {
        for (script, code) in [("exit 6", Some(6)), ("kill -9 $$", None)] {
            let (mut process, _log) = start(shell(script), Lifetime::Tied);
            let status = process.ready().await.unwrap().unwrap_err();
            assert_eq!(status.code(), code, "{script}");
            assert_eq!(process.try_exit(), Some(status), "the status is remembered");
            assert_eq!(process.try_ready(), Err(status));
        }
    }

    #[tokio::test]
    async fn a_ready_line_counts_even_if_the_process_has_ended_since() {
        let (mut process, _log) = start(shell(&format!("echo '{READY_LINE}'; exit 3")), Lifetime::Tied);
        assert_eq!(process.exit().await.code(), Some(3));
        assert_eq!(process.try_ready().unwrap().unwrap().metrics, "off");
    }

    #[tokio::test(start_paused = true)]
    async fn process_that_is_never_ready_times_out() {
        let (mut process, _log) = start(shell("exec sleep 600"), Lifetime::Tied);
        let failure = process.ready().await.unwrap_err();
        assert!(failure.message.contains("not ready within 60s"), "{failure}");
        assert_eq!(process.try_exit(), None, "the process still runs: the caller decides when it ends");
    }

    #[tokio::test]
    async fn dropped_handle_ends_tied_process_but_not_detached_one() {
        let (tied, _log) = start(shell("exec sleep 600"), Lifetime::Tied);
        let (detached, _log) = start(shell("exec sleep 600"), Lifetime::Detached);
        let (gone, stays) = (tied.id(), detached.id());
        drop((tied, detached));
        assert!(!gone.is_alive() && stays.is_alive());
        stays.signal(Signal::KILL);
    }

    #[tokio::test]
    async fn inherited_muster_variables_are_removed_except_log_filter() {
        // Runs this test program with its own environment, which does not change that of other tests.
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "process::tests::prints_the_environment_of_a_node", "--nocapture"]);
        command.env("PRINT_ENVIRONMENT", "1").envs([("MUSTER_SOCKET", "/theirs"), ("MUSTER_LOG", "debug")]);
        let printed = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let has = |line: &str| printed.lines().any(|printed| printed == line);
        assert!(has("MUSTER_LOG=debug") && has("MUSTER_LISTEN=own"), "{printed}");
        assert!(!printed.contains("MUSTER_SOCKET="), "{printed}");
        assert!(printed.contains("MUSTER_DIE_WITH_PARENT="), "{printed}");
    }

    /// Run by the test above: the program that starts a node.
    #[tokio::test]
    async fn prints_the_environment_of_a_node() {
        if std::env::var_os("PRINT_ENVIRONMENT").is_none() {
            return;
        }
        let mut command = shell("env >&2");
        command.env("MUSTER_LISTEN", "own");
        let (mut process, log) = start(command, Lifetime::Tied);
        process.exit().await;
        println!("\n{}", std::fs::read_to_string(log.path()).unwrap()); // libtest may have begun a line
    }
}
