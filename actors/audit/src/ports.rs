//! What the code that wires the tree gives to the actor, and what it publishes.

use std::sync::Arc;

use muster_kernel::Slot;
use tokio::sync::watch;

use crate::core::{AuditState, Queue};
use crate::file::Sink;

/// The state that outlives an incarnation.
#[derive(Clone)]
pub struct AuditPorts {
    /// Creates the sink of the lines. Does not block.
    pub open: Arc<dyn Fn() -> Box<dyn Sink> + Send + Sync>,
    pub state: Arc<watch::Sender<AuditState>>,
    pub(crate) slot: Slot<Queue>,
}

impl AuditPorts {
    pub fn new(open: Arc<dyn Fn() -> Box<dyn Sink> + Send + Sync>) -> Self {
        Self { open, state: Arc::new(watch::Sender::new(AuditState::default())), slot: Slot::new() }
    }
}
