//! The order in which nodes renew, and acknowledgements.

use std::time::Duration;

use muster_messages::protocol::ProposeError;
use muster_messages::*;
use muster_root_rotation::core::Answer;

use crate::world::*;

/// Nodes that were asked to renew and have not.
fn outstanding(world: &World) -> Vec<NodeId> {
    let behind = world.behind();
    world.asked.iter().copied().filter(|node| behind.contains(node)).collect()
}

fn acknowledge_all(world: &mut World) {
    for node in world.log.nodes.keys().copied().collect::<Vec<_>>() {
        world.acknowledge(node);
    }
    world.pass(Duration::from_millis(100));
    world.show();
}

/// The leader sees what has changed, now or after its pause.
fn look(world: &mut World) {
    world.show();
    world.pass(Duration::from_millis(200));
}

#[test]
fn one_worker_renews_first_then_waves_then_managers() {
    let mut world = World::new(3, 200);
    world.rotate();
    acknowledge_all(&mut world);
    look(&mut world);
    assert_eq!(world.asked.len(), 1, "one is tried first");
    assert!(!(1..=3).any(|n| world.asked[0] == id(n)), "a worker");
    world.pass(Duration::from_secs(30));
    world.show();
    assert_eq!(world.asked.len(), 1, "the others wait for it");
    let mut most = 0;
    for _ in 0..100 {
        let next = outstanding(&world).first().copied();
        let Some(next) = next else { break };
        world.renew(next);
        look(&mut world);
        most = most.max(outstanding(&world).len());
    }
    assert_eq!(most, 64);
    world.run();
    assert_eq!(world.behind(), []);
    let managers: Vec<NodeId> = world.asked[world.asked.len() - 3..].to_vec();
    assert_eq!(managers.last(), Some(&id(1)), "the leader last");
    assert!(managers.iter().all(|node| (1..=3).any(|n| *node == id(n))));
}

#[test]
fn managers_renew_one_at_a_time() {
    let mut world = World::new(5, 0);
    world.rotate();
    acknowledge_all(&mut world);
    for renewed in 0..5 {
        look(&mut world);
        assert_eq!(outstanding(&world).len(), 1, "after {renewed}");
        let node = outstanding(&world)[0];
        world.renew(node);
    }
    look(&mut world);
    assert_eq!(world.behind(), []);
}

#[test]
fn node_that_does_not_renew_holds_its_place_for_a_minute() {
    let mut world = World::new(1, 3);
    world.rotate();
    acknowledge_all(&mut world);
    look(&mut world);
    let first = world.asked[0];
    world.silent.insert(first);
    world.pass(Duration::from_secs(59));
    world.show();
    assert_eq!(world.asked, [first]);
    world.pass(Duration::from_secs(2));
    world.show();
    assert_eq!(world.asked.len(), 2, "another one is tried");
    world.run();
    assert_eq!(world.behind(), [first]);
    world.silent.clear();
    world.run();
    assert_eq!(world.behind(), []);
}

#[test]
fn refused_signature_is_tried_again_after_a_minute() {
    let mut world = World::new(1, 1);
    world.rotate();
    acknowledge_all(&mut world);
    look(&mut world);
    let canary = world.asked[0];
    world.silent.insert(canary);
    world.change(Change::CertificateFailed(canary));
    for _ in 0..50 {
        look(&mut world);
    }
    assert_eq!(world.asked, [canary]);
    world.pass(Duration::from_secs(60));
    world.show();
    assert_eq!(world.asked[..2], [canary, canary]);
}

#[test]
fn wave_whose_entry_was_not_applied_is_asked_again() {
    let mut world = World::new(1, 1);
    world.rotate();
    acknowledge_all(&mut world);
    world.hold = true;
    look(&mut world);
    assert_eq!((world.proposals.len(), world.asked.len()), (1, 0));
    world.fail(ProposeError::TimedOut);
    look(&mut world);
    assert_eq!(world.proposals.len(), 0, "after a pause");
    world.pass(Duration::from_secs(1));
    assert_eq!(world.proposals.len(), 1);
    world.hold = false;
    world.settle();
    world.run();
    assert_eq!(world.behind(), []);
}

