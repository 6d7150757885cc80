//! The durations and bounds of a member, each with its reason.

use std::time::Duration;

use muster_messages::FEATURE_LEVEL;
use muster_store::Limits;

/// How a member behaves. All members of a cluster should use the same timings.
#[derive(Clone, Debug, PartialEq)]
pub struct RaftConfig {
    /// The newest encoding of commands and snapshots that this build reads. Of a cluster at a higher level it applies nothing.
    pub feature_level: u32,
    /// How often the core gets `Tick`. The durations below are counted in whole ticks or compared with the moment handed in; 20
    /// ms is a fifth of a heartbeat and costs nothing measurable.
    pub tick: Duration,
    /// The heartbeat interval: six fit into the shortest election timeout, so that one lost packet starts no election.
    pub heartbeat: Duration,
    /// Election timeouts are sampled from one to two times this. It is also the lease of check-quorum: far above disk hiccups
    /// and scheduling pauses, far below what an operator notices.
    pub election_timeout: Duration,
    /// After a leader-loss hint a member campaigns within this time, at random, so that two followers rarely collide.
    pub hint_spread: Duration,
    /// A hinted campaign that has produced no leader is repeated after this time plus a random share of it: the others may have
    /// noticed the loss later, or two candidates split the vote.
    pub hint_again: Duration,
    pub hint_tries: u8,

    /// Append messages in flight to one follower. Each turn makes about one, so this is a window of turns. While a follower
    /// catches up, the mesh holds up to this times `max_size_per_msg` for it.
    pub max_inflight_msgs: usize,
    /// Bytes of entries in one append message. A message must fit a frame of 1 MiB even if one command of `max_command` bytes
    /// overshoots the limit. (Raft's `batch_append` would merge messages beyond any limit.)
    pub max_size_per_msg: u64,
    /// Uncommitted bytes that a leader keeps before raft drops proposals: above `max_proposal_bytes`, so that the core's own
    /// bound answers `Busy` first.
    pub max_uncommitted: u64,
    /// Bytes of committed entries applied in one turn: a follower that catches up stays responsive.
    pub max_apply_bytes: u64,

    /// Proposals in flight; more are refused as `Busy`. The highest expected load is 25,000 a second, and a proposal takes a
    /// millisecond.
    pub max_proposals: usize,
    pub max_proposal_bytes: usize,
    /// The largest encoded command. See `max_size_per_msg`.
    pub max_command: usize,
    /// Reads in flight; more are refused as `Busy`. A read costs only its wait.
    pub max_reads: usize,
    /// Concurrent read-index rounds. Each carries all reads that waited when it was sent.
    pub read_rounds: usize,
    /// A round without an answer is repeated after this time: two heartbeats.
    pub read_retry: Duration,
    /// After the loss of leadership a proposal may still turn out committed or replaced within a few round trips. After this
    /// time its outcome is unknown.
    pub orphan_wait: Duration,
    /// A leadership transfer that is not complete after this time has failed.
    pub transfer_wait: Duration,
    /// A leader whose oldest disk write takes longer than this steps down: alone it can commit nothing, and another member's
    /// disk is probably healthy.
    pub disk_limit: Duration,

    /// A snapshot is taken after this many applied entries or bytes since the last one.
    pub snapshot_entries: u64,
    pub snapshot_bytes: u64,
    /// The tail of the log kept behind a snapshot, so that a follower that was briefly away needs no snapshot.
    pub keep_entries: u64,
    /// Of memory.
    pub keep_bytes: u64,
    /// The tail follows the write rate: entries of this time are kept, within `keep_bytes` and twice the bytes of the snapshot.
    pub keep_time: Duration,
    /// While a snapshot is sent, and until its receiver has caught up, the log behind it is kept, up to the larger of this many
    /// bytes and twice those of the snapshot. This costs memory.
    pub transfer_bytes: u64,
    /// A snapshot transfer without progress for this long counts as lost.
    pub snapshot_limit: Duration,
    /// The largest snapshot that members accept. The leader refuses writes that would make the state larger than a share of it:
    /// see `size`.
    pub max_snapshot_bytes: u64,
    /// Members compare the digests of their states at every index that this divides. 0: never. All members need the same value.
    /// A digest encodes the whole state, as a snapshot does: an interval of three snapshots' worth of entries costs much less
    /// than the snapshots.
    pub digest_every: u64,
    /// How much history the state keeps. All members need the same value, and so does every restart of one member.
    pub limits: Limits,
    /// Followers learn of a commit from the next append, or from a separate message after this time. Under load the next append
    /// comes first, which halves the messages; otherwise a follower's replica is this much older.
    pub commit_news: Duration,
    /// A leader publishes its peers' progress at least this often; and a command about objects reaches the readers of the cluster's
    /// replica after this time (and a tick) at the latest.
    pub publish_every: Duration,

    #[cfg(feature = "bug-injection")]
    pub bugs: BugInjection,
}

/// Bugs that a test injects to prove that the checks detect them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BugInjection {
    /// Entries count as durable before they are (breaks DURABLE-1).
    pub ack_before_sync: bool,
    /// Votes and answers leave before the disk has them (breaks DURABLE-2).
    pub vote_before_sync: bool,
    /// Votes for every candidate that asks, however often (breaks LEADER-1 of the cluster).
    pub vote_again: bool,
    /// Answers reads from the member's own state without a quorum (breaks READ-1).
    pub read_without_asking: bool,
    /// Forgets the proposals in flight when leadership is lost (breaks PROPOSE-1).
    pub forget_proposals: bool,
    /// Compacts the log behind a snapshot that is being sent (breaks SNAP-1).
    pub cut_behind_transfers: bool,
    /// A member continues beyond the feature level of its build (breaks LEVEL-2).
    pub ignore_level: bool,
    /// Sends another snapshot immediately after one that was not installed (breaks SNAP-2).
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
            #[cfg(feature = "bug-injection")]
            bugs: BugInjection::default(),
        }
    }
}

/// The tail of the log may take this much memory, however small the state is.
const MIN_TAIL_BYTES: u64 = 4 << 20;

impl RaftConfig {
    /// How much memory the tail of the log may take behind a snapshot of this many bytes. A follower that is further behind than
    /// twice the snapshot is up to date sooner with the snapshot; a longer tail would only take memory, in each manager.
    pub(crate) fn worth_keeping(&self, snapshot: u64) -> u64 {
        self.keep_bytes.min(snapshot.saturating_mul(2).max(MIN_TAIL_BYTES))
    }
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
    /// For the `raft` crate. Fields not named here keep their safe defaults.
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
    #[cfg(feature = "bug-injection")]
    pub(crate) fn injected_bugs(&self) -> BugInjection {
        self.bugs
    }
    #[cfg(not(feature = "bug-injection"))]
    pub(crate) fn injected_bugs(&self) -> BugInjection {
        BugInjection::default()
    }
}
