//! One turn: everything heard since the last one becomes messages, writes, applied entries and answers.

use std::sync::Arc;
use std::time::Duration;

use muster_messages::protocol::ProposeError;
use muster_messages::wire::SnapshotHead;
use muster_messages::{Moment, RaftId, Revision};
use raft::eraftpb::{Message, MessageType};
use raft::{GetEntriesContext, INVALID_ID, Ready, SnapshotStatus, StateRole, Storage as _};

use super::log::{conf_state, entry_bytes};
use super::packets::{self, Settling};
use super::transfers::Matched;
use super::{
    Answer, Batch, Compaction, CoreFault, Durable, HardMark, InFlight, Installing, LogPoint, Notice, Outbound,
    OutboundSnapshot, Outgrown, RaftCore, SnapshotJob, StateSize,
};

/// Rounds of raft's `Ready` in one turn; what is left over comes in the next one, so that inputs are heard between.
const MAX_ROUNDS: usize = 16;

/// After a snapshot that could not be written. One is due with every entry then, and encoding it takes a core: a full
/// disk must not cost more than space.
const SNAPSHOT_AGAIN: Duration = Duration::from_secs(10);
/// The rate of writes is averaged over `keep_time`: thirty marks of it are enough.
const RATE_MARK_EVERY: Duration = Duration::from_secs(1);

impl RaftCore {
    /// Does what the inputs since the last turn call for.
    pub fn turn(&mut self, now: Moment) -> Result<Batch, CoreFault> {
        self.flush_proposals(now);
        let mut rounds = 0;
        if self.outgrown().is_none() {
            self.tell_commit(now);
            self.start_reads(now);
            self.send_reachability_rounds(now);
        }
        // LEVEL-2
        while self.outgrown().is_none() && self.seat.as_ref().is_some_and(|s| s.raw.has_ready()) && rounds < MAX_ROUNDS
        {
            self.round(now)?;
            self.settle(now);
            rounds += 1;
        }
        match self.outgrown() {
            Some(level) => self.out.outgrown = Some(Outgrown::Level(level)),
            None => self.consider_snapshot(now),
        }
        self.publish(now);
        let applied = self.tables.revision.0;
        for ask in self.reads.take_ready(applied) {
            self.out.answers.push(Answer::Read(ask, Ok(Arc::clone(&self.replica))));
        }
        self.end_reachability_checks(now);
        self.out.again = rounds == MAX_ROUNDS;
        self.plan_commit_news(now);
        self.out.wake_at = self.seat.as_ref().and_then(|s| s.hint.iter().map(|h| h.at).chain(s.tell_commit_at).min());
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
        let seat = self.seat.as_mut().expect("a leader has a seat");
        if seat.raw.raft.lead_transferee.is_some() {
            return; // raft would drop them; they wait for the outcome of the transfer
        }
        let queued = self.proposals.take_queued();
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = seat.id.0;
        message.set_entries(queued.iter().map(|q| q.entry.clone()).collect::<Vec<_>>().into());
        let first = seat.raw.raft.raft_log.last_index() + 1;
        match seat.raw.raft.step(message) {
            Ok(()) => {
                let term = seat.raw.raft.term;
                // The appends carry it.
                seat.commit_told = seat.raw.raft.raft_log.committed;
                seat.tell_commit_at = None;
                let entered = queued.into_iter().map(|q| (q.ask, q.deadline, entry_bytes(&q.entry) as usize, q.seat));
                self.proposals.entered(first, term, entered);
            }
            // Too much is uncommitted, or this leader has just been removed: nothing entered the log.
            Err(_) => {
                self.out.answers.extend(queued.into_iter().map(|q| Answer::Proposed(q.ask, Err(ProposeError::Busy))))
            }
        }
    }

    /// Followers learn of a commit with the next append: a message of its own leaves only where none follows within
    /// `commit_news`. (Raft would send one to each at every commit.)
    fn tell_commit(&mut self, now: Moment) {
        let Some(seat) = self.seat.as_mut().filter(|s| s.tell_commit_at.is_some_and(|at| at <= now)) else { return };
        seat.tell_commit_at = None;
        if seat.raw.raft.state == StateRole::Leader && seat.raw.raft.raft_log.committed > seat.commit_told {
            seat.commit_told = seat.raw.raft.raft_log.committed;
            seat.raw.raft.bcast_append();
        }
    }

