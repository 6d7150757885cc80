//! What a supervisor decides. Pure: time, randomness and outcomes are handed in.
//!
//! Keeps  SUP-1  at most one incarnation of a child is wanted at any time; reports of older runs change nothing.
//!        SUP-2  a child that was asked to go is not restarted for its exit.
//!        SUP-3  more than `intensity.max` unasked exits within `intensity.window` escalate; those of a contained child
//!               do not count.
//!        SUP-4  a child that was asked to go for good goes; only a later start brings it back.

use std::collections::{BTreeMap, VecDeque};

use muster_messages::{ActorState, ExitKind, Moment};

use crate::spec::{Backoff, Intensity, Restart};

/// How a child is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    pub restart: Restart,
    pub backoff: Backoff,
    pub start_deadline: std::time::Duration,
    pub stop_deadline: std::time::Duration,
    /// Its exits never escalate.
    pub contained: bool,
}

/// The timers of a child. One runs at a time; the run number makes older ones stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    Start,
    Backoff,
    Stop,
    Kill,
}

/// What happens to a supervisor.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// Start a child, or replace the one of that name.
    Start {
        name: String,
        policy: Policy,
    },
    Started {
        name: String,
        run: u64,
    },
    Exited {
        name: String,
        run: u64,
        kind: ExitKind,
        text: String,
    },
    Stop {
        name: String,
    },
    Restart {
        name: String,
    },
    Timer {
        name: String,
        run: u64,
        timer: Timer,
    },
}

/// What a supervisor does.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Launch {
        name: String,
        run: u64,
        incarnation: u64,
    },
    /// Ask the running incarnation to stop.
    Stop {
        name: String,
        run: u64,
    },
    Kill {
        name: String,
        run: u64,
    },
    SetTimer {
        name: String,
        run: u64,
        timer: Timer,
        after: std::time::Duration,
    },
    State {
        name: String,
        state: ActorState,
    },
    Exit {
        name: String,
        kind: ExitKind,
        text: String,
    },
    /// The child is gone and will not come back.
    Removed {
        name: String,
    },
    Escalate {
        text: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Remove,
    Relaunch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Starting,
    Running {
        since: Moment,
    },
    BackingOff,
    Stopping(Then),
    /// Ended for good, still shown.
    Ended,
}

#[derive(Clone, Debug)]
struct Child {
    policy: Policy,
    run: u64,
    incarnation: u64,
    phase: Phase,
    /// Failures since it was last stable.
    failures: u32,
}

/// The state of a supervisor.
#[derive(Clone, Debug)]
pub struct Core {
    children: BTreeMap<String, Child>,
    /// Moments of unasked exits within the window.
    exits: VecDeque<Moment>,
    intensity: Intensity,
    runs: u64,
    entropy: u64,
}

impl Core {
    /// A supervisor without children. The seed jitters the backoff.
    pub fn new(intensity: Intensity, seed: u64) -> Self {
        Self { children: BTreeMap::new(), exits: VecDeque::new(), intensity, runs: 0, entropy: seed }
    }

    /// The run that is current for a child; reports of others are stale.
    pub fn run_of(&self, name: &str) -> Option<u64> {
        self.children.get(name).map(|c| c.run)
    }

    /// Somebody still waits for this run's launch; an incarnation that appears later is one too many.
    pub fn awaits(&self, name: &str, run: u64) -> bool {
        let awaited = |c: &Child| c.run == run && matches!(c.phase, Phase::Starting | Phase::Stopping(_));
        self.children.get(name).is_some_and(awaited)
    }

    /// The child was asked to go and has not gone yet.
    pub fn is_stopping(&self, name: &str) -> bool {
        self.children.get(name).is_some_and(|c| matches!(c.phase, Phase::Stopping(_)))
    }

