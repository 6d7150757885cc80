//! RaftCore: one member of the replicated log, as a pure state machine around the `raft` crate.
//!
//! Owns   the log since the last snapshot, the tables, proposals and reads on their way, what is known of the peers.
//! Hears  `Input`.   Says  `Batch`.
//! Keeps  DURABLE-1  nothing counts as acknowledged by this member before its disk has it.
//!        DURABLE-2  no vote, no answer and nothing a leader says in a term leaves before that vote, entry or term is durable.
//!        PROPOSE-1, PROPOSE-2 (see `proposals`), READ-1 (see `reads`), REACH-1 (see `reachability`), LOG-1 (see `log`).
//!        MEMBER-2   the Raft configuration is what the applied seat changes say; a refused one changes nothing, anywhere.
//!
//! # Driving it
//! ```text
//! let mut core = RaftCore::found(config, me, seed, now, logger())?;            // founds a cluster, or
//! let mut core = RaftCore::open(config, me, recovered, seed, now, logger())?;  // resumes; `Recovered::default()`: an empty copy
//! loop {
//!     core.step(now, input);        // any number of inputs: cheap, nothing leaves yet
//!     let batch = core.turn(now)?;  // one round for all of them: this is what batches proposals and writes
//!     // send batch.send and batch.send_snapshots; hand out batch.answers, batch.publish, batch.members
//!     // write batch.make_durable in order, then step(Input::Persisted { number of the last one written })
//!     // run batch.take_snapshot elsewhere, keep its file, then step(Input::SnapshotTaken { head })
//!     // at batch.wake_at: step(Input::Woke); if batch.again: turn once more before waiting
//! }
//! ```
//! Step `Tick` every `config.tick`. Everything that must wait for the disk waits inside the core, so that a simulated
//! crash is: drop the core, drop what the disk had not synced, `open` with what it recovers. [`crate::disk::SimDisk`]
//! is such a disk. The same seed, inputs and moments give the same batches.

mod applying;
mod config;
mod digests;
mod elections;
mod entries;
mod hearing;
mod log;
mod outgrown;
mod packets;
mod proposals;
mod reachability;
mod reads;
mod size;
mod standing;
#[cfg(test)]
mod tests;
mod transfers;
mod turn;
mod values;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use muster_messages::protocol::{ProposeError, ReadError};
use muster_messages::wire::{MAX_FRAME, SnapshotHead};
use muster_messages::{
    Command, CommandRefusal, Dice, Member, Moment, NodeId, RaftId, Replica, Revision, SeatChange, Tables, WallTime,
};
use raft::eraftpb::ConfState;
use raft::{RawNode, StateRole};
use slog::Logger;

pub use self::config::RaftConfig;
#[cfg(feature = "sabotage")]
pub use self::config::Sabotage;
pub use self::digests::DigestJob;
use self::digests::StateDigests;
use self::elections::{Hint, Transfer};
#[cfg(test)]
pub(crate) use self::entries::command_entry;
pub(crate) use self::entries::{Content, content};
use self::log::{MemLog, conf_state, entry_bytes};
pub use self::outgrown::Outgrown;
use self::packets::Settling;
use self::proposals::{Proposals, Queued};
use self::reachability::ReachabilityChecks;
use self::reads::Reads;
use self::size::StateSize;
pub use self::transfers::StoppedTransfer;
use self::transfers::Transfers;
pub use self::values::*;

/// A proposal without a deadline of its own (a seat change): it ends by being applied or by the loss of leadership.
const NEVER: Moment = Moment(u64::MAX);

/// One member. See the module.
pub struct RaftCore {
    config: RaftConfig,
    me: NodeId,
    logger: Logger,
    dice: Dice,
    /// Makes read contexts of one incarnation different from those of another.
    nonce: u64,
    tables: Tables,
    /// `None`: an empty copy that waits for a leader's packet.
    seat: Option<Seat>,
    /// What this seat and those before it have promised is not known any more: none of them is taken up again.
    lost: Option<RaftId>,

