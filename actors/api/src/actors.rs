//! Inspects processes: this one, another manager through the mesh, a worker through the manager that hosts its session.
//! Answers while the inspected actor is busy or stuck, and without quorum.

use std::time::Duration;

use futures_util::future::join_all;
use muster_kernel::AdminAction;
use muster_messages::protocol::SessionsMsg;
use muster_messages::wire::{ActorsAsk, ActorsCall, ActorsOf, PeerCall, RunLogAsk, RunLogPart};
use muster_messages::{ActorActionView, ActorNode, ErrorBody, ErrorCode, ErrorMark, Name, NodeId, OfNodeView, millis};
use serde::Serialize;
use serde_json::{Value, json};

use crate::core::{Kind, kind_of, resolve};
use crate::ports::{ApiPorts, ManagerPorts};
use crate::reads::to_text;
use crate::service::{Asked, Service};
use crate::writes::as_text;

/// How long another process may take before it is reported as not answering.
const REMOTE_ACTORS_TIMEOUT: Duration = Duration::from_secs(3);

/// Whether an actor runs only on the leader.
fn is_leader_actor(path: &str) -> bool {
    path.strip_prefix("node/manager/leader").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A request about actors.
#[derive(Clone, Copy)]
pub(crate) struct ActorRequests<'a> {
    pub service: &'a Service,
    pub ask: &'a ActorsAsk,
}

