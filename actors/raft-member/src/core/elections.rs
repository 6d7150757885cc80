//! Ticks, the leader-loss hint, and leadership transfers.

use muster_messages::protocol::ProposeError;
use muster_messages::{CommandRefusal, Moment, NodeId, RaftId, Term};
use raft::{INVALID_ID, StateRole};

use super::internals::Internals;
use super::member::Leadership;
use super::{Answer, AskId, Notice, RaftCore, Settling};

/// Campaigns after a leader-loss hint.
pub(super) struct Hint {
    pub at: Moment,
    left: u8,
}

/// A leadership transfer in progress.
pub(super) struct Transfer {
    ask: AskId,
    to: RaftId,
    until: Moment,
    retry_at: Moment,
}

impl RaftCore {
    pub(super) fn tick(&mut self, now: Moment) {
        self.check_disk(now);
        if let Some(member) = self.member.as_mut() {
            member.check_transfers(now, &self.config, &mut self.out);
            self.snapshots.mark(now, member.raw.last_index(), self.config.keep_time);
        }
        self.fire_hint(now);
        let settling = self.writes.settling();
        let idle_disk = self.writes.in_flight() == 0;
        if let Some(member) = self.member.as_mut() {
            let alone = member.raw.is_only_voter() && member.raw.promotable();
            if member.raw.leads() {
                member.raw.tick();
            } else if alone && !member.removed {
                // A lone voter needs no other vote, but raft asserts that its log is durable when it becomes leader.
                if idle_disk {
                    let _already_leads = member.raw.campaign();
                }
            } else if settling != Settling::Snapshot {
                // While a snapshot is being written, raft cannot read entries that it has not applied.
                member.raw.tick();
            }
        }
        self.settle(now);
        self.expire(now);
        self.check_transfer(now);
    }

    /// Call this after any change of raft's term, role or leader.
    pub(super) fn settle(&mut self, now: Moment) {
        let Some(member) = self.member.as_mut() else { return };
        let (was, is) = member.leadership_change(&self.config, &mut self.rng);
        if was == is {
            return;
        }
        if is.leader != INVALID_ID {
            member.hint = None;
        } else if was.leader != INVALID_ID {
            let led = (was.role == StateRole::Leader).then(|| member.voters());
            self.peers.leader_lost(now, member.id, led, self.config.election_timeout);
        }
        if was.role == StateRole::Leader && (is.role != StateRole::Leader || was.term != is.term) {
            if self.config.injected_bugs().forget_proposals {
                self.proposals.lose();
            }
            self.proposals.orphan(now + self.config.orphan_wait);
        }
        if is.role == StateRole::Leader && (was.role != StateRole::Leader || was.term != is.term) {
            self.peers.leads(now);
        }
        if is.role != StateRole::Leader || was.term != is.term {
            self.peers.forget_acknowledgements();
            self.digests.forget_others();
            member.stop_transfers(&mut self.out);
        }
        if (was.term, was.leader) != (is.term, is.leader) {
            self.reads.retry_all();
            let me = member.id.0;
            self.leader_changed(was, is, me);
        }
    }

    fn leader_changed(&mut self, was: Leadership, is: Leadership, me: u64) {
        let term = Term(is.term);
        let notice = match is.leader {
            INVALID_ID if was.leader == INVALID_ID => return,
            INVALID_ID => Notice::LostLeader { term },
            leader if leader == me => Notice::Leads { term },
            leader => Notice::Follows { term, leader: RaftId(leader), node: self.node_of(RaftId(leader)) },
        };
        self.out.notices.push(notice);
        if is.leader != INVALID_ID
            && is.leader != me
            && let Some(transfer) = self.transfer.take()
        {
            let node = self.node_of(RaftId(is.leader)).ok_or(ProposeError::UnknownOutcome);
            self.out.answers.push(Answer::Transferred(transfer.ask, node));
        }
    }

    /// A leader whose disk does not answer can commit nothing by itself, and its followers' disks are probably healthy.
    /// The only voter keeps leading: with none to take over, its clients would be refused in addition to waiting.
    fn check_disk(&mut self, now: Moment) {
        if !self.writes.is_slow(now, self.config.disk_limit) {
            return;
        }
        let Some(member) = self.member.as_mut().filter(|s| s.raw.leads()) else { return };
        let term = Term(member.raw.term());
        if !member.raw.is_only_voter() {
            member.raw.step_down();
            self.out.notices.push(Notice::DiskTooSlow { term, stepped_down: true });
            self.settle(now);
        } else if self.writes.report_slow() {
            self.out.notices.push(Notice::DiskTooSlow { term, stepped_down: false });
        }
    }

    /// The leader is certainly gone: forget it at once (with check-quorum a member ignores pre-votes while it has a
    /// leader), then ask for pre-votes after a random moment. Only a majority that has lost the leader elects another.
    pub(super) fn leader_gone(&mut self, now: Moment, node: NodeId) {
        let leader = self.member.as_ref().map_or(INVALID_ID, |s| s.raw.leader_id());
        if leader == INVALID_ID
            || self.node_of(RaftId(leader)) != Some(node)
            || self.writes.settling() == Settling::Snapshot
        {
            return;
        }
        let delay = self.rng.up_to(self.config.hint_spread);
        let left = self.config.hint_tries;
        let Some(member) = self.member.as_mut().filter(|s| s.raw.role() == StateRole::Follower && !s.removed) else {
            return;
        };
        member.raw.step_down();
        if member.raw.promotable() {
            member.hint = Some(Hint { at: now + delay, left });
        }
    }

