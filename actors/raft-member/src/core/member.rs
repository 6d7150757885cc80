//! This node as a Raft member: raft under one member id, and what ends with that id.
//!
//! Owns        raft, the election timeout, the snapshots on their way to followers and into this member.
//! Inputs      changes of leadership, outcomes of transfers.
//! Outputs     messages of raft; transfers to stop, problems of followers.
//! Invariants  SNAP-1 and SNAP-2 (see `transfers`): raft sends a follower no snapshot during its pause, and the log is compacted only
//!             as far as the transfers allow.

use std::collections::BTreeSet;

use muster_messages::protocol::SnapshotOutcome;
use muster_messages::wire::SnapshotHead;
use muster_messages::{Moment, NodeId, RaftId, Rng, Tables};
use raft::{INVALID_ID, RawNode, SnapshotStatus, StateRole};
use slog::Logger;

use super::commit_news::CommitNews;
use super::elections::Hint;
use super::installation::Installation;
use super::internals::Internals;
use super::log::{MemLog, conf_state};
use super::transfers::{Matched, Transfers};
use super::{Batch, CoreFault, LogPoint, Notice, RaftConfig, SnapshotJob};

pub(super) struct OwnMember {
    pub id: RaftId,
    pub raw: RawNode<MemLog>,
    /// This member was removed. It no longer campaigns, but still votes: the others may need its vote to commit the removal.
    pub removed: bool,
    pub installation: Installation,
    pub hint: Option<Hint>,
    pub commit_news: CommitNews,
    /// To followers. While leading.
    pub transfers: Transfers,
    /// The election timeout in force, sampled by this core.
    timeout: usize,
    was: Leadership,
}

/// The part of raft's state whose changes matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leadership {
    pub term: u64,
    pub role: StateRole,
    pub leader: u64,
}

impl Leadership {
    fn of(raw: &RawNode<MemLog>) -> Self {
        Self { term: raw.term(), role: raw.role(), leader: raw.leader_id() }
    }
}

impl OwnMember {
    pub fn start(
        id: RaftId,
        log: MemLog,
        config: &RaftConfig,
        rng: &mut Rng,
        logger: &Logger,
    ) -> Result<Self, CoreFault> {
        let mut raw = RawNode::new(&config.for_raft(id.0, log.applied().index), log, logger)
            .map_err(|e| CoreFault(format!("cannot start raft: {e}")))?;
        // See `CommitNews`.
        raw.skip_bcast_commit(true);
        let timeout = sample_timeout(config, rng);
        raw.set_election_ticks(timeout);
        Ok(Self {
            id,
            was: Leadership::of(&raw),
            raw,
            removed: false,
            installation: Installation::default(),
            hint: None,
            commit_news: CommitNews::default(),
            transfers: Transfers::default(),
            timeout,
        })
    }

    /// The leadership before and after what raft did since the last call.
    pub fn leadership_change(&mut self, config: &RaftConfig, rng: &mut Rng) -> (Leadership, Leadership) {
        let is = Leadership::of(&self.raw);
        let was = std::mem::replace(&mut self.was, is);
        if (was.term, was.role) != (is.term, is.role) {
            self.timeout = sample_timeout(config, rng);
        }
        // Raft sampled a timeout of its own, from the thread's generator.
        self.raw.set_election_ticks(self.timeout);
        (was, is)
    }

    /// The leader as far as this member knows. A member without a vote starts no election, and raft would name its last leader
    /// indefinitely: a leader that was silent for an election timeout is dropped.
    pub fn leader(&self) -> Option<RaftId> {
        let raw = &self.raw;
        let leader_silent = raw.role() == StateRole::Follower && !raw.promotable() && raw.passed_election_timeout();
        Some(RaftId(raw.leader_id())).filter(|leader| leader.0 != INVALID_ID && !leader_silent)
    }
    pub fn voters(&self) -> &[u64] {
        &self.raw.store().conf().voters
    }
    /// A leader's commit index.
    pub fn committed_as_leader(&self) -> Option<u64> {
        self.raw.leads().then(|| self.raw.committed())
    }

    /// The applied state. It may be newer than what raft asked for: it is committed.
    pub fn snapshot_job(&self, tables: &Tables) -> SnapshotJob {
        let (at, conf) = (self.raw.store().applied(), self.raw.store().conf());
        assert_eq!(at.index, tables.revision.0, "a snapshot holds the state applied at its index");
        SnapshotJob::new(at, (conf.voters.clone(), conf.learners.clone()), tables.clone())
    }

    // ---- snapshots to followers -----------------------------------------------------------------------------------

