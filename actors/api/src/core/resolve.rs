//! Resolves a node reference: an id, a unique prefix of one, or a unique name.
//!
//! Invariants  NODEREF-1  a text that is the name of one node and the prefix of another's id names neither. Nodes choose their
//!                      names: a node must not be promoted for having chosen the eight digits that a list shows for another.

use std::sync::Arc;

use muster_messages::wire::{ActorsOf, AutopilotRequest, Request, encode_stored};
use muster_messages::{ErrorBody, ErrorCode, MIN_ID_PREFIX, NodeId, NodeRecord, Tables, request_digest};

/// The shortest id prefix for irreversible operations: as many digits as lists of events show.
const MIN_IRREVERSIBLE_PREFIX: usize = 8;
/// The longest name of a node; ids are shorter.
const MAX_NODE_NAME_BYTES: usize = 63;

/// Whether this can be a node's name, id or id prefix.
pub fn check_node_ref(reference: &str) -> Result<(), ErrorBody> {
    let wrong = if reference.is_empty() {
        "it is empty".to_owned()
    } else if reference.len() > MAX_NODE_NAME_BYTES {
        format!("it has {} bytes, at most {MAX_NODE_NAME_BYTES} are allowed", reference.len())
    } else if reference.chars().any(|c| c.is_whitespace() || c.is_control()) {
        format!("{reference:?} holds white space or control characters")
    } else {
        return Ok(());
    };
    Err(ErrorBody::invalid(format!("not a valid node reference: {wrong}; give an id, an id prefix, or a name")))
}

/// The node that a request names, if it names one.
pub fn node_of(request: &Request) -> Option<&str> {
    match request {
        Request::NodeInspect { node, .. }
        | Request::NodeWatch { node, .. }
        | Request::NodeMayStop { node }
        | Request::Autopilot(
            AutopilotRequest::Prefer { node, .. }
            | AutopilotRequest::Drain { node, .. }
            | AutopilotRequest::Undrain { node },
        )
        | Request::SetRole { node, .. }
        | Request::NodeRemove { node, .. }
        | Request::NodeUpdate { node, .. }
        | Request::NodeRename { node, .. }
        | Request::CertRotate { node }
        | Request::CertRevoke { node }
        | Request::TransferLeader { to: Some(node) }
        | Request::Actors { node: ActorsOf::Node(node), .. } => Some(node),
        _ => None,
    }
}

/// Stands for what this replica shows of a node. Never 0, and the same in every process that shows the same.
pub fn node_digest(tables: &Tables, node: NodeId) -> u64 {
    let shown = (tables.nodes.get(&node).map(|record| &**record), tables.member_of(node));
    let bytes = encode_stored(&shown).unwrap_or_default();
    request_digest(&[&bytes]).max(1)
}

/// The node that `reference` names, for what cannot be undone: promotions, demotions, removals, new names. One wrong letter
/// in a short beginning of an id is another node.
pub fn resolve_for_irreversible<'a>(tables: &'a Tables, reference: &str) -> Result<&'a Arc<NodeRecord>, ErrorBody> {
    let node = resolve(tables, reference)?;
    if node.name.as_str() == reference || reference.len() >= MIN_IRREVERSIBLE_PREFIX {
        return Ok(node);
    }
    Err(ErrorBody::invalid(format!(
        "{reference:?} is a prefix of the id of {} ({}, {}); give its name or at least {MIN_IRREVERSIBLE_PREFIX} digits of its id",
        node.name, node.id, node.addr
    )))
}

