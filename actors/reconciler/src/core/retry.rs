//! When to try again, and when to say that it failed.

use std::time::Duration;

use muster_messages::{Dice, Moment};

/// The first pause after a failure.
const FIRST: Duration = Duration::from_millis(100);
/// How much longer each next one is.
const FACTOR: f64 = 1.5;
/// No pause is longer.
const CAP: Duration = Duration::from_secs(60);

/// Failures that nobody hears of: most end by themselves within this.
const SILENT: Duration = Duration::from_secs(2);
/// The same failure is said once in this time.
const SAID_EVERY: Duration = Duration::from_secs(10);

/// 100 ms, then half as long again each time, up to a minute; each up to half of it more or less.
#[derive(Clone, Debug, PartialEq)]
pub struct Backoff {
    dice: Dice,
    next: Duration,
}

impl Backoff {
    /// Begins with the shortest pause.
    pub fn new(seed: u64) -> Self {
        Self { dice: Dice::seeded(seed), next: FIRST }
    }
    /// The next pause.
    pub fn pause(&mut self) -> Duration {
        let pause = self.dice.around(self.next, 0.5).min(CAP);
        self.next = self.next.mul_f64(FACTOR).min(CAP);
        pause
    }
    /// It went well.
    pub fn reset(&mut self) {
        self.next = FIRST;
    }
}

/// Whether a failure is worth a line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogRule {
    began: Option<Moment>,
    said: Option<(Moment, String)>,
}

impl LogRule {
    /// Said unless it has just begun to fail; then once in a while, and whenever it fails differently.
    pub fn says(&mut self, now: Moment, text: &str) -> bool {
        let began = *self.began.get_or_insert(now);
        if now.since(began) < SILENT {
            return false;
        }
        let known = self.said.as_ref().is_some_and(|(at, said)| said == text && now.since(*at) < SAID_EVERY);
        if !known {
            self.said = Some((now, text.to_owned()));
        }
        !known
    }
    /// It went well.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_by_half_within_their_jitter_and_never_pass_a_minute() {
        for seed in 0..100 {
            let mut backoff = Backoff::new(seed);
            let mut base = FIRST;
            for _ in 0..40 {
                let pause = backoff.pause();
                let (least, most) = (base.mul_f64(0.5), base.mul_f64(1.5).min(CAP));
                assert!(least <= pause && pause <= most, "{pause:?} of {base:?}");
                base = base.mul_f64(FACTOR).min(CAP);
            }
            assert!(base == CAP);
            backoff.reset();
            assert!(backoff.pause() <= FIRST.mul_f64(1.5));
        }
    }

    #[test]
    fn a_failure_is_said_after_two_seconds_then_every_ten_and_when_it_changes() {
        let at = |ms| Moment(0) + Duration::from_millis(ms);
        let mut rule = LogRule::default();
        let said: Vec<u64> = (0..300).map(|n| n * 100).filter(|ms| rule.says(at(*ms), "no space")).collect();
        assert_eq!(said, [2000, 12_000, 22_000]);
        assert!(rule.says(at(30_100), "no permission"));
        assert!(!rule.says(at(30_200), "no permission"));
        rule.reset();
        assert!(!rule.says(at(30_300), "no permission"), "what has just begun may end by itself");
    }
}
