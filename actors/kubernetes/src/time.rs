//! The two formats of time: seconds for the server's own times, microseconds for those that electors write.
//!
//! Any RFC 3339 text is accepted. Only one format is written, because electors fail on any other.

use std::fmt;

use muster_messages::{MicroTime, WallTime};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The first and the last second that RFC 3339 can represent.
const REPRESENTABLE_SECONDS: std::ops::RangeInclusive<i64> = -62_167_219_200..=253_402_300_799;

/// `acquireTime`, `renewTime`, `pingTime`: microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Micros(pub MicroTime);

/// `creationTimestamp` and similar: whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seconds(pub WallTime);

impl Micros {
    /// From protobuf's two numbers, truncated to microseconds. `None` if RFC 3339 cannot represent it.
    pub(crate) fn from_parts(secs: i64, nanos: i32) -> Option<Self> {
        Self::from_nanos(i128::from(secs) * 1_000_000_000 + i128::from(nanos))
    }
    fn from_nanos(nanos: i128) -> Option<Self> {
        let micros = i64::try_from(nanos.div_euclid(1000)).ok()?;
        REPRESENTABLE_SECONDS.contains(&micros.div_euclid(1_000_000)).then_some(Self(MicroTime(micros)))
    }
}

fn parse(text: &str) -> Option<i128> {
    OffsetDateTime::parse(text, &Rfc3339).ok().map(OffsetDateTime::unix_timestamp_nanos)
}

/// A native client's clock may be outside the calendar: it is shown at the calendar's edge.
fn date_time(f: &mut fmt::Formatter<'_>, secs: i64) -> fmt::Result {
    let secs = secs.clamp(*REPRESENTABLE_SECONDS.start(), *REPRESENTABLE_SECONDS.end());
    let at = OffsetDateTime::from_unix_timestamp(secs).map_err(|_| fmt::Error)?;
    let (year, month, day) = at.to_calendar_date();
    let (hour, minute, second) = at.to_hms();
    write!(f, "{year:04}-{:02}-{day:02}T{hour:02}:{minute:02}:{second:02}", u8::from(month))
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.0;
        date_time(f, micros.div_euclid(1_000_000))?;
        write!(f, ".{:06}Z", micros.rem_euclid(1_000_000))
    }
}
impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        date_time(f, self.0.0.div_euclid(1000))?;
        f.write_str("Z")
    }
}
impl Serialize for Micros {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}
impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}
impl<'de> Deserialize<'de> for Micros {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        parse(&text).and_then(Self::from_nanos).ok_or_else(|| not_a_time(&text))
    }
}
impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        let millis = parse(&text).and_then(|nanos| i64::try_from(nanos.div_euclid(1_000_000)).ok());
        millis.map(|millis| Self(WallTime(millis))).ok_or_else(|| not_a_time(&text))
    }
}

fn not_a_time<E: de::Error>(text: &str) -> E {
    let shown: String = text.chars().take(64).collect();
    E::custom(format_args!("{shown:?} is not an RFC 3339 time"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn micros(text: &str) -> Option<String> {
        serde_json::from_value::<Micros>(text.into()).ok().map(|t| t.to_string())
    }

    #[test]
    fn every_rfc3339_time_is_accepted_and_one_format_written() {
        let spellings = [
            ("2026-11-21T05:37:55Z", "2026-11-21T05:37:55.000000Z"),
            ("2026-11-21T05:37:55.5Z", "2026-11-21T05:37:55.500000Z"),
            ("2026-11-21T05:37:55.525Z", "2026-11-21T05:37:55.525000Z"),
            ("2026-11-21T05:37:55.525623Z", "2026-11-21T05:37:55.525623Z"),
            ("2026-11-21T05:37:55.525623999Z", "2026-11-21T05:37:55.525623Z"),
            ("2026-11-21T05:37:55.525623+00:00", "2026-11-21T05:37:55.525623Z"),
            ("2026-11-21T07:07:55.525623+01:30", "2026-11-21T05:37:55.525623Z"),
            ("2026-11-20T21:37:55-08:00", "2026-11-21T05:37:55.000000Z"),
            ("2026-11-21t05:37:55z", "2026-11-21T05:37:55.000000Z"),
            ("1969-12-31T23:59:59.9999999Z", "1969-12-31T23:59:59.999999Z"),
            ("0000-01-01T00:00:00Z", "0000-01-01T00:00:00.000000Z"),
            ("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999Z"),
        ];
        for (given, expected) in spellings {
            assert_eq!(micros(given).as_deref(), Some(expected), "{given}");
        }
    }

    #[test]
    fn malformed_time_is_refused() {
        for bad in ["", "now", "2026-11-21", "2026-11-21T05:37:55", "2026-13-21T05:37:55Z", "1700000000"] {
            assert_eq!(micros(bad), None, "{bad}");
        }
        // Outside the calendar once the offset is subtracted.
        assert_eq!(micros("0000-01-01T00:00:00+23:00"), None);
        assert_eq!(micros("9999-12-31T23:59:59-23:00"), None);
        assert_eq!(Micros::from_parts(i64::MAX, i32::MAX), None);
    }

    #[test]
    fn the_servers_own_times_have_whole_seconds() {
        for given in ["2026-11-21T05:37:55.999Z", "2026-11-21T05:37:55Z", "2026-11-21T06:37:55.000+01:00"] {
            let seconds: Seconds = serde_json::from_value(given.into()).unwrap();
            assert_eq!(seconds.to_string(), "2026-11-21T05:37:55Z", "{given}");
        }
    }

    proptest! {
        #[test]
        fn any_clock_can_be_shown(micros: i64) {
            let text = Micros(MicroTime(micros)).to_string();
            prop_assert_eq!(text.len(), "2026-11-21T05:37:55.525623Z".len());
        }
        #[test]
        fn times_round_trip(micros in -62_167_219_200_000_000i64..253_402_300_800_000_000) {
            let time = Micros(MicroTime(micros));
            let json = serde_json::to_value(time).unwrap();
            prop_assert_eq!(serde_json::from_value::<Micros>(json).unwrap(), time);
        }
    }
}
