//! Poke: a crash or a restart that was asked for, and is carried out when nobody holds it any more.

use std::fmt;
use std::sync::Arc;

use muster_messages::CrashHow;

use crate::vitals::Handle;

/// Whoever asks for it has its answer first: what carries the answer may be what fails.
///
/// Dropped: it is carried out. Keep it until the answer has left.
pub struct Poke {
    handle: Arc<dyn Handle>,
    what: What,
}

#[derive(Debug)]
pub(super) enum What {
    Crash(CrashHow),
    Restart,
}

impl Poke {
    pub(super) fn new(handle: Arc<dyn Handle>, what: What) -> Self {
        Self { handle, what }
    }
}

impl Drop for Poke {
    fn drop(&mut self) {
        match self.what {
            What::Crash(how) => self.handle.crash(how),
            What::Restart => self.handle.restart(),
        }
    }
}

impl fmt::Debug for Poke {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poke").field("what", &self.what).finish_non_exhaustive()
    }
}
