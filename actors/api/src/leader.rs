//! The way to the leader, for requests of the API and for calls of the other services alike: where the leader is, how long
//! to wait for its answer, and when to try again.

use std::sync::Arc;
use std::time::Duration;

use muster_messages::wire::PeerCall;
use muster_messages::{ErrorBody, NodeId, Replica};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::ports::ManagerPorts;

/// The longest pause between two attempts to reach a leader. A leader change takes tens of milliseconds.
pub const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// The shortest one: between two states of the replica that name the same leader.
const MIN_RETRY_PAUSE: Duration = Duration::from_millis(5);

/// The search for a leader on behalf of one request, until its deadline.
pub struct LeaderSearch {
    node: NodeId,
    replica: watch::Receiver<Arc<Replica>>,
    deadline: Instant,
    /// Whether an attempt was made.
    begun: bool,
}

impl LeaderSearch {
    /// The leader to ask: at once for the first attempt, after a pause for each further one. `None` once the deadline leaves
    /// no time for another.
    pub async fn next(&mut self) -> Option<NodeId> {
        loop {
            if std::mem::replace(&mut self.begun, true) && !self.pause().await {
                return None;
            }
            if let Some(leader) = self.leader() {
                return Some(leader);
            }
        }
    }

    /// The time until the deadline.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// The leader as this manager knows it: itself only once it has applied an entry of its own term.
    fn leader(&mut self) -> Option<NodeId> {
        let raft = &self.replica.borrow_and_update().raft;
        if raft.leading { Some(self.node) } else { raft.leader_node.filter(|leader| *leader != self.node) }
    }

    /// Waits before the next attempt: a new leader shows as a change of the replica, and the pause bounds the wait for what
    /// does not show there. False once the deadline leaves no time for another attempt.
    async fn pause(&mut self) -> bool {
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

/// The answer of another manager, or `None` once it no longer leads: a frozen one does not answer, and it takes seconds
/// until its connection is given up. The call may have been carried out all the same.
async fn while_leading<T>(
    leader: NodeId,
    mut replica: watch::Receiver<Arc<Replica>>,
    answer: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        answer = answer => Some(answer),
        Ok(_) = replica.wait_for(|r| r.raft.leader_node != Some(leader)) => None,
    }
}

impl ManagerPorts {
    /// The way to the leader for one request.
    pub fn leader_search(&self, deadline: Instant) -> LeaderSearch {
        LeaderSearch { node: self.node, replica: self.replica.clone(), deadline, begun: false }
    }

    /// Calls another manager while it leads; `None` once it no longer does.
    pub async fn call_leader(
        &self,
        leader: NodeId,
        timeout: Duration,
        call: PeerCall,
    ) -> Option<Result<Vec<u8>, ErrorBody>> {
        while_leading(leader, self.replica.clone(), (self.call)(leader, timeout, call)).await
    }
}

#[cfg(test)]
#[path = "leader_tests.rs"]
mod tests;
