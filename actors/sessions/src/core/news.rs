//! What of the replicated state concerns agents: each node's own standing, and what all of them share.

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::ordmap::DiffItem;
use muster_messages::wire::AgentView;
use muster_messages::{CertificateState, Incarnation, Liveness, NodeId, Revision, Role, Tables};

/// What every agent is told alike. Changes when a manager comes, goes or moves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shared {
    pub incarnation: Incarnation,
    pub managers: Vec<String>,
    pub root_pem: String,
    /// Not for the agents: what this host may tell the leader.
    pub feature_level: u32,
}

impl Shared {
    pub fn of(tables: &Tables) -> Self {
        let cluster = tables.cluster.as_ref();
        let mut managers: Vec<String> = tables
            .members
            .values()
            .map(|member| {
                let record = tables.nodes.get(&member.node);
                let own = record.map(|r| r.addr.clone());
                own.filter(|a| !a.is_empty()).unwrap_or_else(|| member.addr.clone())
            })
            .filter(|addr| !addr.is_empty())
            .collect();
        managers.sort();
        managers.dedup();
        Self {
            incarnation: cluster.map(|c| c.incarnation).unwrap_or_default(),
            managers,
            root_pem: cluster.map(|c| c.root_cert_pem.clone()).unwrap_or_default(),
            feature_level: tables.feature_level(),
        }
    }
}

/// A node in one copy of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    Known {
        desired_role: Role,
        role: Role,
        granted: Revision,
        rotate: bool,
        serial: Option<String>,
        liveness: Liveness,
    },
    /// No such record. Final only if the copy has applied the grant of the node's certificate.
    Absent,
    Blocked,
}

impl Standing {
    pub fn of(tables: &Tables, node: NodeId) -> Self {
        if tables.blocklist.contains_key(&node) && !tables.nodes.contains_key(&node) {
            return Standing::Absent; // removed: that is why it is blocked
        }
        if tables.blocklist.contains_key(&node) {
            return Standing::Blocked;
        }
        let Some(record) = tables.nodes.get(&node) else {
            return Standing::Absent;
        };
        let certificate = record.certificate.as_ref();
        Standing::Known {
            desired_role: record.desired_role,
            role: record.role,
            granted: record.granted,
            rotate: certificate.is_some_and(|c| c.state == CertificateState::Rotate),
            serial: certificate.map(|c| c.serial.clone()),
            liveness: record.liveness,
        }
    }
}

/// What one session needs to know, as of one revision. Later ones replace earlier ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    pub revision: Revision,
    pub standing: Standing,
    pub shared: Arc<Shared>,
}

impl News {
    pub fn of(tables: &Tables, node: NodeId, shared: &Arc<Shared>) -> Self {
        Self { revision: tables.revision, standing: Standing::of(tables, node), shared: Arc::clone(shared) }
    }

    /// The full view for the agent, if the node is known.
    pub fn view(&self, node: NodeId) -> Option<AgentView> {
        let Standing::Known { desired_role, role, granted, rotate, serial, .. } = &self.standing else {
            return None;
        };
        Some(AgentView {
            revision: self.revision,
            incarnation: self.shared.incarnation,
            node,
            desired_role: *desired_role,
            role: *role,
            granted: *granted,
            rotate: *rotate,
            serial: serial.clone(),
            managers: self.shared.managers.clone(),
            root_pem: self.shared.root_pem.clone(),
        })
    }

    /// Whether an agent that was shown `other` learns nothing from this.
    pub fn same_for_agent(&self, other: &News) -> bool {
        let same_shared = Arc::ptr_eq(&self.shared, &other.shared) || self.shared == other.shared;
        same_shared && told(&self.standing) == told(&other.standing)
    }
}

/// The part of a standing that an agent is told: its own liveness is not.
fn told(standing: &Standing) -> Option<(Role, Role, Revision, bool, Option<&str>)> {
    match standing {
        Standing::Known { desired_role, role, granted, rotate, serial, .. } => {
            Some((*desired_role, *role, *granted, *rotate, serial.as_deref()))
        }
        Standing::Absent | Standing::Blocked => None,
    }
}

/// The nodes whose record or block differs between two copies. Costs what differs, not what there is.
pub fn changed(old: &Tables, new: &Tables) -> BTreeSet<NodeId> {
    let mut nodes = BTreeSet::new();
    if !old.nodes.ptr_eq(&new.nodes) {
        for item in old.nodes.diff(&new.nodes) {
            match item {
                DiffItem::Add(id, _) | DiffItem::Remove(id, _) => nodes.insert(*id),
                DiffItem::Update { new: (id, _), .. } => nodes.insert(*id),
            };
        }
    }
    if !old.blocklist.ptr_eq(&new.blocklist) {
        for item in old.blocklist.diff(&new.blocklist) {
            match item {
                DiffItem::Add(id, _) | DiffItem::Remove(id, _) => nodes.insert(*id),
                DiffItem::Update { new: (id, _), .. } => nodes.insert(*id),
            };
        }
    }
    nodes
}

/// Whether [`Shared`] may differ between two copies, given the nodes that differ.
pub fn shared_changed(old: &Tables, new: &Tables, nodes: &BTreeSet<NodeId>) -> bool {
    let member = |node: &NodeId| new.members.values().any(|m| m.node == *node);
    !old.members.ptr_eq(&new.members) || old.cluster != new.cluster || nodes.iter().any(member)
}
