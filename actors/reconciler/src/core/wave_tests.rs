//! Object sets: their waves, what one waits for, and which attempt each belongs to.

use muster_messages::{Action, ErrorCode, GatePath, GateStep};

use super::scenario::Scenario;
use super::*;

/// The next request is for this wave, and is answered like this.
fn answer(scenario: &mut Scenario, wave: u32, waved: Waved) {
    let Effect::Wave { number, wave: asked, .. } = scenario.only() else { panic!("it requests no wave") };
    assert_eq!(asked, wave);
    scenario.receive(Input::Waved { number, result: Ok(waved) });
}
fn waits() -> Waved {
    Waved { waiting: Some("it is not ready".to_owned()), ..Waved::default() }
}
fn fails() -> Waved {
    Waved { errors: vec![ObjectError { key: "a".into(), message: "no".into() }], ..Waved::default() }
}

#[test]
fn waves_follow_each_other_only_after_success() {
    let mut scenario = Scenario::new(Action::Objects(vec![]), GatePath::First);
    scenario.view.definition.as_mut().unwrap().settle_ms = 0;
    scenario.unchanged_view();
    let errors = vec![ObjectError { key: "a".into(), message: "no".into() }];
    for (wave, errors) in [(0, vec![]), (1, errors), (1, vec![]), (2, vec![])] {
        let Effect::Wave { number, wave: asked, .. } = scenario.only() else { panic!() };
        assert_eq!(asked, wave);
        let fails = !errors.is_empty();
        scenario.receive(Input::Waved { number, result: Ok(Waved { errors, ..Waved::default() }) });
        if fails {
            scenario.nothing();
            assert_eq!(scenario.run.progress(WallTime(0)).wave, Some((2, 3)));
            scenario.pass(150);
        }
    }
    scenario.grant(GateStep::Complete, true);
}

#[test]
fn wave_that_waits_is_asked_for_again_until_its_time_is_over() {
    let mut scenario = Scenario::new(Action::Objects(vec![]), GatePath::First);
    scenario.view.definition.as_mut().unwrap().settle_ms = 0;
    scenario.unchanged_view();
    answer(&mut scenario, 0, Waved::default());
    answer(&mut scenario, 1, waits());
    scenario.is("waiting", "condition");
    scenario.nothing();
    assert_eq!(scenario.run.progress(WallTime(0)).message, "it is not ready");
    // Each newer view, and at the latest after 10 s.
    scenario.unchanged_view();
    answer(&mut scenario, 1, waits());
    scenario.pass(9_999);
    scenario.nothing();
    scenario.pass(1);
    answer(&mut scenario, 1, waits());
    assert_eq!(scenario.run.progress(WallTime(0)).attempt, 1, "it is one attempt");
    // A minute after the wait began.
    for _ in 0..5 {
        scenario.pass(10_000);
        answer(&mut scenario, 1, waits());
    }
    let failed = scenario.run.progress(WallTime(0));
    assert_eq!(failed.consecutive_failures, 1);
    assert!(failed.last_error.unwrap().contains("it has waited for 60s"));
    assert_eq!(scenario.records.last().unwrap().outcome, RunOutcome::TimedOut);
    // The next attempt begins with the same wave, and another minute.
    scenario.pass(1_000);
    answer(&mut scenario, 1, waits());
    scenario.is("waiting", "condition");
    scenario.unchanged_view();
    answer(&mut scenario, 1, Waved::default());
    answer(&mut scenario, 2, Waved::default());
    scenario.grant(GateStep::Complete, true);
    scenario.is("idle", "done");
}

/// However it ends: the next wait has a time limit of its own.
#[test]
fn failed_wave_after_a_wait_is_another_attempt() {
    for (errors, failures) in [(true, 1), (false, 0)] {
        let mut scenario = Scenario::new(Action::Objects(vec![]), GatePath::First);
        scenario.unchanged_view();
        answer(&mut scenario, 0, waits());
        scenario.pass(5_000);
        scenario.unchanged_view();
        if errors {
            answer(&mut scenario, 0, fails());
        } else {
            scenario.refuse(ErrorCode::NoQuorum);
        }
        scenario.pass(1_000);
        assert_eq!(scenario.run.progress(WallTime(0)).attempt, 2);
        let last = scenario.records.last().unwrap();
        assert_eq!((last.of_term, last.attempt, last.outcome), (2, 2, RunOutcome::Running));
        let Tally { attempts, failures: failed, .. } = *scenario.run.tally();
        assert_eq!((attempts, failed), (2, failures));
        answer(&mut scenario, 0, waits());
        for _ in 0..5 {
            scenario.pass(10_000);
            answer(&mut scenario, 0, waits());
        }
        scenario.is("waiting", "condition");
        assert_eq!(scenario.run.progress(WallTime(0)).attempt, 2);
    }
}

/// An operator restores a gate at which the definition is applied: what follows is a repair, and another run.
#[test]
fn run_whose_gate_is_moved_while_it_waits_is_recorded() {
    let mut scenario = Scenario::new(Action::Objects(vec![]), GatePath::First);
    scenario.unchanged_view();
    answer(&mut scenario, 0, waits());
    scenario.change_view(|view| view.path = Some(GatePath::Reached.into()));
    scenario.pass_until(|effect| matches!(effect, Effect::Wave { .. }));
    let recorded: Vec<_> = scenario.records.iter().map(|record| (record.of_term, record.outcome)).collect();
    use RunOutcome as R;
    assert_eq!(recorded, [(1, R::Running), (1, R::Cancelled), (2, R::Running)]);
    assert_eq!(scenario.run.progress(WallTime(0)).attempt, 1);
}
