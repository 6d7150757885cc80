use muster_messages::*;
use muster_role_manager::core::RequestedChange;

use crate::world::*;

// E5
#[test]
fn demotion_reversed_after_removal_rejoins_with_new_raft_id() {
    let mut world = World::new(3, 0);
    world.hold_membership_changes = true;
    world.demote(3);
    world.run_for(TICK);
    // The flip is accepted while the membership change is in flight; then both are applied.
    world.promote(3);
    world.run_for(TICK);
    world.hold_membership_changes = false;
    world.run_for(secs(2));
    assert!(world.is_manager(3), "{:?}", world.pending());
    assert_eq!(world.tables.member_of(id(3)).unwrap().raft_id, RaftId(4));
    assert!(world.tables.removed_raft_ids.contains(&RaftId(3)));
    assert!(!world.log.iter().any(|l| l.contains("GrantRole")), "its role never changed");
}

// E6
#[test]
fn request_reversed_before_any_step_changes_nothing() {
    let mut world = World::new(3, 0);
    let (a, b) = (world.demote(3), world.promote(3));
    world.hold_membership_changes = true;
    world.run_for(TICK);
    assert_eq!((world.role_answer(a), world.role_answer(b)), (Some(Ok(true)), Some(Ok(true))));
    world.hold_membership_changes = false;
    world.settle();
    assert!(world.is_manager(3));
    assert_eq!(world.tables.member_of(id(3)).unwrap().raft_id, RaftId(3), "it keeps its member id");
}

// E9
#[test]
fn role_flipping_faster_than_the_node_ends_at_last_request() {
    let mut world = World::new(3, 1);
    world.machine(4).no_certificates = true;
    for _ in 0..3 {
        world.promote(4);
        world.run_for(TICK);
        world.demote(4);
        world.run_for(TICK);
    }
    assert_eq!(world.reason(4), Some(WaitReason::WaitingForCertificate));
    world.machine(4).no_certificates = false;
    world.settle();
    assert!(world.is_worker(4));
}

// S8
#[test]
fn no_role_older_than_the_newest_request_is_written() {
    let mut world = World::new(3, 1);
    world.promote(4);
    world.hold_commits = true;
    world.run_moment();
    world.hold_commits = false;
    // The request is applied, and the opposite request overtakes the grant that follows it.
    world.demote(4);
    world.settle();
    assert!(world.is_worker(4));
    let events: Vec<_> = world.tables.events.iter().filter(|e| e.kind == EventKind::Role).collect();
    let mut wanted = None;
    for event in events {
        let after = event.after.as_deref().unwrap();
        match after.strip_prefix("wanted ") {
            Some(role) => wanted = Some(role),
            None => assert_eq!(Some(after), wanted, "a grant follows the request of its moment"),
        }
    }
}

// E6, E5: every interleaving of a flip, step by step.
#[test]
fn flip_at_any_moment_ends_at_the_last_request() {
    for moment in 0..40 {
        for up in [true, false] {
            let mut world = if up { World::new(3, 0) } else { World::new(2, 1) };
            if up {
                world.demote(3);
            } else {
                world.promote(3);
            }
            for _ in 0..moment {
                world.run_step();
            }
            if up {
                world.promote(3);
            } else {
                world.demote(3);
            }
            world.settle();
            let done = if up { world.is_manager(3) } else { world.is_worker(3) };
            assert!(done, "flip after {moment} steps: {:#?}", world.log);
        }
    }
}

// E6: the change in flight is refused, and the node's plan is another one by then.
#[test]
fn change_refused_after_a_flip_delays_no_other_change() {
    let mut world = World::new(3, 1);
    world.promote(4);
    let is_proposed = |world: &World| world.log.iter().any(|line| line.contains("proposes PromoteLearner"));
    for _ in 0..400 {
        if !is_proposed(&world) {
            world.run_step_or_wait();
        }
    }
    assert!(is_proposed(&world), "{:#?}", world.log);
    world.hold_membership_changes = true;
    world.demote(4);
    world.run_for(TICK);
    world.hold_membership_changes = false;
    world.run_for(secs(1));
    assert!(world.is_worker(4), "{:#?}", world.log);
}

