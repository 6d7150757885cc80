//! When to retry, and when to log a failure.
//!
//! Owns        the next pause; the last failure that was logged.

use std::time::Duration;

use muster_messages::{Moment, Rng};

/// The first pause after a failure.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The growth of the next pause.
const PAUSE_GROWTH: f64 = 1.5;
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// A failure is not logged within this time: most end by themselves.
const LOG_DELAY: Duration = Duration::from_secs(2);
/// The same failure is logged once in this time.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// 100 ms, then half as long again each time, up to a minute, with up to 50 % jitter.
#[derive(Clone, Debug, PartialEq)]
pub struct Backoff {
    rng: Rng,
    next: Duration,
}

impl Backoff {
    /// Begins with the shortest pause.
    pub fn new(seed: u64) -> Self {
        Self { rng: Rng::seeded(seed), next: FIRST_PAUSE }
    }
    /// The next pause.
    pub fn pause(&mut self) -> Duration {
        let pause = self.rng.around(self.next, 0.5).min(MAX_PAUSE);
        self.next = self.next.mul_f64(PAUSE_GROWTH).min(MAX_PAUSE);
        pause
    }
    /// After a success.
    pub fn reset(&mut self) {
        self.next = FIRST_PAUSE;
    }
}

/// Whether to log a failure.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogRule {
    began: Option<Moment>,
    logged: Option<(Moment, String)>,
}

impl LogRule {
    /// Not while the failure is new; then once per interval, and whenever the text changes.
    pub fn should_log(&mut self, now: Moment, text: &str) -> bool {
        let began = *self.began.get_or_insert(now);
        if now.since(began) < LOG_DELAY {
            return false;
        }
        let known = self.logged.as_ref().is_some_and(|(at, logged)| logged == text && now.since(*at) < LOG_INTERVAL);
        if !known {
            self.logged = Some((now, text.to_owned()));
        }
        !known
    }
    /// After a success.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_by_half_with_jitter_up_to_a_minute() {
        for seed in 0..100 {
            let mut backoff = Backoff::new(seed);
            let mut base = FIRST_PAUSE;
            for _ in 0..40 {
                let pause = backoff.pause();
                let (least, most) = (base.mul_f64(0.5), base.mul_f64(1.5).min(MAX_PAUSE));
                assert!(least <= pause && pause <= most, "{pause:?} of {base:?}");
                base = base.mul_f64(PAUSE_GROWTH).min(MAX_PAUSE);
            }
            assert!(base == MAX_PAUSE);
            backoff.reset();
            assert!(backoff.pause() <= FIRST_PAUSE.mul_f64(1.5));
        }
    }

    #[test]
    fn failure_is_logged_after_2s_then_every_10s_and_on_change() {
        let at = |ms| Moment(0) + Duration::from_millis(ms);
        let mut rule = LogRule::default();
        let logged: Vec<u64> = (0..300).map(|n| n * 100).filter(|ms| rule.should_log(at(*ms), "no space")).collect();
        assert_eq!(logged, [2000, 12_000, 22_000]);
        assert!(rule.should_log(at(30_100), "no permission"));
        assert!(!rule.should_log(at(30_200), "no permission"));
        rule.reset();
        assert!(!rule.should_log(at(30_300), "no permission"), "a new failure may end by itself");
    }
}
