//! Budgets: so many at once, and one more each interval.

use std::time::Duration;

use muster_messages::Moment;

/// What may be used.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    pub burst: u32,
    pub interval: Duration,
}

/// What was used of a budget and has not returned, counted from `since` on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Used {
    count: u32,
    since: Moment,
}

impl Used {
    pub(super) fn is_nothing(self) -> bool {
        self.count == 0
    }
}

impl Budget {
    /// `used` without what has returned by now.
    pub(super) fn returned(self, used: Used, now: Moment) -> Used {
        let back = now.since(used.since).as_millis() / self.interval.as_millis();
        match u32::try_from(back).ok().filter(|back| *back < used.count) {
            Some(back) => Used { count: used.count - back, since: used.since + self.interval * back },
            None => Used { count: 0, since: now },
        }
    }
    /// `Err`: none is left before this time has passed.
    pub(super) fn check(self, used: Used, now: Moment) -> Result<(), Duration> {
        let used = self.returned(used, now);
        if used.count < self.burst { Ok(()) } else { Err(self.interval.saturating_sub(now.since(used.since))) }
    }
    pub(super) fn one_more(self, used: Used, now: Moment) -> Used {
        let used = self.returned(used, now);
        Used { count: used.count + 1, ..used }
    }
}
