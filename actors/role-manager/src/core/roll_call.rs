//! Roll calls: before a voter goes or another one comes, a majority of those that vote afterwards answers once more.
//!
//! Keeps  ROLE-3 where no clock helps: a voter that died a moment ago has acknowledged something within an election timeout.
//! Why a call for each decision: what it finds is as old as its question, so it counts for what was decided then and for
//! nothing later. A healthy cluster answers within one round trip.

use std::collections::BTreeSet;

use muster_messages::{Moment, NodeId, RaftId};

use super::{Effect, Now, RoleManager, StepId};

/// What a roll call found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Found {
    /// When it was asked for.
    pub since: Moment,
    /// Of whom.
    pub seats: BTreeSet<RaftId>,
    pub present: BTreeSet<RaftId>,
}

/// A roll call that is under way.
#[derive(Clone, Debug, PartialEq)]
struct Open {
    step: StepId,
    since: Moment,
    seats: BTreeSet<RaftId>,
}

/// The one that is under way, and the one that has just ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RollCalls {
    open: Option<Open>,
    /// Counts for the step in which it came, not longer.
    pub found: Option<Found>,
    /// After one that nobody took.
    pub again_at: Option<Moment>,
    /// The node whose membership change waits for it.
    change: Option<NodeId>,
}

impl RollCalls {
    /// The node whose membership change is next, as soon as the roll has been called.
    pub fn change(&self) -> Option<NodeId> {
        self.change.filter(|_| self.open.is_some() || self.again_at.is_some())
    }
}

impl RoleManager {
    /// Calls the roll of these members, `enough` of whom decide, for a wish or for the `change` of a node's seat. One call at a time: whoever needs another one asks again when
    /// this one has ended.
    pub(super) fn call_roll(
        &mut self,
        now: Now,
        change: Option<NodeId>,
        (seats, enough): (BTreeSet<RaftId>, usize),
        out: &mut Vec<Effect>,
    ) {
        if self.roll_calls.open.is_some() || self.roll_calls.again_at.is_some_and(|at| now.at < at) {
            return;
        }
        let step = self.next_step();
        self.roll_calls.again_at = None;
        self.roll_calls.change = change;
        self.roll_calls.open = Some(Open { step, since: now.at, seats: seats.clone() });
        out.push(Effect::CallRoll { step, seats, enough, within: self.config.election_timeout });
    }

    /// `present`: nothing if it could not be called.
    pub(super) fn end_roll_call(&mut self, now: Now, step: StepId, present: Option<BTreeSet<RaftId>>) {
        let Some(Open { since, seats, .. }) = self.roll_calls.open.take_if(|open| open.step == step) else { return };
        match present {
            Some(present) => self.roll_calls.found = Some(Found { since, seats, present }),
            None => self.roll_calls.again_at = Some(now.at + self.config.ask_again / 5),
        }
    }
}
