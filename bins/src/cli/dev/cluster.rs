//! A cluster of processes on this machine, for `dev up`, `dev tour` and `bench`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use muster_client::{Client, Failure, Outcome, parse};
use muster_local_cluster::{Entry, Lifetime, LocalNode, NodeProcess, answers, free_address, pause};
use muster_messages::wire::Request;
use muster_messages::{ErrorCode, LockedView, Revision, Role, StatusView, TroubleKind};
use rustix::process::Signal;
use serde_json::Value;

use super::state::{NodeState, State};
use super::steps::nodes;

/// Called with each news of a node that is started.
pub type Report<'a> = &'a mut dyn FnMut(&NodeState, News);

/// News of a node that is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// It serves, so long after the start.
    Ready(Duration),
    /// Its disk is sealed: it waits for this version of the cluster's unlock key.
    Locked(Revision),
}

/// The time limit of a request to any node of the cluster, elections included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Validity of the join tokens of its nodes. Each token is used up long before, even on a busy machine.
const JOIN_TOKEN_TTL: Duration = Duration::from_secs(600);

/// How often ended processes are looked for: short enough for a person, and long enough to cost nothing in a cluster that runs
/// for days.
const END_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How often a node that is not ready is asked for the reason.
const ASK_INTERVAL: Duration = Duration::from_millis(200);

/// How long a start waits for a person who unlocks managers, at least.
const UNLOCK_TIMEOUT: Duration = Duration::from_secs(600);

/// The configuration of all nodes, in the cluster's folder.
const CONFIG_FILE: &str = "musterd.toml";

/// Errors of a node after which another node is tried.
const OTHER_NODE_ERRORS: [ErrorCode; 4] =
    [ErrorCode::Forbidden, ErrorCode::NotAManager, ErrorCode::Removed, ErrorCode::Blocked];

/// The processes and their recorded state.
pub struct LocalCluster {
    dir: PathBuf,
    /// Whether the daemons end with this process.
    lifetime: Lifetime,
    state: State,
    /// In the order of `state.nodes`.
    nodes: Vec<LocalNode>,
    /// A node stopped with SIGSTOP: its socket accepts connections but never answers, so it is skipped.
    frozen: Option<String>,
}

impl LocalCluster {
    /// A cluster in `dir`, resumed if one exists there. Starts no process.
    pub fn prepare(dir: &Path, state: State, lifetime: Lifetime) -> Outcome<Self> {
        Self::prepare_with(dir, state, lifetime, "")
    }

    /// The same, with more sections for the configuration of all nodes.
    pub fn prepare_with(dir: &Path, mut state: State, lifetime: Lifetime, sections: &str) -> Outcome<Self> {
        let config = "# Written by `muster dev`: lets `muster actors crash` and commands of reconcilers work on this cluster.\n\
            [debug]\ncrash = true\n\n[reconcilers]\ncommands = true\n";
        let config = format!("{config}{sections}");
        let failed = |e| Failure::io(format!("cannot use {}", dir.display()), &e);
        let write = || muster_pki::write_atomic(&std::path::absolute(dir.join(CONFIG_FILE))?, config.as_bytes());
        write().map_err(failed)?;
        state.detached = lifetime == Lifetime::Detached;
        state.write(dir)?;
        let nodes = state.nodes.iter().map(|node| local_node(dir, node)).collect();
        Ok(Self { dir: dir.to_owned(), lifetime, state, nodes, frozen: None })
    }