    fn plan_commit_news(&mut self, now: Moment) {
        let Some(seat) = self.seat.as_mut() else { return };
        let raft = &seat.raw.raft;
        let news = raft.state == StateRole::Leader && raft.raft_log.committed > seat.commit_told;
        seat.tell_commit_at = news.then(|| seat.tell_commit_at.unwrap_or(now + self.config.commit_news));
    }

    fn start_reads(&mut self, now: Moment) {
        self.reads.retry(now - self.config.read_retry);
        while self.reads.wants_round(self.config.read_rounds) {
            let Some(seat) = self.seat.as_mut().filter(|s| !s.removed) else { return };
            if self.config.sabotaged().read_without_asking {
                let round = self.reads.start_round(now);
                self.reads.confirmed(round, 0);
                continue;
            }
            let raft = &seat.raw.raft;
            // Raft would drop it without an answer.
            let answered = match raft.state {
                StateRole::Leader => raft.commit_to_current_term(),
                StateRole::Follower => raft.leader_id != INVALID_ID,
                _ => false,
            };
            if !answered {
                return;
            }
            let round = self.reads.start_round(now);
            seat.raw.read_index(round_context(seat.id, self.nonce, round));
        }
    }

    /// One `Ready` of raft.
    fn round(&mut self, now: Moment) -> Result<(), CoreFault> {
        let sabotage = self.config.sabotaged();
        let seat = self.seat.as_mut().expect("a round has a seat");
        let leads = seat.raw.raft.state == StateRole::Leader;
        let term = seat.raw.raft.term;
        let mut ready = seat.raw.ready();
        let number = ready.number();
        let write = self.write_of(&mut ready);
        let seat = self.seat.as_mut().expect("a round has a seat");
        let mut messages = ready.take_messages();
        messages.extend(ready.take_persisted_messages());
        let committed = ready.take_committed_entries();
        for state in ready.take_read_states() {
            if let Some(round) = round_of(&state.request_ctx, seat.id, self.nonce) {
                self.reads.confirmed(round, state.index);
            }
        }
        seat.raw.advance_append_async(ready);
        match write {
            Some((write, settling)) => {
                let write_number = write.number;
                self.write(now, write, number, settling);
                if sabotage.ack_before_sync {
                    self.persisted(write_number);
                }
            }
            // Nothing to write: as durable as what is on its way before it.
            None => match self.in_flight.back_mut() {
                Some(flight) => flight.ready = number,
                None => self.seat.as_mut().expect("a round has a seat").raw.on_persist_ready(number),
            },
        }
        let outbound = self.address(now, messages);
        // DURABLE-2. A leader replicates while its own write is on its way, once its term is durable: a lone voter
        // is elected in the same breath, and would otherwise lead the same term twice after a crash.
        let waits_for = self
            .in_flight
            .back()
            .map(|f| f.write)
            .filter(|_| !(sabotage.vote_before_sync || leads && self.durable.term == term));
        match waits_for {
            Some(write) => self.held.push_back((write, outbound)),
            None => self.out.send.extend(outbound),
        }
        self.apply(now, committed)
    }

    /// Takes what must be durable out of a `Ready`, into the memory log and into a write.
    fn write_of(&mut self, ready: &mut Ready) -> Option<(Durable, Settling)> {
        let hard = ready.hs().map(|hs| HardMark { term: hs.term, vote: hs.vote, commit: hs.commit });
        // A commit index alone can wait for the next write: after a crash raft finds it again.
        let promised = hard.is_some_and(|h| (h.term, h.vote) != (self.hard.term, self.hard.vote));
        self.hard = hard.unwrap_or(self.hard);
        let mut write = Durable { sync: ready.must_sync(), entries: ready.take_entries(), ..self.new_write() };
        let seat = self.seat.as_mut().expect("a round has a seat");
        let mut settling = if write.entries.is_empty() { Settling::Nothing } else { Settling::Entries };
        if !ready.snapshot().is_empty() {
            let (head, tables, data) = seat.incoming.take().expect("raft installs the snapshot that was just received");
            let at = LogPoint { index: head.index, term: head.term };
            assert_eq!(
                ready.snapshot().get_metadata().index,
                head.index,
                "raft installs the snapshot that was kept for it"
            );
            seat.raw.mut_store().install(at);
            let conf = conf_state(&head.voters, &head.learners);
            seat.installing = Some(Installing { write: write.number, at, conf, tables });
            settling = Settling::Snapshot;
            self.snapshot_index = head.index;
            self.bytes_since_snapshot = 0;
            self.size = StateSize::measured(head.bytes);
            write.install = Some((head, data));
        }
        seat.raw.mut_store().append(&write.entries);
        let anything = promised || settling != Settling::Nothing;
        anything.then_some((write, settling))
    }