    pub(super) fn fire_hint(&mut self, now: Moment) {
        let (settling, idle_disk) = (self.writes.settling(), self.writes.in_flight() == 0);
        let Some(member) = self.member.as_mut() else { return };
        let Some(hint) = member.hint.as_mut().filter(|h| h.at <= now) else { return };
        let raw = &member.raw;
        let may = raw.leader_id() == INVALID_ID && raw.promotable() && settling != Settling::Snapshot;
        if !may || hint.left == 0 {
            member.hint = None;
            return;
        }
        hint.left -= 1;
        hint.at = now + self.config.hint_again + self.rng.up_to(self.config.hint_again);
        if idle_disk || !raw.is_only_voter() {
            let _already_leads = member.raw.campaign();
        }
        self.settle(now);
    }

    /// Another candidate got the vote, so probably neither wins. Retry soon, at random.
    pub(super) fn vote_refused(&mut self, now: Moment) {
        let delay = self.rng.up_to(self.config.hint_spread);
        let Some(member) = self.member.as_mut().filter(|s| s.raw.role() == StateRole::Candidate) else { return };
        if let Some(hint) = member.hint.as_mut() {
            hint.at = hint.at.min(now + delay);
        }
    }

    /// A candidate that may win asks for this member's vote: a second candidate would only split the votes.
    pub(super) fn vote_requested(&mut self, now: Moment, index: u64, log_term: u64) {
        let delay = self.rng.up_to(self.config.hint_again);
        let Some(member) = self.member.as_mut() else { return };
        if let Some(hint) = member.hint.as_mut().filter(|_| member.raw.is_up_to_date(index, log_term)) {
            hint.at = hint.at.max(now + self.config.hint_again + delay);
        }
    }

    /// Raft silently ignores an impossible target, so the core checks it first and watches the outcome.
    pub(super) fn transfer_leadership(&mut self, now: Moment, ask: AskId, to: Option<NodeId>) {
        match self.transfer_target(now, to) {
            Ok(target) if Some(target) == self.member.as_ref().map(|s| s.id) => {
                self.out.answers.push(Answer::Transferred(ask, Ok(self.me)));
            }
            Ok(target) => {
                self.flush_proposals(now); // raft accepts none during a transfer; these came before
                let member = self.member.as_mut().expect("a leader is a member");
                member.raw.transfer_leader(target.0);
                let (until, retry_at) = (now + self.config.transfer_wait, now + self.config.hint_again);
                self.transfer = Some(Transfer { ask, to: target, until, retry_at });
            }
            Err(refusal) => self.out.answers.push(Answer::Transferred(ask, Err(refusal))),
        }
    }

    fn transfer_target(&self, now: Moment, to: Option<NodeId>) -> Result<RaftId, ProposeError> {
        if !self.leads() {
            return Err(self.not_leader(now));
        }
        if self.transfer.is_some() {
            return Err(ProposeError::Busy);
        }
        let member = self.member.as_ref().expect("a leader is a member");
        let voters = member.raw.tracker().conf().voters();
        if let Some(node) = to {
            let target =
                self.state.tables().member_of(node).filter(|m| voters.contains(m.raft_id.0)).map(|m| m.raft_id);
            return target.ok_or_else(|| Self::refused("voter", node));
        }
        let recent = |id: u64| self.peers.acked_at(id).is_some_and(|at| now.since(at) < self.config.election_timeout);
        let others = || member.raw.tracker().iter().filter(|(id, _)| **id != member.id.0 && voters.contains(**id));
        let best = others().filter(|(id, _)| recent(**id)).max_by_key(|(id, pr)| (pr.matched, std::cmp::Reverse(**id)));
        match best {
            Some((id, _)) => Ok(RaftId(*id)),
            None if others().count() == 0 => Err(ProposeError::Refused(CommandRefusal::LastManager)),
            None => Err(ProposeError::NoQuorum { missing: self.missing_voters(now).1 }),
        }
    }

    /// The transfer target's first campaign may be lost like any message. Without this, the next one would wait for the
    /// election timeout.
    pub(super) fn handle_timeout_now(&mut self, now: Moment) {
        let (delay, left) = (self.rng.up_to(self.config.hint_again), self.config.hint_tries);
        let Some(member) = self.member.as_mut().filter(|s| s.raw.role() == StateRole::Candidate) else { return };
        member.hint = Some(Hint { at: now + self.config.hint_again + delay, left });
    }

    fn check_transfer(&mut self, now: Moment) {
        let Some(transfer) = self.transfer.as_mut() else { return };
        let Some(member) = self.member.as_mut() else { return };
        let leads = member.raw.leads();
        let given_up = leads && !member.raw.is_transferring();
        if given_up || transfer.until <= now {
            member.raw.abort_transfer();
            let ask = transfer.ask;
            self.transfer = None;
            let why = if leads { ProposeError::TimedOut } else { ProposeError::UnknownOutcome };
            self.out.answers.push(Answer::Transferred(ask, Err(why)));
        } else if leads && transfer.retry_at <= now {
            transfer.retry_at = now + self.config.hint_again;
            member.raw.repeat_transfer(transfer.to.0);
        }
    }
}
