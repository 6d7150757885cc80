//! Ticks, the leader-loss hint, and handing leadership over.

use std::collections::BTreeSet;

use muster_messages::protocol::{ProposeError, SnapshotOutcome};
use muster_messages::{CommandRefusal, Moment, NodeId, RaftId, Term};
use raft::{INVALID_ID, StateRole};

use super::log::conf_state;
use super::packets::Settling;
use super::transfers::Matched;
use super::{Answer, AskId, LogPoint, Notice, RaftCore, Standing};

/// Campaigns that a leader-loss hint asked for.
pub(super) struct Hint {
    pub at: Moment,
    left: u8,
}

/// A transfer of leadership under way.
pub(super) struct Transfer {
    ask: AskId,
    to: RaftId,
    until: Moment,
    again: Moment,
}

impl RaftCore {
    pub(super) fn tick(&mut self, now: Moment) {
        self.judge_disk(now);
        self.judge_snapshots(now);
        self.mark_rate(now);
        self.fire_hint(now);
        let settling = self.settling();
        let idle_disk = self.in_flight.is_empty();
        if let Some(seat) = self.seat.as_mut() {
            let raft = &seat.raw.raft;
            let alone = raft.prs().is_singleton() && raft.promotable();
            if raft.state == StateRole::Leader {
                seat.raw.tick();
            } else if alone && !seat.removed {
                // The only voter needs nobody's vote, but raft asserts that its log is durable when it takes office.
                if idle_disk {
                    let _already_leads = seat.raw.campaign();
                }
            } else if settling != Settling::Snapshot {
                // While a snapshot settles, raft cannot look back at what it has not applied.
                seat.raw.tick();
            }
        }
        self.settle(now);
        self.expire(now);
        self.judge_transfer(now);
    }

    /// To be called after whatever may have changed raft's term, role or leader.
    pub(super) fn settle(&mut self, now: Moment) {
        let Some(seat) = self.seat.as_mut() else { return };
        let raft = &seat.raw.raft;
        let is = Standing { term: raft.term, role: raft.state, leader: raft.leader_id };
        let was = std::mem::replace(&mut seat.was, is);
        if (was.term, was.role) != (is.term, is.role) {
            let (low, high) = self.config.election_ticks();
            seat.timeout = low + self.dice.index(high - low);
        }
        // Raft drew a value of its own, from the thread's generator.
        seat.raw.raft.set_randomized_election_timeout(seat.timeout);
        if was == is {
            return;
        }
        if is.leader != INVALID_ID {
            seat.hint = None;
        } else if was.leader != INVALID_ID {
            seat.leaderless_since = now;
            let acked = |id: &u64| seat.acked.get(id).copied().unwrap_or(seat.led_since);
            let lost = |id: &u64| *id != seat.id.0 && now.since(acked(id)) >= self.config.election_timeout;
            let voters = seat.raw.store().conf().voters.iter().copied();
            seat.lost_touch = if was.role == StateRole::Leader { voters.filter(lost).collect() } else { Vec::new() };
        }
        if was.role == StateRole::Leader && (is.role != StateRole::Leader || was.term != is.term) {
            if self.config.sabotaged().forget_proposals {
                self.proposals.lose();
            }
            self.proposals.orphan(now + self.config.orphan_wait);
        }
        if is.role == StateRole::Leader && (was.role != StateRole::Leader || was.term != is.term) {
            seat.led_since = now;
        }
        if is.role != StateRole::Leader || was.term != is.term {
            seat.acked.clear();
            self.digests.forget_others();
            let stopped = seat.transfers.clear();
            self.out.stop_snapshots.extend(stopped);
            seat.raw.mut_store().set_offer(None);
            seat.raw.mut_store().pause_snapshots(BTreeSet::new());
        }
        if (was.term, was.leader) != (is.term, is.leader) {
            self.reads.retry_all();
            let me = seat.id.0;
            self.leader_changed(was, is, me);
        }
    }

