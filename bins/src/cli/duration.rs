//! Durations as people write them: `500ms`, `30s`, `10m`, `2h`, `90d`.

use std::time::Duration;

use muster_api::definition;
pub use muster_messages::millis;

/// A hundred years: added to the current time, it is still a valid instant.
const MAX_DURATION: Duration = Duration::from_secs(36_500 * 86_400);

/// Reads a number with its unit.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration = definition::parse_duration(text)?;
    (duration <= MAX_DURATION).then_some(duration).ok_or_else(|| "the maximum is 36500d".to_owned())
}

/// Reads a validity period, which must not be zero.
pub fn parse_lifetime(text: &str) -> Result<Duration, String> {
    let lifetime = parse_duration(text)?;
    (!lifetime.is_zero()).then_some(lifetime).ok_or_else(|| "must be longer than zero".to_owned())
}

/// A time span for people: `143 ms`, `2.4 s`.
pub fn format_duration(d: Duration) -> String {
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
    fn durations_beyond_the_maximum_are_refused() {
        let longest = parse_duration("36500d").unwrap();
        assert!(std::time::Instant::now().checked_add(longest).is_some());
        assert!(parse_duration("36501d").is_err() && parse_duration("200000000000000d").is_err());
    }

    #[test]
    fn durations_are_formatted_with_a_unit() {
        assert_eq!(format_duration(Duration::from_micros(1500)), "1.5 ms");
        assert_eq!(format_duration(Duration::from_millis(143)), "143 ms");
        assert_eq!(format_duration(Duration::from_secs(12)), "12.0 s");
    }
}
