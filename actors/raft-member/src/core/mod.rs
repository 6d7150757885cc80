//! RaftCore: one member of the replicated log, as a pure state machine around the `raft` crate.
//!
//! Owns        its parts, each with its own state: see the fields of [`RaftCore`]. It decides which part learns of what, and when.
//! Inputs      `Input`.
//! Outputs     `Batch`.
//! Invariants  those of its parts; `step` only absorbs an input, and every effect leaves with the batch of a `turn`.
//!
//! # Driving it
//! ```text
//! // Founds a cluster or resumes; `Recovered::default()`: an empty disk.
//! let mut core = RaftCore::start(config, me, recovered, founding, seed, now, logger())?;
//! loop {
//!     core.step(now, input);        // any number of inputs: cheap, nothing is sent yet
//!     let batch = core.turn(now)?;  // one round for all of them: this batches proposals and writes
//!     // send batch.send and batch.send_snapshots; hand out batch.answers, batch.publish, batch.publish_cluster, batch.members
//!     // write batch.make_durable in order, then step(Input::Persisted { number of the last one written })
//!     // run batch.take_snapshot elsewhere, keep its file, then step(Input::SnapshotTaken { head })
//!     // at batch.wake_at: step(Input::Woke); if batch.again: turn once more before waiting
//! }
//! ```
//! Step `Tick` every `config.tick`. Everything that must wait for the disk waits inside the core. To simulate a crash: drop the
//! core and what the disk has not synced, then `open` with what the disk recovers. [`crate::disk::SimDisk`] is such a disk. The
//! same seed, inputs and moments give the same batches.

mod bundles;
mod commit_news;
mod config;
mod digests;
mod elections;
mod entries;
mod incompatible;
mod installation;
mod internals;
mod log;
mod member;
mod packets;
mod peers;
mod proposals;
mod publication;
mod reachability;
mod reads;
mod receiving;
mod size;
mod snapshot_schedule;
mod state_machine;
mod status;
#[cfg(test)]
mod tests;
mod transfers;
mod turn;
mod values;
mod writes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_messages::protocol::{ProposeError, ReadError};
use muster_messages::wire::MAX_FRAME;
use muster_messages::{
    Command, CommandRefusal, MembershipChange, MembershipChangeKind, Moment, NodeId, RaftId, Replica, Revision, Rng,
    Tables, WallTime,
};
use raft::eraftpb::ConfState;
use slog::Logger;

pub use self::bundles::{Bundle, bundles};
#[cfg(feature = "bug-injection")]
pub use self::config::BugInjection;
pub use self::config::RaftConfig;
pub use self::digests::DigestJob;
use self::digests::StateDigests;
use self::elections::Transfer;
#[cfg(test)]
pub(crate) use self::entries::command_entry;
pub(crate) use self::entries::{Content, content};
pub use self::incompatible::Incompatible;
use self::internals::Internals as _;
use self::log::{MemLog, conf_state, entry_bytes};
use self::member::OwnMember;
use self::peers::Peers;
use self::proposals::{Proposals, Queued};
use self::publication::Publication;
use self::reachability::ReachabilityChecks;
use self::reads::Reads;
use self::snapshot_schedule::SnapshotSchedule;
use self::state_machine::StateMachine;
pub use self::transfers::StoppedTransfer;
pub use self::values::*;
use self::writes::{Settling, Writes};

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
    /// A moment and its wall time, for display only.
    wall: (Moment, WallTime),

    /// `None`: an empty replica that waits for a leader's packet.
    member: Option<OwnMember>,
    /// The promises made under this member id and earlier ones are lost: none of these ids is used again.
    lost: Option<RaftId>,
    state: StateMachine,
    digests: StateDigests,
    writes: Writes,
    snapshots: SnapshotSchedule,
    peers: Peers,

    proposals: Proposals,
    reads: Reads,
    reachability: ReachabilityChecks,
    /// A leadership transfer in progress.
    transfer: Option<Transfer>,

    publication: Publication,
    counters: BTreeMap<&'static str, u64>,
    out: Batch,
}