    fn leader_changed(&mut self, was: Standing, is: Standing, me: u64) {
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

    /// A leader whose disk does not answer can commit nothing by itself, and its followers' disks are probably well.
    fn judge_disk(&mut self, now: Moment) {
        let slow = self.in_flight.front().is_some_and(|w| now.since(w.issued) >= self.config.disk_limit);
        if slow && self.leads() {
            let seat = self.seat.as_mut().expect("a leader has a seat");
            let term = seat.raw.raft.term;
            seat.raw.raft.become_follower(term, INVALID_ID);
            self.out.notices.push(Notice::DiskTooSlow { term: Term(term) });
            self.settle(now);
        }
    }

    /// Ends transfers that stand still or are not needed any more, and lets raft try again where a pause is over.
    fn judge_snapshots(&mut self, now: Moment) {
        let limit = self.config.snapshot_limit;
        let Some(seat) = self.seat.as_mut().filter(|s| !s.transfers.is_empty()) else { return };
        let (last, tail) = (seat.raw.raft.raft_log.last_index(), self.config.keep_entries);
        let prs = seat.raw.raft.prs();
        let stopped = seat.transfers.settle(|id| {
            let index = prs.get(id)?.matched;
            Some(Matched { index, caught_up: index + tail >= last })
        });
        for id in seat.transfers.stalled(now, limit) {
            let why = format!("nothing more of it arrived for {} s", limit.as_secs());
            self.transfer_ended(now, id, &SnapshotOutcome::Lost(why));
        }
        let Some(seat) = self.seat.as_mut() else { return };
        let offer = seat
            .transfers
            .job()
            .map(|job| (LogPoint { index: job.index, term: job.term }, conf_state(&job.voters, &job.learners)));
        seat.raw.mut_store().set_offer(offer);
        self.pause_snapshots(now);
        self.out.stop_snapshots.extend(stopped);
    }

    /// The leader is gone for certain: forget it at once (with check-quorum a member ignores everybody's pre-vote while
    /// it has a leader), then ask for pre-votes after a random moment. Only a majority that has lost it elects anyone.
    pub(super) fn leader_gone(&mut self, now: Moment, node: NodeId) {
        let leader = self.seat.as_ref().map_or(INVALID_ID, |s| s.raw.raft.leader_id);
        if leader == INVALID_ID || self.node_of(RaftId(leader)) != Some(node) || self.settling() == Settling::Snapshot {
            return;
        }
        let delay = self.dice.up_to(self.config.hint_spread);
        let left = self.config.hint_tries;
        let Some(seat) = self.seat.as_mut().filter(|s| s.raw.raft.state == StateRole::Follower && !s.removed) else {
            return;
        };
        let term = seat.raw.raft.term;
        seat.raw.raft.become_follower(term, INVALID_ID);
        if seat.raw.raft.promotable() {
            seat.hint = Some(Hint { at: now + delay, left });
        }
    }

    pub(super) fn fire_hint(&mut self, now: Moment) {
        let (settling, idle_disk) = (self.settling(), self.in_flight.is_empty());
        let Some(seat) = self.seat.as_mut() else { return };
        let Some(hint) = seat.hint.as_mut().filter(|h| h.at <= now) else { return };
        let raft = &seat.raw.raft;
        let may = raft.leader_id == INVALID_ID && raft.promotable() && settling != Settling::Snapshot;
        if !may || hint.left == 0 {
            seat.hint = None;
            return;
        }
        hint.left -= 1;
        hint.at = now + self.config.hint_again + self.dice.up_to(self.config.hint_again);
        if idle_disk || !raft.prs().is_singleton() {
            let _already_leads = seat.raw.campaign();
        }
        self.settle(now);
    }

    /// Somebody else got the vote: likely a second candidate, and neither will win. The sooner one of us tries again
    /// the better, and again at random.
    pub(super) fn vote_refused(&mut self, now: Moment) {
        let delay = self.dice.up_to(self.config.hint_spread);
        let Some(seat) = self.seat.as_mut().filter(|s| s.raw.raft.state == StateRole::Candidate) else { return };
        if let Some(hint) = seat.hint.as_mut() {
            hint.at = hint.at.min(now + delay);
        }
    }

    /// Somebody who may win asks for our vote: two of us would only split it.
    pub(super) fn vote_asked(&mut self, now: Moment, index: u64, log_term: u64) {
        let delay = self.dice.up_to(self.config.hint_again);
        let Some(seat) = self.seat.as_mut() else { return };
        if let Some(hint) = seat.hint.as_mut().filter(|_| seat.raw.raft.raft_log.is_up_to_date(index, log_term)) {
            hint.at = hint.at.max(now + self.config.hint_again + delay);
        }
    }

    /// Raft ignores an impossible target silently, so we judge it first and watch for the outcome.
    pub(super) fn transfer_leadership(&mut self, now: Moment, ask: AskId, to: Option<NodeId>) {
        match self.transfer_target(now, to) {
            Ok(target) if Some(target) == self.seat.as_ref().map(|s| s.id) => {
                self.out.answers.push(Answer::Transferred(ask, Ok(self.me)));
            }
            Ok(target) => {
                self.flush_proposals(now); // raft takes none while it transfers; these came before
                let seat = self.seat.as_mut().expect("a leader has a seat");
                seat.raw.transfer_leader(target.0);
                let (until, again) = (now + self.config.transfer_wait, now + self.config.hint_again);
                self.transfer = Some(Transfer { ask, to: target, until, again });
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
        let seat = self.seat.as_ref().expect("a leader has a seat");
        let voters = seat.raw.raft.prs().conf().voters();
        if let Some(node) = to {
            let target = self.tables.seat_of(node).filter(|m| voters.contains(m.raft_id.0)).map(|m| m.raft_id);
            return target.ok_or_else(|| Self::refused("voter", node));
        }
        let recent = |id: u64| seat.acked.get(&id).is_some_and(|at| now.since(*at) < self.config.election_timeout);
        let others = || seat.raw.raft.prs().iter().filter(|(id, _)| **id != seat.id.0 && voters.contains(**id));
        let best = others().filter(|(id, _)| recent(**id)).max_by_key(|(id, pr)| (pr.matched, std::cmp::Reverse(**id)));
        match best {
            Some((id, _)) => Ok(RaftId(*id)),
            None if others().count() == 0 => Err(ProposeError::Refused(CommandRefusal::LastManager)),
            None => Err(ProposeError::NoQuorum { missing: self.missing_voters(now).1 }),
        }
    }

    /// The heir's first campaign may be lost as any message may. The ordinary timeout would be the next.
    pub(super) fn told_to_lead(&mut self, now: Moment) {
        let (delay, left) = (self.dice.up_to(self.config.hint_again), self.config.hint_tries);
        let Some(seat) = self.seat.as_mut().filter(|s| s.raw.raft.state == StateRole::Candidate) else { return };
        seat.hint = Some(Hint { at: now + self.config.hint_again + delay, left });
    }

    fn judge_transfer(&mut self, now: Moment) {
        let Some(transfer) = self.transfer.as_mut() else { return };
        let Some(seat) = self.seat.as_mut() else { return };
        let leads = seat.raw.raft.state == StateRole::Leader;
        let given_up = leads && seat.raw.raft.lead_transferee.is_none();
        if given_up || transfer.until <= now {
            seat.raw.raft.abort_leader_transfer();
            let ask = transfer.ask;
            self.transfer = None;
            let why = if leads { ProposeError::TimedOut } else { ProposeError::UnknownOutcome };
            self.out.answers.push(Answer::Transferred(ask, Err(why)));
        } else if leads && transfer.again <= now {
            // Raft says it once, and gives up after an election timeout. It is the same transfer: its time runs on.
            transfer.again = now + self.config.hint_again;
            let elapsed = seat.raw.raft.election_elapsed;
            seat.raw.raft.abort_leader_transfer();
            seat.raw.transfer_leader(transfer.to.0);
            seat.raw.raft.election_elapsed = elapsed;
        }
    }
}
