//! The progress of the promotion that is under way, and when promotions ended.
//!
//! Owns        how far the learner of a promotion has come, when that last grew, and when this leader saw promotions end.
//! Inputs      each published replica.
//! A learner makes progress until it has what the log had when the learner was first seen. Afterwards its log grows with each write,
//! whatever else keeps it from becoming a voter. A snapshot counts as progress while it is sent: the Raft member ends a transfer that
//! stalls, and reports a problem after a few. Nothing here is replicated: another leader gives a promotion its whole time anew.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::{AutopilotAction, Moment, PeerProgress, RaftId, Replica, WallTime};

/// See the module.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Promotions {
    /// The first learner of the promotion that is under way.
    learner: Option<Learner>,
    ended: BTreeMap<u64, WallTime>,
}

#[derive(Clone, Debug, PartialEq)]
struct Learner {
    /// Of the change.
    number: u64,
    raft_id: RaftId,
    /// The commit index when it was first seen.
    target: u64,
    matched: u64,
    progressed_at: Option<Moment>,
}

impl Promotions {
    /// `limit`: a learner that has acknowledged nothing for longer receives no snapshot either.
    pub fn follow(&mut self, replica: &Replica, limit: Duration, now: Moment) {
        let receives_snapshot = |progress: &PeerProgress| progress.in_snapshot && progress.answers_within(limit);
        let begun = replica.tables.autopilot.outstanding().map(|change| change.number);
        let known = self.learner.take().filter(|known| Some(known.number) == begun);
        self.learner = match (known, Learner::of(replica)) {
            (Some(known), Some(newest)) if known.raft_id == newest.raft_id => {
                let receives = replica.raft.progress_of(newest.raft_id).is_some_and(receives_snapshot);
                Some(known.followed_by(&newest, receives, now))
            }
            // Its learner was removed. Another one begins anew, which may happen again and again, so it does not count as progress.
            (Some(known), _) => Some(known),
            (None, newest) => newest,
        };
    }

    /// This leader sees that a change has ended.
    pub fn ended(&mut self, number: u64, at: WallTime) {
        self.ended.insert(number, at);
    }
    /// Forgets changes that are not recorded any more.
    pub fn forget_before(&mut self, number: u64) {
        self.ended.retain(|ended, _| *ended >= number);
    }

    /// When the learner of the promotion that is under way last made progress, as this leader has seen.
    pub fn progressed_at(&self) -> Option<Moment> {
        self.learner.as_ref()?.progressed_at
    }
    /// When this leader saw that a change had ended. `None`: it did not lead then.
    pub fn ended_at(&self, number: u64) -> Option<WallTime> {
        self.ended.get(&number).copied()
    }
}

impl Learner {
    /// As the replica shows it. Its appearance does not count as progress: a restarted actor sees it for the first time, too.
    fn of(replica: &Replica) -> Option<Self> {
        let change = replica.tables.autopilot.outstanding()?;
        let promoted = (change.action == AutopilotAction::Promote).then_some(change.node)?;
        let raft_id = replica.tables.member_of(promoted).filter(|member| !member.voter)?.raft_id;
        let matched = replica.raft.progress_of(raft_id)?.matched;
        let (number, target) = (change.number, replica.raft.commit.0);
        Some(Self { number, raft_id, target, matched, progressed_at: None })
    }

    fn followed_by(self, newest: &Self, receives_snapshot: bool, now: Moment) -> Self {
        let copies = newest.matched > self.matched && self.matched < self.target;
        let progressed_at = if copies || receives_snapshot { Some(now) } else { self.progressed_at };
        Self { matched: self.matched.max(newest.matched), progressed_at, ..self }
    }
}