    next_write: u64,
    in_flight: VecDeque<InFlight>,
    /// Messages that wait for the write of this number.
    held: VecDeque<(u64, Vec<Outbound>)>,
    /// As last handed to the disk, and as the disk has it.
    hard: HardMark,
    durable: HardMark,

    proposals: Proposals,
    reads: Reads,
    reachability: ReachabilityChecks,
    transfer: Option<Transfer>,

    /// The nodes in session with this one.
    sessions: BTreeSet<NodeId>,
    /// Who spoke for which seat, and when last: an empty copy answers its leader before it knows the members. Of each node one
    /// seat, so that nobody fills this with seats that were never given.
    heard: BTreeMap<RaftId, Heard>,

    snapshot_index: u64,
    bytes_since_snapshot: u64,
    taking_snapshot: bool,
    size: StateSize,
    digests: StateDigests,
    /// Where the log ended, once a second: how many entries `keep_time` is worth.
    marks: VecDeque<(Moment, u64)>,
    snapshot_failed: Option<Moment>,

    /// A moment and its wall time: for what people are shown.
    wall: (Moment, WallTime),
    replica: Arc<Replica>,
    published_at: Option<Moment>,
    told_members: Option<(Vec<Member>, Option<RaftId>)>,
    counters: BTreeMap<&'static str, u64>,
    out: Batch,
}

/// What ends when this node gets another seat.
struct Heard {
    node: NodeId,
    at: Moment,
}

struct Seat {
    id: RaftId,
    raw: RawNode<MemLog>,
    /// The election timeout in force, drawn by us.
    timeout: usize,
    was: Standing,
    /// Our seat was removed: no campaigning; votes are still given, for the others may need them to learn of it.
    removed: bool,
    /// A received snapshot, until it is durable.
    installing: Option<Installing>,
    /// A received snapshot while raft decides whether it wants it.
    incoming: Option<Incoming>,
    /// When a peer last acknowledged anything, in the term that we lead.
    acked: BTreeMap<u64, Moment>,
    led_since: Moment,
    /// Since when there is no leader, if there is none.
    leaderless_since: Moment,
    /// The voters that had not acknowledged anything for an election timeout when this leader stepped down.
    lost_touch: Vec<u64>,
    transfers: Transfers,
    hint: Option<Hint>,
    /// The commit index as last sent to everybody.
    commit_told: u64,
    /// When a leader tells them of a newer one.
    tell_commit_at: Option<Moment>,
}

/// What matters about raft's state from one step to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing {
    term: u64,
    role: StateRole,
    leader: u64,
}

type Incoming = (SnapshotHead, Tables, Arc<Vec<u8>>);

struct Installing {
    write: u64,
    at: LogPoint,
    conf: ConfState,
    tables: Tables,
}

struct InFlight {
    write: u64,
    /// The last of raft's readies that this write and those before it make durable; 0: none of this seat's.
    ready: u64,
    issued: Moment,
    settling: Settling,
    hard: HardMark,
}

impl RaftCore {
    /// Founds a cluster: seat 1, the one voter. The first command is the caller's (`Change::Found`), once it leads.
    ///
    /// The log starts behind a snapshot of nothing at index 1, because a newcomer gets the configuration from a
    /// snapshot: there is no entry that made the founder a voter.
    pub fn found(config: RaftConfig, me: NodeId, seed: u64, now: Moment, logger: Logger) -> Result<Self, CoreFault> {
        let id = RaftId(1);
        let tables = Tables { revision: Revision(1), ..Tables::default() };
        let job = SnapshotJob::new(LogPoint { index: 1, term: 1 }, (vec![id.0], vec![]), tables.clone());
        let (head, data) = job.run();
        let hard = HardMark { term: 1, vote: 0, commit: 1 };
        let snapshot = Some((head.clone(), tables));
        let recovered =
            Recovered { seat: Some(id), hard, snapshot, truncated: LogPoint { index: 1, term: 1 }, entries: vec![] };
        let mut core = Self::open(config, me, recovered, seed, now, logger)?;
        core.durable = HardMark::default();
        let write =
            Durable { sync: true, start_over: Some(id), install: Some((head, Arc::new(data))), ..core.new_write() };
        core.write(now, write, 0, Settling::Entries);
        Ok(core)
    }

