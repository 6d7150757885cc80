//! Calls to the leader on behalf of an agent.

use std::time::Duration;

use muster_messages::protocol::LeaderCalls;
use muster_messages::wire::{AgentAnswer, MembershipReply, PeerCall, SignReply, SignedWorkload, WireError, decode};
use muster_messages::{ErrorBody, ErrorCode};
use tokio::time::timeout;

/// Calls now; the future is the answer.
pub(crate) fn ask_leader(
    leader: &dyn LeaderCalls,
    call: PeerCall,
    limit: Duration,
) -> impl Future<Output = Result<AgentAnswer, ErrorBody>> + Send + 'static {
    let read: fn(&[u8]) -> Result<AgentAnswer, WireError> = match call {
        PeerCall::SignNode { .. } => |bytes| decode::<SignReply>(bytes).map(AgentAnswer::Signed),
        PeerCall::ReportManager { .. } | PeerCall::TrustRoots { .. } => |_| Ok(AgentAnswer::Reported),
        PeerCall::SignWorkload { .. } => |bytes| decode::<SignedWorkload>(bytes).map(AgentAnswer::SignedWorkload),
        _ => |bytes| decode::<MembershipReply>(bytes).map(AgentAnswer::Membership),
    };
    let calling = leader.call(call);
    async move {
        match timeout(limit, calling).await {
            Ok(Ok(bytes)) => read(&bytes).map_err(|error| {
                ErrorBody::new(ErrorCode::Internal, format!("the leader's answer cannot be read: {error}"))
            }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(ErrorBody::new(ErrorCode::TimedOut, "the leader did not answer in time")),
        }
    }
}
