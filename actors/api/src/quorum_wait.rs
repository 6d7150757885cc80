//! How long a read that may be answered stale waits for a quorum. A page of the dashboard or `muster status` asks several times: once a
//! whole wait was in vain, the reads after it do not repeat it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Two election timeouts.
const WHOLE: Duration = Duration::from_millis(1500);
/// What a quorum that is back needs to confirm a read, many times over.
const SHORT: Duration = Duration::from_millis(200);
/// How long a wait in vain is remembered. A leader may take longer than [`SHORT`] to answer: then a whole wait finds it.
const REMEMBERED: Duration = Duration::from_secs(5);

/// Of one process.
#[derive(Debug, Default)]
pub(crate) struct QuorumWait {
    /// When the last whole wait was in vain. Forgotten with a read that was confirmed.
    lost_at: Mutex<Option<Instant>>,
}

impl QuorumWait {
    /// How long the next read waits.
    pub fn now(&self) -> Duration {
        match *self.lost_at() {
            Some(at) if at.elapsed() < REMEMBERED => SHORT,
            _ => WHOLE,
        }
    }

    /// A read waited this long, in vain. A short wait shows nothing new, and neither does a failure without one: an election may be under way.
    pub fn was_in_vain(&self, waited: Duration) {
        if waited >= WHOLE / 2 {
            *self.lost_at() = Some(Instant::now());
        }
    }

    /// An answer that a quorum confirmed.
    pub fn confirmed<T>(&self, answer: T) -> T {
        *self.lost_at() = None;
        answer
    }

    fn lost_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.lost_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failure_without_a_wait_shortens_no_wait() {
        let wait = QuorumWait::default();
        wait.was_in_vain(Duration::from_millis(10));
        assert_eq!(wait.now(), WHOLE, "an election may be under way");
        wait.was_in_vain(WHOLE);
        assert_eq!(wait.now(), SHORT);
        wait.was_in_vain(SHORT);
        tokio::time::advance(REMEMBERED).await;
        assert_eq!(wait.now(), WHOLE, "short waits prolong nothing");
    }
}
