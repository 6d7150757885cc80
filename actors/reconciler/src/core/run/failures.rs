//! Failures in a row, and the pauses after them.
//!
//! Owns        the number of failures since the last success, the last error, and the next pause.

use super::super::retry::{Backoff, LogRule};
use super::*;

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Failures {
    /// Since the last success.
    pub in_a_row: u32,
    /// Kept until a success.
    pub last_error: Option<String>,
    backoff: Backoff,
    log: LogRule,
}

impl Failures {
    pub fn new(seed: u64) -> Self {
        Self { in_a_row: 0, last_error: None, backoff: Backoff::new(seed), log: LogRule::default() }
    }
    /// An attempt has succeeded.
    pub fn end(&mut self) {
        (self.in_a_row, self.last_error) = (0, None);
        self.backoff.reset();
        self.log.reset();
    }
    /// An operator wants the next attempt soon.
    pub fn hurry(&mut self) {
        self.backoff.reset();
    }
    /// The pause before the next attempt; longer each time.
    pub fn pause(&mut self) -> Duration {
        self.backoff.pause()
    }
    pub fn count(&mut self) {
        self.in_a_row = self.in_a_row.saturating_add(1);
    }
    /// Remembers the error. Returns whether it should be logged.
    pub fn remember(&mut self, now: Moment, why: &str) -> bool {
        self.last_error = Some(why.to_owned());
        self.log.should_log(now, why)
    }
}
