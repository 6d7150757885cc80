//! Promotions that take long: learners that copy the log or a snapshot, and those that do not come nearer.

use std::time::Duration;

use muster_messages::*;

use crate::scenarios::three_of_five;
use crate::world::{Copying, MINUTE, World, id};

/// Node 3 has died, and node 4 is a learner that copies in this way.
fn replaced_by_a_learner(how: Copying) -> World {
    let mut world = three_of_five(|_| {});
    world.kill(id(3));
    world.copies(id(4), Some(how));
    world.pass_until("node 4 is a learner", |world| world.tables.membership_of(id(4)) == Membership::Learner);
    world
}

/// Test 14: as a snapshot, a promotion is judged by its progress, not by how long it takes.
#[test]
fn promotion_that_makes_progress_is_not_taken_back() {
    for (how, minutes) in [(Copying::Snapshot, 60), (Copying::Log, 9)] {
        let mut world = replaced_by_a_learner(how);
        world.pass(minutes * MINUTE);
        assert_eq!(world.outcome(), Some(AutopilotOutcome::Begun), "{how:?}: {:?}", world.requests);
        world.copies(id(4), None);
        world.pass(MINUTE);
        assert_eq!((world.outcome(), world.answering()), (Some(AutopilotOutcome::Settled), 3), "{how:?}");
        assert_eq!(world.requests, [(id(3), Role::Worker), (id(4), Role::Manager)]);
    }
}

/// Its time begins with its last progress. The next candidate follows, although the first one's promotion began long ago.
#[test]
fn promotion_is_taken_back_some_time_after_its_progress() {
    for how in [Copying::Snapshot, Copying::Log] {
        let mut world = replaced_by_a_learner(how);
        world.pass(8 * MINUTE);
        world.copies(id(4), Some(Copying::Stalled));
        world.pass(5 * MINUTE - Duration::from_secs(2));
        assert_eq!(world.outcome(), Some(AutopilotOutcome::Begun), "{how:?}: {:?}", world.requests);
        world.pass(Duration::from_secs(10));
        let roles = [(3, Role::Worker), (4, Role::Manager), (4, Role::Worker), (5, Role::Manager)];
        assert_eq!(world.requests, roles.map(|(n, role)| (id(n), role)), "{how:?}");
        assert_eq!(world.outcome(), Some(AutopilotOutcome::Settled), "{how:?}");
        assert_eq!(world.standing(id(4)), Err(Exclusion::Backoff), "a minute from the end, not from the beginning");
    }
}

/// It has what it needs, and its log grows with each write: what keeps it from voting is something else.
#[test]
fn growth_after_catching_up_does_not_count_as_progress() {
    let mut world = replaced_by_a_learner(Copying::Log);
    world.pass(10 * MINUTE);
    assert_eq!(world.outcome(), Some(AutopilotOutcome::Begun));
    world.pass(5 * MINUTE + Duration::from_secs(5));
    assert!(world.matched(id(4)) > 900 && world.requests.contains(&(id(4), Role::Worker)), "{:?}", world.requests);
}

/// Its learner is removed, and it asks for membership again: its time does not begin anew, and another copy does not count as progress.
#[test]
fn learner_that_begins_anew_makes_no_progress() {
    let mut world = replaced_by_a_learner(Copying::Snapshot);
    world.pass(8 * MINUTE);
    for outcome in [AutopilotOutcome::Begun, AutopilotOutcome::Settled] {
        let learner = world.tables.member_of(id(4)).unwrap().raft_id;
        world.tables.members.remove(&learner);
        world.observe();
        world.pass(3 * MINUTE);
        assert_eq!(world.outcome(), Some(outcome), "{:?}", world.requests);
    }
    assert_eq!(world.voters(), [1, 2, 5].map(id).into());
}

/// A snapshot that its receiver does not acknowledge does not count as progress.
#[test]
fn silent_learner_is_taken_back_although_it_has_a_snapshot() {
    let mut world = replaced_by_a_learner(Copying::Snapshot);
    world.pass(8 * MINUTE);
    world.kill(id(4));
    world.pass(5 * MINUTE + Duration::from_secs(5));
    assert!(world.requests.contains(&(id(4), Role::Worker)), "{:?}", world.requests);
}

/// Test 1: a manager that restores a snapshot has no session, and answers: neither well nor dead.
#[test]
fn manager_that_restores_a_snapshot_is_not_dead() {
    let mut world = three_of_five(|_| {});
    world.pass(MINUTE);
    world.copies(id(3), Some(Copying::Snapshot));
    world.lose_session(id(3));
    world.pass(60 * MINUTE);
    world.observe();
    assert_eq!((world.requests.len(), world.core.facts(world.now.at).answering()), (0, 3));
}

/// Test 5: a node that an operator promotes dies as a learner. It does not keep the autopilot from replacing a manager.
#[test]
fn dead_learner_does_not_stop_a_replacement() {
    let mut world = three_of_five(|_| {});
    world.pass(MINUTE);
    world.copies(id(4), Some(Copying::Log));
    assert!(world.asks(id(4), Role::Manager));
    world.pass(Duration::from_secs(10));
    assert_eq!(world.tables.membership_of(id(4)), Membership::Learner);
    world.kill(id(4));
    world.kill(id(3));
    world.pass(2 * MINUTE);
    assert_eq!(world.requests, [(id(3), Role::Worker), (id(5), Role::Manager)], "{:?}", world.decided);
}
