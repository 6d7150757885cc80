//! Test 38: it looks when something has changed that it decides by, and when a time is due, and never otherwise. `World::pass` checks the
//! converse in every scenario: a look at any other moment finds nothing to do.

use std::time::Duration;

use muster_autopilot::core::{Input, Seen};
use muster_messages::*;

use crate::scenarios::{three_of_five, three_of_five_refusing};
use crate::world::{MINUTE, World, id};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// How often it is woken, and how often it looks because something has changed, while this happens.
fn looks(world: &mut World, happens: impl FnOnce(&mut World)) -> (usize, usize) {
    let before = (world.wakes, world.observed);
    happens(world);
    (world.wakes - before.0, world.observed - before.1)
}

/// Nothing is due, so it asks for no wake-up. What the leader publishes meanwhile is the same.
#[test]
fn content_autopilot_is_not_woken() {
    let mut world = three_of_five(|_| {});
    world.pass(10 * MINUTE);
    let quiet = looks(&mut world, |world| (0..24 * 60).for_each(|_| world.pass(MINUTE)));
    assert_eq!(quiet, (0, 0));
}

/// It is silent, then recorded as down: two changes. Then it is dead, and no worker can take its place.
#[test]
fn silent_manager_is_looked_at_when_it_counts_as_dead() {
    let mut world = World::new(3, 0);
    world.declare(|_| {});
    world.pass(MINUTE);
    let silent = looks(&mut world, |world| {
        world.kill(id(3));
        world.pass(10 * MINUTE - Duration::from_secs(1));
    });
    assert_eq!(silent, (0, 2));
    assert_eq!(looks(&mut world, |world| world.pass(DAY)), (1, 0));
    assert!(world.decided.last().unwrap().contains("no worker can take its place"), "{:?}", world.decided);
}

/// It follows in Raft, and its session is down: whether it becomes silent is news.
#[test]
fn manager_without_a_session_is_not_looked_at_again() {
    let mut world = three_of_five(|_| {});
    world.pass(MINUTE);
    world.lose_session(id(3));
    assert_eq!(looks(&mut world, |world| world.pass(DAY)), (0, 0));
    let silent = looks(&mut world, |world| {
        world.kill(id(3));
        world.pass(Duration::from_secs(5));
    });
    assert_eq!((silent, world.requests.len()), ((0, 1), 0));
}

/// No other manager may lead instead of the drained one, until one answers again.
#[test]
fn drained_leader_waits_for_another_manager_without_looking() {
    for declares in [false, true] {
        let mut world = World::new(3, 0);
        if declares {
            world.declare(|_| {});
        }
        world.pass(MINUTE);
        world.drain(id(2), None, false);
        world.kill(id(3));
        world.pass(20 * MINUTE);
        world.drain(id(1), None, false);
        assert_eq!(looks(&mut world, |world| world.pass(DAY)), (0, 0), "declares: {declares}");
        world.revive(id(3));
        assert_eq!((world.offers.as_slice(), world.leader), (&[id(3)][..], id(3)), "declares: {declares}");
    }
}

/// The role manager refuses it: it is woken once for each attempt.
#[test]
fn refused_change_is_looked_at_once_for_each_attempt() {
    let mut world = three_of_five_refusing(id(3), Role::Worker);
    world.pass(2 * MINUTE);
    let before = world.tables.autopilot.last_number;
    let (wakes, changes) = looks(&mut world, |world| world.pass(60 * MINUTE));
    let attempts = usize::try_from(world.tables.autopilot.last_number - before).unwrap();
    assert_eq!((wakes, changes), (attempts, 0));
}

/// It is woken for the case that waits for less, although another one decides: the dead manager may be replaced in ten minutes, and the
/// pair that is missing be promoted in one.
#[test]
fn pair_is_promoted_while_a_replacement_is_slowed() {
    let mut world = World::new(5, 5);
    world.declare(|policy| (policy.managers, policy.replace_after_ms) = (5, 60_000));
    world.kill(id(5));
    world.pass(Duration::from_secs(20));
    world.kill(id(4));
    world.pass_until("one is replaced", |world| world.requests.len() == 2);
    world.pass(Duration::from_secs(30));
    world.declare(|policy| policy.managers = 7);
    assert!(world.decided.last().unwrap().contains("n4 is down; the last manager was replaced"), "{:?}", world.decided);
    world.pass(MINUTE);
    assert_eq!(world.voters().len(), 7, "{:?}", world.decided);
}

/// The Raft member publishes nothing for a while, and then the same as before: that all managers answer is news to it.
#[test]
fn managers_that_answer_after_a_stall_are_news() {
    let mut world = three_of_five(|_| {});
    world.pass(MINUTE);
    let (later, replica) = (world.now.at + MINUTE, world.replica());
    let stalled = || Input::State { replica: replica.clone(), doubts: Default::default() };
    for at in [world.now.at, later] {
        world.core.step(at, stalled(), &mut Vec::new());
    }
    assert_eq!(world.core.facts(later).answering(), 1);
    assert!(world.core.observe(later, &world.replica()));
}

/// A voter without a session answers for long, without a look. Then it cannot follow any more: its silence begins with that.
#[test]
fn manager_that_cannot_follow_any_more_was_not_silent_before() {
    let mut world = three_of_five(|_| {});
    world.pass(MINUTE);
    world.lose_session(id(3));
    world.pass(20 * MINUTE);
    world.diverges(id(3));
    world.pass(Duration::from_secs(59));
    assert_eq!(world.requests, []);
    let Some(Seen::Down(since)) = world.core.facts(world.now.at).voters[2].seen else { panic!() };
    assert_eq!(world.now.at.since(since), Duration::from_secs(59));
}
