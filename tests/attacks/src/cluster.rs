//! A cluster to attack, in its own folder.

use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_client::{Client, Failure, Outcome, parse};
use muster_local_cluster::{answers, temporary_folder};
use muster_messages::protocol::NodeCredentials;
use muster_messages::wire::{ActorsAsk, ActorsOf, Request};
use muster_messages::{NodeView, Role, UserKind};
use serde_json::Value;
use tempfile::TempDir;

use crate::daemon::Daemon;

/// Raft timing for attacks that are not about time: on a busy machine a leader without processor time for a moment stays leader.
/// It hides stalls of up to three seconds.
pub const SLOW_RAFT_TIMING: &str = "[raft]\nheartbeat = \"200ms\"\nelection_timeout = \"3s\"\n";

/// On drop every process is killed and the folder is deleted.
pub struct Cluster {
    program: PathBuf,
    config: Option<PathBuf>,
    nodes: Vec<Daemon>,
    folder: TempDir,
}

impl Cluster {
    /// n1 founds, the others join, managers first. A leader that is slow for a moment stays leader.
    pub async fn up(program: &Path, managers: usize, workers: usize) -> Outcome<Self> {
        Self::configured(program, Some(SLOW_RAFT_TIMING), managers, workers).await
    }

    /// The same with the shipped timing, for attacks whose load or stalls could cost a leader its leadership.
    pub async fn with_shipped_timing(program: &Path, managers: usize, workers: usize) -> Outcome<Self> {
        Self::configured(program, None, managers, workers).await
    }

    /// Managers that act as builds of feature level 2. Without its `config` a node acts as this build from its next start on.
    pub async fn at_level_two(program: &Path, managers: usize) -> Outcome<Self> {
        let settings = format!("{SLOW_RAFT_TIMING}[debug]\nfeature_level = 2\n");
        Self::configured(program, Some(&settings), managers, 0).await
    }

    async fn configured(program: &Path, settings: Option<&str>, managers: usize, workers: usize) -> Outcome<Self> {
        let folder = temporary_folder("attack")?;
        let config = settings.map(|settings| (folder.path().join("cluster.toml"), settings));
        if let Some((file, settings)) = &config {
            std::fs::write(file, settings).map_err(|e| Failure::io("cannot write the configuration", &e))?;
        }
        let config = config.map(|(file, _)| file);
        let mut cluster = Self { program: program.to_owned(), config, nodes: Vec::new(), folder };
        let mut first = cluster.daemon("n1")?;
        first.start_and_wait(&["--init"]).await?;
        cluster.nodes.push(first);
        for (count, role) in [(managers - 1, Role::Manager), (workers, Role::Worker)] {
            for _ in 0..count {
                cluster.join(role).await?;
            }
        }
        cluster.settled().await?;
        Ok(cluster)
    }

    /// Joins one more node; returns its name.
    pub async fn join(&mut self, role: Role) -> Outcome<String> {
        let name = format!("n{}", self.nodes.len() + 1);
        let mut node = self.daemon(&name)?;
        let (seed, token) = (self.node("n1").listen.to_string(), self.token(role).await?);
        node.start_and_wait(&["--join", &seed, "--token", &token]).await?;
        self.nodes.push(node);
        Ok(name)
    }

    fn daemon(&self, name: &str) -> Outcome<Daemon> {
        let mut daemon = Daemon::new(&self.program, self.folder.path(), name)?;
        daemon.config.clone_from(&self.config);
        Ok(daemon)
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// A node by name.
    pub fn node(&self, name: &str) -> &Daemon {
        self.nodes.iter().find(|node| node.name == name).expect("tests name existing nodes")
    }
    pub fn node_mut(&mut self, name: &str) -> &mut Daemon {
        self.nodes.iter_mut().find(|node| node.name == name).expect("tests name existing nodes")
    }
    pub fn names(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.name.clone()).collect()
    }

    /// Asks one node over its socket.
    pub async fn ask(&self, name: &str, request: Request) -> Outcome<Value> {
        let mut client = Client::to_socket(self.node(name).socket(), Duration::from_secs(20));
        parse(&client.call(request).await?)
    }

    pub async fn token(&self, role: Role) -> Outcome<String> {
        answers::token(&self.ask("n1", Request::TokenShow { role }).await?)
    }

    /// A user's certificate, created as `muster user create` creates it.
    pub async fn user(&self, name: &str, kind: UserKind) -> Outcome<NodeCredentials> {
        let key = muster_pki::new_key();
        let csr_pem = muster_pki::make_csr(&key).map_err(|e| Failure::internal(e.to_string()))?;
        let name = name.parse().map_err(|_| Failure::internal(format!("{name} is no name")))?;
        let namespaces = if kind.is_read_only() { vec![] } else { vec!["default".into()] };
        let request = Request::UserCreate { name, kind, namespaces, ttl_ms: None, csr_pem };
        let made = self.ask("n1", request).await?;
        let cert_pem = made["cert_pem"].as_str().ok_or_else(|| Failure::internal(made.to_string()))?.to_owned();
        let root_pem = self.node("n1").credentials()?.root_pem;
        let identity = muster_pki::identity_of_pem(&cert_pem).map_err(|e| Failure::internal(e.to_string()))?;
        Ok(NodeCredentials { cert_pem, key_pem: key, root_pem, identity })
    }

    /// One actor's state from inspection.
    pub async fn inspect(&self, name: &str, path: &str) -> Outcome<Value> {
        let ask = ActorsAsk::Inspect { path: path.to_owned() };
        let shown = self.ask(name, Request::Actors { node: ActorsOf::Here, ask }).await?;
        Ok(shown["view"].clone())
    }

    /// The nodes by one node's quorum read.
    pub async fn nodes_seen_by(&self, name: &str) -> Outcome<Vec<NodeView>> {
        answers::nodes(self.ask(name, Request::NodeList { fresh: true }).await?)
    }

    /// One node as another sees it.
    pub async fn seen(&self, by: &str, name: &str) -> Outcome<Option<NodeView>> {
        Ok(self.nodes_seen_by(by).await?.into_iter().find(|node| node.name.as_str() == name))
    }

    /// The leader's name and the term, as one node knows them.
    pub async fn leader(&self, by: &str) -> Outcome<(String, u64)> {
        until("a leader", async || {
            let status = self.ask(by, Request::RaftStatus { fresh: false }).await?;
            let nodes = self.nodes_seen_by(by).await?;
            let leader = nodes.into_iter().find(|node| status["leader"] == node.id.to_string());
            Ok(leader.map(|node| (node.name.to_string(), status["term"].as_u64().unwrap_or(0))))
        })
        .await
    }

    /// Waits until every node is settled.
    pub async fn settled(&self) -> Outcome {
        until(
            "every node is settled",
            async || Ok(answers::all_settled(&self.nodes_seen_by("n1").await?).then_some(())),
        )
        .await
    }
}

/// [`muster_local_cluster::until`] for an operation that may fail meanwhile: a timeout shows the last failure.
pub async fn until<T>(what: &str, mut poll: impl AsyncFnMut() -> Outcome<Option<T>>) -> Outcome<T> {
    let mut last = None;
    let seen = muster_local_cluster::until(what, async || {
        let seen = poll().await;
        last = seen.as_ref().err().cloned();
        Ok(seen.unwrap_or(None))
    });
    seen.await.map_err(|late| last.unwrap_or(late))
}
