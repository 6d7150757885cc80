//! Maintenance: nodes that are drained, and come back or do not.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_autopilot::core::Seen;
use muster_messages::*;

use crate::scenarios::three_of_five;
use crate::world::{MINUTE, World, id};

/// Three managers are declared. Node 3 is drained for this time, and goes at once.
fn drained_and_gone(workers: u8, time: Duration) -> World {
    let mut world = World::new(3, workers);
    world.declare(|_| {});
    world.pass(MINUTE);
    world.drain(id(3), Some(time), false);
    world.kill(id(3));
    world
}

/// Test 13: with a drain for longer than the restart nothing is replaced, although each is away for longer than `replace-after`.
#[test]
fn drained_managers_are_restarted_one_by_one() {
    let mut world = World::new(3, 2);
    world.declare(|_| {});
    for n in [2, 3, 1] {
        world.drain(id(n), Some(20 * MINUTE), false);
        world.kill(id(n));
        world.pass(15 * MINUTE);
        world.revive(id(n));
        world.undrain(id(n));
        world.pass(MINUTE);
    }
    assert_eq!(world.requests, []);
    assert_eq!(world.offers, [id(2)], "only a leader has leadership to give up: {:?}", world.offers);
}

/// Test 15: new workers come while the old managers go, 50 s apart: drained first, they leave at the pace of the autopilot. Destroyed
/// at that pace, they take the quorum with them, and nothing is done until one of them is back.
#[test]
fn all_managers_are_exchanged_while_new_workers_come() {
    let world = |goes: fn(&mut World, u8)| {
        let mut world = three_of_five(|_| {});
        (4..=5).for_each(|n| world.kill(id(n)));
        world.pass(MINUTE);
        for n in 1..=2 {
            world.revive(id(n + 3));
            goes(&mut world, n);
            world.pass(Duration::from_secs(50));
        }
        world
    };
    let mut drained = world(|world, n| world.drain(id(n), None, true));
    drained.pass(10 * MINUTE);
    assert_eq!(drained.voters(), BTreeSet::from([id(3), id(4), id(5)]), "{:?}", drained.decided);
    assert!(!drained.lost_quorum);

    let mut destroyed = world(|world, n| world.kill(id(n)));
    destroyed.pass(60 * MINUTE);
    assert!(destroyed.lost_quorum && destroyed.requests.is_empty(), "{:?}", destroyed.requests);
    destroyed.revive(id(1));
    destroyed.pass(60 * MINUTE);
    assert_eq!((destroyed.answering(), destroyed.voters().len()), (3, 3), "{:?}", destroyed.decided);
}

/// Test 34. Of a follower, then of the leader: the successor comes first, leadership goes first, and no number of managers falls.
#[test]
fn drained_manager_gives_its_place_to_another_node() {
    let mut world = three_of_five(|_| {});
    world.pass(MINUTE);
    for (drained, successor) in [(id(3), id(4)), (id(1), id(5))] {
        world.drain(drained, None, true);
        world.pass(5 * MINUTE);
        assert!(!world.voters().contains(&drained) && world.voters().contains(&successor), "{:?}", world.requests);
        assert_ne!(world.leader, drained);
    }
    let roles = [(4, Role::Manager), (3, Role::Worker), (5, Role::Manager), (1, Role::Worker)];
    assert_eq!(world.requests, roles.map(|(n, role)| (id(n), role)));
    assert_eq!(world.offers, [id(2)]);
    // One of them is back: it is a candidate, and no role changes.
    world.undrain(id(1));
    world.pass(60 * MINUTE);
    assert_eq!(world.requests.len(), 4);
    assert_eq!((world.standing(id(1)), world.standing(id(3))), (Ok(1), Err(Exclusion::Drained)));
}

/// The first one does not take over: the next one is asked.
#[test]
fn leadership_is_offered_to_each_manager_in_turn() {
    let mut world = World::new(4, 0);
    world.pass(MINUTE);
    world.loses = true;
    world.drain(id(1), None, false);
    world.pass(2 * MINUTE);
    assert_eq!((world.offers.as_slice(), world.leader), (&[id(2), id(3)][..], id(3)));
}

/// Test 34. Drains need no declaration; without one no role changes.
#[test]
fn drain_ends_by_itself() {
    let mut world = World::new(3, 1);
    world.drain(id(1), Some(10 * MINUTE), false);
    assert_eq!(
        (world.offers.len(), world.leader),
        (0, id(1)),
        "a leader that has just begun does not know who answers"
    );
    world.pass(Duration::from_secs(2));
    assert_eq!((world.offers.as_slice(), world.leader), (&[id(2)][..], id(2)));
    world.pass(9 * MINUTE);
    assert!(world.tables.autopilot.drains.contains_key(&id(1)));
    world.pass(2 * MINUTE);
    assert!(world.tables.autopilot.drains.is_empty() && world.requests.is_empty());
}

