//! Every duration and bound of a member, each with its reason.

use std::time::Duration;

use muster_messages::FEATURE_LEVEL;
use muster_store::Limits;

/// How a member behaves. All members of a cluster should agree on the timings.
#[derive(Clone, Debug, PartialEq)]
pub struct RaftConfig {
    /// The newest encoding of commands and snapshots that is read here. Of a cluster at a higher one nothing is applied.
    pub feature_level: u32,
    /// How often the core hears `Tick`. Everything below that is a duration is counted in whole ticks or compared
    /// with the moment handed in; 20 ms is a fifth of a heartbeat and costs nothing measurable.
    pub tick: Duration,
    /// A leader's heartbeat: six of them fit into the shortest election timeout, so that one lost packet elects nobody.
    pub heartbeat: Duration,
    /// Election timeouts are drawn from one to two times this. It is also the lease of check-quorum: far above a
    /// disk's hiccup and a scheduler's pause, far below what an operator notices.
    pub election_timeout: Duration,
    /// After a leader-loss hint a member campaigns within this time, at random, so that two followers rarely collide.
    pub hint_spread: Duration,
    /// A hinted campaign without a leader after this long (plus a random share of it) is repeated, because the others
    /// may have noticed later than we did, or two candidates split the vote.
    pub hint_again: Duration,
    pub hint_tries: u8,

    /// Append messages on their way to one follower. Each turn makes about one, so this is a window of turns; while a
    /// follower catches up, this times `max_size_per_msg` is what waits in the mesh for it.
    pub max_inflight_msgs: usize,
    /// Entries of one append message. A message must fit a frame of 1 MiB together with one command of
    /// `max_command` bytes that overshoots the limit. (Raft's `batch_append` would merge messages beyond any limit.)
    pub max_size_per_msg: u64,
    /// Uncommitted bytes that a leader keeps before raft drops proposals: above `max_proposal_bytes`, so that our
    /// own bound answers `Busy` first.
    pub max_uncommitted: u64,
    /// Bytes of committed entries applied in one turn: a follower that catches up stays responsive.
    pub max_apply_bytes: u64,

    /// Proposals in flight; more are refused as `Busy`. A second of the fastest load that is expected would be 25,000,
    /// and a proposal takes a millisecond.
    pub max_proposals: usize,
    pub max_proposal_bytes: usize,
    /// The largest encoded command. See `max_size_per_msg`.
    pub max_command: usize,
    /// Reads in flight; more are refused as `Busy`. They cost only the waiting.
    pub max_reads: usize,
    /// Read-index rounds on their way at the same time. Each carries all reads that waited when it left.
    pub read_rounds: usize,
    /// A round without an answer is asked again after this: two heartbeats.
    pub read_retry: Duration,
    /// After the loss of leadership a proposal may still turn out to be committed, or to be replaced, within a few
    /// round trips; only then its outcome is unknown.
    pub orphan_wait: Duration,
    /// A transfer of leadership that has not come about after this has failed.
    pub transfer_wait: Duration,
    /// A leader whose oldest disk write takes longer than this steps down: it can commit nothing by itself,
    /// and another member's disk is probably well.
    pub disk_limit: Duration,

    /// A snapshot is taken after this many applied entries or bytes since the last one.
    pub snapshot_entries: u64,
    pub snapshot_bytes: u64,
    /// The tail kept behind a snapshot, so that a follower that missed a moment needs no snapshot.
    pub keep_entries: u64,
    pub keep_bytes: u64,
    /// The tail follows the rate of writes: what was written in this time stays, within `keep_bytes`.
    pub keep_time: Duration,
    /// While a snapshot is on its way, and until its receiver has caught up, the log behind it stays, up to this many
    /// bytes or twice those of the snapshot. Memory is what it costs.
    pub transfer_bytes: u64,
    /// A snapshot of which nothing more arrives for this long counts as lost.
    pub snapshot_limit: Duration,
    /// The largest snapshot that the members take. The leader refuses writes that would make the state larger than a
    /// share of it: see `size`.
    pub max_snapshot_bytes: u64,
    /// Members compare the digests of their states at every index that this divides. 0: never. All members need the same value.
    /// A digest encodes the whole state, as a snapshot does: three snapshots' worth of entries keeps it well below their cost.
    pub digest_every: u64,
    /// How much the state remembers of the past. All members need the same value, and so does every earlier start of this one.
    pub limits: Limits,
    /// The followers learn of a commit from the next append, or from a message of its own after this long. Under load
    /// the next append is there first, which halves the messages; without, a follower's copy is this much older.
    pub commit_news: Duration,
    /// While leading, the progress of the peers is published at least this often.
    pub publish_every: Duration,

