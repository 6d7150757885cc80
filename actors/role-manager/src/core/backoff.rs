//! Back-off: nodes that get no further step for a while, because their last one failed or changed nothing.
//!
//! Owns        the nodes held back, each until a time; the nodes whose last write changed nothing; the next retry of everything.
//! Inputs      failed steps, applied writes, nodes whose facts changed.
//! Outputs     whether a node is held back, what it waits for meanwhile, deadlines.
//! Invariants  a node is held back only until its facts change, its time is reached, or everything is retried.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_messages::{Moment, NodeId, WallTime};

use super::Now;
use super::plan::Wait;

#[derive(Clone, Debug)]
struct Hold {
    until: Moment,
    wait: Option<Wait>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Backoff {
    holds: BTreeMap<NodeId, Hold>,
    /// Nodes whose last write was applied and changed nothing.
    unchanged_writes: BTreeSet<NodeId>,
    /// When everything that waits is retried.
    retry: Option<Now>,
}

impl Backoff {
    /// `wait`: what the node shows meanwhile, if that is not what its plan says.
    pub fn hold(&mut self, node: NodeId, until: Moment, wait: Option<Wait>) {
        self.holds.insert(node, Hold { until, wait });
    }
    /// A write was applied. One that did not change its node would be planned again at once, endlessly. The first one may repeat a
    /// write applied before a crash, so it has no delay.
    pub fn wrote(&mut self, node: NodeId, changed: bool, until: Moment) {
        if changed {
            self.unchanged_writes.remove(&node);
        } else if !self.unchanged_writes.insert(node) {
            self.hold(node, until, None);
        }
    }
    /// The facts of the node changed.
    pub fn release(&mut self, node: NodeId) {
        self.holds.remove(&node);
    }
    /// The facts of all nodes are read again.
    pub fn release_all(&mut self) {
        self.holds.clear();
    }
    pub fn expire(&mut self, now: Moment) {
        if self.retry.take_if(|retry| retry.at <= now).is_some() {
            self.holds.clear();
        }
        self.holds.retain(|_, hold| now < hold.until);
    }
    /// Sets the next retry, if there is anything that a retry can help. Returns when it is.
    pub fn plan_retry(&mut self, now: Now, wanted: bool, after: Duration) -> Option<WallTime> {
        self.retry = wanted.then(|| self.retry.unwrap_or(now.plus(after)));
        self.retry.map(|retry| retry.wall)
    }

    pub fn is_held(&self, node: NodeId) -> bool {
        self.holds.contains_key(&node)
    }
    pub fn wait(&self, node: NodeId) -> Option<&Wait> {
        self.holds.get(&node)?.wait.as_ref()
    }
    pub fn deadlines(&self) -> impl Iterator<Item = Moment> {
        self.holds.values().map(|hold| hold.until).chain(self.retry.map(|retry| retry.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(secs: u64) -> Now {
        Now::default().plus(Duration::from_secs(secs))
    }
    fn node(n: u128) -> NodeId {
        NodeId::from_entropy(n)
    }

    #[test]
    fn second_fruitless_write_holds_its_node() {
        let mut backoff = Backoff::default();
        backoff.wrote(node(1), false, now(5).at);
        assert!(!backoff.is_held(node(1)), "it may repeat one from before a crash");
        backoff.wrote(node(1), false, now(5).at);
        backoff.expire(now(4).at);
        assert!(backoff.is_held(node(1)));
        backoff.expire(now(5).at);
        assert!(!backoff.is_held(node(1)));
        backoff.wrote(node(1), true, now(9).at);
        backoff.wrote(node(1), false, now(9).at);
        assert!(!backoff.is_held(node(1)), "a write changed it meanwhile");
    }

    #[test]
    fn retry_releases_all_and_is_not_postponed() {
        let mut backoff = Backoff::default();
        backoff.hold(node(1), now(100).at, None);
        assert_eq!(backoff.plan_retry(now(0), true, Duration::from_secs(10)), Some(now(10).wall));
        assert_eq!(backoff.plan_retry(now(9), true, Duration::from_secs(10)), Some(now(10).wall));
        backoff.expire(now(10).at);
        assert!(!backoff.is_held(node(1)));
        assert_eq!(backoff.deadlines().count(), 0);
        backoff.plan_retry(now(10), true, Duration::from_secs(10));
        assert_eq!(backoff.plan_retry(now(11), false, Duration::from_secs(10)), None);
    }
}
