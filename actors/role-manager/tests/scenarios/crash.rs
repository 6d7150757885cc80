use muster_messages::*;

use crate::world::*;

#[test]
fn a_crash_with_a_membership_change_in_flight_ends_it_once() {
    let mut world = World::new(3, 0);
    world.hold_membership_changes = true;
    world.demote(3);
    world.run_for(secs(1));
    world.crash();
    world.run_for(secs(1));
    assert_eq!(world.changes_in_flight(), 1, "the first one is still in flight: the second was not accepted");
    assert_eq!(world.core.as_ref().unwrap().queues().reconciliation.len(), 1);
    world.hold_membership_changes = false;
    world.settle();
    assert!(world.is_worker(3));
}

/// Its shell has one alarm, which has fired: woken while something waits, the core must ask to be woken again.
#[test]
fn each_wakeup_schedules_another_while_work_is_pending() {
    use muster_role_manager::core::{Effect, Input, Now};
    let mut world = World::new(3, 1);
    world.machine(4).no_certificates = true;
    world.promote(4);
    world.run_for(secs(1));
    let later = Now { at: world.now.at + secs(60), ..world.now };
    let core = world.core.as_mut().unwrap();
    for _ in 0..2 {
        let mut out = Vec::new();
        core.step(later, Input::Woke, &mut out);
        assert!(out.iter().any(|effect| matches!(effect, Effect::WakeAt(_))), "{out:?}");
    }
}

#[test]
fn both_queues_survive_a_crash() {
    let mut world = World::new(5, 1);
    world.hold_membership_changes = true;
    world.stop(5);
    world.demote(4);
    world.remove(5, true);
    world.run_for(secs(1));
    let before = world.core.as_ref().unwrap().queues().clone();
    assert_eq!((before.reconciliation.len(), before.removal.len()), (1, 1));
    world.crash();
    world.run_moment();
    let after = world.core.as_ref().unwrap().queues();
    for (node, pending) in before.iter() {
        let kept = after.get(node).unwrap();
        assert_eq!((kept.wants, kept.since), (pending.wants, pending.since), "also since when");
    }
    world.hold_membership_changes = false;
    world.settle();
    assert!(world.is_worker(4) && world.is_gone(5));
}

#[test]
fn request_survives_a_crash_before_its_effects() {
    let mut world = World::new(3, 1);
    world.run_moment();
    world.crash_before_effects = true;
    let ask = world.promote(4);
    world.settle();
    assert!(world.lost_asks.contains(&ask), "its caller sees a closed port");
    assert!(world.is_manager(4));
    let again =
        world.request_again(4, muster_role_manager::core::RequestedChange::Role(Role::Manager), world.last_request());
    world.run_moment();
    assert_eq!(world.role_answer(again), Some(Ok(true)));
}

#[test]
fn a_crash_at_any_moment_changes_no_outcome() {
    for moment in 0..60 {
        for before_effects in [false, true] {
            let mut world = World::new(3, 2);
            world.stop(5);
            world.promote(4);
            world.demote(2);
            world.remove(5, false);
            for _ in 0..moment {
                world.run_step();
            }
            if before_effects {
                world.crash_before_effects = true;
            } else {
                world.crash();
            }
            world.run_moment();
            // A caller that lost its port asks again.
            world.promote(4);
            world.demote(2);
            world.remove(5, false);
            world.settle();
            assert!(
                world.is_manager(4) && world.is_worker(2) && world.is_gone(5),
                "crash after {moment}: {:#?}",
                world.log
            );
        }
    }
}

#[test]
fn a_new_leader_finishes_what_the_old_one_accepted() {
    for moment in 0..40 {
        let mut world = World::new(3, 2);
        world.stop(5);
        world.promote(4);
        world.demote(2);
        world.remove(5, false);
        world.run_until_accepted();
        for _ in 0..moment {
            world.run_step();
        }
        world.elect(id(3));
        world.settle();
        assert!(
            world.is_manager(4) && world.is_worker(2) && world.is_gone(5),
            "new leader after {moment}: {:#?}",
            world.log
        );
    }
}

#[test]
fn only_the_queues_of_an_older_terms_checkpoint_count() {
    let mut world = World::new(3, 0);
    world.hold_membership_changes = true;
    world.demote(3);
    world.run_for(secs(1));
    let slot = world.slot.clone();
    let old = world.core.as_ref().unwrap().outbox().clone();
    assert!(old.iter().count() > 0);
    world.elect(id(2));
    world.slot = slot;
    world.crash();
    assert!(world.core.is_some());
    world.run_moment();
    let outbox = world.core.as_ref().unwrap().outbox();
    assert!(
        outbox.iter().all(|(step, _)| old.iter().all(|(earlier, _)| earlier != step)),
        "a step of the older term: {outbox:?}"
    );
    world.hold_membership_changes = false;
    world.settle();
    assert!(world.is_worker(3));
}

#[test]
fn a_checkpoint_survives_as_bytes() {
    let mut world = World::new(3, 1);
    world.hold_membership_changes = true;
    world.promote(4);
    world.demote(3);
    world.run_for(secs(1));
    let checkpoint = world.slot.clone().unwrap();
    let text = serde_json::to_string(&checkpoint.queues).unwrap();
    assert!(text.contains("\"wants\":\"worker\""), "{text}");
}
