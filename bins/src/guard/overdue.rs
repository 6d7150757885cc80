//! When a guardian has hung: it should have come to its end, and says nothing.
//!
//! Keeps  GUARD-4  a guardian that is frozen, or hangs, is killed soon after nothing of its command should be left, and its
//!                 command with it; one that was frozen together with whoever watches it is given its time.

use std::time::Duration;

use muster_messages::Moment;

use super::guardian::{Input, Number};

/// How long everything may take to die.
const DYING: Duration = Duration::from_secs(2);
const KILL: Number = 9;

/// See the module.
#[derive(Clone, Debug)]
pub struct Overdue {
    /// How much longer than it should it may take.
    late: Duration,
    /// When nothing of the command is left. `None`: it has not been told when.
    gone_at: Option<Moment>,
    /// When it was seen that this is over, however long ago that was then: who was frozen with us wakes up with us.
    noticed: Option<Moment>,
    killed: bool,
}

impl Overdue {
    pub fn new(late: Duration) -> Self {
        Self { late, gone_at: None, noticed: None, killed: false }
    }

    /// It is told something. More time is no help to a command that was to be killed.
    pub fn ordered(&mut self, now: Moment, order: Input) {
        let gone_at = match order {
            Input::Until(hold) if !self.killed => self.gone_at.max(Some(hold.over_at)),
            Input::Signal(KILL) => {
                self.killed = true;
                let soon = now + DYING;
                Some(self.gone_at.map_or(soon, |at| at.min(soon)))
            }
            _ => return,
        };
        if gone_at != self.gone_at {
            (self.gone_at, self.noticed) = (gone_at, None);
        }
    }

    /// When to look at the clock.
    pub fn wake_at(&self) -> Option<Moment> {
        self.noticed.map(|noticed| noticed + self.late).or(self.gone_at)
    }

    /// Looks at the clock; whether it has hung.
    pub fn woke(&mut self, now: Moment) -> bool {
        match (self.gone_at, self.noticed) {
            (Some(at), None) if now >= at => {
                self.noticed = Some(now);
                false
            }
            (Some(_), Some(noticed)) => now >= noticed + self.late,
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
    /// Told to be gone by second 10, and given 100 ms more.
    fn told() -> Overdue {
        let mut overdue = Overdue::new(Duration::from_millis(100));
        assert_eq!(overdue.wake_at(), None);
        overdue.ordered(at(0), until(10_000));
        assert_eq!(overdue.wake_at(), Some(at(10_000)));
        overdue
    }

    #[test]
    fn it_has_hung_a_moment_after_its_command_should_have_been_gone() {
        let mut overdue = told();
        assert!(!overdue.woke(at(9_999)) && !overdue.woke(at(10_000)));
        assert_eq!(overdue.wake_at(), Some(at(10_100)));
        assert!(!overdue.woke(at(10_099)) && overdue.woke(at(10_100)));
    }

    #[test]
    fn whoever_was_frozen_with_us_is_given_its_time_after_the_thaw() {
        let mut overdue = told();
        assert!(!overdue.woke(at(60_000)));
        assert!(!overdue.woke(at(60_099)) && overdue.woke(at(60_100)));
    }

    #[test]
    fn a_renewal_gives_it_more_time_also_when_it_was_late_already() {
        let mut overdue = told();
        overdue.woke(at(10_050));
        overdue.ordered(at(10_060), until(15_000));
        assert_eq!(overdue.wake_at(), Some(at(15_000)));
        overdue.ordered(at(10_070), until(12_000)); // an older one
        assert_eq!(overdue.wake_at(), Some(at(15_000)));
    }

    #[test]
    fn a_kill_makes_it_soon_and_nothing_later_again() {
        let mut overdue = told();
        overdue.ordered(at(1_000), Input::Signal(15));
        assert_eq!(overdue.wake_at(), Some(at(10_000)), "that is the command's own affair");
        overdue.ordered(at(1_000), Input::Signal(KILL));
        overdue.ordered(at(2_000), until(20_000));
        assert_eq!(overdue.wake_at(), Some(at(3_000)));
    }
}
