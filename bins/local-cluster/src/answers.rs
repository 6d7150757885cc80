//! Reads the answers of nodes, for programs that start clusters.

use muster_client::{Failure, Outcome, Progress, progress};
use muster_messages::{NodeListView, NodeView};
use serde_json::Value;

/// The nodes in the answer to `Request::NodeList`.
pub fn nodes(answer: Value) -> Outcome<Vec<NodeView>> {
    let list: NodeListView = serde_json::from_value(answer).map_err(Failure::internal)?;
    Ok(list.items)
}

/// The token in the answer to `Request::TokenShow`.
pub fn token(answer: &Value) -> Outcome<String> {
    let token = answer["token"].as_str().ok_or_else(|| Failure::internal("the answer contains no token"))?;
    Ok(token.to_owned())
}

/// The leader's name.
pub fn leader(nodes: &[NodeView]) -> Option<String> {
    let leads = |node: &&NodeView| node.manager.as_ref().is_some_and(|manager| manager.leader);
    nodes.iter().find(leads).map(|node| node.name.to_string())
}

/// Whether every node is settled: desired role, role, certificate and membership agree.
pub fn all_settled(nodes: &[NodeView]) -> bool {
    nodes.iter().all(|node| progress(node, node.desired_role) == Progress::Settled)
}
