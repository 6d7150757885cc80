//! Reports of managers' keyrings: recorded by the leader.

use std::time::Duration;

use muster_api::ManagerPorts;
use muster_kernel::Clock;
use muster_messages::protocol::RaftMemberMsg;
use muster_messages::{ErrorBody, NodeId, Seal, millis};

use super::answers::as_no_leader;
use super::core::seals::command_of;

/// Idempotent: the report follows from the sender's disk.
pub async fn record(ports: &ManagerPorts, node: NodeId, seal: Seal, left: Duration) -> Result<(), ErrorBody> {
    let command = Box::new(command_of(&ports.replica.borrow().tables, Clock.wall(), node, seal)?);
    let deadline_ms = millis(left);
    let make = |reply| RaftMemberMsg::Propose { command, deadline_ms, reply };
    let proposed = ports.raft.ask(left, make).await.map_err(as_no_leader)?;
    proposed.map(drop).map_err(ErrorBody::from)
}
