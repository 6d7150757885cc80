//! Bucket: how many may pass per second, and when the others should retry.
//!
//! Owns        the level of the bucket, and how many refused agents are expected to retry.
//! Invariants  SESSION-5  refused agents get different retry times, spread at the rate at which they can be admitted:
//!                        one time for all only moves the stampede.

use std::time::Duration;

use muster_messages::Moment;

/// A token bucket that also counts refusals.
#[derive(Clone, Debug)]
pub struct Bucket {
    rate: f64,
    burst: f64,
    level: f64,
    /// Refused agents that are expected to retry.
    expected: f64,
    at: Moment,
}

impl Bucket {
    pub fn new(rate: f64, burst: f64) -> Self {
        let (rate, burst) = (rate.max(0.001), burst.max(1.0));
        Self { rate, burst, level: burst, expected: 0.0, at: Moment(0) }
    }

    /// Admits one, or returns when it should retry.
    pub fn take(&mut self, now: Moment) -> Result<(), Duration> {
        self.fill(now);
        if self.level >= 1.0 {
            self.level -= 1.0;
            return Ok(());
        }
        self.expected += 1.0;
        Err(Duration::from_secs_f64((self.expected - self.level) / self.rate))
    }

    /// When the next one is admitted. Rounded up to the next microsecond: an alarm that fires a fraction too early would find no token,
    /// and be set for the same time again.
    pub fn ready_at(&mut self, now: Moment) -> Moment {
        self.fill(now);
        if self.level >= 1.0 {
            return now;
        }
        let missing = Duration::from_secs_f64((1.0 - self.level) / self.rate);
        now + missing + Duration::from_micros(1)
    }

    fn fill(&mut self, now: Moment) {
        let grown = now.since(self.at).as_secs_f64() * self.rate;
        self.level = (self.level + grown).min(self.burst);
        self.expected = (self.expected - grown).max(0.0);
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_agents_get_retry_times_spread_at_the_rate() {
        let mut bucket = Bucket::new(100.0, 10.0);
        let now = Moment(5_000_000);
        let retry_times: Vec<Duration> = (0..60).filter_map(|_| bucket.take(now).err()).collect();
        assert_eq!(retry_times.len(), 50);
        assert!(retry_times.is_sorted());
        assert_eq!(retry_times[0], Duration::from_millis(10));
        assert_eq!(retry_times[49], Duration::from_millis(500));
    }

    #[test]
    fn next_one_is_admitted_at_ready_at() {
        for rate in [0.7, 3.0, 20.0, 500.0, 999.9] {
            let (mut bucket, mut now) = (Bucket::new(rate, 1.0), Moment(1));
            for _ in 0..1_000 {
                assert_eq!(bucket.take(now), Ok(()), "{rate} a second");
                let first = bucket.ready_at(now);
                let longest = Duration::from_secs_f64(1.0 / rate) + Duration::from_micros(2);
                assert!(first > now && first.since(now) <= longest, "{rate} a second: {now:?}, {first:?}");
                // Asked again in between: what has grown until then is not lost.
                now = bucket.ready_at(now + first.since(now) / 3);
                assert!(now.since(first) <= Duration::from_micros(1) && first.since(now) <= Duration::from_micros(1));
            }
            assert_eq!(bucket.ready_at(now), now, "the token is there");
        }
    }

    #[test]
    fn agents_retrying_on_time_are_admitted() {
        let mut bucket = Bucket::new(100.0, 10.0);
        let start = Moment(0);
        let mut waiting: Vec<Moment> = (0..1000).map(|_| start).collect();
        let mut refusals = 0;
        while !waiting.is_empty() {
            waiting.sort();
            let now = waiting.remove(0);
            if let Err(after) = bucket.take(now) {
                refusals += 1;
                waiting.push(now + after + Duration::from_millis(1));
            }
        }
        assert!(refusals < 2000, "{refusals} refusals for 1000 agents");
    }
}
