//! The live actor trees of several nodes, as answers.

use serde::{Deserialize, Serialize};

use super::{ActorNode, Name, NodeId};

/// An answer about actors, and the node that gave it. Earlier releases do not report the node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OfNodeView<T> {
    pub node: Option<NodeId>,
    pub node_name: Option<Name>,
    #[serde(flatten)]
    pub answer: T,
}

/// The actors of one node, of all nodes: an item of `muster actors --all`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct NodeActorsView {
    pub node: NodeId,
    pub name: Option<Name>,
    /// `None`: the node did not answer.
    pub root: Option<ActorNode>,
    /// Why the node did not answer. `None`: it did.
    pub error: Option<NodeErrorView>,
}

/// Why a node did not answer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct NodeErrorView {
    pub message: String,
}
