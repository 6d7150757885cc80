//! Stories that are told once for each point at which their actor may crash.

use std::pin::pin;
use std::time::Duration;

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
/// ```
/// use muster_kernel::{Address, Cx, Fault, Shell, Slot, Spec};
/// use muster_messages::protocol::{Named, Reply};
/// use muster_tests::{Universe, at_every_point, insisting};
///
/// struct Add {
///     number: u64,
///     reply: Reply<u64>,
/// }
/// # impl Named for Add {
/// #     fn name(&self) -> &'static str { "add" }
/// # }
/// /// The greatest number so far, for ever.
/// struct Greatest(Slot<u64>);
/// impl Shell for Greatest {
///     type Msg = Add;
///     const KIND: &'static str = "Greatest";
///     async fn handle(&mut self, _cx: &Cx<Add>, add: Add) -> Result<(), Fault> {
///         let greatest = self.0.get().unwrap_or(0).max(add.number);
///         self.0.set(greatest); // first what the next incarnation needs, then the answer
///         let _gone = add.reply.send(greatest);
///         Ok(())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let points = at_every_point(async |fuse| {
///     let mut universe = Universe::start().await;
///     let (address, slot) = (Address::new(8), Slot::new());
///     universe.start_actor(Spec::actor("greatest", address.clone(), move || Ok(Greatest(slot.clone()))));
///     universe.healthy("node/greatest", 1).await;
///     universe.crash_at("node/greatest", &fuse);
///     let mut answers = Vec::new();
///     for number in [3, 7, 5] {
///         answers.push(insisting(&address, |reply| Add { number, reply }).await);
///     }
///     assert_eq!(answers, [3, 7, 7]);
///     universe.finish().await;
/// })
/// .await;
/// assert_eq!(points, 3 * 4 + 2, "before and after each message, and each slot; and as it stops");
/// # }
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
        assert!(timeout(TELLING, &mut telling).await.is_ok(), "the telling with point {point} does not end");
        passed = if fuse.blown() { 0 } else { passed + 1 };
        if passed == ENOUGH {
            return point + 1 - ENOUGH;
        }
    }
    panic!("the story does not end within {POINTS} crash points");
}