    /// Resumes with what the disk gave back.
    pub fn open(
        config: RaftConfig,
        me: NodeId,
        recovered: Recovered,
        seed: u64,
        now: Moment,
        logger: Logger,
    ) -> Result<Self, CoreFault> {
        let mut dice = Dice::seeded(seed);
        let nonce = dice.roll();
        let mut core = Self {
            config,
            me,
            logger,
            dice,
            nonce,
            tables: Tables::default(),
            seat: None,
            lost: None,
            next_write: 1,
            in_flight: VecDeque::new(),
            held: VecDeque::new(),
            hard: HardMark::default(),
            durable: HardMark::default(),
            proposals: Proposals::default(),
            reads: Reads::default(),
            reachability: ReachabilityChecks::default(),
            transfer: None,
            sessions: BTreeSet::new(),
            heard: BTreeMap::new(),
            snapshot_index: 0,
            bytes_since_snapshot: 0,
            taking_snapshot: false,
            size: StateSize::default(),
            digests: StateDigests::default(),
            marks: VecDeque::new(),
            snapshot_failed: None,
            wall: (now, WallTime(0)),
            replica: Arc::default(),
            published_at: None,
            told_members: None,
            counters: BTreeMap::new(),
            out: Batch::default(),
        };
        if let Some(id) = recovered.seat {
            core.sit_down(now, id, recovered)?;
        }
        Ok(core)
    }

    /// The data of this seat is gone. An empty copy that took it up again could vote a second time, and would stand
    /// for entries that it has acknowledged and does not have: it waits for a newer seat.
    #[must_use]
    pub fn without(mut self, lost: Option<RaftId>) -> Self {
        self.lost = lost;
        self
    }

    /// What time it is: for what people are shown, never for a decision.
    #[must_use]
    pub fn at_wall_time(mut self, now: Moment, wall: WallTime) -> Self {
        self.wall = (now, wall);
        self
    }
    fn wall_of(&self, at: Moment) -> WallTime {
        let (now, wall) = self.wall;
        let (after, before) = (at.since(now), now.since(at));
        WallTime(wall.plus(after).0 - i64::try_from(before.as_millis()).unwrap_or(0))
    }

    fn sit_down(&mut self, now: Moment, id: RaftId, recovered: Recovered) -> Result<(), CoreFault> {
        let Recovered { mut hard, snapshot, truncated, entries, .. } = recovered;
        let measured = snapshot.as_ref().map_or(0, |(head, _)| head.bytes);
        let (at, conf, tables) = match snapshot {
            Some((head, tables)) => {
                (LogPoint { index: head.index, term: head.term }, conf_state(&head.voters, &head.learners), tables)
            }
            None => (LogPoint::default(), ConfState::default(), Tables::default()),
        };
        // A snapshot holds committed entries only.
        hard.commit = hard.commit.max(at.index);
        let contiguous = entries.iter().zip(truncated.index + 1..).all(|(e, i)| e.index == i);
        let last = truncated.index + entries.len() as u64;
        if !contiguous || truncated.index > at.index || last < hard.commit {
            let first = truncated.index + 1;
            return Err(CoreFault(format!(
                "the log has entries {first} to {last}, the snapshot is at {}, committed is {}",
                at.index, hard.commit
            )));
        }
        self.bytes_since_snapshot = entries.iter().map(entry_bytes).sum();
        self.size = StateSize::measured(measured);
        self.snapshot_index = at.index;
        let removed = tables.removed_raft_ids.contains(&id);
        self.tables = tables;
        self.hard = hard;
        self.durable = hard;
        let log = MemLog::recovered(hard, truncated, entries, at, conf);
        let raw = RawNode::new(&self.config.for_raft(id.0, at.index), log, &self.logger)
            .map_err(|e| CoreFault(format!("raft does not start: {e}")))?;
        let was = Standing { term: raw.raft.term, role: raw.raft.state, leader: raw.raft.leader_id };
        let (low, high) = self.config.election_ticks();
        let timeout = low + self.dice.index(high - low);
        let mut seat = Seat {
            id,
            raw,
            timeout,
            was,
            removed,
            installing: None,
            incoming: None,
            acked: BTreeMap::new(),
            led_since: now,
            leaderless_since: now,
            lost_touch: Vec::new(),
            transfers: Transfers::default(),
            hint: None,
            commit_told: 0,
            tell_commit_at: None,
        };
        // See `tell_commit`.
        seat.raw.skip_bcast_commit(true);
        seat.raw.raft.set_randomized_election_timeout(timeout);
        self.seat = Some(seat);
        Ok(())
    }

