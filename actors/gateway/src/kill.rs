//! The kill switch of one connection.

use std::sync::{Arc, OnceLock};

use muster_messages::RefusalReason;
use tokio_util::sync::CancellationToken;

/// Ends a connection with a reason. Clones share one switch; the first reason counts.
#[derive(Clone, Debug, Default)]
pub struct Kill {
    reason: Arc<OnceLock<RefusalReason>>,
    token: CancellationToken,
    retired: CancellationToken,
}

impl Kill {
    pub fn new() -> Self {
        Self::default()
    }
    /// Ends the connection. Repeated: the first reason is kept.
    pub fn cut(&self, reason: RefusalReason) {
        let _ = self.reason.set(reason);
        self.token.cancel();
    }
    /// Asks its service to end it in order, before it is cut: an HTTP client then knows which of its requests it may repeat.
    pub fn retire(&self) {
        self.retired.cancel();
    }
    /// Waits until it is to end in order. Safe to drop and call again.
    pub async fn retired(&self) {
        self.retired.cancelled().await;
    }
    /// Why the connection was disconnected, if it was.
    pub fn disconnect_reason(&self) -> Option<RefusalReason> {
        self.reason.get().copied()
    }
    /// Waits until the connection is disconnected. Safe to drop and call again.
    pub async fn wait(&self) -> RefusalReason {
        self.token.cancelled().await;
        self.reason.get().copied().expect("the reason is set before the token is cancelled")
    }
    pub(crate) fn token(&self) -> &CancellationToken {
        &self.token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn first_disconnect_reason_is_kept() {
        let kill = Kill::new();
        assert_eq!(kill.disconnect_reason(), None);
        let other = kill.clone();
        other.cut(RefusalReason::Blocked);
        kill.cut(RefusalReason::Demoted);
        assert_eq!(kill.wait().await, RefusalReason::Blocked);
        assert_eq!(kill.disconnect_reason(), Some(RefusalReason::Blocked));
    }
}
