//! Roll calls: which members are there now.
//!
//! Keeps  ROLL-1  whoever is counted has acknowledged a heartbeat that left after the roll was called.
//! Why the newest acknowledgement is not enough: it may be an election timeout old before anybody misses its sender, and a
//! membership change that counts on a member that died meanwhile takes the quorum away.
//! Why not those of a read: a leader that votes alone may read without asking anybody, and a learner is to be asked as well.

use std::collections::{BTreeMap, BTreeSet};

use muster_messages::{Moment, RaftId};
use raft::StateRole;
use raft::eraftpb::{Message, MessageType};

use super::turn::{round_context, round_of};
use super::{Answer, AskId, RaftCore};

struct RollCall {
    ask: AskId,
    seats: BTreeSet<RaftId>,
    enough: usize,
    deadline: Moment,
    /// The first round of heartbeats that left for it.
    first_round: Option<u64>,
    /// When another one leaves: any of them may be lost.
    again: Moment,
}

/// Those that have not ended.
#[derive(Default)]
pub(crate) struct RollCalls {
    open: Vec<RollCall>,
    round: u64,
    /// The newest round that each member has answered.
    answered: BTreeMap<RaftId, u64>,
}

impl RollCalls {
    /// The round of ours that an acknowledgement answers.
    pub fn round_of(&self, seat: RaftId, nonce: u64, context: &[u8]) -> Option<u64> {
        round_of(context, seat, own(nonce)).filter(|_| !self.open.is_empty())
    }

    pub fn answered(&mut self, seat: RaftId, round: u64) {
        let newest = self.answered.entry(seat).or_default();
        *newest = round.max(*newest);
    }
}

/// Keeps these rounds apart from those of reads.
fn own(nonce: u64) -> u64 {
    !nonce
}

impl RaftCore {
    pub(super) fn call_roll(
        &mut self,
        now: Moment,
        ask: AskId,
        seats: BTreeSet<RaftId>,
        enough: usize,
        deadline: Moment,
    ) {
        self.roll_calls.open.push(RollCall { ask, seats, enough, deadline, first_round: None, again: now });
    }

    /// Sends the heartbeats that are due.
    pub(super) fn ask_the_called(&mut self, now: Moment) {
        let calls = &mut self.roll_calls;
        if calls.open.iter().all(|call| now < call.again) {
            return;
        }
        let Some(seat) = self.seat.as_mut().filter(|s| s.raw.raft.state == StateRole::Leader) else { return };
        calls.round += 1;
        let mut asked: BTreeSet<RaftId> = BTreeSet::new();
        for call in calls.open.iter_mut().filter(|call| call.again <= now) {
            call.first_round.get_or_insert(calls.round);
            call.again = now + self.config.read_retry;
            asked.extend(&call.seats);
        }
        let (from, term, committed) = (seat.id, seat.raw.raft.term, seat.raw.raft.raft_log.committed);
        let context = round_context(from, own(self.nonce), calls.round);
        for to in asked.into_iter().filter(|to| *to != from) {
            let Some(progress) = seat.raw.raft.prs().get(to.0) else { continue };
            let commit = progress.matched.min(committed);
            let mut heartbeat = Message { to: to.0, from: from.0, term, commit, ..Message::default() };
            heartbeat.set_msg_type(MessageType::MsgHeartbeat);
            heartbeat.context = context.clone().into();
            seat.raw.raft.msgs.push(heartbeat);
        }
    }

    /// Ends the calls that enough have answered, and those whose time is over.
    pub(super) fn end_roll_calls(&mut self, now: Moment) {
        if self.roll_calls.open.is_empty() {
            self.roll_calls.answered.clear();
            return;
        }
        let own = self.seat.as_ref().map(|seat| seat.id);
        let refusal = (!self.leads()).then(|| self.not_leader(now));
        for call in std::mem::take(&mut self.roll_calls.open) {
            if let Some(refusal) = &refusal {
                self.out.answers.push(Answer::RollCalled(call.ask, Err(refusal.clone())));
                continue;
            }
            let answered = |seat: &RaftId| {
                let newest = self.roll_calls.answered.get(seat);
                call.first_round.is_some_and(|first| newest.is_some_and(|newest| first <= *newest))
            };
            let present: BTreeSet<RaftId> =
                call.seats.iter().copied().filter(|seat| Some(*seat) == own || answered(seat)).collect();
            if present.len() >= call.enough || call.deadline <= now {
                self.out.answers.push(Answer::RollCalled(call.ask, Ok(present)));
            } else {
                self.roll_calls.open.push(call);
            }
        }
    }
}