#[test]
fn acknowledgements_gather_while_one_entry_is_on_its_way() {
    let mut world = World::new(1, 300);
    world.rotate();
    world.hold = true;
    let nodes: Vec<NodeId> = world.log.nodes.keys().copied().collect();
    let asks: Vec<_> = nodes.iter().map(|node| world.acknowledge(*node)).collect();
    assert_eq!(world.proposals.len(), 1, "the first one at once");
    assert_eq!(world.proposals[0].1.changes.len(), 1);
    world.hold = false;
    world.settle();
    assert!(asks.iter().all(|ask| world.answers[ask] == Ok(Answer::Trusted)));
    assert!(nodes.iter().all(|node| world.log.authorities.is_trusted_by(*node)));
    let before = world.log.revision;
    let again = world.acknowledge(nodes[0]);
    assert_eq!(
        (&world.answers[&again], world.log.revision),
        (&Ok(Answer::Trusted), before),
        "no entry for what is recorded"
    );
}

#[test]
fn acknowledgement_of_removed_node_or_later_roots_is_refused() {
    let mut world = World::new(1, 1);
    world.rotate();
    let unknown = world.acknowledge(id(999));
    assert_eq!(world.answers[&unknown].clone().unwrap_err().code, ErrorCode::NotFound);
    let later = muster_root_rotation::core::Input::Trusted(AskId(9_000), id(101), Revision(u64::MAX));
    world.input(later);
    assert!(world.answers[&AskId(9_000)].is_err());
    // A wrong one takes no others along in their entry, and writes none itself.
    let before = world.log.revision;
    world.hold = true;
    let first = world.acknowledge(id(1));
    for generation in [0, 1, u64::MAX] {
        world.input(muster_root_rotation::core::Input::Trusted(AskId(9_001), id(101), Revision(generation)));
        assert!(world.answers.remove(&AskId(9_001)).is_some(), "answered at once");
    }
    world.hold = false;
    world.settle();
    assert_eq!((&world.answers[&first], world.log.revision.0), (&Ok(Answer::Trusted), before.0 + 1));
    // The entry with several is refused as a whole: each asks again.
    world.add(102, Role::Worker);
    world.add(103, Role::Worker);
    world.show();
    world.hold = true;
    let first = world.acknowledge(id(102));
    let second = world.acknowledge(id(103));
    world.hold = false;
    world.fail(ProposeError::UnknownOutcome);
    assert!(world.answers[&first].clone().unwrap_err().retry_after_ms.is_some());
    assert_eq!(world.answers[&second], Ok(Answer::Trusted));
}

/// Nothing is recorded before there was a rotation: a snapshot stays readable for earlier builds.
#[test]
fn acknowledgement_without_a_rotation_writes_nothing() {
    let mut world = World::new(1, 1);
    let before = world.log.revision;
    world.input(muster_root_rotation::core::Input::Trusted(AskId(9_000), id(101), Revision(0)));
    assert!(world.answers[&AskId(9_000)].is_err());
    assert_eq!((world.log.revision, &world.log.authorities), (before, &Authorities::default()));
}

/// The entry's answer precedes the replica that shows it, and the entry may have changed nothing that the actor watches.
#[test]
fn nothing_is_decided_on_a_replica_that_lacks_what_was_done() {
    let mut world = World::new(1, 1);
    world.rotate();
    world.hold = true;
    for node in [id(1), id(101)] {
        world.acknowledge(node);
        world.settle();
    }
    look(&mut world);
    assert_eq!(world.proposals.len(), 1, "the activation");
    (world.hold, world.blind, world.catches_up) = (false, true, 0);
    world.settle();
    let activated = world.log.revision;
    for _ in 0..5 {
        world.pass(Duration::from_millis(200));
        world.input(muster_root_rotation::core::Input::Woke);
    }
    assert_eq!(world.log.revision, activated, "the replica lacks the activation, which is not repeated");
    assert!(world.catches_up > 0, "it waits for the replica");
    world.blind = false;
    world.run();
    assert_eq!(world.behind(), []);
}
