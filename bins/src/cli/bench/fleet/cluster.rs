//! The managers of the fleet, and one worker whose role changes. Most of what is asked of them costs the same
//! however many nodes there are: the requests must not become what is measured.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use muster_client::{Failure, Outcome, parse};
use muster_local_cluster::{ProcessId, until_within};
use muster_messages::wire::Request;
use muster_messages::{
    ErrorCode, EventKind, EventView, EventsView, Liveness, Membership, NodeId, NodeView, RaftStatusView, Revision,
    Role, StatusView,
};
use rustix::process::Signal;
use serde::de::DeserializeOwned;

use crate::cli::dev::cluster::LocalCluster;
use crate::cli::dev::steps::write;

/// The pause between two questions whose answer the leader counts from all nodes.
const STATUS_INTERVAL: Duration = Duration::from_millis(100);

/// A daemon of the cluster.
#[derive(Clone, Debug)]
pub struct Daemon {
    pub name: String,
    pub node: NodeId,
    pub addr: String,
}

/// See the module.
pub struct Managers<'a> {
    pub cluster: &'a mut LocalCluster,
    pub managers: Vec<Daemon>,
    pub worker: Daemon,
    /// How long each step may take.
    limit: Duration,
}

/// The processor time and memory of a process.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub cpu: Duration,
    pub memory: u64,
}

impl Usage {
    pub fn of(process: Option<ProcessId>) -> Option<Self> {
        let process = process?;
        Some(Self { cpu: process.cpu_time()?, memory: process.memory()? })
    }

    pub fn own() -> Outcome<Self> {
        let own = Self::of(ProcessId::of(std::process::id()));
        own.ok_or_else(|| Failure::internal("/proc does not show this process"))
    }
}

impl<'a> Managers<'a> {
    /// Starts the cluster.
    pub async fn up(cluster: &'a mut LocalCluster, limit: Duration) -> Outcome<Self> {
        let started = tokio::time::timeout(limit, cluster.up(&mut |_, _| ())).await;
        started.unwrap_or_else(|_| Err(late("the managers are not ready", limit)))?;
        let names: Vec<_> = cluster.state().nodes.iter().map(|node| (node.name.clone(), node.role)).collect();
        let (mut managers, mut workers) = (Vec::new(), Vec::new());
        for (name, role) in names {
            let view: NodeView = asked(cluster, Request::NodeInspect { node: name.clone(), fresh: true }).await?;
            let daemon = Daemon { name, node: view.id, addr: view.addr };
            if role == Role::Manager { managers.push(daemon) } else { workers.push(daemon) }
        }
        let worker = workers.pop().ok_or_else(|| Failure::internal("the cluster has no worker"))?;
        Ok(Self { cluster, managers, worker, limit })
    }

    pub async fn status(&self) -> Outcome<StatusView> {
        asked(self.cluster, Request::Status { fresh: true }).await
    }

    pub async fn leader(&self) -> Outcome<Daemon> {
        until_within("a leader", self.limit, async || {
            let raft: RaftStatusView = asked(self.cluster, Request::RaftStatus { fresh: true }).await?;
            Ok(self.managers.iter().find(|manager| Some(manager.node) == raft.leader).cloned())
        })
        .await
    }

    /// Another manager than this one.
    pub fn other_than(&self, daemon: &Daemon) -> Daemon {
        let other = self.managers.iter().find(|manager| manager.node != daemon.node);
        other.expect("there are three managers").clone()
    }

    fn process(&self, daemon: &Daemon) -> Option<ProcessId> {
        self.cluster.state().nodes.iter().find(|node| node.name == daemon.name)?.running()
    }

    fn usage(&self, daemon: &Daemon) -> Outcome<Usage> {
        let usage = Usage::of(self.process(daemon));
        usage.ok_or_else(|| Failure::internal(format!("{} is not running", daemon.name)))
    }

    /// Of each manager, with its name.
    pub fn usages(&self) -> Outcome<Vec<(String, Usage)>> {
        self.managers.iter().map(|manager| Ok((manager.name.clone(), self.usage(manager)?))).collect()
    }

    /// Waits until so many nodes are shown ready.
    pub async fn nodes_are_ready(&self, nodes: usize) -> Outcome {
        let mut ready = 0;
        let waited = until_within("nodes shown ready", self.limit, async || {
            ready = self.status().await?.nodes.ready;
            if ready < nodes {
                tokio::time::sleep(STATUS_INTERVAL).await;
            }
            Ok((ready >= nodes).then_some(()))
        });
        let waited = waited.await;
        waited.map_err(|mut failure| {
            failure.message += &format!("; {ready} of {nodes} nodes are ready");
            failure
        })
    }

    /// Stops a manager in order, and waits for its end.
    pub async fn stop(&mut self, daemon: &Daemon) -> Outcome {
        self.cluster.stop_node(&daemon.name).await
    }

