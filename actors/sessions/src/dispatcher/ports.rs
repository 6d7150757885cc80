//! What the code that wires the tree gives to the dispatcher, and the watched value that it gets.

use std::sync::Arc;

use muster_kernel::Recipient;
use muster_messages::protocol::RaftMemberMsg;
use muster_messages::{NodeDoubts, Replica};
use tokio::sync::watch;

use crate::config::DispatcherConfig;

/// What the dispatcher gets from the code that wires the tree.
#[derive(Clone)]
pub struct DispatcherPorts {
    pub config: DispatcherConfig,
    pub replica: watch::Receiver<Arc<Replica>>,
    pub raft: Recipient<RaftMemberMsg>,
    /// What people should see beside the nodes' records.
    pub doubts: Arc<watch::Sender<Arc<NodeDoubts>>>,
}