/// An operator ends the drain before the node is back: it counts as down from then on, and not since the drain began.
#[test]
fn end_of_a_drain_replaces_no_manager_at_once() {
    let mut world = World::new(3, 2);
    world.declare(|_| {});
    for n in [2, 3, 1] {
        world.drain(id(n), Some(30 * MINUTE), false);
        world.kill(id(n));
        world.pass(20 * MINUTE);
        world.undrain(id(n));
        world.pass(Duration::from_secs(5));
        world.revive(id(n));
        world.pass(MINUTE);
    }
    assert_eq!(world.requests, []);
}

/// It stays away: the time until it is replaced begins when the operator ends the drain, not when its time would have been over.
#[test]
fn manager_that_is_undrained_early_is_awaited_no_longer() {
    let mut world = drained_and_gone(2, 120 * MINUTE);
    world.pass(20 * MINUTE);
    world.undrain(id(3));
    world.pass(9 * MINUTE);
    assert_eq!(world.requests, []);
    world.pass(2 * MINUTE);
    assert_eq!(world.requests, [(id(3), Role::Worker), (id(4), Role::Manager)]);
}

/// Test 34: the drained node dies while it is drained, and its time is over.
#[test]
fn drained_manager_that_does_not_return_is_replaced() {
    let mut world = three_of_five(|_| {});
    world.pass(MINUTE);
    world.drain(id(3), Some(20 * MINUTE), false);
    world.kill(id(3));
    world.pass(20 * MINUTE + Duration::from_secs(59));
    assert_eq!(world.requests, []);
    world.pass(Duration::from_secs(15));
    assert_eq!(world.requests, [(id(3), Role::Worker), (id(4), Role::Manager)]);
}

/// It is to be replaced, and dies first: it is not awaited until the end of its drain.
#[test]
fn drained_manager_to_be_replaced_is_not_awaited() {
    let mut world = World::new(3, 2);
    world.declare(|_| {});
    world.kill(id(3));
    world.pass(MINUTE);
    world.drain(id(3), Some(60 * MINUTE), true);
    world.pass(9 * MINUTE - Duration::from_secs(1));
    assert_eq!(world.requests, []);
    world.pass(MINUTE);
    assert_eq!(world.requests, [(id(3), Role::Worker), (id(4), Role::Manager)], "{:?}", world.decided);
}

/// Since when it is down does not move while it is drained; when it is replaced does.
#[test]
fn drained_manager_is_shown_down_since_it_went() {
    let mut world = drained_and_gone(2, 30 * MINUTE);
    let gone_at = world.now.at;
    for minutes in [1, 19, 15] {
        world.pass(minutes * MINUTE);
        let Some(Seen::Down(since)) = world.core.facts(world.now.at).voters[2].seen else { panic!("it is down") };
        assert_eq!(since.since(gone_at), Duration::ZERO, "since its last answer");
    }
    assert_eq!(world.requests, [], "35 min after it went, and 5 after its drain ended");
    world.pass(6 * MINUTE);
    assert_eq!(world.requests[0], (id(3), Role::Worker));
}

/// Test 34: a manager under autolock restarts while it is drained. It waits for its key, so for the others it is down, its agent
/// included: it is awaited, and replaced when its time is over. Unlocked it returns as a candidate.
#[test]
fn drained_manager_that_stays_locked_is_replaced() {
    let mut world = drained_and_gone(1, 15 * MINUTE);
    world.pass(15 * MINUTE + 9 * MINUTE);
    assert_eq!((world.requests.len(), world.tables.autopilot.drains.len()), (0, 0));
    world.pass(2 * MINUTE);
    assert_eq!(world.requests, [(id(3), Role::Worker), (id(4), Role::Manager)]);
    world.revive(id(3));
    world.pass(60 * MINUTE);
    assert_eq!((world.requests.len(), world.standing(id(3))), (2, Ok(1)));
}

/// Test 34: the only worker is drained, and is a candidate again once it is not.
#[test]
fn drained_worker_takes_no_place() {
    let mut world = World::new(3, 1);
    world.declare(|policy| policy.replace_after_ms = 60_000);
    world.pass(MINUTE);
    world.drain(id(4), None, false);
    world.kill(id(3));
    world.pass(30 * MINUTE);
    assert_eq!(world.requests, []);
    assert!(world.decided.last().unwrap().contains("n4: drained"), "{:?}", world.decided);
    world.undrain(id(4));
    world.pass(Duration::from_secs(15));
    assert_eq!(world.requests, [(id(3), Role::Worker), (id(4), Role::Manager)]);
}
