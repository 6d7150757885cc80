//! Crash points: end an incarnation half-way through a message, for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Crashes an actor at one of its crash points: before and after each message, and before and after each effect of a handler (a
/// message to another actor, a slot, a task, a timer). Replies, watched values and the effects of tasks are not crash points.
///
/// [`Tree::arm`](crate::Tree::arm) installs it. It ends one incarnation by a panic with [`Fuse::BLOWN`] in its text, and perhaps one
/// more. Clones share their state. A scenario that is run with the fuse at 0, 1, 2 and so on, until it is no longer
/// [blown](Self::blown), has crashed its actor at every point.
#[derive(Clone, Debug)]
pub struct Fuse(Arc<Points>);

#[derive(Debug)]
struct Points {
    /// Points until the next crash; below zero: no crash is set.
    left: AtomicI64,
    /// Points from the first crash to the second; below zero: there is no second one.
    then: AtomicI64,
}

impl Fuse {
    /// The text of the panic.
    pub const BLOWN: &str = "the fuse has blown";

    /// Blows only after it is [renewed](Self::renew).
    pub fn unlit() -> Self {
        Self::burning(-1, -1)
    }
    /// Blows at the crash point of this number, from 0.
    pub fn at(point: u32) -> Self {
        Self::burning(point.into(), -1)
    }
    /// Blows there and again `later` points on: while the next incarnation recovers.
    pub fn twice(point: u32, later: u32) -> Self {
        Self::burning(point.into(), later.into())
    }
    fn burning(left: i64, then: i64) -> Self {
        Self(Arc::new(Points { left: AtomicI64::new(left), then: AtomicI64::new(then) }))
    }
    /// Sets a blown fuse to blow again, so many points from now. A path keeps one fuse for its life.
    pub fn renew(&self, point: u32) {
        self.0.left.store(point.into(), Ordering::Relaxed);
    }
    /// Passes a point and returns whether to crash there. For points outside the actor, such as messages that its collaborators
    /// receive.
    pub fn pass(&self) -> bool {
        let here = self.0.left.fetch_sub(1, Ordering::Relaxed) == 0;
        if here {
            let then = self.0.then.swap(-1, Ordering::Relaxed);
            self.0.left.store(then, Ordering::Relaxed);
        }
        here
    }
    /// Whether all its crashes have happened.
    pub fn blown(&self) -> bool {
        self.0.left.load(Ordering::Relaxed) < 0
    }
}
