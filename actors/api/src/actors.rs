//! Looking into processes: this one, another manager through the mesh, a worker through the manager that hosts its
//! session. Answers while the inspected actor is busy or stuck, and without quorum.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use muster_kernel::Poke;
use muster_messages::protocol::{MeshMsg, SessionsMsg};
use muster_messages::wire::{ActorsAsk, ActorsCall, ActorsOf, PeerCall};
use muster_messages::{ErrorBody, ErrorCode, Name, NodeId, Replica, millis};
use serde_json::{Value, json};

use crate::core::{Kind, kind_of, resolve};
use crate::ports::ManagerPorts;
use crate::reads::to_json;
use crate::service::{Asked, Service};

/// How long another process may take before it is shown as not answering.
const PATIENCE: Duration = Duration::from_secs(3);

impl Service {
    pub(crate) async fn actors(&self, asked: &Asked, of: &ActorsOf, ask: &ActorsAsk) -> Result<String, ErrorBody> {
        if *of == ActorsOf::Here {
            return self.actors_here(ask).await;
        }
        let manager = self.ports.manager.borrow().clone();
        let Some(manager) = manager else {
            let facts = (self.ports.facts)();
            if let ActorsOf::Node(node) = of
                && (node == facts.name.as_str() || node == facts.id.as_str())
            {
                return self.actors_here(ask).await;
            }
            if kind_of(&asked.request) == Kind::ActorsPoke {
                return Err(ErrorBody::new(
                    ErrorCode::NotAManager,
                    "this node is no manager: poke other nodes' actors from one",
                ));
            }
            return self.relay.to_some_manager(asked, &facts.managers).await;
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

    /// This process' own tree. Also answers what other managers ask. What is asked to be done is done at once: where the answer goes
    /// by way of an actor that is to fail, it may be lost.
    pub(crate) async fn actors_here(&self, ask: &ActorsAsk) -> Result<String, ErrorBody> {
        self.inspect(ask).await.map(|(answer, _poke)| answer)
    }

    /// This process' own tree: the answer, and what is to happen once that has left.
    pub async fn inspect(&self, ask: &ActorsAsk) -> Result<(String, Option<Poke>), ErrorBody> {
        let (answer, poke) = match ask {
            ActorsAsk::Tree => (to_json(&self.ports.tree.snapshot().await)?, None),
            ActorsAsk::Inspect { path } => (to_json(&self.ports.tree.inspect(path).await?)?, None),
            ActorsAsk::Restart { path } => {
                let poke = self.ports.tree.restart(path)?;
                (json!({"path": path, "restarting": true}), Some(poke))
            }
            ActorsAsk::Crash { path, how } => {
                if !self.ports.crash_allowed {
                    let text = "crashing actors is off in this daemon; set `[debug] crash = true` in its configuration";
                    return Err(ErrorBody::forbidden(text));
                }
                let poke = self.ports.tree.crash(path, *how)?;
                (json!({"path": path, "crashed": how}), Some(poke))
            }
        };
        Ok((answer.to_string(), poke))
    }

    /// Asks a node wherever it can be reached.
    pub(crate) async fn actors_of(
        &self,
        manager: &ManagerPorts,
        node: NodeId,
        ask: &ActorsAsk,
        left: Duration,
    ) -> Result<String, ErrorBody> {
        if node == manager.node {
            return self.actors_here(ask).await;
        }
        let peers = (manager.peers)();
        if peers.contains(&node) {
            return self.over_mesh(manager, node, node, ask, left).await;
        }
        // A worker: whoever hosts its session. Ours first, then the other managers.
        match self.hosted(manager, node, ask, left).await {
            Err(error) if error.code == ErrorCode::NotFound => {}
            done => return done,
        }
        for host in peers {
            match self.over_mesh(manager, host, node, ask, left.min(PATIENCE)).await {
                Err(error) if matches!(error.code, ErrorCode::NotFound | ErrorCode::Unreachable) => {}
                done => return done,
            }
        }
        Err(ErrorBody::new(
            ErrorCode::Unreachable,
            format!("node {node} has no session with any manager that answers; is it down?"),
        ))
    }

    /// Asks a node in session with this manager.
    pub(crate) async fn hosted(
        &self,
        manager: &ManagerPorts,
        node: NodeId,
        ask: &ActorsAsk,
        left: Duration,
    ) -> Result<String, ErrorBody> {
        let deadline_ms = millis(left.min(PATIENCE));
        let ask = ask.clone();
        let make = |reply| SessionsMsg::AskNode { node, ask, deadline_ms, reply };
        manager.sessions.ask(left.min(PATIENCE) + Duration::from_millis(200), make).await.map_err(ErrorBody::from)?
    }

    async fn over_mesh(
        &self,
        manager: &ManagerPorts,
        to: NodeId,
        node: NodeId,
        ask: &ActorsAsk,
        left: Duration,
    ) -> Result<String, ErrorBody> {
        let left = left.min(PATIENCE);
        let deadline_ms = millis(left);
        let call = Box::new(PeerCall::Actors(ActorsCall { node, ask: ask.clone() }));
        let make = |reply| MeshMsg::Call { to, deadline_ms, call, reply };
        let answer = manager.mesh.ask(left + Duration::from_millis(200), make).await.map_err(ErrorBody::from)??;
        String::from_utf8(answer).map_err(|_| ErrorBody::new(ErrorCode::Internal, "the answer is no text"))
    }

    async fn actors_everywhere(
        &self,
        manager: &Arc<ManagerPorts>,
        asked: &Asked,
        ask: &ActorsAsk,
    ) -> Result<String, ErrorBody> {
        let named =
            |replica: &Replica| replica.tables.nodes.iter().map(|(id, node)| (*id, node.name.clone())).collect();
        let nodes: Vec<(NodeId, Name)> = named(&manager.replica.borrow());
        let left = asked.left().min(PATIENCE);
        let mut items: Vec<Value> = Vec::with_capacity(nodes.len());
        // In groups, so that ten thousand nodes are not ten thousand questions at once.
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
    use serde_json::Value;

    #[test]
    fn the_description_of_an_actor_names_what_is_told_of_one() {
        let keys = |of: &Value| of.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
        let described: Value = serde_json::from_str(include_str!("openapi.json")).unwrap();
        let told = serde_json::to_value(ActorNode::unknown("node")).unwrap();
        assert_eq!(keys(&described["components"]["schemas"]["Actor"]["properties"]), keys(&told));
    }
}
