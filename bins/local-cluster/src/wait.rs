//! Waiting for a condition: on a thread, or in async code.

use std::time::{Duration, Instant};

use muster_client::{Failure, Outcome};
use muster_messages::ErrorCode;

/// How long a condition may take to hold. Only a broken build or a broken cluster reaches it: a debug build on a busy machine is slow.
pub const WAIT_LIMIT: Duration = Duration::from_secs(300);

/// Between two polls: short beside what a process takes to start or to end, long enough to leave the processor to others.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Polls until there is a value. For tests: it panics at the limit.
#[track_caller]
pub fn eventually<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + WAIT_LIMIT;
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(Instant::now() < end, "not so within {WAIT_LIMIT:?}: {what}");
        std::thread::park_timeout(POLL_INTERVAL);
    }
}

/// Polls until there is a value. `what` says what was missing at the limit; a failure ends the wait at once.
pub async fn until<T>(what: &str, mut poll: impl AsyncFnMut() -> Outcome<Option<T>>) -> Outcome<T> {
    let end = Instant::now() + WAIT_LIMIT;
    loop {
        if let Some(value) = poll().await? {
            return Ok(value);
        }
        if Instant::now() >= end {
            return Err(Failure::new(ErrorCode::TimedOut, format!("{what}: not so within {WAIT_LIMIT:?}")));
        }
        pause().await;
    }
}

/// The pause between two polls of async code.
pub async fn pause() {
    tokio::time::sleep(POLL_INTERVAL).await;
}
