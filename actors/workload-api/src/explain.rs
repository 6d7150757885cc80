//! Why a process is the workloads that it is: for the person who wonders why a program is refused.

use muster_messages::{ErrorBody, ErrorCode, WorkloadExplainedView, WorkloadView};

use crate::attest::Peer;
use crate::core::{Needs, NotAttested, explain};

/// Compares a process of this node with the entries that apply to the node. Reads files, and may block; needs a runtime around it.
///
/// # Errors
/// There is no such process, nothing can be found out about it, or the entries are not known yet.
pub fn explain_process(view: &WorkloadView, pid: u32) -> Result<WorkloadExplainedView, ErrorBody> {
    if view.generation == 0 {
        let why = "this node has received no workloads from its cluster since it started; retry";
        return Err(ErrorBody::new(ErrorCode::NotKnownHereYet, why));
    }
    let facts = Peer::by_pid(pid).and_then(|peer| peer.facts(&Needs::ALL)).map_err(|why| match why {
        NotAttested::Ended => ErrorBody::new(ErrorCode::NotFound, format!("no process {pid} on this node")),
        NotAttested::Failed(why) => ErrorBody::new(ErrorCode::Internal, why),
    })?;
    Ok(explain(pid, &view.entries, &facts))
}
