//! Chains, definitions for later releases, and records of runs: from `DEFINITIONS_LEVEL` on.

use std::sync::Arc;

use muster_store::bugs::{self, BugInjection};
use muster_store::invariants::{RELEASE_10, RELEASE_11, check};

use super::*;

fn step(name: &str, content: &str) -> ChainStep {
    let command = CommandAction { argv: vec!["/opt/shop/migrate".to_owned(), name.to_owned()], env: BTreeMap::new() };
    ChainStep { name: name.to_owned(), command, digest: content.to_owned() }
}

/// A chain of steps, each `NAME` or `NAME=CONTENT`.
pub(super) fn chain(of: &str, steps: &[&str]) -> Definition {
    let step = |text: &&str| {
        let (name, content) = text.split_once('=').unwrap_or((text, "first"));
        step(name, content)
    };
    let action = Action::Chain(steps.iter().map(step).collect());
    let digest = format!("chain-of-{of}-{}", steps.join("-"));
    Definition { action, digest, ..definition(of, "1.0.0") }
}

fn define(definition: &Definition) -> ReconcilerChange {
    ReconcilerChange::Define { definition: Box::new(definition.clone()), replace: true }
}

pub(super) fn run(term: FencingToken, of_term: u64, output: &str) -> RunRecord {
    RunRecord {
        reconciler: NAME.to_owned(),
        number: 0,
        term,
        of_term,
        attempt: 1,
        node: id(1),
        release: release("1.0.0"),
        step: None,
        began: T0,
        ran_for_ms: None,
        exit: None,
        outcome: RunOutcome::Running,
        head: output.to_owned(),
        tail: output.to_owned(),
        revision: Revision(0),
    }
}

fn ended(run: &RunRecord) -> RunRecord {
    let exit = RunExit { status: Some(1), signal: None, text: "exited with 1".to_owned() };
    RunRecord { ran_for_ms: Some(700), exit: Some(exit), outcome: RunOutcome::Failed, ..run.clone() }
}

fn record(run: &RunRecord) -> ReconcilerChange {
    ReconcilerChange::RecordRun(Box::new(run.clone()))
}

impl Gated {
    fn recording() -> Self {
        Self(World::founded_at(DEFINITIONS_LEVEL))
    }
    /// A step of the definition of this release, as it is there now.
    fn done(&self, definition: &Definition, term: FencingToken, step: &str) -> ReconcilerChange {
        let (reconciler, step) = (NAME.to_owned(), step.to_owned());
        let (release, digest) = (definition.release.triple, definition.digest.clone());
        let defined = self.all().definitions.get(&definition.key()).map(|d| d.revision).unwrap_or_default();
        ReconcilerChange::StepDone { reconciler, release, digest, defined, term, step }
    }
    fn ran(&self) -> Vec<String> {
        let chain = self.0.tables.records.chains.get(NAME);
        chain.iter().flat_map(|chain| &chain.steps).map(|step| format!("{} by {}", step.name, step.release)).collect()
    }
    fn runs_kept(&self) -> Vec<(u64, RunOutcome)> {
        let runs = self.0.tables.records.runs.get(NAME);
        runs.iter().flat_map(|runs| &runs.runs).map(|run| (run.number, run.outcome)).collect()
    }
    /// Applies what a chain still lacks; the steps that ran.
    fn carries_out(&mut self, definition: &Definition, term: FencingToken) -> usize {
        let Action::Chain(steps) = definition.action.clone() else { panic!("a chain") };
        let of = definition.release.to_string();
        if self.all().gates.contains_key(NAME) {
            self.steps(&of, term, GateStep::Work);
        }
        let from = self.0.tables.records.steps_done(NAME);
        let missing = steps.get(from..).unwrap_or_default();
        for step in missing {
            let done = self.done(definition, term, &step.name);
            self.must(done);
        }
        self.steps(&of, term, GateStep::Complete);
        missing.len()
    }
}

/// Everything that this level has, as a state.
pub fn full() -> Tables {
    let mut world = Gated::recording();
    fill(&mut world);
    world.0.tables
}

/// The same, as commands that follow a log.
pub fn commands(tables: Tables) -> Vec<Command> {
    fill(&mut Gated(World { tables }))
}

