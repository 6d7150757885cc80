//! Scenarios that run once for each point at which their actor may crash.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use muster_kernel::Fuse;
use tokio::time::timeout;

/// More points than any scenario has: an actor with endless work would make the runs endless.
const MAX_POINTS: u32 = 10_000;

/// A longer run waits in a loop of its own for something that never happens. Scenarios let an hour pass to see that nothing follows.
const SCENARIO_TIMEOUT: Duration = Duration::from_secs(2 * 3600);

/// This many runs in a row without a crash end it: jitter gives a run a few points more or fewer than
/// the next.
const RUNS_WITHOUT_CRASH: u32 = 4;

/// Repeats a scenario: in the first run the actor crashes at its first crash point, in the next at its second,
/// until a few runs in a row ended before their point. Returns the number of points.
///
/// The scenario creates a harness in each run, makes an actor [crash](crate::ActorHarness::crash_at) at the fuse's point, and
/// finally asserts what holds wherever that was. It must repeat every request that was not answered.
///
/// ```ignore
#[doc = include_str!("../examples/crash_points.rs")]
/// ```
pub async fn at_every_point(scenario: impl AsyncFnMut(Fuse)) -> u32 {
    run_at_points(Fuse::at, scenario).await
}

/// The same with two crashes: the second comes `later` points after the first, while the next incarnation recovers.
pub async fn at_every_point_twice(later: u32, scenario: impl AsyncFnMut(Fuse)) -> u32 {
    run_at_points(|point| Fuse::twice(point, later), scenario).await
}

async fn run_at_points(fuse: impl Fn(u32) -> Fuse, mut scenario: impl AsyncFnMut(Fuse)) -> u32 {
    let mut passed = 0;
    for point in 0..MAX_POINTS {
        let fuse = fuse(point);
        // Dropped by the panic, not before it: the harness in it reports no other failure.
        let mut run = pin!(scenario(fuse.clone()));
        let ended = AssertUnwindSafe(timeout(SCENARIO_TIMEOUT, &mut run)).catch_unwind().await;
        match ended {
            Ok(in_time) => assert!(in_time.is_ok(), "the run with crash point {point} does not end"),
            // What is still pinned here is dropped by this panic.
            Err(failure) => panic!("at crash point {point}: {}", text_of(&*failure)),
        }
        passed = if fuse.blown() { 0 } else { passed + 1 };
        if passed == RUNS_WITHOUT_CRASH {
            return point + 1 - RUNS_WITHOUT_CRASH;
        }
    }
    panic!("the scenario does not end within {MAX_POINTS} crash points");
}

/// The text of a panic.
fn text_of(failure: &(dyn Any + Send)) -> &str {
    let owned = || failure.downcast_ref::<String>().map(String::as_str);
    failure.downcast_ref::<&str>().copied().or_else(owned).unwrap_or("a panic without a text")
}
