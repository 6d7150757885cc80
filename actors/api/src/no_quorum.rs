//! The error of a request that needs a quorum and has none: it names the managers that do not answer.

use std::time::Duration;

use muster_messages::{Details, ErrorBody, ErrorCode, NodeId, detail};

use crate::ports::ManagerPorts;
use crate::service::Service;

/// The managers whose silence may cost the quorum.
pub(crate) struct MissingManagers {
    pub ids: Vec<NodeId>,
    /// For people: name and address.
    pub names: Vec<String>,
}

impl MissingManagers {
    pub fn of(manager: &ManagerPorts) -> Self {
        let replica = manager.replica.borrow().clone();
        let ids = manager.source(&replica).missing();
        let name = |id: &NodeId| {
            replica.tables.nodes.get(id).map_or_else(|| id.to_string(), |n| format!("{} ({})", n.name, n.addr))
        };
        let names = ids.iter().map(name).collect();
        Self { ids, names }
    }
}

impl Service {
    /// An error that names the managers missing for a quorum.
    pub(crate) fn no_quorum(&self, manager: &ManagerPorts, why: &str) -> ErrorBody {
        self.no_quorum_without(&MissingManagers::of(manager), why)
    }

    pub(crate) fn no_quorum_without(&self, missing: &MissingManagers, why: &str) -> ErrorBody {
        let MissingManagers { ids, names } = missing;
        let sentence = if let Some(fault) = self.manager_runtime_fault() {
            format!("{why}: this node's manager runtime keeps failing ({fault}) and is being restarted")
        } else if names.is_empty() {
            format!("{why}: no leader at the moment; retry")
        } else {
            format!(
                "{why}: these managers do not answer: {}; retry while they restart, or start them or restore their network; only if \
                 they are gone for good, stop this one and start it with `musterd --force-new-cluster` to continue without them",
                names.join(", ")
            )
        };
        ErrorBody::new(ErrorCode::NoQuorum, sentence)
            .with_details(&Details::default().with(detail::MISSING, ids).with(detail::MISSING_NAMES, names))
            .retry_after(Duration::from_millis(500))
    }
}
