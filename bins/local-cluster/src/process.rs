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

/// How long a daemon may take until it serves: a person waits for it.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// How long a daemon may take to end after TERM; the contract's ten seconds.
pub(crate) const STOP_WITHIN: Duration = Duration::from_secs(10);

/// Until when a process may run.
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
    /// What it wrote and nobody has parsed yet: less than a line.
    unread: Vec<u8>,
    exit: Option<ExitStatus>,
}

impl NodeProcess {
    /// Starts it. Its stderr is appended to `log`.
    pub fn start(mut command: Command, log: &Path, lifetime: Lifetime) -> Outcome<Self> {
        let program = command.get_program().to_owned();
        let failed = |e| Failure::io(format!("cannot start {}", program.display()), &e);
        let log = append_to_own_file(log).map_err(|e| Failure::io(format!("cannot use {}", log.display()), &e))?;
        scrub(&mut command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        match lifetime {
            Lifetime::Tied => parent::tie(&mut command),
            Lifetime::Detached => parent::untie(&mut command),
        }
        // A group of its own: Ctrl-C reaches only this process, which then stops its nodes in order.
        command.process_group(0);
        let mut child = command.spawn().map_err(failed)?;
        let stdout = child.stdout.take().expect("stdout is piped");
        // Of this end of the pipe alone: the daemon's end still blocks.
        rustix::io::ioctl_fionbio(&stdout, true).map_err(|e| failed(e.into()))?;
        let id = ProcessId::of_child(&child);
        Ok(Self { id, lifetime, child, stdout: Some(stdout), unread: Vec::new(), exit: None })
    }

    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// The ready line, if it has been written; an error if the process has ended without one.
    pub fn try_ready(&mut self) -> Result<Option<Ready>, ExitStatus> {
        let ended = self.try_exit(); // before the read: what was written before the end is read
        match self.next_ready_line() {
            Some(ready) => Ok(Some(ready)),
            None => ended.map_or(Ok(None), Err),
        }
    }

    /// How it ended, if it has.
    pub fn try_exit(&mut self) -> Option<ExitStatus> {
        if self.exit.is_none() {
            // An error: SIGCHLD is ignored in this process, so that the kernel has reaped the child and its status is lost.
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
        let line = tokio::time::timeout(READY_LIMIT, line).await;
        line.map_err(|_| Failure::internal(format!("not ready within {READY_LIMIT:?}")))
    }

    /// Waits for its end, however long it takes.
    pub async fn exit(&mut self) -> ExitStatus {
        loop {
            if let Some(status) = self.try_exit() {
                return status;
            }
            pause().await;
        }
    }

    /// TERM, and KILL for one that does not end in time. The result says whether it ended by itself.
    pub async fn stop(&mut self) -> bool {
        self.signal(Signal::TERM);
        let in_time = tokio::time::timeout(STOP_WITHIN, self.exit()).await.is_ok();
        if !in_time {
            self.kill().await;
        }
        in_time
    }

    /// KILL, which works on a frozen process too, and waits for its end.
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

/// Removes what this process has for `muster` in its environment, MUSTER_SOCKET above all; but neither what the command says itself nor
/// what is for the log.
fn scrub(command: &mut Command) {
    let said: Vec<_> = command.get_envs().map(|(key, _)| key.to_owned()).collect();
    for (key, _) in std::env::vars_os() {
        if key.as_encoded_bytes().starts_with(b"MUSTER_") && key != "MUSTER_LOG" && !said.contains(&key) {
            command.env_remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::eventually;

    const LINE: &str = "musterd ready node=abc role=worker listen=127.0.0.1:4400 socket=/s metrics=off";

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
    fn the_ready_line_is_found_among_others_and_in_parts() {
        let (head, tail) = LINE.split_at(20);
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
    async fn a_process_that_ends_before_it_is_ready_says_how() {
        for (script, code) in [("exit 6", Some(6)), ("kill -9 $$", None)] {
            let (mut process, _log) = start(shell(script), Lifetime::Tied);
            let status = process.ready().await.unwrap().unwrap_err();
            assert_eq!(status.code(), code, "{script}");
            assert_eq!(process.try_exit(), Some(status), "it is remembered");
            assert_eq!(process.try_ready(), Err(status));
        }
    }

    #[tokio::test]
    async fn a_ready_line_counts_even_if_the_process_has_ended_since() {
        let (mut process, _log) = start(shell(&format!("echo '{LINE}'; exit 3")), Lifetime::Tied);
        assert_eq!(process.exit().await.code(), Some(3));
        assert_eq!(process.try_ready().unwrap().unwrap().metrics, "off");
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_never_gets_ready_is_given_up() {
        let (mut process, _log) = start(shell("exec sleep 600"), Lifetime::Tied);
        let failure = process.ready().await.unwrap_err();
        assert!(failure.message.contains("not ready within 60s"), "{failure}");
        assert_eq!(process.try_exit(), None, "it still runs: its end is the caller's decision");
    }

    #[tokio::test]
    async fn a_tied_process_is_gone_with_its_value_and_a_detached_one_is_not() {
        let (tied, _log) = start(shell("exec sleep 600"), Lifetime::Tied);
        let (detached, _log) = start(shell("exec sleep 600"), Lifetime::Detached);
        let (gone, stays) = (tied.id(), detached.id());
        drop((tied, detached));
        assert!(!gone.is_alive() && stays.is_alive());
        stays.signal(Signal::KILL);
    }

    #[tokio::test]
    async fn the_environment_is_scrubbed_but_for_the_log_and_what_the_command_sets() {
        // Of this very test program, whose environment is set here without changing that of the tests beside it.
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "process::tests::prints_the_environment_of_a_node", "--nocapture"]);
        command.env("PRINT_ENVIRONMENT", "1").envs([("MUSTER_SOCKET", "/theirs"), ("MUSTER_LOG", "debug")]);
        let printed = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let has = |line: &str| printed.lines().any(|printed| printed == line);
        assert!(has("MUSTER_LOG=debug") && has("MUSTER_LISTEN=own"), "{printed}");
        assert!(!printed.contains("MUSTER_SOCKET="), "{printed}");
        assert!(printed.contains("MUSTER_DIE_WITH_PARENT="), "{printed}");
    }

    /// The part of a program that starts a node, for the test above.
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
