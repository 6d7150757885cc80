use muster_messages::Revision;

use super::*;

const OWN: &str = "2.0.0";

fn release(text: &str) -> Release {
    text.parse().unwrap()
}
fn triple(text: &str) -> Triple {
    release(text).triple
}
/// The definitions of a release: a name and its scope, if the manager names scopes.
fn definitions(names: &[(&str, Option<&str>)]) -> Definitions {
    Definitions {
        revision: Revision(1),
        items: names.iter().map(|(name, _)| ((*name).to_owned(), "digest".to_owned())).collect(),
        scopes: names.iter().filter_map(|(name, scope)| Some(((*name).to_owned(), (*scope)?.to_owned()))).collect(),
    }
}
fn started(name: &str, release_of: &str) -> Effect {
    Effect::Start { name: name.to_owned(), release: release(release_of) }
}
fn stopped(name: &str) -> Effect {
    Effect::Stop(name.to_owned())
}

struct World {
    core: Groups,
    declared: Declared,
    retiring: bool,
}

impl World {
    /// A process of release 2.0.0 that applies objects, and has a handler named `own`.
    fn new() -> Self {
        let handlers = BTreeSet::from(["own".to_owned()]);
        let core = Groups::new(Abilities { release: release(OWN), handlers, others: true });
        let mut world = Self { core, declared: Declared::default(), retiring: false };
        assert_eq!(world.step(Input::Declared), [Effect::Watch(triple(OWN))]);
        world
    }
    fn step(&mut self, input: Input) -> Vec<Effect> {
        let mut out = Vec::new();
        self.core.step(Facts { declared: &self.declared, retiring: self.retiring }, input, &mut out);
        out
    }
    fn defined(&mut self, of: &str, names: &[(&str, Option<&str>)]) -> Vec<Effect> {
        self.step(Input::Definitions(triple(of), Ok(definitions(names))))
    }
    fn declare(&mut self, scope: &str, of: Option<&str>) -> Vec<Effect> {
        self.declared.scopes.insert(scope.to_owned(), of.map(release));
        self.step(Input::Declared)
    }
}

#[test]
fn group_runs_while_its_release_defines_it() {
    let mut world = World::new();
    assert_eq!(world.defined(OWN, &[("a", Some("db")), ("b", None)]), [started("a", OWN), started("b", OWN)]);
    assert_eq!(world.defined(OWN, &[("a", Some("db")), ("b", None)]), []);
    assert_eq!(world.defined(OWN, &[("b", None)]), [stopped("a")]);
    assert_eq!(world.defined(OWN, &[("b", None)]), [], "it is stopped once");
    // It is needed again, and starts when the former one has ended.
    assert_eq!(world.defined(OWN, &[("a", Some("db")), ("b", None)]), []);
    assert_eq!(world.step(Input::Stopped("a".to_owned())), [started("a", OWN)]);
}

#[test]
fn reconciler_runs_as_the_release_of_its_scope() {
    let mut world = World::new();
    world.defined(OWN, &[("shop", Some("shop")), ("mail", Some("mail"))]);
    // The scope has a release of its own, so the definition for the release of the process does not count.
    assert_eq!(world.declare("shop", Some("1.0.0")), [Effect::Watch(triple("1.0.0")), stopped("shop")]);
    assert_eq!(world.step(Input::Stopped("shop".to_owned())), []);
    assert_eq!(
        world.defined("1.0.0", &[("shop", Some("shop")), ("mail", Some("mail"))]),
        [started("shop", "1.0.0")],
        "mail has no declaration"
    );
    let moved = [Effect::Unwatch(triple("1.0.0")), Effect::Watch(triple("1.1.0")), stopped("shop")];
    assert_eq!(world.declare("shop", Some("1.1.0")), moved);
    assert_eq!(world.defined("1.0.0", &[("shop", Some("shop"))]), [], "it is not watched any more");
    assert_eq!(world.defined("1.1.0", &[("shop", Some("shop"))]), [], "the former group has not ended");
    assert_eq!(world.step(Input::Stopped("shop".to_owned())), [started("shop", "1.1.0")]);
    assert_eq!(world.declare("shop", None), [Effect::Unwatch(triple("1.1.0")), stopped("shop")]);
}

/// DECLARE-2.
#[test]
fn nothing_runs_as_own_release_while_declarations_are_in_doubt() {
    let mut world = World::new();
    world.declared.incomplete = true;
    assert_eq!(world.defined(OWN, &[("a", Some("db"))]), []);
    world.declared.incomplete = false;
    assert_eq!(world.step(Input::Declared), [started("a", OWN)]);
}

#[test]
fn process_runs_only_what_it_has_an_action_for() {
    let mut world = World::new();
    let names = [("a", None), ("own", None), (LEVEL_RECONCILER, None)];
    assert_eq!(world.defined(OWN, &names), [started("a", OWN), started("own", OWN)]);
    world.core.abilities.others = false;
    assert_eq!(world.defined(OWN, &names), [stopped("a")], "only its handler");
    world.core.abilities.handlers.insert(LEVEL_RECONCILER.to_owned());
    assert_eq!(world.defined(OWN, &names), [started(LEVEL_RECONCILER, OWN)], "the managers' own");
}

#[test]
fn unreadable_definitions_stop_nothing() {
    let mut world = World::new();
    world.defined(OWN, &[("a", None)]);
    assert_eq!(world.step(Input::Definitions(triple(OWN), Err("no leader".to_owned()))), []);
    assert_eq!(world.core.trouble().map(String::as_str), Some("no leader"));
    assert_eq!(world.defined(OWN, &[("a", None)]), []);
    assert_eq!((world.core.trouble(), world.core.running().count()), (None, 1));
}

#[test]
fn retiring_process_ends_all_groups_and_starts_none() {
    let mut world = World::new();
    world.defined(OWN, &[("a", None)]);
    world.retiring = true;
    assert_eq!(world.defined(OWN, &[("a", None), ("b", None)]), [stopped("a")], "before the message about it");
    assert_eq!(world.step(Input::Retire), []);
    assert_eq!(world.step(Input::Stopped("a".to_owned())), [Effect::Retired]);
}
