//! Chains: which steps are carried out, in which order, and when each is recorded.

use muster_messages::wire::GateView;
use muster_messages::{Action, ChainStep, CommandAction, ErrorCode, GatePath, GateStep, HoldReason, HoldView};

use super::scenario::{Scenario, blocker};
use super::*;

fn chain() -> Action {
    of_steps(&["a", "b", "c"])
}

fn of_steps(names: &[&str]) -> Action {
    let step = |name: &str| ChainStep {
        name: name.to_owned(),
        command: CommandAction { argv: vec![name.to_owned()], env: Default::default() },
        digest: name.to_owned(),
    };
    Action::Chain(names.iter().map(|name| step(name)).collect())
}

/// A runner that begins while this many steps are on record.
fn after(steps_done: usize) -> Scenario {
    let mut scenario = Scenario::new(chain(), GatePath::Open);
    scenario.change_view(|view| view.steps_done = steps_done);
    scenario.grant(GateStep::Work, true);
    scenario.pass(5_000);
    scenario
}

fn acts(scenario: &mut Scenario, expected: &str) -> u64 {
    let (number, work) = scenario.acts();
    assert_eq!(work.step.map(|step| step.name).as_deref(), Some(expected));
    number
}

#[test]
fn missing_steps_run_each_after_the_record_of_the_one_before() {
    let mut scenario = after(1);
    for step in ["b", "c"] {
        let number = acts(&mut scenario, step);
        scenario.end(number, Outcome::Done);
        scenario.records(step);
    }
    scenario.grant(GateStep::Complete, true);
    scenario.is("idle", "done");
}

#[test]
fn a_chain_whose_steps_have_all_run_only_completes_the_gate() {
    let mut scenario = after(3);
    scenario.grant(GateStep::Complete, true);
    scenario.is("idle", "done");
}

#[test]
fn a_failed_step_is_tried_again_and_no_other_begins() {
    let mut scenario = after(0);
    let number = acts(&mut scenario, "a");
    scenario.end(number, Outcome::Failed("no".into()));
    assert!(scenario.run.progress(WallTime(0)).message.starts_with("step a, 1 of 3: no"));
    scenario.pass_until_it_acts();
    acts(&mut scenario, "a");
}

#[test]
fn lost_step_record_is_sent_again_without_a_rerun() {
    let mut scenario = after(0);
    let number = acts(&mut scenario, "a");
    scenario.end(number, Outcome::Done);
    scenario.refuse(ErrorCode::TimedOut);
    scenario.pass_until(|effect| matches!(effect, Effect::Record { .. }));
    scenario.records("a");
    acts(&mut scenario, "b");
}

/// The record was written although its answer was lost: the next step has not run yet.
#[test]
fn a_view_with_the_record_lets_the_next_step_run() {
    let mut scenario = after(0);
    let number = acts(&mut scenario, "a");
    scenario.end(number, Outcome::Done);
    scenario.refuse(ErrorCode::TimedOut);
    scenario.change_view(|view| view.steps_done = 1);
    scenario.pass_until_it_acts();
    acts(&mut scenario, "b");
}

#[test]
fn a_hold_stops_a_chain_before_its_next_step() {
    let mut scenario = after(0);
    let number = acts(&mut scenario, "a");
    let paused = HoldView { reason: HoldReason::Paused.into(), message: "m".into() };
    scenario.change_view(|view| (view.hold, view.path) = (Some(paused), None));
    scenario.nothing();
    scenario.end(number, Outcome::Done);
    scenario.records("a");
    scenario.is("paused", "paused");
    scenario.pass(3_600_000);
    scenario.nothing();
    scenario.change_view(|view| (view.hold, view.path) = (None, Some(GatePath::Open.into())));
    acts(&mut scenario, "b");
}

#[test]
fn new_blocker_stops_the_next_step() {
    let mut scenario = Scenario::new(chain(), GatePath::First);
    scenario.unchanged_view();
    let number = acts(&mut scenario, "a");
    scenario.change_view(|view| (view.blockers, view.blockers_in_all) = (vec![blocker("b", "1.0.0")], 1));
    scenario.end(number, Outcome::Done);
    scenario.records("a");
    scenario.is("waiting", "blockers");
    scenario.nothing();
    scenario.change_view(|view| (view.blockers, view.blockers_in_all) = (vec![], 0));
    acts(&mut scenario, "b");
}

