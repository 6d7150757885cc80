//! The kill switch of one connection.

use std::sync::{Arc, OnceLock};

use muster_messages::RefusalReason;
use tokio_util::sync::CancellationToken;

/// Ends a connection and says why. Clones are the same switch; the first reason counts.
#[derive(Clone, Debug, Default)]
pub struct Kill {
    reason: Arc<OnceLock<RefusalReason>>,
    token: CancellationToken,
}

impl Kill {
    /// A switch that nobody has thrown.
    pub fn new() -> Self {
        Self::default()
    }
    /// Ends the connection. Repeated: the first reason stays.
    pub fn cut(&self, reason: RefusalReason) {
        let _ = self.reason.set(reason);
        self.token.cancel();
    }
    /// Why it was cut, if it was.
    pub fn cut_reason(&self) -> Option<RefusalReason> {
        self.reason.get().copied()
    }
    /// Waits until it is cut. Safe to drop and call again.
    pub async fn wait(&self) -> RefusalReason {
        self.token.cancelled().await;
        self.reason.get().copied().expect("a switch is thrown only after its reason is set")
    }
    pub(crate) fn token(&self) -> &CancellationToken {
        &self.token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_reason_of_a_cut_stays() {
        let kill = Kill::new();
        assert_eq!(kill.cut_reason(), None);
        let other = kill.clone();
        other.cut(RefusalReason::Blocked);
        kill.cut(RefusalReason::Demoted);
        assert_eq!(kill.wait().await, RefusalReason::Blocked);
        assert_eq!(kill.cut_reason(), Some(RefusalReason::Blocked));
    }
}
