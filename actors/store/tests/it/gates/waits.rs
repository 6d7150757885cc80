//! Conditions between waves, as the log judges them.

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
    // A runner that lies about the wave, or asks late or twice, is told the same.
    let second = world.apply("1.0.0", term, "second", true);
    for _ in 0..2 {
        assert!(why(world.refused(second.clone())).contains("the object does not exist"));
    }
    let deletion = world.apply("1.0.0", term, "left-over", false);
    assert!(why(world.refused(deletion.clone())).contains("what follows wave 0 waits until /status/phase"));
    put(&mut world, "warm-up", r#"{"status":{"phase":"running"}}"#);
    assert!(why(world.refused(second.clone())).contains("it is \"running\""));
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
    assert!(why(world.refused(second.clone())).contains("too large to look into"));
    put(&mut world, "warm-up", &body(16 * 1024));
    world.must(second);
}
