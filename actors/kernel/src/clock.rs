//! The source of the time that shells pass to cores.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use muster_messages::{Moment, WallTime};
use tokio::time::Instant;

/// The clocks of this process. Follows tokio's paused time in tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock;

static START: OnceLock<Instant> = OnceLock::new();

impl Clock {
    /// Monotonic time. Counts from one hour before the first call, so that subtracting a timeout never saturates.
    pub fn now(self) -> Moment {
        let start = *START.get_or_init(Instant::now);
        let micros = Instant::now().saturating_duration_since(start).as_micros();
        Moment(u64::try_from(micros).unwrap_or(u64::MAX).saturating_add(3_600_000_000))
    }
    /// Wall time, for certificates and people.
    pub fn wall(self) -> WallTime {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        WallTime(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }
}
