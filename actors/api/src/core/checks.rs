//! Checks of requests before anything is proposed.

use muster_messages::{ErrorBody, NodeId, Tables};

/// What ends as it begins is a mistake.
pub fn lives_a_while(ttl_ms: Option<u64>) -> Result<(), ErrorBody> {
    match ttl_ms {
        Some(0) => Err(ErrorBody::invalid("a lifetime of 0 is over at once; give a longer one, or none")),
        _ => Ok(()),
    }
}

/// Refuses to remove labels that the node itself reports: they would be there after it as before.
pub fn labels_are_the_operators(tables: &Tables, id: NodeId, remove: &[String]) -> Result<(), ErrorBody> {
    let (Some(record), Some(reported)) = (tables.nodes.get(&id), tables.reported.get(&id)) else { return Ok(()) };
    let own = |key: &&String| reported.labels.contains_key(*key) && !record.labels.contains_key(*key);
    let Some(key) = remove.iter().find(own) else { return Ok(()) };
    Err(ErrorBody::invalid(format!(
        "label {key:?} is reported by {} itself, which its `--label` decides; a value that you set with --label-add wins over it",
        record.name
    )))
}
