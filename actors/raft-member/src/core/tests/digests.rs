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

/// Something that no entry says.
fn spoil(w: &mut World, n: usize) {
    let tables = &mut w.nodes.get_mut(&n).unwrap().core.as_mut().unwrap().tables;
    let cluster =
        ClusterRecord { founded_at: muster_messages::WallTime(7), ..(**tables.cluster.as_ref().unwrap()).clone() };
    tables.cluster = Some(cluster.into());
}

/// STATE-1.
#[test]
fn equal_states_are_compared_and_nothing_is_said() {
    let mut w = comparing(3);
    write_to(&mut w, 1, 100);
    w.run(ms(200));
    let heard = w.core(1).digests_heard();
    assert!(heard >= 2, "{heard} digests were compared");
    assert!(w.lost.is_empty());
    assert!(w.core(1).status(w.now).progress.iter().all(|p| p.problem.is_none()));
}

/// STATE-1.
#[test]
fn follower_whose_state_differs_stops_and_is_shown() {
    let mut w = comparing(3);
    w.unequal = true;
    spoil(&mut w, 3);
    write_to(&mut w, 1, 40);
    w.until("it notices", |w| w.lost.contains_key(&3));
    assert_eq!(w.lost.keys().collect::<Vec<_>>(), [&3]);
    let seat = w.seat(3).unwrap();
    let status = w.core(1).status(w.now);
    let problem = status.progress.iter().find(|p| p.raft_id == seat).unwrap().problem.as_ref();
    assert!(problem.is_some_and(|p| p.message.contains("is not the leader's")), "{problem:?}");
    assert!(
        w.nodes[&1].notices.iter().any(|(_, n)| matches!(n, Notice::StateDiverged { member, .. } if *member == seat))
    );
}

/// STATE-1: the leader itself.
#[test]
fn leader_whose_state_is_the_minority_stops() {
    let mut w = comparing(3);
    w.unequal = true;
    spoil(&mut w, 1);
    write_to(&mut w, 1, 40);
    w.until("it notices", |w| w.lost.contains_key(&1));
    assert_eq!(w.lost.keys().collect::<Vec<_>>(), [&1]);
}

/// STATE-2.
#[test]
fn of_two_members_that_differ_none_is_stopped() {
    let mut w = comparing(2);
    w.unequal = true;
    spoil(&mut w, 2);
    write_to(&mut w, 1, 60);
    w.run(ms(500));
    assert!(w.lost.is_empty());
    assert!(w.core(1).status(w.now).progress.iter().any(|p| p.problem.is_some()), "it is shown");
}

/// A build of feature level 2 cannot read the packet.
#[test]
fn below_level_three_nothing_is_compared() {
    let mut w = World::seeded(72);
    w.config.digest_every = 16;
    w.grow(3);
    write_to(&mut w, 1, 60);
    w.run(ms(200));
    assert_eq!(w.core(1).digests_heard(), 0);
}

/// F10. A follower's directory is put back to an older copy while it is down: it must not be filled up in silence.
#[test]
fn follower_that_lost_acknowledged_entries_notices() {
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
    assert!(w.core(3).tables().revision < Revision(end.index + 1), "it was given nothing of what it had lost");
}
