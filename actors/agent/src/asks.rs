//! Reply ports of requests to the leader.

use muster_messages::protocol::Reply;
use muster_messages::wire::{AgentAnswer, MembershipReply, SignedWorkload};
use muster_messages::{ErrorBody, ErrorCode};

/// Who waits for an answer of the leader.
pub(crate) enum Port {
    Membership(Reply<Result<MembershipReply, ErrorBody>>),
    Report(Reply<Result<(), ErrorBody>>),
    Workload(Reply<Result<SignedWorkload, ErrorBody>>),
}

impl Port {
    pub fn answer(self, result: Result<AgentAnswer, ErrorBody>) {
        let mixed_up = || ErrorBody::new(ErrorCode::Internal, "the answer is of another kind than the question");
        match (self, result) {
            (Self::Membership(port), Ok(AgentAnswer::Membership(reply))) => drop(port.send(Ok(reply))),
            (Self::Report(port), Ok(AgentAnswer::Reported)) => drop(port.send(Ok(()))),
            (Self::Workload(port), Ok(AgentAnswer::SignedWorkload(signed))) => drop(port.send(Ok(signed))),
            (Self::Membership(port), result) => drop(port.send(Err(result.err().unwrap_or_else(mixed_up)))),
            (Self::Report(port), result) => drop(port.send(Err(result.err().unwrap_or_else(mixed_up)))),
            (Self::Workload(port), result) => drop(port.send(Err(result.err().unwrap_or_else(mixed_up)))),
        }
    }
}