    #[cfg(feature = "sabotage")]
    pub sabotage: Sabotage,
}

/// Promises that a test may break on purpose, so that it sees that breaking them is noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sabotage {
    /// Entries count as durable before they are (breaks DURABLE-1).
    pub ack_before_sync: bool,
    /// Votes and answers leave before the disk has them (breaks DURABLE-2).
    pub vote_before_sync: bool,
    /// A vote is given to everybody who asks, however often (breaks LEADER-1 of the cluster).
    pub vote_again: bool,
    /// Reads are answered from whatever this member has (breaks READ-1).
    pub read_without_asking: bool,
    /// With leadership, the proposals in flight are forgotten (breaks PROPOSE-1).
    pub forget_proposals: bool,
    /// The log is cut behind a snapshot that is on its way (breaks SNAP-1).
    pub cut_behind_transfers: bool,
    /// Another snapshot may follow one that was not taken at once (breaks SNAP-2).
    pub snapshots_without_pause: bool,
}

impl Default for RaftConfig {
    fn default() -> Self {
        Self {
            feature_level: FEATURE_LEVEL,
            tick: Duration::from_millis(20),
            heartbeat: Duration::from_millis(100),
            election_timeout: Duration::from_millis(600),
            hint_spread: Duration::from_millis(50),
            hint_again: Duration::from_millis(100),
            hint_tries: 4,
            max_inflight_msgs: 64,
            max_size_per_msg: 256 << 10,
            max_uncommitted: 64 << 20,
            max_apply_bytes: 4 << 20,
            max_proposals: 8192,
            max_proposal_bytes: 32 << 20,
            max_command: 512 << 10,
            max_reads: 65_536,
            read_rounds: 4,
            read_retry: Duration::from_millis(200),
            orphan_wait: Duration::from_millis(500),
            transfer_wait: Duration::from_secs(2),
            disk_limit: Duration::from_secs(2),
            snapshot_entries: 10_000,
            snapshot_bytes: 32 << 20,
            keep_entries: 1_000,
            keep_bytes: 32 << 20,
            keep_time: Duration::from_secs(30),
            transfer_bytes: 128 << 20,
            snapshot_limit: Duration::from_secs(60),
            max_snapshot_bytes: 256 << 20,
            digest_every: 32_768,
            limits: Limits::DEFAULT,
            commit_news: Duration::from_millis(2),
            publish_every: Duration::from_millis(100),
            #[cfg(feature = "sabotage")]
            sabotage: Sabotage::default(),
        }
    }
}

impl RaftConfig {
    fn ticks(&self, d: Duration) -> usize {
        let ticks = d.as_micros().div_ceil(self.tick.as_micros().max(1));
        usize::try_from(ticks).unwrap_or(usize::MAX).max(1)
    }
    pub(crate) fn heartbeat_ticks(&self) -> usize {
        self.ticks(self.heartbeat)
    }
    pub(crate) fn election_ticks(&self) -> (usize, usize) {
        let min = self.ticks(self.election_timeout).max(self.heartbeat_ticks() + 1);
        (min, min * 2)
    }
    /// For the `raft` crate. What is not named here keeps its safe default.
    pub(crate) fn for_raft(&self, id: u64, applied: u64) -> raft::Config {
        let (min, max) = self.election_ticks();
        raft::Config {
            id,
            applied,
            heartbeat_tick: self.heartbeat_ticks(),
            election_tick: min,
            min_election_tick: min,
            max_election_tick: max,
            max_size_per_msg: self.max_size_per_msg,
            max_inflight_msgs: self.max_inflight_msgs,
            max_uncommitted_size: self.max_uncommitted,
            max_committed_size_per_ready: self.max_apply_bytes,
            check_quorum: true,
            pre_vote: true,
            ..raft::Config::default()
        }
    }
    #[cfg(feature = "sabotage")]
    pub(crate) fn sabotaged(&self) -> Sabotage {
        self.sabotage
    }
    #[cfg(not(feature = "sabotage"))]
    pub(crate) fn sabotaged(&self) -> Sabotage {
        Sabotage::default()
    }
}
