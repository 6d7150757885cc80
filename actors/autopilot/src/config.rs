//! Limits on how fast the autopilot acts. They are not settings: an operator who wants another pace acts by hand.

use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// A voter that has acknowledged nothing for longer counts as not answering, as in the role manager.
    pub election_timeout: Duration,
    /// How long a node has been silent when its session ends.
    pub session_timeout: Duration,
    /// Between the beginnings of two replacements or pairs of promotions. Not within one: with an even number of voters one more must
    /// answer.
    pub between_changes: Duration,
    /// Between two replacements.
    pub between_replacements: Duration,
    /// Within this time at most a minority of the declared managers is replaced.
    pub replacement_window: Duration,
    /// A promotion that takes longer is taken back.
    pub settle_within: Duration,
    /// How long a worker whose promotion was taken back is passed over, the first time and at most.
    pub backoff: (Duration, Duration),
    /// How long candidates have been ready is compared in steps of this length, so that seconds do not decide.
    pub readiness_step: Duration,
    /// How often a refused or lost step is tried again.
    pub retry: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            election_timeout: Duration::from_millis(600),
            session_timeout: Duration::from_millis(16_500),
            between_changes: MINUTE,
            between_replacements: 10 * MINUTE,
            replacement_window: 60 * MINUTE,
            settle_within: 5 * MINUTE,
            backoff: (MINUTE, 60 * MINUTE),
            readiness_step: 10 * MINUTE,
            retry: Duration::from_secs(5),
        }
    }
}
