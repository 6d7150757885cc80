//! Prometheus: who may scrape, and which targets there are.

use std::collections::BTreeMap;

use muster_messages::{ErrorBody, ErrorCode, NodeId, Principal, Role, Tables};
use serde::Serialize;

use super::authorize::{NO_IDENTITY, Right, has_right};

/// SCRAPE-1. `own`: the node of this process. `tables`: the local replica, on a manager.
pub fn may_scrape(caller: &Principal, own: NodeId, tables: Option<&Tables>) -> Result<(), ErrorBody> {
    let is_manager =
        |id: &NodeId| tables.and_then(|tables| tables.nodes.get(id)).is_some_and(|node| node.role == Role::Manager);
    let allowed = match caller {
        Principal::Node(id) => *id == own || is_manager(id),
        other => has_right(other, Right::OperatorRead),
    };
    match caller {
        _ if allowed => Ok(()),
        Principal::Anonymous => Err(ErrorBody::new(ErrorCode::Unauthenticated, NO_IDENTITY)),
        _ => Err(ErrorBody::forbidden(format!(
            "{caller} may not read metrics of other nodes; use a read-only user (`muster user create NAME --read-only`)"
        ))),
    }
}

/// One entry of `http_sd_configs`.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct TargetGroup {
    targets: [String; 1],
    labels: BTreeMap<&'static str, String>,
}

/// Every node with an address, also one that is down: `up` must show it.
pub fn targets(tables: &Tables) -> Vec<TargetGroup> {
    let nodes = tables.nodes.values().filter(|node| !node.addr.is_empty());
    let group = |node: &std::sync::Arc<muster_messages::NodeRecord>| TargetGroup {
        targets: [node.addr.clone()],
        labels: BTreeMap::from([
            ("__meta_muster_node", node.id.to_string()),
            ("__meta_muster_node_name", node.name.to_string()),
            ("__meta_muster_role", node.role.to_string()),
            ("__meta_muster_release", node.release.clone()),
        ]),
    };
    nodes.map(group).collect()
}
