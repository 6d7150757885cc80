//! The recorded state of a dev folder: a small file that `dev up` and `dev down` read.

use std::fs::{DirBuilder, File, TryLockError};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use muster_client::{Failure, Outcome};
use muster_local_cluster::ProcessId;
use muster_messages::Role;
use muster_pki::private::{check_folder, check_surroundings, open_own_file};
use serde::{Deserialize, Serialize};

/// The nodes of a dev folder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    pub nodes: Vec<NodeState>,
    /// Its nodes outlive the `dev up` that has started them.
    #[serde(default)]
    pub detached: bool,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeState {
    pub name: String,
    /// Its role at its first start; the cluster knows the current one.
    pub role: Role,
    pub listen: SocketAddr,
    /// It has been ready once: its folder has its identity.
    pub joined: bool,
    pub process: Option<ProcessId>,
}

impl NodeState {
    /// The process, if it is still running.
    pub fn running(&self) -> Option<ProcessId> {
        self.process.filter(|process| process.is_alive())
    }
}

impl State {
    /// The nodes of a new cluster.
    pub fn plan(managers: u16, workers: u16, mut address: impl FnMut() -> Outcome<SocketAddr>) -> Outcome<Self> {
        let roles = std::iter::repeat_n(Role::Manager, managers.into())
            .chain(std::iter::repeat_n(Role::Worker, workers.into()));
        let node = |(index, role)| {
            let name = format!("n{}", index + 1);
            Ok(NodeState { name, role, listen: address()?, joined: false, process: None })
        };
        Ok(Self { nodes: roles.enumerate().map(node).collect::<Outcome<_>>()?, detached: false })
    }

    /// Reads the state of this folder; without a file it is empty.
    pub fn read(dir: &Path) -> Outcome<Self> {
        let path = file(dir);
        match std::fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text)
                .map_err(|e| Failure::internal(format!("{} cannot be read: {e}", path.display()))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(Failure::io(format!("cannot read {}", path.display()), &error)),
        }
    }

    /// Writes the state.
    pub fn write(&self, dir: &Path) -> Outcome {
        let text = serde_json::to_string_pretty(self).expect("a state is plain text");
        let write = || muster_pki::write_atomic(&std::path::absolute(file(dir))?, text.as_bytes());
        write().map_err(|e| Failure::io(format!("cannot write {}", file(dir).display()), &e))
    }

    /// The number of running nodes.
    pub fn running(&self) -> usize {
        self.nodes.iter().filter(|node| node.running().is_some()).count()
    }

    /// The names of the nodes that do not run.
    pub fn ended(&self) -> Vec<&str> {
        let ended = self.nodes.iter().filter(|node| node.running().is_none());
        ended.map(|node| node.name.as_str()).collect()
    }

    /// Whether nodes that have ended can be started beside those that run: these stay, and have been ready once.
    pub fn can_be_completed(&self) -> bool {
        let settled = self.nodes.iter().all(|node| node.joined || node.running().is_none());
        self.detached && settled && !self.ended().is_empty()
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

/// Creates the folder, accessible only to this user.
pub fn make_folder(dir: &Path) -> Outcome {
    let failed = |e: std::io::Error| Failure::io(format!("cannot create {}", dir.display()), &e);
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)
}

/// Refuses a folder that another user has prepared, or could: its content decides which processes are stopped and which
/// programs are started.
pub fn check(dir: &Path) -> Outcome {
    let above = std::path::absolute(dir).ok().and_then(|dir| dir.parent().map(Path::to_owned));
    let checked = above.map_or(Ok(()), |above| check_surroundings(&above)).and_then(|()| check_folder(dir));
    checked.map_err(|why| {
        Failure::refused("not_private", format!("{why}; use a folder that only you can write, or name one with --dir"))
    })
}

fn file(dir: &Path) -> PathBuf {
    dir.join("dev.json")
}

/// The lock of a folder's only `dev up`; released when the process ends, however it ends.
pub struct FolderLock(#[expect(dead_code, reason = "held, not read: dropping it frees the folder")] File);

impl FolderLock {
    /// `None`: another process holds it.
    pub fn take(dir: &Path) -> Outcome<Option<Self>> {
        let path = dir.join("dev.lock");
        let failed = |e: std::io::Error| Failure::io(format!("cannot use {}", path.display()), &e);
        let file = open_own_file(&path).map_err(failed)?;
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
    fn managers_come_first_and_state_reads_back() {
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
    fn ended_nodes_are_started_beside_ready_ones_in_the_background() {
        let mut state = State::plan(2, 0, || Ok(SocketAddr::from(([127, 0, 0, 1], 4400)))).unwrap();
        state.detached = true;
        state.nodes[0].process = ProcessId::of(std::process::id());
        assert!(!state.can_be_completed(), "n1 may not be ready");
        state.nodes[0].joined = true;
        assert!(state.can_be_completed());
        assert_eq!((state.running(), state.ended()), (1, vec!["n2"]));
        assert!(!State { detached: false, ..state.clone() }.can_be_completed(), "n1 ends with its terminal");
        state.nodes[1] = NodeState { name: "n2".to_owned(), ..state.nodes[0].clone() };
        assert!(!state.can_be_completed(), "nothing has ended");
    }

    #[test]
    fn folder_lock_is_exclusive() {
        let dir = tempfile::tempdir().unwrap();
        let first = FolderLock::take(dir.path()).unwrap();
        assert!(first.is_some() && FolderLock::take(dir.path()).unwrap().is_none());
        drop(first);
        assert!(FolderLock::take(dir.path()).unwrap().is_some());
    }

    #[test]
    fn a_folder_that_others_can_write_is_refused() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let above = tempfile::tempdir().unwrap();
        let dir = above.path().join(".muster");
        make_folder(&dir).unwrap();
        check(&dir).unwrap();
        let set = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        for (path, open) in [(dir.as_path(), 0o777), (above.path(), 0o777)] {
            set(path, open);
            let refused = check(&dir).unwrap_err();
            assert!(refused.message.contains("--dir") && refused.exit != 0, "{refused}");
            set(path, 0o700);
        }
        let precious = above.path().join("precious");
        std::fs::write(&precious, "kept").unwrap();
        symlink(&precious, dir.join("dev.lock")).unwrap();
        assert!(FolderLock::take(&dir).is_err());
        assert_eq!(std::fs::read(&precious).unwrap(), b"kept");
    }
}
