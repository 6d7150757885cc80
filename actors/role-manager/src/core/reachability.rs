//! Reachability checks: a majority of the resulting voters must respond before a voter is removed or a learner promoted.
//!
//! Invariants  ROLE-3 where clocks do not help: a voter that died a moment ago has a recent acknowledgement.
//! Why one check per decision: its result is as old as its request, so it is valid only for the decision that requested it. A
//! healthy cluster responds within one round trip.

use std::collections::BTreeSet;

use muster_messages::{Moment, NodeId, RaftId};

use super::{Effect, Now, RoleManager, StepId};

/// The members that must respond for a change to be safe.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Required {
    pub members: BTreeSet<RaftId>,
    /// A majority of them.
    pub needed: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Checked {
    /// When the check was requested.
    pub since: Moment,
    pub members: BTreeSet<RaftId>,
    pub reachable: BTreeSet<RaftId>,
}

#[derive(Clone, Debug, PartialEq)]
struct Open {
    step: StepId,
    since: Moment,
    members: BTreeSet<RaftId>,
}

/// The check in progress and the one that just ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reachability {
    open: Option<Open>,
    /// Valid only in the step that delivered it.
    pub checked: Option<Checked>,
    /// When to retry a check that the raft member did not run.
    pub again_at: Option<Moment>,
    /// The node whose membership change waits for the check.
    change: Option<NodeId>,
}

impl Reachability {
    /// The node whose membership change is next, once its check has ended.
    pub fn change(&self) -> Option<NodeId> {
        self.change.filter(|_| self.open.is_some() || self.again_at.is_some())
    }
}

impl RoleManager {
    /// Requests a check for a request (`change` is `None`) or for the membership change of a node. One check at a time: a
    /// decision that finds one in progress is made again when that has ended.
    pub(super) fn check_reachable(
        &mut self,
        now: Now,
        change: Option<NodeId>,
        required: Required,
        out: &mut Vec<Effect>,
    ) {
        if self.reachability.open.is_some() || self.reachability.again_at.is_some_and(|at| now.at < at) {
            return;
        }
        let step = self.next_step();
        let Required { members, needed } = required;
        self.reachability.open = Some(Open { step, since: now.at, members: members.clone() });
        (self.reachability.change, self.reachability.again_at) = (change, None);
        out.push(Effect::CheckReachable { step, members, needed, within: self.config.election_timeout });
    }

    /// `reachable`: `None` if the raft member did not run the check.
    pub(super) fn end_reachability_check(&mut self, now: Now, step: StepId, reachable: Option<BTreeSet<RaftId>>) {
        let Some(Open { since, members, .. }) = self.reachability.open.take_if(|open| open.step == step) else {
            return;
        };
        match reachable {
            Some(reachable) => self.reachability.checked = Some(Checked { since, members, reachable }),
            None => self.reachability.again_at = Some(now.at + self.config.ask_again / 5),
        }
    }
}
