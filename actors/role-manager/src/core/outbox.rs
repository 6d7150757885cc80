//! Steps that were started and whose end is not known, or not seen in the replicated state yet.

use std::collections::BTreeMap;

use muster_messages::{Command, Moment, NodeId, Revision, SeatChange};
use serde::{Deserialize, Serialize};

use super::{Effect, Now, StepId};

/// A step under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outgoing {
    pub node: NodeId,
    pub sent: Sent,
    pub since: Now,
    /// Applied at this revision. It ends when the replicated state is seen to be that new: until then the facts are old.
    pub applied: Option<Revision>,
    /// Turned down because another membership change is in flight, perhaps this very one, proposed by an earlier
    /// incarnation: proposed again at this moment if it is still wanted.
    pub again_at: Option<Moment>,
}

/// What was sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Sent {
    /// Somebody's wish.
    Wish { command: Box<Command>, leaves: bool },
    /// A command of the role manager's own.
    Write(Box<Command>),
    /// A change of the Raft configuration.
    Seat(SeatChange),
    /// Leadership was offered to this node.
    Transfer { to: NodeId },
}

impl Outgoing {
    /// The effect that starts this step, or repeats it after a crash.
    pub(crate) fn effect(&self, step: StepId) -> Effect {
        match &self.sent {
            Sent::Wish { command, .. } | Sent::Write(command) => Effect::Propose { step, command: command.clone() },
            Sent::Seat(change) => Effect::ProposeSeat { step, change: change.clone() },
            Sent::Transfer { to } => Effect::TransferLeadership { step, to: *to },
        }
    }
    fn is_membership(&self) -> bool {
        matches!(self.sent, Sent::Seat(_) | Sent::Transfer { .. })
    }
}

/// All steps under way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outbox(pub BTreeMap<StepId, Outgoing>);

impl Outbox {
    /// ROLE-2: the one membership change (or transfer) under way, of all plans.
    pub(crate) fn membership(&self) -> Option<(StepId, &Outgoing)> {
        self.0.iter().find(|(_, o)| o.is_membership()).map(|(s, o)| (*s, o))
    }
    pub(crate) fn wish_for(&self, node: NodeId) -> bool {
        self.0.values().any(|o| o.node == node && matches!(o.sent, Sent::Wish { .. }))
    }
    pub(crate) fn write_for(&self, node: NodeId) -> bool {
        self.0.values().any(|o| o.node == node && matches!(o.sent, Sent::Write(_)))
    }
    /// Nodes that leave by wishes in flight.
    pub(crate) fn leaving(&self) -> impl Iterator<Item = NodeId> {
        (self.0.values()).filter(|o| matches!(o.sent, Sent::Wish { leaves: true, .. })).map(|o| o.node)
    }
}
