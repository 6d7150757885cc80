//! Reports of managers' keyrings: recorded by the leader, each for the manager that sent it and for no other.

use std::time::Duration;

use muster_api::ManagerPorts;
use muster_kernel::Clock;
use muster_messages::protocol::RaftMemberMsg;
use muster_messages::{AutolockChange, Change, Command, ErrorBody, NodeId, Principal, Seal, millis};

/// Idempotent: the report follows from the sender's disk.
pub async fn record(ports: &ManagerPorts, node: NodeId, seal: Seal, left: Duration) -> Result<(), ErrorBody> {
    let change = Change::Autolock(Box::new(AutolockChange::Sealed { node, seal }));
    let command = Command::idempotent(Clock.wall(), Principal::Cluster, "keyring reported").change(change);
    let (deadline_ms, command) = (millis(left), Box::new(command));
    let make = |reply| RaftMemberMsg::Propose { command, deadline_ms, reply };
    let proposed = ports.raft.ask(left, make).await.map_err(super::as_no_leader)?;
    proposed.map(drop).map_err(ErrorBody::from)
}