    /// Absorbs one input. Consequences come out of the next [`RaftCore::turn`].
    pub fn step(&mut self, now: Moment, input: Input) {
        if self.outgrown().is_some() {
            return self.decline(now, input);
        }
        match input {
            Input::Tick => self.tick(now),
            Input::Woke => self.fire_hint(now),
            Input::Propose { ask, command, deadline } => self.propose(now, ask, &command, deadline),
            Input::ProposeSeat { ask, change } => self.propose_seat(now, ask, &change),
            Input::Read { ask, deadline } => self.read(ask, deadline),
            Input::CheckReachable { ask, members, needed, deadline } => {
                self.check_reachable(now, ask, (members, needed), deadline);
            }
            Input::Packets { node, peer_seat, packets } => {
                for packet in packets {
                    self.hear(now, node, peer_seat, packet, None);
                }
            }
            Input::SnapshotReceived { node, peer_seat, packet, data } => {
                self.hear(now, node, peer_seat, *packet, Some(data))
            }
            Input::SnapshotSent { to, index, outcome } => self.snapshot_sent(now, to, index, &outcome),
            Input::StateDigested { index, digest } => self.state_digested(now, index, digest),
            Input::SnapshotProgress { to, index } => {
                if let Some(seat) = self.seat.as_mut() {
                    seat.transfers.progressed(now, to.0, index);
                }
            }
            Input::SnapshotTaken { head } => self.snapshot_taken(now, head),
            Input::Persisted { number } => self.persisted(number),
            Input::PeerSession { node, up } => self.session(now, node, up),
            Input::Unreachable { to } => {
                if let Some(seat) = self.seat.as_mut() {
                    seat.raw.report_unreachable(to.0);
                }
            }
            Input::LeaderGone { node } => self.leader_gone(now, node),
            Input::TransferLeadership { ask, to } => self.transfer_leadership(now, ask, to),
        }
        self.settle(now);
    }

    fn propose(&mut self, now: Moment, ask: AskId, command: &Command, deadline: Moment) {
        let refusal = match entries::command_entry(command) {
            Err(_) => Some(ProposeError::TooLarge { bytes: MAX_FRAME, limit: self.config.max_command }),
            Ok(e) if e.data.len() > self.config.max_command => {
                Some(ProposeError::TooLarge { bytes: e.data.len(), limit: self.config.max_command })
            }
            Ok(_) if !self.leads() => Some(self.not_leader(now)),
            Ok(e)
                if let Some(full) =
                    self.size.refuse(&self.config, self.proposals.bytes(), &self.tables, command, &e) =>
            {
                Some(full)
            }
            Ok(_) if deadline <= now => Some(ProposeError::TimedOut),
            Ok(_) if self.proposals.in_flight() >= self.config.max_proposals => Some(ProposeError::Busy),
            Ok(e) if self.proposals.bytes() + e.data.len() > self.config.max_proposal_bytes => Some(ProposeError::Busy),
            Ok(entry) => {
                self.proposals.queue(Queued { ask, deadline, entry, seat: false });
                None
            }
        };
        if let Some(refusal) = refusal {
            self.out.answers.push(Answer::Proposed(ask, Err(refusal)));
        }
    }