impl ActorRequests<'_> {
    pub async fn answer(&self, asked: &Asked, of: &ActorsOf) -> Result<String, ErrorBody> {
        if let ActorsAsk::RunLog(_) = self.ask {
            // Not every build answers it: only a node with a run on record is asked.
            return Err(ErrorBody::invalid("ask for the log of a reconciler's run, not for that of a node"));
        }
        let manager = self.service.ports.manager.borrow().clone();
        let Some(manager) = manager else {
            let facts = (self.service.ports.facts)();
            let here = match of {
                ActorsOf::Here => true,
                ActorsOf::Node(node) => node == facts.name.as_str() || node == facts.id.as_str(),
                _ => false,
            };
            if here {
                return self.here().await;
            }
            if kind_of(&asked.request) == Kind::ActorsAdmin {
                return Err(ErrorBody::new(
                    ErrorCode::NotAManager,
                    "this node is not a manager; restart or crash other nodes' actors from a manager",
                ));
            }
            return self.service.relay.to_any_manager(asked, &facts.managers).await;
        };
        let node = match of {
            ActorsOf::Here => manager.node,
            ActorsOf::Leader => {
                let leader = manager.replica.borrow().raft.leader_node;
                leader.ok_or_else(|| self.service.no_quorum(&manager, "no leader is known"))?
            }
            ActorsOf::Id(id) => *id,
            ActorsOf::Node(node) => resolve(&manager.replica.borrow().tables, node)?.id,
            ActorsOf::All => return self.everywhere(&manager, asked.left()).await,
        };
        self.of_node(&manager, node, asked.left()).await
    }

    /// The tree of this process. An admin action runs at once: if the answer passes through an actor that the action
    /// ends, it may be lost.
    pub async fn here(&self) -> Result<String, ErrorBody> {
        self.inspect().await.map(|(answer, _admin_action)| answer)
    }

    /// The tree of this process: the answer, and the admin action to run once the answer has been sent.
    pub async fn inspect(&self) -> Result<(String, Option<AdminAction>), ErrorBody> {
        self.ask_tree().await.map_err(|error| self.with_location(error))
    }

    /// An answer of this process, as text.
    fn of_this_node<T: Serialize>(&self, answer: T) -> Result<String, ErrorBody> {
        let (id, name) = self.own_name();
        to_text(&OfNodeView { node: Some(id), node_name: Some(name), answer })
    }

    /// This node's name in the cluster, where it is known here; otherwise its own.
    fn own_name(&self) -> (NodeId, Name) {
        let facts = (self.service.ports.facts)();
        let manager = self.service.ports.manager.borrow().clone();
        let named = manager.and_then(|m| m.replica.borrow().tables.nodes.get(&facts.id).map(|n| n.name.clone()));
        (facts.id, named.unwrap_or(facts.name))
    }

    /// An actor that is not here may be elsewhere: the error names this node and the leader.
    fn with_location(&self, mut error: ErrorBody) -> ErrorBody {
        let path = match self.ask {
            ActorsAsk::Inspect { path } | ActorsAsk::Restart { path } | ActorsAsk::Crash { path, .. } => path.as_str(),
            ActorsAsk::Tree | ActorsAsk::RunLog(_) => return error,
        };
        if error.code != ErrorCode::NotFound {
            return error;
        }
        error.message = format!("on {}: {}", self.own_name().1, error.message);
        let manager = self.service.ports.manager.borrow().clone();
        if let Some(manager) = manager.filter(|_| is_leader_actor(path)) {
            let replica = manager.replica.borrow().clone();
            let leader = replica.raft.leader_node.filter(|leader| *leader != manager.node);
            if let Some(leader) = leader.and_then(|leader| replica.tables.nodes.get(&leader)) {
                error.message += &format!("; the leader is {} (--node leader)", leader.name);
            }
        }
        error
    }

    async fn ask_tree(&self) -> Result<(String, Option<AdminAction>), ErrorBody> {
        let ApiPorts { tree, crash_allowed, .. } = &self.service.ports;
        let (admin_action, path, crashed) = match self.ask {
            ActorsAsk::Tree => return Ok((self.written(&tree.snapshot().await).await?, None)),
            ActorsAsk::Inspect { path } => return Ok((self.written(&tree.inspect(path).await?).await?, None)),
            ActorsAsk::RunLog(ask) => return Ok((self.of_this_node(self.run_log(ask).await?)?, None)),
            ActorsAsk::Restart { path } => (tree.restart(path)?, path, None),
            ActorsAsk::Crash { .. } if !crash_allowed => {
                let text = "crashing actors is off in this daemon; set `[debug] crash = true` in its configuration";
                return Err(ErrorBody::forbidden(text));
            }
            ActorsAsk::Crash { path, how } => (tree.crash(path, *how)?, path, Some(*how)),
        };
        let view = ActorActionView { path: path.clone(), restarting: crashed.is_none(), crashed };
        Ok((self.of_this_node(view)?, Some(admin_action)))
    }

    /// Waits for its turn only now: other lists do not wait for actors that are slow to show themselves.
    async fn written(&self, root: &ActorNode) -> Result<String, ErrorBody> {
        let _turn = self.service.builders.turn().await;
        self.of_this_node(root)
    }

    async fn run_log(&self, ask: &RunLogAsk) -> Result<RunLogPart, ErrorBody> {
        match self.service.ports.run_logs.clone() {
            Some(logs) => logs.page(ask.clone()).await,
            None => Ok(RunLogPart::default()), // it runs no commands
        }
    }

    /// Asks a node by whichever way reaches it.
    pub async fn of_node(&self, manager: &ManagerPorts, node: NodeId, left: Duration) -> Result<String, ErrorBody> {
        if node == manager.node {
            return self.here().await;
        }
        let peers = (manager.peers)();
        if peers.contains(&node) {
            return self.over_mesh(manager, node, node, left).await;
        }
        // A worker: ask the host of its session. This manager first, then the others. A session whose connection is
        // dead undetected proves nothing: the node may have a newer one elsewhere. But an admin action may have been
        // carried out here.
        let reads = matches!(self.ask, ActorsAsk::Tree | ActorsAsk::Inspect { .. } | ActorsAsk::RunLog(_));
        let elsewhere = |error: &ErrorBody| match error.code {
            ErrorCode::NotFound => true,
            ErrorCode::Unreachable | ErrorCode::TimedOut => reads,
            _ => false,
        };
        let silent = match self.hosted(manager, node, left).await {
            Err(error) if elsewhere(&error) => Some(error).filter(|error| error.code == ErrorCode::TimedOut),
            done => return done,
        };
        for host in peers {
            match self.over_mesh(manager, host, node, left).await {
                Err(error) if error.code == ErrorCode::NotFound => {}
                // An admin action that was sent may have been carried out there.
                Err(error)
                    if error.code == ErrorCode::Unreachable && (reads || error.is_marked(ErrorMark::NotSent)) => {}
                done => return done,
            }
        }
        if let Some(silent) = silent {
            return Err(silent);
        }
        let replica = manager.replica.borrow().clone();
        let name = replica.tables.nodes.get(&node).map_or_else(|| node.to_string(), |n| format!("{} ({node})", n.name));
        let text = format!("{name} has no session with any reachable manager; is it down?");
        Err(ErrorBody::new(ErrorCode::Unreachable, text))
    }

    /// Asks a node in session with this manager.
    pub async fn hosted(&self, manager: &ManagerPorts, node: NodeId, left: Duration) -> Result<String, ErrorBody> {
        let left = left.min(REMOTE_ACTORS_TIMEOUT);
        let (deadline_ms, ask) = (millis(left), self.ask.clone());
        let make = |reply| SessionsMsg::AskNode { node, ask, deadline_ms, reply };
        manager.sessions.ask(left + Duration::from_millis(200), make).await.map_err(ErrorBody::from)?
    }

    async fn over_mesh(
        &self,
        manager: &ManagerPorts,
        to: NodeId,
        node: NodeId,
        left: Duration,
    ) -> Result<String, ErrorBody> {
        let call = PeerCall::Actors(ActorsCall { node, ask: self.ask.clone() });
        as_text((manager.call)(to, left.min(REMOTE_ACTORS_TIMEOUT), call).await?)
    }

    async fn everywhere(&self, manager: &ManagerPorts, left: Duration) -> Result<String, ErrorBody> {
        // Copied from a clone: the Raft member publishes no replica while one is borrowed.
        let nodes = manager.replica.borrow().tables.nodes.clone();
        let mut nodes: Vec<(NodeId, Name)> = nodes.iter().map(|(id, node)| (*id, node.name.clone())).collect();
        nodes.sort_unstable_by(|(_, a), (_, b)| a.cmp(b));
        let left = left.min(REMOTE_ACTORS_TIMEOUT);
        let mut items: Vec<Value> = Vec::with_capacity(nodes.len());
        // In groups: ten thousand nodes do not cause ten thousand requests at once.
        for group in nodes.chunks(64) {
            let asking = group.iter().map(|(node, _)| self.of_node(manager, *node, left));
            let answers: Vec<_> = group.iter().cloned().zip(join_all(asking).await).collect();
            let parsed = move || answers.into_iter().map(|(of, answer)| tree_of(&of, answer)).collect::<Vec<_>>();
            items.extend(self.service.builders.build(parsed).await?);
        }
        self.service.builders.build(move || json!({"items": items}).to_string()).await
    }
}

