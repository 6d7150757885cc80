//! A local node: its data directory, its address, its log, and its process.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use muster_client::{Failure, Outcome};
use muster_pki::private::check_folder;
use rustix::process::Signal;

use crate::ports::free_address;
use crate::process::{Lifetime, NodeProcess};
use crate::process_id::ProcessId;
use crate::ready::Ready;
use crate::wait::until;

/// How a daemon enters its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It founds the cluster.
    Found,
    Join {
        seeds: Vec<String>,
        token: String,
    },
    /// Its folder has its identity.
    Resume,
}

impl Entry {
    /// Adds this to a daemon's command. Every user of this machine can read command lines, so the token is in the environment.
    pub fn add_to<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        match self {
            Entry::Found => command.arg("--init"),
            Entry::Join { seeds, token } => command.args(["--join", &seeds.join(",")]).env("MUSTER_TOKEN", token),
            Entry::Resume => command,
        }
    }
}

/// A data directory with an address, and its process, if any.
pub struct LocalNode {
    pub name: String,
    /// Its data and its socket.
    pub folder: PathBuf,
    pub listen: SocketAddr,
    /// The log of its processes.
    pub log_file: PathBuf,
    process: Option<NodeProcess>,
}

impl LocalNode {
    /// A node whose folder and log are in `base`. Not started yet.
    pub fn new(base: &Path, name: &str, listen: SocketAddr) -> Self {
        let folder = base.join(name);
        Self { name: name.to_owned(), log_file: folder.with_extension("log"), folder, listen, process: None }
    }

    /// [`LocalNode::new`] with a free address.
    pub fn at_free_address(base: &Path, name: &str) -> Outcome<Self> {
        Ok(Self::new(base, name, free_address()?))
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.join("muster.sock")
    }

    /// The content of its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log_file).unwrap_or_default()
    }

    /// The arguments of each of its command lines.
    pub fn arguments(&self) -> [OsString; 6] {
        let listen = self.listen.to_string();
        let (name, folder) = (self.name.clone(), self.folder.clone());
        ["--data-dir".into(), folder.into(), "--name".into(), name.into(), "--listen".into(), listen.into()]
    }

    /// Starts this command as its process. Fails if it has a running one.
    pub fn start(&mut self, command: Command, lifetime: Lifetime) -> Outcome<ProcessId> {
        if self.is_running() {
            return Err(Failure::internal(format!("{} is already running", self.name)));
        }
        let failed = |e| Failure::io(format!("cannot create {}", self.folder.display()), &e);
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder).map_err(failed)?;
        check_folder(&self.folder).map_err(|why| Failure::refused("not_private", why.to_string()))?;
        let process = NodeProcess::start(command, &self.log_file, lifetime)?;
        Ok(self.process.insert(process).id())
    }

    /// Its process, if it was started and its end was not yet waited for.
    pub fn process(&mut self) -> Outcome<&mut NodeProcess> {
        self.process.as_mut().ok_or_else(|| Failure::internal(format!("{} is not running", self.name)))
    }

    pub fn process_id(&self) -> Option<ProcessId> {
        self.process.as_ref().map(NodeProcess::id)
    }

    pub fn pid(&self) -> Option<i32> {
        self.process_id().map(|id| id.pid)
    }

    pub fn is_running(&self) -> bool {
        self.process_id().is_some_and(ProcessId::is_alive)
    }

    /// Sends a signal to its process, if it runs.
    pub fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            process.signal(signal);
        }
    }

    /// Waits for the ready line; a failure includes the log.
    pub async fn ready(&mut self) -> Outcome<Ready> {
        let why = match self.process()?.ready().await {
            Ok(Ok(ready)) => return Ok(ready),
            Ok(Err(status)) => format!("it ended before it was ready ({status})"),
            Err(failure) => failure.message,
        };
        Err(Failure::internal(format!("{}: {why}:\n{}", self.name, self.log())))
    }

    /// The exit status of its process, if it has ended; the node then has no process.
    pub fn try_exit(&mut self) -> Outcome<Option<ExitStatus>> {
        let exit = self.process()?.try_exit();
        self.process = self.process.take().filter(|_| exit.is_none());
        Ok(exit)
    }

    /// Waits for the end of its process.
    pub async fn exit(&mut self) -> Outcome<ExitStatus> {
        let what = format!("{} ends", self.name);
        until(&what, async || self.try_exit()).await
    }

    /// Sends KILL and waits until its process has ended.
    pub async fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().await;
        }
    }

    /// Sends TERM, then KILL if needed. Returns whether TERM was enough.
    pub async fn stop(&mut self) -> bool {
        match &mut self.process {
            Some(process) => {
                let in_time = process.stop().await;
                self.process = None;
                in_time
            }
            None => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_contain_the_node_and_its_entry() {
        let node = LocalNode::new(Path::new("/w"), "n2", SocketAddr::from(([127, 0, 0, 1], 4402)));
        assert_eq!(node.arguments(), ["--data-dir", "/w/n2", "--name", "n2", "--listen", "127.0.0.1:4402"]);
        assert_eq!((node.socket(), node.log_file), (PathBuf::from("/w/n2/muster.sock"), PathBuf::from("/w/n2.log")));
        let rendered = |entry: &Entry| {
            let mut command = Command::new("musterd");
            entry.add_to(&mut command);
            let args: Vec<_> = command.get_args().map(|arg| arg.to_owned()).collect();
            (args, command.get_envs().count())
        };
        assert_eq!(rendered(&Entry::Found), (vec!["--init".into()], 0));
        let join = Entry::Join { seeds: vec!["a:1".into(), "b:2".into()], token: "secret".into() };
        assert_eq!(rendered(&join), (vec!["--join".into(), "a:1,b:2".into()], 1), "the token is in the environment");
        assert_eq!(rendered(&Entry::Resume), (vec![], 0));
    }

    #[tokio::test]
    async fn failed_start_reports_exit_status_and_log() {
        let base = tempfile::tempdir().unwrap();
        let mut node = LocalNode::at_free_address(base.path(), "n1").unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo bad token >&2; exit 6"]);
        node.start(command, Lifetime::Tied).unwrap();
        let failure = node.ready().await.unwrap_err().message;
        assert!(
            failure.contains("n1") && failure.contains("exit status: 6") && failure.contains("bad token"),
            "{failure}"
        );
        assert_eq!(node.exit().await.unwrap().code(), Some(6));
        assert!(node.process().is_err() && !node.is_running(), "its end was waited for");
    }

    #[tokio::test]
    async fn a_node_has_one_process_at_a_time() {
        let base = tempfile::tempdir().unwrap();
        let mut node = LocalNode::at_free_address(base.path(), "n1").unwrap();
        let sleep = || {
            let mut command = Command::new("sleep");
            command.arg("600");
            command
        };
        let first = node.start(sleep(), Lifetime::Tied).unwrap();
        assert!(node.start(sleep(), Lifetime::Tied).is_err() && first.is_alive());
        node.kill().await;
        let second = node.start(sleep(), Lifetime::Tied).unwrap();
        assert!(!first.is_alive() && second.is_alive());
        assert!(node.stop().await, "TERM is enough");
    }
}
