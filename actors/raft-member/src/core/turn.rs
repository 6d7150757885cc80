//! One turn: the inputs since the last one become messages, writes, applied entries and answers.

use std::sync::Arc;
use std::time::Duration;

use muster_messages::protocol::ProposeError;
use muster_messages::wire::SnapshotHead;
use muster_messages::{Moment, RaftId, Revision};
use raft::eraftpb::{Message, MessageType};
use raft::{GetEntriesContext, INVALID_ID, Ready, SnapshotStatus, StateRole, Storage as _};

use super::internals::Internals;
use super::log::{conf_state, entry_bytes};
use super::packets::{self, Settling};
use super::transfers::Matched;
use super::{
    Answer, Batch, Compaction, CoreFault, Durable, HardMark, InFlight, Incompatible, Installing, LogPoint, Notice,
    Outbound, OutboundSnapshot, RaftCore, SnapshotJob, StateSize,
};

/// Raft `Ready` rounds in one turn; the remaining ones run in the next turn, so that inputs are handled in between.
const MAX_ROUNDS: usize = 16;

/// The pause after a snapshot that could not be written. Otherwise every entry would trigger another one, and encoding takes a
/// core: a full disk must cost only space.
const SNAPSHOT_RETRY_PAUSE: Duration = Duration::from_secs(10);
/// The write rate is averaged over `keep_time`: thirty marks suffice.
const RATE_MARK_EVERY: Duration = Duration::from_secs(1);

