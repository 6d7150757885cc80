//! Conditions between waves, as the log judges them.

use muster_store::bugs::{self, BugInjection};
use muster_store::invariants::RELEASE_12;

use super::*;

fn waiting(conditions: &[(u32, &str)]) -> Definition {
    let mut objects = vec![object("first"), object("second")];
    objects[1].wave = 2;
    let usual = Definition::new(NAME, release("1.0.0"), SCOPE, triple("1.0.0"), Action::Objects(objects));
    let condition = |(wave, name): &(u32, &str)| WaveCondition {
        wave: *wave,
        key: object(name).key,
        path: "/status/phase".to_owned(),
        equals: "\"done\"".to_owned(),
    };
    let wave_conditions = conditions.iter().map(condition).collect();
    let options = DefinitionOptions { wave_conditions, ..DefinitionOptions::default() };
    Definition { digest: "waits".to_owned(), options, ..usual }
}

/// A world at the newest level with this definition and its runner.
fn world(definition: Definition) -> (Gated, FencingToken) {
    let mut world = Gated(World::founded_at(DEFINITIONS_LEVEL));
    world.must(ReconcilerChange::Define { definition: Box::new(definition), replace: false });
    let term = world.runs("n1", 1);
    (world, term)
}

fn put(world: &mut Gated, name: &str, body: &str) {
    let object = DesiredObject { body: body.to_owned(), ..object(name) };
    world.must(ReconcilerChange::PutObject(Box::new(object)));
}

fn why(refusal: CommandRefusal) -> String {
    let CommandRefusal::Stale { .. } = refusal else { panic!("{refusal:?}") };
    refusal.to_string()
}

/// RELEASE-12.
#[test]
fn later_wave_is_written_only_once_its_condition_holds() {
    let (mut world, term) = world(waiting(&[(0, "warm-up")]));
    put(&mut world, "left-over", "{}");
    let first = world.apply("1.0.0", term, "first", true);
    world.must(first);
    // A wrong wave, a late request and a repeated one are refused alike.
    let second = world.apply("1.0.0", term, "second", true);
    for _ in 0..2 {
        assert!(why(world.refused(second.clone())).contains("the object does not exist"));
    }
    let deletion = world.apply("1.0.0", term, "left-over", false);
    assert!(why(world.refused(deletion.clone())).contains("what follows wave 0 waits until /status/phase"));
    put(&mut world, "warm-up", r#"{"status":{"phase":"running"}}"#);
    assert!(why(world.refused(second.clone())).contains("its value is \"running\""));
    put(&mut world, "warm-up", r#"{"status":{"phase":"done"}}"#);
    world.must(second.clone());
    world.must(deletion);
    // What holds no longer stops later writes, and those of the first wave never.
    put(&mut world, "warm-up", r#"{"status":{"phase":"running"}}"#);
    put(&mut world, "first", r#"{"drifted":true}"#);
    why(world.refused(second));
    let first = world.apply("1.0.0", term, "first", true);
    world.must(first);
}

#[test]
fn deletions_wait_for_the_conditions_of_the_last_wave() {
    let (mut world, term) = world(waiting(&[(2, "warm-up")]));
    let (second, deletion) = (world.apply("1.0.0", term, "second", true), world.apply("1.0.0", term, "gone", false));
    world.must(second);
    why(world.refused(deletion.clone()));
    put(&mut world, "warm-up", r#"{"status":{"phase":"done"}}"#);
    world.must(deletion);
}

/// Each manager looks at each write: an object of which only a few words count must not be megabytes.
#[test]
fn condition_on_a_large_object_is_unmet_and_says_so() {
    let (mut world, term) = world(waiting(&[(0, "warm-up")]));
    let body = |bytes: usize| {
        let padding = "x".repeat(bytes - r#"{"status":{"phase":"done"},"text":""}"#.len());
        format!(r#"{{"status":{{"phase":"done"}},"text":"{padding}"}}"#)
    };
    let second = world.apply("1.0.0", term, "second", true);
    put(&mut world, "warm-up", &body(16 * 1024 + 1));
    assert!(why(world.refused(second.clone())).contains("too large to be read"));
    put(&mut world, "warm-up", &body(16 * 1024));
    world.must(second);
}

/// RELEASE-12.
#[test]
fn write_before_its_condition_is_found_by_its_check() {
    for (wave_conditions, name, is_found) in
        [(&[(0, "warm-up")], "first", false), (&[(0, "warm-up")], "second", true), (&[(2, "warm-up")], "second", false)]
    {
        bugs::set(Some(BugInjection::IgnoreWaveConditions));
        let (mut world, term) = world(waiting(wave_conditions));
        let before = world.0.tables.clone();
        world.0.must(change(world.apply("1.0.0", term, name, true)));
        bugs::set(None);
        let found = check_step(&before, &world.0.tables).err().map(|broken| broken.name);
        assert_eq!(found, is_found.then_some(RELEASE_12), "{name} after {wave_conditions:?}");
    }
}
