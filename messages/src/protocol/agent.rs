//! What the agent hears, beside its host's frames.

use super::{Named, Reply};
use crate::model::ErrorBody;
use crate::wire::{SeatReply, SeatRequest};

/// Messages of the agent.
pub enum AgentMsg {
    /// The manager half asks for a Raft seat, through the session. `unreachable` while there is none.
    RequestSeat {
        request: SeatRequest,
        reply: Reply<Result<SeatReply, ErrorBody>>,
    },
}

impl Named for AgentMsg {
    fn name(&self) -> &'static str {
        match self {
            Self::RequestSeat { .. } => "request_seat",
        }
    }
}
