//! The current term of an elector: the work that it guards, and how long it is valid.
//!
//! Owns        the work's end and hold; the slot from which the next incarnation learns which work may still run.

use std::sync::{Arc, OnceLock};

use muster_kernel::Slot;
use muster_messages::{FencingToken, Moment};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clock::Timekeeper;
use crate::core::{Ending, Hold};
use crate::work::Term;

/// What the next incarnation must know about this one's work.
#[derive(Clone, Copy)]
pub struct Held {
    pub token: Option<FencingToken>,
    pub hold: Hold,
}

/// The work in progress. When dropped, also by a crash, the work is cancelled.
struct Running {
    hold: watch::Sender<Hold>,
    ended: CancellationToken,
    why: Arc<OnceLock<String>>,
}
impl Drop for Running {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

/// See the module.
pub struct Leadership {
    memory: Slot<Option<Held>>,
    running: Option<Running>,
    hold: Option<Hold>,
}

impl Leadership {
    pub fn new(memory: Slot<Option<Held>>) -> Self {
        Self { memory, running: None, hold: None }
    }

    /// While leading: how long leadership is valid.
    pub fn hold(&self) -> Option<Hold> {
        self.hold
    }

    pub fn begin(&mut self, token: Option<FencingToken>, hold: Hold, clock: &Arc<dyn Timekeeper>) -> Term {
        self.memory.set(Some(Held { token, hold }));
        let (holds, seen) = watch::channel(hold);
        let (ended, why) = (CancellationToken::new(), Arc::new(OnceLock::new()));
        self.running = Some(Running { hold: holds, ended: ended.clone(), why: Arc::clone(&why) });
        self.hold = Some(hold);
        Term { token, ended, why, hold: seen, clock: Arc::clone(clock) }
    }

    pub fn extend(&mut self, hold: Hold) {
        self.remember(hold);
        if let Some(running) = &self.running {
            running.hold.send_replace(hold);
        }
        self.hold = self.hold.map(|_| hold);
    }

    /// Cancels the work.
    pub fn end(&mut self, ending: &Ending) {
        self.hold = None;
        if let Some(running) = &self.running {
            let _first_reason = running.why.set(ending.to_string());
            running.ended.cancel();
        }
    }

    pub fn work_ended(&mut self) {
        (self.running, self.hold) = (None, None);
    }

    /// None of its work is running any more, but its token is still pending.
    pub fn over(&mut self, now: Moment) {
        self.remember(Hold { step_down_at: now, over_at: now });
        self.work_ended();
    }

    fn remember(&self, hold: Hold) {
        let token = self.memory.get().flatten().and_then(|held| held.token);
        self.memory.set(Some(Held { token, hold }));
    }
}
