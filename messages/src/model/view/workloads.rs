//! Workloads as they are shown.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::model::{Name, NodeId, Revision, Tables, WallTime, WorkloadEntry, WorkloadName, WorkloadSelector, millis};

/// An item of `muster workload ls`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadEntryView {
    /// `NAMESPACE/NAME`.
    pub name: WorkloadName,
    pub spiffe_id: String,
    /// A process must match all of them.
    pub selectors: BTreeSet<WorkloadSelector>,
    /// A node must have all of these labels, given by the operator.
    pub node_labels: BTreeMap<String, String>,
    /// The lifetime of a certificate.
    pub ttl_ms: u64,
    pub dns: Vec<String>,
    pub hint: Option<String>,
    pub jwt: bool,
    pub created_by: String,
    pub revision: Revision,
}

impl WorkloadEntryView {
    pub fn of(entry: &WorkloadEntry, tables: &Tables) -> Self {
        let WorkloadEntry { name, selectors, node_labels, ttl, dns, hint, jwt, created_by, revision } = entry.clone();
        let spiffe_id = tables.cluster.as_ref().map(|cluster| name.spiffe_id(cluster.id)).unwrap_or_default();
        Self { name, spiffe_id, selectors, node_labels, ttl_ms: millis(ttl), dns, hint, jwt, created_by, revision }
    }
}

/// `muster workload set`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadSetView {
    #[serde(flatten)]
    pub entry: WorkloadEntryView,
    /// `false`: it was so already.
    pub changed: bool,
}

/// `muster workload show`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadShowView {
    #[serde(flatten)]
    pub entry: WorkloadEntryView,
    /// Nodes that hold a certificate, as far as the present leader signed it.
    pub holders: Vec<WorkloadHolderView>,
}

/// A node that holds a certificate of a workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadHolderView {
    pub node: NodeId,
    /// `None`: the node was removed.
    pub name: Option<Name>,
    /// When its newest certificate ends.
    pub until: WallTime,
}

/// `muster workload rm`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadRemovedView {
    pub name: WorkloadName,
    pub removed: bool,
    /// Its processes lose their certificates at once; a copy that one of them has taken out ends by then.
    pub certificates_until: WallTime,
}

/// `muster workload explain`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadExplainedView {
    pub pid: u32,
    /// What the node found out about the process, as selectors.
    pub selectors: BTreeSet<WorkloadSelector>,
    /// What it could not find out: selectors of these forms match nothing.
    pub unknown: Vec<UnknownSelectorView>,
    /// The workloads that the process is; the first one is its default.
    pub matches: Vec<WorkloadName>,
    /// The workloads of this node that it is not.
    pub others: Vec<WorkloadMismatchView>,
}

/// A form of selectors that matches nothing, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnknownSelectorView {
    pub selector: String,
    pub why: String,
}

/// A workload that a process is not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadMismatchView {
    pub name: WorkloadName,
    /// The first selector that does not match.
    pub selector: Option<WorkloadSelector>,
}
