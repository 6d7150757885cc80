//! State that outlives the crash of the actor that wrote it.

use std::sync::{Arc, Mutex, PoisonError};

use crate::fence::{crash_point, speaks_too_late};

/// A checkpoint slot: made once, captured by an actor's factory, handed to every incarnation.
///
/// Writing takes no message and no await, so it cannot deadlock with the supervisor. It lives as long as the
/// process does, not longer.
///
/// An incarnation that was given up writes in no slot, its own or another's: its successor has read what is in it.
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
    /// Replaces what is in it; in a handler of an incarnation that was given up nothing happens.
    pub fn set(&self, value: T) {
        crash_point();
        self.keep(value);
        crash_point();
    }
    fn keep(&self, value: T) {
        // Asked with the lock in hand: whoever was in time is read by the successor.
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !speaks_too_late() {
            *held = Some(value);
        }
    }
    /// A copy of what is in it.
    pub fn get(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
