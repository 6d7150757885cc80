//! Reachability checks: which members respond to the leader now.
//!
//! Owns        the checks in progress, the membership change that waits for one of them, and the latest heartbeat round that each
//!             member has acknowledged.
//! Invariants  REACH-1  a member is reported reachable only if it acknowledged a heartbeat that was sent after the check began.
//!             REACH-2  a membership change that waits for a check enters the log only if a majority of the voters that it results in
//!                      is reachable.
//! Why the latest acknowledgement does not suffice: it can be one election timeout old before the leader misses its sender,
//! and a membership change that counts a dead member loses the quorum.
//! Why not a read index (Raft thesis, 6.4): a single voter answers its own reads without a heartbeat, and a read never waits
//! for a learner.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_messages::protocol::ProposeError;
use muster_messages::{MembershipChange, Moment, RaftId};
use raft::RawNode;
use raft::eraftpb::{Message, MessageType};

use super::internals::Internals;
use super::log::MemLog;
use super::reads::{round_context, round_of};
use super::{Answer, AskId};

/// Checks in progress. The leader's actors make a few at a time; a caller of the API may ask at any rate, and each check costs a
/// heartbeat to every voter.
pub(crate) const MAX_CHECKS: usize = 64;

struct ReachabilityCheck {
    ask: AskId,
    members: BTreeSet<RaftId>,
    needed: usize,
    since: Moment,
    deadline: Moment,
    /// The membership change that waits for it. `members` are the voters that it results in.
    change: Option<Box<MembershipChange>>,
    /// The first heartbeat round sent for this check.
    first_round: Option<u64>,
    /// When the next round is sent: a heartbeat may be lost.
    next_round_at: Moment,
}

/// How a check ended.
pub(crate) enum Ended {
    Answered(Answer),
    /// A majority of the voters that this change results in has responded since.
    Confirmed {
        ask: AskId,
        change: Box<MembershipChange>,
        since: Moment,
    },
}

/// The checks in progress.
#[derive(Default)]
pub(crate) struct ReachabilityChecks {
    open: Vec<ReachabilityCheck>,
    /// The last heartbeat round sent.
    round: u64,
    /// The latest round that each member acknowledged. Holds only members that were sent a round.
    acknowledged: BTreeMap<RaftId, u64>,
}

impl ReachabilityChecks {
    /// The answer at once, where too many checks are in progress.
    #[must_use]
    pub fn begin(
        &mut self,
        now: Moment,
        ask: AskId,
        members: BTreeSet<RaftId>,
        needed: usize,
        deadline: Moment,
    ) -> Option<Answer> {
        if self.open.len() >= MAX_CHECKS {
            return Some(Answer::Reachable(ask, Err(ProposeError::Busy)));
        }
        self.add(now, ask, members, needed, deadline, None);
        None
    }

    /// Begins the check for a membership change that results in these voters. At most one is in progress: the limit of checks is not for it.
    pub fn begin_change(
        &mut self,
        now: Moment,
        ask: AskId,
        change: Box<MembershipChange>,
        voters: BTreeSet<RaftId>,
        deadline: Moment,
    ) {
        debug_assert!(!self.has_change(), "one membership change is in flight");
        let needed = voters.len() / 2 + 1;
        self.add(now, ask, voters, needed, deadline, Some(change));
    }
    /// Whether a membership change waits for a check.
    pub fn has_change(&self) -> bool {
        self.open.iter().any(|check| check.change.is_some())
    }

    fn add(
        &mut self,
        now: Moment,
        ask: AskId,
        members: BTreeSet<RaftId>,
        needed: usize,
        deadline: Moment,
        change: Option<Box<MembershipChange>>,
    ) {
        let (since, first_round, next_round_at) = (now, None, now);
        self.open.push(ReachabilityCheck { ask, members, needed, since, deadline, change, first_round, next_round_at });
    }

    /// Records an acknowledgement, if its context names a round that this member sent.
    pub fn acknowledge(&mut self, from: RaftId, own: RaftId, nonce: u64, context: &[u8]) {
        let round = round_of(context, own, nonce_of_rounds(nonce));
        let Some(round) = round.filter(|round| !self.open.is_empty() && *round <= self.round) else { return };
        let latest = self.acknowledged.entry(from).or_default();
        *latest = round.max(*latest);
    }

    /// While leading: sends the heartbeats that are due.
    pub fn send_rounds(&mut self, now: Moment, own: RaftId, nonce: u64, retry: Duration, raw: &mut RawNode<MemLog>) {
        if self.open.iter().all(|check| now < check.next_round_at) {
            return;
        }
        self.round += 1;
        let mut targets: BTreeSet<RaftId> = BTreeSet::new();
        for check in self.open.iter_mut().filter(|check| check.next_round_at <= now) {
            check.first_round.get_or_insert(self.round);
            check.next_round_at = now + retry;
            targets.extend(&check.members);
        }
        let (term, committed) = (raw.term(), raw.committed());
        let context = round_context(own, nonce_of_rounds(nonce), self.round);
        for to in targets.into_iter().filter(|to| *to != own) {
            let Some(progress) = raw.tracker().get(to.0) else { continue };
            // As in raft: a follower must not commit entries that it may not have.
            let commit = progress.matched.min(committed);
            let mut heartbeat = Message { to: to.0, from: own.0, term, commit, ..Message::default() };
            heartbeat.set_msg_type(MessageType::MsgHeartbeat);
            heartbeat.context = context.clone().into();
            raw.send_heartbeat(heartbeat);
        }
    }

    /// Ends the checks that have enough acknowledgements, and those past their deadline. A member that responds but
    /// cannot follow commits nothing.
    pub fn end(&mut self, now: Moment, own: RaftId, can_follow: impl Fn(RaftId) -> bool) -> Vec<Ended> {
        if self.open.is_empty() {
            self.acknowledged.clear();
        }
        let (acknowledged, mut ended) = (&self.acknowledged, Vec::new());
        for check in std::mem::take(&mut self.open) {
            let responds = |member: &RaftId| {
                let latest = acknowledged.get(member);
                check.first_round.is_some_and(|first| latest.is_some_and(|latest| first <= *latest))
            };
            let is_reachable = |member: &RaftId| *member == own || responds(member) && can_follow(*member);
            let reachable: BTreeSet<RaftId> = check.members.iter().copied().filter(is_reachable).collect();
            let enough = reachable.len() >= check.needed;
            if !enough && now < check.deadline {
                self.open.push(check);
                continue;
            }
            let ReachabilityCheck { ask, members: voters, since, change, .. } = check;
            ended.push(match change {
                Some(change) if enough => Ended::Confirmed { ask, change, since },
                Some(_) => {
                    let error = ProposeError::TooFewReachable { voters, reachable };
                    Ended::Answered(Answer::Proposed(ask, Err(error)))
                }
                None => Ended::Answered(Answer::Reachable(ask, Ok(reachable))),
            });
        }
        ended
    }
    /// This member does not lead.
    pub fn refuse(&mut self, refusal: impl Fn() -> ProposeError) -> Vec<Ended> {
        if self.open.is_empty() {
            self.acknowledged.clear();
        }
        let answer = |check: ReachabilityCheck| match check.change {
            Some(_) => Answer::Proposed(check.ask, Err(refusal())),
            None => Answer::Reachable(check.ask, Err(refusal())),
        };
        self.open.drain(..).map(|check| Ended::Answered(answer(check))).collect()
    }
}

/// Keeps these rounds apart from the rounds of reads.
fn nonce_of_rounds(nonce: u64) -> u64 {
    !nonce
}
