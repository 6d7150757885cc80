//! The way to the leader, for requests of the API and for calls of the other services alike: where the leader is, how long
//! to wait for its answer, and when to try again.

use std::sync::Arc;
use std::time::Duration;

use muster_messages::{NodeId, Replica};
use tokio::sync::watch;
use tokio::time::Instant;

/// The longest pause between two attempts to reach a leader. A leader change takes tens of milliseconds.
pub const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// The shortest one: between two states of the replica that name the same leader.
const MIN_RETRY_PAUSE: Duration = Duration::from_millis(5);

/// Where the leader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leader {
    /// This manager leads.
    Here,
    At(NodeId),
}

/// The search for a leader on behalf of one request, until its deadline.
pub struct LeaderSearch {
    node: NodeId,
    replica: watch::Receiver<Arc<Replica>>,
    deadline: Instant,
}

impl LeaderSearch {
    /// `node`: this manager. `replica`: what it has applied.
    pub fn new(node: NodeId, replica: watch::Receiver<Arc<Replica>>, deadline: Instant) -> Self {
        Self { node, replica, deadline }
    }

    /// The leader as this manager knows it; `None` while it knows none.
    pub fn leader(&mut self) -> Option<Leader> {
        let replica = self.replica.borrow_and_update();
        match replica.raft.leader_node {
            _ if replica.raft.leading => Some(Leader::Here),
            Some(leader) if leader != self.node => Some(Leader::At(leader)),
            _ => None,
        }
    }

    /// The time until the deadline.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// The answer of another manager, or `None` once it no longer leads: a frozen one does not answer, and it takes seconds
    /// until its connection is given up. The call may have been carried out all the same.
    pub async fn while_leading<T>(&self, leader: NodeId, answer: impl Future<Output = T>) -> Option<T> {
        let mut replica = self.replica.clone();
        tokio::select! {
            answer = answer => Some(answer),
            Ok(_) = replica.wait_for(|r| r.raft.leader_node != Some(leader)) => None,
        }
    }

    /// Waits before the next attempt: a new leader shows as a change of the replica, and the pause bounds the wait for what
    /// does not show there. False once the deadline leaves no time for another attempt.
    pub async fn retry(&mut self) -> bool {
        if self.left() <= RETRY_PAUSE {
            return false;
        }
        let pause = RETRY_PAUSE - MIN_RETRY_PAUSE;
        tokio::select! {
            // Once the manager runtime has ended, no change comes any more.
            Ok(()) = self.replica.changed() => {}
            () = tokio::time::sleep(pause) => {}
        }
        tokio::time::sleep(MIN_RETRY_PAUSE).await;
        true
    }
}

#[cfg(test)]
#[path = "leader_tests.rs"]
mod tests;
