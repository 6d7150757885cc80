use muster_messages::protocol::ProposeError;
use muster_messages::{Change, CommandRefusal, RaftRole};

use super::world::*;

#[test]
fn founder_leads_alone_and_three_members_replicate() {
    let mut w = World::cluster(1, 3);
    let ask = w.propose(1, label("a", "1"));
    let at = w.applied(ask);
    w.until("all have it", |w| (1..=3).all(|n| w.core(n).tables().revision >= at));
    assert!((1..=3).all(|n| w.label(n, "a").as_deref() == Some("1")));
    assert_eq!(w.core(2).status(w.now).leader_node, Some(node_id(1)));
}

#[test]
fn a_guard_that_does_not_hold_is_refused_and_changes_nothing() {
    let mut w = World::cluster(2, 3);
    let ask =
        w.propose(1, command().change(Change::GrantRole { node: node_id(9), role: muster_messages::Role::Worker }));
    assert!(matches!(w.outcome(ask), Err(ProposeError::Refused(CommandRefusal::NotFound { .. }))));
}

#[test]
fn a_follower_does_not_take_proposals() {
    let mut w = World::cluster(3, 3);
    w.run(ms(300));
    let ask = w.propose(2, label("a", "1"));
    assert_eq!(w.outcome(ask), Err(ProposeError::NotLeader { leader: Some(node_id(1)) }));
}

#[test]
fn acknowledged_writes_survive_power_loss_on_all_members() {
    for seed in 0..12 {
        let mut w = World::cluster(100 + seed, 3);
        let mut acknowledged = Vec::new();
        for i in 0..30 {
            let Some(l) = w.leading() else {
                w.run(ms(50));
                continue;
            };
            let ask = w.propose(l, label("a", &i.to_string()));
            let within = w.rng.sample() % 12;
            w.run(ms(within));
            if let Some(crate::core::Answer::Proposed(_, Ok(applied))) = w.answer(ask) {
                acknowledged.push((applied.revision, i));
            }
            let victim = 1 + (w.rng.sample() % 3) as usize;
            match w.rng.sample() % 6 {
                0 if w.up().count() == 3 => w.crash(victim, (i % 2) as usize),
                1 => {
                    let down: Vec<usize> = (1..=3).filter(|n| w.nodes[n].core.is_none()).collect();
                    down.into_iter().for_each(|n| w.restart(n));
                }
                _ => {}
            }
        }
        for n in 1..=3 {
            if w.nodes[&n].core.is_some() {
                w.crash(n, 0);
            }
        }
        (1..=3).for_each(|n| w.restart(n));
        w.until("there is a leader again", |w| w.leading().is_some());
        assert!(!acknowledged.is_empty());
        let l = w.leading().unwrap();
        let last = acknowledged.last().unwrap();
        assert!(w.core(l).tables().revision >= last.0);
        let read = w.read(l);
        let seen = w.read_outcome(read).unwrap().tables.nodes[&node_id(1)].labels["a"].parse::<i32>().unwrap();
        assert!(seen >= last.1, "seed {seed}: {} was acknowledged, {seen} is there", last.1);
    }
}

#[test]
fn nothing_is_acknowledged_before_a_quorum_of_disks_has_it() {
    let mut w = World::cluster(5, 3);
    w.run(ms(300));
    w.nodes.get_mut(&2).unwrap().disk_takes = None;
    w.nodes.get_mut(&3).unwrap().disk_takes = None;
    w.run(ms(5));
    let ask = w.propose(1, label("a", "1"));
    w.run(ms(200));
    assert!(w.answer(ask).is_none(), "only one disk has it");
    w.nodes.get_mut(&3).unwrap().disk_takes = Some(ms(1));
    w.start_sync(3);
    w.applied(ask);
}

#[test]
fn a_proposal_ends_exactly_once_when_leadership_is_lost() {
    for seed in 0..10 {
        let mut w = World::cluster(200 + seed, 3);
        w.run(ms(200));
        let lost: Vec<_> = (0..20).map(|i| w.propose(1, label("a", &i.to_string()))).collect();
        w.run(ms(seed % 4));
        w.isolate(1);
        let more: Vec<_> = (0..5).map(|i| w.propose(1, label("b", &i.to_string()))).collect();
        w.until("another leads", |w| w.leading().is_some_and(|l| l != 1));
        w.run(ms(3000));
        for ask in lost.iter().chain(&more) {
            assert!(w.answer(*ask).is_some(), "seed {seed}: {ask:?} was never answered");
        }
        w.clear_faults();
        w.run(ms(1000));
        // A definite "not applied" must be true: the new leader's state never contains it.
        let l = w.leading().unwrap();
        for (i, ask) in more.iter().enumerate() {
            if matches!(w.answer(*ask), Some(crate::core::Answer::Proposed(_, Err(ProposeError::NotLeader { .. })))) {
                assert_ne!(w.label(l, "b"), Some(i.to_string()));
            }
        }
        lost.iter().chain(&more).for_each(|ask| drop(w.answer(*ask).cloned()));
    }
}

#[test]
fn without_quorum_a_write_names_the_missing_managers() {
    let mut w = World::cluster(7, 3);
    w.run(ms(300));
    w.crash(2, 0);
    w.crash(3, 0);
    let ask = w.propose_within(1, label("a", "1"), ms(3000));
    let started = w.now;
    let mut missing = vec![node_id(2), node_id(3)];
    missing.sort();
    // It is in the log: the other two members may restart with it and still commit it.
    assert_eq!(w.outcome(ask), Err(ProposeError::UnknownOutcome));
    assert!(w.now.since(started) <= ms(3000));
    w.run(ms(1500));
    let again = w.propose(1, label("a", "2"));
    assert_eq!(w.outcome(again), Err(ProposeError::NoQuorum { missing }));
}

