use muster_messages::protocol::ProposeError;
use muster_messages::{Change, CommandRefusal, Membership, MembershipChangeKind, RaftId, Role};

use super::world::*;
use crate::core::Notice;

#[test]
fn a_newcomer_becomes_learner_then_voter() {
    let mut w = World::cluster(41, 1);
    w.create(2);
    w.start_empty(2);
    assert_eq!(w.core(2).status(w.now).raft_id, None, "no member id until a leader sends a packet");
    let id = w.add_learner(2);
    assert_eq!(id, RaftId(2));
    w.until("it learns", |w| w.core(2).tables().membership_of(node_id(2)) == Membership::Learner);
    assert_eq!(w.core(2).status(w.now).raft_id, Some(id));
    let ask = w.propose_membership(1, MembershipChangeKind::PromoteLearner { node: node_id(2), raft_id: id });
    w.applied(ask);
    assert_eq!(w.core(1).configuration(), (vec![1, 2], vec![]));
}

/// Raft would probe it at the end of the leader's log first.
#[test]
fn new_learner_is_not_probed_before_its_first_append() {
    for compacted in [false, true] {
        let mut w = World::cluster(45, 1);
        if compacted {
            (w.config.snapshot_entries, w.config.keep_entries) = (10, 0);
            w.crash(1, usize::MAX);
            w.restart(1);
            w.until("it leads", |w| w.leading() == Some(1));
        }
        for n in 0..40 {
            let ask = w.propose(1, label("n", &n.to_string()));
            w.applied(ask);
        }
        w.create(2);
        w.start_empty(2);
        w.add_learner(2);
        w.until("it learns", |w| w.core(2).tables().membership_of(node_id(2)) == Membership::Learner);
        assert_eq!(w.rejected_appends, 0, "compacted: {compacted}");
        assert!(!compacted || !w.snapshots_sent.is_empty(), "the log does not reach back");
    }
}

/// An earlier leader may have sent it much of the log.
#[test]
fn learner_that_an_earlier_leader_added_is_probed() {
    let mut w = World::cluster(46, 3);
    let former = w.leading().expect("a leader");
    w.create(4);
    w.start_empty(4);
    let raft_id = w.core(former).tables().next_raft_id;
    let kind = MembershipChangeKind::AddLearner { node: node_id(4), raft_id, addr: "10.0.0.4:4400".to_owned() };
    let added = w.propose_membership(former, kind);
    let last = |w: &World, n: usize| w.core(n).log_span().1;
    let before = last(&w, former);
    w.until("the entry is in every log", |w| (1..=3).all(|n| last(w, n) > before));
    assert!(w.answer(added).is_none(), "not committed yet");
    w.crash(former, usize::MAX);
    w.until("another leader adds it", |w| w.core(4).tables().membership_of(node_id(4)) == Membership::Learner);
    assert!(w.rejected_appends > 0);
}

#[test]
fn member_id_with_lost_data_is_never_used_again() {
    let mut w = World::cluster(40, 3);
    w.run(ms(300));
    let lost = w.member_id(3).unwrap();
    w.start_empty_without(3, lost);
    w.run(ms(3000));
    assert_eq!(w.core(3).status(w.now).raft_id, None, "the leader still sends packets to the old member id");
    let ask = w.propose_membership(1, MembershipChangeKind::Remove { raft_id: lost });
    w.applied(ask);
    let newer = w.add_learner(3);
    w.until("it learns", |w| w.core(3).tables().membership_of(node_id(3)) == Membership::Learner);
    assert_eq!(w.core(3).status(w.now).raft_id, Some(newer));
}

#[test]
fn empty_replica_does_not_campaign() {
    let mut w = World::seeded(42);
    w.start_empty(2);
    w.run(ms(5000));
    assert_eq!((w.packets, w.core(2).status(w.now).raft_id), (0, None));
}

