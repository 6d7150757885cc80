//! The sessions of all agents: how many there are with each manager, and how long agents were without one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use muster_agent::SessionStatus;
use muster_messages::NodeId;
use tokio::sync::watch;

use crate::cli::bench::stats::Times;

/// See the module.
#[derive(Default)]
pub struct Sessions {
    open: watch::Sender<Open>,
    /// Each time without a session that has ended.
    gaps: Mutex<Times>,
}

/// The number of sessions, by manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Open(BTreeMap<NodeId, usize>);

impl Open {
    fn total(&self) -> usize {
        self.0.values().sum()
    }
    fn at(&self, manager: NodeId) -> usize {
        self.0.get(&manager).copied().unwrap_or(0)
    }
    /// How many of so many agents have no session, or one with the manager that was lost.
    fn missing(&self, agents: usize, lost: Option<NodeId>) -> usize {
        agents.saturating_sub(self.total()) + lost.map_or(0, |lost| self.at(lost))
    }
}

impl Sessions {
    /// The number of sessions with this manager.
    pub fn at(&self, manager: NodeId) -> usize {
        self.open.borrow().at(manager)
    }

    /// The times without a session that have ended since the last call.
    pub fn take_gaps(&self) -> Times {
        std::mem::take(&mut *self.gaps.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until all of so many agents have a session, and none has one with the manager `lost`. The error is the number of the others.
    pub async fn wait(&self, agents: usize, lost: Option<NodeId>, limit: Duration) -> Result<(), usize> {
        let mut open = self.open.subscribe();
        let waited = tokio::time::timeout(limit, open.wait_for(|open| open.missing(agents, lost) == 0)).await;
        waited.map(drop).map_err(|_| self.open.borrow().missing(agents, lost))
    }

    /// A gap that ends is recorded before the session that ends it: it is there when [`Sessions::wait`] returns.
    fn moved(&self, from: Option<NodeId>, to: Option<NodeId>, gap: Option<Duration>) {
        if let Some(gap) = gap {
            self.gaps.lock().unwrap_or_else(PoisonError::into_inner).add(gap);
        }
        self.open.send_modify(|open| {
            if let Some(count) = from.and_then(|from| open.0.get_mut(&from)) {
                *count -= 1;
            }
            if let Some(to) = to {
                *open.0.entry(to).or_default() += 1;
            }
        });
    }
}

/// Keeps the record of one agent. Ends with it.
pub async fn follow(mut session: watch::Receiver<Option<SessionStatus>>, sessions: Arc<Sessions>) {
    let (mut host, mut lost) = (None, None);
    loop {
        let now = session.borrow_and_update().as_ref().map(|session| session.host);
        if now != host {
            // The first session of an agent ends no gap. One that is replaced before this is polled leaves none that could be measured.
            let gap = now.and_then(|_| lost.take()).map(|lost: Instant| lost.elapsed());
            if now.is_none() {
                lost = Some(Instant::now());
            }
            sessions.moved(host, now, gap);
            host = now;
        }
        if session.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_messages::WallTime;

    use super::*;

    #[tokio::test]
    async fn sessions_are_counted_by_manager_until_all_have_one() {
        let (lost, other) = (NodeId::from_entropy(1 << 64), NodeId::from_entropy(2 << 64));
        let with = |host| Some(SessionStatus { host, addr: String::new(), since: WallTime::from_unix_secs(0) });
        let sessions = Arc::<Sessions>::default();
        let agents = [watch::Sender::new(with(lost)), watch::Sender::new(with(other))];
        for agent in &agents {
            tokio::spawn(follow(agent.subscribe(), Arc::clone(&sessions)));
        }
        let limit = Duration::from_secs(60);
        assert_eq!(sessions.wait(2, None, limit).await, Ok(()));
        assert_eq!(sessions.wait(2, Some(lost), Duration::ZERO).await, Err(1), "it is still with the lost one");
        assert_eq!((sessions.at(lost), sessions.at(other)), (1, 1));
        let waits = tokio::spawn({
            let sessions = Arc::clone(&sessions);
            async move { sessions.wait(2, Some(lost), limit).await }
        });
        agents[0].send_replace(None);
        let mut open = sessions.open.subscribe();
        open.wait_for(|open| open.total() == 1).await.unwrap();
        agents[0].send_replace(with(other));
        assert_eq!(waits.await.unwrap(), Ok(()));
        assert_eq!((sessions.take_gaps().len(), sessions.take_gaps().len()), (1, 0));
    }
}
