//! Why a process is the workloads that it is: for the person who wonders why a program is refused.

use muster_messages::{ErrorBody, ErrorCode, WorkloadView};

use crate::attest::Peer;
use crate::core::{Explained, Needs, NotAttested, explain};

/// Compares a process of this node with the entries that apply to the node.
///
/// # Errors
/// There is no such process, nothing can be found out about it, or the entries are not known yet.
pub async fn explain_process(view: WorkloadView, pid: u32) -> Result<Explained, ErrorBody> {
    if view.generation == 0 {
        let why = "this node has not heard from its cluster since it started; retry";
        return Err(ErrorBody::new(ErrorCode::NotKnownHereYet, why));
    }
    let error = |why| match why {
        NotAttested::Ended => ErrorBody::new(ErrorCode::NotFound, format!("no process {pid} on this node")),
        NotAttested::Failed(why) => ErrorBody::new(ErrorCode::Internal, why),
    };
    let peer = Peer::by_pid(pid).map_err(error)?;
    let look = tokio::task::spawn_blocking(move || peer.facts(Needs::ALL));
    let facts = look.await.map_err(|panicked| ErrorBody::new(ErrorCode::Internal, panicked.to_string()))?;
    Ok(explain(&view.entries, &facts.map_err(error)?))
}
