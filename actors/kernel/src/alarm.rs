//! Alarms: one timer for an actor whose core says when it wants to be woken.

use std::time::Duration;

use muster_messages::Moment;
use tokio::task::AbortHandle;

use crate::Cx;

/// An actor's wish to be woken, kept as one timer however often it is changed.
///
/// Being woken early must be harmless, as it is where the core is asked afterwards when it wants to be woken next. So an
/// alarm that is set for later stays as it is and rings early; one that is set for earlier replaces the one before, which
/// does not ring any more. Without that, every alarm that was overtaken would still come, and be set again when it does:
/// they would become more and never fewer.
#[derive(Debug, Default)]
pub struct Alarm {
    set: Option<(Moment, AbortHandle)>,
}

impl Alarm {
    /// Sends `msg` to this incarnation at `at`, or earlier. `None` leaves the alarm as it is.
    pub fn set<M: Send + 'static>(&mut self, cx: &Cx<M>, at: Option<Moment>, msg: M) {
        let Some(at) = at else { return };
        if self.set.as_ref().is_some_and(|(set, _)| *set <= at) {
            return;
        }
        self.cancel();
        let delay: Duration = at.since(cx.now());
        self.set = Some((at, cx.timer(delay, msg)));
    }

    /// Its message has come: the actor says so before it sets the alarm again.
    pub fn rang(&mut self) {
        // One that was overtaken may have rung at the same moment: the timer that is meant is not behind this message.
        self.cancel();
    }

    fn cancel(&mut self) {
        if let Some((_, timer)) = self.set.take() {
            timer.abort();
        }
    }
}
