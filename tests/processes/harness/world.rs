//! A cluster of daemons in a folder of its own.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_client::{Client, Failure, parse};
use muster_local_cluster::{answers, temporary_folder};
use muster_messages::wire::Request;
use muster_messages::{ErrorCode, Liveness, NodeView, Role};
use serde_json::Value;
use tempfile::TempDir;

use super::{EndedMuster, Network, Node, Permit, SLOW_RAFT_TIMING, eventually, eventually_so, permit};

/// What `muster` reports if another process did not answer in time, or could not be reached.
pub const UNANSWERED: [ErrorCode; 2] = [ErrorCode::TimedOut, ErrorCode::Unreachable];

/// The nodes of one test. On drop every process is killed and the folder is deleted.
pub struct World {
    nodes: BTreeMap<String, Node>,
    /// Additional configuration tables for new nodes.
    pub settings: String,
    /// The network of new nodes.
    pub network: Option<Network>,
    folder: TempDir,
    runtime: tokio::runtime::Runtime,
    /// Declared after the nodes, whose permit it is.
    _permit: Arc<Permit>,
}

impl World {
    /// Waits for a permit.
    pub fn new() -> Self {
        let permit = permit();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Self {
            nodes: BTreeMap::new(),
            settings: SLOW_RAFT_TIMING.to_owned(),
            network: None,
            folder: temporary_folder("test").expect("a temporary folder"),
            runtime: runtime.expect("a runtime"),
            _permit: permit,
        }
    }

    /// A running cluster: n1 founds, the others join, managers first.
    pub fn with(managers: usize, workers: usize) -> Self {
        Self::new().up(managers, workers)
    }

    /// The same, with additional configuration tables.
    pub fn with_settings(settings: &str, managers: usize, workers: usize) -> Self {
        let mut world = Self::new();
        world.settings += settings;
        world.up(managers, workers)
    }

    /// The same as [`World::with`], with links that can be cut, and shipped timing: such scenarios are about how soon a cut is noticed.
    pub fn with_a_network(managers: usize, workers: usize) -> Self {
        Self::with_a_network_and("", managers, workers)
    }

    /// The same, with additional configuration tables.
    pub fn with_a_network_and(settings: &str, managers: usize, workers: usize) -> Self {
        let mut world = Self::new();
        world.settings = settings.to_owned();
        world.network = Some(Network::new());
        world.up(managers, workers)
    }

    pub(super) fn up(self, managers: usize, workers: usize) -> Self {
        let mut world = self;
        world.node("n1").start(&["--init"]).ready();
        for (count, role) in [(managers - 1, Role::Manager), (workers, Role::Worker)] {
            world.join_more(count, role);
        }
        world.all_settled();
        world
    }

