//! The replicated state that concerns agents: each node's record, and what all of them share.
//!
//! Owns        the newest tables that the host has seen, and what it has computed from them for all nodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::ordmap::DiffItem;
use muster_messages::wire::{AgentView, RootsOffer};
use muster_messages::{
    CertificateState, Incarnation, Liveness, NodeId, OfferedRoot, Revision, Role, Tables, Workloads,
};

use super::workloads::{Applying, Groups};

/// The part of a view that all agents share. Changes when a manager is added, removed or moves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shared {
    pub incarnation: Incarnation,
    pub managers: Vec<String>,
    pub root_pem: String,
    /// The roots, once there was a rotation.
    pub roots: Option<(Revision, Vec<OfferedRoot>)>,
    /// Of the whole cluster. Empty until there was one.
    pub workloads: Workloads,
    /// Not for the agents: limits what this host may send to the leader.
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
        let rotated = !tables.authorities.roots.is_empty();
        Self {
            incarnation: cluster.map(|c| c.incarnation).unwrap_or_default(),
            managers,
            root_pem: cluster.map(|c| c.root_cert_pem.clone()).unwrap_or_default(),
            roots: rotated.then(|| (tables.authorities.generation, tables.authorities.offer())),
            workloads: tables.workloads.clone(),
            feature_level: tables.feature_level(),
        }
    }

    /// Whether views of both show the same. Roots and workloads are sent beside a view.
    fn same_view(&self, other: &Shared) -> bool {
        let Self { incarnation, managers, root_pem, roots: _, workloads: _, feature_level } = self;
        (incarnation, managers, root_pem, feature_level)
            == (&other.incarnation, &other.managers, &other.root_pem, &other.feature_level)
    }
}

/// A node in one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeRecordState {
    Known {
        desired_role: Role,
        role: Role,
        granted: Revision,
        rotate: bool,
        serial: Option<String>,
        /// Other certificates on record, and whether each is of a root that does not sign any more: the node may hold one of
        /// these, if the answer with the newest was lost.
        older: Vec<(String, bool)>,
        liveness: Liveness,
        /// It is known to trust the present roots.
        trusts_roots: bool,
    },
    /// No record. Final only if the replica has applied the grant of the node's certificate.
    Absent,
    Blocked,
}

impl NodeRecordState {
    pub fn of(tables: &Tables, node: NodeId) -> Self {
        if tables.blocklist.contains_key(&node) && !tables.nodes.contains_key(&node) {
            return NodeRecordState::Absent; // removed, and blocked for that reason
        }
        if tables.blocklist.contains_key(&node) {
            return NodeRecordState::Blocked;
        }
        let Some(record) = tables.nodes.get(&node) else {
            return NodeRecordState::Absent;
        };
        let certificate = record.certificate.as_ref();
        let row = tables.certificates.get(&node);
        let older = row.into_iter().flat_map(|row| row.older());
        NodeRecordState::Known {
            desired_role: record.desired_role,
            role: record.role,
            granted: record.granted,
            rotate: certificate.is_some_and(|c| c.state == CertificateState::Rotate),
            serial: certificate.map(|c| c.serial.clone()),
            older: older.map(|issued| (issued.serial.clone(), tables.is_outdated(issued))).collect(),
            liveness: record.liveness,
            trusts_roots: tables.authorities.is_trusted_by(node),
        }
    }
}

/// What one session needs to know, as of one revision. Later ones replace earlier ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeUpdate {
    pub revision: Revision,
    pub record_state: NodeRecordState,
    pub shared: Arc<Shared>,
    /// The workloads that apply to the node. `None`: there was never one in the cluster, or the node has no record.
    pub workloads: Option<Applying>,
}

impl NodeUpdate {
    fn of(tables: &Tables, node: NodeId, shared: &Arc<Shared>, groups: &mut Groups) -> Self {
        let record = tables.nodes.get(&node).filter(|_| shared.workloads.changed > Revision(0));
        Self {
            revision: tables.revision,
            record_state: NodeRecordState::of(tables, node),
            shared: Arc::clone(shared),
            workloads: record.map(|record| groups.applying(&shared.workloads, &record.labels)),
        }
    }

    /// The full view for the agent, if the node is known. A node is asked to renew the certificate on record that it presented,
    /// also an older one; one of a former root in any case.
    pub fn view(&self, node: NodeId, presented: Option<&str>) -> Option<AgentView> {
        let NodeRecordState::Known { desired_role, role, granted, rotate, serial, older, .. } = &self.record_state
        else {
            return None;
        };
        let held = older.iter().find(|(serial, _)| Some(serial.as_str()) == presented);
        let rotate = *rotate || held.is_some_and(|(_, outdated)| *outdated);
        let held = held.map(|(serial, _)| serial).filter(|_| rotate);
        Some(AgentView {
            revision: self.revision,
            incarnation: self.shared.incarnation,
            node,
            desired_role: *desired_role,
            role: *role,
            granted: *granted,
            rotate,
            serial: held.or(serial.as_ref()).cloned(),
            managers: self.shared.managers.clone(),
            root_pem: self.shared.root_pem.clone(),
        })
    }

    /// The cluster's roots, for the agent of a known node.
    pub fn roots(&self) -> Option<RootsOffer> {
        let NodeRecordState::Known { trusts_roots, .. } = self.record_state else { return None };
        let (generation, roots) = self.shared.roots.clone()?;
        Some(RootsOffer { generation, recorded: trusts_roots, roots })
    }

