//! Reachability checks: a majority of the remaining voters must respond before a request that removes one is accepted. The Raft member
//! makes the same check again as part of each membership change.
//!
//! Owns        the check in progress, its result during one step, and the time of the next attempt.
//! Invariants  at most one check is in progress. ROLE-3 where clocks do not help: a voter that died a moment ago has a recent acknowledgement.
//! Why one check per decision: its result is as old as its request, so it is valid only for the decision that requested it. A
//! healthy cluster responds within one round trip.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_messages::{Moment, RaftId};

use super::{Effect, StepId};

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
#[derive(Clone, Debug, Default)]
pub(crate) struct Reachability {
    open: Option<Open>,
    /// Valid only in the step that delivered it.
    checked: Option<Checked>,
    /// When to retry a check that the raft member did not run.
    again_at: Option<Moment>,
}

impl Reachability {
    /// One check at a time: a decision that finds one in progress is made again when that has ended.
    pub fn may_begin(&self, now: Moment) -> bool {
        self.open.is_none() && self.again_at.is_none_or(|at| at <= now)
    }
    pub fn begin(&mut self, now: Moment, step: StepId, required: Required, within: Duration) -> Effect {
        let Required { members, needed } = required;
        self.open = Some(Open { step, since: now, members: members.clone() });
        self.again_at = None;
        Effect::CheckReachable { step, members, needed, within }
    }
    /// `reachable`: `None` if the raft member did not run the check. It is then retried at `again_at`.
    pub fn end(&mut self, step: StepId, reachable: Option<BTreeSet<RaftId>>, again_at: Moment) {
        let Some(Open { since, members, .. }) = self.open.take_if(|open| open.step == step) else { return };
        match reachable {
            Some(reachable) => self.checked = Some(Checked { since, members, reachable }),
            None => self.again_at = Some(again_at),
        }
    }
    /// The step that delivered a result is over.
    pub fn forget_result(&mut self) {
        self.checked = None;
    }

    /// The result that was delivered in this step.
    pub fn result(&self) -> Option<&Checked> {
        self.checked.as_ref()
    }
    pub fn again_at(&self) -> Option<Moment> {
        self.again_at
    }
}
