//! One term of leadership, from winning the lease to the return of the work.
//!
//! Owns        the token of the term, when its last confirmed renewal was sent, and how it ends.
//! Invariants  TENURE-1  leadership counts from before a renewal was sent, never from its answer, and only confirmed renewals
//!                       extend it.
//!             TENURE-2  once it has ended it does not resume, whatever answers still arrive.
//! Why two instants: at the first the work is cancelled, by the second it must be gone. Renewals continue in between, while the
//! work drains: they may gain time, never leadership.

use muster_messages::{FencingToken, Moment};
use serde::Serialize;

use super::{Effect, Ending, Timing};

/// How long leadership is valid, as far as currently known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Hold {
    /// Leadership ends here unless a renewal is confirmed first.
    pub step_down_at: Moment,
    /// The work must be gone by this time: soon after, the lease can be another's.
    pub over_at: Moment,
}

impl Hold {
    /// The hold of a renewal that was sent at `sent`.
    pub(crate) fn from(timing: &Timing, sent: Moment) -> Self {
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

    /// A renewal that was sent at `sent` is confirmed.
    pub fn confirm<A>(&mut self, timing: &Timing, sent: Moment, out: &mut Vec<Effect<A>>) {
        if sent <= self.confirmed {
            return; // a later renewal was confirmed first
        }
        self.confirmed = sent;
        self.hold = Hold::from(timing, sent);
        self.overdue = false;
        out.push(Effect::Extend(self.hold));
    }

    /// The first reason is kept, unless a later one says that the lease is certainly lost.
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

    /// Applies the clock. Called before any other input.
    pub fn check<A>(&mut self, now: Moment, out: &mut Vec<Effect<A>>) {
        if now >= self.hold.step_down_at {
            self.end(Ending::Lapsed, out);
        }
        if now >= self.hold.over_at && !self.overdue {
            self.overdue = true;
            out.push(Effect::Overdue);
        }
    }

    /// When to check the clock again.
    pub fn next_check(&self) -> Option<Moment> {
        match (&self.ending, self.overdue) {
            (None, _) => Some(self.hold.step_down_at),
            (Some(_), false) => Some(self.hold.over_at),
            (Some(_), true) => None,
        }
    }

    /// Whether renewing is still useful: while leading, and while the work drains.
    pub fn renews(&self) -> bool {
        self.ending.as_ref().is_none_or(Ending::may_hold)
    }
}
