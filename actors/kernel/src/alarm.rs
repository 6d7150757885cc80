//! One timer for an actor whose core says when to wake it.

use std::time::Duration;

use muster_messages::Moment;
use tokio::task::AbortHandle;

use crate::Cx;

/// An actor's wake-up time, kept as one timer however often it changes.
///
/// Waking early must be harmless, as it is when the actor then asks its core for the next wake-up time. So setting a
/// later time keeps the timer, which fires early. Setting an earlier time replaces the timer, which then never fires:
/// otherwise every replaced timer would still fire and be set again, and their number would only grow.
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

    /// The actor calls this when the alarm's message arrives, before it sets the alarm again.
    pub fn fired(&mut self) {
        // A replaced timer may have fired at the same moment: the current timer did not send this message.
        self.cancel();
    }

    fn cancel(&mut self) {
        if let Some((_, timer)) = self.set.take() {
            timer.abort();
        }
    }
}
