//! RaftCore: one member of the replicated log, as a pure state machine around the `raft` crate.
//!
//! Owns        the log since the last snapshot, the tables, proposals and reads in flight, what is known about the peers.
//! Inputs      `Input`.
//! Outputs     `Batch`.
//! Invariants  DURABLE-1  this member acknowledges nothing before its disk has it.
//!             DURABLE-2  a vote, an answer and a leader's messages of a term leave only once that vote, entry or term is durable.
//!             PROPOSE-1, PROPOSE-2 (see `proposals`), READ-1 (see `reads`), REACH-1 (see `reachability`), LOG-1 (see `log`).
//!             MEMBER-2   the Raft configuration follows the applied membership changes; a refused one changes nothing on any member.
//!
//! # Driving it
//! ```text
//! let mut core = RaftCore::found(config, me, seed, now, logger())?;            // founds a cluster, or
//! let mut core = RaftCore::open(config, me, recovered, seed, now, logger())?;  // resumes; `Recovered::default()`: an empty replica
//! loop {
//!     core.step(now, input);        // any number of inputs: cheap, nothing is sent yet
//!     let batch = core.turn(now)?;  // one round for all of them: this batches proposals and writes
//!     // send batch.send and batch.send_snapshots; hand out batch.answers, batch.publish, batch.members
//!     // write batch.make_durable in order, then step(Input::Persisted { number of the last one written })
//!     // run batch.take_snapshot elsewhere, keep its file, then step(Input::SnapshotTaken { head })
//!     // at batch.wake_at: step(Input::Woke); if batch.again: turn once more before waiting
//! }
//! ```
//! Step `Tick` every `config.tick`. Everything that must wait for the disk waits inside the core. To simulate a crash: drop the
//! core and what the disk has not synced, then `open` with what the disk recovers. [`crate::disk::SimDisk`] is such a disk. The
//! same seed, inputs and moments give the same batches.

mod applying;
mod config;
mod digests;
mod elections;
mod entries;
mod incompatible;
mod internals;
mod log;
mod packets;
mod proposals;
mod reachability;
mod reads;
mod receiving;
mod size;
mod status;
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
    Command, CommandRefusal, Member, MembershipChange, Moment, NodeId, RaftId, Replica, Revision, Rng, Tables, WallTime,
};
use raft::eraftpb::ConfState;
use raft::{RawNode, StateRole};
use slog::Logger;

#[cfg(feature = "bug-injection")]
pub use self::config::BugInjection;
pub use self::config::RaftConfig;
pub use self::digests::DigestJob;
use self::digests::StateDigests;
use self::elections::{Hint, Transfer};
#[cfg(test)]
pub(crate) use self::entries::command_entry;
pub(crate) use self::entries::{Content, content};
pub use self::incompatible::Incompatible;
use self::internals::Internals as _;
use self::log::{MemLog, conf_state, entry_bytes};
use self::packets::Settling;
use self::proposals::{Proposals, Queued};
use self::reachability::ReachabilityChecks;
use self::reads::Reads;
use self::size::StateSize;
pub use self::transfers::StoppedTransfer;
use self::transfers::Transfers;
pub use self::values::*;

/// A proposal without a deadline (a membership change): it ends when it is applied or when leadership is lost.
const NO_DEADLINE: Moment = Moment(u64::MAX);

/// One member. See the module.
pub struct RaftCore {
    config: RaftConfig,
    me: NodeId,
    logger: Logger,
    rng: Rng,
    /// Makes read contexts of one incarnation different from those of another.
    nonce: u64,
    tables: Tables,
    /// `None`: an empty replica that waits for a leader's packet.
    member: Option<OwnMember>,
    /// The promises made under this member id and earlier ones are lost: none of these ids is used again.
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
    /// The node that last sent packets for each member id, and when: an empty replica answers its leader before it knows the
    /// members. Each node has at most one entry, so that a peer cannot fill the map with invented ids.
    last_received: BTreeMap<RaftId, Received>,

    snapshot_index: u64,
    bytes_since_snapshot: u64,
    taking_snapshot: bool,
    size: StateSize,
    digests: StateDigests,
    /// The end of the log, once a second: shows how many entries `keep_time` is worth.
    marks: VecDeque<(Moment, u64)>,
    snapshot_failed: Option<Moment>,

    /// A moment and its wall time, for display only.
    wall: (Moment, WallTime),
    replica: Arc<Replica>,
    published_at: Option<Moment>,
    published_members: Option<(Vec<Member>, Option<RaftId>)>,
    counters: BTreeMap<&'static str, u64>,
    out: Batch,
}

/// Ends when the node gets another member id.
struct Received {
    node: NodeId,
    at: Moment,
}