    /// Starts this many more nodes at once; returns their names.
    pub fn join_more(&mut self, count: usize, role: Role) -> Vec<String> {
        let (seed, token) = (self.node("n1").address().to_string(), self.token(role));
        let first = self.nodes.len() + 1;
        let names: Vec<String> = (first..first + count).map(|n| format!("n{n}")).collect();
        for name in &names {
            self.node(name).start(&["--join", &seed, "--token", &token]);
        }
        for name in &names {
            self.node(name).ready();
        }
        names
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A node by name, created on first use, not started.
    pub fn node(&mut self, name: &str) -> &mut Node {
        let (folder, settings, network) = (self.folder.path(), &self.settings, &self.network);
        self.nodes.entry(name.to_owned()).or_insert_with(|| {
            let node = Node::new(folder, name, settings);
            network.iter().fold(node, Node::behind)
        })
    }

    pub fn socket(&self, name: &str) -> PathBuf {
        self.nodes[name].socket()
    }

    /// The network of a world that has one.
    pub fn network(&self) -> &Network {
        self.network.as_ref().expect("this world has a network")
    }

    /// All log lines of a node's processes.
    pub fn nodes_log(&self, name: &str) -> String {
        self.nodes[name].log()
    }

    /// Runs `muster` against one node.
    pub fn muster_at(&self, name: &str, args: &[&str]) -> EndedMuster {
        let socket = self.socket(name);
        let socket = socket.to_str().expect("the folder's path is text");
        // A scenario about something else waits out a missing leader.
        let waits: &[&str] = if args.contains(&"--timeout") { &[] } else { &["--timeout", "60s"] };
        EndedMuster::new(self.folder(), &[&["--socket", socket, "-o", "json"], waits, args].concat())
    }

    /// Runs `muster` against n1.
    pub fn muster(&self, args: &[&str]) -> EndedMuster {
        self.muster_at("n1", args)
    }

    /// Runs `muster` against one node until the process that it asks has answered, and returns its document: on a busy machine the
    /// answer may take longer than is waited for it. Only that is repeated.
    #[track_caller]
    pub fn muster_insists_at(&self, name: &str, args: &[&str]) -> Value {
        eventually(&format!("muster {}", args.join(" ")), || self.muster_at(name, args).done_unless(&UNANSWERED))
    }

    /// The same against n1.
    #[track_caller]
    pub fn muster_insists(&self, args: &[&str]) -> Value {
        self.muster_insists_at("n1", args)
    }

    /// Asks one node without starting a process.
    pub fn ask(&self, name: &str, request: Request) -> Result<Value, Failure> {
        let mut client = Client::to_socket(self.socket(name), Duration::from_secs(10));
        self.runtime.block_on(async { parse(&client.call(request).await?) })
    }

    /// Waits for an asynchronous operation.
    pub fn wait_for<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// Asks one node until it answers.
    #[track_caller]
    pub fn answer(&self, name: &str, request: Request) -> Value {
        eventually(&format!("{name} answers {request:?}"), || self.ask(name, request.clone()).ok())
    }

    /// What the address of a ready node's metrics answers to a GET of this path.
    pub fn scraped(&self, name: &str, path: &str) -> String {
        let addr = self.nodes[name].metrics.clone().expect("a ready node has a metrics address");
        let mut stream = TcpStream::connect(addr).expect("the metrics are served");
        let request = format!("GET {path} HTTP/1.1\r\nHost: muster\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it listens");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }

    /// A ready node's current metrics.
    pub fn metrics(&self, name: &str) -> String {
        let answer = self.scraped(name, "/metrics");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer
    }

    /// The current value of a metric without labels.
    pub fn metric(&self, name: &str, metric: &str) -> u64 {
        let metrics = self.metrics(name);
        let value = metrics.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or_else(|| panic!("no {metric} in {metrics}"))
    }

    pub fn token(&self, role: Role) -> String {
        let shown = self.answer("n1", Request::TokenShow { role });
        answers::token(&shown).expect("a token is text")
    }

    /// The nodes by one node's quorum read.
    #[track_caller]
    pub fn nodes_seen_by(&self, name: &str) -> Vec<NodeView> {
        let list = self.answer(name, Request::NodeList { fresh: true });
        answers::nodes(list).expect("a list of nodes")
    }

    /// One node as another sees it.
    #[track_caller]
    pub fn seen(&self, by: &str, name: &str) -> Option<NodeView> {
        self.nodes_seen_by(by).into_iter().find(|node| node.name.as_str() == name)
    }

    /// The leader's name, as one node knows it.
    #[track_caller]
    pub fn leader_seen_by(&self, name: &str) -> String {
        eventually("a leader", || answers::leader(&self.nodes_seen_by(name)))
    }

    /// Waits until a node that has returned is recorded as ready. It is ready itself a moment earlier; until then its record may
    /// say that it is down, and nothing waits for a node that is down.
    #[track_caller]
    pub fn is_recorded_as_ready(&self, by: &str, name: &str) {
        eventually_so(&format!("{name} is recorded as ready"), || {
            self.seen(by, name).is_some_and(|node| node.state == Liveness::Ready && !node.stale)
        });
    }

    /// A running node other than these.
    pub fn other_than(&self, not: &[&str]) -> String {
        let mut fit = self.nodes.values().filter(|node| node.is_running() && !not.contains(&node.name.as_str()));
        fit.next().expect("another node runs").name.clone()
    }

    /// Waits until every node is settled: desired role, role, certificate and membership agree.
    #[track_caller]
    pub fn all_settled(&self) {
        let by = self.other_than(&[]);
        eventually_so("every node is settled", || answers::all_settled(&self.nodes_seen_by(&by)));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in self.nodes.values() {
                let log = node.log();
                let tail: Vec<&str> = log.lines().rev().take(25).collect();
                let panics = log.lines().filter(|line| line.contains("panicked at"));
                panics.for_each(|line| eprintln!("--- {}: {line}", node.name));
                eprintln!("--- {} logged last", node.name);
                tail.iter().rev().for_each(|line| eprintln!("{line}"));
            }
        }
    }
}
