//! Durations as people write them: `500ms`, `30s`, `10m`, `2h`, `90d`.

use std::time::Duration;

/// Reads a number with its unit.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let rule = || "a duration is a number with a unit: 500ms, 30s, 10m, 2h, 90d".to_owned();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(rule)?;
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| rule())?;
    let secs = number
        * match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return Err(rule()),
        };
    Duration::try_from_secs_f64(secs).map_err(|_| rule())
}

/// Whole milliseconds, as the wire carries them.
pub fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
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
    fn a_duration_needs_its_unit() {
        assert_eq!(parse_duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1.5h"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_duration("90d"), Ok(Duration::from_secs(90 * 86_400)));
        for bad in ["", "30", "s", "-1s", "1w", "1..2s", "1e400s"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn spans_are_spoken_with_a_unit() {
        assert_eq!(spoken(Duration::from_micros(1500)), "1.5 ms");
        assert_eq!(spoken(Duration::from_millis(143)), "143 ms");
        assert_eq!(spoken(Duration::from_secs(12)), "12.0 s");
    }
}