    /// The recorded state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The admin socket of a node.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.dir.join(name).join("muster.sock")
    }

    /// A client of one node.
    pub fn client(&self, name: &str) -> Client {
        Client::to_socket(self.socket(name), REQUEST_TIMEOUT)
    }

    /// Starts all nodes that do not run, and waits until each serves its role.
    pub async fn up(&mut self, report: Report<'_>) -> Outcome {
        if self.state.nodes.iter().any(|node| node.joined) {
            let ended = self.indices(|node| node.joined && node.running().is_none());
            self.start_all(&ended, &Entry::Resume, report).await?;
        } else {
            self.start_all(&[0], &Entry::Found, report).await?;
        }
        for role in [Role::Manager, Role::Worker] {
            let new = self.indices(|node| !node.joined && node.role == role);
            if !new.is_empty() {
                let entry = self.entry(role, new.len()).await?;
                self.start_all(&new, &entry, report).await?;
            }
        }
        Ok(())
    }

    /// Adds a node to a running cluster and waits until it serves; returns its name.
    pub async fn add(&mut self, role: Role) -> Outcome<String> {
        let name = format!("n{}", self.state.nodes.len() + 1);
        let node = NodeState { name: name.clone(), role, listen: free_address()?, joined: false, process: None };
        self.nodes.push(local_node(&self.dir, &node));
        self.state.nodes.push(node);
        let entry = self.entry(role, 1).await?;
        self.start_all(&[self.state.nodes.len() - 1], &entry, &mut |_, _| ()).await?;
        Ok(name)
    }

    /// Restarts a node that has ended.
    pub async fn restart(&mut self, name: &str) -> Outcome {
        let index = self.index(name)?;
        self.start_all(&[index], &Entry::Resume, &mut |_, _| ()).await
    }

    /// Starts a node that is expected to end by itself; returns its exit status.
    pub async fn restart_until_exit(&mut self, name: &str) -> Outcome<Option<i32>> {
        let index = self.index(name)?;
        self.launch(index, &Entry::Resume)?;
        match self.nodes[index].process()?.ready().await? {
            Ok(_) => Err(Failure::internal(format!("{name} became ready instead of ending"))),
            Err(status) => Ok(status.code()),
        }
    }

    /// An entry for exactly this many new nodes, valid for a short time.
    async fn entry(&self, role: Role, new_nodes: usize) -> Outcome<Entry> {
        let uses = u32::try_from(new_nodes).ok();
        let request = Request::TokenCreate { role, ttl_ms: Some(muster_messages::millis(JOIN_TOKEN_TTL)), uses };
        let token = answers::token(&self.ask(request).await?)?;
        // The current managers: roles change, and the first managers may be gone.
        let managers = nodes(self).await?.into_iter().filter(|node| node.role == Role::Manager);
        Ok(Entry::Join { seeds: managers.map(|node| node.addr).collect(), token })
    }

    async fn start_all(&mut self, indices: &[usize], entry: &Entry, report: Report<'_>) -> Outcome {
        let begun = Instant::now();
        for index in indices {
            self.launch(*index, entry)?;
        }
        let started = self.nodes.iter_mut().enumerate().filter(|(i, _)| indices.contains(i));
        let waits = started.filter_map(|(i, node)| Some((i, node.process().ok()?)));
        let (nodes, dir, resumed) = (&self.state.nodes, &self.dir, matches!(entry, Entry::Resume));
        let report = std::cell::RefCell::new(report);
        // When one of them was last seen locked.
        let locked_at = std::cell::Cell::new(None::<Instant>);
        let waits = waits.map(async |(i, process)| {
            let socket = dir.join(&nodes[i].name).join("muster.sock");
            let ready = async {
                loop {
                    let asked = Instant::now();
                    match process.ready().await {
                        // A person has to come, also for the nodes that wait for a manager.
                        Err(_) if begun.elapsed() < UNLOCK_TIMEOUT && locked_at.get().is_some_and(|at| at > asked) => {}
                        outcome => break outcome,
                    }
                }
            };
            let reported = std::cell::Cell::new(false);
            let is_locked = |version: Revision| {
                locked_at.set(Some(Instant::now()));
                if !reported.replace(true) {
                    report.borrow_mut()(&nodes[i], News::Locked(version));
                }
            };
            let outcome = tokio::select! {
                outcome = ready => outcome.map(|ready| ready.map_or_else(Start::Ended, |_| Start::Ready)),
                () = wait_until_removed(&socket, is_locked), if resumed => {
                    process.stop().await;
                    Ok(Start::Removed)
                }
            };
            if let Ok(Start::Ready) = outcome {
                report.borrow_mut()(&nodes[i], News::Ready(begun.elapsed()));
            }
            (i, outcome)
        });
        let outcomes = join_all(waits).await;
        for (index, outcome) in outcomes {
            self.started(index, matches!(entry, Entry::Resume), outcome)?;
        }
        self.state.write(&self.dir)
    }

    fn started(&mut self, index: usize, resumed: bool, outcome: Outcome<Start>) -> Outcome {
        let name = self.state.nodes[index].name.clone();
        let failure = match outcome {
            Ok(Start::Ready) => {
                self.state.nodes[index].joined = true;
                return Ok(());
            }
            // The node was removed from the cluster earlier.
            Ok(Start::Removed) => return Ok(()),
            Ok(Start::Ended(status)) if resumed && status.code() == Some(6) => return Ok(()),
            Ok(Start::Ended(status)) => match status.code() {
                Some(code) => format!("{name} ended with exit status {code} before it was ready"),
                None => format!("{name} was killed before it was ready"),
            },
            Err(failure) => format!("{name}: {failure}"),
        };
        Err(Failure::internal(format!("{failure}; its log ends with\n{}", self.log_tail(&name, 5))))
    }

    fn launch(&mut self, index: usize, entry: &Entry) -> Outcome {
        let program = std::env::current_exe().map_err(|e| Failure::io("cannot find this program's path", &e))?;
        let node = &mut self.nodes[index];
        let mut command = Command::new(program);
        command.arg("musterd").args(node.arguments()).arg("--config").arg(self.dir.join(CONFIG_FILE));
        entry.add_to(&mut command);
        self.state.nodes[index].process = Some(node.start(command, self.lifetime)?);
        self.state.write(&self.dir)
    }

    /// The last lines of a node's log.
    pub fn log_tail(&self, name: &str, lines: usize) -> String {
        let text = self.index(name).map(|index| self.nodes[index].log()).unwrap_or_default();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// Calls the running nodes in turn until one answers; retries while there is no leader.
    pub async fn ask(&self, request: Request) -> Outcome<Value> {
        let until = Instant::now() + REQUEST_TIMEOUT;
        loop {
            let mut last = Failure::new(ErrorCode::Unreachable, "no node of this cluster is running");
            let answers = |node: &&NodeState| node.running().is_some() && self.frozen.as_ref() != Some(&node.name);
            for node in self.state.nodes.iter().filter(answers) {
                match self.client(&node.name).call_within(request.clone(), Duration::from_secs(2)).await {
                    Ok(text) => return parse(&text),
                    // A worker redirects to a manager; without a leader no node can answer yet.
                    Err(failure)
                        if matches!(failure.exit, 3 | 5) || OTHER_NODE_ERRORS.iter().any(|code| failure.is(*code)) =>
                    {
                        last = failure;
                    }
                    Err(failure) => return Err(failure),
                }
            }
            if Instant::now() >= until {
                return Err(last);
            }
            pause().await;
        }
    }

    fn indices(&self, wanted: impl Fn(&NodeState) -> bool) -> Vec<usize> {
        (0..self.state.nodes.len()).filter(|index| wanted(&self.state.nodes[*index])).collect()
    }

    fn index(&self, name: &str) -> Outcome<usize> {
        let position = self.state.nodes.iter().position(|node| node.name == name);
        position.ok_or_else(|| Failure::internal(format!("no node {name} in this cluster")))
    }

    fn process(&mut self, name: &str) -> Outcome<&mut NodeProcess> {
        let index = self.index(name)?;
        self.nodes[index].process()
    }

    /// Sends a signal to a node's process.
    pub fn signal(&mut self, name: &str, signal: Signal) -> Outcome {
        self.process(name)?.signal(signal);
        Ok(())
    }

    /// Suspends a node until [`LocalCluster::thaw`].
    pub fn freeze(&mut self, name: &str) -> Outcome {
        self.frozen = Some(name.to_owned());
        self.signal(name, Signal::STOP)
    }

    /// Resumes the frozen node.
    pub fn thaw(&mut self) -> Outcome {
        self.frozen.take().map_or(Ok(()), |name| self.signal(&name, Signal::CONT))
    }

    /// Kills a node with kill -9 and waits until it has ended.
    pub async fn kill(&mut self, name: &str) -> Outcome {
        self.process(name)?.kill().await;
        Ok(())
    }

    /// Stops one node: TERM, then KILL.
    pub async fn stop_node(&mut self, name: &str) -> Outcome {
        self.process(name)?.stop().await;
        Ok(())
    }

    /// Waits until any node ends; returns its name and exit status. `None` if no node is running.
    pub async fn next_exit(&mut self) -> Option<(String, ExitStatus)> {
        loop {
            let mut running = self.nodes.iter_mut().filter(|node| node.process_id().is_some()).peekable();
            running.peek()?;
            for node in running {
                if let Ok(Some(status)) = node.try_exit() {
                    return Some((node.name.clone(), status));
                }
            }
            tokio::time::sleep(END_POLL_INTERVAL).await;
        }
    }

    /// Stops all nodes: TERM, then KILL. Returns the names of those that needed KILL.
    pub async fn stop(&mut self) -> Vec<String> {
        let stops = self.nodes.iter_mut().map(async |node| (!node.stop().await).then(|| node.name.clone()));
        let unresponsive = join_all(stops).await.into_iter().flatten().collect();
        self.clear_processes();
        unresponsive
    }

    /// Kills all nodes that it has started.
    pub async fn kill_all(&mut self) {
        join_all(self.nodes.iter_mut().map(LocalNode::kill)).await;
        self.clear_processes();
    }

    /// Nodes that others have started may still run.
    fn clear_processes(&mut self) {
        self.state.nodes.iter_mut().for_each(|node| node.process = node.running());
        // A failure is harmless: a dead process is recognised by its pid and start time.
        let _ = self.state.write(&self.dir);
    }
}