/// A replica that lags for longer than it is waited for.
#[test]
fn a_view_without_the_last_record_repeats_no_step() {
    let mut scenario = after(0);
    let number = acts(&mut scenario, "a");
    scenario.end(number, Outcome::Done);
    let Effect::Record { number, .. } = scenario.only() else { panic!("it records nothing") };
    let recorded = Recorded { revision: Revision(scenario.view.revision.0 + 9) };
    scenario.receive(Input::Recorded { number, result: Ok(recorded) });
    scenario.unchanged_view();
    scenario.nothing();
    scenario.pass(30_000);
    acts(&mut scenario, "b");
}

/// The lease is still held: nothing needs to be repeated by the next runner.
#[test]
fn a_step_that_ends_with_its_term_is_recorded() {
    for (outcome, recorded) in [(Outcome::Done, true), (Outcome::Failed("signal 15".into()), false)] {
        let mut scenario = after(0);
        let number = acts(&mut scenario, "a");
        scenario.receive(Input::Ended);
        assert_eq!(scenario.only(), Effect::Cancel { number });
        scenario.end(number, outcome);
        if recorded {
            assert!(!scenario.run.is_recorded(), "the end of the term waits for it");
            scenario.records("a");
        }
        assert!(scenario.run.is_recorded());
        scenario.receive(Input::Ended);
        scenario.pass(3_600_000);
        scenario.nothing();
    }
}

#[test]
fn the_end_of_a_term_waits_for_a_record_on_its_way() {
    let mut scenario = after(0);
    let number = acts(&mut scenario, "a");
    scenario.end(number, Outcome::Done);
    scenario.receive(Input::Ended);
    assert!(!scenario.run.is_recorded());
    scenario.records("a");
    assert!(scenario.run.is_recorded());
    scenario.nothing();

    // Its answer was lost, and it would have been sent again.
    let mut scenario = after(0);
    let number = acts(&mut scenario, "a");
    scenario.end(number, Outcome::Done);
    scenario.refuse(ErrorCode::TimedOut);
    scenario.effects();
    scenario.receive(Input::Ended);
    assert!(!scenario.run.is_recorded());
    scenario.refuse(ErrorCode::TimedOut);
    assert!(scenario.run.is_recorded(), "not a second time: the term does not last for that");
}

fn replaced(scenario: &mut Scenario, action: Action) {
    scenario.change_view(|view| {
        let definition = view.definition.as_mut().unwrap();
        (definition.digest, definition.action) = ("e".into(), action);
    });
}

/// The gate leads to the former definition, and is taken on to the new one before the record.
fn recorded_under_the_new_definition(scenario: &mut Scenario) {
    scenario.grant(GateStep::Work, true);
    let recorded = scenario.effects.iter().find_map(|effect| match effect {
        Effect::Record { digest, .. } => Some(digest.as_str()),
        _ => None,
    });
    assert_eq!(recorded, Some("e"));
    scenario.records("a");
    acts(scenario, "b");
}

#[test]
fn steps_that_are_appended_do_not_interrupt_the_one_that_runs() {
    let mut scenario = after(0);
    let number = acts(&mut scenario, "a");
    replaced(&mut scenario, of_steps(&["a", "b", "c", "d"]));
    scenario.nothing();
    scenario.end(number, Outcome::Done);
    recorded_under_the_new_definition(&mut scenario);
}

/// It is not run as it was any more, but has been: by its digest it is the same.
#[test]
fn a_step_that_ended_when_its_command_changed_counts() {
    for outcome in [Outcome::Done, Outcome::Failed("signal 15".into())] {
        let mut scenario = after(0);
        let number = acts(&mut scenario, "a");
        let Action::Chain(mut steps) = chain() else { unreachable!() };
        steps[0].command.argv.push("--verbose".into());
        replaced(&mut scenario, Action::Chain(steps));
        assert_eq!(scenario.only(), Effect::Cancel { number });
        scenario.end(number, outcome.clone());
        if outcome == Outcome::Done {
            recorded_under_the_new_definition(&mut scenario);
        } else {
            scenario.grant(GateStep::Work, true);
            scenario.pass(5_000);
            acts(&mut scenario, "a");
        }
    }
}