    /// An empty write, the next one.
    pub(super) fn new_write(&self) -> Durable {
        Durable { number: self.next_write, hard: self.hard, ..Durable::default() }
    }
    pub(super) fn write(&mut self, now: Moment, write: Durable, ready: u64, settling: Settling) {
        debug_assert_eq!(write.number, self.next_write);
        self.next_write += 1;
        self.in_flight.push_back(InFlight { write: write.number, ready, issued: now, settling, hard: write.hard });
        self.out.make_durable.push(write);
    }
    /// The most delicate thing on its way to the disk.
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
        if let Some(seat) = self.seat.as_mut() {
            if ready > 0 {
                seat.raw.on_persist_ready(ready);
            }
            if let Some(done) = seat.installing.take_if(|i| i.write <= number) {
                seat.raw.advance_apply_to(done.at.index);
                seat.raw.mut_store().set_applied(done.at);
                seat.raw.mut_store().set_conf(done.conf);
                seat.removed = done.tables.removed_raft_ids.contains(&seat.id);
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
            let place = match self.tables.members.get(&to) {
                Some(m) => Some((m.node, m.addr.clone())),
                None => self.heard.get(&to).map(|by| (by.node, String::new())),
            };
            let is_snapshot = message.get_msg_type() == MessageType::MsgSnapshot;
            match (place, packets::outgoing(&message)) {
                (Some((node, addr)), Some(mut packet)) if is_snapshot => {
                    let job = self.shared_job(to.0);
                    packet.snapshot = Some(job.head(0, [0; 32]));
                    let seat = self.seat.as_mut().expect("messages come from a seat");
                    self.out.notices.push(Notice::Sending { to, index: job.index });
                    if let Some(why) = seat.transfers.begin(now, to.0, node, job.index) {
                        self.out.notices.push(Notice::SnapshotNotTaken { to, why });
                    }
                    self.out.send_snapshots.push(OutboundSnapshot { node, addr, packet, job });
                }
                (Some((node, addr)), Some(packet)) => outbound.push(Outbound { node, addr, packet }),
                _ => {
                    *self.counters.entry("sent_nowhere").or_default() += 1;
                    if is_snapshot {
                        let seat = self.seat.as_mut().expect("messages come from a seat");
                        seat.raw.report_snapshot(to.0, SnapshotStatus::Failure);
                    }
                }
            }
        }
        outbound
    }

    /// The state as applied. Newer than what raft asked for does no harm: it is committed.
    fn snapshot_job(&self) -> SnapshotJob {
        let log = self.seat.as_ref().expect("a snapshot has a seat").raw.store();
        let (at, conf) = (log.applied(), log.conf());
        assert_eq!(at.index, self.tables.revision.0, "a snapshot holds what was applied at its index");
        SnapshotJob::new(at, (conf.voters.clone(), conf.learners.clone()), self.tables.clone())
    }

    /// The snapshot to send to a member: one that was made before, where it can be used.
    fn shared_job(&mut self, to: u64) -> SnapshotJob {
        let seat = self.seat.as_ref().expect("a snapshot has a seat");
        let usable = seat.transfers.job().filter(|job| seat.raw.store().offers(to, job.index)).cloned();
        usable.unwrap_or_else(|| {
            let job = self.snapshot_job();
            let seat = self.seat.as_mut().expect("a snapshot has a seat");
            let offer = (LogPoint { index: job.index, term: job.term }, conf_state(&job.voters, &job.learners));
            seat.raw.mut_store().set_offer(Some(offer));
            seat.transfers.share(job.clone());
            job
        })
    }

    /// How much of the log behind a snapshot stays: what a follower needs that was away for `keep_time`, within `keep_bytes`.
    fn kept_entries(&self, last: u64) -> u64 {
        let written = self.marks.front().map_or(0, |(_, index)| last.saturating_sub(*index));
        self.config.keep_entries.max(written)
    }

    /// Once a second.
    pub(super) fn mark_rate(&mut self, now: Moment) {
        let Some(seat) = self.seat.as_ref() else { return };
        if self.marks.back().is_none_or(|(at, _)| now.since(*at) >= RATE_MARK_EVERY) {
            self.marks.push_back((now, seat.raw.raft.raft_log.last_index()));
        }
        while self.marks.front().is_some_and(|(at, _)| now.since(*at) > self.config.keep_time) {
            self.marks.pop_front();
        }
    }