/// The node that `reference` names.
pub fn resolve<'a>(tables: &'a Tables, reference: &str) -> Result<&'a Arc<NodeRecord>, ErrorBody> {
    check_node_ref(reference)?;
    if let Ok(id) = reference.parse()
        && let Some(node) = tables.nodes.get(&id)
    {
        return Ok(node);
    }
    let begins = |id: &NodeId| reference.len() >= MIN_ID_PREFIX && id.as_str().starts_with(reference);
    let means = |node: &&Arc<NodeRecord>| node.name.as_str() == reference || begins(&node.id);
    let matching: Vec<&Arc<NodeRecord>> = tables.nodes.values().filter(means).collect();
    match matching.as_slice() {
        [one] => Ok(one),
        [] => {
            let blocked = reference.parse().ok().and_then(|id| tables.blocklist.get(&id));
            let why = match blocked {
                Some(b) => format!("; it was removed at {} and is blocked until {}", b.blocked_at, b.expires_at),
                None if reference.len() < MIN_ID_PREFIX => {
                    format!("; an id prefix has at least {MIN_ID_PREFIX} digits (`muster node ls` lists the nodes)")
                }
                None => "; `muster node ls` lists them".to_owned(),
            };
            Err(ErrorBody::new(ErrorCode::NotFound, format!("no node {reference:?}{why}")))
        }
        many => {
            let ids: Vec<String> = many.iter().take(5).map(|n| format!("{} ({})", n.id, n.name)).collect();
            Err(ErrorBody::new(
                ErrorCode::Invalid,
                format!("{reference:?} matches {} nodes: {}; give the full id of one", many.len(), ids.join(", ")),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_messages::{Role, WallTime};

    use super::*;

    fn node(n: u128) -> NodeId {
        NodeId::from_entropy(n << 100)
    }

    fn tables(named: &[(NodeId, &str)]) -> Tables {
        let record = |(id, name): &(NodeId, &str)| {
            let record = NodeRecord::new(*id, name.parse().unwrap(), Role::Worker, WallTime(0));
            (*id, Arc::new(record))
        };
        Tables { nodes: named.iter().map(record).collect(), ..Tables::default() }
    }

    fn matching(tables: &Tables, reference: &str) -> Result<NodeId, ErrorCode> {
        resolve(tables, reference).map(|node| node.id).map_err(|error| error.code)
    }

    #[test]
    fn node_is_found_by_id_prefix_and_name() {
        let tables = tables(&[(node(1), "a"), (node(2), "web-1")]);
        for (id, name) in [(node(1), "a"), (node(2), "web-1")] {
            for reference in [name, id.as_str(), &id.as_str()[..8]] {
                assert_eq!(matching(&tables, reference), Ok(id), "{reference}");
            }
        }
        assert_eq!(matching(&tables, "web"), Err(ErrorCode::NotFound), "a name does not match by prefix");
        let short = resolve(&tables, &node(1).as_str()[..3]).unwrap_err();
        assert!(short.code == ErrorCode::NotFound && short.message.contains("at least 4"), "{short}");
    }

    #[test]
    fn irreversible_operation_needs_a_name_or_eight_digits() {
        let tables = tables(&[(node(1), "a"), (node(2), "web-1")]);
        let firm = |reference: &str| resolve_for_irreversible(&tables, reference).map(|node| node.id);
        let id = node(2);
        for reference in ["web-1", id.as_str(), &id.as_str()[..8]] {
            assert_eq!(firm(reference), Ok(id), "{reference}");
        }
        assert_eq!(firm("a"), Ok(node(1)), "short names match");
        let error = firm(&id.as_str()[..7]).unwrap_err();
        assert_eq!(error.code, ErrorCode::Invalid);
        assert!(error.message.contains("web-1") && error.message.contains("at least 8 digits"), "{error}");
    }

    /// A node whose name is what operators see in a list for another node.
    #[test]
    fn name_equal_to_another_nodes_id_prefix_is_ambiguous() {
        let victim = node(7);
        for digits in [4, 8, 24] {
            let shadow = &victim.as_str()[..digits];
            let tables = tables(&[(victim, "web-1"), (node(9), shadow)]);
            let error = resolve(&tables, shadow).unwrap_err();
            assert_eq!(error.code, ErrorCode::Invalid);
            assert!(error.message.contains(victim.as_str()) && error.message.contains(node(9).as_str()), "{error}");
            assert_eq!(matching(&tables, victim.as_str()), Ok(victim));
        }
        // Its whole id still names it.
        let tables = tables(&[(victim, "web-1"), (node(9), victim.as_str())]);
        assert_eq!(matching(&tables, victim.as_str()), Ok(victim));
    }
}