/// One node's answer among those of all nodes.
fn tree_of((node, name): &(NodeId, Name), answer: Result<String, ErrorBody>) -> Value {
    let parsed = |text: String| {
        serde_json::from_str::<Value>(&text).map_err(|e| ErrorBody::new(ErrorCode::Internal, e.to_string()))
    };
    match answer.and_then(parsed) {
        Ok(root) => json!({"node": node, "name": name, "root": root}),
        Err(error) => json!({"node": node, "name": name, "root": null, "error": error.to_json()["error"]}),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use muster_messages::Replica;

    use super::*;

    #[test]
    fn openapi_describes_every_field_of_an_actor() {
        let keys = |of: &Value| of.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
        let described = crate::tests::description();
        let node_json = serde_json::to_value(ActorNode::unknown("node")).unwrap();
        assert_eq!(keys(&described["components"]["schemas"]["Actor"]["properties"]), keys(&node_json));
    }

    /// Asks for the actors of a worker: this manager's session answers with `here`, managers 2 and 3 with `there`. Returns the
    /// answer, and how many of them were asked.
    async fn of_worker(
        ask: ActorsAsk,
        here: ErrorCode,
        there: Result<&str, ErrorBody>,
    ) -> (Result<String, ErrorBody>, usize) {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let asked = Arc::new(AtomicUsize::new(0));
        let replica = tokio::sync::watch::channel(Arc::<Replica>::default()).1;
        let runtime = crate::tests::runtime(replica, crate::tests::unreachable_actor());
        let runtime = Arc::try_unwrap(runtime).ok().expect("no other reference");
        let sessions = muster_kernel::Recipient::new(move |msg| {
            let SessionsMsg::AskNode { reply, .. } = msg;
            let _gone = reply.send(Err(ErrorBody::new(here, "no answer")));
            Ok(())
        });
        let (count, there) = (Arc::clone(&asked), there.map(|text| text.as_bytes().to_vec()));
        let call: crate::ports::PeerCalls = Arc::new(move |_, _, _| {
            count.fetch_add(1, Ordering::Relaxed);
            let there = there.clone();
            Box::pin(async move { there })
        });
        let peers = Arc::new(|| BTreeSet::from([2, 3].map(NodeId::from_entropy)));
        let manager = Arc::new(ManagerPorts { sessions, call, peers, ..runtime });
        let service = crate::tests::service(tokio::sync::watch::channel(Some(Arc::clone(&manager))).1);
        let requests = ActorRequests { service: &service, ask: &ask };
        let answer = requests.of_node(&manager, NodeId::from_entropy(9), REMOTE_ACTORS_TIMEOUT).await;
        (answer, asked.load(Ordering::Relaxed))
    }

    fn restart() -> ActorsAsk {
        ActorsAsk::Restart { path: "node/agent".to_owned() }
    }

    /// B1: a session whose connection is dead undetected proves nothing. The node is in session with another manager.
    #[tokio::test]
    async fn moved_worker_is_asked_through_its_current_host() {
        let answer = of_worker(ActorsAsk::Tree, ErrorCode::TimedOut, Ok("{}")).await;
        assert_eq!(answer, (Ok("{}".to_owned()), 1));
        let (answer, asked) = of_worker(restart(), ErrorCode::TimedOut, Ok("{}")).await;
        assert_eq!(
            (answer.map_err(|error| error.code), asked),
            (Err(ErrorCode::TimedOut), 0),
            "it may have been carried out"
        );
    }

    #[tokio::test]
    async fn admin_action_that_may_be_done_is_sent_to_no_other_host() {
        let lost = ErrorBody::new(ErrorCode::Unreachable, "the session ended");
        let (answer, asked) = of_worker(restart(), ErrorCode::NotFound, Err(lost.clone())).await;
        assert_eq!((answer, asked), (Err(lost.clone()), 1));
        let not_sent = lost.clone().marked(ErrorMark::NotSent);
        let (answer, asked) = of_worker(restart(), ErrorCode::NotFound, Err(not_sent)).await;
        assert_eq!((answer.map_err(|error| error.code), asked), (Err(ErrorCode::Unreachable), 2));
        assert_eq!(of_worker(ActorsAsk::Tree, ErrorCode::NotFound, Err(lost)).await.1, 2, "a read is safe to repeat");
    }
}