fn fill(world: &mut Gated) -> Vec<Command> {
    let mut commands = Vec::new();
    let acquire = Change::AcquireLease {
        key: runner_lease(NAME),
        holder: "n1".to_owned(),
        session: SessionId(1),
        duration_ms: 15_000,
        uid: Uid(1),
    };
    let options = DefinitionOptions {
        applies: Applies::OrLater,
        timing: DefinitionTiming { lease_ms: Some(3000), hold_ms: Some(300_000), resign_pause_ms: None },
        wave_conditions: vec![WaveCondition {
            wave: 1,
            key: object("t").key,
            path: "/status/ready".to_owned(),
            equals: "true".to_owned(),
        }],
        placement: Placement { node_selector: [("zone".to_owned(), "a".to_owned())].into() },
        command: CommandOptions {
            user: Some("shop".to_owned()),
            directory: Some("/opt/shop".to_owned()),
            env_files: vec!["/etc/shop/env".to_owned()],
            limits: CommandLimits { memory_bytes: Some(1 << 28), ..CommandLimits::default() },
        },
    };
    let definition = Definition { options, ..chain("1.0.0", &["a", "b"]) };
    let mut apply = |world: &mut Gated, change: Change| {
        let command = command([change]);
        world.0.must(command.clone());
        commands.push(command);
    };
    apply(world, Change::Reconciler(define(&definition)));
    apply(world, acquire);
    let term = world.0.tables.objects[&runner_lease(NAME)].lease().unwrap().holding.token;
    let first = run(term, 1, "step a\n");
    for change in
        [record(&first), record(&ended(&first)), record(&run(term, 2, "")), world.done(&definition, term, "a")]
    {
        apply(world, Change::Reconciler(change));
    }
    commands
}

/// RELEASE-10: three migrations over three releases, and a node that was off for two of them.
#[test]
fn each_step_of_a_chain_runs_once_over_releases() {
    let mut world = Gated::recording();
    let releases = [chain("1.0.0", &["a"]), chain("1.1.0", &["a", "b"]), chain("1.2.0", &["a", "b", "c"])];
    world.must(define(&releases[0]));
    let first = world.runs("n1", 1);
    assert_eq!(world.carries_out(&releases[0], first), 1);
    // The releases 1.1.0 and 1.2.0 come while no node runs anything.
    world.must(define(&releases[1]));
    world.must(define(&releases[2]));
    world.expires(runner_lease(NAME));
    let second = world.runs("n2", 2);
    assert_eq!(world.carries_out(&releases[2], second), 2, "only what is missing, in order");
    assert_eq!(world.ran(), ["a by 1.0.0", "b by 1.2.0", "c by 1.2.0"]);
    assert_eq!(world.all().gates[NAME].now.reconciled, release("1.2.0"));
    // A late report of the first runner, and a repeated one of the second.
    assert!(matches!(world.refused(world.done(&releases[1], first, "b")), CommandRefusal::Stale { .. }));
    let before = world.ran();
    world.must(world.done(&releases[2], second, "c"));
    assert_eq!(world.ran(), before);
}

/// RELEASE-10.
#[test]
fn a_chain_is_complete_only_once_every_step_has_run() {
    let mut world = Gated::recording();
    let definition = chain("1.0.0", &["a", "b"]);
    world.must(define(&definition));
    let term = world.runs("n1", 1);
    let complete = world.step("1.0.0", term, GateStep::Complete);
    assert!(world.refused(complete.clone()).to_string().contains("step a of schema has not run"));
    assert!(world.refused(world.done(&definition, term, "b")).to_string().contains("is not the next one: a"));
    assert!(matches!(world.refused(world.done(&definition, term, "x")), CommandRefusal::NotFound { .. }));
    world.must(world.done(&definition, term, "a"));
    assert!(world.refused(complete.clone()).to_string().contains("step b of schema has not run"));
    world.must(world.done(&definition, term, "b"));
    world.must(complete);
}

/// RELEASE-10: of the chain that is there, not of the one with the same content that was deleted.
#[test]
fn a_step_that_ran_before_a_deletion_is_not_recorded() {
    let mut world = Gated::recording();
    let definition = chain("1.0.0", &["a"]);
    world.must(define(&definition));
    let term = world.runs("n1", 1);
    let late = world.done(&definition, term, "a");
    world.must(ReconcilerChange::Forget { reconciler: NAME.to_owned() });
    world.must(define(&definition));
    let refusal = world.refused(late);
    assert!(
        matches!(refusal, CommandRefusal::Stale { .. }) && refusal.to_string().contains("applied again"),
        "{refusal}"
    );
    let again = world.done(&definition, term, "a");
    world.must(again);
    assert_eq!(world.ran(), ["a by 1.0.0"]);
}

