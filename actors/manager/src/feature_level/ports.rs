//! What the actor is wired to, and what it sends to itself.

use std::sync::{Arc, Mutex};

use muster_messages::protocol::Named;
use muster_messages::{ErrorBody, NodeId, Replica};
use muster_raft_member::Incompatible;
use muster_reconciler::{Cluster, Reconcilers};
use tokio::sync::watch;

use crate::ReportIncompatible;

/// Ports of the actor.
#[derive(Clone)]
pub struct LevelPorts {
    pub me: NodeId,
    /// The highest level that this build supports.
    pub level: u32,
    pub cluster: Arc<dyn Cluster>,
    pub replicas: watch::Receiver<Arc<Replica>>,
    /// The Raft member was sent something it cannot read.
    pub incompatible: watch::Receiver<Option<Incompatible>>,
    /// This manager's candidacy for raising the level, while it is a candidate.
    pub raising: Arc<Mutex<Option<Reconcilers>>>,
    pub report_incompatible: ReportIncompatible,
}

/// Inputs of the actor. It sends all of them to itself.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    /// The local replica knows this node: it is one of the managers.
    Known,
    Register,
    Registered(Result<(), ErrorBody>),
    Member,
    Announce,
}