#[test]
fn refused_membership_change_changes_no_member() {
    let mut w = World::cluster(43, 3);
    w.create(4);
    // Valid when proposed, refused when applied: the demotion precedes it in the log.
    let demote = w.propose(1, command().change(Change::SetDesiredRole { node: node_id(4), role: Role::Worker }));
    let raft_id = w.core(1).tables().next_raft_id;
    let ask =
        w.propose_membership(1, MembershipChangeKind::AddLearner { node: node_id(4), raft_id, addr: "x:1".into() });
    w.applied(demote);
    assert!(matches!(w.outcome(ask), Err(ProposeError::Refused(_))));
    w.run(ms(500));
    for n in 1..=3 {
        assert_eq!(w.core(n).configuration(), (vec![1, 2, 3], vec![]));
        assert_eq!(w.core(n).tables().next_raft_id, raft_id);
    }
    let write = w.propose(1, label("a", "1"));
    w.applied(write);
}

#[test]
fn one_membership_change_at_a_time() {
    let mut w = World::cluster(44, 3);
    w.run(ms(200));
    w.create(4);
    w.create(5);
    let raft_id = w.core(1).tables().next_raft_id;
    let first =
        w.propose_membership(1, MembershipChangeKind::AddLearner { node: node_id(4), raft_id, addr: "x:1".into() });
    let second =
        w.propose_membership(1, MembershipChangeKind::AddLearner { node: node_id(5), raft_id, addr: "x:1".into() });
    assert_eq!(w.outcome(second), Err(ProposeError::MembershipBusy));
    w.applied(first);
}

#[test]
fn removed_follower_stops_campaigning_and_reports_it() {
    let mut w = World::cluster(45, 3);
    w.run(ms(200));
    let ask = w.propose_membership(1, MembershipChangeKind::Remove { raft_id: RaftId(3) });
    w.applied(ask);
    w.until("it knows", |w| w.nodes[&3].notices.iter().any(|(_, n)| matches!(n, Notice::MemberRemoved { .. })));
    assert_eq!(w.core(3).status(w.now).raft_id, None);
    let term = w.core(1).status(w.now).term;
    w.run(ms(5000));
    assert_eq!((w.core(3).status(w.now).term, w.core(1).status(w.now).term), (term, term));
}

/// It has no vote and never starts an election. It would name its last leader indefinitely, also to its agents.
#[test]
fn removed_member_drops_a_silent_leader() {
    let mut w = World::cluster(45, 3);
    w.run(ms(200));
    let ask = w.propose_membership(1, MembershipChangeKind::Remove { raft_id: RaftId(3) });
    w.applied(ask);
    w.until("it knows", |w| w.core(3).status(w.now).raft_id.is_none());
    assert_eq!(w.core(3).status(w.now).leader, Some(RaftId(1)), "its node may ask that leader for another membership");
    w.until("it has received nothing for a while", |w| w.core(3).replica().raft.leader.is_none());
    assert_eq!(w.core(3).replica().raft.leader_node, None);
}

#[test]
fn leader_that_removes_itself_steps_down_for_another() {
    for voters in [2, 3] {
        let mut w = World::cluster(46, voters);
        w.run(ms(300));
        let ask = w.propose_membership(1, MembershipChangeKind::Remove { raft_id: RaftId(1) });
        w.applied(ask);
        w.until("another leads", |w| w.leading().is_some_and(|l| l != 1));
        let l = w.leading().unwrap();
        let write = w.propose(l, label("a", "1"));
        w.applied(write);
        assert!(!w.core(l).configuration().0.contains(&1));
    }
}

#[test]
fn the_last_voter_cannot_be_removed() {
    let mut w = World::cluster(47, 1);
    let ask = w.propose_membership(1, MembershipChangeKind::Remove { raft_id: RaftId(1) });
    assert_eq!(w.outcome(ask), Err(ProposeError::Refused(CommandRefusal::LastManager)));
}

