//! One turn: the inputs since the last one become messages, writes, applied entries and answers.

use std::sync::Arc;

use muster_messages::protocol::ProposeError;
use muster_messages::wire::SnapshotHead;
use muster_messages::{CommandRefusal, IDENTITY_LEVEL, MembershipChangeKind, Moment, RaftId, Revision};
use muster_store::deleted_between;
use raft::eraftpb::{ConfChangeType, Entry, Message, MessageType};
use raft::{GetEntriesContext, INVALID_ID, Ready, SnapshotStatus, StateRole, Storage as _};

use super::internals::Internals;
use super::log::entry_bytes;
use super::reachability::Ended;
use super::reads::{round_context, round_of};
use super::{
    Answer, Batch, Compaction, CoreFault, Durable, HardMark, Incompatible, LogPoint, Notice, Outbound,
    OutboundSnapshot, RaftCore, Settling, SnapshotJob, packets,
};

/// Raft `Ready` rounds in one turn; the remaining ones run in the next turn, so that inputs are handled in between.
const MAX_ROUNDS: usize = 16;

impl RaftCore {
    /// Handles the inputs since the last turn.
    pub fn turn(&mut self, now: Moment) -> Result<Batch, CoreFault> {
        // First: a membership change whose check has ended enters the log in this turn.
        self.end_reachability_checks(now);
        self.flush_proposals(now);
        let mut rounds = 0;
        if self.incompatible().is_none() {
            self.announce_commit(now);
            self.start_reads(now);
            if let Some(member) = self.member.as_mut().filter(|s| s.raw.leads()) {
                let retry = self.config.read_retry;
                self.reachability.send_rounds(now, member.id, self.nonce, retry, &mut member.raw);
            }
        }
        // LEVEL-2
        while self.incompatible().is_none()
            && self.member.as_ref().is_some_and(|s| s.raw.has_ready())
            && rounds < MAX_ROUNDS
        {
            self.round(now)?;
            self.settle(now);
            rounds += 1;
        }
        match self.incompatible() {
            Some(level) => self.out.incompatible = Some(Incompatible::Level(level)),
            None => self.consider_snapshot(now),
        }
        let status = self.status(now);
        self.publication.update(now, self.state.tables(), status, self.config.publish_every, &mut self.out);
        for ask in self.reads.take_ready(self.state.applied()) {
            self.out.answers.push(Answer::Read(ask, Ok(Arc::clone(self.publication.replica()))));
        }
        self.out.again = rounds == MAX_ROUNDS;
        if let Some(member) = self.member.as_mut() {
            member.commit_news.plan(now, member.committed_as_leader(), self.config.commit_news);
            self.out.wake_at = member.hint.iter().map(|h| h.at).chain(member.commit_news.at()).min();
        }
        Ok(std::mem::take(&mut self.out))
    }

    /// All proposals of a turn enter the log as one message to raft: one append per follower, one write.
    pub(super) fn flush_proposals(&mut self, now: Moment) {
        if !self.proposals.has_queued() {
            return;
        }
        if !self.leads() {
            let refusal = self.not_leader(now);
            let refused = self.proposals.take_queued();
            self.out.answers.extend(refused.into_iter().map(|q| Answer::Proposed(q.ask, Err(refusal.clone()))));
            return;
        }
        let member = self.member.as_mut().expect("a leader is a member");
        if member.raw.is_transferring() {
            return; // raft would drop them; they wait for the outcome of the transfer
        }
        let queued = self.proposals.take_queued();
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = member.id.0;
        message.set_entries(queued.iter().map(|q| q.entry.clone()).collect::<Vec<_>>().into());
        let first = member.raw.last_index() + 1;
        match member.raw.propose_all(message) {
            Ok(()) => {
                let term = member.raw.term();
                // The appends carry the commit index.
                member.commit_news.carried(member.raw.committed());
                let entered =
                    queued.into_iter().map(|q| (q.ask, q.deadline, entry_bytes(&q.entry) as usize, q.membership));
                self.proposals.entered(first, term, entered);
            }
            // Too much is uncommitted, or this leader was just removed: nothing entered the log.
            Err(_) => {
                self.out.answers.extend(queued.into_iter().map(|q| Answer::Proposed(q.ask, Err(ProposeError::Busy))))
            }
        }
    }

