//! What works beside an actor without being one.

use std::sync::Arc;

use muster_messages::ActorState;

use crate::Tree;
use crate::tree::Registration;
use crate::vitals::{Pulse, Vitals};

/// A thread or task as the live tree shows it: what it is at, for how long, and how long its work has taken. It belongs to
/// whoever does the work, and is shown until that drops it: one that outlives its actor, because it hangs, stays visible.
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
    /// It is at this until the result is dropped. One thing at a time.
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
