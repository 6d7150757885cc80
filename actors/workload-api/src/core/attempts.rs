//! The attempts to have one thing signed: one at a time, with a pause after each failure.
//!
//! Owns        the request in flight, the pause after it, the last failure.
//! Why in one place: certificates and JWTs are asked for alike, and what holds back an attempt must not differ between them.

use std::time::Duration;

use muster_messages::{Moment, RetryPause};

/// Pauses after failed signatures: the first, which doubles, and the longest. A lifetime is 5 minutes at least.
pub const SIGN_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// A request for one signature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SignId(pub u64);

impl SignId {
    /// Makes this the next one, and returns it.
    pub(super) fn advance(&mut self) -> Self {
        self.0 += 1;
        *self
    }
}

/// Why there is no signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignFailure {
    /// The leader has no such entry for this node, which does not know that yet. Otherwise it may work later.
    pub refused: bool,
    pub why: String,
}

/// See the header of this file. `R` is what must be known of a request when its answer comes.
#[derive(Clone, Debug)]
pub(super) struct Attempts<R> {
    in_flight: Option<(SignId, R)>,
    pause: RetryPause,
    failure: Option<SignFailure>,
}

impl<R> Default for Attempts<R> {
    fn default() -> Self {
        Self { in_flight: None, pause: RetryPause::default(), failure: None }
    }
}

impl<R> Attempts<R> {
    pub fn begin(&mut self, by: SignId, request: R) {
        self.in_flight = Some((by, request));
    }
    /// Nothing answers the request any more.
    pub fn forget_request(&mut self) {
        self.in_flight = None;
    }
    /// The request that this answers, which is then no longer in flight.
    pub fn answered(&mut self, by: SignId) -> Option<R> {
        self.in_flight.take_if(|(of, _)| *of == by).map(|(_, request)| request)
    }
    pub fn failed(&mut self, now: Moment, failure: SignFailure) {
        self.failure = Some(failure);
        self.pause.failed(now, SIGN_PAUSES);
    }
    /// The next failure is the first one. No other attempt is made before `pause` is over.
    pub fn succeeded(&mut self, pause: RetryPause) {
        self.failure = None;
        self.pause = pause;
    }
    /// What is asked for has changed: an earlier failure says nothing about it.
    pub fn forgive(&mut self) {
        self.succeeded(RetryPause::default());
    }

    pub fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }
    pub fn awaits(&self, by: SignId) -> bool {
        self.in_flight.as_ref().is_some_and(|(of, _)| *of == by)
    }
    /// Whether another attempt may begin.
    pub fn is_free(&self, now: Moment) -> bool {
        self.in_flight.is_none() && self.pause.is_over(now)
    }
    pub fn free_at(&self) -> Option<Moment> {
        self.in_flight.is_none().then(|| self.pause.ends())
    }
    pub fn failure(&self) -> Option<&SignFailure> {
        self.failure.as_ref()
    }
    /// The failure, until it is about to be tried again.
    pub fn final_failure(&self, now: Moment) -> Option<&SignFailure> {
        self.failure.as_ref().filter(|_| self.in_flight.is_none() && !self.pause.is_over(now))
    }
    /// A failure is remembered beyond its pause even when no client waits: otherwise each request would ask the leader.
    pub fn failed_lately(&self, now: Moment) -> bool {
        self.failure.is_some() && now < self.pause.ends() + SIGN_PAUSES.1
    }
}
