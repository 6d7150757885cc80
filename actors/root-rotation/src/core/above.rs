//! Questions to the authority above: one at a time, and when the next one is due.
//!
//! Only this leader knows: the next one asks anew, with the same request.

use std::time::Duration;

use muster_messages::{Moment, RequestedAuthority, RootId};

/// The first pause after a command that asks to wait, doubled each time: a company's service that restarts is back by then.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
/// The longest pause, and the one after a failure: an operator has to look.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Above {
    /// The command runs, or its answer is being published.
    asking: bool,
    /// The root for which it was asked last. Another request has no past.
    asked: Option<RootId>,
    /// Not before this time.
    due: Moment,
    delays: u32,
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
        if now < self.due {
            return Next::WakeAt(self.due);
        }
        self.asking = true;
        Next::Ask(requested.root, requested.csr_pem.clone())
    }

    pub fn ended(&mut self) {
        self.asking = false;
    }

    pub fn failed(&mut self, now: Moment, later: bool) {
        let pause = match later {
            true => FIRST_PAUSE.saturating_mul(1 << self.delays.min(6)).min(LONGEST_PAUSE),
            false => LONGEST_PAUSE,
        };
        self.delays = self.delays.saturating_add(1);
        (self.asking, self.due) = (false, now + pause);
    }
}