    /// Raft sends a snapshot to a member: an earlier one if it can still be used.
    pub fn begin_transfer(
        &mut self,
        now: Moment,
        (to, node): (RaftId, NodeId),
        tables: &Tables,
        out: &mut Batch,
    ) -> SnapshotJob {
        let usable = self.transfers.job().filter(|job| self.raw.store().offers(to.0, job.index)).cloned();
        let job = usable.unwrap_or_else(|| {
            let job = self.snapshot_job(tables);
            self.transfers.share(job.clone());
            self.offer_shared_job();
            job
        });
        out.notices.push(Notice::Sending { to, index: job.index });
        if let Some(why) = self.transfers.begin(now, to.0, node, job.index) {
            out.notices.push(Notice::SnapshotNotTaken { to, why });
        }
        job
    }

    fn offer_shared_job(&mut self) {
        let offer =
            |job: &SnapshotJob| (LogPoint { index: job.index, term: job.term }, conf_state(&job.voters, &job.learners));
        self.raw.mut_store().set_offer(self.transfers.job().map(offer));
    }

    /// Reports the outcome to raft. Raft may ask for another snapshot at once, so the pause is set first.
    pub fn end_transfer(
        &mut self,
        now: Moment,
        to: u64,
        outcome: &SnapshotOutcome,
        config: &RaftConfig,
        out: &mut Batch,
    ) {
        if !self.transfers.on_its_way(to) {
            return;
        }
        if let Some(why) = self.transfers.ended(now, to, outcome) {
            out.notices.push(Notice::SnapshotNotTaken { to: RaftId(to), why });
        }
        self.pause_transfers(now, config);
        let delivered = *outcome == SnapshotOutcome::Delivered;
        self.raw.report_snapshot(to, if delivered { SnapshotStatus::Finish } else { SnapshotStatus::Failure });
    }

    /// Ends transfers that stalled or are not needed any more, and lets raft retry where a pause is over.
    pub fn check_transfers(&mut self, now: Moment, config: &RaftConfig, out: &mut Batch) {
        if self.transfers.is_empty() {
            return;
        }
        let (last, tail) = (self.raw.last_index(), config.keep_entries);
        let prs = self.raw.tracker();
        let stopped = self.transfers.settle(|id| {
            let index = prs.get(id)?.matched;
            Some(Matched { index, caught_up: index + tail >= last })
        });
        for id in self.transfers.stalled(now, config.snapshot_limit) {
            let why = format!("no progress for {} s", config.snapshot_limit.as_secs());
            self.end_transfer(now, id, &SnapshotOutcome::Lost(why), config, out);
        }
        self.offer_shared_job();
        self.pause_transfers(now, config);
        out.stop_snapshots.extend(stopped);
    }

    /// A mesh session with a follower began or ended.
    pub fn peer_session(&mut self, now: Moment, id: u64, up: bool, config: &RaftConfig, out: &mut Batch) {
        if self.raw.tracker().get(id).is_none() {
            return;
        }
        if up {
            self.transfers.session_began(now, id);
            self.raw.resume(id);
            self.pause_transfers(now, config);
            self.raw.send_append(id);
        } else {
            self.raw.report_unreachable(id);
            self.end_transfer(now, id, &SnapshotOutcome::Lost("the session ended".to_owned()), config, out);
        }
    }

    /// This member does not lead any more.
    pub fn stop_transfers(&mut self, out: &mut Batch) {
        out.stop_snapshots.extend(self.transfers.clear());
        self.raw.mut_store().set_offer(None);
        self.raw.mut_store().pause_snapshots(BTreeSet::new());
    }

    /// SNAP-2. Raft gets no snapshot for members that must wait.
    fn pause_transfers(&mut self, now: Moment, config: &RaftConfig) {
        let without = config.injected_bugs().snapshots_without_pause;
        let paused = if without { BTreeSet::new() } else { self.transfers.paused(now) };
        self.raw.mut_store().pause_snapshots(paused);
    }

    /// The log starts from this snapshot: discards most of the entries before it, and returns the last one discarded.
    pub fn compact(&mut self, head: &SnapshotHead, entries: u64, config: &RaftConfig) -> LogPoint {
        let (log, prs) = (self.raw.store(), self.raw.tracker());
        let needed = self.transfers.floor(|id| Some(Matched { index: prs.get(id)?.matched, caught_up: false }));
        let mut keep_after = log.compaction_point(head.index, entries, config.worth_keeping(head.bytes));
        // SNAP-1
        let needed = needed.filter(|_| !config.injected_bugs().cut_behind_transfers);
        if let Some(floor) = needed.filter(|floor| *floor < keep_after.index) {
            keep_after = log.position_within(floor, config.transfer_bytes.max(2 * head.bytes)).min(keep_after);
        }
        self.raw.mut_store().compact(keep_after);
        keep_after
    }
}

fn sample_timeout(config: &RaftConfig, rng: &mut Rng) -> usize {
    let (low, high) = config.election_ticks();
    low + rng.index(high - low)
}
