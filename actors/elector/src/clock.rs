//! The clock that measures leadership: it continues while the machine sleeps.
//!
//! The monotonic clock stops during suspend, so a laptop or a migrated machine would wake up with a lease that it considers
//! valid while another process holds it. Boot time (`CLOCK_BOOTTIME`) counts that time, for reading and for timers, and is the
//! same in all processes of a machine.

use std::io;
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_messages::{MicroTime, Moment};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create,
    timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The time source of an elector. A test supplies its own.
pub trait Timekeeper: Send + Sync + 'static {
    /// The time now.
    fn now(&self) -> Moment;
    /// Written into records that others read. No decision depends on it.
    fn wall(&self) -> MicroTime;
    /// Ends at that moment, at once if it has passed.
    fn until(&self, moment: Moment) -> BoxFuture<'static, ()>;
}

/// Time since this machine was started, including suspend.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootTime;

impl Timekeeper for BootTime {
    fn now(&self) -> Moment {
        let now = clock_gettime(ClockId::Boottime);
        let micros = now.tv_sec.unsigned_abs().saturating_mul(1_000_000);
        Moment(micros.saturating_add(now.tv_nsec.unsigned_abs() / 1000))
    }

    fn wall(&self) -> MicroTime {
        MicroTime::from(muster_kernel::Clock.wall())
    }

    fn until(&self, moment: Moment) -> BoxFuture<'static, ()> {
        let clock = *self;
        Box::pin(async move {
            while clock.now() < moment {
                if alarm(moment).await.is_err() {
                    // Out of file descriptors: use the monotonic clock, read often enough to detect a suspend.
                    let left = moment.since(clock.now());
                    tokio::time::sleep(left.min(Duration::from_millis(100))).await;
                }
            }
        })
    }
}

async fn alarm(moment: Moment) -> io::Result<()> {
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
    // Rounded up: an early timer would be set again. Zero would disable it.
    let nanos = u128::from(moment.0.max(1)) * 1000;
    let at = Timespec {
        tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(nanos % 1_000_000_000).unwrap_or(0),
    };
    let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
    timerfd_settime(&timer, TimerfdTimerFlags::ABSTIME, &once)?;
    #[expect(
        deprecated,
        reason = "its successor is unsafe; an owned descriptor is neither closed nor replaced meanwhile"
    )]
    let timer = AsyncFd::with_interest(timer, Interest::READABLE)?;
    let _fired = timer.readable().await?;
    Ok(())
}

/// Tokio's time, for tests that control it.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioTime;

impl Timekeeper for TokioTime {
    fn now(&self) -> Moment {
        muster_kernel::Clock.now()
    }
    /// Follows the monotonic time here: a record that is written again differs, as in production.
    fn wall(&self) -> MicroTime {
        MicroTime(i64::try_from(self.now().0).unwrap_or(i64::MAX))
    }
    fn until(&self, moment: Moment) -> BoxFuture<'static, ()> {
        let left = moment.since(self.now());
        Box::pin(tokio::time::sleep(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn boot_time_passes_and_its_alarm_is_never_early() {
        let clock = BootTime;
        let wanted = clock.now() + Duration::from_millis(5);
        clock.until(wanted).await;
        assert!(clock.now() >= wanted);
        clock.until(Moment(0)).await; // long past
    }
}
