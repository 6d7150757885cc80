//! Waits for a condition, on a thread or in async code.

use std::time::{Duration, Instant};

use muster_client::{Failure, Outcome};
use muster_messages::ErrorCode;

/// The time limit for a condition. Reached only by a broken build or cluster: debug builds on a busy machine are slow.
pub const WAIT_LIMIT: Duration = Duration::from_secs(300);

/// The pause between two polls: short compared to the start or the end of a process, long enough to leave the processor to others.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Polls until there is a value. For tests: panics at the time limit.
#[track_caller]
pub fn eventually<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + WAIT_LIMIT;
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(Instant::now() < end, "timed out after {WAIT_LIMIT:?}: {what}");
        std::thread::park_timeout(POLL_INTERVAL);
    }
}

/// Polls until there is a value. The timeout error names `what`; a failure ends the wait at once.
pub async fn until<T>(what: &str, mut poll: impl AsyncFnMut() -> Outcome<Option<T>>) -> Outcome<T> {
    let end = Instant::now() + WAIT_LIMIT;
    loop {
        if let Some(value) = poll().await? {
            return Ok(value);
        }
        if Instant::now() >= end {
            return Err(Failure::new(ErrorCode::TimedOut, format!("{what}: timed out after {WAIT_LIMIT:?}")));
        }
        pause().await;
    }
}

/// The pause between two polls of async code.
pub async fn pause() {
    tokio::time::sleep(POLL_INTERVAL).await;
}
