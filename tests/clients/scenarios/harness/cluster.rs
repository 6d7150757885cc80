//! `muster dev up` in its own folder.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use muster_local_cluster::{ProcessId, parent};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::{EndedProgram, Program, WAIT_LIMIT, eventually, muster};

/// Three managers and a worker. On drop every process is killed and the folder is deleted.
pub struct Cluster {
    keeper: Child,
    nodes: Vec<Node>,
    restarted: Vec<Program>,
    kubeconfigs: AtomicUsize,
    folder: TempDir,
}

struct Node {
    name: String,
    addr: String,
    process: ProcessId,
    /// Its command line, for restarts.
    line: Vec<String>,
}

/// A file printed by `muster kubeconfig`.
pub struct Kubeconfig {
    pub path: PathBuf,
    printed: String,
}

impl Kubeconfig {
    /// A text value, by its key.
    pub fn text(&self, key: &str) -> String {
        let key = format!("{key}: ");
        let value = self.printed.lines().find_map(|line| Some(line.split_once(&key)?.1));
        serde_json::from_str(value.unwrap_or_else(|| panic!("{key}\n{}", self.printed))).expect("texts are quoted")
    }
}

impl Cluster {
    pub fn up() -> Self {
        // A socket's path is limited to 107 bytes.
        let folder = tempfile::Builder::new().prefix("muster-clients-").tempdir_in("/tmp").expect("a folder in /tmp");
        let mut command = Command::new(muster());
        command.args(["dev", "up", "--managers", "3", "--workers", "1", "-o", "json"]);
        command.current_dir(folder.path()).env_remove("MUSTER_SOCKET");
        parent::tie(&mut command);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let keeper = command.spawn().expect("muster starts");
        let kubeconfigs = AtomicUsize::new(1);
        let mut cluster = Self { keeper, nodes: vec![], restarted: vec![], kubeconfigs, folder };
        cluster.nodes = eventually("a settled cluster of three managers and a worker", || cluster.settled());
        cluster
    }

    fn settled(&self) -> Option<Vec<Node>> {
        let written = std::fs::read(self.folder().join(".muster/dev.json")).ok()?;
        let written: Value = serde_json::from_slice(&written).ok()?;
        let node = |node: &Value| {
            let process: ProcessId = serde_json::from_value(node["process"].clone()).ok()?;
            let joined = node["joined"].as_bool()?;
            let line = command_line(process.pid)?;
            joined.then_some(Node { name: text(&node["name"])?, addr: text(&node["listen"])?, process, line })
        };
        let nodes: Vec<Node> = written["nodes"].as_array()?.iter().filter_map(node).collect();
        let status = self.muster(&["status", "-o", "json"]);
        let status: Value = serde_json::from_str(&status.stdout).ok()?;
        (nodes.len() == 4 && status["raft"]["voters"].as_array()?.len() == 3).then_some(nodes)
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs `muster` to its end.
    pub fn muster(&self, args: &[&str]) -> EndedProgram {
        let mut command = Command::new(muster());
        command.args(args).current_dir(self.folder()).env_remove("MUSTER_SOCKET");
        EndedProgram::of(command)
    }

    /// A document that `muster` prints.
    #[track_caller]
    pub fn document(&self, args: &[&str]) -> Value {
        let ran = self.muster(&[args, &["-o", "json"]].concat()).ended(0);
        serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}\n{}", ran.stdout))
    }

    /// A lease as the cluster's API shows it.
    #[track_caller]
    pub fn lease(&self, name: &str) -> Value {
        self.document(&["lease", "get", name])
    }

    /// What a user of unmodified clients gets: a kubeconfig file only.
    #[track_caller]
    pub fn kubeconfig(&self, args: &[&str]) -> Kubeconfig {
        let printed = self.muster(&[&["kubeconfig"], args].concat()).ended(0).stdout;
        let number = self.kubeconfigs.fetch_add(1, Ordering::Relaxed);
        let path = self.folder().join(format!("kubeconfig-{number}.yaml"));
        std::fs::write(&path, &printed).expect("the folder is writable");
        Kubeconfig { path, printed }
    }