/// RELEASE-10.
#[test]
fn unfinished_or_forgotten_chain_is_found_by_its_check() {
    bugs::set(Some(BugInjection::CompleteUnfinishedChains));
    let mut world = Gated::recording();
    world.must(define(&chain("1.0.0", &["a"])));
    let term = world.runs("n1", 1);
    let before = world.0.tables.clone();
    world.0.must(change(world.step("1.0.0", term, GateStep::Complete)));
    bugs::set(None);
    assert_eq!(check_step(&before, &world.0.tables).unwrap_err().name, RELEASE_10);
    let before = full();
    let mut after = before.clone();
    after.revision = before.revision.next();
    assert_eq!(check_step(&before, &after), Ok(()));
    after.records.chains.clear();
    assert_eq!(check_step(&before, &after).unwrap_err().name, RELEASE_10);
}

/// RELEASE-11.
#[test]
fn two_runs_of_one_number_are_found_by_their_check() {
    let mut tables = full();
    assert_eq!(check(&tables), Ok(()));
    let runs = Arc::make_mut(tables.records.runs.get_mut(NAME).unwrap());
    let twice = runs.runs.back().unwrap().clone();
    runs.runs.push_back(twice);
    assert_eq!(check(&tables).unwrap_err().name, RELEASE_11);
}

#[test]
fn a_step_that_has_run_keeps_its_content_and_its_place() {
    let mut world = Gated::recording();
    let first = chain("1.0.0", &["a", "b"]);
    // Brought before anything has run: found when it would be applied.
    world.must(define(&chain("1.5.0", &["a", "b=other", "c"])));
    world.must(define(&first));
    let term = world.runs("n1", 1);
    world.carries_out(&first, term);
    let held = |refusal: CommandRefusal| match refusal {
        CommandRefusal::Held(hold @ Hold::StepChanged { .. }) => hold.to_string(),
        other => panic!("{other:?}"),
    };
    let text = held(world.refused(define(&chain("2.0.0", &["a=other", "b"]))));
    assert!(text.contains("step a ran with the definition of 1.0.0") && text.contains("different content"), "{text}");
    let text = held(world.refused(define(&chain("2.0.0", &["a", "new", "b"]))));
    assert!(text.contains("step b ran with") && text.contains("has step new in its place"), "{text}");
    assert!(matches!(world.way("1.5.0"), Err(Hold::StepChanged { .. })));
    let step = world.step("1.5.0", term, GateStep::Work);
    held(world.refused(step));
    world.must(define(&chain("2.0.0", &["a", "b", "c"])));
    assert_eq!(world.way("2.0.0"), Ok(GatePath::Open));
    world.must(define(&chain("0.9.0", &["a"])));
    // Everything about it, also what has run.
    world.must(ReconcilerChange::Forget { reconciler: NAME.to_owned() });
    assert_eq!(world.0.tables.records, ReconcilerRecords::default());
}

#[test]
fn the_newest_definition_decides_whether_it_applies_later() {
    let mut world = Gated::recording();
    let or_later = |of: &str| {
        let options = DefinitionOptions { applies: Applies::OrLater, ..DefinitionOptions::default() };
        Definition { options, digest: format!("or-later-{of}"), ..definition(of, "1.0.0") }
    };
    world.must(define(&or_later("1.0.0")));
    world.must(define(&definition("2.0.0", "1.0.0")));
    let of = |release: &str| {
        let found = world.all().definition_for(NAME, triple(release));
        found.map_or("none".to_owned(), |definition| definition.release.to_string())
    };
    for (release, definition) in
        [("0.9.0", "none"), ("1.0.0", "1.0.0"), ("1.0.1", "1.0.0"), ("2.0.0", "2.0.0"), ("2.0.1", "none")]
    {
        assert_eq!(of(release), definition, "{release}");
    }
}

