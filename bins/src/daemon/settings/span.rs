//! Durations as people write them.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration: `150ms`, `5s`, `10m`, `2h`, `90d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// The units, smallest first, in milliseconds.
const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        Self(duration)
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        span.0
    }
}

impl std::str::FromStr for Span {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a duration: write 150ms, 5s, 10m, 2h or 90d");
        let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
        let (_, millis) = UNITS.iter().find(|(unit, _)| *unit == &text[digits..]).ok_or_else(wrong)?;
        Ok(Self(Duration::from_millis(number.checked_mul(*millis).ok_or_else(wrong)?)))
    }
}

impl std::fmt::Display for Span {
    /// In the largest unit of which it is a whole number.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let millis = muster_messages::millis(self.0);
        let whole = |(_, unit): &&(&str, u64)| millis > 0 && millis.is_multiple_of(*unit);
        let (unit, size) = UNITS.iter().rev().find(whole).unwrap_or(&UNITS[0]);
        write!(f, "{}{unit}", millis / size)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_reads_as_it_was_written() {
        for text in ["0ms", "150ms", "5s", "10m", "2h", "90d", "1500ms"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
        assert_eq!("60s".parse::<Span>().unwrap().to_string(), "1m");
    }

    #[test]
    fn invalid_durations_are_refused() {
        for text in ["", "5", "s", "-1s", "1.5s", "5 s", "99999999999999999999d", "5S"] {
            assert!(text.parse::<Span>().is_err(), "{text:?}");
        }
    }
}