    fn propose_seat(&mut self, now: Moment, ask: AskId, change: &SeatChange) {
        let unsettled = self.seat.as_ref().is_some_and(|s| s.raw.raft.has_pending_conf());
        let result = if !self.leads() {
            Err(self.not_leader(now))
        } else if unsettled || self.proposals.seat_in_flight() {
            Err(ProposeError::MembershipBusy)
        } else {
            muster_store::judge_seat(&self.tables, change).map_err(ProposeError::Refused)
        };
        let entry = result.and_then(|()| {
            let too_large = |_| ProposeError::TooLarge { bytes: MAX_FRAME, limit: self.config.max_command };
            entries::seat_entry(change).map_err(too_large)
        });
        match entry {
            Ok(entry) => self.proposals.queue(Queued { ask, deadline: NEVER, entry, seat: true }),
            Err(refusal) => self.out.answers.push(Answer::Proposed(ask, Err(refusal))),
        }
    }

    fn read(&mut self, ask: AskId, deadline: Moment) {
        if self.seat.as_ref().is_none_or(|s| s.removed) {
            self.out.answers.push(Answer::Read(ask, Err(ReadError::NoLeader)));
        } else if self.reads.in_flight() >= self.config.max_reads {
            self.out.answers.push(Answer::Read(ask, Err(ReadError::Busy)));
        } else {
            self.reads.add(ask, deadline);
        }
    }

    fn refused(what: &str, id: impl ToString) -> ProposeError {
        ProposeError::Refused(CommandRefusal::NotFound { what: what.to_owned(), id: id.to_string() })
    }

    /// The seat that belongs to a node, where this copy or a packet told.
    fn node_of(&self, id: RaftId) -> Option<NodeId> {
        self.tables.members.get(&id).map(|m| m.node).or_else(|| self.heard.get(&id).map(|by| by.node))
    }
    /// The newest published level.
    pub fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }
    /// The tables as applied.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }
    /// Dropped packets and the like, by reason.
    pub fn counters(&self) -> &BTreeMap<&'static str, u64> {
        &self.counters
    }
    /// Whether it leads (not yet: whether it may decide; see `RaftStatus::leading`).
    pub fn leads(&self) -> bool {
        self.seat.as_ref().is_some_and(|s| s.raw.raft.state == StateRole::Leader)
    }
    /// Proposals, reads and disk writes on their way.
    pub fn in_flight(&self) -> (usize, usize, usize) {
        (self.proposals.in_flight(), self.reads.in_flight(), self.in_flight.len())
    }
    /// First and last index of the log in memory, and the index of the snapshot before it.
    pub fn log_span(&self) -> (u64, u64, u64) {
        self.seat
            .as_ref()
            .map_or((0, 0, 0), |s| (s.raw.store().first(), s.raw.raft.raft_log.last_index(), self.snapshot_index))
    }
    /// The terms of the entries in memory from `first` on: for invariants (log matching).
    pub fn log_terms(&self) -> Vec<LogPoint> {
        let Some(seat) = &self.seat else { return Vec::new() };
        let log = seat.raw.store();
        (log.first()..=log.last()).filter_map(|index| log.term_at(index).map(|term| LogPoint { index, term })).collect()
    }
    /// The Raft configuration as applied: voters, learners. For invariants (MEMBER-2).
    pub fn configuration(&self) -> (Vec<u64>, Vec<u64>) {
        let Some(seat) = &self.seat else { return Default::default() };
        let mut conf = seat.raw.store().conf().clone();
        conf.voters.sort_unstable();
        conf.learners.sort_unstable();
        (conf.voters, conf.learners)
    }
}

/// A peer's next index must stay above what it has (raft 0.7.0 lets a late rejection push it below).
fn mend_progress(seat: &mut Seat, id: u64, counters: &mut BTreeMap<&'static str, u64>) {
    if let Some(pr) = seat.raw.raft.mut_prs().get_mut(id)
        && pr.next_idx <= pr.matched
    {
        pr.next_idx = pr.matched + 1;
        *counters.entry("progress_mended").or_default() += 1;
    }
}