impl RaftCore {
    /// Founds a cluster if that was asked for and the disk never belonged to a Raft member. Otherwise resumes with what the disk
    /// recovered: a new cluster never replaces a member's data, and an empty replica waits for a leader.
    pub fn start(
        config: RaftConfig,
        me: NodeId,
        recovered: Recovered,
        founding: bool,
        seed: u64,
        now: Moment,
        logger: Logger,
    ) -> Result<Self, CoreFault> {
        if founding && recovered.member_id.is_none() {
            Self::found(config, me, seed, now, logger)
        } else {
            Self::open(config, me, recovered, seed, now, logger)
        }
    }

    /// Founds a cluster with one voter, member 1. Once it leads, the caller proposes the first command (`Change::Found`).
    ///
    /// The log starts behind an empty snapshot at index 1, because a new member gets the configuration from a snapshot: no entry
    /// made the founder a voter.
    fn found(config: RaftConfig, me: NodeId, seed: u64, now: Moment, logger: Logger) -> Result<Self, CoreFault> {
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
        core.writes.found();
        let write =
            Durable { sync: true, start_over: Some(id), install: Some((head, Arc::new(data))), ..core.writes.next() };
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
            wall: (now, WallTime(0)),
            member: None,
            lost: None,
            state: StateMachine::default(),
            digests: StateDigests::default(),
            writes: Writes::default(),
            snapshots: SnapshotSchedule::default(),
            peers: Peers::default(),
            proposals: Proposals::default(),
            reads: Reads::default(),
            reachability: ReachabilityChecks::default(),
            transfer: None,
            publication: Publication::default(),
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
        self.snapshots.start(at.index, entries.iter().map(entry_bytes).sum(), measured);
        self.state.install(tables);
        self.writes.start(hard);
        let log = MemLog::recovered(hard, truncated, entries, at, conf);
        let mut member = OwnMember::start(id, log, &self.config, &mut self.rng, &self.logger)?;
        member.removed = self.state.is_removed(id);
        self.peers.start(now);
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
            Input::ProposeMembership { ask, change, confirm_by } => {
                self.propose_membership(now, ask, change, confirm_by)
            }
            Input::Read { ask, deadline } => self.read(ask, deadline),
            Input::CheckReachable { ask, members, needed, deadline } => {
                let refused = self.reachability.begin(now, ask, members, needed, deadline);
                self.out.answers.extend(refused);
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

    /// The feature level of the replica, if it is above this build's.
    pub fn incompatible(&self) -> Option<u32> {
        let level = self.state.feature_level();
        (level > self.config.feature_level && !self.config.injected_bugs().ignore_level).then_some(level)
    }

    /// LEVEL-2. Requests get a refusal, other inputs are ignored.
    fn decline(&mut self, now: Moment, input: Input) {
        let answer = match input {
            Input::Propose { ask, .. } | Input::ProposeMembership { ask, .. } => {
                Answer::Proposed(ask, Err(self.not_leader(now)))
            }
            Input::TransferLeadership { ask, .. } => Answer::Transferred(ask, Err(self.not_leader(now))),
            Input::Read { ask, .. } => Answer::Read(ask, Err(ReadError::NoLeader)),
            Input::CheckReachable { ask, .. } => Answer::Reachable(ask, Err(self.not_leader(now))),
            Input::Tick => return self.expire(now),
            _ => return,
        };
        self.out.answers.push(answer);
    }

    fn propose(&mut self, now: Moment, ask: AskId, command: &Command, deadline: Moment) {
        let refusal = match entries::command_entry(command) {
            Err(_) => Some(ProposeError::TooLarge { bytes: MAX_FRAME, limit: self.config.max_command }),
            Ok(e) if e.data.len() > self.config.max_command => {
                Some(ProposeError::TooLarge { bytes: e.data.len(), limit: self.config.max_command })
            }
            Ok(_) if !self.leads() => Some(self.not_leader(now)),
            Ok(e)
                if let Some(full) = self.snapshots.size().refuse(
                    &self.config,
                    self.proposals.bytes(),
                    self.state.tables(),
                    command,
                    &e,
                ) =>
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

    fn propose_membership(
        &mut self,
        now: Moment,
        ask: AskId,
        change: Box<MembershipChange>,
        confirm_by: Option<Moment>,
    ) {
        if !self.leads() {
            self.out.answers.push(Answer::Proposed(ask, Err(self.not_leader(now))));
        } else if self.membership_unsettled() || self.reachability.has_change() {
            self.out.answers.push(Answer::Proposed(ask, Err(ProposeError::MembershipBusy)));
        } else if let Some(deadline) = confirm_by
            && let Some(voters) = self.voters_after(&change)
        {
            self.reachability.begin_change(now, ask, change, voters, deadline);
        } else {
            self.queue_membership(ask, &change, now);
        }
    }

    /// Whether a membership change is in flight, or may be: raft takes on no other one.
    fn membership_unsettled(&self) -> bool {
        let pending = self.member.as_ref().is_some_and(|s| s.raw.has_pending_conf());
        pending || self.proposals.membership_in_flight()
    }

    /// The voters that a possible change results in, if it adds or removes one. They stay the same until it is applied: no other
    /// membership change is in flight.
    fn voters_after(&self, change: &MembershipChange) -> Option<BTreeSet<RaftId>> {
        let tables = self.state.tables();
        muster_store::check_membership(tables, change).ok()?;
        let mut voters: BTreeSet<RaftId> = tables.members.values().filter(|m| m.voter).map(|m| m.raft_id).collect();
        let changed = match &change.kind {
            MembershipChangeKind::PromoteLearner { raft_id, .. } => voters.insert(*raft_id),
            MembershipChangeKind::Remove { raft_id } => voters.remove(raft_id),
            MembershipChangeKind::AddLearner { .. } | MembershipChangeKind::SetAddress { .. } => false,
        };
        changed.then_some(voters)
    }

    fn queue_membership(&mut self, ask: AskId, change: &MembershipChange, since: Moment) {
        let checked = muster_store::check_membership(self.state.tables(), change).map_err(ProposeError::Refused);
        let entry = checked.and_then(|()| {
            let too_large = |_| ProposeError::TooLarge { bytes: MAX_FRAME, limit: self.config.max_command };
            entries::membership_entry(change).map_err(too_large)
        });
        match entry {
            Ok(entry) => {
                self.proposals.queue(Queued { ask, deadline: NO_DEADLINE, entry, membership: true });
                self.out.notices.push(Notice::MembershipProposed { kind: change.kind.clone(), since });
            }
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
        self.state.tables().members.get(&id).map(|m| m.node).or_else(|| self.peers.node_of(id))
    }
    /// The last published replica.
    pub fn replica(&self) -> &Arc<Replica> {
        self.publication.replica()
    }
    /// The last one that was published to readers that objects do not concern.
    pub fn cluster_replica(&self) -> &Arc<Replica> {
        self.publication.cluster_replica()
    }
    /// The tables as applied.
    pub fn tables(&self) -> &Tables {
        self.state.tables()
    }
    /// Dropped packets and similar events, by reason.
    pub fn counters(&self) -> &BTreeMap<&'static str, u64> {
        &self.counters
    }
    /// How often a leader became known to this member.
    pub fn leader_changes(&self) -> u64 {
        self.publication.leader_changes()
    }
    /// Whether it is the leader. It may decide only once `RaftStatus::leading` is set.
    pub fn leads(&self) -> bool {
        self.member.as_ref().is_some_and(|s| s.raw.leads())
    }
    /// Proposals, reads and disk writes in flight.
    pub fn in_flight(&self) -> (usize, usize, usize) {
        (self.proposals.in_flight(), self.reads.in_flight(), self.writes.in_flight())
    }
    /// First and last index of the log in memory, and the index of the snapshot before it.
    pub fn log_span(&self) -> (u64, u64, u64) {
        self.member.as_ref().map_or((0, 0, 0), |s| (s.raw.store().first(), s.raw.last_index(), self.snapshots.index()))
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
