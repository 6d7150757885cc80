//! The messages of the blocklist: from its own tasks and timers.

use std::sync::Arc;

use muster_messages::protocol::Named;
use muster_messages::{Replica, Revision};
use tokio::sync::oneshot;

/// Inputs; the actor sends all of them to itself.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    /// A newer replica; `seen` is dropped once it was processed.
    NewReplica {
        replica: Arc<Replica>,
        seen: oneshot::Sender<()>,
    },
    Retry,
    Tick,
    Swept(Option<Revision>),
}
