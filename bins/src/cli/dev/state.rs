//! What runs in a dev folder: a small file that `dev up`, `dev down` and a second `dev up` read.

use std::fs::{File, TryLockError};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use muster_client::{Failure, Outcome};
use muster_local_cluster::ProcessId;
use muster_messages::Role;
use serde::{Deserialize, Serialize};

/// The nodes of a dev folder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    pub nodes: Vec<NodeState>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeState {
    pub name: String,
    /// What it was started to be; the cluster knows what it is now.
    pub role: Role,
    pub listen: SocketAddr,
    /// It has been ready once: its folder says who it is.
    pub joined: bool,
    pub process: Option<ProcessId>,
}

impl NodeState {
    /// The process, if it still runs.
    pub fn running(&self) -> Option<ProcessId> {
        self.process.filter(|process| process.is_alive())
    }
}

impl State {
    /// The nodes of a new cluster, without addresses taken yet.
    pub fn plan(managers: u16, workers: u16, mut address: impl FnMut() -> Outcome<SocketAddr>) -> Outcome<Self> {
        let roles = std::iter::repeat_n(Role::Manager, managers.into())
            .chain(std::iter::repeat_n(Role::Worker, workers.into()));
        let node = |(index, role)| {
            let name = format!("n{}", index + 1);
            Ok(NodeState { name, role, listen: address()?, joined: false, process: None })
        };
        Ok(Self { nodes: roles.enumerate().map(node).collect::<Outcome<_>>()? })
    }

    /// What was written in this folder; nothing yet is an empty state.
    pub fn read(dir: &Path) -> Outcome<Self> {
        let path = file(dir);
        match std::fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text)
                .map_err(|e| Failure::internal(format!("{} cannot be read: {e}", path.display()))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(Failure::io(format!("cannot read {}", path.display()), &error)),
        }
    }

    /// Writes it down.
    pub fn write(&self, dir: &Path) -> Outcome {
        let text = serde_json::to_string_pretty(self).expect("a state is plain text");
        let write = || muster_pki::write_atomic(&std::path::absolute(file(dir))?, text.as_bytes());
        write().map_err(|e| Failure::io(format!("cannot write {}", file(dir).display()), &e))
    }

    /// How many nodes run.
    pub fn running(&self) -> usize {
        self.nodes.iter().filter(|node| node.running().is_some()).count()
    }

    /// One line per node, for people.
    pub fn describe(&self) -> String {
        let line = |node: &NodeState| match node.running() {
            Some(process) => format!("  {} {} {} pid {}", node.name, node.role, node.listen, process.pid),
            None => format!("  {} {} not running", node.name, node.role),
        };
        self.nodes.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

fn file(dir: &Path) -> PathBuf {
    dir.join("dev.json")
}

/// Held by the one `dev up` of a folder; ends with the process, however it ends.
pub struct FolderLock(#[expect(dead_code, reason = "held, not read: dropping it frees the folder")] File);

impl FolderLock {
    /// `None`: another process holds it.
    pub fn take(dir: &Path) -> Outcome<Option<Self>> {
        let path = dir.join("dev.lock");
        let failed = |e: std::io::Error| Failure::io(format!("cannot use {}", path.display()), &e);
        let file = File::create(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn managers_come_first_and_the_state_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut port = 4400;
        let plan = State::plan(3, 2, || {
            port += 1;
            Ok(SocketAddr::from(([127, 0, 0, 1], port)))
        });
        let plan = plan.unwrap();
        let names: Vec<_> = plan.nodes.iter().map(|n| (n.name.as_str(), n.role)).collect();
        assert_eq!(names[2..4], [("n3", Role::Manager), ("n4", Role::Worker)]);
        assert_eq!(State::read(dir.path()), Ok(State::default()));
        plan.write(dir.path()).unwrap();
        assert_eq!(State::read(dir.path()), Ok(plan));
    }

    #[test]
    fn one_folder_has_one_keeper() {
        let dir = tempfile::tempdir().unwrap();
        let first = FolderLock::take(dir.path()).unwrap();
        assert!(first.is_some() && FolderLock::take(dir.path()).unwrap().is_none());
        drop(first);
        assert!(FolderLock::take(dir.path()).unwrap().is_some());
    }
}
