//! The declared number of managers, as the state records it.

use muster_messages::*;

use crate::world::*;

fn step(step: AutopilotStep) -> Change {
    Change::Autopilot(Box::new(step))
}

fn declare(managers: u8, generation: u64) -> Change {
    let policy = AutopilotPolicy { generation: Generation(generation), ..AutopilotPolicy::new(managers) };
    step(AutopilotStep::Declare(Box::new(policy)))
}

fn begin(world: &World, action: AutopilotAction, n: u8) -> Change {
    let policy = world.tables.autopilot.policy.as_ref().map_or(Revision(0), |policy| policy.revision);
    step(AutopilotStep::Begin { policy, action, node: id(n), replaces: None, why: "3 of 5".to_owned() })
}
/// Why it may not begin.
fn stale_begin(world: &mut World, action: AutopilotAction, n: u8) -> String {
    let begins = own(begin(world, action, n));
    stale(world, begins)
}

fn end(number: u64, outcome: AutopilotOutcome) -> Change {
    step(AutopilotStep::End { number, outcome, why: "over".to_owned() })
}

/// By the cluster itself, as the autopilot writes.
fn own(change: Change) -> Command {
    Command { by: Principal::Cluster, ..command([change]) }
}

fn world() -> World {
    World::founded_at(AUTOPILOT_LEVEL).with([(2, Role::Manager), (3, Role::Manager), (4, Role::Worker)])
}