struct OwnMember {
    id: RaftId,
    raw: RawNode<MemLog>,
    /// The election timeout in force, sampled by this core.
    timeout: usize,
    was: Leadership,
    /// This member was removed. It no longer campaigns, but still votes: the others may need its vote to commit the removal.
    removed: bool,
    /// A received snapshot, until it is durable.
    installing: Option<Installing>,
    /// A received snapshot while raft decides whether to install it.
    incoming: Option<Incoming>,
    /// When each peer last acknowledged something in the term that this member leads.
    acked: BTreeMap<u64, Moment>,
    led_since: Moment,
    /// When the last leader was lost, if there is none now.
    leaderless_since: Moment,
    /// The voters that had acknowledged nothing for an election timeout when this leader stepped down.
    lost_contact: Vec<u64>,
    transfers: Transfers,
    hint: Option<Hint>,
    /// The commit index last sent to all peers.
    announced_commit: u64,
    /// When the leader sends them a newer one.
    announce_commit_at: Option<Moment>,
}

/// The part of raft's state whose changes matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leadership {
    term: u64,
    role: StateRole,
    leader: u64,
}

impl Leadership {
    fn of(raw: &RawNode<MemLog>) -> Self {
        Self { term: raw.term(), role: raw.role(), leader: raw.leader_id() }
    }
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
    /// The last raft `Ready` that this write and those before it make durable; 0: none of this member's.
    ready: u64,
    issued: Moment,
    settling: Settling,
    hard: HardMark,
}

impl RaftCore {
    /// Founds a cluster with one voter, member 1. Once it leads, the caller proposes the first command (`Change::Found`).
    ///
    /// The log starts behind an empty snapshot at index 1, because a new member gets the configuration from a snapshot: no entry
    /// made the founder a voter.
    pub fn found(config: RaftConfig, me: NodeId, seed: u64, now: Moment, logger: Logger) -> Result<Self, CoreFault> {
        let id = RaftId(1);
        let tables = Tables { revision: Revision(1), ..Tables::default() };
        let job = SnapshotJob::new(LogPoint { index: 1, term: 1 }, (vec![id.0], vec![]), tables.clone());
        let (head, data) = job.run();
        let hard = HardMark { term: 1, vote: 0, commit: 1 };
        let snapshot = Some((head.clone(), tables));
        let recovered = Recovered {
            member_id: Some(id),
            hard,
            snapshot,
            truncated: LogPoint { index: 1, term: 1 },
            entries: vec![],
        };
        let mut core = Self::open(config, me, recovered, seed, now, logger)?;
        core.durable = HardMark::default();
        let write =
            Durable { sync: true, start_over: Some(id), install: Some((head, Arc::new(data))), ..core.new_write() };
        core.write(now, write, 0, Settling::Entries);
        Ok(core)
    }

    /// Resumes with the state that the disk recovered.
    pub fn open(
        config: RaftConfig,
        me: NodeId,
        recovered: Recovered,
        seed: u64,
        now: Moment,
        logger: Logger,
    ) -> Result<Self, CoreFault> {
        let mut rng = Rng::seeded(seed);
        let nonce = rng.sample();
        let mut core = Self {
            config,
            me,
            logger,
            rng,
            nonce,
            tables: Tables::default(),
            member: None,
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
            last_received: BTreeMap::new(),
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
            published_members: None,
            counters: BTreeMap::new(),
            out: Batch::default(),
        };
        if let Some(id) = recovered.member_id {
            core.init_member(now, id, recovered)?;
        }
        Ok(core)
    }

    /// The data of this member id is lost. An empty replica that used the id again could vote twice, and would vouch for entries
    /// that it acknowledged and no longer has. It waits for a newer id.
    #[must_use]
    pub fn without(mut self, lost: Option<RaftId>) -> Self {
        self.lost = lost;
        self
    }

    /// Sets the wall time: for display, never for a decision.
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

    fn init_member(&mut self, now: Moment, id: RaftId, recovered: Recovered) -> Result<(), CoreFault> {
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
                "the log holds entries {first} to {last}, but the snapshot is at {} and the commit index is {}",
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
            .map_err(|e| CoreFault(format!("cannot start raft: {e}")))?;
        let was = Leadership::of(&raw);
        let (low, high) = self.config.election_ticks();
        let timeout = low + self.rng.index(high - low);
        let mut member = OwnMember {
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
            lost_contact: Vec::new(),
            transfers: Transfers::default(),
            hint: None,
            announced_commit: 0,
            announce_commit_at: None,
        };
        // See `announce_commit`.
        member.raw.skip_bcast_commit(true);
        member.raw.set_election_ticks(timeout);
        self.member = Some(member);
        Ok(())
    }

