//! Chains: which steps are carried out, in which order, and when each is recorded.

use muster_messages::{Action, ChainStep, CommandAction, ErrorCode, GatePath, GateStep};

use super::scenario::Scenario;
use super::*;

fn chain() -> Action {
    let step = |name: &str| ChainStep {
        name: name.to_owned(),
        command: CommandAction { argv: vec![name.to_owned()], env: Default::default() },
        digest: name.to_owned(),
    };
    Action::Chain(["a", "b", "c"].map(step).into())
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
    while scenario.effects.iter().all(|effect| !matches!(effect, Effect::Act { .. })) {
        scenario.pass(100);
        scenario.effects.retain(|effect| !matches!(effect, Effect::Log(_)));
    }
    acts(&mut scenario, "a");
}

#[test]
fn a_step_whose_record_is_lost_is_recorded_and_not_repeated() {
    let mut scenario = after(0);
    let number = acts(&mut scenario, "a");
    scenario.end(number, Outcome::Done);
    scenario.refuse(ErrorCode::TimedOut);
    while scenario.effects.iter().all(|effect| !matches!(effect, Effect::Record { .. })) {
        scenario.pass(100);
        scenario.effects.retain(|effect| !matches!(effect, Effect::Log(_)));
    }
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
    while scenario.effects.iter().all(|effect| !matches!(effect, Effect::Act { .. })) {
        scenario.pass(100);
        scenario.effects.retain(|effect| !matches!(effect, Effect::Log(_)));
    }
    acts(&mut scenario, "b");
}
