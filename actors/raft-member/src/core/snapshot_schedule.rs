//! The own snapshots: when the next one is taken, and how much of the log stays behind it.
//!
//! Owns        the position of the last snapshot, what was applied since, the one being written, marks of the log's growth.
//! Inputs      applied entries, the end of the log, snapshots that begin and end.
//! Outputs     whether a snapshot is due, the number of entries to keep behind one.
//! Invariants  at most one snapshot is being written; one that was abandoned (another member id) ends nothing.
//! Why the size of the state is measured here: each snapshot measures it, and a full state needs a measurement.

use std::collections::VecDeque;
use std::time::Duration;

use muster_messages::Moment;
use muster_messages::wire::SnapshotHead;

use super::RaftConfig;
use super::size::StateSize;

/// The pause after a snapshot that could not be written. Otherwise every entry would trigger another one, and encoding takes a
/// core: a full disk must cost only space.
const SNAPSHOT_RETRY_PAUSE: Duration = Duration::from_secs(10);
/// While writes are refused for lack of room, the state is measured this often: what was deleted meanwhile makes room. Each measurement is a
/// snapshot, and encoding a large one takes a core for a second.
const MEASURE_PAUSE: Duration = Duration::from_secs(10);
/// The write rate is averaged over `keep_time`: thirty marks suffice.
const RATE_MARK_EVERY: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct SnapshotSchedule {
    /// The index of the last snapshot.
    index: u64,
    /// The bytes of the entries since.
    bytes: u64,
    taking: bool,
    failed: Option<Moment>,
    /// When this member last wrote one.
    ended: Option<Moment>,
    size: StateSize,
    /// The end of the log, once a second: shows how many entries `keep_time` is worth.
    marks: VecDeque<(Moment, u64)>,
}

impl SnapshotSchedule {
    /// A member starts from a snapshot of `measured` bytes. One that is being written for an earlier member id is abandoned.
    pub fn start(&mut self, index: u64, bytes: u64, measured: u64) {
        (self.index, self.bytes, self.taking) = (index, bytes, false);
        self.size = StateSize::measured(measured);
    }
    /// A received snapshot replaces the log.
    pub fn installed(&mut self, head: &SnapshotHead) {
        (self.index, self.bytes) = (head.index, 0);
        self.size = StateSize::measured(head.bytes);
    }
    /// A new disk gets a snapshot at this index, and entries of this size after it.
    pub fn rewritten(&mut self, index: u64, bytes: u64) {
        (self.index, self.bytes) = (index, bytes);
    }
    pub fn applied(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.size.applied(bytes);
    }

    pub fn is_due(&self, now: Moment, applied: u64, config: &RaftConfig) -> bool {
        let since = applied.saturating_sub(self.index);
        // A write is refused for lack of room only by a measured size.
        let paused = self.ended.is_none_or(|at| now.since(at) >= MEASURE_PAUSE);
        let measure = since > 0 && self.size.wants_measure(config, paused);
        let due = measure || since >= config.snapshot_entries || (since > 0 && self.bytes >= config.snapshot_bytes);
        let later = self.failed.is_some_and(|at| now.since(at) < SNAPSHOT_RETRY_PAUSE);
        due && !later && !self.taking
    }
    /// A snapshot of the applied state is being written.
    pub fn begin(&mut self) {
        (self.taking, self.bytes) = (true, 0);
        self.size.measuring();
    }
    /// The snapshot is written, or could not be. Returns its head if the log can start from it.
    pub fn end(&mut self, now: Moment, head: Option<SnapshotHead>) -> Option<SnapshotHead> {
        if !std::mem::take(&mut self.taking) {
            return None;
        }
        self.failed = head.is_none().then_some(now);
        let head = head?;
        self.ended = Some(now);
        self.size.measured_now(head.bytes);
        (head.index > self.index).then_some(head)
    }
    /// The log starts from this snapshot.
    pub fn starts_from(&mut self, index: u64) {
        self.index = index;
    }

