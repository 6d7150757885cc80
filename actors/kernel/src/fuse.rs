//! Crash points: an incarnation that ends half-way through a message, for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Ends an actor at one of its crash points: before and after each message, and before and after each thing that a handler
/// does: a message to another, a slot, a task, a timer. Replies, levels and what its tasks do are no points of their own.
///
/// [`Tree::arm`](crate::Tree::arm) puts it in place. It ends one incarnation by a panic with [`Fuse::BLOWN`] in its text, and perhaps
/// one more. Clones burn together. A story that is told with the fuse at 0, 1, 2 and so on, until it is not
/// [blown](Self::blown) any more, has crashed its actor everywhere.
#[derive(Clone, Debug)]
pub struct Fuse(Arc<Points>);

#[derive(Debug)]
struct Points {
    /// Until the next crash; below zero: there is none to come.
    left: AtomicI64,
    /// From the first crash to the second; below zero: there is no second one.
    then: AtomicI64,
}

impl Fuse {
    /// What the panic says.
    pub const BLOWN: &str = "the fuse has blown";

    /// Blows when it is [renewed](Self::renew).
    pub fn unlit() -> Self {
        Self::burning(-1, -1)
    }
    /// Blows at the crash point of this number, from 0.
    pub fn at(point: u32) -> Self {
        Self::burning(point.into(), -1)
    }
    /// Blows there, and again so many points later: while the next incarnation finds its way.
    pub fn twice(point: u32, later: u32) -> Self {
        Self::burning(point.into(), later.into())
    }
    fn burning(left: i64, then: i64) -> Self {
        Self(Arc::new(Points { left: AtomicI64::new(left), then: AtomicI64::new(then) }))
    }
    /// Has one that is blown blow again, so many points from now. A path has one fuse for its life.
    pub fn renew(&self, point: u32) {
        self.0.left.store(point.into(), Ordering::Relaxed);
    }
    /// Passes a point: whether it is the one. For points outside the actor, such as what its collaborators hear.
    pub fn pass(&self) -> bool {
        let here = self.0.left.fetch_sub(1, Ordering::Relaxed) == 0;
        if here {
            let then = self.0.then.swap(-1, Ordering::Relaxed);
            self.0.left.store(then, Ordering::Relaxed);
        }
        here
    }
    /// Whether it has ended all that it was to end.
    pub fn blown(&self) -> bool {
        self.0.left.load(Ordering::Relaxed) < 0
    }
}
