//! What the agent hears, beside its host's frames.

use super::{Named, Reply};
use crate::model::ErrorBody;
use crate::wire::{Refusal, SeatReply, SeatRequest};

/// Messages of the agent.
pub enum AgentMsg {
    /// The manager half asks for a Raft seat, through the session. `unreachable` while there is none.
    RequestSeat { request: SeatRequest, reply: Reply<Result<SeatReply, ErrorBody>> },
    /// Another manager refused this node's manager half (mesh, dial-back). `demoted`, `blocked` and `removed` count here as if
    /// the agent's own host had said them; others are ignored. `serial` is the certificate that was refused, where
    /// known. Lost: the next refusal. Late: ignored once another certificate is in force.
    RefusedByPeer { refusal: Refusal, serial: Option<String> },
}

impl Named for AgentMsg {
    fn name(&self) -> &'static str {
        match self {
            Self::RequestSeat { .. } => "request_seat",
            Self::RefusedByPeer { .. } => "refused_by_peer",
        }
    }
}