    /// Records the end of the log once a second.
    pub fn mark(&mut self, now: Moment, last: u64, keep_time: Duration) {
        if self.marks.back().is_none_or(|(at, _)| now.since(*at) >= RATE_MARK_EVERY) {
            self.marks.push_back((now, last));
        }
        while self.marks.front().is_some_and(|(at, _)| now.since(*at) > keep_time) {
            self.marks.pop_front();
        }
    }
    /// How many entries behind a snapshot are kept: enough for a follower that was away for `keep_time`, within `keep_bytes`.
    pub fn kept_entries(&self, last: u64, config: &RaftConfig) -> u64 {
        let written = self.marks.front().map_or(0, |(_, index)| last.saturating_sub(*index));
        config.keep_entries.max(written)
    }

    /// The index of the last snapshot.
    pub fn index(&self) -> u64 {
        self.index
    }
    pub fn size(&mut self) -> &mut StateSize {
        &mut self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> RaftConfig {
        RaftConfig { snapshot_entries: 100, keep_entries: 10, ..RaftConfig::default() }
    }
    fn at(secs: u64) -> Moment {
        Moment(0) + Duration::from_secs(secs)
    }
    fn head(index: u64) -> SnapshotHead {
        SnapshotHead { index, term: 1, voters: vec![1], learners: vec![], bytes: 1_000, digest: [0; 32] }
    }

    #[test]
    fn failed_snapshot_is_not_repeated_at_once() {
        let (mut schedule, config) = (SnapshotSchedule::default(), config());
        assert!(!schedule.is_due(at(0), 99, &config) && schedule.is_due(at(0), 100, &config));
        schedule.begin();
        assert!(!schedule.is_due(at(0), 200, &config), "one is being written");
        assert_eq!(schedule.end(at(1), None), None);
        assert!(!schedule.is_due(at(10), 200, &config) && schedule.is_due(at(11), 200, &config));
    }

    /// SIZE-3.
    #[test]
    fn refusals_are_checked_against_a_new_measurement() {
        use muster_messages::{Change, Command, NodeId, Principal, Tables, WallTime};
        let config = RaftConfig { max_snapshot_bytes: 1_600, snapshot_entries: 1_000, ..config() };
        let mut schedule = SnapshotSchedule::default();
        schedule.begin();
        assert!(schedule.end(at(0), Some(head(1))).is_some());
        schedule.starts_from(1);
        let refused = |schedule: &mut SnapshotSchedule, bytes: usize| {
            let add = [("a".to_owned(), "b".to_owned())].into();
            let label = Change::UpdateLabels { node: NodeId::from_entropy(1), add, remove: Default::default() };
            let command = Command::idempotent(WallTime(0), Principal::Operator, "").change(label);
            let entry = raft::eraftpb::Entry { data: vec![0; bytes].into(), ..Default::default() };
            schedule.size().refuse(&config, 0, &Tables::default(), &command, &entry).is_some()
        };
        schedule.applied(1);
        assert!(!refused(&mut schedule, 100) && !schedule.is_due(at(60), 2, &config), "nothing was refused");
        assert!(refused(&mut schedule, 1_000));
        assert!(!schedule.is_due(at(9), 2, &config) && schedule.is_due(at(10), 2, &config));
        schedule.begin();
        assert!(schedule.end(at(10), Some(head(2))).is_some());
        schedule.starts_from(2);
        schedule.applied(1);
        assert!(!schedule.is_due(at(60), 3, &config), "the next refusal asks for the next one");
    }

    #[test]
    fn abandoned_or_overtaken_snapshot_moves_nothing() {
        let mut schedule = SnapshotSchedule::default();
        schedule.begin();
        schedule.start(500, 0, 0);
        assert_eq!(schedule.end(at(1), Some(head(600))), None, "it was of another member id");
        schedule.begin();
        assert_eq!(schedule.end(at(2), Some(head(400))), None, "a received one is newer");
        schedule.begin();
        assert_eq!(schedule.end(at(3), Some(head(700))).map(|head| head.index), Some(700));
        assert_eq!((schedule.index(), schedule.size().estimate()), (500, 1_000));
    }

    #[test]
    fn kept_log_follows_the_write_rate() {
        let (mut schedule, config) = (SnapshotSchedule::default(), config());
        assert_eq!(schedule.kept_entries(5, &config), 10);
        for second in 0..=60 {
            schedule.mark(at(second), second * 7, config.keep_time);
        }
        assert_eq!(schedule.kept_entries(60 * 7, &config), 30 * 7);
    }
}