    /// The file of a user at one node.
    #[track_caller]
    pub fn kubeconfig_at(&self, node: &str) -> Kubeconfig {
        self.kubeconfig(&["--server", &self.node(node).addr])
    }

    /// The address of a node's TLS port.
    pub fn addr(&self, node: &str) -> String {
        self.node(node).addr.clone()
    }

    /// A node's address for programs on its host.
    pub fn socket(&self, node: &str) -> PathBuf {
        self.folder().join(".muster").join(node).join("muster.sock")
    }

    /// A program with a kubeconfig, in this cluster's folder, without a time zone to rely on.
    pub fn program(&self, program: &Path, kubeconfig: &Kubeconfig) -> Command {
        let mut command = Program::command(program);
        command.current_dir(self.folder()).env("KUBECONFIG", &kubeconfig.path).env("HOME", self.folder());
        command
    }

    fn node(&self, name: &str) -> &Node {
        self.nodes.iter().find(|node| node.name == name).unwrap_or_else(|| panic!("no node {name}"))
    }

    /// The manager that leads.
    pub fn leader(&self) -> String {
        eventually("a manager leads", || {
            let ran = self.muster(&["raft", "status", "--fresh", "-o", "json"]);
            let status: Value = serde_json::from_str(&ran.stdout).ok()?;
            let leads = |member: &&Value| member["node"] == status["leader"];
            let addr = text(&status["members"].as_array()?.iter().find(leads)?["addr"])?;
            Some(self.nodes.iter().find(|node| node.addr == addr)?.name.clone())
        })
    }

    /// The managers that do not lead.
    pub fn followers(&self) -> Vec<String> {
        let leader = self.leader();
        let managers = ["n1", "n2", "n3"].map(str::to_owned);
        managers.into_iter().filter(|name| *name != leader).collect()
    }

    /// kill -9.
    pub fn kill(&self, name: &str) {
        let process = self.node(name).process;
        process.signal(Signal::KILL);
        eventually(&format!("{name} has ended"), || (!process.is_alive()).then_some(()));
    }

    /// STOP freezes it, CONT lets it continue.
    pub fn signal(&self, name: &str, signal: Signal) {
        self.node(name).process.signal(signal);
    }

    /// Replaces a part of the nodes' configuration, for those that are started from now on.
    #[track_caller]
    pub fn configure(&self, part: &str, by: &str) {
        let file = self.folder().join(".muster/musterd.toml");
        let text = std::fs::read_to_string(&file).expect("the nodes have a configuration");
        assert!(text.contains(part), "{text}");
        std::fs::write(&file, text.replacen(part, by, 1)).expect("the folder is writable");
    }

    /// A killed node with its original command line and more words.
    fn start(&self, name: &str, more: &[&str]) -> Program {
        let line = &self.node(name).line;
        let mut command = Program::command(line[0].as_ref());
        command.args(&line[1..]).args(more).current_dir(self.folder()).env_remove("MUSTER_SOCKET");
        Program::start(name, command)
    }

    /// Restarts a killed node with more words on its command line, and waits until it serves.
    #[track_caller]
    pub fn restart_with(&mut self, name: &str, more: &[&str]) {
        let mut started = self.start(name, more);
        started.wait_for_line("musterd ready");
        self.restarted.push(started);
    }

    /// Restarts killed nodes with their original command lines, and waits until they serve.
    #[track_caller]
    pub fn restart(&mut self, names: &[String]) {
        let mut started: Vec<Program> = names.iter().map(|name| self.start(name, &[])).collect();
        for node in &mut started {
            node.wait_for_line("musterd ready");
        }
        self.restarted.append(&mut started);
    }
}

fn command_line(pid: i32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
    Some(text.split_terminator('\0').map(str::to_owned).collect())
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.restarted.clear();
        // The keeper's daemons die with it.
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
        let end = Instant::now() + WAIT_LIMIT;
        while self.nodes.iter().any(|node| node.process.is_alive()) && Instant::now() < end {
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }
}
