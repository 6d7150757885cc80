use muster_messages::RaftRole;

use super::world::*;
use crate::core::{Answer, Input, Notice};

#[test]
fn a_dead_leader_is_replaced_after_the_ordinary_timeout() {
    let mut w = World::cluster(21, 3);
    w.run(ms(500));
    w.crash(1, 0);
    let died = w.now;
    w.until("another leads", |w| w.leading().is_some());
    assert!(w.now.since(died) < ms(3000));
}

#[test]
fn a_leader_loss_hint_elects_within_200_ms() {
    for seed in 0..100 {
        let mut w = World::cluster(400 + seed, 3);
        w.run(ms(500));
        w.crash(1, 0);
        let died = w.now;
        w.tell(2, Input::LeaderGone { node: node_id(1) });
        w.tell(3, Input::LeaderGone { node: node_id(1) });
        w.until("another leads", |w| w.leading().is_some());
        let took = w.now.since(died);
        assert!(took < ms(200), "seed {seed}: {took:?}");
    }
}

#[test]
fn one_broken_link_starts_no_election() {
    let mut w = World::cluster(22, 3);
    w.run(ms(500));
    let term = w.core(1).status(w.now).term;
    w.cut_links.insert((1, 2));
    w.cut_links.insert((2, 1));
    w.tell(2, Input::LeaderGone { node: node_id(1) });
    w.run(ms(400));
    w.cut_links.clear();
    w.run(ms(1000));
    assert_eq!((w.leading(), w.core(1).status(w.now).term), (Some(1), term));
}

#[test]
fn leadership_is_handed_over_on_request() {
    let mut w = World::cluster(23, 3);
    w.run(ms(500));
    let ask = w.ask();
    w.tell(1, Input::TransferLeadership { ask, to: Some(node_id(3)) });
    let asked = w.now;
    w.until("answered", |w| w.answer(ask).is_some());
    assert!(matches!(w.answer(ask), Some(Answer::Transferred(_, Ok(node))) if *node == node_id(3)));
    assert!(w.now.since(asked) < ms(100));
    w.until("it leads", |w| w.leading() == Some(3));
}

#[test]
fn transfer_without_target_picks_most_caught_up_voter() {
    let mut w = World::cluster(24, 3);
    w.run(ms(500));
    w.isolate(2);
    let write = w.propose(1, label("a", "1"));
    w.applied(write);
    let ask = w.ask();
    w.tell(1, Input::TransferLeadership { ask, to: None });
    w.until("answered", |w| w.answer(ask).is_some());
    assert!(matches!(w.answer(ask), Some(Answer::Transferred(_, Ok(node))) if *node == node_id(3)));
}

#[test]
fn lost_transfer_request_is_repeated() {
    let mut w = World::cluster(28, 3);
    w.run(ms(500));
    let (ask, asked) = (w.ask(), w.now);
    w.cut_links.insert((1, 3));
    w.tell(1, Input::TransferLeadership { ask, to: Some(node_id(3)) });
    w.run(ms(20));
    w.cut_links.clear();
    w.until("answered", |w| w.answer(ask).is_some());
    assert!(matches!(w.answer(ask), Some(Answer::Transferred(_, Ok(node))) if *node == node_id(3)));
    assert!(w.now.since(asked) < ms(300), "{:?}", w.now.since(asked));
}

#[test]
fn transfer_target_repeats_lost_campaign_early() {
    for seed in 0..20 {
        let mut w = World::cluster(2900 + seed, 3);
        w.run(ms(500));
        let (ask, asked) = (w.ask(), w.now);
        w.cut_links.extend([(3, 1), (3, 2)]);
        w.tell(1, Input::TransferLeadership { ask, to: Some(node_id(3)) });
        w.run(ms(20));
        w.cut_links.clear();
        w.until("it leads", |w| w.leading() == Some(3));
        assert!(w.now.since(asked) < ms(500), "seed {seed}: {:?}", w.now.since(asked));
    }
}

#[test]
fn proposals_during_transfer_end_with_true_outcomes() {
    let mut w = World::cluster(25, 3);
    w.run(ms(500));
    let before: Vec<_> = (0..10).map(|i| w.propose(1, label("a", &i.to_string()))).collect();
    let ask = w.ask();
    w.tell(1, Input::TransferLeadership { ask, to: Some(node_id(2)) });
    let after: Vec<_> = (0..10).map(|i| w.propose(1, label("b", &i.to_string()))).collect();
    let outcomes: Vec<_> = before.into_iter().map(|a| w.outcome(a)).collect();
    assert!(outcomes.iter().all(Result::is_ok), "in the log before the transfer: {outcomes:?}");
    after.into_iter().for_each(|a| drop(w.outcome(a)));
}

