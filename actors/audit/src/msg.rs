//! The messages of the actor: from the API and the router, its timer, and the thread that writes.

use muster_messages::protocol::{AuditMsg, Named};

use crate::file::Sink;

#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    #[strum(transparent)]
    Protocol(AuditMsg),
    Tick,
    /// A job ended. `None`: its thread panicked and lost the file.
    Ended {
        sink: Option<Box<dyn Sink>>,
        result: Result<(), String>,
    },
}
impl From<AuditMsg> for Msg {
    fn from(msg: AuditMsg) -> Self {
        Msg::Protocol(msg)
    }
}
