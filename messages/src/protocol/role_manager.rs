//! Messages to the role manager.

use super::{Named, Reply};
use crate::model::{ErrorBody, NodeId, Principal, RequestId, Role};
use crate::wire::{ManagerReport, MembershipReply, MembershipRequest};

/// A desired-state change that was written to the replicated state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleRequestAccepted {
    /// False: the node had that desired role already.
    pub changed: bool,
}

/// Messages of the role manager.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum RoleManagerMsg {
    /// Asks that `node` hold `role`. Accepted means written to the replicated state, not yet in force. Lost: ask again
    /// with the same request id. Repeated with it: the first answer, without another write. Repeated under another id:
    /// `changed` is false. Late (an older request after a newer one): the last one written wins. From an old leader: no
    /// request is accepted, because that takes a commit; a refusal may rest on its older state.
    SetRole {
        node: NodeId,
        role: Role,
        by: Principal,
        request: RequestId,
        reply: Reply<Result<RoleRequestAccepted, ErrorBody>>,
    },
    /// Asks that `node` be removed. Answered once it is no member, its record is deleted and its id is blocked, or
    /// refused. Lost: ask again with the same request id; an accepted removal proceeds without its caller. Repeated:
    /// waits for the same removal. Late, once the node is gone: `Ok` under the first request id, `not_found` under
    /// another. From an old leader: `Ok` only if the removal was applied before; a refusal may rest on its older state.
    Remove { node: NodeId, force: bool, by: Principal, request: RequestId, reply: Reply<Result<(), ErrorBody>> },
    /// A node with a manager certificate asks for a Raft member id. Answered within `membership_timeout`. Lost: the node
    /// asks again by itself. Repeated: the same id while the node holds it; an older request that still waits is
    /// answered `Wait`. Late: decided by the leader's applied state, never by the node's certificate. From an old leader:
    /// the answer may rest on its older state, and no membership changes; the node asks again until it is a member.
    RequestMembership { node: NodeId, request: MembershipRequest, reply: Reply<Result<MembershipReply, ErrorBody>> },
    /// A node reports whether its manager runtime can run. Answered at once; a report of a node that is not to be a
    /// manager is dropped. Lost: a failure is reported again every 5 s. Repeated or late: the newest report or
    /// membership request of the node counts; one of a former process is shown until the member has taken part for 20 s.
    /// From an old leader: noted there alone; the next leader learns of a failure when it is reported again.
    ReportManager { node: NodeId, report: ManagerReport, reply: Reply<Result<(), ErrorBody>> },
}