    /// Absorbs one input. Its consequences are in the batch of the next [`RaftCore::turn`].
    pub fn step(&mut self, now: Moment, input: Input) {
        if self.incompatible().is_some() {
            return self.decline(now, input);
        }
        match input {
            Input::Tick => self.tick(now),
            Input::Woke => self.fire_hint(now),
            Input::Propose { ask, command, deadline } => self.propose(now, ask, &command, deadline),
            Input::ProposeMembership { ask, change } => self.propose_membership(now, ask, &change),
            Input::Read { ask, deadline } => self.read(ask, deadline),
            Input::CheckReachable { ask, members, needed, deadline } => {
                self.check_reachable(now, ask, (members, needed), deadline);
            }
            Input::Packets { node, peer_member, packets } => {
                for packet in packets {
                    self.handle_packet(now, node, peer_member, packet, None);
                }
            }
            Input::SnapshotReceived { node, peer_member, packet, data } => {
                self.handle_packet(now, node, peer_member, *packet, Some(data))
            }
            Input::SnapshotSent { to, index, outcome } => self.snapshot_sent(now, to, index, &outcome),
            Input::StateDigested { index, digest } => self.state_digested(now, index, digest),
            Input::SnapshotProgress { to, index } => {
                if let Some(member) = self.member.as_mut() {
                    member.transfers.progressed(now, to.0, index);
                }
            }
            Input::SnapshotTaken { head } => self.snapshot_taken(now, head),
            Input::Persisted { number } => self.persisted(number),
            Input::PeerSession { node, up } => self.session(now, node, up),
            Input::Unreachable { to } => {
                if let Some(member) = self.member.as_mut() {
                    member.raw.report_unreachable(to.0);
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
                self.proposals.queue(Queued { ask, deadline, entry, membership: false });
                None
            }
        };
        if let Some(refusal) = refusal {
            self.out.answers.push(Answer::Proposed(ask, Err(refusal)));
        }
    }

    fn propose_membership(&mut self, now: Moment, ask: AskId, change: &MembershipChange) {
        let unsettled = self.member.as_ref().is_some_and(|s| s.raw.has_pending_conf());
        let result = if !self.leads() {
            Err(self.not_leader(now))
        } else if unsettled || self.proposals.membership_in_flight() {
            Err(ProposeError::MembershipBusy)
        } else {
            muster_store::check_membership(&self.tables, change).map_err(ProposeError::Refused)
        };
        let entry = result.and_then(|()| {
            let too_large = |_| ProposeError::TooLarge { bytes: MAX_FRAME, limit: self.config.max_command };
            entries::membership_entry(change).map_err(too_large)
        });
        match entry {
            Ok(entry) => self.proposals.queue(Queued { ask, deadline: NO_DEADLINE, entry, membership: true }),
            Err(refusal) => self.out.answers.push(Answer::Proposed(ask, Err(refusal))),
        }
    }

    fn read(&mut self, ask: AskId, deadline: Moment) {
        if self.member.as_ref().is_none_or(|s| s.removed) {
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

    /// The node of a member id, from the replica or from its packets.
    fn node_of(&self, id: RaftId) -> Option<NodeId> {
        self.tables.members.get(&id).map(|m| m.node).or_else(|| self.last_received.get(&id).map(|by| by.node))
    }
    /// The last published replica.
    pub fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }
    /// The tables as applied.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }
    /// Dropped packets and similar events, by reason.
    pub fn counters(&self) -> &BTreeMap<&'static str, u64> {
        &self.counters
    }
    /// Whether it is the leader. It may decide only once `RaftStatus::leading` is set.
    pub fn leads(&self) -> bool {
        self.member.as_ref().is_some_and(|s| s.raw.leads())
    }
    /// Proposals, reads and disk writes in flight.
    pub fn in_flight(&self) -> (usize, usize, usize) {
        (self.proposals.in_flight(), self.reads.in_flight(), self.in_flight.len())
    }
    /// First and last index of the log in memory, and the index of the snapshot before it.
    pub fn log_span(&self) -> (u64, u64, u64) {
        self.member.as_ref().map_or((0, 0, 0), |s| (s.raw.store().first(), s.raw.last_index(), self.snapshot_index))
    }
    /// The terms of the entries in memory from `first` on, for invariants (log matching).
    pub fn log_terms(&self) -> Vec<LogPoint> {
        let Some(member) = &self.member else { return Vec::new() };
        let log = member.raw.store();
        (log.first()..=log.last()).filter_map(|index| log.term_at(index).map(|term| LogPoint { index, term })).collect()
    }
    /// The applied Raft configuration: voters, learners. For invariants (MEMBER-2).
    pub fn configuration(&self) -> (Vec<u64>, Vec<u64>) {
        let Some(member) = &self.member else { return Default::default() };
        let mut conf = member.raw.store().conf().clone();
        conf.voters.sort_unstable();
        conf.learners.sort_unstable();
        (conf.voters, conf.learners)
    }
}
