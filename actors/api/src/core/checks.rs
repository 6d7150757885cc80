//! Checks of requests before anything is proposed.

use muster_messages::{ErrorBody, NodeId, Tables};

/// Refuses a lifetime of zero, which is a mistake.
pub fn check_lifetime(ttl_ms: Option<u64>) -> Result<(), ErrorBody> {
    match ttl_ms {
        Some(0) => Err(ErrorBody::invalid("a lifetime of 0 expires at once; give a longer one or omit it")),
        _ => Ok(()),
    }
}

/// Refuses to remove labels that the node itself reports: the node would report them again.
pub fn check_removed_labels(tables: &Tables, id: NodeId, remove: &[String]) -> Result<(), ErrorBody> {
    let (Some(record), Some(reported)) = (tables.nodes.get(&id), tables.reported.get(&id)) else { return Ok(()) };
    let own = |key: &&String| reported.labels.contains_key(*key) && !record.labels.contains_key(*key);
    let Some(key) = remove.iter().find(own) else { return Ok(()) };
    Err(ErrorBody::invalid(format!(
        "label {key:?} is set by `--label` on {} itself and cannot be removed; a value set with --label-add overrides it",
        record.name
    )))
}