#[test]
fn node_removed_while_away_takes_its_new_member_id() {
    let mut w = World::cluster(48, 3);
    w.run(ms(300));
    w.isolate(3);
    let ask = w.propose_membership(1, MembershipChangeKind::Remove { raft_id: RaftId(3) });
    w.applied(ask);
    let id = w.add_learner(3);
    assert_eq!(id, RaftId(4), "RAFTID-1");
    w.clear_faults();
    w.until("it has the new member id", |w| {
        w.core(3).status(w.now).raft_id == Some(id)
            && w.core(3).tables().membership_of(node_id(3)) == Membership::Learner
    });
    let at = w.core(1).tables().revision;
    w.until("it catches up", |w| w.core(3).tables().revision >= at);
    w.crash(3, 0);
    w.restart(3);
    w.run(ms(1000));
    assert_eq!(w.core(3).status(w.now).raft_id, Some(id), "the member id is on disk");
}

#[test]
fn old_replica_follows_leader_with_new_member_id() {
    let mut w = World::cluster(49, 4);
    w.run(ms(300));
    w.isolate(4);
    // Node 2 loses member id 2, gets 5, and leads. Node 4 has applied none of it.
    let ask = w.propose_membership(1, MembershipChangeKind::Remove { raft_id: RaftId(2) });
    w.applied(ask);
    let id = w.add_learner(2);
    w.until("it learns", |w| {
        w.core(2).status(w.now).raft_id == Some(id)
            && w.core(2).tables().membership_of(node_id(2)) == Membership::Learner
    });
    let ask = w.propose_membership(1, MembershipChangeKind::PromoteLearner { node: node_id(2), raft_id: id });
    w.applied(ask);
    w.run(ms(300));
    let ask = w.ask();
    w.tell(1, crate::core::Input::TransferLeadership { ask, to: Some(node_id(2)) });
    w.until("node 2 leads", |w| w.leading() == Some(2));
    w.clear_faults();
    let write = w.propose(2, label("a", "1"));
    let at = w.applied(write);
    w.until("node 4 applies it", |w| w.core(4).tables().revision >= at);
}

#[test]
fn random_membership_and_crashes_keep_every_invariant() {
    for seed in 0..8 {
        let mut w = World::cluster(500 + seed, 3);
        w.loss_percent = 3;
        for i in 0..25 {
            w.run(ms(150));
            let Some(l) = w.leading() else { continue };
            let members: Vec<_> = w.core(l).tables().members.values().cloned().collect();
            let pick = members[(w.rng.sample() as usize) % members.len()].clone();
            match w.rng.sample() % 5 {
                0 if members.len() > 2 && World::number_of(pick.node) != l => {
                    w.propose_membership(l, MembershipChangeKind::Remove { raft_id: pick.raft_id });
                }
                1 => {
                    let free = (1..=3).find(|n| !members.iter().any(|m| m.node == node_id(*n)));
                    if let Some(n) = free {
                        let raft_id = w.core(l).tables().next_raft_id;
                        w.propose_membership(
                            l,
                            MembershipChangeKind::AddLearner { node: node_id(n), raft_id, addr: "x:1".into() },
                        );
                    }
                }
                2 => {
                    for m in members.iter().filter(|m| !m.voter) {
                        w.propose_membership(
                            l,
                            MembershipChangeKind::PromoteLearner { node: m.node, raft_id: m.raft_id },
                        );
                    }
                }
                3 => {
                    let n = World::number_of(pick.node);
                    w.crash(n, i % 3);
                    w.run(ms(100));
                    w.restart(n);
                }
                _ => drop(w.propose(l, label("a", &i.to_string()))),
            }
        }
        w.loss_percent = 0;
        w.until("it converges", |w| w.leading().is_some());
        let l = w.leading().unwrap();
        let write = w.propose(l, label("done", "yes"));
        w.applied(write);
    }
}
