//! One child alone.

use std::time::Duration;

use muster_messages::{ActorState, ExitKind, Moment};

use super::super::{Core, Effect, Fate, Input, Policy, Timer};
use super::world::POLICY;
use crate::{Intensity, Restart};

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
        self.step(Input::Start { name: "a".into(), policy, requires: Vec::new() });
        let run = self.run();
        self.step(Input::Healthy { name: "a".into(), run });
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
        assert!(launched.iter().any(|e| matches!(e, Effect::Launch { .. })));
        let run = w.run();
        w.step(Input::Healthy { name: "a".into(), run });
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
        w.step(Input::Healthy { name: "a".into(), run });
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
        w.step(Input::Healthy { name: "a".into(), run });
    }
    let mut w = World::new();
    w.start(POLICY);
    for _ in 0..30 {
        w.now = w.now + Duration::from_secs(10);
        assert!(!w.exit(ExitKind::Panic).iter().any(|e| matches!(e, Effect::Escalate { .. })));
        w.timer(Timer::Backoff);
        let run = w.run();
        w.step(Input::Healthy { name: "a".into(), run });
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
fn child_that_ignores_stop_and_kill_is_abandoned_as_stuck() {
    let mut w = World::new();
    w.start(POLICY);
    w.step(Input::Restart { name: "a".into() });
    let old = w.run();
    assert!(matches!(w.timer(Timer::Stop)[0], Effect::Kill { .. }));
    let effects = w.timer(Timer::Kill);
    assert!(effects.contains(&Effect::State { name: "a".into(), state: ActorState::Stuck }));
    assert!(effects.iter().any(|e| matches!(e, Effect::Launch { incarnation: 2, .. })));
    // The old run's late exit changes nothing.
    let late = Input::Exited { name: "a".into(), run: old, kind: ExitKind::Killed, text: String::new() };
    assert_eq!(w.step(late), [Effect::Stale { name: "a".into() }]);
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
fn contained_child_may_fail_any_number_of_times() {
    let mut w = World::new();
    w.start(Policy { contained: true, ..POLICY });
    for _ in 0..50 {
        let effects = w.exit(ExitKind::Panic);
        assert!(backoff_of(&effects).is_some(), "{effects:?}");
        w.timer(Timer::Backoff);
        let run = w.run();
        w.step(Input::Healthy { name: "a".into(), run });
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
    w.step(Input::Start { name: "a".into(), policy: POLICY, requires: Vec::new() });
    let run = w.run();
    assert_eq!(w.core.fate("a", run), Fate::Keep);
    w.timer(Timer::Start);
    assert_eq!(w.core.fate("a", run), Fate::Stop);
    w.timer(Timer::Stop);
    assert_eq!(w.core.fate("a", run), Fate::Kill);
    w.timer(Timer::Kill);
    assert_eq!(w.core.fate("a", run), Fate::Kill, "the late launch is abandoned");
    assert_eq!(w.exit(ExitKind::Killed), [Effect::Stale { name: "a".into() }], "its end does not shorten the delay");
    w.timer(Timer::Backoff);
    assert_eq!((w.core.fate("a", run), w.core.fate("a", run + 1)), (Fate::Kill, Fate::Keep));
}

#[test]
fn start_beyond_its_deadline_is_stopped_and_counts_as_failure() {
    let mut w = World::new();
    w.step(Input::Start { name: "a".into(), policy: POLICY, requires: Vec::new() });
    let effects = w.timer(Timer::Start);
    assert!(effects.iter().any(|e| matches!(e, Effect::Stop { .. })) && backoff_of(&effects).is_none(), "{effects:?}");
    let effects = w.exit(ExitKind::Normal);
    assert!(matches!(&effects[0], Effect::Exit { kind: ExitKind::Start, text, .. } if text == "did not start in time"));
    assert!(backoff_of(&effects).is_some());
}

#[test]
fn only_a_stable_healthy_run_clears_earlier_failures() {
    let mut w = World::new();
    w.start(POLICY);
    for _ in 0..5 {
        w.exit(ExitKind::Error);
        w.timer(Timer::Backoff);
    }
    // Alive for a minute, but never healthy.
    w.now = w.now + Duration::from_secs(61);
    assert!(backoff_of(&w.exit(ExitKind::Error)).unwrap() >= Duration::from_secs(1));
}

#[test]
fn reports_of_an_older_run_are_dropped_and_counted() {
    let mut w = World::new();
    w.start(POLICY);
    let old = w.run();
    w.exit(ExitKind::Panic);
    w.timer(Timer::Backoff);
    let name = || "a".to_owned();
    let stale = [Effect::Stale { name: name() }];
    assert_eq!(w.step(Input::Healthy { name: name(), run: old }), stale);
    assert_eq!(w.step(Input::Exited { name: name(), run: old, kind: ExitKind::Panic, text: String::new() }), stale);
    for timer in [Timer::Start, Timer::Backoff, Timer::Stop, Timer::Kill] {
        assert_eq!(w.step(Input::Timer { name: name(), run: old, timer }), stale);
    }
    assert_eq!(w.core.fate("a", w.run()), Fate::Keep, "the newer run continues");
}
