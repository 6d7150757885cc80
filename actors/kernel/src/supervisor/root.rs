//! The supervisor at the top of a tree.

use std::sync::Arc;

use muster_messages::ActorState;
use ractor::ActorStatus;

use super::Children;
use crate::fence::Fence;
use crate::tree::Registration;
use crate::vitals::{Pulse, Vitals};
use crate::{Fault, Group, Tree};

/// The root of a tree. Dropping it stops the tree in the background, in reverse start order.
pub struct Supervisor {
    children: Children,
    vitals: Arc<Vitals>,
    _registration: Registration,
}

impl Supervisor {
    /// Starts the root supervisor of a tree at `path`.
    pub async fn root(path: &str, tree: Tree, group: impl Into<Group>) -> Result<Self, Fault> {
        let vitals = Arc::new(Vitals::new(path.to_owned(), "Supervisor", path.to_owned()));
        vitals.incarnate(1);
        let registration = tree.register(Arc::clone(&vitals));
        let pulse = Pulse { vitals: Arc::clone(&vitals), incarnation: 1 };
        let children = Children::spawn(path.to_owned(), tree, group.into(), Fence::default(), pulse, None).await?;
        vitals.enter(ActorState::Healthy);
        Ok(Self { children, vitals, _registration: registration })
    }
    /// The children of the root: where a program starts its actors.
    pub fn children(&self) -> &Children {
        &self.children
    }
    /// Returns when the root supervisor has ended: it escalated, or was shut down.
    pub async fn ended(&self) {
        let cell = self.children.cell();
        if cell.get_status() != ActorStatus::Stopped {
            let _gone = cell.wait(None).await;
        }
        self.vitals.enter(ActorState::Dead);
    }
    /// Returns true once the supervisor has handled a message, false if it has ended: for a watchdog. Waits for as long as it is stuck; at
    /// most one call at a time, because its mailbox is unbounded.
    pub async fn beat(&self) -> bool {
        self.children.beat().await
    }
    /// Stops everything in reverse start order.
    pub async fn shut_down(&self) {
        self.vitals.enter(ActorState::Stopping);
        self.children.shut_down().await;
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.children.cell().stop(Some("its handle was dropped".to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use muster_messages::CrashHow;
    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::Intensity;
    use crate::host::HANG;

    /// What a watchdog relies on: neither a hang nor the end counts as an answer.
    #[tokio::test(start_paused = true)]
    async fn beat_waits_for_a_hang_and_is_false_after_the_end() {
        let root = Supervisor::root("node", Tree::default(), Intensity::default()).await.unwrap();
        assert!(root.beat().await);
        let began = Instant::now();
        root.children.crash(CrashHow::Hang);
        assert!(timeout(HANG / 2, root.beat()).await.is_err(), "it hangs");
        assert!(root.beat().await && began.elapsed() >= HANG, "an answer that comes late");
        root.children.crash(CrashHow::Hang);
        let (beat, ()) = tokio::join!(root.beat(), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            root.children.cell().kill();
        });
        assert!(!beat, "it ended before it answered");
        root.ended().await;
        assert!(!root.beat().await);
    }
}
