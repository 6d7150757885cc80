//! Log lines about offenders: the first per offender and reason immediately, then one per minute with a count.
//!
//! Owns        the offenders of the last minute, each with its count and when it was last logged.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use muster_messages::{Moment, Principal};

/// The subject of a log line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Offender {
    Address(IpAddr),
    Principal(Principal),
    /// Offenders beyond the limit.
    Others,
}

impl fmt::Display for Offender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Offender::Address(address) => address.fmt(f),
            Offender::Principal(principal) => principal.fmt(f),
            Offender::Others => f.write_str("others"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub offender: Offender,
    pub what: &'static str,
    /// Occurrences since the last line about this.
    pub count: u64,
}

/// The offenders of the last minute.
#[derive(Clone, Debug)]
pub struct Offenders {
    window: Duration,
    most: usize,
    seen: BTreeMap<(Offender, &'static str), Seen>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    since: Moment,
    unreported: u64,
}

impl Offenders {
    /// At most `most` offenders are distinguished; the rest are `others`.
    pub fn new(window: Duration, most: usize) -> Self {
        Self { window, most, seen: BTreeMap::new() }
    }
    /// Counts an offence. Some: write this line now.
    pub fn report(&mut self, now: Moment, offender: Offender, what: &'static str) -> Option<Line> {
        let known = self.seen.contains_key(&(offender.clone(), what));
        let room = self.seen.len() < self.most;
        let offender = if known || room { offender } else { Offender::Others };
        match self.seen.get_mut(&(offender.clone(), what)) {
            Some(seen) => {
                seen.unreported += 1;
                None
            }
            None => {
                let fresh = Seen { since: now, unreported: 0 };
                self.seen.insert((offender.clone(), what), fresh);
                Some(Line { offender, what, count: 1 })
            }
        }
    }
    /// The lines that are due. To be called every few seconds.
    pub fn due(&mut self, now: Moment) -> Vec<Line> {
        let mut lines = Vec::new();
        let window = self.window;
        self.seen.retain(|(offender, what), seen| {
            if now.since(seen.since) < window {
                return true;
            }
            if seen.unreported == 0 {
                return false;
            }
            let count = std::mem::take(&mut seen.unreported);
            lines.push(Line { offender: offender.clone(), what, count });
            seen.since = now;
            true
        });
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn from(last: u8) -> Offender {
        Offender::Address(IpAddr::from([10, 0, 0, last]))
    }

    #[test]
    fn thousand_offences_are_two_log_lines() {
        let mut offenders = Offenders::new(MINUTE, 8);
        let start = Moment(5);
        let lines = (0..1000).filter_map(|_| offenders.report(start, from(1), "x")).count();
        assert_eq!(lines, 1);
        assert_eq!(offenders.due(start + MINUTE / 2), []);
        let due = offenders.due(start + MINUTE);
        assert_eq!(due, [Line { offender: from(1), what: "x", count: 999 }]);
        assert_eq!(offenders.due(start + 2 * MINUTE), []);
        assert!(offenders.seen.is_empty(), "forgotten after a quiet minute");
    }

    #[test]
    fn log_lines_are_bounded_for_many_offenders() {
        let mut offenders = Offenders::new(MINUTE, 4);
        let many = (0..=255).map(from).cycle().take(10_000);
        let lines = many.filter_map(|o| offenders.report(Moment(0), o, "x")).count();
        assert_eq!(lines, 5, "four offenders, then the others");
        let reported: u64 = offenders.due(Moment(0) + MINUTE).iter().map(|l| l.count).sum();
        assert_eq!(reported + 5, 10_000);
    }
}