    /// Sends KILL; does not wait.
    pub fn send_kill(&mut self, daemon: &Daemon) -> Outcome {
        self.cluster.signal(&daemon.name, Signal::KILL)
    }

    /// Resolves once a write through this manager is applied.
    pub async fn writes_through(&self, daemon: &Daemon) -> Outcome<Duration> {
        let begun = Instant::now();
        let what = format!("a write through {}", daemon.name);
        until_within(&what, self.limit, async || Ok(write(self.cluster, &daemon.name, "fleet").await.ok())).await?;
        Ok(begun.elapsed())
    }

    /// Starts a manager that was killed or stopped, and waits until it votes and is reachable.
    pub async fn restart(&mut self, daemon: &Daemon) -> Outcome {
        self.cluster.kill(&daemon.name).await?; // waits for its end
        let started = tokio::time::timeout(self.limit, self.cluster.restart(&daemon.name)).await;
        started.unwrap_or_else(|_| Err(late(&format!("{} is not ready", daemon.name), self.limit)))?;
        let inspect = Request::NodeInspect { node: daemon.node.to_string(), fresh: true };
        until_within(&format!("{} votes again", daemon.name), self.limit, async || {
            let node: NodeView = asked(self.cluster, inspect.clone()).await?;
            let votes = node.membership == Membership::Voter && node.state == Liveness::Ready;
            Ok((votes && node.manager.is_some_and(|manager| manager.reachable)).then_some(()))
        })
        .await
    }

    /// Changes the worker's role, and returns when that is in force.
    pub async fn change_role(&self, role: Role) -> Outcome<Duration> {
        let mut client = self.cluster.client(&self.managers[0].name);
        let (begun, node) = (Instant::now(), self.worker.node.to_string());
        client.set_role(&node, role).await?;
        client.wait_until_settled(&node, role, begun + self.limit, |_| {}).await?;
        Ok(begun.elapsed())
    }

    /// The revision of the newest event.
    pub async fn revision(&self) -> Outcome<Revision> {
        let raft: RaftStatusView = asked(self.cluster, Request::RaftStatus { fresh: true }).await?;
        Ok(raft.applied)
    }

    /// How many nodes of the fleet were shown down since this revision. `None`: the leader no longer has all events since then.
    pub async fn shown_down(&self, since: Revision) -> Outcome<Option<usize>> {
        let via = self.leader().await?;
        let seen = self.cluster.client(&via.name).events(since).await?;
        let seen: EventsView<EventView> =
            serde_json::to_value(&seen).and_then(serde_json::from_value).map_err(Failure::internal)?;
        let daemons: Vec<NodeId> = self.managers.iter().chain([&self.worker]).map(|daemon| daemon.node).collect();
        Ok(nodes_down(&seen, &daemons))
    }
}

/// How many nodes beside the daemons were shown down. `None`: events are missing, and one of them may have shown another node down.
fn nodes_down(seen: &EventsView<EventView>, daemons: &[NodeId]) -> Option<usize> {
    let down =
        seen.items.iter().filter(|event| event.kind == EventKind::Liveness && event.after.as_deref() == Some("down"));
    let nodes: BTreeSet<NodeId> = down.filter_map(|event| event.node).filter(|node| !daemons.contains(node)).collect();
    seen.incomplete_before.is_none().then_some(nodes.len())
}

fn late(what: &str, limit: Duration) -> Failure {
    Failure::new(ErrorCode::TimedOut, format!("{what} after {limit:?}"))
}

async fn asked<T: DeserializeOwned>(cluster: &LocalCluster, request: Request) -> Outcome<T> {
    parse(&cluster.ask(request).await?.to_string())
}

#[cfg(test)]
mod tests {
    use muster_messages::{Principal, PrincipalView, WallTime};

    use super::*;

    #[test]
    fn nodes_shown_down_are_unknown_if_events_are_missing() {
        let (daemon, agent) = (NodeId::from_entropy(1 << 64), NodeId::from_entropy(2 << 64));
        let event = |kind: EventKind, node, after: &str| EventView {
            revision: Revision(8),
            at: WallTime::from_unix_secs(0),
            kind: kind.into(),
            node: Some(node),
            by: PrincipalView::from(&Principal::Cluster),
            reason: String::new(),
            before: None,
            after: Some(after.to_owned()),
            request: None,
        };
        let items = vec![
            event(EventKind::Liveness, daemon, "down"),
            event(EventKind::Liveness, agent, "down"),
            event(EventKind::Liveness, agent, "ready"),
            event(EventKind::Liveness, agent, "down"),
            event(EventKind::Role, agent, "down"),
        ];
        let rest = serde_json::Map::new();
        let mut seen = EventsView { items, revision: Revision(9), more: false, incomplete_before: None, rest };
        assert_eq!(nodes_down(&seen, &[daemon]), Some(1));
        seen.incomplete_before = Some(Revision(7));
        assert_eq!(nodes_down(&seen, &[daemon]), None);
    }
}