    fn announce_commit(&mut self, now: Moment) {
        let Some(member) = self.member.as_mut() else { return };
        if member.commit_news.take_due(now, member.committed_as_leader()) {
            member.raw.announce_commit();
        }
    }

    fn start_reads(&mut self, now: Moment) {
        self.reads.retry(now - self.config.read_retry);
        while self.reads.wants_round(self.config.read_rounds) {
            let Some(member) = self.member.as_mut().filter(|s| !s.removed) else { return };
            if self.config.injected_bugs().read_without_asking {
                let round = self.reads.start_round(now);
                self.reads.confirmed(round, 0);
                continue;
            }
            // Raft would drop the read without an answer.
            let answered = match member.raw.role() {
                StateRole::Leader => member.raw.has_committed_in_its_term(),
                StateRole::Follower => member.raw.leader_id() != INVALID_ID,
                _ => false,
            };
            if !answered {
                return;
            }
            let round = self.reads.start_round(now);
            member.raw.read_index(round_context(member.id, self.nonce, round));
        }
    }

    /// One `Ready` of raft.
    fn round(&mut self, now: Moment) -> Result<(), CoreFault> {
        let bugs = self.config.injected_bugs();
        let member = self.member.as_mut().expect("only a member has rounds");
        let leads = member.raw.leads().then(|| member.raw.term());
        let mut ready = member.raw.ready();
        let number = ready.number();
        let write = self.write_of(&mut ready);
        let member = self.member.as_mut().expect("only a member has rounds");
        let mut messages = ready.take_messages();
        messages.extend(ready.take_persisted_messages());
        let committed = ready.take_committed_entries();
        for state in ready.take_read_states() {
            if let Some(round) = round_of(&state.request_ctx, member.id, self.nonce) {
                self.reads.confirmed(round, state.index);
            }
        }
        member.raw.advance_append_async(ready);
        match write {
            Some((write, settling)) => {
                let write_number = write.number;
                self.write(now, write, number, settling);
                if bugs.ack_before_sync {
                    self.persisted(write_number);
                }
            }
            None if self.writes.join(number) => {}
            None => member.raw.on_persist_ready(number),
        }
        let outbound = self.address(now, messages);
        if bugs.vote_before_sync {
            self.out.send.extend(outbound);
        } else {
            self.writes.send(outbound, leads, &mut self.out.send);
        }
        self.apply(now, committed)
    }

    /// Moves what must be durable from a `Ready` into the log in memory and into a write.
    fn write_of(&mut self, ready: &mut Ready) -> Option<(Durable, Settling)> {
        let hard = ready.hs().map(|hs| HardMark { term: hs.term, vote: hs.vote, commit: hs.commit });
        let promised = hard.is_some_and(|hard| self.writes.promise(hard));
        let mut write = Durable { sync: ready.must_sync(), entries: ready.take_entries(), ..self.writes.next() };
        let member = self.member.as_mut().expect("only a member has rounds");
        let mut settling = if write.entries.is_empty() { Settling::Nothing } else { Settling::Entries };
        if !ready.snapshot().is_empty() {
            let index = ready.snapshot().get_metadata().index;
            let (head, data) = member.installation.begin(write.number, index, member.raw.mut_store());
            settling = Settling::Snapshot;
            self.snapshots.installed(&head);
            write.install = Some((head, data));
        }
        member.raw.mut_store().append(&write.entries);
        let anything = promised || settling != Settling::Nothing;
        anything.then_some((write, settling))
    }

    pub(super) fn write(&mut self, now: Moment, write: Durable, ready: u64, settling: Settling) {
        self.writes.issue(now, &write, ready, settling);
        self.out.make_durable.push(write);
    }

