//! Guardian: ends a command in time, whatever becomes of the process that wanted it to run.
//!
//! Owns   the instants by which the command must have been told to end, and must be gone.
//! Hears  later instants, wishes to end it or to pass a signal on, the other side's end, the command's end, the clock.
//! Says   start, signal, kill, and what became of it.
//! Keeps  GUARD-1  the command runs only before the later of the instants that it was given; instants only move forward.
//!        GUARD-2  its end is reported only when nothing of it is left, whatever it has started.
//!        GUARD-3  the clock is looked at before anything else: after a freeze nothing is believed that waited.

use std::time::Duration;

use muster_elector::Hold;
use muster_messages::Moment;

/// How soon whatever escaped a kill, by starting something in that moment, is killed again.
pub const AGAIN: Duration = Duration::from_millis(5);

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Code(u8),
    Signal(u8),
}

impl Exit {
    /// As a shell would report it.
    pub fn status(self) -> u8 {
        match self {
            Exit::Code(code) => code,
            Exit::Signal(number) => 128u8.saturating_add(number),
        }
    }
}

/// A signal's number.
pub type Number = u8;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The command may run until then. The first starts it.
    Until(Hold),
    /// Pass a signal on.
    Signal(Number),
    /// Tell it to end: it is not wanted any more.
    End,
    /// The other side is gone.
    HungUp,
    /// The command itself has ended.
    Ended(Exit),
    /// No process is left of it.
    Gone,
    Woke,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Start,
    Signal(Number),
    /// TERM, and CONT for what is stopped.
    Terminate,
    /// KILL, for everything that it has started.
    Kill,
    Tell(Report),
    WakeAt(Moment),
    /// Nothing is left to guard.
    Leave,
}

/// What the other side is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// Its time ran out, or never began; it is told to end.
    Lapsed,
    Ended(Exit),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    Running,
    /// It was told to end.
    Ending,
    /// It has ended, or must end now.
    Killing,
    Left,
}

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Guardian {
    phase: Phase,
    hold: Hold,
    exit: Option<Exit>,
}

impl Default for Guardian {
    fn default() -> Self {
        let never = Hold { step_down_at: Moment(0), over_at: Moment(0) };
        Self { phase: Phase::Waiting, hold: never, exit: None }
    }
}

impl Guardian {
    /// Takes one input.
    pub fn step(&mut self, now: Moment, input: Input, out: &mut Vec<Effect>) {
        self.check(now, out);
        match input {
            Input::Until(hold) => self.until(now, hold, out),
            Input::Signal(number) if self.runs() => out.push(Effect::Signal(number)),
            Input::End | Input::HungUp if self.phase == Phase::Waiting => self.leave(out),
            Input::End | Input::HungUp if self.phase == Phase::Running => self.terminate(out),
            Input::Ended(exit) => {
                self.exit = Some(exit);
                self.kill(out); // what it leaves behind does not outlive it
            }
            Input::Gone if self.phase != Phase::Waiting => {
                out.extend(self.exit.map(|exit| Effect::Tell(Report::Ended(exit))));
                self.leave(out);
            }
            Input::Woke if self.phase == Phase::Killing => out.push(Effect::Kill),
            _ => {}
        }
        let wake_at = match self.phase {
            Phase::Running => Some(self.hold.step_down_at),
            Phase::Ending => Some(self.hold.over_at),
            Phase::Killing => Some(now + AGAIN),
            Phase::Waiting | Phase::Left => None,
        };
        out.extend(wake_at.map(Effect::WakeAt));
    }

