//! The messages of the dispatcher, including those of its own timer and tasks.

use muster_messages::protocol::{DispatcherMsg, Named};

use crate::core::dispatcher::{BatchId, Outcome};

#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    #[strum(transparent)]
    Protocol(DispatcherMsg),
    Replica,
    Proposed {
        batch: BatchId,
        outcome: Outcome,
    },
    Wake,
}

impl From<DispatcherMsg> for Msg {
    fn from(msg: DispatcherMsg) -> Self {
        Msg::Protocol(msg)
    }
}
