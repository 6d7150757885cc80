//! Threads and tasks that work for an actor without being one.

use std::sync::Arc;

use muster_messages::ActorState;

use crate::Tree;
use crate::tree::Registration;
use crate::vitals::{Pulse, Vitals};

/// A thread or task in the live tree: its current work, for how long, and how long its work has taken so far. The worker
/// owns it, and it is shown until dropped: a thread that hangs and outlives its actor stays visible.
pub struct Beside {
    pulse: Pulse,
    _registration: Registration,
}

/// Ends a piece of work when dropped.
pub struct AtWork<'a>(&'a Pulse);

impl Beside {
    pub(crate) fn show(tree: &Tree, parent: &str, name: &str, kind: &'static str, incarnation: u64) -> Self {
        let (path, label) = (format!("{parent}/{name}"), tree.label(parent, name));
        let vitals = Arc::new(Vitals::new(path, kind, label));
        vitals.incarnate(incarnation);
        vitals.enter(ActorState::Healthy);
        let registration = tree.register(Arc::clone(&vitals));
        Self { pulse: Pulse { vitals, incarnation }, _registration: registration }
    }
    /// Marks this work as current until the result is dropped. One at a time.
    pub fn begin(&self, what: &'static str) -> AtWork<'_> {
        self.pulse.begin(what);
        AtWork(&self.pulse)
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        let _shows_nothing = self.0.end();
    }
}