    /// The disk has everything up to this write.
    pub(super) fn persisted(&mut self, number: u64) {
        let ready = self.writes.persisted(number, &mut self.out.send);
        let Some(member) = self.member.as_mut() else { return };
        if ready > 0 {
            member.raw.on_persist_ready(ready);
        }
        if let Some((tables, index)) = member.installation.persisted(number, &mut member.raw) {
            self.state.install(tables);
            member.removed = self.state.is_removed(member.id);
            self.digests.forget_all();
            self.publication.applied(false);
            self.proposals.forget(&mut self.out.answers);
            self.out.installed = Some(Revision(index));
            self.out.notices.push(Notice::Installed { index });
        }
    }

    /// Turns raft's messages into packets with a destination.
    fn address(&mut self, now: Moment, messages: Vec<Message>) -> Vec<Outbound> {
        let mut outbound = Vec::with_capacity(messages.len());
        let member = self.member.as_mut().expect("only a member sends messages");
        for message in messages {
            let to = RaftId(message.to);
            let destination = self.peers.destination(self.state.tables(), to);
            let is_snapshot = message.get_msg_type() == MessageType::MsgSnapshot;
            match (destination, packets::outgoing(&message)) {
                (Some((node, addr)), Some(mut packet)) if is_snapshot => {
                    let job = member.begin_transfer(now, (to, node), self.state.tables(), &mut self.out);
                    packet.snapshot = Some(job.head(0, [0; 32]));
                    self.out.send_snapshots.push(OutboundSnapshot { node, addr, packet, job });
                }
                (Some((node, addr)), Some(packet)) => outbound.push(Outbound { node, addr, packet }),
                _ => {
                    *self.counters.entry("sent_nowhere").or_default() += 1;
                    if is_snapshot {
                        member.raw.report_snapshot(to.0, SnapshotStatus::Failure);
                    }
                }
            }
        }
        outbound
    }

    fn apply(&mut self, now: Moment, committed: Vec<Entry>) -> Result<(), CoreFault> {
        if committed.is_empty() {
            return Ok(());
        }
        let mut removed = false;
        for entry in committed {
            if self.incompatible().is_some() {
                break;
            }
            self.snapshots.applied(entry_bytes(&entry));
            let member = self.member.as_mut().expect("only a member has entries");
            let before = self.state.tables().reconcilers.objects.clone();
            let applied = self.state.apply(&entry, &self.config.limits, &mut self.out.changes, |change| {
                // Raft may build a snapshot message here. It is completed when it is sent, from the state at that time.
                let conf = member.raw.apply_conf_change(change);
                let conf = conf.map_err(|e| CommandRefusal::Stale { what: e.to_string() })?;
                member.raw.mut_store().set_conf(conf);
                // Its id is as new as this leader's term, so its log is empty. One that an earlier leader added may hold much of the log.
                let is_new =
                    change.get_change_type() == ConfChangeType::AddLearnerNode && entry.term == member.raw.term();
                if is_new && member.raw.leads() {
                    member.raw.send_first_append(change.node_id);
                }
                Ok(())
            })?;
            let tables = self.state.tables();
            self.out.deletions.extend(deleted_between(tables.revision, &before, &tables.reconcilers.objects));
            if let Some(change) = &applied.membership {
                let own = MembershipChangeKind::Remove { raft_id: member.id };
                match &applied.outcome {
                    Ok(()) => removed |= change.kind == own,
                    Err(refusal) => self.out.notices.push(Notice::MembershipRefused { why: refusal.to_string() }),
                }
            }
            member.raw.mut_store().set_applied(applied.at);
            self.publication.applied(applied.of_objects);
            self.consider_digest();
            self.proposals.applied(applied.at, &applied.outcome, &mut self.out.answers);
        }
        let member = self.member.as_mut().expect("only a member has entries");
        member.raw.advance_apply_to(self.state.applied());
        // LEVEL-2. The others elect a compatible leader.
        if self.incompatible().is_some() && self.leads() {
            self.member.as_mut().expect("a leader is a member").raw.step_down();
            self.settle(now);
        }
        if removed {
            self.leave(now);
        }
        Ok(())
    }

