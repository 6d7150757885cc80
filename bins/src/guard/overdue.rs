//! Detects a hung guardian: it should have ended, and reports nothing.
//!
//! Invariants  GUARD-4  a frozen or hung guardian is killed, with its command, soon after the command should be gone; one that was
//!                      frozen together with its watcher gets its full time after the thaw.

use std::time::Duration;

use muster_messages::Moment;

use super::guardian::{Input, Number};

/// How long killed processes may take to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);
const KILL: Number = 9;

/// See the module.
#[derive(Clone, Debug)]
pub struct Overdue {
    /// How much later than due it may end.
    grace: Duration,
    /// When no process of the command is left. `None`: no deadline was given.
    gone_at: Option<Moment>,
    /// When this was first seen to be over, however long ago it was: a guardian frozen together with us wakes with us.
    noticed_at: Option<Moment>,
    killed: bool,
}

impl Overdue {
    pub fn new(grace: Duration) -> Self {
        Self { grace, gone_at: None, noticed_at: None, killed: false }
    }

    /// An order was sent. More time does not help a command that was to be killed.
    pub fn ordered(&mut self, now: Moment, order: Input) {
        let gone_at = match order {
            Input::Until(hold) if !self.killed => self.gone_at.max(Some(hold.over_at)),
            Input::Signal(KILL) => {
                self.killed = true;
                let soon = now + KILL_TIMEOUT;
                Some(self.gone_at.map_or(soon, |at| at.min(soon)))
            }
            _ => return,
        };
        if gone_at != self.gone_at {
            (self.gone_at, self.noticed_at) = (gone_at, None);
        }
    }

    /// When to check the clock.
    pub fn wake_at(&self) -> Option<Moment> {
        self.noticed_at.map(|noticed_at| noticed_at + self.grace).or(self.gone_at)
    }

    /// Checks the clock; whether the guardian has hung.
    pub fn woke(&mut self, now: Moment) -> bool {
        match (self.gone_at, self.noticed_at) {
            (Some(at), None) if now >= at => {
                self.noticed_at = Some(now);
                false
            }
            (Some(_), Some(noticed_at)) => now >= noticed_at + self.grace,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_elector::Hold;

    use super::*;

    fn at(ms: u64) -> Moment {
        Moment(ms * 1_000)
    }
    fn until(over: u64) -> Input {
        Input::Until(Hold { step_down_at: at(0), over_at: at(over) })
    }
    /// To be gone by second 10, with 100 ms more allowed.
    fn with_deadline() -> Overdue {
        let mut overdue = Overdue::new(Duration::from_millis(100));
        assert_eq!(overdue.wake_at(), None);
        overdue.ordered(at(0), until(10_000));
        assert_eq!(overdue.wake_at(), Some(at(10_000)));
        overdue
    }

    #[test]
    fn guardian_counts_as_hung_after_its_grace() {
        let mut overdue = with_deadline();
        assert!(!overdue.woke(at(9_999)) && !overdue.woke(at(10_000)));
        assert_eq!(overdue.wake_at(), Some(at(10_100)));
        assert!(!overdue.woke(at(10_099)) && overdue.woke(at(10_100)));
    }

    #[test]
    fn guardian_frozen_with_us_gets_its_grace_after_the_thaw() {
        let mut overdue = with_deadline();
        assert!(!overdue.woke(at(60_000)));
        assert!(!overdue.woke(at(60_099)) && overdue.woke(at(60_100)));
    }

    #[test]
    fn renewal_extends_the_deadline_even_when_overdue() {
        let mut overdue = with_deadline();
        overdue.woke(at(10_050));
        overdue.ordered(at(10_060), until(15_000));
        assert_eq!(overdue.wake_at(), Some(at(15_000)));
        overdue.ordered(at(10_070), until(12_000)); // an older one
        assert_eq!(overdue.wake_at(), Some(at(15_000)));
    }

    #[test]
    fn kill_shortens_the_deadline_for_good() {
        let mut overdue = with_deadline();
        overdue.ordered(at(1_000), Input::Signal(15));
        assert_eq!(overdue.wake_at(), Some(at(10_000)), "the command handles that signal itself");
        overdue.ordered(at(1_000), Input::Signal(KILL));
        overdue.ordered(at(2_000), until(20_000));
        assert_eq!(overdue.wake_at(), Some(at(3_000)));
    }
}
