//! Any history of deaths, returns, leader changes, crashes, operators and maintenance: the model checks AUTO-1 to AUTO-5 and AUTO-8
//! whenever a change begins, and here AUTO-9 is checked once it is quiet.

use std::time::Duration;

use muster_autopilot::bugs::{self, BugInjection};
use muster_autopilot::core::majority;
use muster_messages::*;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::world::{MINUTE, World, id};

#[derive(Clone, Debug)]
enum Event {
    Kill(u8),
    Revive(u8),
    Elect,
    Crash,
    Lose,
    Ask(u8, bool),
    Pause,
    Resume,
    Drain(u8, u16, bool),
    Undrain(u8),
    Pass(u16),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (1u8..10).prop_map(Event::Kill),
        4 => (1u8..10).prop_map(Event::Revive),
        1 => Just(Event::Elect),
        1 => Just(Event::Crash),
        1 => Just(Event::Lose),
        1 => (1u8..10, any::<bool>()).prop_map(|(node, promote)| Event::Ask(node, promote)),
        1 => Just(Event::Pause),
        2 => Just(Event::Resume),
        1 => (1u8..10, 0u16..2400, any::<bool>()).prop_map(|(node, secs, replace)| Event::Drain(node, secs, replace)),
        1 => (1u8..10).prop_map(Event::Undrain),
        8 => (1u16..1200).prop_map(Event::Pass),
    ]
}

fn history(declared: u8, events: Vec<Event>) {
    let mut world = World::new(3, 6);
    world.declare(|policy| (policy.managers, policy.replace_after_ms) = (declared, 60_000));
    for event in events {
        match event {
            // Deaths never cost the quorum here: if it is lost, the autopilot has caused it.
            Event::Kill(n) => {
                let left = world.answering() - usize::from(world.voters().contains(&id(n)) && !world.is_dead(id(n)));
                if left >= majority(world.voters().len()) {
                    world.kill(id(n));
                }
            }
            Event::Revive(n) => world.revive(id(n)),
            Event::Elect => world.elect(),
            Event::Crash => world.restart(),
            Event::Lose => world.loses = true,
            Event::Ask(n, promote) => {
                let _refused = world.asks(id(n), if promote { Role::Manager } else { Role::Worker });
            }
            Event::Pause => world.operator(AutopilotStep::Pause { why: "test".into(), gave_up: false }),
            Event::Resume => world.operator(AutopilotStep::Resume),
            Event::Drain(n, secs, replace) => {
                world.drain(id(n), (secs > 0).then(|| Duration::from_secs(secs.into())), replace);
            }
            Event::Undrain(n) => world.undrain(id(n)),
            Event::Pass(seconds) => world.pass(Duration::from_secs(seconds.into())),
        }
    }
    (1..10).for_each(|n| world.revive(id(n)));
    (1..10).for_each(|n| world.undrain(id(n)));
    // Operators' requests exclude nodes: the preference lifts them.
    (1..10).for_each(|n| world.operator(AutopilotStep::Prefer { node: id(n), preference: ManagerPreference::Prefer }));
    for _ in 0..4 {
        world.operator(AutopilotStep::Resume);
        for _ in 0..4 {
            world.pass(15 * MINUTE);
        }
    }
    assert!(
        world.answering() >= usize::from(declared),
        "AUTO-9: {:?}\n{:?}",
        world.decided,
        world.tables.autopilot.changes
    );
    world.pass(60 * MINUTE);
    // A change that is dropped before it is requested would be one, too.
    let begun = |world: &World| (world.requests.len(), world.tables.autopilot.last_number);
    let before = begun(&world);
    world.pass(120 * MINUTE);
    assert_eq!(begun(&world), before, "AUTO-9: changes begin although nothing has happened");
}

fn any_history() -> impl Strategy<Value = (u8, Vec<Event>)> {
    (prop::sample::select(vec![3u8, 5]), prop::collection::vec(event(), 1..25))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]
    #[test]
    fn declared_number_is_reached_after_any_history((declared, events) in any_history()) {
        history(declared, events);
    }
}

/// The model detects each of them by the invariant that it breaks.
#[test]
fn histories_find_each_injected_bug() {
    use BugInjection::*;
    for (bug, expected) in [
        (ActWhilePaused, "AUTO-1"),
        (ResumeByItself, "AUTO-2"),
        (PromoteFirst, "AUTO-3"),
        (DemoteSilent, "AUTO-5"),
        (TrustTheRecord, "AUTO-8"),
        (OnlyDemote, "AUTO-9"),
    ] {
        let config =
            ProptestConfig { cases: 2000, failure_persistence: None, max_shrink_iters: 0, ..ProptestConfig::default() };
        bugs::set(Some(bug));
        let found = TestRunner::new(config).run(&any_history(), |(declared, events)| {
            history(declared, events);
            Ok(())
        });
        bugs::set(None);
        let found = found.expect_err("no history breaks a promise").to_string();
        assert!(found.contains(expected), "{bug:?}: {found}");
    }
}