#[test]
fn a_step_with_another_digest_does_not_count() {
    let mut scenario = after(0);
    let number = acts(&mut scenario, "a");
    let Action::Chain(mut steps) = chain() else { unreachable!() };
    steps[0].digest = "other".into();
    replaced(&mut scenario, Action::Chain(steps));
    assert_eq!(scenario.only(), Effect::Cancel { number });
    scenario.end(number, Outcome::Done);
    scenario.grant(GateStep::Work, true);
    scenario.pass(5_000);
    acts(&mut scenario, "a");
}

#[test]
fn steps_that_are_appended_during_a_record_repeat_none() {
    let mut scenario = after(0);
    let number = acts(&mut scenario, "a");
    scenario.end(number, Outcome::Done);
    replaced(&mut scenario, of_steps(&["a", "b", "c", "d"]));
    scenario.refuse(ErrorCode::Conflict); // of the former definition
    scenario.unchanged_view();
    recorded_under_the_new_definition(&mut scenario);
}

/// Deleted, and applied: nothing is on record, and the definition has another revision.
fn deleted_and_applied(view: &mut RunnerView) {
    view.gate = GateView { epoch: view.gate.epoch, readable: false, ..GateView::default() };
    (view.steps_done, view.path) = (0, Some(GatePath::First.into()));
    view.definition.as_mut().unwrap().revision = view.revision;
}

/// What has run is forgotten, and the definition is the same. Also the first step, of which nothing was on record.
#[test]
fn a_chain_that_is_deleted_and_applied_begins_again() {
    for steps_done in [0, 1] {
        let mut scenario = after(steps_done);
        let number = acts(&mut scenario, ["a", "b"][steps_done]);
        scenario.change_view(deleted_and_applied);
        scenario.nothing();
        scenario.end(number, Outcome::Done);
        let number = acts(&mut scenario, "a");
        scenario.end(number, Outcome::Done);
        let defined = scenario.view.definition.as_ref().unwrap().revision;
        assert!(
            scenario
                .effects
                .iter()
                .any(|effect| matches!(effect, Effect::Record { defined: of, .. } if *of == defined))
        );
        scenario.records("a");
        acts(&mut scenario, "b");
    }

    // All had run, and the gate was to be completed.
    let mut scenario = after(3);
    scenario.refuse(ErrorCode::Conflict);
    scenario.change_view(deleted_and_applied);
    let (_, work) = scenario.acts();
    assert_eq!((work.step.map(|step| step.name).as_deref(), work.attempt), (Some("a"), 1));
}

/// The record of the first step was on its way, and is refused.
#[test]
fn a_chain_deleted_and_applied_during_a_record_begins_again() {
    let mut scenario = after(0);
    let number = acts(&mut scenario, "a");
    scenario.end(number, Outcome::Done);
    scenario.change_view(deleted_and_applied);
    scenario.refuse(ErrorCode::Conflict);
    scenario.unchanged_view();
    acts(&mut scenario, "a");
}

/// The gate was taken on before the deletion, which the view shows already.
#[test]
fn a_step_of_the_gate_from_before_a_deletion_begins_nothing() {
    let mut scenario = Scenario::new(chain(), GatePath::Open);
    scenario.view.definition.as_mut().unwrap().settle_ms = 0;
    scenario.change_view(|view| view.steps_done = 1);
    let Effect::Step { number, epoch, .. } = scenario.only() else { panic!("it requests no step") };
    scenario.change_view(deleted_and_applied);
    let paused = HoldView { reason: HoldReason::Paused.into(), message: "m".into() };
    scenario.change_view(|view| (view.hold, view.path) = (Some(paused), None));
    let stepped = Stepped { epoch: epoch + 1, revision: Revision(42) };
    scenario.receive(Input::Stepped { number, result: Ok(stepped) });
    scenario.nothing();
    scenario.is("paused", "paused");
}

/// With more steps: the second one does not carry over, because the first is not on record any more.
#[test]
fn a_longer_chain_applied_after_a_deletion_begins_again() {
    let mut scenario = after(1);
    let number = acts(&mut scenario, "b");
    scenario.change_view(|view| {
        deleted_and_applied(view);
        let definition = view.definition.as_mut().unwrap();
        (definition.digest, definition.action) = ("e".into(), of_steps(&["a", "b", "c", "d"]));
    });
    assert_eq!(scenario.only(), Effect::Cancel { number });
    scenario.end(number, Outcome::Done);
    acts(&mut scenario, "a");
}