    /// Whether an agent that was shown `other` learns nothing from this.
    pub fn same_for_agent(&self, other: &NodeUpdate) -> bool {
        let same_shared = Arc::ptr_eq(&self.shared, &other.shared) || self.shared.same_view(&other.shared);
        same_shared && visible_part(&self.record_state) == visible_part(&other.record_state)
    }
}

/// The part of a record that an agent sees: its own liveness is excluded.
fn visible_part(record_state: &NodeRecordState) -> Option<(Role, Role, Revision, bool, Option<&str>)> {
    match record_state {
        NodeRecordState::Known { desired_role, role, granted, rotate, serial, .. } => {
            Some((*desired_role, *role, *granted, *rotate, serial.as_deref()))
        }
        NodeRecordState::Absent | NodeRecordState::Blocked => None,
    }
}

/// The newest replica that the host has seen.
#[derive(Clone, Debug, Default)]
pub struct SeenState {
    tables: Tables,
    shared: Arc<Shared>,
    groups: Groups,
}

impl SeenState {
    pub fn revision(&self) -> Revision {
        self.tables.revision
    }
    pub fn shared(&self) -> &Shared {
        &self.shared
    }
    pub fn update_of(&mut self, node: NodeId) -> NodeUpdate {
        NodeUpdate::of(&self.tables, node, &self.shared, &mut self.groups)
    }

    /// Takes a newer replica. The nodes whose sessions must learn of it; `None`: all.
    pub fn replace(&mut self, tables: Tables) -> Option<BTreeSet<NodeId>> {
        let old = std::mem::replace(&mut self.tables, tables);
        let nodes = changed(&old, &self.tables);
        if shared_changed(&old, &self.tables, &nodes) {
            let shared = Shared::of(&self.tables);
            if shared != *self.shared {
                if shared.workloads != self.shared.workloads {
                    self.groups = Groups::of(&shared.workloads);
                }
                self.shared = Arc::new(shared);
                return None;
            }
        }
        Some(nodes)
    }
}

/// The nodes whose record or block differs between two replicas. The cost grows with the differences,
/// not the size.
pub(super) fn changed(old: &Tables, new: &Tables) -> BTreeSet<NodeId> {
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

/// Whether [`Shared`] may differ between two replicas, given the nodes that differ.
fn shared_changed(old: &Tables, new: &Tables, nodes: &BTreeSet<NodeId>) -> bool {
    let member = |node: &NodeId| new.members.values().any(|m| m.node == *node);
    let roots = |tables: &Tables| tables.authorities.generation;
    !old.members.ptr_eq(&new.members)
        || old.cluster != new.cluster
        || roots(old) != roots(new)
        || old.workloads.changed != new.workloads.changed
        || nodes.iter().any(member)
}

#[cfg(test)]
mod tests {
    use muster_messages::{Member, Name, NodeRecord, RaftId, WallTime};

    use super::super::testing::node;
    use super::*;

    #[test]
    fn sessions_learn_of_their_node_and_all_of_a_new_manager() {
        let mut seen = SeenState::default();
        let mut tables = Tables::default();
        let record = NodeRecord::new(node(1), Name::sanitized("n1"), Role::Worker, WallTime(0));
        tables.nodes.insert(node(1), Arc::new(record.clone()));
        assert_eq!(seen.replace(tables.clone()), Some(BTreeSet::from([node(1)])));
        assert_eq!(seen.replace(tables.clone()), Some(BTreeSet::new()), "nothing changed");
        tables.nodes.insert(node(1), Arc::new(NodeRecord { liveness: Liveness::Down, ..record }));
        assert_eq!(seen.replace(tables.clone()), Some(BTreeSet::from([node(1)])));
        let addr = "a:1".to_owned();
        tables.members.insert(RaftId(1), Member { raft_id: RaftId(1), node: node(2), addr, voter: true });
        assert_eq!((seen.replace(tables), seen.shared().managers.as_slice()), (None, ["a:1".to_owned()].as_slice()));
    }

    #[test]
    fn sessions_learn_of_entries_and_of_their_nodes_labels() {
        use muster_messages::{WorkloadEntry, WorkloadSelector};
        let mut seen = SeenState::default();
        let mut tables = Tables::default();
        let record = NodeRecord::new(node(1), Name::sanitized("n1"), Role::Worker, WallTime(0));
        tables.nodes.insert(node(1), Arc::new(record.clone()));
        seen.replace(tables.clone());
        assert_eq!(seen.update_of(node(1)).workloads, None, "there was never one");
        let zone: std::collections::BTreeMap<_, _> = [("zone".to_owned(), "a".to_owned())].into();
        let entry = WorkloadEntry::new("shop/web".parse().unwrap(), [WorkloadSelector::UnixUid(1)]);
        let entry = WorkloadEntry { node_labels: zone.clone(), ..entry };
        tables.workloads.entries.insert(entry.name.clone(), Arc::new(entry));
        tables.workloads.changed = Revision(7);
        assert_eq!(seen.replace(tables.clone()), None, "every session");
        let count = |seen: &mut SeenState, n| seen.update_of(node(n)).workloads.map(|applying| applying.len());
        assert_eq!((count(&mut seen, 1), count(&mut seen, 2)), (Some(0), None));
        tables.nodes.insert(node(1), Arc::new(NodeRecord { labels: zone, ..record }));
        assert_eq!(seen.replace(tables.clone()), Some(BTreeSet::from([node(1)])));
        assert_eq!(count(&mut seen, 1), Some(1));
        tables.workloads.entries.clear();
        tables.workloads.changed = Revision(9);
        assert_eq!((seen.replace(tables), count(&mut seen, 1)), (None, Some(0)));
    }
}
