//! Proposals in flight.
//!
//! Owns        the proposals that wait, those in the log, and those of an earlier term of this leader.
//! Invariants  PROPOSE-1  each ends exactly once.
//!             PROPOSE-2  `NotLeader`, `Busy`, `MembershipBusy`, `TooFewReachable` and `TooLarge` mean: certainly not applied, now or
//!                        later.
//! Why entries are recognised by index and term: two entries with the same index and term are the same entry (log
//! matching), so no tag is needed, and an entry of another term at the same index proves that the proposal is lost.

use std::collections::VecDeque;

use muster_messages::protocol::{Applied, ProposeError};
use muster_messages::{CommandRefusal, Moment, Revision};
use raft::eraftpb::Entry;

use super::log::entry_bytes;
use super::{Answer, AskId, LogPoint};

/// Accepted, not yet in the log: the proposals of one turn enter it together.
pub(crate) struct Queued {
    pub ask: AskId,
    pub deadline: Moment,
    pub entry: Entry,
    pub membership: bool,
}

struct Pending {
    at: LogPoint,
    ask: AskId,
    deadline: Moment,
    bytes: usize,
    membership: bool,
}

struct Orphan {
    pending: Pending,
    until: Moment,
}

#[derive(Default)]
pub(crate) struct Proposals {
    queued: Vec<Queued>,
    queued_bytes: usize,
    /// In the log, of the term that this member leads, in order.
    pending: VecDeque<Pending>,
    pending_bytes: usize,
    /// In the log, of a term that this member led.
    orphans: Vec<Orphan>,
    membership_changes: usize,
}

impl Proposals {
    pub fn in_flight(&self) -> usize {
        self.queued.len() + self.pending.len() + self.orphans.len()
    }
    pub fn bytes(&self) -> usize {
        self.queued_bytes + self.pending_bytes
    }
    /// Whether a membership change is in flight.
    pub fn membership_in_flight(&self) -> bool {
        self.membership_changes > 0
    }
    pub fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }
    pub fn queue(&mut self, q: Queued) {
        self.queued_bytes += entry_bytes(&q.entry) as usize;
        self.membership_changes += usize::from(q.membership);
        self.queued.push(q);
    }
    pub fn take_queued(&mut self) -> Vec<Queued> {
        self.queued_bytes = 0;
        let taken = std::mem::take(&mut self.queued);
        self.membership_changes -= taken.iter().filter(|q| q.membership).count();
        taken
    }
    /// These entered the log, the first one at `first`.
    pub fn entered(&mut self, first: u64, term: u64, entered: impl IntoIterator<Item = (AskId, Moment, usize, bool)>) {
        for (index, (ask, deadline, bytes, membership)) in (first..).zip(entered) {
            debug_assert!(self.pending.back().is_none_or(|p| p.at.index < index && p.at.term == term));
            self.membership_changes += usize::from(membership);
            self.pending_bytes += bytes;
            self.pending.push_back(Pending { at: LogPoint { index, term }, ask, deadline, bytes, membership });
        }
    }
    /// Leadership of the term in which they were proposed has ended.
    pub fn orphan(&mut self, until: Moment) {
        self.pending_bytes = 0;
        let orphaned = self.pending.drain(..).map(|pending| Orphan { until: until.min(pending.deadline), pending });
        self.orphans.extend(orphaned);
    }
    /// Injected bug: drops the proposals in the log without an answer.
    pub fn lose(&mut self) {
        self.pending_bytes = 0;
        self.membership_changes -= self.pending.drain(..).filter(|p| p.membership).count();
    }
    /// The entry at `at` was applied, with this outcome.
    pub fn applied(&mut self, at: LogPoint, outcome: &Result<(), CommandRefusal>, out: &mut Vec<Answer>) {
        while let Some(p) = self.pending.front()
            && p.at.index <= at.index
        {
            debug_assert_eq!(p.at, at, "PROPOSE-1: a leader applies its own entries in order");
            let p = self.pending.pop_front().expect("there is a front");
            self.pending_bytes -= p.bytes;
            self.end(&p, result_at(&p, at, outcome), out);
        }
        if !self.orphans.is_empty() {
            let (ended, left) = std::mem::take(&mut self.orphans)
                .into_iter()
                .partition::<Vec<_>, _>(|o| o.pending.at.index <= at.index);
            self.orphans = left;
            for o in ended {
                self.end(&o.pending, result_at(&o.pending, at, outcome), out);
            }
        }
    }
    /// Ends proposals past their deadlines. `late` gives the reason for those that never entered the log.
    pub fn expire(&mut self, now: Moment, late: impl Fn() -> ProposeError, out: &mut Vec<Answer>) {
        if self.pending.iter().any(|p| p.deadline <= now) {
            let (ended, left) =
                std::mem::take(&mut self.pending).into_iter().partition::<Vec<_>, _>(|p| p.deadline <= now);
            self.pending = left.into();
            for p in ended {
                self.pending_bytes -= p.bytes;
                self.end(&p, Err(ProposeError::UnknownOutcome), out);
            }
        }
        if self.queued.iter().any(|q| q.deadline <= now) {
            let (ended, left) =
                std::mem::take(&mut self.queued).into_iter().partition::<Vec<_>, _>(|q| q.deadline <= now);
            self.queued = left;
            for q in ended {
                self.queued_bytes -= entry_bytes(&q.entry) as usize;
                self.membership_changes -= usize::from(q.membership);
                out.push(Answer::Proposed(q.ask, Err(late())));
            }
        }
        self.expire_orphans(|o| o.until <= now, out);
    }
    /// The log was replaced: the outcome of its proposals is unknown.
    pub fn forget(&mut self, out: &mut Vec<Answer>) {
        self.orphan(Moment(0));
        self.expire_orphans(|_| true, out);
    }

    fn expire_orphans(&mut self, gone: impl Fn(&Orphan) -> bool, out: &mut Vec<Answer>) {
        if self.orphans.iter().any(&gone) {
            let (ended, left) = std::mem::take(&mut self.orphans).into_iter().partition::<Vec<_>, _>(gone);
            self.orphans = left;
            for o in ended {
                self.end(&o.pending, Err(ProposeError::UnknownOutcome), out);
            }
        }
    }
    fn end(&mut self, p: &Pending, result: Result<Applied, ProposeError>, out: &mut Vec<Answer>) {
        self.membership_changes -= usize::from(p.membership);
        out.push(Answer::Proposed(p.ask, result));
    }
}

fn result_at(p: &Pending, at: LogPoint, outcome: &Result<(), CommandRefusal>) -> Result<Applied, ProposeError> {
    if p.at == at {
        outcome.clone().map(|()| Applied { revision: Revision(at.index) }).map_err(ProposeError::Refused)
    } else if p.at.index == at.index {
        Err(ProposeError::NotLeader { leader: None })
    } else {
        Err(ProposeError::UnknownOutcome)
    }
}
