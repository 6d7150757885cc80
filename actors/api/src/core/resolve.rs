//! Which node a person means: an id, a unique prefix of one, or a unique name.

use std::sync::Arc;

use muster_messages::{ErrorBody, ErrorCode, NodeRecord, Tables};

/// The node that `reference` names.
pub fn resolve<'a>(tables: &'a Tables, reference: &str) -> Result<&'a Arc<NodeRecord>, ErrorBody> {
    if let Ok(id) = reference.parse()
        && let Some(node) = tables.nodes.get(&id)
    {
        return Ok(node);
    }
    let mut named: Vec<&Arc<NodeRecord>> = tables.nodes.values().filter(|n| n.name.as_str() == reference).collect();
    if named.is_empty() && !reference.is_empty() {
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
