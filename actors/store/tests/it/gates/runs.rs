//! What outlasts a runner, and the gate that an operator deletes: from `RUNS_LEVEL` on.

use super::*;

/// A progress report of the runner on node 1.
fn progress(term: FencingToken, failures: u32, phase: ReconcilerPhase) -> Progress {
    Progress {
        term,
        phase: phase.into(),
        consecutive_failures: failures,
        last_error: (failures > 0).then(|| "the command exited with 1".to_owned()),
        output: if failures > 0 { "step 1\nno such table: users\n\n".to_owned() } else { String::new() },
        ..(*super::full().reconcilers.progress[NAME]).clone()
    }
}

impl Gated {
    fn remembering() -> Self {
        Self(World::founded_at(RUNS_LEVEL))
    }
    fn reports(&mut self, term: FencingToken, failures: u32, phase: ReconcilerPhase) {
        self.must(ReconcilerChange::Progress(Box::new(progress(term, failures, phase))));
    }
    fn failure(&self) -> Option<LastFailure> {
        self.0.tables.runs.failures.get(NAME).map(|failure| (**failure).clone())
    }
    /// What the newest event says.
    fn last_event(&self) -> (Option<NodeId>, String) {
        let event = self.0.tables.last_event().unwrap();
        (event.node, event.after.clone().unwrap_or_default())
    }
    fn gives_up(&mut self, term: FencingToken, session: u128) {
        let (key, session) = (runner_lease(NAME), SessionId(session));
        self.0.must(command([Change::ReleaseLease { key, session, token: term }]));
    }
}

/// A state with a failure and a deleted gate.
pub fn full() -> Tables {
    let mut world = Gated::remembering();
    let term = world.applied("1.1.0", "1.0.0");
    world.reports(term, 3, ReconcilerPhase::Running);
    world.must(ReconcilerChange::DeleteGate { reconciler: NAME.to_owned() });
    world.0.tables
}

/// RELEASE-8.
#[test]
fn a_failure_is_remembered_across_terms_until_success() {
    use ReconcilerPhase::{Failed, Idle, Running};
    let mut world = Gated::remembering();
    world.define("1.1.0", "1.0.0");
    let first = world.runs("n1", 1);
    world.reports(first, 0, Running);
    assert_eq!(world.failure(), None);
    world.reports(first, 1, Running);
    let (node, text) = world.last_event();
    let is = "schema: 1.1.0 failed once, last on n1: the command exited with 1 (no such table: users)";
    assert_eq!((node, text.as_str()), (Some(id(1)), is));
    let events = world.0.tables.frequent_events.len();
    world.reports(first, 5, Running);
    assert_eq!(world.0.tables.frequent_events.len(), events, "one event for each term");
    world.gives_up(first, 1);
    assert!(!world.all().progress.contains_key(NAME), "progress ends with its term");
    let failure = world.failure().expect("the failure does not");
    assert_eq!((failure.failures, failure.of_term, failure.term), (5, 5, first));
    assert!(failure.output.contains("no such table"), "{failure:?}");

    let second = world.runs("n2", 2);
    world.reports(second, 0, Running);
    assert_eq!(world.failure().map(|f| f.failures), Some(5), "a new runner has not succeeded yet");
    world.reports(second, 2, Running);
    world.reports(second, 3, Failed);
    let failure = world.failure().unwrap();
    assert_eq!((failure.failures, failure.of_term, failure.permanent), (8, 3, true));
    assert!(world.last_event().1.contains("failed 8 times, until an operator retries"), "{:?}", world.last_event());
    world.reports(second, 0, Idle);
    assert_eq!(world.failure(), None);
    assert_eq!(world.last_event().1, "schema: 1.1.0 is applied");
    let events = world.0.tables.frequent_events.len();
    world.reports(second, 0, Idle);
    assert_eq!(world.0.tables.frequent_events.len(), events, "a success after another one causes no event");
}

#[test]
fn nothing_of_runs_is_recorded_below_its_level() {
    let mut world = Gated(World::founded_at(RUNS_LEVEL - 1));
    let term = world.applied("1.1.0", "1.0.0");
    world.reports(term, 3, ReconcilerPhase::Running);
    world.must(ReconcilerChange::DeleteGate { reconciler: NAME.to_owned() });
    assert_eq!(world.0.tables.runs, ReconcilerRuns::default());
}

#[test]
fn a_deleted_reconciler_leaves_no_failure_and_no_gate() {
    let mut world = Gated::remembering();
    let term = world.applied("1.1.0", "1.0.0");
    world.reports(term, 3, ReconcilerPhase::Running);
    world.must(ReconcilerChange::DeleteGate { reconciler: NAME.to_owned() });
    assert_eq!((world.0.tables.runs.failures.len(), world.0.tables.runs.deleted_gates.len()), (1, 1));
    world.must(ReconcilerChange::Forget { reconciler: NAME.to_owned() });
    assert_eq!(world.0.tables.runs, ReconcilerRuns::default());
}

