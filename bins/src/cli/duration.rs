//! Durations as people write them: `500ms`, `30s`, `10m`, `2h`, `90d`.

use std::time::Duration;

use muster_api::definition;
pub use muster_messages::millis;

/// A hundred years: added to now, it is still an instant.
const LONGEST: Duration = Duration::from_secs(36_500 * 86_400);

/// Reads a number with its unit.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration = definition::parse_duration(text)?;
    (duration <= LONGEST).then_some(duration).ok_or_else(|| "the longest is 36500d".to_owned())
}

/// Reads how long something is to be valid, which is not for no time at all.
pub fn parse_lifetime(text: &str) -> Result<Duration, String> {
    let lifetime = parse_duration(text)?;
    (!lifetime.is_zero()).then_some(lifetime).ok_or_else(|| "it would be over at once".to_owned())
}

/// A time span for people: `143 ms`, `2.4 s`.
pub fn spoken(d: Duration) -> String {
    let ms = d.as_secs_f64() * 1000.0;
    if ms < 10.0 {
        format!("{ms:.1} ms")
    } else if ms < 10_000.0 {
        format!("{ms:.0} ms")
    } else {
        format!("{:.1} s", ms / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_end_after_the_end_of_time_is_refused() {
        let longest = parse_duration("36500d").unwrap();
        assert!(std::time::Instant::now().checked_add(longest).is_some());
        assert!(parse_duration("36501d").is_err() && parse_duration("200000000000000d").is_err());
    }

    #[test]
    fn spans_are_spoken_with_a_unit() {
        assert_eq!(spoken(Duration::from_micros(1500)), "1.5 ms");
        assert_eq!(spoken(Duration::from_millis(143)), "143 ms");
        assert_eq!(spoken(Duration::from_secs(12)), "12.0 s");
    }
}