#[test]
fn nothing_of_it_is_accepted_below_its_level() {
    let mut world = Gated(World::founded_at(DEFINITIONS_LEVEL - 1));
    let needs = |refusal: CommandRefusal| match refusal {
        CommandRefusal::FeatureLevel { needs, .. } => needs,
        other => panic!("{other:?}"),
    };
    let options = DefinitionOptions { applies: Applies::OrLater, ..DefinitionOptions::default() };
    let with_options = Definition { options, ..definition("1.0.0", "1.0.0") };
    for definition in [&chain("1.0.0", &["a"]), &with_options] {
        assert_eq!(needs(world.refused(define(definition))), DEFINITIONS_LEVEL);
    }
    let term = world.applied("1.0.0", "1.0.0");
    assert_eq!(needs(world.refused(world.done(&definition("1.0.0", "1.0.0"), term, "a"))), DEFINITIONS_LEVEL);
    assert_eq!(needs(world.refused(record(&run(term, 1, "")))), DEFINITIONS_LEVEL);
}

/// RELEASE-11.
#[test]
fn a_run_is_recorded_once_and_only_in_its_own_term() {
    let mut world = Gated::recording();
    let term = world.applied("1.0.0", "1.0.0");
    let first = run(term, 1, "one");
    world.must(record(&first));
    let there = world.0.tables.records.clone();
    world.must(record(&first));
    assert_eq!(world.0.tables.records, there, "repeated");
    world.must(record(&ended(&first)));
    world.must(record(&run(term, 2, "two")));
    assert_eq!(world.runs_kept(), [(1, RunOutcome::Failed), (2, RunOutcome::Running)]);
    // A repeated beginning that comes after the end, and another end.
    for late in [first.clone(), RunRecord { outcome: RunOutcome::Done, ..ended(&first) }] {
        world.must(record(&late));
        assert_eq!(world.runs_kept(), [(1, RunOutcome::Failed), (2, RunOutcome::Running)]);
    }
    world.expires(runner_lease(NAME));
    assert!(matches!(world.refused(record(&ended(&run(term, 2, "two")))), CommandRefusal::Stale { .. }));
    let next = world.runs("n2", 2);
    world.must(record(&run(next, 1, "three")));
    assert_eq!(world.runs_kept().last(), Some(&(3, RunOutcome::Running)), "another term's first");
}

/// RELEASE-11.
#[test]
fn only_the_last_runs_and_the_ends_of_outputs_are_kept() {
    let mut world = Gated::recording();
    let term = world.applied("1.0.0", "1.0.0");
    let long = format!("{}€{}", "a".repeat(MAX_RUN_TEXT_BYTES - 1), "b".repeat(2 * MAX_RUN_TEXT_BYTES));
    for n in 1..=(MAX_RUNS as u64 + 5) {
        world.must(record(&run(term, n, &long)));
    }
    let kept = world.runs_kept();
    assert_eq!((kept.len(), kept[0].0, kept[MAX_RUNS - 1].0), (MAX_RUNS, 6, MAX_RUNS as u64 + 5));
    world.must(record(&ended(&run(term, 1, "late"))));
    assert_eq!(world.runs_kept(), kept, "it was on record, and is not a new run");
    let runs = &world.0.tables.records.runs[NAME];
    let last = runs.runs.back().unwrap();
    assert_eq!(
        (last.head.as_str(), last.tail.as_str()),
        (&*"a".repeat(MAX_RUN_TEXT_BYTES - 1), &*"b".repeat(MAX_RUN_TEXT_BYTES))
    );
}

/// RELEASE-11: of all reconcilers together, the oldest runs are deleted first.
#[test]
fn the_runs_of_all_reconcilers_stay_below_their_limit() {
    let mut world = Gated::recording();
    let text = "x".repeat(MAX_RUN_TEXT_BYTES);
    let mut n = 0;
    while world.0.tables.records.run_bytes() + 4096 < MAX_RUN_BYTES || n < 80 {
        n += 1;
        let name = format!("r{n}");
        let definition = Definition { reconciler: name.clone(), ..definition("1.0.0", "1.0.0") };
        world.must(define(&definition));
        let term = world.acquire(&runner_lease(&name), "n1", 1);
        for of_term in 1..=MAX_RUNS as u64 {
            world.must(record(&RunRecord { reconciler: name.clone(), ..run(term, of_term, &text) }));
        }
    }
    let records = &world.0.tables.records;
    assert!(records.run_bytes() <= MAX_RUN_BYTES);
    let kept = |name: &str| records.runs[name].runs.iter().map(|run| run.number).collect::<Vec<_>>();
    assert!(kept("r1").len() < MAX_RUNS, "{:?}", kept("r1"));
    assert!(kept("r1").first().is_none_or(|first| *first > 1), "its oldest are deleted: {:?}", kept("r1"));
    assert_eq!(kept(&format!("r{n}")).len(), MAX_RUNS);
}