    /// Members compare their states at some indices. An earlier build cannot read the digests.
    fn consider_digest(&mut self) {
        let (index, every) = (self.state.applied(), self.config.digest_every);
        let compared = every > 0 && index.is_multiple_of(every) && self.state.feature_level() >= IDENTITY_LEVEL;
        if compared && let Some(job) = self.digests.begin(index, self.state.tables()) {
            self.out.digest_state = Some(job);
        }
    }

    /// This member was removed. A leader has sent the commit to the others in the same round; it steps down, because
    /// raft must commit nothing as a leader that is not a member.
    fn leave(&mut self, now: Moment) {
        let member = self.member.as_mut().expect("only a member has entries");
        member.removed = true;
        member.hint = None;
        if member.raw.leads() {
            member.raw.step_down();
        }
        self.out.notices.push(Notice::MemberRemoved { raft_id: member.id });
        self.settle(now);
    }

    fn consider_snapshot(&mut self, now: Moment) {
        let Some(member) = self.member.as_ref().filter(|s| !s.installation.is_writing()) else { return };
        if self.snapshots.is_due(now, self.state.applied(), &self.config) {
            self.snapshots.begin();
            self.out.take_snapshot = Some(member.snapshot_job(self.state.tables()));
        }
    }

    /// The snapshot file is durable: start from it, and discard most of the log before it.
    pub(super) fn snapshot_taken(&mut self, now: Moment, head: Option<SnapshotHead>) {
        let Some(head) = self.snapshots.end(now, head) else { return };
        let Some(member) = self.member.as_mut().filter(|s| !s.installation.is_writing()) else { return };
        let entries = self.snapshots.kept_entries(member.raw.last_index(), &self.config);
        let keep_after = member.compact(&head, entries, &self.config);
        self.snapshots.starts_from(head.index);
        let write = Durable { sync: true, compact: Some(Compaction { head, keep_after }), ..self.writes.next() };
        self.write(now, write, 0, Settling::Nothing);
    }

    /// Whether a confirmed membership change would not enter the log at once, and the answers of its voters would be old when it does:
    /// leadership is being transferred, or this member leads in a later term than when it took the change on (a lone voter may).
    fn membership_must_wait(&self) -> bool {
        self.membership_unsettled() || self.member.as_ref().is_some_and(|s| s.raw.is_transferring())
    }

    fn end_reachability_checks(&mut self, now: Moment) {
        let mut checks = std::mem::take(&mut self.reachability);
        let ended = match self.member.as_ref().filter(|s| s.raw.leads()) {
            Some(member) => checks.end(now, member.id, |id| self.can_follow(id)),
            None => checks.refuse(|| self.not_leader(now)),
        };
        self.reachability = checks;
        for ended in ended {
            match ended {
                Ended::Answered(answer) => self.out.answers.push(answer),
                Ended::Confirmed { ask, .. } if self.membership_must_wait() => {
                    self.out.answers.push(Answer::Proposed(ask, Err(ProposeError::MembershipBusy)));
                }
                Ended::Confirmed { ask, change, since } => self.queue_membership(ask, &change, since),
            }
        }
    }

    /// Everything handed to the disk so far, as a snapshot and one write: for replacing a disk that cannot be trusted. `None`
    /// while a received snapshot is being written to that disk. Later writes follow it.
    pub fn everything(&mut self) -> Option<(SnapshotJob, Durable)> {
        let member = self.member.as_mut().filter(|s| !s.installation.is_writing())?;
        let log = member.raw.store();
        let (at, last) = (log.applied(), log.last());
        let whole = |at: LogPoint| log.entries(at.index + 1, last + 1, None, GetEntriesContext::empty(false)).ok();
        let entries = if at.index < last { whole(at)? } else { Vec::new() };
        // The new log begins here.
        member.raw.mut_store().compact(at);
        let id = member.id;
        self.snapshots.rewritten(at.index, entries.iter().map(entry_bytes).sum());
        let write = Durable { sync: true, start_over: Some(id), entries, ..self.writes.repeated() };
        Some((member.snapshot_job(self.state.tables()), write))
    }
}
