//! A node of this machine: where its data are, where it listens, what its processes log.

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

/// What a daemon starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
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

impl Entry {
    /// Tells a daemon so. Everybody on this machine reads command lines, so the token is in its environment.
    pub fn tell<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        match self {
            Entry::Found => command.arg("--init"),
            Entry::Join { seeds, token } => command.args(["--join", &seeds.join(",")]).env("MUSTER_TOKEN", token),
            Entry::Resume => command,
        }
    }
}

/// A data directory with an address, and the process that serves it now, if one does.
pub struct LocalNode {
    pub name: String,
    /// Its data and its socket.
    pub folder: PathBuf,
    pub listen: SocketAddr,
    /// Everything its processes log.
    pub log_file: PathBuf,
    process: Option<NodeProcess>,
}

impl LocalNode {
    /// A node whose folder is in `world`, its log beside it. Not started yet.
    pub fn new(world: &Path, name: &str, listen: SocketAddr) -> Self {
        let folder = world.join(name);
        Self { name: name.to_owned(), log_file: folder.with_extension("log"), folder, listen, process: None }
    }

    /// The same, at a free address.
    pub fn anywhere(world: &Path, name: &str) -> Outcome<Self> {
        Ok(Self::new(world, name, free_address()?))
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.join("muster.sock")
    }

    /// Everything its processes have logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log_file).unwrap_or_default()
    }

    /// What every command line of it has.
    pub fn arguments(&self) -> [OsString; 6] {
        let listen = self.listen.to_string();
        let (name, folder) = (self.name.clone(), self.folder.clone());
        ["--data-dir".into(), folder.into(), "--name".into(), name.into(), "--listen".into(), listen.into()]
    }

    /// Starts this command as its process, which may not run yet.
    pub fn start(&mut self, command: Command, lifetime: Lifetime) -> Outcome<ProcessId> {
        if self.is_running() {
            return Err(Failure::internal(format!("{} runs already", self.name)));
        }
        let failed = |e| Failure::io(format!("cannot make {}", self.folder.display()), &e);
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder).map_err(failed)?;
        check_folder(&self.folder).map_err(|why| Failure::refused("not_private", why.to_string()))?;
        let process = NodeProcess::start(command, &self.log_file, lifetime)?;
        Ok(self.process.insert(process).id())
    }

    /// Its process: one that was started and whose end nobody has waited for.
    pub fn process(&mut self) -> Outcome<&mut NodeProcess> {
        self.process.as_mut().ok_or_else(|| Failure::internal(format!("{} does not run", self.name)))
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

    /// Waits for the ready line; the failure tells what it logged instead.
    pub async fn ready(&mut self) -> Outcome<Ready> {
        let why = match self.process()?.ready().await {
            Ok(Ok(ready)) => return Ok(ready),
            Ok(Err(status)) => format!("it ended before it was ready ({status})"),
            Err(failure) => failure.message,
        };
        Err(Failure::internal(format!("{}: {why}:\n{}", self.name, self.log())))
    }

    /// How its process ended, if it has; it has none then.
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

    /// KILL, and waits until its process is gone.
    pub async fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().await;
        }
    }

    /// TERM, and KILL if that is not enough. The result says whether it ended by itself.
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
    fn arguments_name_the_node_and_what_it_starts_with() {
        let node = LocalNode::new(Path::new("/w"), "n2", SocketAddr::from(([127, 0, 0, 1], 4402)));
        assert_eq!(node.arguments(), ["--data-dir", "/w/n2", "--name", "n2", "--listen", "127.0.0.1:4402"]);
        assert_eq!((node.socket(), node.log_file), (PathBuf::from("/w/n2/muster.sock"), PathBuf::from("/w/n2.log")));
        let told = |entry: &Entry| {
            let mut command = Command::new("musterd");
            entry.tell(&mut command);
            let args: Vec<_> = command.get_args().map(|arg| arg.to_owned()).collect();
            (args, command.get_envs().count())
        };
        assert_eq!(told(&Entry::Found), (vec!["--init".into()], 0));
        let join = Entry::Join { seeds: vec!["a:1".into(), "b:2".into()], token: "secret".into() };
        assert_eq!(told(&join), (vec!["--join".into(), "a:1,b:2".into()], 1), "nobody else reads its environment");
        assert_eq!(told(&Entry::Resume), (vec![], 0));
    }

    #[tokio::test]
    async fn a_failed_start_says_how_it_ended_and_what_it_logged() {
        let world = tempfile::tempdir().unwrap();
        let mut node = LocalNode::anywhere(world.path(), "n1").unwrap();
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
        let world = tempfile::tempdir().unwrap();
        let mut node = LocalNode::anywhere(world.path(), "n1").unwrap();
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
