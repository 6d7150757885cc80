//! Which node a person means: an id, a unique prefix of one, or a unique name.

use std::sync::Arc;

use muster_messages::wire::{ActorsOf, Request};
use muster_messages::{ErrorBody, ErrorCode, NodeRecord, Tables};

/// The longest name of a node; ids are shorter.
const LONGEST: usize = 63;

/// Whether this can be a node's name, its id or the beginning of one.
pub fn node_ref_is_sane(reference: &str) -> Result<(), ErrorBody> {
    let wrong = if reference.is_empty() {
        "it is empty".to_owned()
    } else if reference.len() > LONGEST {
        format!("it has {} bytes, at most {LONGEST} are allowed", reference.len())
    } else if reference.chars().any(|c| c.is_whitespace() || c.is_control()) {
        format!("{reference:?} holds white space or control characters")
    } else {
        return Ok(());
    };
    Err(ErrorBody::invalid(format!("no node can be called this: {wrong}; give an id, the beginning of one, or a name")))
}

/// The node that a request names, if it names one.
pub fn node_of(request: &Request) -> Option<&str> {
    match request {
        Request::NodeInspect { node, .. }
        | Request::SetRole { node, .. }
        | Request::NodeRemove { node, .. }
        | Request::NodeUpdate { node, .. }
        | Request::CertRotate { node }
        | Request::TransferLeader { to: Some(node) }
        | Request::Actors { node: ActorsOf::Node(node), .. } => Some(node),
        _ => None,
    }
}

/// The node that `reference` names.
pub fn resolve<'a>(tables: &'a Tables, reference: &str) -> Result<&'a Arc<NodeRecord>, ErrorBody> {
    node_ref_is_sane(reference)?;
    if let Ok(id) = reference.parse()
        && let Some(node) = tables.nodes.get(&id)
    {
        return Ok(node);
    }
    let mut named: Vec<&Arc<NodeRecord>> = tables.nodes.values().filter(|n| n.name.as_str() == reference).collect();
    if named.is_empty() {
        named = tables.nodes.values().filter(|n| n.id.as_str().starts_with(reference)).collect();
    }
    match named.as_slice() {
        [one] => Ok(one),
        [] => {
            let blocked = reference.parse().ok().and_then(|id| tables.blocklist.get(&id));
            let why = match blocked {
                Some(b) => format!("; it was removed at {} and is blocked until {}", b.blocked_at, b.expires_at),
                None => "; `muster node ls` lists them".to_owned(),
            };
            Err(ErrorBody::new(ErrorCode::NotFound, format!("no node {reference:?}{why}")))
        }
        many => {
            let ids: Vec<String> = many.iter().take(5).map(|n| n.id.to_string()).collect();
            Err(ErrorBody::new(
                ErrorCode::Invalid,
                format!("{reference:?} names {} nodes: {}; use an id", many.len(), ids.join(", ")),
            ))
        }
    }
}
