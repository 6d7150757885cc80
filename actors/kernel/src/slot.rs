//! State that outlives the crash of the actor that wrote it.

use std::sync::{Arc, Mutex, PoisonError};

use crate::fence::{crash_point, is_stale};

/// A checkpoint slot: made once, captured by an actor's factory, handed to every incarnation.
///
/// Writing takes no message and no await, so it cannot deadlock with the supervisor. The slot lives as long as the
/// process.
///
/// An incarnation that was given up writes to no slot, its own or another's: its successor has already read the
/// value.
#[derive(Debug, Default)]
pub struct Slot<T>(Arc<Mutex<Option<T>>>);

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Clone> Slot<T> {
    /// An empty slot.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(None)))
    }
    /// Replaces the value; does nothing in a handler of an incarnation that was given up.
    pub fn set(&self, value: T) {
        crash_point();
        self.keep(value);
        crash_point();
    }
    fn keep(&self, value: T) {
        // Checked under the lock: the successor reads every write that was in time.
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_stale() {
            *held = Some(value);
        }
    }
    /// The value that was set last; `None` if none was.
    pub fn get(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
