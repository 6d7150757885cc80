//! Steps that were started and whose outcome is unknown or not yet seen in the replicated state.
//!
//! Owns        these steps. An applied one ends with the state that contains it; the next incarnation repeats the others.

use std::collections::BTreeMap;

use muster_messages::{Command, MembershipChange, Moment, NodeId, Revision};
use serde::{Deserialize, Serialize};

use super::{Config, Effect, Now, StepId};

/// A step in flight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outgoing {
    /// The node that it is for.
    pub node: NodeId,
    /// What was sent.
    pub sent: Sent,
    /// Since when it has been in flight.
    pub since: Now,
    /// Applied at this revision. The step ends once the observed state is that new: until then the facts are old.
    pub applied: Option<Revision>,
    /// Rejected because another membership change is in flight, perhaps this one, proposed by an earlier incarnation:
    /// proposed again at this time if still needed.
    pub again_at: Option<Moment>,
}

/// What a step sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Sent {
    /// A caller's request.
    RoleRequest {
        /// The command.
        command: Box<Command>,
        /// Whether the node leaves the managers by it.
        leaves: bool,
    },
    /// A command of the role manager's own.
    Write(Box<Command>),
    /// A change of the Raft configuration.
    Membership(MembershipChange),
    /// Leadership was offered to this node.
    Transfer {
        /// The node that should lead.
        to: NodeId,
    },
}

impl Outgoing {
    /// The effect that starts this step, or repeats it after a crash.
    pub(crate) fn effect(&self, step: StepId, config: &Config) -> Effect {
        match &self.sent {
            Sent::RoleRequest { command, .. } | Sent::Write(command) => {
                Effect::Propose { step, command: command.clone() }
            }
            Sent::Membership(change) => {
                let (change, confirm_within) = (change.clone(), config.confirm_within());
                Effect::ProposeMembership { step, change, confirm_within }
            }
            Sent::Transfer { to } => Effect::TransferLeadership { step, to: *to },
        }
    }
    fn is_membership(&self) -> bool {
        matches!(self.sent, Sent::Membership(_) | Sent::Transfer { .. })
    }
}

/// The steps in flight, by number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outbox(BTreeMap<StepId, Outgoing>);

impl Outbox {
    /// All of them, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (StepId, &Outgoing)> {
        self.0.iter().map(|(step, outgoing)| (*step, outgoing))
    }
    pub(crate) fn put(&mut self, step: StepId, outgoing: Outgoing) {
        self.0.insert(step, outgoing);
    }
    pub(crate) fn get_mut(&mut self, step: StepId) -> Option<&mut Outgoing> {
        self.0.get_mut(&step)
    }
    pub(crate) fn remove(&mut self, step: StepId) -> Option<Outgoing> {
        self.0.remove(&step)
    }
    /// Removes the steps that a state of this revision contains.
    pub(crate) fn take_seen(&mut self, revision: Revision) -> Vec<(StepId, Outgoing)> {
        let (seen, left) = std::mem::take(&mut self.0)
            .into_iter()
            .partition::<Vec<_>, _>(|(_, o)| o.applied.is_some_and(|at| at <= revision));
        self.0 = left.into_iter().collect();
        seen
    }
    /// After a crash: repeats the steps whose outcome is unknown, under their old request ids.
    pub(crate) fn repeat(&mut self, now: Moment, config: &Config, out: &mut Vec<Effect>) {
        for (step, outgoing) in &mut self.0 {
            if outgoing.applied.is_some() || outgoing.again_at.is_some() {
                continue;
            }
            match outgoing.sent {
                // It is decided on again: the voters may have changed. If it is in flight, the next proposal is busy.
                Sent::Membership(_) => outgoing.again_at = Some(now),
                _ => out.push(outgoing.effect(*step, config)),
            }
        }
    }
    /// ROLE-2: the one membership change (or transfer) in flight for all plans.
    pub(crate) fn membership(&self) -> Option<(StepId, &Outgoing)> {
        self.0.iter().find(|(_, o)| o.is_membership()).map(|(s, o)| (*s, o))
    }
    pub(crate) fn has_role_request(&self, node: NodeId) -> bool {
        self.0.values().any(|o| o.node == node && matches!(o.sent, Sent::RoleRequest { .. }))
    }
    pub(crate) fn has_write(&self, node: NodeId) -> bool {
        self.0.values().any(|o| o.node == node && matches!(o.sent, Sent::Write(_)))
    }
    /// Nodes that requests in flight demote or remove.
    pub(crate) fn leaving(&self) -> impl Iterator<Item = NodeId> {
        (self.0.values()).filter(|o| matches!(o.sent, Sent::RoleRequest { leaves: true, .. })).map(|o| o.node)
    }
}
