//! Measured times and their summary, and numbers as reports have them.

use std::time::Duration;

use serde::Serialize;

/// Measured times, in order.
#[derive(Clone, Debug, Default)]
pub struct Times(Vec<Duration>);

/// Percentiles and extremes of measured times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub min_ms: f64,
    pub max_ms: f64,
}

impl Times {
    pub fn add(&mut self, time: Duration) {
        self.0.push(time);
    }
    pub fn append(&mut self, mut other: Times) {
        self.0.append(&mut other.0);
    }
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// Nearest-rank percentiles; all zeros without measurements.
    pub fn summary(mut self) -> Summary {
        self.0.sort_unstable();
        let (Some(first), Some(last)) = (self.0.first(), self.0.last()) else {
            return Summary::default();
        };
        let rank = |percent: usize| self.0[(self.0.len() * percent).div_ceil(100).max(1) - 1];
        Summary { p50_ms: ms(rank(50)), p99_ms: ms(rank(99)), min_ms: ms(*first), max_ms: ms(*last) }
    }
}

/// A number with three digits after the point: more would be noise.
pub fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Seconds, rounded to the millisecond.
pub fn seconds(time: Duration) -> f64 {
    rounded(time.as_secs_f64())
}

/// An amount in each second of this time.
pub fn per_second(amount: f64, time: Duration) -> f64 {
    rounded(amount / time.as_secs_f64().max(1e-9))
}

/// Milliseconds, rounded to the microsecond.
fn ms(d: Duration) -> f64 {
    rounded(d.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        let mut times = Times::default();
        for n in (1..=100).rev() {
            times.add(Duration::from_millis(n));
        }
        let seen = times.summary();
        assert_eq!((seen.p50_ms, seen.p99_ms, seen.min_ms, seen.max_ms), (50.0, 99.0, 1.0, 100.0));
        let mut one = Times::default();
        one.add(Duration::from_micros(1500));
        assert_eq!(one.summary().p99_ms, 1.5);
        assert_eq!(Times::default().summary(), Summary::default());
    }

    #[test]
    fn numbers_of_reports_have_three_digits() {
        assert_eq!((rounded(1.23456), seconds(Duration::from_micros(2_000_700))), (1.235, 2.001));
        assert_eq!(per_second(10.0, Duration::from_secs(3)), 3.333);
        assert!(per_second(1.0, Duration::ZERO).is_finite(), "no time has passed");
    }
}
