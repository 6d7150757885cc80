//! Reachability checks: which members respond to the leader now.
//!
//! Invariants  REACH-1  a member is reported reachable only if it acknowledged a heartbeat that was sent after the check began.
//! Why the latest acknowledgement does not suffice: it can be one election timeout old before the leader misses its sender,
//! and a membership change that counts a dead member loses the quorum.
//! Why not a read index (Raft thesis, 6.4): a single voter answers its own reads without a heartbeat, and a read never waits
//! for a learner.

use std::collections::{BTreeMap, BTreeSet};

use muster_messages::{Moment, RaftId};
use raft::eraftpb::{Message, MessageType};

use super::internals::Internals;
use super::turn::{round_context, round_of};
use super::{Answer, AskId, RaftCore};

struct ReachabilityCheck {
    ask: AskId,
    members: BTreeSet<RaftId>,
    needed: usize,
    deadline: Moment,
    /// The first heartbeat round sent for this check.
    first_round: Option<u64>,
    /// When the next round is sent: a heartbeat may be lost.
    next_round_at: Moment,
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
    /// Records an acknowledgement, if its context names a round that this member sent.
    pub fn acknowledge(&mut self, from: RaftId, own: RaftId, nonce: u64, context: &[u8]) {
        let round = round_of(context, own, nonce_of_rounds(nonce));
        let Some(round) = round.filter(|round| !self.open.is_empty() && *round <= self.round) else { return };
        let latest = self.acknowledged.entry(from).or_default();
        *latest = round.max(*latest);
    }
}

/// Keeps these rounds apart from the rounds of reads.
fn nonce_of_rounds(nonce: u64) -> u64 {
    !nonce
}

impl RaftCore {
    pub(super) fn check_reachable(
        &mut self,
        now: Moment,
        ask: AskId,
        (members, needed): (BTreeSet<RaftId>, usize),
        deadline: Moment,
    ) {
        let check = ReachabilityCheck { ask, members, needed, deadline, first_round: None, next_round_at: now };
        self.reachability.open.push(check);
    }

    /// Sends the heartbeats that are due.
    pub(super) fn send_reachability_rounds(&mut self, now: Moment) {
        let checks = &mut self.reachability;
        if checks.open.iter().all(|check| now < check.next_round_at) {
            return;
        }
        let Some(member) = self.member.as_mut().filter(|s| s.raw.leads()) else { return };
        checks.round += 1;
        let mut targets: BTreeSet<RaftId> = BTreeSet::new();
        for check in checks.open.iter_mut().filter(|check| check.next_round_at <= now) {
            check.first_round.get_or_insert(checks.round);
            check.next_round_at = now + self.config.read_retry;
            targets.extend(&check.members);
        }
        let (from, term, committed) = (member.id, member.raw.term(), member.raw.committed());
        let context = round_context(from, nonce_of_rounds(self.nonce), checks.round);
        for to in targets.into_iter().filter(|to| *to != from) {
            let Some(progress) = member.raw.tracker().get(to.0) else { continue };
            // As in raft: a follower must not commit entries that it may not have.
            let commit = progress.matched.min(committed);
            let mut heartbeat = Message { to: to.0, from: from.0, term, commit, ..Message::default() };
            heartbeat.set_msg_type(MessageType::MsgHeartbeat);
            heartbeat.context = context.clone().into();
            member.raw.send_heartbeat(heartbeat);
        }
    }

    /// Answers the checks that have enough acknowledgements, and those past their deadline.
    pub(super) fn end_reachability_checks(&mut self, now: Moment) {
        if self.reachability.open.is_empty() {
            self.reachability.acknowledged.clear();
            return;
        }
        let own = self.member.as_ref().map(|member| member.id);
        let refusal = (!self.leads()).then(|| self.not_leader(now));
        for check in std::mem::take(&mut self.reachability.open) {
            if let Some(refusal) = &refusal {
                self.out.answers.push(Answer::Reachable(check.ask, Err(refusal.clone())));
                continue;
            }
            let acknowledged = |member: &RaftId| {
                let latest = self.reachability.acknowledged.get(member);
                check.first_round.is_some_and(|first| latest.is_some_and(|latest| first <= *latest))
            };
            // A member that responds but takes no snapshot commits nothing.
            let follows = |member: &RaftId| acknowledged(member) && self.can_follow(*member);
            let is_reachable = |member: &RaftId| Some(*member) == own || follows(member);
            let reachable: BTreeSet<RaftId> = check.members.iter().copied().filter(is_reachable).collect();
            if reachable.len() >= check.needed || check.deadline <= now {
                self.out.answers.push(Answer::Reachable(check.ask, Ok(reachable)));
            } else {
                self.reachability.open.push(check);
            }
        }
    }
}
