//! Stories that are told once for each point at which their actor may crash.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use muster_kernel::Fuse;
use tokio::time::timeout;

/// More points than any story has: an actor that finds ever more to do would be told of for ever.
const POINTS: u32 = 10_000;

/// A telling that takes longer waits in a loop of its own for what never comes. Stories let an hour pass to see that nothing follows.
const TELLING: Duration = Duration::from_secs(2 * 3600);

/// So many tellings in a row without a crash end it: what is jittered makes the points of one telling a few more or fewer than those of
/// the next.
const ENOUGH: u32 = 4;

/// Tells a story again and again: in the first telling the actor crashes at its first crash point, in the next at its second,
/// until a few tellings in a row have ended before there was such a point. How many points there were.
///
/// The story makes a universe of its own each time, has an actor [crash](crate::Universe::crash_at) at the fuse's point, and in
/// the end asserts what holds wherever that was. It is told for nothing if it repeats nothing that was not answered.
///
/// ```ignore
#[doc = include_str!("../kit/examples/points.rs")]
/// ```
pub async fn at_every_point(story: impl AsyncFnMut(Fuse)) -> u32 {
    told(Fuse::at, story).await
}

/// The same with two crashes: the second comes so many points after the first, while the next incarnation finds its way.
pub async fn at_every_point_twice(later: u32, story: impl AsyncFnMut(Fuse)) -> u32 {
    told(|point| Fuse::twice(point, later), story).await
}

async fn told(fuse: impl Fn(u32) -> Fuse, mut story: impl AsyncFnMut(Fuse)) -> u32 {
    let mut passed = 0;
    for point in 0..POINTS {
        let fuse = fuse(point);
        // Dropped by the panic, not before it: the universe in it has no other failure to tell of.
        let mut telling = pin!(story(fuse.clone()));
        let ended = AssertUnwindSafe(timeout(TELLING, &mut telling)).catch_unwind().await;
        match ended {
            Ok(in_time) => assert!(in_time.is_ok(), "the telling with point {point} does not end"),
            // What is still pinned here is dropped by this panic.
            Err(failure) => panic!("at crash point {point}: {}", text_of(&*failure)),
        }
        passed = if fuse.blown() { 0 } else { passed + 1 };
        if passed == ENOUGH {
            return point + 1 - ENOUGH;
        }
    }
    panic!("the story does not end within {POINTS} crash points");
}

/// What a panic said.
fn text_of(failure: &(dyn Any + Send)) -> &str {
    let owned = || failure.downcast_ref::<String>().map(String::as_str);
    failure.downcast_ref::<&str>().copied().or_else(owned).unwrap_or("a panic without a text")
}
