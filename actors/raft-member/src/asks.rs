//! Reply ports of the member's callers: messages as inputs of the core, and its answers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_kernel::Parked;
use muster_messages::protocol::{Applied, ProposeError, RaftMemberMsg, ReadError, Reply};
use muster_messages::{Moment, NodeId, RaftId, Replica};

use crate::core::{Answer, Input};

/// See the module.
#[derive(Default)]
pub(crate) struct Asks(Parked<Port>);

enum Port {
    Propose(Reply<Result<Applied, ProposeError>>),
    Read(Reply<Result<Arc<Replica>, ReadError>>),
    Transfer(Reply<Result<NodeId, ProposeError>>),
    Reachable(Reply<Result<BTreeSet<RaftId>, ProposeError>>),
}

impl Asks {
    /// The core's input for a message, whose reply port is parked.
    pub fn input(&mut self, now: Moment, msg: RaftMemberMsg) -> Input {
        let by = |ms: u64| now + Duration::from_millis(ms);
        match msg {
            RaftMemberMsg::Propose { command, deadline_ms, reply } => {
                Input::Propose { ask: self.0.park(Port::Propose(reply)), command, deadline: by(deadline_ms) }
            }
            RaftMemberMsg::ProposeMembership { change, confirm_within_ms, reply } => {
                let ask = self.0.park(Port::Propose(reply));
                Input::ProposeMembership { ask, change, confirm_by: confirm_within_ms.map(by) }
            }
            RaftMemberMsg::Read { deadline_ms, reply } => {
                Input::Read { ask: self.0.park(Port::Read(reply)), deadline: by(deadline_ms) }
            }
            RaftMemberMsg::CheckReachable { members, needed, deadline_ms, reply } => {
                let ask = self.0.park(Port::Reachable(reply));
                Input::CheckReachable { ask, members, needed, deadline: by(deadline_ms) }
            }
            RaftMemberMsg::FromPeer { node, peer_member, packets } => Input::Packets { node, peer_member, packets },
            RaftMemberMsg::SnapshotReceived { node, peer_member, packet, data } => {
                Input::SnapshotReceived { node, peer_member, packet, data }
            }
            RaftMemberMsg::SnapshotSent { to, index, outcome } => Input::SnapshotSent { to, index, outcome },
            RaftMemberMsg::SnapshotProgress { to, index } => Input::SnapshotProgress { to, index },
            RaftMemberMsg::PeerSession { node, up } => Input::PeerSession { node, up },
            RaftMemberMsg::Unreachable { to } => Input::Unreachable { to },
            RaftMemberMsg::LeaderGone { node } => Input::LeaderGone { node },
            RaftMemberMsg::TransferLeadership { to, reply } => {
                Input::TransferLeadership { ask: self.0.park(Port::Transfer(reply)), to }
            }
        }
    }

    /// The caller may have given up and closed its port.
    pub fn answer(&mut self, answer: Answer) {
        let (Answer::Proposed(ask, _) | Answer::Read(ask, _) | Answer::Reachable(ask, _) | Answer::Transferred(ask, _)) =
            &answer;
        match (self.0.take(*ask), answer) {
            (Some(Port::Propose(port)), Answer::Proposed(_, result)) => drop(port.send(result)),
            (Some(Port::Read(port)), Answer::Read(_, result)) => drop(port.send(result)),
            (Some(Port::Reachable(port)), Answer::Reachable(_, result)) => drop(port.send(result)),
            (Some(Port::Transfer(port)), Answer::Transferred(_, result)) => drop(port.send(result)),
            _ => {}
        }
    }
}