/// A network that drops packets ends no session for seconds: missing members are known by their silence, well within a caller's
/// deadline.
#[test]
fn isolated_member_names_silent_peers_with_open_sessions() {
    let mut w = World::cluster(7, 3);
    w.run(ms(300));
    for n in [2, 3] {
        w.cut_links.extend([(1, n), (n, 1)]);
    }
    let mut missing = vec![node_id(2), node_id(3)];
    missing.sort();
    w.until("it steps down", |w| w.core(1).status(w.now).role != RaftRole::Leader);
    assert_eq!(w.core(1).status(w.now).silent, missing, "at once: that is the reason for stepping down");
    w.run(ms(2000));
    let status = w.core(1).status(w.now);
    assert_eq!((status.leader, &status.silent), (None, &missing));
    let ask = w.propose(1, label("a", "1"));
    assert_eq!(w.outcome(ask), Err(ProposeError::NoQuorum { missing }));
    for n in [2, 3] {
        assert!(w.core(n).status(w.now).silent.is_empty(), "a member with a leader reports no silent members");
    }
}

#[test]
fn too_many_proposals_are_refused_as_busy() {
    let mut w = World::seeded(8);
    w.config.max_proposals = 10;
    w.grow(1);
    let asks: Vec<_> = (0..25).map(|i| w.propose(1, label("a", &i.to_string()))).collect();
    let outcomes: Vec<_> = asks.into_iter().map(|a| w.outcome(a)).collect();
    assert_eq!(outcomes.iter().filter(|o| o.is_ok()).count(), 10);
    assert!(outcomes.iter().all(|o| matches!(o, Ok(_) | Err(ProposeError::Busy))));
}

#[test]
fn proposals_of_one_turn_share_a_write_and_an_append() {
    let mut w = World::cluster(9, 3);
    w.run(ms(300));
    let before = w.packets;
    let asks: Vec<_> = (0..64).map(|i| w.propose(1, label("a", &i.to_string()))).collect();
    for ask in asks {
        w.applied(ask);
    }
    assert!(w.packets - before < 30, "{} packets for 64 proposals", w.packets - before);
}

#[test]
fn reads_on_leader_and_follower_see_acknowledged_writes() {
    let mut w = World::cluster(10, 3);
    for i in 0..20 {
        let ask = w.propose(1, label("a", &i.to_string()));
        let at = w.applied(ask);
        for n in [1, 2, 3] {
            let read = w.read(n);
            assert!(w.read_outcome(read).unwrap().tables.revision >= at);
        }
    }
}

#[test]
fn reads_survive_lost_packets_and_a_new_leader() {
    let mut w = World::cluster(11, 3);
    w.loss_percent = 20;
    w.run(ms(500));
    let reads: Vec<_> = [1, 2, 3].into_iter().map(|n| w.read(n)).collect();
    reads.into_iter().for_each(|r| drop(w.read_outcome(r).unwrap()));
    w.loss_percent = 0;
    w.crash(1, 0);
    let read = w.read(2);
    assert!(w.read_outcome(read).is_ok(), "requested without a leader, answered by the next one");
}

#[test]
fn an_isolated_leader_confirms_no_read() {
    let mut w = World::cluster(12, 3);
    w.run(ms(300));
    w.isolate(1);
    let read = w.read(1);
    assert!(w.read_outcome(read).is_err());
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let mut w = World::cluster(seed, 3);
        w.loss_percent = 5;
        w.run(ms(2000));
        w.crash(1, 0);
        w.run(ms(3000));
        (w.packets, w.describe())
    };
    assert_eq!(run(13), run(13));
}

#[test]
fn large_catch_up_uses_packets_that_fit_a_frame() {
    let mut w = World::cluster(14, 3);
    w.run(ms(300));
    w.crash(3, 0);
    for i in 0..12 {
        let asks: Vec<_> =
            (0..4).map(|j| w.propose(1, label(&format!("k{j}"), &format!("{i}{}", "x".repeat(200_000))))).collect();
        for ask in asks {
            w.applied(ask);
        }
    }
    w.restart(3);
    let at = w.core(1).tables().revision;
    w.until("it catches up", |w| w.core(3).tables().revision >= at);
}

#[test]
fn command_larger_than_a_frame_is_refused() {
    let mut w = World::cluster(15, 1);
    let ask = w.propose(1, label("a", &"x".repeat(600_000)));
    assert!(matches!(w.outcome(ask), Err(ProposeError::TooLarge { .. })));
    let ask = w.propose(1, label("a", &"x".repeat(2_000_000)));
    assert!(matches!(w.outcome(ask), Err(ProposeError::TooLarge { .. })));
}

#[cfg(feature = "bug-injection")]
#[test]
fn acknowledging_before_the_sync_is_detected() {
    let lost = (0..10).any(|seed| {
        let mut w = World::seeded(300 + seed);
        w.config.bugs.ack_before_sync = true;
        w.grow(1);
        w.run(ms(100));
        w.nodes.get_mut(&1).unwrap().disk_takes = None;
        w.run(ms(10));
        let ask = w.propose(1, label("a", "1"));
        w.applied(ask);
        w.crash(1, 0);
        w.restart(1);
        w.until("it leads again", |w| w.leading().is_some());
        w.label(1, "a").is_none()
    });
    assert!(lost);
}