fn manual(world: &mut Gated, of: &str, floor: &str) -> ReconcilerChange {
    let definition = Definition { finalize: Finalize::Manual, ..definition(of, floor) };
    let digest = definition.digest.clone();
    world.must(ReconcilerChange::Define { definition: Box::new(definition), replace: false });
    ReconcilerChange::Finalize { reconciler: NAME.to_owned(), digest }
}

/// RELEASE-9.
#[test]
fn finalize_is_refused_while_an_old_member_serves() {
    let mut world = Gated::remembering();
    let term = world.applied("1.0.0", "1.0.0");
    let finalize = manual(&mut world, "2.0.0", "2.0.0");
    let old = world.serve("old", 1, "1.0.0");
    let CommandRefusal::BlockedByMembers { blockers, in_all } = world.refused(finalize.clone()) else {
        panic!("it serves")
    };
    assert_eq!((blockers[0].member.as_str(), in_all), ("old", 1));
    world.must(ReconcilerChange::Leave(old));
    let restrict = world.step("2.0.0", term, GateStep::Restrict);
    let refusal = world.refused(restrict.clone());
    assert!(matches!(refusal, CommandRefusal::Held(Hold::ReadyToFinalize { .. })), "{refusal:?}");
    world.must(finalize);
    world.must(restrict);
}

/// RELEASE-9.
#[test]
fn an_old_member_that_is_admitted_withdraws_a_finalization() {
    let mut world = Gated::remembering();
    let term = world.applied("1.0.0", "1.0.0");
    let finalize = manual(&mut world, "2.0.0", "2.0.0");
    world.must(finalize.clone());
    world.serve("new", 1, "2.0.0");
    assert!(world.all().controls[NAME].finalized.is_some(), "a compatible member changes nothing");
    let old = world.serve("old", 2, "1.0.0");
    assert_eq!(world.all().controls[NAME].finalized, None);
    world.must(ReconcilerChange::Leave(old));
    let restrict = world.step("2.0.0", term, GateStep::Restrict);
    let refusal = world.refused(restrict);
    assert!(
        matches!(refusal, CommandRefusal::Held(Hold::ReadyToFinalize { .. })),
        "its end passes nothing: {refusal:?}"
    );
}

#[test]
fn history_of_a_deleted_gate_is_kept_and_repairs_it() {
    let mut world = Gated::remembering();
    let term = world.applied("1.0.0", "1.0.0");
    world.define("2.0.0", "2.0.0");
    world.steps("2.0.0", term, GateStep::Restrict);
    world.steps("2.0.0", term, GateStep::Complete);
    world.must(ReconcilerChange::DeleteGate { reconciler: NAME.to_owned() });
    let mut again = Gated(world.0.clone());
    let epochs = |world: &Gated| {
        let gate = &world.all().gates[NAME];
        gate.history.iter().chain([&gate.now]).map(|entry| entry.epoch).collect::<Vec<_>>()
    };
    let missing = world.refused(ReconcilerChange::Repair { reconciler: NAME.to_owned(), epoch: 9 });
    assert!(matches!(missing, CommandRefusal::NotFound { .. }), "{missing:?}");
    world.must(ReconcilerChange::Repair { reconciler: NAME.to_owned(), epoch: 3 });
    assert_eq!(world.gate(), (GateState::Done, "2.0.0".to_owned(), "2.0.0".to_owned()));
    assert_eq!(world.way("2.0.0"), Ok(GatePath::Reached), "what ran once is not run again");
    assert_eq!(epochs(&world), [1, 2, 3, 4]);
    assert_eq!(world.0.tables.runs, ReconcilerRuns::default());
    // Without a repair, the next run continues the history.
    again.steps("2.0.0", term, GateStep::Complete);
    assert_eq!(epochs(&again), [1, 2, 3, 4]);
    assert_eq!(again.0.tables.runs, ReconcilerRuns::default());
}

#[test]
fn history_names_the_epoch_of_a_runner_that_died() {
    let mut world = Gated::remembering();
    let first = world.applied("1.0.0", "1.0.0");
    world.define("1.1.0", "1.0.0");
    world.steps("1.1.0", first, GateStep::Work);
    world.expires(runner_lease(NAME));
    let second = world.runs("n2", 2);
    world.steps("1.1.0", second, GateStep::Work);
    let now = &world.all().gates[NAME].now;
    let why = format!("begun, after the runner of epoch 2, term {first}, had not completed it");
    assert_eq!((now.epoch, now.term, now.why.as_str()), (3, second, why.as_str()));
}