fn stale(world: &mut World, command: Command) -> String {
    match world.refused(command) {
        CommandRefusal::Stale { what } => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn declaration_is_one_record_with_a_generation() {
    let mut world = world();
    assert!(stale(&mut world, command([declare(4, 0)])).contains("declare 1, 3, 5 or 7"));
    assert!(stale(&mut world, command([declare(9, 0)])).contains("beyond seven"));
    world.must(command([declare(3, 0)]));
    let policy = |world: &World| world.tables.autopilot.policy.clone().unwrap();
    assert_eq!((policy(&world).managers, policy(&world).generation), (3, Generation(1)));
    assert!(stale(&mut world, command([declare(5, 0)])).contains("generation 1, not 0"), "of two writers one wins");
    world.must(command([declare(3, 1)]));
    assert_eq!(policy(&world).generation, Generation(1), "repeated: no change");
    // A pause is ended by `resume` only, not by another declaration.
    world.must(command([step(AutopilotStep::Pause { why: "racks".to_owned(), gave_up: false })]));
    world.must(command([declare(5, 1)]));
    assert_eq!(policy(&world).paused.as_ref().unwrap().why, "racks");
    world.must(command([step(AutopilotStep::Resume)]));
    assert!(policy(&world).paused.is_none());
    let withdraw = |generation| command([step(AutopilotStep::Withdraw { generation: Some(Generation(generation)) })]);
    assert!(stale(&mut world, withdraw(1)).contains("of generation 2"), "decided by another declaration");
    world.must(withdraw(2));
    assert!(world.tables.autopilot.policy.is_none());
    world.must(command([declare(3, 0)]));
    assert_eq!(policy(&world).generation, Generation(3), "a generation identifies one declaration");
}

/// They decide which nodes may hold the root key.
#[test]
fn declaration_is_in_the_events_with_every_setting() {
    let mut world = world();
    let eligible = [("disk".to_owned(), "ssd".to_owned())].into();
    let policy = AutopilotPolicy { eligible, zone_label: Some("rack".to_owned()), ..AutopilotPolicy::new(3) };
    world.must(command([step(AutopilotStep::Declare(Box::new(policy)))]));
    let recorded = world.tables.events.iter().filter_map(|event| event.after.clone()).next_back().unwrap();
    assert_eq!(
        recorded,
        "managers=3 replace-after=600000ms stabilize=30000ms shrink=false zone-label=rack eligible=disk=ssd"
    );
}

#[test]
fn declaration_refuses_lengths_of_zero() {
    let mut world = world();
    for (replace_after_ms, stabilize_ms) in [(0, 1), (1, 0)] {
        let policy = AutopilotPolicy { replace_after_ms, stabilize_ms, ..AutopilotPolicy::new(3) };
        let declared = step(AutopilotStep::Declare(Box::new(policy)));
        assert!(stale(&mut world, command([declared])).contains("longer than 0 s"));
    }
}

#[test]
fn declaration_needs_its_feature_level() {
    let mut world = World::founded_at(AUTOPILOT_LEVEL - 1).with([(2, Role::Manager)]);
    let drain = AutopilotStep::Drain { node: id(2), until: None, replace: false };
    for change in [declare(3, 0), step(drain)] {
        let refused = world.refused(command([change]));
        assert_eq!(refused, CommandRefusal::FeatureLevel { needs: AUTOPILOT_LEVEL, level: AUTOPILOT_LEVEL - 1 });
    }
}

/// AUTO-1 and AUTO-4, where they are applied.
#[test]
fn one_change_of_the_autopilot_at_a_time() {
    use AutopilotAction::{Demote, Promote};
    let mut world = world();
    assert!(stale_begin(&mut world, Promote, 4).contains("no number of managers is declared"));
    world.must(command([declare(5, 0)]));
    world.must(own(begin(&world, Promote, 4)));
    assert!(stale_begin(&mut world, Demote, 2).contains("change 1 of the autopilot has not ended"));
    world.must(own(end(7, AutopilotOutcome::Settled)));
    assert!(world.tables.autopilot.outstanding().is_some(), "another number than that of the change");
    world.must(own(end(1, AutopilotOutcome::TakenBack)));
    let change = world.tables.autopilot.changes.last().unwrap().clone();
    assert_eq!((change.outcome, change.why.as_str()), (AutopilotOutcome::TakenBack, "3 of 5; over"));
    let texts: Vec<String> = world.tables.events.iter().filter_map(|event| event.after.clone()).collect();
    assert!(texts.contains(&"autopilot: promote: 3 of 5".to_owned()), "{texts:?}");
    assert!(texts.contains(&"autopilot: taken_back: 3 of 5; over".to_owned()), "{texts:?}");
    world.must(command([step(AutopilotStep::Pause { why: String::new(), gave_up: false })]));
    assert!(stale_begin(&mut world, Promote, 4).contains("paused"));
}

#[test]
fn sixteen_changes_are_remembered() {
    let mut world = world();
    world.must(command([declare(5, 0)]));
    for number in 1..=40 {
        world.must(own(begin(&world, AutopilotAction::Promote, 4)));
        world.must(own(end(number, AutopilotOutcome::Refused)));
    }
    let numbers: Vec<u64> = world.tables.autopilot.changes.iter().map(|change| change.number).collect();
    assert_eq!(numbers, (25..=40).collect::<Vec<u64>>());
}

/// Refused and dropped changes do not displace those that took effect.
#[test]
fn changes_that_took_effect_are_remembered_longest() {
    let mut world = world();
    world.must(command([declare(5, 0)]));
    for number in 1..=40 {
        let outcome = if number <= 2 { AutopilotOutcome::Settled } else { AutopilotOutcome::Dropped };
        world.must(own(begin(&world, AutopilotAction::Promote, 4)));
        world.must(own(end(number, outcome)));
    }
    let numbers: Vec<u64> = world.tables.autopilot.changes.iter().map(|change| change.number).collect();
    assert_eq!(numbers, [1, 2].into_iter().chain(27..=40).collect::<Vec<u64>>());
}

/// AUTO-6.
#[test]
fn operators_request_is_remembered_and_takes_precedence() {
    use AutopilotAction::{Demote, Promote};
    let mut world = world();
    let set = |n, role| Change::SetDesiredRole { node: id(n), role };
    world.must(command([set(2, Role::Worker)]));
    assert!(world.tables.autopilot.requested.is_empty(), "nothing is declared");
    world.must(command([set(2, Role::Manager)]));
    world.must(command([declare(3, 0)]));
    world.must(own(begin(&world, Demote, 3)));
    world.must(own(set(3, Role::Worker)));
    world.must(own(end(1, AutopilotOutcome::Settled)));
    assert!(world.tables.autopilot.requested.is_empty(), "a request of the autopilot is not remembered");
    world.must(command([set(2, Role::Worker)]));
    // Decided before the request, applied after it: a demotion would change nothing, and the request would be forgotten.
    for action in [Promote, Demote] {
        assert!(stale_begin(&mut world, action, 2).contains("an operator has requested"));
    }
    let prefer = AutopilotStep::Prefer { node: id(2), preference: ManagerPreference::Prefer };
    world.must(command([step(prefer)]));
    world.must(own(begin(&world, Promote, 2)));
    assert!(world.tables.autopilot.requested.is_empty(), "lifted by the preference");
}

/// A surplus manager, chosen before the request and demoted after it.
#[test]
fn manager_that_an_operator_wants_stays_unless_it_is_dead() {
    let mut world = world();
    world.must(command([declare(3, 0)]));
    world.must(command([Change::SetDesiredRole { node: id(2), role: Role::Manager }]));
    assert!(stale_begin(&mut world, AutopilotAction::Demote, 2).contains("that the node be a manager"));
    let is_dead = own(Change::SetLiveness { node: id(2), liveness: Liveness::Down });
    let is_drained = command([step(AutopilotStep::Drain { node: id(2), until: None, replace: true })]);
    for but in [is_dead, is_drained] {
        let mut world = world.clone();
        world.must(but);
        world.must(own(begin(&world, AutopilotAction::Demote, 2)));
    }
}

/// The autopilot's request arrives after its change has ended, or after an operator has requested another role.
#[test]
fn request_of_the_autopilot_needs_a_change_that_has_begun() {
    use AutopilotAction::{Demote, Promote};
    let set = |n, role| Change::SetDesiredRole { node: id(n), role };
    let mut world = world();
    assert!(stale(&mut world, own(set(3, Role::Worker))).contains("no number of managers is declared"));
    world.must(command([declare(3, 0)]));
    assert!(stale(&mut world, own(set(3, Role::Worker))).contains("has begun no such change"));
    world.must(own(begin(&world, Demote, 3)));
    assert!(stale(&mut world, own(set(2, Role::Worker))).contains("has begun no such change"), "of another node");
    assert!(stale(&mut world, own(set(3, Role::Manager))).contains("has begun no such change"), "another role");
    // The role that it has already: it stays because a person asked for it.
    world.must(command([set(3, Role::Manager)]));
    assert!(stale(&mut world, own(set(3, Role::Worker))).contains("an operator has requested"));
    world.must(own(end(1, AutopilotOutcome::Dropped)));
    world.must(own(begin(&world, Promote, 4)));
    world.must(own(set(4, Role::Manager)));
    world.must(own(set(4, Role::Worker)));
    world.must(command([step(AutopilotStep::Withdraw { generation: None })]));
    assert!(stale(&mut world, own(set(4, Role::Manager))).contains("no number of managers is declared"));
}

/// Only after it has paused itself: a pause by an operator is not about the managers that were replaced.
#[test]
fn resuming_forgives_the_changes_before_it() {
    let mut world = world();
    world.must(command([declare(3, 0)]));
    world.must(own(begin(&world, AutopilotAction::Promote, 4)));
    world.must(own(end(1, AutopilotOutcome::Settled)));
    for (gave_up, forgiven) in [(false, 0), (true, 1)] {
        world.must(own(step(AutopilotStep::Pause { why: String::new(), gave_up })));
        world.must(command([step(AutopilotStep::Resume)]));
        assert_eq!(world.tables.autopilot.forgiven, forgiven);
    }
}

/// Every snapshot contains it.
#[test]
fn long_reason_is_truncated_in_the_record() {
    let mut world = world();
    world.must(command([declare(3, 0)]));
    world.must(command([step(AutopilotStep::Pause { why: "ä".repeat(2_000), gave_up: false })]));
    let pause = world.tables.autopilot.policy.as_ref().unwrap().paused.clone().unwrap();
    assert_eq!(pause.why, "ä".repeat(512) + "…");
}

#[test]
fn records_of_a_node_are_deleted_with_it() {
    let mut world = world();
    world.must(command([declare(3, 0)]));
    world.must(command([step(AutopilotStep::Prefer { node: id(4), preference: ManagerPreference::Never })]));
    world.must(command([step(AutopilotStep::Drain { node: id(4), until: None, replace: true })]));
    world.must(command([Change::SetDesiredRole { node: id(4), role: Role::Manager }]));
    let autopilot = &world.tables.autopilot;
    assert_eq!((autopilot.preferences.len(), autopilot.requested.len(), autopilot.drains.len()), (1, 1, 1));
    world.must(command([Change::DeleteNode(id(4))]));
    let autopilot = &world.tables.autopilot;
    assert_eq!((autopilot.preferences.len(), autopilot.requested.len(), autopilot.drains.len()), (0, 0, 0));
}

#[test]
fn drain_is_recorded_until_it_ends() {
    let mut world = world();
    let end = WallTime(T0.0 + HOUR);
    let until = Some(end);
    world.must(command([step(AutopilotStep::Drain { node: id(2), until, replace: false })]));
    let drain = world.tables.autopilot.drains.get(&id(2)).unwrap().clone();
    assert_eq!((&drain.by, drain.until, drain.replace), (&Principal::Operator, until, false));
    world.must(own(step(AutopilotStep::Undrain { node: id(2), ends: None })));
    world.must(own(step(AutopilotStep::Undrain { node: id(2), ends: None })));
    assert!(world.tables.autopilot.drains.is_empty());
    let text = format!("drained until {end}");
    let of = |text: &Option<String>, expected: &str| text.as_deref() == Some(expected);
    let events = || world.tables.events.iter();
    assert_eq!(events().filter(|event| of(&event.after, &text)).count(), 1);
    assert_eq!(events().filter(|event| of(&event.before, &text)).count(), 1);
}

/// The drain had ended when the autopilot decided, and the node was drained again before that was applied.
#[test]
fn renewed_drain_stays() {
    let mut world = world();
    let until = |hours| Some(WallTime(T0.0 + hours * HOUR));
    for hours in [1, 2] {
        let drain = AutopilotStep::Drain { node: id(2), until: until(hours), replace: false };
        world.must(command([step(drain)]));
    }
    for (ends, drained) in [(until(1), true), (until(2), false)] {
        world.must(own(step(AutopilotStep::Undrain { node: id(2), ends })));
        assert_eq!(world.tables.autopilot.drains.contains_key(&id(2)), drained);
    }
}

/// The state has changed since it was decided.
#[test]
fn change_begins_only_as_it_was_decided() {
    use AutopilotAction::{Demote, Promote};
    let mut world = world();
    world.must(command([declare(3, 0)]));
    let decided = begin(&world, Promote, 4);
    world.must(command([declare(5, 1)]));
    assert!(stale(&mut world, own(decided)).contains("another number of managers was declared"));
    let drain = |node, until| step(AutopilotStep::Drain { node, until, replace: true });
    world.must(command([drain(id(4), None)]));
    assert!(stale_begin(&mut world, Promote, 4).contains("drained"));
    world.must(command([drain(id(4), Some(T0))]));
    world.must(command([step(AutopilotStep::Prefer { node: id(4), preference: ManagerPreference::Never })]));
    assert!(stale_begin(&mut world, Promote, 4).contains("never"), "the drain is over");
    world.must(command([drain(id(2), None)]));
    world.must(own(begin(&world, Demote, 2)));
}

/// After a recovery one manager is up and many are down: only an operator knows which ones will return.
#[test]
fn recovery_pauses_the_autopilot() {
    use muster_store::recovery::{Recovery, next_incarnation, recover};
    let mut world = world();
    world.must(command([declare(3, 0)]));
    world.must(own(begin(&world, AutopilotAction::Promote, 4)));
    let at = WallTime(T0.0 + HOUR);
    let incarnation = next_incarnation(world.tables.cluster.as_ref().unwrap(), at);
    let (addr, reason) = ("10.0.0.1:4400".to_owned(), "a test".to_owned());
    recover(&mut world.tables, &Recovery { node: id(1), admit_as: None, addr, incarnation, at, reason }).unwrap();
    muster_store::invariants::check(&world.tables).unwrap();
    let pause = world.tables.autopilot.policy.as_ref().unwrap().paused.clone().unwrap();
    assert!(!pause.gave_up && pause.why.contains("`muster autopilot resume`"), "{pause:?}");
    assert_eq!(world.tables.autopilot.changes.last().unwrap().outcome, AutopilotOutcome::Dropped);
}
