//! Messages to the agent, beside its host's frames.

use super::{Named, Reply};
use crate::model::ErrorBody;
use crate::wire::{ManagerReport, MembershipReply, MembershipRequest, Refusal, SignedWorkload, WorkloadRequest};

/// Messages of the agent.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum AgentMsg {
    /// Forwards the manager runtime's request for a Raft member id to the leader, through the agent's session. Answered
    /// with the leader's reply, or `unreachable` without a session or when it ends first. Lost: ask again. Repeated:
    /// forwarded again, see [`super::RoleManagerMsg::RequestMembership`]. Late: decided by the leader's applied state.
    RequestMembership { request: MembershipRequest, reply: Reply<Result<MembershipReply, ErrorBody>> },
    /// Forwards a report of the manager runtime to the leader, in the same way. Lost: report again. Repeated or late: see
    /// [`super::RoleManagerMsg::ReportManager`].
    ReportManager { report: ManagerReport, reply: Reply<Result<(), ErrorBody>> },
    /// Another manager refused this node's manager runtime. `blocked`, `removed`, `demoted` and `old_incarnation` have
    /// the effect that they have from the agent's own host; other reasons are only shown. `serial` is the certificate
    /// that was refused, where known. Lost: the next refusal counts. Repeated: same effect. Late: ignored once another
    /// certificate is in force.
    RefusedByPeer { refusal: Refusal, serial: Option<String> },
    /// Asks the leader, through the agent's session, for the certificate or a JWT of a workload. Answered with the leader's reply, or
    /// `unreachable` without a session or when it ends first. Lost: ask again. Repeated or late: see
    /// [`super::CertAuthorityMsg::SignWorkload`].
    SignWorkload { request: WorkloadRequest, reply: Reply<Result<SignedWorkload, ErrorBody>> },
}