/// The outcome of a start.
enum Start {
    Ready,
    Ended(ExitStatus),
    /// The node learned from the cluster that it was removed.
    Removed,
}

/// Waits until a node reports that it was removed from its cluster. A node that was down during its removal learns of it only
/// now. It then serves its socket with that reason until it is stopped, and never becomes ready. Meanwhile calls `is_locked` whenever it
/// is, with the version of the key that it needs.
async fn wait_until_removed(socket: &Path, is_locked: impl Fn(Revision)) {
    loop {
        tokio::time::sleep(ASK_INTERVAL).await;
        let mut client = Client::to_socket(socket, Duration::from_secs(1));
        let answer = client.call(Request::Status { fresh: false }).await.and_then(|text| parse::<Value>(&text));
        match Starting::of(answer) {
            Starting::Removed => return,
            Starting::Locked(version) => is_locked(version),
            Starting::Other => {}
        }
    }
}

/// What a node that is not ready answers.
#[derive(Debug, PartialEq)]
enum Starting {
    Removed,
    Locked(Revision),
    Other,
}

impl Starting {
    fn of(status: Outcome<Value>) -> Self {
        let status = match status {
            Ok(status) => status,
            Err(failure) if failure.is(ErrorCode::Removed) || failure.is(ErrorCode::Blocked) => return Self::Removed,
            Err(_) => return Self::Other,
        };
        if let Ok(LockedView { locked, version, .. }) = serde_json::from_value(status.clone()) {
            return if locked { Self::Locked(version) } else { Self::Other };
        }
        let status = serde_json::from_value::<StatusView>(status);
        match status.map(|status| status.this.trouble_kind()) {
            Ok(Some(TroubleKind::Blocked | TroubleKind::Removed)) => Self::Removed,
            _ => Self::Other,
        }
    }
}

