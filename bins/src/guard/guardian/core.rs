//! Guardian: ends a command in time, whatever happens to the process that requested it.
//!
//! Owns        the instants by which the command must have been asked to end, and must be gone.
//! Inputs      later instants, orders to end it or to forward a signal, the other side's end, the command's end, the clock.
//! Outputs     start, signal, kill, and reports.
//! Invariants  GUARD-1  the command runs only before the latest of the instants that it was given; instants only move forward.
//!             GUARD-2  its end is reported only when none of its processes is left.
//!             GUARD-3  the clock is checked before any input: after a freeze, inputs that waited cannot extend the time.

use std::time::Duration;

use muster_elector::Hold;
use muster_messages::Moment;

/// Pause before killing again what escaped a kill by starting a process at that moment.
pub const KILL_RETRY_PAUSE: Duration = Duration::from_millis(5);

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Code(u8),
    Signal(u8),
}

impl Exit {
    /// As a shell reports it.
    pub fn status(self) -> u8 {
        match self {
            Exit::Code(code) => code,
            Exit::Signal(number) => 128u8.saturating_add(number),
        }
    }
}

/// A signal's number.
pub type Number = u8;

/// Inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The command may run until then. The first one starts it.
    Until(Hold),
    /// Forward a signal.
    Signal(Number),
    /// Ask the command to end: it is no longer wanted.
    End,
    /// The other side is gone.
    HungUp,
    /// The command itself has ended.
    Ended(Exit),
    /// None of its processes is left.
    Gone,
    Woke,
}

/// Effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Start,
    Signal(Number),
    /// TERM, and CONT for stopped processes.
    Terminate,
    /// KILL, for all processes that it has started.
    Kill,
    Tell(Report),
    WakeAt(Moment),
    /// Nothing is left to guard.
    Leave,
}

/// Reports to the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// Its time ran out, or never began; it is asked to end.
    Lapsed,
    Ended(Exit),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    Running,
    /// It was asked to end.
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
    /// Handles one input.
    pub fn step(&mut self, now: Moment, input: Input, out: &mut Vec<Effect>) {
        self.check(now, out);
        match input {
            Input::Until(hold) => self.until(now, hold, out),
            Input::Signal(number) if self.runs() => out.push(Effect::Signal(number)),
            Input::End | Input::HungUp if self.phase == Phase::Waiting => self.leave(out),
            Input::End | Input::HungUp if self.phase == Phase::Running => self.terminate(out),
            Input::Ended(exit) => {
                self.exit = Some(exit);
                self.kill(out); // its remaining processes do not outlive it
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
            Phase::Killing => Some(now + KILL_RETRY_PAUSE),
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
    /// Since second 100, to be ended at 110, gone by 114.
    fn running() -> Guardian {
        let mut guardian = Guardian::default();
        assert_eq!(step(&mut guardian, 100, until(110, 114)), [Effect::Start, Effect::WakeAt(at(110))]);
        guardian
    }
    const LAPSED: Effect = Effect::Tell(Report::Lapsed);

    #[test]
    fn deadline_moves_only_forward_with_confirmed_renewals() {
        let mut guardian = running();
        assert_eq!(step(&mut guardian, 102, until(112, 116)), [Effect::WakeAt(at(112))]);
        assert_eq!(step(&mut guardian, 103, until(105, 107)), [Effect::WakeAt(at(112))]);
        assert_eq!(step(&mut guardian, 111, Input::Woke), [Effect::WakeAt(at(112))]);
    }

    #[test]
    fn without_renewal_the_command_is_terminated_then_killed() {
        let mut guardian = running();
        assert_eq!(step(&mut guardian, 110, Input::Woke), [LAPSED, Effect::Terminate, Effect::WakeAt(at(114))]);
        assert_eq!(step(&mut guardian, 113, Input::Woke), [Effect::WakeAt(at(114))]);
        assert_eq!(step(&mut guardian, 114, Input::Woke)[0], Effect::Kill);
    }

    #[test]
    fn after_a_long_freeze_it_kills_before_reading_old_inputs() {
        let mut guardian = running();
        let out = step(&mut guardian, 200, until(220, 224));
        assert_eq!(out[..2], [LAPSED, Effect::Kill]);
        assert!(!out.contains(&Effect::Terminate));
    }

    #[test]
    fn renewal_after_the_end_began_only_delays_the_kill() {
        let mut guardian = running();
        step(&mut guardian, 110, Input::Woke);
        assert_eq!(step(&mut guardian, 111, until(121, 125)), [Effect::WakeAt(at(125))]);
        assert_eq!(step(&mut guardian, 125, Input::Woke)[0], Effect::Kill);
    }

    #[test]
    fn command_keeps_its_remaining_time_when_muster_dies() {
        let mut guardian = running();
        assert_eq!(step(&mut guardian, 101, Input::HungUp), [Effect::Terminate, Effect::WakeAt(at(114))]);
        assert_eq!(step(&mut guardian, 102, Input::HungUp), [Effect::WakeAt(at(114))]);
        assert_eq!(step(&mut guardian, 114, Input::Woke)[0], Effect::Kill);
    }

    #[test]
    fn requested_end_is_not_a_lapse() {
        let mut guardian = running();
        assert_eq!(step(&mut guardian, 101, Input::End)[0], Effect::Terminate);
        assert_eq!(step(&mut guardian, 112, Input::Woke), [Effect::WakeAt(at(114))]);
    }

    #[test]
    fn leftover_processes_are_killed_before_the_end_is_reported() {
        let mut guardian = running();
        let ended = Input::Ended(Exit::Code(3));
        assert_eq!(step(&mut guardian, 101, ended), [Effect::Kill, Effect::WakeAt(at(101) + KILL_RETRY_PAUSE)]);
        assert_eq!(step(&mut guardian, 102, Input::Woke)[0], Effect::Kill, "again: it may have started more");
        let expected = [Effect::Tell(Report::Ended(Exit::Code(3))), Effect::Leave];
        assert_eq!(step(&mut guardian, 103, Input::Gone), expected);
    }

    #[test]
    fn command_whose_time_is_already_over_is_not_started() {
        let mut guardian = Guardian::default();
        assert_eq!(step(&mut guardian, 110, until(110, 114)), [LAPSED, Effect::Leave]);
        let mut guardian = Guardian::default();
        assert_eq!(step(&mut guardian, 100, Input::HungUp), [Effect::Leave]);
    }

    #[test]
    fn signals_are_forwarded_while_the_command_runs() {
        let mut guardian = Guardian::default();
        assert_eq!(step(&mut guardian, 100, Input::Signal(15)), []);
        let mut guardian = running();
        assert_eq!(step(&mut guardian, 101, Input::Signal(2))[0], Effect::Signal(2));
        step(&mut guardian, 102, Input::Ended(Exit::Signal(2)));
        assert_eq!(step(&mut guardian, 103, Input::Signal(2)), [Effect::WakeAt(at(103) + KILL_RETRY_PAUSE)]);
    }

    #[test]
    fn exits_are_reported_as_a_shell_does() {
        assert_eq!((Exit::Code(3).status(), Exit::Signal(9).status(), Exit::Signal(64).status()), (3, 137, 192));
    }
}
