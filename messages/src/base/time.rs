//! Two times that must never be confused: wall time, for people and certificates, and monotonic moments, for deadlines.

use std::fmt;
use std::num::NonZeroU8;
use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use time::OffsetDateTime;
use time::format_description::well_known::iso8601::{Config, EncodedConfig, TimePrecision};
use time::format_description::well_known::{Iso8601, Rfc3339};

/// Whole milliseconds, as the wire carries them.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// RFC 3339 with three decimals always, so that texts sort as their times do.
const MILLISECONDS: EncodedConfig =
    Config::DEFAULT.set_time_precision(TimePrecision::Second { decimal_digits: NonZeroU8::new(3) }).encode();

/// Milliseconds since 1970-01-01 UTC. In JSON an RFC 3339 text with three decimals. Chosen by the proposer; never used for ordering.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime(pub i64);

impl WallTime {
    /// This much later (saturating).
    #[must_use]
    pub fn plus(self, d: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(d.as_millis()).unwrap_or(i64::MAX)))
    }
    /// From seconds since 1970, as certificates count.
    pub fn from_unix_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(1000))
    }
    /// RFC 3339 without trailing zeros, as feature level 3 records a time inside an event's text.
    pub fn without_trailing_zeros(self) -> String {
        let text = self.calendar().and_then(|at| at.format(&Rfc3339).ok());
        text.unwrap_or_else(|| self.to_string())
    }
    fn calendar(self) -> Option<OffsetDateTime> {
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1_000_000).ok()
    }
}
impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.calendar().and_then(|at| at.format(&Iso8601::<MILLISECONDS>).ok()) {
            Some(text) => f.write_str(&text),
            None => write!(f, "{} ms since 1970", self.0),
        }
    }
}
impl Serialize for WallTime {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if s.is_human_readable() { s.collect_str(self) } else { s.serialize_i64(self.0) }
    }
}
impl<'de> Deserialize<'de> for WallTime {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        if !d.is_human_readable() {
            return i64::deserialize(d).map(Self);
        }
        let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        let at = OffsetDateTime::parse(&text, &Rfc3339).map_err(de::Error::custom)?;
        Ok(Self((at.unix_timestamp_nanos() / 1_000_000) as i64))
    }
}

/// Microseconds since 1970-01-01 UTC, as clients of leases write them. Shown as given; never used for decisions, because
/// their clocks are not the cluster's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MicroTime(pub i64);

impl From<WallTime> for MicroTime {
    fn from(at: WallTime) -> Self {
        Self(at.0.saturating_mul(1000))
    }
}

/// Microseconds on one process' monotonic clock. Passed in by the shell, never compared across nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment(pub u64);

impl Moment {
    /// Time since `earlier`; zero if it is not earlier.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}
impl Add<Duration> for Moment {
    type Output = Moment;
    fn add(self, d: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(d.as_micros()).unwrap_or(u64::MAX)))
    }
}
impl Sub<Duration> for Moment {
    type Output = Moment;
    fn sub(self, d: Duration) -> Moment {
        Moment(self.0.saturating_sub(u64::try_from(d.as_micros()).unwrap_or(u64::MAX)))
    }
}

/// When what has failed is tried again: after a pause that doubles with each failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetryPause {
    failures: u32,
    ends: Moment,
}

impl RetryPause {
    /// A pause until then, with no failure before it.
    pub fn until(ends: Moment) -> Self {
        Self { failures: 0, ends }
    }
    /// It succeeded: the next failure is the first one.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }
    /// Postpones its end, or brings it forward, to this time.
    pub fn put_off(&mut self, until: Moment) {
        self.ends = until;
    }
    /// It failed again.
    pub fn failed(&mut self, now: Moment, (first, longest): (Duration, Duration)) {
        let pause = first.saturating_mul(2u32.saturating_pow(self.failures)).min(longest);
        *self = Self { failures: self.failures.saturating_add(1), ends: now + pause };
    }
    /// Whether it may be tried again.
    pub fn is_over(&self, now: Moment) -> bool {
        now >= self.ends
    }
    /// When the pause ends.
    pub fn ends(&self) -> Moment {
        self.ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_time_is_rfc3339_in_json() {
        let t = WallTime(1_700_000_000_123);
        let json = serde_json::to_string(&t).unwrap();
        assert_eq!(json, "\"2023-11-14T22:13:20.123Z\"");
        assert_eq!(serde_json::from_str::<WallTime>(&json).unwrap(), t);
    }

    /// `35.8Z` would sort after `35.805Z`.
    #[test]
    fn texts_sort_as_their_times() {
        let texts: Vec<String> = (0..2000).map(|ms| WallTime(1_700_000_000_000 + ms).to_string()).collect();
        assert!(texts.is_sorted() && texts[0] == "2023-11-14T22:13:20.000Z", "{:?}", &texts[..3]);
        assert_eq!(WallTime(1_700_000_000_800).without_trailing_zeros(), "2023-11-14T22:13:20.8Z");
    }

    #[test]
    fn retry_pause_doubles_up_to_its_limit() {
        let limits = (Duration::from_secs(1), Duration::from_secs(60));
        let (mut pause, mut now, mut seconds) = (RetryPause::default(), Moment(0), Vec::new());
        for _ in 0..9 {
            assert!(pause.is_over(now) && !pause.is_over(now - Duration::from_micros(1)) || now == Moment(0));
            pause.failed(now, limits);
            seconds.push(pause.ends().since(now).as_secs());
            now = pause.ends();
        }
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        pause.succeeded();
        pause.failed(now, limits);
        assert_eq!(pause.ends(), now + limits.0);
    }
}
