//! Renewals and reads per second, over the last second or two.
//!
//! Owns        the counts of the present interval, and those of the one before.

use std::time::Duration;

use muster_messages::{LeaseCounts, Moment};

#[derive(Clone, Debug)]
pub struct Rate {
    since: Moment,
    before: LeaseCounts,
    pub renewed: u64,
    pub reads: u64,
}

impl Rate {
    pub fn new(now: Moment) -> Self {
        Self { since: now, before: LeaseCounts::default(), renewed: 0, reads: 0 }
    }

    /// Called often; measures once a second.
    pub fn measure(&mut self, now: Moment, counts: LeaseCounts) {
        let passed = now.since(self.since);
        if passed >= Duration::from_secs(1) {
            let per_second = |n: u64| (n as f64 / passed.as_secs_f64()).round() as u64;
            let (renewed, reads) = (counts.renewed - self.before.renewed, counts.reads - self.before.reads);
            *self = Self { since: now, before: counts, renewed: per_second(renewed), reads: per_second(reads) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_that_of_the_last_full_second() {
        let at = |ms: u64| Moment(ms * 1_000);
        let counts = |renewed, reads| LeaseCounts { renewed, reads, ..LeaseCounts::default() };
        let mut rate = Rate::new(at(0));
        let mut measured = |ms, counts| {
            rate.measure(at(ms), counts);
            (rate.renewed, rate.reads)
        };
        assert_eq!(measured(900, counts(50, 5)), (0, 0), "too early");
        assert_eq!(measured(2_000, counts(100, 10)), (50, 5));
        assert_eq!(measured(2_500, counts(900, 90)), (50, 5));
        assert_eq!(measured(3_000, counts(100, 10)), (0, 0));
    }
}
