//! Questions to the authority above: one at a time, and when the next one is due.
//!
//! Owns        the question in progress, for which root it was, and the pause after a failed one.
//!
//! Only this leader knows: the next one asks anew, with the same request.

use std::time::Duration;

use muster_messages::{Moment, RequestedAuthority, RetryPause, RootId};

/// The pauses after a command that asks to wait: a company's service that restarts is back by then. After a failure the longest one: an
/// operator has to act.
const PAUSES: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Above {
    /// The command runs, or its answer is being published.
    asking: bool,
    /// The root for which it was asked last. Another request has no past.
    asked: Option<RootId>,
    pause: RetryPause,
}

/// What to do now.
pub(super) enum Next {
    Nothing,
    Ask(RootId, String),
    WakeAt(Moment),
}

impl Above {
    pub fn next(&mut self, requested: Option<&RequestedAuthority>, now: Moment) -> Next {
        let Some(requested) = requested.filter(|_| !self.asking) else { return Next::Nothing };
        if self.asked != Some(requested.root) {
            *self = Self { asked: Some(requested.root), ..Self::default() };
        }
        if !self.pause.is_over(now) {
            return Next::WakeAt(self.pause.ends());
        }
        self.asking = true;
        Next::Ask(requested.root, requested.csr_pem.clone())
    }

    pub fn ended(&mut self) {
        self.asking = false;
    }

    pub fn failed(&mut self, now: Moment, later: bool) {
        self.asking = false;
        match later {
            true => self.pause.failed(now, PAUSES),
            false => self.pause = RetryPause::until(now + PAUSES.1),
        }
    }
}
