//! What the role manager hears.

use super::{Named, Reply};
use crate::model::{ErrorBody, NodeId, Principal, RequestId, Role};
use crate::wire::{SeatReply, SeatRequest};

/// A wish that was written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WishAccepted {
    /// False: it was so already.
    pub changed: bool,
}

/// Messages of the role manager.
pub enum RoleManagerMsg {
    /// Asks that `node` hold `role`. Accepted means written to the replicated state, not yet in force.
    /// Lost: ask again. Repeated: `changed` is false. Late (an older wish after a newer one): it is a wish like any other;
    /// the last one written wins.
    SetRole {
        node: NodeId,
        role: Role,
        by: Principal,
        request: RequestId,
        reply: Reply<Result<WishAccepted, ErrorBody>>,
    },
    /// Asks that `node` be removed. Answered when seat, record and block are done, or refused.
    /// Lost: ask again; the wish is in the replicated state once accepted. Repeated: waits for the same removal.
    Remove { node: NodeId, force: bool, by: Principal, request: RequestId, reply: Reply<Result<(), ErrorBody>> },
    /// A node with a manager certificate asks for a seat. Repeated: the same seat while it holds it.
    RequestSeat { node: NodeId, request: SeatRequest, reply: Reply<Result<SeatReply, ErrorBody>> },
}

impl Named for RoleManagerMsg {
    fn name(&self) -> &'static str {
        match self {
            Self::SetRole { .. } => "set_role",
            Self::Remove { .. } => "remove",
            Self::RequestSeat { .. } => "request_seat",
        }
    }
}
