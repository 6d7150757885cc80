//! Inspects processes: this one, another manager through the mesh, a worker through the manager that hosts its session.
//! Answers while the inspected actor is busy or stuck, and without quorum.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use muster_kernel::AdminAction;
use muster_messages::protocol::{MeshMsg, SessionsMsg};
use muster_messages::wire::{ActorsAsk, ActorsCall, ActorsOf, PeerCall};
use muster_messages::{ActorActionView, ErrorBody, ErrorCode, Name, NodeId, OfNodeView, Replica, millis};
use serde::Serialize;
use serde_json::{Value, json};

use crate::core::{Kind, kind_of, resolve};
use crate::ports::ManagerPorts;
use crate::reads::to_text;
use crate::service::{Asked, Service};

/// How long another process may take before it is reported as not answering.
const REMOTE_ACTORS_TIMEOUT: Duration = Duration::from_secs(3);

/// Whether an actor runs only on the leader.
fn is_leader_actor(path: &str) -> bool {
    path.strip_prefix("node/manager/leader").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Service {
    pub(crate) async fn actors(&self, asked: &Asked, of: &ActorsOf, ask: &ActorsAsk) -> Result<String, ErrorBody> {
        if *of == ActorsOf::Here {
            return self.local_actors(ask).await;
        }
        let manager = self.ports.manager.borrow().clone();
        let Some(manager) = manager else {
            let facts = (self.ports.facts)();
            if let ActorsOf::Node(node) = of
                && (node == facts.name.as_str() || node == facts.id.as_str())
            {
                return self.local_actors(ask).await;
            }
            if kind_of(&asked.request) == Kind::ActorsAdmin {
                return Err(ErrorBody::new(
                    ErrorCode::NotAManager,
                    "this node is not a manager; restart or crash other nodes' actors from a manager",
                ));
            }
            return self.relay.to_any_manager(asked, &facts.managers).await;
        };
        let node = match of {
            ActorsOf::Here => manager.node,
            ActorsOf::Leader => {
                let leader = manager.replica.borrow().raft.leader_node;
                leader.ok_or_else(|| self.no_quorum(&manager, "no leader is known"))?
            }
            ActorsOf::Id(id) => *id,
            ActorsOf::Node(node) => resolve(&manager.replica.borrow().tables, node)?.id,
            ActorsOf::All => return self.actors_everywhere(&manager, asked, ask).await,
        };
        self.actors_of(&manager, node, ask, asked.left()).await
    }

    /// The tree of this process; also answers other managers' requests. An admin action runs at once: if the answer
    /// passes through an actor that the action ends, it may be lost.
    pub(crate) async fn local_actors(&self, ask: &ActorsAsk) -> Result<String, ErrorBody> {
        self.inspect(ask).await.map(|(answer, _admin_action)| answer)
    }

    /// The tree of this process: the answer, and the admin action to run once the answer has been sent.
    pub async fn inspect(&self, ask: &ActorsAsk) -> Result<(String, Option<AdminAction>), ErrorBody> {
        self.ask_tree(ask).await.map_err(|error| self.with_location(error, ask))
    }

    /// An answer of this process, as text.
    fn of_this_node<T: Serialize>(&self, answer: T) -> Result<String, ErrorBody> {
        let (id, name) = self.own_name();
        to_text(&OfNodeView { node: Some(id), node_name: Some(name), answer })
    }

    /// This node's name in the cluster, where it is known here; otherwise its own.
    fn own_name(&self) -> (NodeId, Name) {
        let facts = (self.ports.facts)();
        let manager = self.ports.manager.borrow().clone();
        let named = manager.and_then(|m| m.replica.borrow().tables.nodes.get(&facts.id).map(|n| n.name.clone()));
        (facts.id, named.unwrap_or(facts.name))
    }

    /// An actor that is not here may be elsewhere: the error names this node and the leader.
    fn with_location(&self, mut error: ErrorBody, ask: &ActorsAsk) -> ErrorBody {
        let path = match ask {
            ActorsAsk::Inspect { path } | ActorsAsk::Restart { path } | ActorsAsk::Crash { path, .. } => path.as_str(),
            ActorsAsk::Tree => return error,
        };
        if error.code != ErrorCode::NotFound {
            return error;
        }
        error.message = format!("on {}: {}", self.own_name().1, error.message);
        let manager = self.ports.manager.borrow().clone();
        if let Some(manager) = manager.filter(|_| is_leader_actor(path)) {
            let replica = manager.replica.borrow().clone();
            let leader = replica.raft.leader_node.filter(|leader| *leader != manager.node);
            if let Some(leader) = leader.and_then(|leader| replica.tables.nodes.get(&leader)) {
                error.message += &format!("; the leader is {} (--node leader)", leader.name);
            }
        }
        error
    }

    async fn ask_tree(&self, ask: &ActorsAsk) -> Result<(String, Option<AdminAction>), ErrorBody> {
        Ok(match ask {
            ActorsAsk::Tree => (self.of_this_node(self.ports.tree.snapshot().await)?, None),
            ActorsAsk::Inspect { path } => (self.of_this_node(self.ports.tree.inspect(path).await?)?, None),
            ActorsAsk::Restart { path } => {
                let admin_action = self.ports.tree.restart(path)?;
                let view = ActorActionView { path: path.clone(), restarting: true, crashed: None };
                (self.of_this_node(view)?, Some(admin_action))
            }
            ActorsAsk::Crash { path, how } => {
                if !self.ports.crash_allowed {
                    let text = "crashing actors is off in this daemon; set `[debug] crash = true` in its configuration";
                    return Err(ErrorBody::forbidden(text));
                }
                let admin_action = self.ports.tree.crash(path, *how)?;
                let view = ActorActionView { path: path.clone(), restarting: false, crashed: Some(*how) };
                (self.of_this_node(view)?, Some(admin_action))
            }
        })
    }

    /// Asks a node by whichever way reaches it.
    pub(crate) async fn actors_of(
        &self,
        manager: &ManagerPorts,
        node: NodeId,
        ask: &ActorsAsk,
        left: Duration,
    ) -> Result<String, ErrorBody> {
        if node == manager.node {
            return self.local_actors(ask).await;
        }
        let peers = (manager.peers)();
        if peers.contains(&node) {
            return self.over_mesh(manager, node, node, ask, left).await;
        }
        // A worker: ask the host of its session. This manager first, then the others. A session whose connection is
        // dead undetected proves nothing: the node may have a newer one elsewhere. But an admin action may have been
        // carried out here.
        let reads = matches!(ask, ActorsAsk::Tree | ActorsAsk::Inspect { .. });
        let elsewhere = |error: &ErrorBody| match error.code {
            ErrorCode::NotFound => true,
            ErrorCode::Unreachable | ErrorCode::TimedOut => reads,
            _ => false,
        };
        let silent = match self.ask_hosted_node(manager, node, ask, left).await {
            Err(error) if elsewhere(&error) => Some(error).filter(|error| error.code == ErrorCode::TimedOut),
            done => return done,
        };
        for host in peers {
            match self.over_mesh(manager, host, node, ask, left.min(REMOTE_ACTORS_TIMEOUT)).await {
                Err(error) if matches!(error.code, ErrorCode::NotFound | ErrorCode::Unreachable) => {}
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
    pub(crate) async fn ask_hosted_node(
        &self,
        manager: &ManagerPorts,
        node: NodeId,
        ask: &ActorsAsk,
        left: Duration,
    ) -> Result<String, ErrorBody> {
        let deadline_ms = millis(left.min(REMOTE_ACTORS_TIMEOUT));
        let ask = ask.clone();
        let make = |reply| SessionsMsg::AskNode { node, ask, deadline_ms, reply };
        manager
            .sessions
            .ask(left.min(REMOTE_ACTORS_TIMEOUT) + Duration::from_millis(200), make)
            .await
            .map_err(ErrorBody::from)?
    }

    async fn over_mesh(
        &self,
        manager: &ManagerPorts,
        to: NodeId,
        node: NodeId,
        ask: &ActorsAsk,
        left: Duration,
    ) -> Result<String, ErrorBody> {
        let left = left.min(REMOTE_ACTORS_TIMEOUT);
        let deadline_ms = millis(left);
        let call = Box::new(PeerCall::Actors(ActorsCall { node, ask: ask.clone() }));
        let make = |reply| MeshMsg::Call { to, deadline_ms, call, reply };
        let answer = manager.mesh.ask(left + Duration::from_millis(200), make).await.map_err(ErrorBody::from)??;
        String::from_utf8(answer).map_err(|_| ErrorBody::new(ErrorCode::Internal, "the answer is not UTF-8 text"))
    }

    async fn actors_everywhere(
        &self,
        manager: &Arc<ManagerPorts>,
        asked: &Asked,
        ask: &ActorsAsk,
    ) -> Result<String, ErrorBody> {
        let named =
            |replica: &Replica| replica.tables.nodes.iter().map(|(id, node)| (*id, node.name.clone())).collect();
        let mut nodes: Vec<(NodeId, Name)> = named(&manager.replica.borrow());
        nodes.sort_unstable_by(|(_, a), (_, b)| a.cmp(b));
        let left = asked.left().min(REMOTE_ACTORS_TIMEOUT);
        let mut items: Vec<Value> = Vec::with_capacity(nodes.len());
        // In groups: ten thousand nodes do not cause ten thousand requests at once.
        for group in nodes.chunks(64) {
            let asking = group.iter().map(|(node, _)| self.actors_of(manager, *node, ask, left));
            for ((node, name), answer) in group.iter().zip(join_all(asking).await) {
                items.push(
                    match answer.and_then(|text| {
                        serde_json::from_str::<Value>(&text)
                            .map_err(|e| ErrorBody::new(ErrorCode::Internal, e.to_string()))
                    }) {
                        Ok(root) => json!({"node": node, "name": name, "root": root}),
                        Err(error) => {
                            json!({"node": node, "name": name, "root": null, "error": error.to_json()["error"]})
                        }
                    },
                );
            }
        }
        Ok(json!({"items": items}).to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use muster_messages::ActorNode;

    use super::*;

    #[test]
    fn openapi_describes_every_field_of_an_actor() {
        let keys = |of: &Value| of.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
        let described: Value = serde_json::from_str(include_str!("openapi.json")).unwrap();
        let node_json = serde_json::to_value(ActorNode::unknown("node")).unwrap();
        assert_eq!(keys(&described["components"]["schemas"]["Actor"]["properties"]), keys(&node_json));
    }

    /// B1: a session whose connection is dead undetected proves nothing. The node is in session with manager 2.
    #[tokio::test]
    async fn moved_worker_is_asked_through_its_current_host() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let asked = Arc::new(AtomicUsize::new(0));
        let (worker, other) = (NodeId::from_entropy(9), NodeId::from_entropy(2));
        let replica = tokio::sync::watch::channel(Arc::<Replica>::default()).1;
        let runtime = crate::tests::runtime(replica, crate::tests::unreachable_actor());
        let runtime = Arc::try_unwrap(runtime).ok().expect("no other reference");
        let sessions = muster_kernel::Recipient::new(|msg| {
            let SessionsMsg::AskNode { reply, .. } = msg;
            let _gone = reply.send(Err(ErrorBody::new(ErrorCode::TimedOut, "no answer")));
            Ok(())
        });
        let count = Arc::clone(&asked);
        let mesh = muster_kernel::Recipient::new(move |msg| {
            if let MeshMsg::Call { to, reply, .. } = msg {
                assert_eq!(to, other);
                count.fetch_add(1, Ordering::Relaxed);
                let _gone = reply.send(Ok(b"{}".to_vec()));
            }
            Ok(())
        });
        let peers = Arc::new(move || BTreeSet::from([other]));
        let manager = Arc::new(ManagerPorts { sessions, mesh, peers, ..runtime });
        let service = crate::tests::service(tokio::sync::watch::channel(Some(Arc::clone(&manager))).1);
        let answer = service.actors_of(&manager, worker, &ActorsAsk::Tree, REMOTE_ACTORS_TIMEOUT).await;
        assert_eq!((answer, asked.load(Ordering::Relaxed)), (Ok("{}".to_owned()), 1));
        let crash = ActorsAsk::Restart { path: "node/agent".to_owned() };
        let answer = service.actors_of(&manager, worker, &crash, REMOTE_ACTORS_TIMEOUT).await;
        assert_eq!(answer.map_err(|error| error.code), Err(ErrorCode::TimedOut), "it may have been carried out");
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }
}
