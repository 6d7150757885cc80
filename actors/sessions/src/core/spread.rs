//! Which agents to send to other managers, so that each manager hosts its share of them.
//!
//! Owns        since when this manager has hosted too many sessions, how many are still to be moved, and when it last began to move some.
//! Inputs      the sessions here, and the share of each manager.
//! Invariants  SESSION-12  a manager that has hosted more than its share and a tolerance for `spread_after` without interruption moves its
//!                         surplus, at `spread_per_sec`, and stops when the surplus is gone. It moves some again only after twice as long
//!                         each time, up to `spread_longest`: agents that cannot reach the other managers come back, and must not be
//!                         moved back and forth.
//! Agents do not leave a manager that works: without this, one that was restarted would have few sessions, and others nearly all.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use muster_messages::{Liveness, Moment, NodeId, Tables};

use super::bucket::Bucket;
use crate::config::SessionsConfig;

/// The sessions of each manager if the nodes that are ready were spread evenly over the managers that are.
pub fn share_of(tables: &Tables) -> usize {
    let ready = |node: &NodeId| tables.nodes.get(node).is_some_and(|record| record.liveness == Liveness::Ready);
    let managers = tables.members.values().filter(|member| member.voter && ready(&member.node)).count();
    tables.nodes.values().filter(|record| record.liveness == Liveness::Ready).count().div_ceil(managers.max(1))
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Spread {
    /// When the share is counted next: that takes time in proportion to the nodes.
    count_at: Moment,
    /// By the last count.
    share: usize,
    /// Since when there have been too many sessions and none were moved.
    over_since: Option<Moment>,
    began_at: Option<Moment>,
    /// How long there must be too many before the next ones are moved.
    pause: Duration,
    left: usize,
    /// The last one that was moved: the next one follows it, so that it is not the same one each time.
    last: Option<NodeId>,
    rate: Bucket,
}

impl Spread {
    pub fn new(config: &SessionsConfig, now: Moment) -> Self {
        let (pause, rate) = (config.spread_after, Bucket::new(config.spread_per_sec, 1.0));
        Self { count_at: now, share: 0, over_since: None, began_at: None, pause, left: 0, last: None, rate }
    }

    /// How many sessions are still to be moved.
    pub fn left(&self) -> usize {
        self.left
    }

    /// While a host has no leader, other rules apply (SESSION-9).
    pub fn stop(&mut self) {
        (self.over_since, self.left) = (None, 0);
    }

    /// Whether the share is to be counted now.
    pub fn is_due(&mut self, now: Moment, sessions: usize, config: &SessionsConfig) -> bool {
        if self.left == 0 && sessions <= config.spread_tolerance {
            self.not_over(now, config); // whatever the share is
            return false;
        }
        let is_due = now >= self.count_at;
        if is_due {
            self.count_at = now + config.spread_every;
        }
        is_due
    }

    pub fn counted(&mut self, now: Moment, sessions: usize, share: usize, config: &SessionsConfig) {
        self.share = share;
        if self.left > 0 {
            return self.recount(sessions);
        }
        if sessions <= share + share / 4 + config.spread_tolerance {
            return self.not_over(now, config);
        }
        if now.since(*self.over_since.get_or_insert(now)) < self.pause {
            return;
        }
        (self.over_since, self.began_at) = (None, Some(now));
        self.pause = (2 * self.pause).min(config.spread_longest);
        self.left = sessions - share;
    }

    /// The next agent to move now, of those that have a session here.
    pub fn next(&mut self, now: Moment, sessions: &BTreeSet<NodeId>) -> Option<NodeId> {
        self.recount(sessions.len());
        if self.left == 0 || self.rate.take(now).is_err() {
            return None;
        }
        let after = self.last.and_then(|last| sessions.range((Excluded(last), Unbounded)).next());
        let next = after.or_else(|| sessions.first()).copied()?;
        self.left -= 1;
        self.last = Some(next);
        Some(next)
    }

    pub fn wake_at(&mut self, now: Moment, sessions: usize, config: &SessionsConfig) -> Option<Moment> {
        if self.left > 0 {
            return Some(self.rate.ready_at(now));
        }
        (sessions > config.spread_tolerance).then_some(self.count_at)
    }

    /// Since the round began, agents may have left by themselves, and the share may have grown. It only lowers the number: agents that come
    /// back are moved in the next round.
    fn recount(&mut self, sessions: usize) {
        self.left = self.left.min(sessions.saturating_sub(self.share));
    }

    /// There are not too many sessions now.
    fn not_over(&mut self, now: Moment, config: &SessionsConfig) {
        self.over_since = None;
        if self.began_at.is_some_and(|at| now.since(at) >= config.spread_longest) {
            (self.began_at, self.pause) = (None, config.spread_after);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_messages::{Member, NodeRecord, RaftId, Role, WallTime};

    use super::*;
    use crate::core::testing::node;

    fn config() -> SessionsConfig {
        SessionsConfig::default()
    }
    fn at(secs: u64) -> Moment {
        Moment(secs * 1_000_000)
    }

    /// Runs for this time at a host whose moved agents all come back. Returns when each round began, and how many were to be moved.
    fn rounds(spread: &mut Spread, sessions: usize, share: usize, secs: std::ops::Range<u64>) -> Vec<(u64, usize)> {
        let all: BTreeSet<NodeId> = (0..sessions as u128).map(node).collect();
        let mut rounds = Vec::new();
        for now in secs.map(at) {
            if spread.is_due(now, sessions, &config()) {
                let before = spread.left();
                spread.counted(now, sessions, share, &config());
                if before == 0 && spread.left() > 0 {
                    rounds.push((now.0 / 1_000_000, spread.left()));
                }
            }
            while spread.next(now, &all).is_some() {}
        }
        rounds
    }

    #[test]
    fn surplus_is_moved_once_it_lasts_and_not_for_a_few() {
        let mut spread = Spread::new(&config(), at(0));
        assert_eq!(rounds(&mut spread, 1_000, 900, 0..600), [], "within the tolerance");
        assert_eq!(rounds(&mut spread, 5, 1, 600..900), [], "a small cluster");
        assert_eq!(rounds(&mut spread, 1_000, 333, 900..929), [], "it has not lasted yet");
        assert_eq!(rounds(&mut spread, 1_000, 333, 929..940), [(930, 667)]);
    }

    /// What was counted before an interruption does not count after it, also if the share is not even counted meanwhile.
    #[test]
    fn only_time_with_too_many_sessions_counts() {
        let interruptions: [fn(&mut Spread); 3] = [
            |spread| assert_eq!(rounds(spread, 400, 333, 25..600), []),
            |spread| assert_eq!(rounds(spread, 5, 333, 25..600), []),
            |spread| spread.stop(),
        ];
        for interrupt in interruptions {
            let mut spread = Spread::new(&config(), at(0));
            assert_eq!(rounds(&mut spread, 1_000, 333, 0..25), []);
            interrupt(&mut spread);
            assert_eq!(rounds(&mut spread, 1_000, 333, 600..629), []);
            assert_eq!(rounds(&mut spread, 1_000, 333, 629..640), [(630, 667)]);
        }
    }

    #[test]
    fn round_ends_when_there_is_no_surplus_any_more() {
        let begun = || {
            let mut spread = Spread::new(&config(), at(0));
            assert_eq!(rounds(&mut spread, 300, 100, 0..33), [(30, 200)]);
            spread
        };
        let mut spread = begun();
        let few: BTreeSet<NodeId> = (0..102).map(node).collect();
        let moved = (33..40).filter_map(|secs| spread.next(at(secs), &few)).count();
        assert_eq!((moved, spread.left()), (2, 0), "most of them have left by themselves");

        let mut spread = begun();
        spread.counted(at(33), 300, 300, &config());
        assert_eq!(spread.left(), 0, "the share has grown");
        spread.counted(at(38), 300, 100, &config());
        assert_eq!(spread.left(), 0, "the next round begins only after its pause");
    }

    #[test]
    fn sessions_that_return_are_moved_ever_more_rarely() {
        let mut spread = Spread::new(&config(), at(0));
        let begun: Vec<u64> = rounds(&mut spread, 100, 50, 0..4_000).into_iter().map(|(at, _)| at).collect();
        assert!(begun.len() < 9, "{begun:?}");
        let pauses: Vec<u64> = begun.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(pauses.windows(2).all(|pair| pair[1] > pair[0]), "{pauses:?}");
        let day = rounds(&mut spread, 100, 50, 4_000..90_000).len();
        assert!((20..=26).contains(&day), "about one each hour: {day}");
    }

    #[test]
    fn moves_are_spread_over_time_and_over_the_nodes() {
        let mut spread = Spread::new(&config(), at(0));
        let mut all: BTreeSet<NodeId> = (0..300).map(node).collect();
        let mut moved = Vec::new();
        for now in (0..=60).map(at) {
            if spread.is_due(now, all.len(), &config()) {
                spread.counted(now, all.len(), 100, &config());
            }
            let before = moved.len();
            while let Some(next) = spread.next(now, &all) {
                all.remove(&next);
                moved.push(next);
            }
            assert!(moved.len() - before <= 1, "not faster than the rate");
            assert!(spread.wake_at(now, all.len(), &config()).is_some_and(|at| at > now));
        }
        assert_eq!(spread.left(), 200 - moved.len());
        let different: BTreeSet<NodeId> = moved.iter().copied().collect();
        assert_eq!(different.len(), moved.len());
        assert!(moved.len() > 25, "{}", moved.len());
        spread.stop();
        assert_eq!((spread.left(), spread.next(at(100), &all)), (0, None), "the leader was lost");
    }

    #[test]
    fn share_counts_nodes_and_managers_that_are_ready() {
        let mut tables = Tables::default();
        for n in 0..10 {
            let name = format!("n{n}").parse().unwrap();
            let liveness = if n % 5 == 4 { Liveness::Down } else { Liveness::Ready };
            let record = NodeRecord { liveness, ..NodeRecord::new(node(n), name, Role::Worker, WallTime(0)) };
            tables.nodes.insert(node(n), Arc::new(record));
        }
        assert_eq!(share_of(&tables), 8, "without a manager, all of them");
        for (n, voter) in [(1, true), (2, true), (3, false), (4, true)] {
            let raft_id = RaftId(n);
            tables.members.insert(raft_id, Member { raft_id, node: node(n.into()), voter, addr: String::new() });
        }
        assert_eq!(share_of(&tables), 4, "n3 is a learner and n4 is down");
    }
}