    fn consider_snapshot(&mut self, now: Moment) {
        let Some(seat) = self.seat.as_ref() else { return };
        let since = self.tables.revision.0.saturating_sub(self.snapshot_index);
        // What is refused for want of room is refused by a measured size.
        let measure = since > 0 && self.size.wants_measure(&self.config);
        let due = measure
            || since >= self.config.snapshot_entries
            || (since > 0 && self.bytes_since_snapshot >= self.config.snapshot_bytes);
        let later = self.snapshot_failed.is_some_and(|at| now.since(at) < SNAPSHOT_AGAIN);
        if due && !later && !self.taking_snapshot && seat.installing.is_none() {
            self.taking_snapshot = true;
            self.bytes_since_snapshot = 0;
            self.size.measuring();
            self.out.take_snapshot = Some(self.snapshot_job());
        }
    }

    /// The snapshot file is durable: start from it, and let go of most of the log before it.
    pub(super) fn snapshot_taken(&mut self, now: Moment, head: Option<SnapshotHead>) {
        if !std::mem::take(&mut self.taking_snapshot) {
            return;
        }
        self.snapshot_failed = head.is_none().then_some(now);
        if let Some(head) = &head {
            self.size.measured_now(head.bytes);
        }
        let entries = self.seat.as_ref().map_or(0, |s| self.kept_entries(s.raw.raft.raft_log.last_index()));
        let Some(seat) = self.seat.as_mut() else { return };
        let Some(head) = head.filter(|h| h.index > self.snapshot_index && seat.installing.is_none()) else { return };
        let log = seat.raw.store();
        let prs = seat.raw.raft.prs();
        let needed = seat.transfers.floor(|id| Some(Matched { index: prs.get(id)?.matched, caught_up: false }));
        let mut keep_after = log.cut_for(head.index, entries, self.config.keep_bytes);
        // SNAP-1
        let needed = needed.filter(|_| !self.config.sabotaged().cut_behind_transfers);
        if let Some(floor) = needed.filter(|floor| *floor < keep_after.index) {
            keep_after = log.place_within(floor, self.config.transfer_bytes.max(2 * head.bytes)).min(keep_after);
        }
        seat.raw.mut_store().cut(keep_after);
        self.snapshot_index = head.index;
        let write = Durable { sync: true, compact: Some(Compaction { head, keep_after }), ..self.new_write() };
        self.write(now, write, 0, Settling::Nothing);
    }
}

impl RaftCore {
    /// Everything that was handed to the disk, as a snapshot and one write: for a disk that cannot be trusted any more. `None`: it
    /// cannot be told, for a received snapshot is on its way to that disk. What is handed to the disk afterwards follows it.
    pub fn everything(&mut self) -> Option<(SnapshotJob, Durable)> {
        let seat = self.seat.as_mut().filter(|s| s.installing.is_none())?;
        let log = seat.raw.store();
        let (at, last) = (log.applied(), log.last());
        let whole = |at: LogPoint| log.entries(at.index + 1, last + 1, None, GetEntriesContext::empty(false)).ok();
        let entries = if at.index < last { whole(at)? } else { Vec::new() };
        // The new log begins here.
        seat.raw.mut_store().cut(at);
        let id = seat.id;
        self.snapshot_index = at.index;
        self.bytes_since_snapshot = entries.iter().map(entry_bytes).sum();
        let number = self.next_write - 1;
        let write =
            Durable { number, sync: true, start_over: Some(id), entries, hard: self.hard, ..Durable::default() };
        Some((self.snapshot_job(), write))
    }
}

/// What goes with the heartbeats of a round, and comes back with their answers.
pub(super) fn round_context(seat: RaftId, nonce: u64, round: u64) -> Vec<u8> {
    [seat.0, nonce, round].iter().flat_map(|n| n.to_be_bytes()).collect()
}

/// The round that a context of ours names.
pub(super) fn round_of(context: &[u8], seat: RaftId, nonce: u64) -> Option<u64> {
    let (own, round) = context.split_at_checked(16)?;
    let ours = own[..8] == seat.0.to_be_bytes() && own[8..] == nonce.to_be_bytes();
    ours.then_some(u64::from_be_bytes(round.try_into().ok()?))
}
