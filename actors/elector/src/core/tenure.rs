//! One time of leading, from the lease that was won to the work that has returned.
//!
//! Keeps  TENURE-1  leadership counts from before a renewal was sent, never from its answer, and only confirmed
//!                  renewals move it.
//!        TENURE-2  once it has ended it does not go on, whatever answers still arrive.
//! Why two instants: at the first the work is told to end, by the second it must be gone. Renewals go on in between,
//! and while the work drains: they may win time, never leadership.

use muster_messages::{FencingToken, Moment};
use serde::Serialize;

use super::{Effect, Ending, Timing};

/// How long leadership is good for, as far as it is known now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Hold {
    /// Leadership ends here unless a renewal is confirmed before.
    pub step_down_at: Moment,
    /// The work must be gone by here: soon after, the lease can be another's.
    pub over_at: Moment,
}

impl Hold {
    /// What a renewal that was sent at `sent` is good for.
    pub fn from(timing: &Timing, sent: Moment) -> Self {
        let over_at = sent + timing.lease.saturating_sub(timing.margin());
        Self { step_down_at: (sent + timing.renew).min(over_at), over_at }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tenure {
    pub token: Option<FencingToken>,
    /// When the last confirmed renewal was sent.
    pub confirmed: Moment,
    pub hold: Hold,
    pub ending: Option<Ending>,
    overdue: bool,
}

impl Tenure {
    pub fn begin<A>(timing: &Timing, sent: Moment, token: Option<FencingToken>, out: &mut Vec<Effect<A>>) -> Self {
        let hold = Hold::from(timing, sent);
        out.push(Effect::Begin { token, hold });
        Self { token, confirmed: sent, hold, ending: None, overdue: false }
    }

    /// A renewal that was sent then is confirmed.
    pub fn confirm<A>(&mut self, timing: &Timing, sent: Moment, out: &mut Vec<Effect<A>>) {
        if sent <= self.confirmed {
            return; // an answer that a later one has overtaken
        }
        self.confirmed = sent;
        self.hold = Hold::from(timing, sent);
        self.overdue = false;
        out.push(Effect::Extend(self.hold));
    }

    /// The first reason counts, except that a lease that is lost for certain is worth knowing at any time.
    pub fn end<A>(&mut self, ending: Ending, out: &mut Vec<Effect<A>>) {
        match &self.ending {
            None => {
                self.ending = Some(ending.clone());
                out.push(Effect::End(ending));
            }
            Some(known) if known.may_hold() && !ending.may_hold() => self.ending = Some(ending),
            Some(_) => {}
        }
    }

    /// What the clock says. Called before anything else is looked at.
    pub fn check<A>(&mut self, now: Moment, out: &mut Vec<Effect<A>>) {
        if now >= self.hold.step_down_at {
            self.end(Ending::Lapsed, out);
        }
        if now >= self.hold.over_at && !self.overdue {
            self.overdue = true;
            out.push(Effect::Overdue);
        }
    }

    /// When to look at the clock again.
    pub fn next_check(&self) -> Option<Moment> {
        match (&self.ending, self.overdue) {
            (None, _) => Some(self.hold.step_down_at),
            (Some(_), false) => Some(self.hold.over_at),
            (Some(_), true) => None,
        }
    }

    /// Whether renewing still makes sense: while leading, and while the work drains.
    pub fn renews(&self) -> bool {
        self.ending.as_ref().is_none_or(Ending::may_hold)
    }
}
