//! Waits for a condition, on a thread or in async code.

use std::time::{Duration, Instant};

use muster_client::{Failure, Outcome};
use muster_messages::ErrorCode;

/// The time limit for a condition. Reached only by a broken build or cluster: debug builds on a busy machine are slow.
pub const WAIT_LIMIT: Duration = Duration::from_secs(300);

/// The pause between two polls: short compared to the start or the end of a process, long enough to leave the processor to others.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The longest pause after a poll that was slow itself.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Polls until there is a value. For tests: panics at the time limit. A waiting test takes at most a quarter of a processor: a
/// poll that starts a process is followed by a pause that is three times as long.
#[track_caller]
pub fn eventually<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + WAIT_LIMIT;
    loop {
        let begun = Instant::now();
        if let Some(value) = poll() {
            return value;
        }
        let took = begun.elapsed();
        assert!(Instant::now() < end, "timed out after {WAIT_LIMIT:?}: {what}");
        std::thread::park_timeout((3 * took).clamp(POLL_INTERVAL, LONGEST_PAUSE));
    }
}

/// [`until_within`] the [`WAIT_LIMIT`].
pub async fn until<T>(what: &str, poll: impl AsyncFnMut() -> Outcome<Option<T>>) -> Outcome<T> {
    until_within(what, WAIT_LIMIT, poll).await
}

/// Polls until there is a value, at least once. The timeout error names `what`; a failure ends the wait at once. A poll is not
/// interrupted: the limit ends the wait after the poll that exceeds it.
pub async fn until_within<T>(
    what: &str,
    limit: Duration,
    mut poll: impl AsyncFnMut() -> Outcome<Option<T>>,
) -> Outcome<T> {
    let end = tokio::time::Instant::now() + limit;
    loop {
        if let Some(value) = poll().await? {
            return Ok(value);
        }
        if tokio::time::Instant::now() >= end {
            return Err(Failure::new(ErrorCode::TimedOut, format!("{what}: timed out after {limit:?}")));
        }
        pause().await;
    }
}

/// The pause between two polls of async code.
pub async fn pause() {
    tokio::time::sleep(POLL_INTERVAL).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn wait_ends_with_value_failure_or_its_own_limit() {
        let mut polls = 0;
        let third = until_within("the third poll", WAIT_LIMIT, async || {
            polls += 1;
            Ok((polls == 3).then_some(polls))
        });
        assert_eq!(third.await, Ok(3));
        let limit = Duration::from_secs(7);
        let begun = tokio::time::Instant::now();
        let late = until_within("a leader", limit, async || Ok(None::<()>)).await.unwrap_err();
        assert!(late.is(ErrorCode::TimedOut) && late.message == "a leader: timed out after 7s", "{late}");
        assert!(begun.elapsed() >= limit && begun.elapsed() < limit * 2, "{:?}", begun.elapsed());
        let failed = until_within("a leader", limit, async || Err::<Option<()>, _>(Failure::internal("refused"))).await;
        assert_eq!(failed, Err(Failure::internal("refused")));
    }
}