    fn runs(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Ending)
    }

    fn check(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let lapsed = self.phase == Phase::Running && now >= self.hold.step_down_at;
        if lapsed {
            out.push(Effect::Tell(Report::Lapsed));
        }
        if self.runs() && now >= self.hold.over_at {
            self.kill(out);
        } else if lapsed {
            self.terminate(out);
        }
    }

    fn until(&mut self, now: Moment, hold: Hold, out: &mut Vec<Effect>) {
        self.hold.step_down_at = self.hold.step_down_at.max(hold.step_down_at);
        self.hold.over_at = self.hold.over_at.max(hold.over_at);
        if self.phase != Phase::Waiting {
            return;
        }
        if now < self.hold.step_down_at {
            self.phase = Phase::Running;
            out.push(Effect::Start);
        } else {
            out.push(Effect::Tell(Report::Lapsed));
            self.leave(out);
        }
    }

    fn terminate(&mut self, out: &mut Vec<Effect>) {
        self.phase = Phase::Ending;
        out.push(Effect::Terminate);
    }
    fn kill(&mut self, out: &mut Vec<Effect>) {
        self.phase = Phase::Killing;
        out.push(Effect::Kill);
    }
    fn leave(&mut self, out: &mut Vec<Effect>) {
        self.phase = Phase::Left;
        out.push(Effect::Leave);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Moment {
        Moment(secs * 1_000_000)
    }
    fn until(step_down: u64, over: u64) -> Input {
        Input::Until(Hold { step_down_at: at(step_down), over_at: at(over) })
    }
    fn step(guardian: &mut Guardian, now: u64, input: Input) -> Vec<Effect> {
        let mut out = Vec::new();
        guardian.step(at(now), input, &mut out);
        out
    }
    /// Since second 100, until told otherwise at 110, gone by 114.
    fn running() -> Guardian {
        let mut guardian = Guardian::default();
        assert_eq!(step(&mut guardian, 100, until(110, 114)), [Effect::Start, Effect::WakeAt(at(110))]);
        guardian
    }
    const LAPSED: Effect = Effect::Tell(Report::Lapsed);

    #[test]
    fn each_confirmed_renewal_moves_its_deadline_forward_and_nothing_moves_it_back() {
        let mut guardian = running();
        assert_eq!(step(&mut guardian, 102, until(112, 116)), [Effect::WakeAt(at(112))]);
        assert_eq!(step(&mut guardian, 103, until(105, 107)), [Effect::WakeAt(at(112))]);
        assert_eq!(step(&mut guardian, 111, Input::Woke), [Effect::WakeAt(at(112))]);
    }

    #[test]
    fn without_a_renewal_the_command_is_told_to_end_and_then_killed() {
        let mut guardian = running();
        assert_eq!(step(&mut guardian, 110, Input::Woke), [LAPSED, Effect::Terminate, Effect::WakeAt(at(114))]);
        assert_eq!(step(&mut guardian, 113, Input::Woke), [Effect::WakeAt(at(114))]);
        assert_eq!(step(&mut guardian, 114, Input::Woke)[0], Effect::Kill);
    }

    #[test]
    fn after_a_freeze_past_both_instants_it_kills_at_once_and_believes_nothing_that_waited() {
        let mut guardian = running();
        let out = step(&mut guardian, 200, until(220, 224));
        assert_eq!(out[..2], [LAPSED, Effect::Kill]);
        assert!(!out.contains(&Effect::Terminate));
    }

    #[test]
    fn a_renewal_after_the_end_began_wins_time_and_nothing_more() {
        let mut guardian = running();
        step(&mut guardian, 110, Input::Woke);
        assert_eq!(step(&mut guardian, 111, until(121, 125)), [Effect::WakeAt(at(125))]);
        assert_eq!(step(&mut guardian, 125, Input::Woke)[0], Effect::Kill);
    }

    #[test]
    fn when_the_other_side_dies_the_command_gets_what_is_left_of_its_time() {
        let mut guardian = running();
        assert_eq!(step(&mut guardian, 101, Input::HungUp), [Effect::Terminate, Effect::WakeAt(at(114))]);
        assert_eq!(step(&mut guardian, 102, Input::HungUp), [Effect::WakeAt(at(114))]);
        assert_eq!(step(&mut guardian, 114, Input::Woke)[0], Effect::Kill);
    }

    #[test]
    fn an_end_that_was_asked_for_is_no_lapse() {
        let mut guardian = running();
        assert_eq!(step(&mut guardian, 101, Input::End)[0], Effect::Terminate);
        assert_eq!(step(&mut guardian, 112, Input::Woke), [Effect::WakeAt(at(114))]);
    }

    #[test]
    fn what_the_command_leaves_behind_is_killed_before_its_end_is_told() {
        let mut guardian = running();
        let ended = Input::Ended(Exit::Code(3));
        assert_eq!(step(&mut guardian, 101, ended), [Effect::Kill, Effect::WakeAt(at(101) + AGAIN)]);
        assert_eq!(step(&mut guardian, 102, Input::Woke)[0], Effect::Kill, "again: it may have started more");
        let told = [Effect::Tell(Report::Ended(Exit::Code(3))), Effect::Leave];
        assert_eq!(step(&mut guardian, 103, Input::Gone), told);
    }

    #[test]
    fn a_command_whose_time_is_over_before_it_began_is_not_started() {
        let mut guardian = Guardian::default();
        assert_eq!(step(&mut guardian, 110, until(110, 114)), [LAPSED, Effect::Leave]);
        let mut guardian = Guardian::default();
        assert_eq!(step(&mut guardian, 100, Input::HungUp), [Effect::Leave]);
    }

    #[test]
    fn signals_are_passed_on_while_there_is_somebody_to_have_them() {
        let mut guardian = Guardian::default();
        assert_eq!(step(&mut guardian, 100, Input::Signal(15)), []);
        let mut guardian = running();
        assert_eq!(step(&mut guardian, 101, Input::Signal(2))[0], Effect::Signal(2));
        step(&mut guardian, 102, Input::Ended(Exit::Signal(2)));
        assert_eq!(step(&mut guardian, 103, Input::Signal(2)), [Effect::WakeAt(at(103) + AGAIN)]);
    }

    #[test]
    fn exits_are_reported_as_a_shell_does() {
        assert_eq!((Exit::Code(3).status(), Exit::Signal(9).status(), Exit::Signal(64).status()), (3, 137, 192));
    }
}