#[test]
fn failed_transfer_to_unreachable_voter_keeps_leader() {
    let mut w = World::cluster(26, 3);
    w.run(ms(500));
    w.isolate(3);
    w.run(ms(50));
    let behind = w.propose(1, label("a", "0"));
    w.applied(behind);
    let ask = w.ask();
    w.tell(1, Input::TransferLeadership { ask, to: Some(node_id(3)) });
    w.until("answered", |w| w.answer(ask).is_some());
    assert!(matches!(w.answer(ask), Some(Answer::Transferred(_, Err(_)))));
    let write = w.propose(1, label("a", "1"));
    w.applied(write);
}

#[test]
fn a_leader_whose_disk_hangs_steps_down_and_another_serves() {
    let mut w = World::cluster(27, 3);
    w.run(ms(500));
    w.nodes.get_mut(&1).unwrap().disk_takes = None;
    let _never = w.propose(1, label("a", "1"));
    w.until("another leads", |w| w.leading().is_some_and(|l| l != 1));
    assert!(w.nodes[&1].notices.iter().any(|(_, n)| matches!(n, Notice::DiskTooSlow { stepped_down: true, .. })));
    let l = w.leading().unwrap();
    let write = w.propose(l, label("a", "2"));
    w.applied(write);
}

#[test]
fn only_voter_with_a_slow_disk_keeps_leading() {
    let mut w = World::cluster(29, 1);
    w.run(ms(500));
    let term = w.core(1).status(w.now).term;
    w.nodes.get_mut(&1).unwrap().disk_takes = Some(ms(5000));
    let write = w.propose(1, label("a", "1"));
    w.applied(write);
    let status = w.core(1).status(w.now);
    assert_eq!((status.role, status.term), (RaftRole::Leader, term));
    let slow =
        |(_, n): &&(muster_messages::Moment, Notice)| matches!(n, Notice::DiskTooSlow { stepped_down: false, .. });
    assert_eq!(w.nodes[&1].notices.iter().filter(slow).count(), 1, "reported once for each write");
}

#[test]
fn returning_isolated_leader_causes_no_election() {
    let mut w = World::cluster(28, 3);
    w.run(ms(500));
    w.isolate(1);
    w.until("it steps down", |w| w.core(1).status(w.now).role != RaftRole::Leader);
    w.until("another leads", |w| w.leading().is_some());
    let (l, term) = (w.leading().unwrap(), w.core(w.leading().unwrap()).status(w.now).term);
    w.run(ms(5000));
    w.clear_faults();
    w.run(ms(3000));
    assert_eq!((w.leading(), w.core(l).status(w.now).term), (Some(l), term), "pre-vote");
    assert_eq!(w.core(1).status(w.now).leader_node, Some(node_id(l)));
}

/// S69. Every message that it sends arrives, but it receives none.
#[test]
fn leader_that_receives_nothing_steps_down_for_good() {
    let mut w = World::cluster(30, 3);
    w.run(ms(500));
    assert_eq!(w.leading(), Some(1));
    w.cut_links.extend([(2, 1), (3, 1)]);
    w.until("it steps down", |w| w.core(1).status(w.now).role != RaftRole::Leader);
    w.until("another leads", |w| w.leading().is_some_and(|l| l != 1));
    let l = w.leading().unwrap();
    let term = w.core(l).status(w.now).term;
    for n in 0..100 {
        w.run(ms(100));
        assert_ne!(w.core(1).status(w.now).role, RaftRole::Leader);
        assert_eq!((w.leading(), w.core(l).status(w.now).term), (Some(l), term), "after {n} tenths of a second");
    }
    let ask = w.propose(l, label("written", "meanwhile"));
    w.applied(ask);
    w.clear_faults();
    w.until("it follows", |w| w.core(1).status(w.now).leader_node == Some(node_id(l)));
    assert_eq!(w.core(l).status(w.now).term, term, "and deposed no leader");
}

#[test]
fn acknowledgement_ages_show_live_members() {
    let mut w = World::cluster(29, 3);
    w.run(ms(1000));
    let age = |w: &World, n: usize| {
        w.core(1).status(w.now).progress.iter().find(|p| p.node == Some(node_id(n))).unwrap().acked_ago
    };
    assert!(age(&w, 2).unwrap() < ms(200));
    w.isolate(3);
    w.run(ms(900));
    assert!(age(&w, 2).unwrap() < ms(200));
    assert!(age(&w, 3).unwrap() > ms(600));
}