impl RaftCore {
    /// Handles the inputs since the last turn.
    pub fn turn(&mut self, now: Moment) -> Result<Batch, CoreFault> {
        self.flush_proposals(now);
        let mut rounds = 0;
        if self.incompatible().is_none() {
            self.announce_commit(now);
            self.start_reads(now);
            self.send_reachability_rounds(now);
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
        self.publish(now);
        let applied = self.tables.revision.0;
        for ask in self.reads.take_ready(applied) {
            self.out.answers.push(Answer::Read(ask, Ok(Arc::clone(&self.replica))));
        }
        self.end_reachability_checks(now);
        self.out.again = rounds == MAX_ROUNDS;
        self.plan_commit_announcement(now);
        self.out.wake_at =
            self.member.as_ref().and_then(|s| s.hint.iter().map(|h| h.at).chain(s.announce_commit_at).min());
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
                member.announced_commit = member.raw.committed();
                member.announce_commit_at = None;
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

    /// Followers learn of a commit with the next append. A separate message is sent only if no append follows within
    /// `commit_news`. (Raft would send one to each follower at every commit.)
    fn announce_commit(&mut self, now: Moment) {
        let Some(member) = self.member.as_mut().filter(|s| s.announce_commit_at.is_some_and(|at| at <= now)) else {
            return;
        };
        member.announce_commit_at = None;
        if member.raw.leads() && member.raw.committed() > member.announced_commit {
            member.announced_commit = member.raw.committed();
            member.raw.announce_commit();
        }
    }

    fn plan_commit_announcement(&mut self, now: Moment) {
        let Some(member) = self.member.as_mut() else { return };
        let news = member.raw.leads() && member.raw.committed() > member.announced_commit;
        member.announce_commit_at = news.then(|| member.announce_commit_at.unwrap_or(now + self.config.commit_news));
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
        let leads = member.raw.leads();
        let term = member.raw.term();
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
            // Nothing to write: as durable as the writes in flight before it.
            None => match self.in_flight.back_mut() {
                Some(flight) => flight.ready = number,
                None => self.member.as_mut().expect("only a member has rounds").raw.on_persist_ready(number),
            },
        }
        let outbound = self.address(now, messages);
        // DURABLE-2. A leader replicates before its own write is durable, but only once its term is: a lone voter is elected at
        // once, and would otherwise lead the same term twice after a crash.
        let waits_for = self
            .in_flight
            .back()
            .map(|f| f.write)
            .filter(|_| !(bugs.vote_before_sync || leads && self.durable.term == term));
        match waits_for {
            Some(write) => self.held.push_back((write, outbound)),
            None => self.out.send.extend(outbound),
        }
        self.apply(now, committed)
    }

    /// Moves what must be durable from a `Ready` into the log in memory and into a write.
    fn write_of(&mut self, ready: &mut Ready) -> Option<(Durable, Settling)> {
        let hard = ready.hs().map(|hs| HardMark { term: hs.term, vote: hs.vote, commit: hs.commit });
        // A new commit index alone can wait for the next write: after a crash raft finds it again.
        let promised = hard.is_some_and(|h| (h.term, h.vote) != (self.hard.term, self.hard.vote));
        self.hard = hard.unwrap_or(self.hard);
        let mut write = Durable { sync: ready.must_sync(), entries: ready.take_entries(), ..self.new_write() };
        let member = self.member.as_mut().expect("only a member has rounds");
        let mut settling = if write.entries.is_empty() { Settling::Nothing } else { Settling::Entries };
        if !ready.snapshot().is_empty() {
            let (head, tables, data) = member.incoming.take().expect("raft installs the received snapshot");
            let at = LogPoint { index: head.index, term: head.term };
            assert_eq!(ready.snapshot().get_metadata().index, head.index, "raft installs the snapshot kept for it");
            member.raw.mut_store().install(at);
            let conf = conf_state(&head.voters, &head.learners);
            member.installing = Some(Installing { write: write.number, at, conf, tables });
            settling = Settling::Snapshot;
            self.snapshot_index = head.index;
            self.bytes_since_snapshot = 0;
            self.size = StateSize::measured(head.bytes);
            write.install = Some((head, data));
        }
        member.raw.mut_store().append(&write.entries);
        let anything = promised || settling != Settling::Nothing;
        anything.then_some((write, settling))
    }

    /// The next write, empty.
    pub(super) fn new_write(&self) -> Durable {
        Durable { number: self.next_write, hard: self.hard, ..Durable::default() }
    }
    pub(super) fn write(&mut self, now: Moment, write: Durable, ready: u64, settling: Settling) {
        debug_assert_eq!(write.number, self.next_write);
        self.next_write += 1;
        self.in_flight.push_back(InFlight { write: write.number, ready, issued: now, settling, hard: write.hard });
        self.out.make_durable.push(write);
    }
    /// The most critical kind of write in flight.
    pub(super) fn settling(&self) -> Settling {
        self.in_flight.iter().map(|f| f.settling).max().unwrap_or(Settling::Nothing)
    }

    /// The disk has everything up to this write.
    pub(super) fn persisted(&mut self, number: u64) {
        let mut ready = 0;
        while let Some(flight) = self.in_flight.front()
            && flight.write <= number
        {
            ready = ready.max(flight.ready);
            self.durable = flight.hard;
            self.in_flight.pop_front();
        }
        if let Some(member) = self.member.as_mut() {
            if ready > 0 {
                member.raw.on_persist_ready(ready);
            }
            if let Some(done) = member.installing.take_if(|i| i.write <= number) {
                member.raw.advance_apply_to(done.at.index);
                member.raw.mut_store().set_applied(done.at);
                member.raw.mut_store().set_conf(done.conf);
                member.removed = done.tables.removed_raft_ids.contains(&member.id);
                self.tables = done.tables;
                self.digests.forget_all();
                self.proposals.forget(&mut self.out.answers);
                self.out.installed = Some(Revision(done.at.index));
                self.out.notices.push(Notice::Installed { index: done.at.index });
            }
        }
        while let Some((write, _)) = self.held.front()
            && *write <= number
        {
            let (_, outbound) = self.held.pop_front().expect("there is a front");
            self.out.send.extend(outbound);
        }
    }

    /// Turns raft's messages into packets with a destination.
    fn address(&mut self, now: Moment, messages: Vec<Message>) -> Vec<Outbound> {
        let mut outbound = Vec::with_capacity(messages.len());
        for message in messages {
            let to = RaftId(message.to);
            let destination = match self.tables.members.get(&to) {
                Some(m) => Some((m.node, m.addr.clone())),
                None => self.last_received.get(&to).map(|by| (by.node, String::new())),
            };
            let is_snapshot = message.get_msg_type() == MessageType::MsgSnapshot;
            match (destination, packets::outgoing(&message)) {
                (Some((node, addr)), Some(mut packet)) if is_snapshot => {
                    let job = self.shared_job(to.0);
                    packet.snapshot = Some(job.head(0, [0; 32]));
                    let member = self.member.as_mut().expect("only a member sends messages");
                    self.out.notices.push(Notice::Sending { to, index: job.index });
                    if let Some(why) = member.transfers.begin(now, to.0, node, job.index) {
                        self.out.notices.push(Notice::SnapshotNotTaken { to, why });
                    }
                    self.out.send_snapshots.push(OutboundSnapshot { node, addr, packet, job });
                }
                (Some((node, addr)), Some(packet)) => outbound.push(Outbound { node, addr, packet }),
                _ => {
                    *self.counters.entry("sent_nowhere").or_default() += 1;
                    if is_snapshot {
                        let member = self.member.as_mut().expect("only a member sends messages");
                        member.raw.report_snapshot(to.0, SnapshotStatus::Failure);
                    }
                }
            }
        }
        outbound
    }

    /// The applied state. It may be newer than what raft asked for: it is committed.
    fn snapshot_job(&self) -> SnapshotJob {
        let log = self.member.as_ref().expect("only a member takes snapshots").raw.store();
        let (at, conf) = (log.applied(), log.conf());
        assert_eq!(at.index, self.tables.revision.0, "a snapshot holds the state applied at its index");
        SnapshotJob::new(at, (conf.voters.clone(), conf.learners.clone()), self.tables.clone())
    }

    /// The snapshot to send to a member: an earlier one if it can still be used.
    fn shared_job(&mut self, to: u64) -> SnapshotJob {
        let member = self.member.as_ref().expect("only a member takes snapshots");
        let usable = member.transfers.job().filter(|job| member.raw.store().offers(to, job.index)).cloned();
        usable.unwrap_or_else(|| {
            let job = self.snapshot_job();
            let member = self.member.as_mut().expect("only a member takes snapshots");
            let offer = (LogPoint { index: job.index, term: job.term }, conf_state(&job.voters, &job.learners));
            member.raw.mut_store().set_offer(Some(offer));
            member.transfers.share(job.clone());
            job
        })
    }

    /// How many entries behind a snapshot are kept: enough for a follower that was away for `keep_time`, within `keep_bytes`.
    fn kept_entries(&self, last: u64) -> u64 {
        let written = self.marks.front().map_or(0, |(_, index)| last.saturating_sub(*index));
        self.config.keep_entries.max(written)
    }

    /// Records the end of the log once a second.
    pub(super) fn mark_rate(&mut self, now: Moment) {
        let Some(member) = self.member.as_ref() else { return };
        if self.marks.back().is_none_or(|(at, _)| now.since(*at) >= RATE_MARK_EVERY) {
            self.marks.push_back((now, member.raw.last_index()));
        }
        while self.marks.front().is_some_and(|(at, _)| now.since(*at) > self.config.keep_time) {
            self.marks.pop_front();
        }
    }

    fn consider_snapshot(&mut self, now: Moment) {
        let Some(member) = self.member.as_ref() else { return };
        let since = self.tables.revision.0.saturating_sub(self.snapshot_index);
        // A write is refused for lack of room only by a measured size.
        let measure = since > 0 && self.size.wants_measure(&self.config);
        let due = measure
            || since >= self.config.snapshot_entries
            || (since > 0 && self.bytes_since_snapshot >= self.config.snapshot_bytes);
        let later = self.snapshot_failed.is_some_and(|at| now.since(at) < SNAPSHOT_RETRY_PAUSE);
        if due && !later && !self.taking_snapshot && member.installing.is_none() {
            self.taking_snapshot = true;
            self.bytes_since_snapshot = 0;
            self.size.measuring();
            self.out.take_snapshot = Some(self.snapshot_job());
        }
    }

    /// The snapshot file is durable: start from it, and discard most of the log before it.
    pub(super) fn snapshot_taken(&mut self, now: Moment, head: Option<SnapshotHead>) {
        if !std::mem::take(&mut self.taking_snapshot) {
            return;
        }
        self.snapshot_failed = head.is_none().then_some(now);
        if let Some(head) = &head {
            self.size.measured_now(head.bytes);
        }
        let entries = self.member.as_ref().map_or(0, |s| self.kept_entries(s.raw.last_index()));
        let Some(member) = self.member.as_mut() else { return };
        let Some(head) = head.filter(|h| h.index > self.snapshot_index && member.installing.is_none()) else { return };
        let log = member.raw.store();
        let prs = member.raw.tracker();
        let needed = member.transfers.floor(|id| Some(Matched { index: prs.get(id)?.matched, caught_up: false }));
        let mut keep_after = log.compaction_point(head.index, entries, self.config.keep_bytes);
        // SNAP-1
        let needed = needed.filter(|_| !self.config.injected_bugs().cut_behind_transfers);
        if let Some(floor) = needed.filter(|floor| *floor < keep_after.index) {
            keep_after = log.position_within(floor, self.config.transfer_bytes.max(2 * head.bytes)).min(keep_after);
        }
        member.raw.mut_store().compact(keep_after);
        self.snapshot_index = head.index;
        let write = Durable { sync: true, compact: Some(Compaction { head, keep_after }), ..self.new_write() };
        self.write(now, write, 0, Settling::Nothing);
    }
}

impl RaftCore {
    /// Everything handed to the disk so far, as a snapshot and one write: for replacing a disk that cannot be trusted. `None`
    /// while a received snapshot is being written to that disk. Later writes follow it.
    pub fn everything(&mut self) -> Option<(SnapshotJob, Durable)> {
        let member = self.member.as_mut().filter(|s| s.installing.is_none())?;
        let log = member.raw.store();
        let (at, last) = (log.applied(), log.last());
        let whole = |at: LogPoint| log.entries(at.index + 1, last + 1, None, GetEntriesContext::empty(false)).ok();
        let entries = if at.index < last { whole(at)? } else { Vec::new() };
        // The new log begins here.
        member.raw.mut_store().compact(at);
        let id = member.id;
        self.snapshot_index = at.index;
        self.bytes_since_snapshot = entries.iter().map(entry_bytes).sum();
        let number = self.next_write - 1;
        let write =
            Durable { number, sync: true, start_over: Some(id), entries, hard: self.hard, ..Durable::default() };
        Some((self.snapshot_job(), write))
    }
}

/// The context of a round's heartbeats; the answers return it.
pub(super) fn round_context(member_id: RaftId, nonce: u64, round: u64) -> Vec<u8> {
    [member_id.0, nonce, round].iter().flat_map(|n| n.to_be_bytes()).collect()
}

/// The round of a context that this member sent.
pub(super) fn round_of(context: &[u8], member_id: RaftId, nonce: u64) -> Option<u64> {
    let (own, round) = context.split_at_checked(16)?;
    let ours = own[..8] == member_id.0.to_be_bytes() && own[8..] == nonce.to_be_bytes();
    ours.then_some(u64::from_be_bytes(round.try_into().ok()?))
}