/// A node whose log file is in its data directory.
fn local_node(dir: &Path, state: &NodeState) -> LocalNode {
    let mut node = LocalNode::new(dir, &state.name, state.listen);
    node.log_file = node.folder.join("musterd.log");
    node
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn locked_and_removed_nodes_say_why_they_are_not_ready() {
        let locked =
            |locked: bool| json!({"locked": locked, "node": null, "version": 418, "since": null, "unattended": null});
        assert_eq!(Starting::of(Ok(locked(true))), Starting::Locked(Revision(418)));
        assert_eq!(Starting::of(Ok(locked(false))), Starting::Other, "it was unlocked a moment ago");
        for code in [ErrorCode::Removed, ErrorCode::Blocked] {
            assert_eq!(Starting::of(Err(Failure::new(code, "it was removed"))), Starting::Removed);
        }
        assert_eq!(Starting::of(Err(Failure::new(ErrorCode::Unreachable, "no socket"))), Starting::Other);
        assert_eq!(Starting::of(Ok(json!({}))), Starting::Other);
        let status = |trouble: &str| {
            json!({
                "cluster": {"id": "c", "name": "default", "incarnation": 1, "feature_level": 1}, "stale": false,
                "self": {"id": "0000000000000000000000001", "name": "n1", "role": "worker", "trouble": trouble},
                "raft": {"term": 0, "leader": null, "commit": 0, "applied": 0, "voters": [], "learners": []},
                "quorum": {"needed": 1, "reachable": 0, "missing": []},
                "nodes": {"total": 1, "managers": 0, "workers": 1, "ready": 0, "down": 1}, "pending": []
            })
        };
        for (trouble, expected) in [
            ("removed", Starting::Removed),
            ("blocked", Starting::Removed),
            ("disk_failed: removed", Starting::Other),
            ("removed_later: of a newer release", Starting::Other),
        ] {
            assert_eq!(Starting::of(Ok(status(trouble))), expected, "{trouble}");
        }
    }
}