// E2: every interleaving of a promotion and a removal.
#[test]
fn a_removal_at_any_moment_of_a_promotion_leaves_nothing_behind() {
    for moment in 0..40 {
        let mut world = World::new(3, 1);
        world.promote(4);
        for _ in 0..moment {
            world.run_step();
        }
        world.stop(4);
        world.run_moment();
        let ask = world.remove(4, true);
        world.settle();
        assert_eq!(world.removal_answer(ask), Some(Ok(())), "after {moment} steps");
        assert!(world.is_gone(4), "after {moment} steps: {:#?}", world.log);
        assert_eq!(world.voters(), 3);
    }
}

#[test]
fn a_write_that_changes_nothing_is_not_repeated_at_once() {
    let mut world = World::new(4, 0);
    world.ignore_writes = true;
    world.demote(4);
    world.run_for(secs(10));
    let most = 2 + 10_000 / usize::try_from(world.config.retry.as_millis()).unwrap();
    assert!((1..=most).contains(&world.swallowed), "{} writes in 10 s", world.swallowed);
    world.ignore_writes = false;
    world.settle();
    assert!(world.is_worker(4));
}

/// Its answer was lost. The retry gets the same, under the next leader too, although the node has another role by then.
#[test]
fn retry_of_unchanged_role_is_answered_unchanged() {
    let mut world = World::new(3, 1);
    world.remember_callers();
    let unchanged = RequestedChange::Role(Role::Worker);
    let first = world.change(4, unchanged);
    let request = world.last_request();
    world.run_for(TICK);
    assert_eq!(world.role_answer(first), Some(Ok(false)));
    let promoted = world.promote(4);
    let promotion = world.last_request();
    world.settle();
    assert_eq!((world.role_answer(promoted), world.is_manager(4)), (Some(Ok(true)), true));
    world.crash();
    let (again, other) = (world.request_again(4, unchanged, request), world.request_again(4, unchanged, promotion));
    let promoted_again = world.request_again(4, RequestedChange::Role(Role::Manager), promotion);
    world.settle();
    assert_eq!((world.role_answer(again), world.role_answer(promoted_again)), (Some(Ok(false)), Some(Ok(true))));
    assert_eq!(world.code(other), ErrorCode::Conflict, "another request under the same id");
    assert!(world.is_manager(4), "a retry writes nothing");
}

/// AUTO-6. Under a declared number of managers it is remembered, although it changes nothing.
#[test]
fn request_of_an_unchanged_role_is_remembered() {
    let mut world = World::new(3, 1);
    world.remember_callers();
    let declared = Box::new(AutopilotPolicy::new(3));
    world.apply_directly(Change::Autopilot(Box::new(AutopilotStep::Declare(declared))));
    let ask = world.change(3, RequestedChange::Role(Role::Manager));
    world.run_for(TICK);
    assert_eq!(world.role_answer(ask), Some(Ok(false)));
    assert_eq!(world.tables.autopilot.requested.get(&id(3)), Some(&Role::Manager));
}

/// Two promotions of one node, whose outcomes are unknown. The second is repeated between the two: by then it changes nothing, but its
/// first proposal is applied before, as a change. Another request under its id stays refused.
#[test]
fn retry_that_overtakes_its_first_gets_the_first_outcome() {
    for repeated in [Role::Manager, Role::Worker] {
        let mut world = World::new(3, 1);
        world.remember_callers();
        world.hold_commits = true;
        for _ in 0..2 {
            let ask = world.promote(4);
            world.run_moment();
            world.time_out_proposals();
            world.run_moment();
            assert_eq!(world.code(ask), ErrorCode::UnknownOutcome);
        }
        let request = world.last_request();
        world.hold_commits = false;
        while world.record(4).desired_role == Role::Worker {
            world.run_step();
        }
        let again = world.request_again(4, RequestedChange::Role(repeated), request);
        world.settle();
        match repeated {
            Role::Manager => assert_eq!(world.role_answer(again), Some(Ok(true))),
            Role::Worker => assert_eq!(world.code(again), ErrorCode::Conflict),
        }
        let decided = world.log.iter().filter(|line| line.contains("RequestReused")).count();
        assert!(decided > 0, "it was proposed before its first was seen: {:#?}", world.log);
        assert!(world.is_manager(4));
    }
}
