//! A requested crash or restart, carried out when its last owner drops it.

use std::fmt;
use std::sync::Arc;

use muster_messages::CrashHow;

use crate::vitals::Handle;

/// The caller gets its answer first: the connection that carries the answer may be what fails.
///
/// Dropping it carries it out. Keep it until the answer has been sent.
pub struct AdminAction {
    handle: Arc<dyn Handle>,
    what: What,
}

#[derive(Debug)]
pub(super) enum What {
    Crash(CrashHow),
    Restart,
}

impl AdminAction {
    pub(super) fn new(handle: Arc<dyn Handle>, what: What) -> Self {
        Self { handle, what }
    }
}

impl Drop for AdminAction {
    fn drop(&mut self) {
        match self.what {
            What::Crash(how) => self.handle.crash(how),
            What::Restart => self.handle.restart(),
        }
    }
}

impl fmt::Debug for AdminAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminAction").field("what", &self.what).finish_non_exhaustive()
    }
}