    /// Handles one input.
    pub fn step(&mut self, now: Moment, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Start { name, policy } => match self.children.get_mut(&name) {
                Some(child) if child.phase != Phase::Ended => {
                    child.policy = policy;
                    self.stop(&name, Then::Relaunch, out);
                }
                _ => {
                    let child = Child { policy, run: 0, incarnation: 0, phase: Phase::Starting, failures: 0 };
                    self.children.insert(name.clone(), child);
                    self.launch(&name, out);
                }
            },
            Input::Started { name, run } => {
                if let Some(child) = self.current(&name, run)
                    && child.phase == Phase::Starting
                {
                    child.phase = Phase::Running { since: now };
                }
            }
            Input::Exited { name, run, kind, text } => self.exited(now, &name, run, kind, text, out),
            Input::Stop { name } => {
                if self.children.contains_key(&name) {
                    self.stop(&name, Then::Remove, out);
                }
            }
            // SUP-4: a restart does not undo a removal that is under way.
            Input::Restart { name } => match self.children.get(&name).map(|c| c.phase) {
                None | Some(Phase::Stopping(_)) => {}
                Some(_) => self.stop(&name, Then::Relaunch, out),
            },
            Input::Timer { name, run, timer } => self.timer(now, &name, run, timer, out),
        }
    }

    fn current(&mut self, name: &str, run: u64) -> Option<&mut Child> {
        self.children.get_mut(name).filter(|c| c.run == run)
    }

    fn launch(&mut self, name: &str, out: &mut Vec<Effect>) {
        self.runs += 1;
        let run = self.runs;
        let Some(child) = self.children.get_mut(name) else {
            return;
        };
        child.run = run;
        child.incarnation += 1;
        child.phase = Phase::Starting;
        out.push(Effect::Launch { name: name.to_owned(), run, incarnation: child.incarnation });
        let after = child.policy.start_deadline;
        out.push(Effect::SetTimer { name: name.to_owned(), run, timer: Timer::Start, after });
    }

    fn stop(&mut self, name: &str, then: Then, out: &mut Vec<Effect>) {
        let Some(child) = self.children.get_mut(name) else {
            return;
        };
        match child.phase {
            Phase::Starting | Phase::Running { .. } => {
                child.phase = Phase::Stopping(then);
                out.push(Effect::State { name: name.to_owned(), state: ActorState::Stopping });
                out.push(Effect::Stop { name: name.to_owned(), run: child.run });
                let after = child.policy.stop_deadline;
                out.push(Effect::SetTimer { name: name.to_owned(), run: child.run, timer: Timer::Stop, after });
            }
            // Between starts and stops the last wish wins.
            Phase::Stopping(_) => child.phase = Phase::Stopping(then),
            Phase::BackingOff | Phase::Ended => self.gone(name, then, out),
        }
    }

    /// A child that was asked to go has gone (or is stuck and is left behind).
    fn gone(&mut self, name: &str, then: Then, out: &mut Vec<Effect>) {
        match then {
            Then::Remove => {
                self.children.remove(name);
                out.push(Effect::Removed { name: name.to_owned() });
            }
            Then::Relaunch => self.launch(name, out),
        }
    }

    fn exited(&mut self, now: Moment, name: &str, run: u64, kind: ExitKind, text: String, out: &mut Vec<Effect>) {
        let Some(child) = self.current(name, run) else {
            return;
        };
        match child.phase {
            Phase::Stopping(then) => {
                out.push(Effect::Exit { name: name.to_owned(), kind, text });
                self.gone(name, then, out);
            }
            Phase::Starting | Phase::Running { .. } => {
                out.push(Effect::Exit { name: name.to_owned(), kind, text: text.clone() });
                self.unasked(now, name, kind, &text, out);
            }
            Phase::BackingOff | Phase::Ended => {}
        }
    }

    /// An exit that nobody asked for.
    fn unasked(&mut self, now: Moment, name: &str, kind: ExitKind, text: &str, out: &mut Vec<Effect>) {
        let failed = kind != ExitKind::Normal;
        let Some(child) = self.children.get_mut(name) else {
            return;
        };
        let again = match child.policy.restart {
            Restart::Permanent => true,
            Restart::Transient => failed,
            Restart::Temporary => false,
        };
        if !again {
            if child.policy.restart == Restart::Temporary {
                self.children.remove(name);
                out.push(Effect::Removed { name: name.to_owned() });
            } else {
                child.phase = Phase::Ended;
                out.push(Effect::State { name: name.to_owned(), state: ActorState::Done });
            }
            return;
        }
        if let Phase::Running { since } = child.phase
            && now.since(since) >= child.policy.backoff.stable_after
        {
            child.failures = 0;
        }
        let failures = child.failures;
        child.failures += 1;
        child.phase = Phase::BackingOff;
        let (run, backoff) = (child.run, child.policy.backoff);

        if !child.policy.contained {
            self.exits.push_back(now);
        }
        while self.exits.front().is_some_and(|at| now.since(*at) > self.intensity.window) {
            self.exits.pop_front();
        }
        if self.exits.len() > self.intensity.max {
            out.push(Effect::State { name: name.to_owned(), state: ActorState::Escalated });
            let (max, secs) = (self.intensity.max, self.intensity.window.as_secs());
            out.push(Effect::Escalate {
                text: format!("{name} failed too often (more than {max} exits in {secs} s), last: {text}"),
            });
            return;
        }
        out.push(Effect::State { name: name.to_owned(), state: ActorState::BackingOff });
        let after = self.delay(backoff, failures);
        out.push(Effect::SetTimer { name: name.to_owned(), run, timer: Timer::Backoff, after });
    }

    /// `first` × 1.5ⁿ, at most `cap`, ± 50 %.
    fn delay(&mut self, backoff: Backoff, failures: u32) -> std::time::Duration {
        let factor = 1.5f64.powi(i32::try_from(failures.min(40)).unwrap_or(40));
        let base = backoff.first.mul_f64(factor).min(backoff.cap);
        // SplitMix64 (Steele, Lea & Flood 2014): jitter needs no more.
        self.entropy = self.entropy.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.entropy;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let unit = ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64;
        base.mul_f64(0.5 + unit)
    }

    fn timer(&mut self, now: Moment, name: &str, run: u64, timer: Timer, out: &mut Vec<Effect>) {
        let Some(child) = self.current(name, run) else {
            return;
        };
        match (timer, child.phase) {
            (Timer::Start, Phase::Starting) => {
                out.push(Effect::Kill { name: name.to_owned(), run });
                let text = "did not start in time".to_owned();
                out.push(Effect::Exit { name: name.to_owned(), kind: ExitKind::Start, text: text.clone() });
                self.unasked(now, name, ExitKind::Start, &text, out);
            }
            (Timer::Backoff, Phase::BackingOff) => self.launch(name, out),
            (Timer::Stop, Phase::Stopping(_)) => {
                let after = child.policy.stop_deadline;
                out.push(Effect::Kill { name: name.to_owned(), run });
                out.push(Effect::SetTimer { name: name.to_owned(), run, timer: Timer::Kill, after });
            }
            (Timer::Kill, Phase::Stopping(then)) => {
                out.push(Effect::State { name: name.to_owned(), state: ActorState::Stuck });
                let text = "ignored stop and kill".to_owned();
                out.push(Effect::Exit { name: name.to_owned(), kind: ExitKind::Stuck, text });
                self.gone(name, then, out);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const POLICY: Policy = Policy {
        restart: Restart::Permanent,
        backoff: Backoff::SLOW,
        start_deadline: Duration::from_secs(10),
        stop_deadline: Duration::from_secs(5),
        contained: false,
    };

    struct World {
        core: Core,
        now: Moment,
    }
    impl World {
        fn new() -> Self {
            Self { core: Core::new(Intensity::default(), 7), now: Moment(3_600_000_000) }
        }
        fn step(&mut self, input: Input) -> Vec<Effect> {
            let mut out = Vec::new();
            self.core.step(self.now, input, &mut out);
            out
        }
        fn run(&self) -> u64 {
            self.core.run_of("a").unwrap()
        }
        fn start(&mut self, policy: Policy) {
            self.step(Input::Start { name: "a".into(), policy });
            let run = self.run();
            self.step(Input::Started { name: "a".into(), run });
        }
        fn exit(&mut self, kind: ExitKind) -> Vec<Effect> {
            let run = self.run();
            self.step(Input::Exited { name: "a".into(), run, kind, text: "x".into() })
        }
        fn timer(&mut self, timer: Timer) -> Vec<Effect> {
            let run = self.run();
            self.step(Input::Timer { name: "a".into(), run, timer })
        }
    }
    fn backoff_of(effects: &[Effect]) -> Option<Duration> {
        effects.iter().find_map(|e| match e {
            Effect::SetTimer { timer: Timer::Backoff, after, .. } => Some(*after),
            _ => None,
        })
    }

    #[test]
    fn a_failed_child_is_restarted_after_a_growing_delay() {
        let mut w = World::new();
        w.start(POLICY);
        let mut delays = Vec::new();
        for _ in 0..5 {
            delays.push(backoff_of(&w.exit(ExitKind::Panic)).unwrap());
            let launched = w.timer(Timer::Backoff);
            assert!(matches!(launched[0], Effect::Launch { .. }));
            let run = w.run();
            w.step(Input::Started { name: "a".into(), run });
        }
        assert!(delays[0] >= Duration::from_millis(250) && delays[0] <= Duration::from_millis(750));
        assert!(delays[4] >= Duration::from_millis(1265), "{delays:?}");
    }

    #[test]
    fn a_child_that_was_stable_starts_again_quickly() {
        let mut w = World::new();
        w.start(POLICY);
        for _ in 0..4 {
            w.exit(ExitKind::Error);
            w.timer(Timer::Backoff);
            let run = w.run();
            w.step(Input::Started { name: "a".into(), run });
        }
        w.now = w.now + Duration::from_secs(31);
        assert!(backoff_of(&w.exit(ExitKind::Error)).unwrap() <= Duration::from_millis(750));
    }

    #[test]
    fn too_many_failures_escalate_and_old_ones_are_forgotten() {
        let mut w = World::new();
        w.start(POLICY);
        for n in 0..11 {
            let effects = w.exit(ExitKind::Panic);
            let escalated = effects.iter().any(|e| matches!(e, Effect::Escalate { .. }));
            assert_eq!(escalated, n == 10, "exit {n}");
            w.timer(Timer::Backoff);
            let run = w.run();
            w.step(Input::Started { name: "a".into(), run });
        }
        let mut w = World::new();
        w.start(POLICY);
        for _ in 0..30 {
            w.now = w.now + Duration::from_secs(10);
            assert!(!w.exit(ExitKind::Panic).iter().any(|e| matches!(e, Effect::Escalate { .. })));
            w.timer(Timer::Backoff);
            let run = w.run();
            w.step(Input::Started { name: "a".into(), run });
        }
    }

    #[test]
    fn a_child_asked_to_stop_is_not_restarted_for_it() {
        let mut w = World::new();
        w.start(POLICY);
        let run = w.run();
        w.step(Input::Stop { name: "a".into() });
        let effects = w.step(Input::Exited { name: "a".into(), run, kind: ExitKind::Killed, text: String::new() });
        assert!(effects.contains(&Effect::Removed { name: "a".into() }));
        assert_eq!(w.core.run_of("a"), None);
    }

    #[test]
    fn a_child_that_ignores_stop_and_kill_is_stuck_and_left_behind() {
        let mut w = World::new();
        w.start(POLICY);
        w.step(Input::Restart { name: "a".into() });
        let old = w.run();
        assert!(matches!(w.timer(Timer::Stop)[0], Effect::Kill { .. }));
        let effects = w.timer(Timer::Kill);
        assert!(effects.contains(&Effect::State { name: "a".into(), state: ActorState::Stuck }));
        assert!(effects.iter().any(|e| matches!(e, Effect::Launch { incarnation: 2, .. })));
        // The old one's exit, whenever it comes, changes nothing.
        assert_eq!(
            w.step(Input::Exited { name: "a".into(), run: old, kind: ExitKind::Killed, text: String::new() }),
            []
        );
    }

    #[test]
    fn restart_kinds_differ_in_what_they_restart() {
        for (restart, kind, again) in [
            (Restart::Permanent, ExitKind::Normal, true),
            (Restart::Transient, ExitKind::Normal, false),
            (Restart::Transient, ExitKind::Panic, true),
            (Restart::Transient, ExitKind::Killed, true),
            (Restart::Temporary, ExitKind::Panic, false),
        ] {
            let mut w = World::new();
            w.start(Policy { restart, ..POLICY });
            assert_eq!(backoff_of(&w.exit(kind)).is_some(), again, "{restart:?} {kind:?}");
        }
    }

    #[test]
    fn a_contained_child_fails_as_often_as_it_likes() {
        let mut w = World::new();
        w.start(Policy { contained: true, ..POLICY });
        for _ in 0..50 {
            let effects = w.exit(ExitKind::Panic);
            assert!(backoff_of(&effects).is_some(), "{effects:?}");
            w.timer(Timer::Backoff);
            let run = w.run();
            w.step(Input::Started { name: "a".into(), run });
        }
    }

    #[test]
    fn a_restart_does_not_undo_a_removal() {
        let mut w = World::new();
        w.start(POLICY);
        let run = w.run();
        w.step(Input::Stop { name: "a".into() });
        w.step(Input::Restart { name: "a".into() });
        let effects = w.step(Input::Exited { name: "a".into(), run, kind: ExitKind::Normal, text: String::new() });
        assert!(effects.contains(&Effect::Removed { name: "a".into() }), "{effects:?}");
    }

    #[test]
    fn an_incarnation_that_starts_after_its_deadline_is_not_awaited() {
        let mut w = World::new();
        w.step(Input::Start { name: "a".into(), policy: POLICY });
        let run = w.run();
        assert!(w.core.awaits("a", run));
        w.timer(Timer::Start);
        assert!(!w.core.awaits("a", run), "its successor is already due");
    }

    #[test]
    fn a_start_that_takes_too_long_counts_as_a_failure() {
        let mut w = World::new();
        w.step(Input::Start { name: "a".into(), policy: POLICY });
        let effects = w.timer(Timer::Start);
        assert!(matches!(effects[0], Effect::Kill { .. }));
        assert!(backoff_of(&effects).is_some());
    }
}
