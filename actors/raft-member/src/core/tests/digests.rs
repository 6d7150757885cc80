use muster_messages::{ClusterRecord, Revision};

use super::world::*;
use crate::core::{LogPoint, Notice};
use crate::disk::LogDisk as _;

fn comparing(n: usize) -> World {
    let mut w = World::seeded(71);
    w.config.digest_every = 16;
    w.level = 3;
    w.grow(n);
    w
}

fn write_to(w: &mut World, leader: usize, count: usize) {
    for i in 0..count {
        let ask = w.propose(leader, label("a", &format!("{i}")));
        w.applied(ask);
    }
}

/// A change that no entry describes.
fn corrupt_state(w: &mut World, n: usize) {
    let state = &mut w.nodes.get_mut(&n).unwrap().core.as_mut().unwrap().state;
    let mut tables = state.tables().clone();
    let cluster =
        ClusterRecord { founded_at: muster_messages::WallTime(7), ..(**tables.cluster.as_ref().unwrap()).clone() };
    tables.cluster = Some(cluster.into());
    state.install(tables);
}

/// STATE-1.
#[test]
fn equal_states_are_compared_without_notice() {
    let mut w = comparing(3);
    write_to(&mut w, 1, 100);
    w.run(ms(200));
    let compared = w.core(1).digests.received_count();
    assert!(compared >= 2, "only {compared} digests were compared");
    assert!(w.lost.is_empty());
    assert!(w.core(1).status(w.now).progress.iter().all(|p| p.problem.is_none()));
}

/// STATE-1.
#[test]
fn follower_with_different_state_stops_and_is_reported() {
    let mut w = comparing(3);
    w.unequal = true;
    corrupt_state(&mut w, 3);
    write_to(&mut w, 1, 40);
    w.until("it notices", |w| w.lost.contains_key(&3));
    assert_eq!(w.lost.keys().collect::<Vec<_>>(), [&3]);
    let member_id = w.member_id(3).unwrap();
    let status = w.core(1).status(w.now);
    let problem = status.progress.iter().find(|p| p.raft_id == member_id).unwrap().problem.as_ref();
    assert!(problem.is_some_and(|p| p.message.contains("is not the leader's")), "{problem:?}");
    assert!(
        w.nodes[&1]
            .notices
            .iter()
            .any(|(_, n)| matches!(n, Notice::StateDiverged { member, .. } if *member == member_id))
    );
}

/// STATE-1: the leader itself.
#[test]
fn leader_with_minority_state_stops() {
    let mut w = comparing(3);
    w.unequal = true;
    corrupt_state(&mut w, 1);
    write_to(&mut w, 1, 40);
    w.until("it notices", |w| w.lost.contains_key(&1));
    assert_eq!(w.lost.keys().collect::<Vec<_>>(), [&1]);
}

/// STATE-2.
#[test]
fn neither_of_two_differing_members_is_stopped() {
    let mut w = comparing(2);
    w.unequal = true;
    corrupt_state(&mut w, 2);
    write_to(&mut w, 1, 60);
    w.run(ms(500));
    assert!(w.lost.is_empty());
    assert!(w.core(1).status(w.now).progress.iter().any(|p| p.problem.is_some()), "the difference is reported");
}

/// A build of feature level 2 cannot read the packet.
#[test]
fn states_are_not_compared_below_level_three() {
    let mut w = World::seeded(72);
    w.config.digest_every = 16;
    w.grow(3);
    write_to(&mut w, 1, 60);
    w.run(ms(200));
    assert_eq!(w.core(1).digests.received_count(), 0);
}

/// F10. A follower's directory is restored from an older copy while it is down: it must not silently be filled up
/// again.
#[test]
fn follower_detects_loss_of_acknowledged_entries() {
    let mut w = World::cluster(73, 3);
    write_to(&mut w, 1, 20);
    w.run(ms(200));
    let old = w.nodes[&3].disk.clone();
    write_to(&mut w, 1, 20);
    w.run(ms(200));
    w.crash(3, 0);
    w.nodes.get_mut(&3).unwrap().disk = old;
    let recovered = w.nodes.get_mut(&3).unwrap().disk.recover().unwrap();
    let end = LogPoint { index: recovered.truncated.index + recovered.entries.len() as u64, term: 0 };
    w.restart(3);
    w.until("it notices", |w| w.lost.contains_key(&3));
    assert!(w.lost[&3].contains(&format!("ends with entry {}", end.index)), "{}", w.lost[&3]);
    assert!(w.core(3).tables().revision < Revision(end.index + 1), "it got none of the lost entries again");
}
