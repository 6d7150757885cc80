//! REACH-1: a member counts only if it acknowledged a heartbeat sent after the check began. REACH-2: a membership change waits for a
//! majority of the voters that it results in.

use std::collections::BTreeSet;

use muster_messages::protocol::ProposeError;
use muster_messages::{MembershipChangeKind, Moment, RaftId};

use super::world::*;
use crate::core::reachability::MAX_CHECKS;
use crate::core::{Answer, AskId, Input, Notice};

type Reachable = Result<BTreeSet<RaftId>, ProposeError>;

fn ids<const N: usize>(numbers: [u64; N]) -> BTreeSet<RaftId> {
    numbers.map(RaftId).into()
}

/// Makes node `n` check three members, for half a second at most.
fn check(w: &mut World, n: usize, needed: usize) -> (AskId, Moment) {
    check_within(w, n, needed, 500)
}
fn check_within(w: &mut World, n: usize, needed: usize, within_ms: u64) -> (AskId, Moment) {
    let (ask, deadline) = (w.ask(), w.now + ms(within_ms));
    w.tell(n, Input::CheckReachable { ask, members: ids([1, 2, 3]), needed, deadline });
    (ask, deadline)
}

fn result(w: &mut World, ask: AskId) -> Reachable {
    w.until("the result of the check", |w| w.answer(ask).is_some());
    match w.answer(ask) {
        Some(Answer::Reachable(_, result)) => result.clone(),
        other => panic!("{other:?}"),
    }
}

fn three(seed: u64) -> World {
    let mut w = World::cluster(seed, 3);
    w.run(ms(500));
    assert_eq!(w.leading(), Some(1));
    w
}

#[test]
fn check_ends_as_soon_as_enough_members_responded() {
    for needed in 1..=3 {
        let mut w = three(needed as u64);
        let began = w.now;
        let (ask, _) = check(&mut w, 1, needed);
        let reachable = result(&mut w, ask).unwrap();
        assert!(reachable.len() >= needed && reachable.contains(&RaftId(1)), "with the leader itself: {reachable:?}");
        // One network round trip: neither a tick nor a repeated heartbeat was needed.
        let took = w.now.since(began);
        assert!(took <= ms(10), "{took:?}");
    }
}

#[test]
fn member_lost_a_moment_ago_is_unreachable() {
    for cut_links in [false, true] {
        let mut w = three(4);
        if cut_links {
            w.cut_links.insert((3, 1));
        } else {
            w.crash(3, 0);
        }
        let progress = w.core(1).status(w.now).progress;
        let acked = progress.iter().find(|p| p.raft_id == RaftId(3)).and_then(|p| p.acked_ago);
        assert!(
            acked.is_some_and(|ago| ago < w.config.election_timeout),
            "its last acknowledgement is recent: {acked:?}"
        );

        let (ask, _) = check(&mut w, 1, 2);
        assert_eq!(result(&mut w, ask), Ok(ids([1, 2])));
        let (ask, deadline) = check(&mut w, 1, 3);
        assert_eq!(result(&mut w, ask), Ok(ids([1, 2])), "the members that responded before the deadline");
        assert!(deadline <= w.now && w.now.since(deadline) <= ms(50));
    }
}

#[test]
fn acknowledgements_of_earlier_heartbeats_do_not_count() {
    let mut w = three(5);
    // The heartbeats of an earlier check and of a read arrived at both followers. Then member 3 is disconnected.
    let (before, (other, _)) = (w.packets, check(&mut w, 1, 3));
    w.read(1);
    w.until("both followers received both heartbeats", |w| w.packets >= before + 4);
    w.cut_links.insert((1, 3));
    let (ask, _) = check(&mut w, 1, 3);
    assert_eq!(result(&mut w, ask), Ok(ids([1, 2])));
    assert_eq!(result(&mut w, other), Ok(ids([1, 2, 3])));
}

#[test]
fn lost_heartbeats_are_repeated() {
    for seed in 0..20 {
        let mut w = three(seed);
        w.loss_percent = 25;
        let (ask, deadline) = check_within(&mut w, 1, 3, 10_000);
        assert_eq!(result(&mut w, ask), Ok(ids([1, 2, 3])), "seed {seed}");
        assert!(w.now < deadline, "seed {seed}");
    }
}

#[test]
fn unknown_members_are_unreachable() {
    let mut w = three(6);
    let (ask, deadline) = (w.ask(), w.now + ms(100));
    w.tell(1, Input::CheckReachable { ask, members: ids([2, 77]), needed: 2, deadline });
    assert_eq!(result(&mut w, ask), Ok(ids([2])));
}

#[test]
fn only_a_leader_answers_a_check() {
    let mut w = three(7);
    let (ask, _) = check(&mut w, 2, 2);
    assert!(matches!(result(&mut w, ask), Err(ProposeError::NotLeader { .. })));

    w.isolate(1);
    let (ask, deadline) = check_within(&mut w, 1, 2, 60_000);
    let error = result(&mut w, ask).expect_err("the leader stepped down");
    assert!(matches!(error, ProposeError::NotLeader { .. } | ProposeError::NoQuorum { .. }), "{error:?}");
    assert!(w.now < deadline);
}

#[test]
fn single_voter_checks_its_learner() {
    let mut w = World::cluster(8, 1);
    w.create(2);
    w.start_empty(2);
    let learner = w.add_learner(2);
    w.run(ms(500));
    for runs in [true, false] {
        if !runs {
            w.crash(2, 0);
        }
        let (ask, deadline) = (w.ask(), w.now + ms(500));
        w.tell(1, Input::CheckReachable { ask, members: ids([1, learner.0]), needed: 2, deadline });
        assert_eq!(result(&mut w, ask).unwrap().contains(&learner), runs);
    }
}

/// A faulty member must not become reachable for later checks.
#[test]
fn acknowledgement_of_a_future_round_is_ignored() {
    let mut w = three(9);
    w.claims_future_rounds = Some(2);
    let (ask, _) = check(&mut w, 1, 3);
    assert_eq!(result(&mut w, ask), Ok(ids([1, 3])));
}

#[test]
fn checks_in_progress_are_limited() {
    let mut w = three(9);
    w.isolate(3);
    let open: Vec<AskId> = (0..MAX_CHECKS).map(|_| check(&mut w, 1, 3).0).collect();
    let (refused, _) = check(&mut w, 1, 3);
    assert_eq!(result(&mut w, refused), Err(ProposeError::Busy));
    for ask in open {
        assert_eq!(result(&mut w, ask), Ok(ids([1, 2])));
    }
    let (ask, _) = check(&mut w, 1, 2);
    assert_eq!(result(&mut w, ask), Ok(ids([1, 2])), "there is room again");
}

#[test]
fn change_of_voters_waits_for_a_majority_of_the_result() {
    let mut w = three(10);
    let ask = w.propose_confirmed(1, MembershipChangeKind::Remove { raft_id: RaftId(3) }, Some(ms(500)));
    w.applied(ask);
    assert_eq!(w.core(1).configuration(), (vec![1, 2], vec![]));
    let entered: Vec<(Moment, Moment)> = (w.nodes[&1].notices.iter())
        .filter_map(|(at, notice)| match notice {
            Notice::MembershipProposed { kind: MembershipChangeKind::Remove { .. }, since } => Some((*since, *at)),
            _ => None,
        })
        .collect();
    let [(since, at)] = entered[..] else { panic!("{entered:?}") };
    assert!(since < at && at.since(since) <= ms(10), "one network round trip: {since:?}, {at:?}");
}

#[test]
fn change_without_a_responding_majority_is_not_proposed() {
    let mut w = three(11);
    w.crash(3, 0);
    // Of members 1 and 3, which it would leave, one responds.
    let remove = MembershipChangeKind::Remove { raft_id: RaftId(2) };
    let ask = w.propose_confirmed(1, remove.clone(), Some(ms(500)));
    let address = MembershipChangeKind::SetAddress { raft_id: RaftId(2), addr: "10.0.0.9:4400".to_owned() };
    let other = w.propose_membership(1, address);
    assert_eq!(w.outcome(other), Err(ProposeError::MembershipBusy), "one at a time");
    let refusal = ProposeError::TooFewReachable { voters: ids([1, 3]), reachable: ids([1]) };
    assert_eq!(w.outcome(ask), Err(refusal));
    w.run(ms(500));
    assert_eq!(w.core(1).configuration(), (vec![1, 2, 3], vec![]));
    w.restart(3);
    let again = w.propose_confirmed(1, remove, Some(ms(5000)));
    w.applied(again);
    assert_eq!(w.core(1).configuration(), (vec![1, 3], vec![]));
}

#[test]
fn change_that_waits_ends_with_the_leadership() {
    let mut w = three(12);
    w.isolate(1);
    let remove = MembershipChangeKind::Remove { raft_id: RaftId(3) };
    let ask = w.propose_confirmed(1, remove, Some(ms(60_000)));
    let error = w.outcome(ask).expect_err("the leader stepped down");
    assert!(matches!(error, ProposeError::NotLeader { .. } | ProposeError::NoQuorum { .. }), "{error:?}");
    w.run(ms(500));
    assert_eq!(w.core(1).configuration(), (vec![1, 2, 3], vec![]));
}

#[test]
fn change_confirmed_during_a_transfer_is_refused() {
    let mut w = three(13);
    w.crash(2, 0);
    let remove = MembershipChangeKind::Remove { raft_id: RaftId(2) };
    let ask = w.propose_confirmed(1, remove.clone(), Some(ms(500)));
    // It fails: the target is down. Meanwhile nothing enters the log.
    let transfer = w.ask();
    w.tell(1, Input::TransferLeadership { ask: transfer, to: Some(node_id(2)) });
    assert_eq!(w.outcome(ask), Err(ProposeError::MembershipBusy));
    w.until("the end of the transfer", |w| w.answer(transfer).is_some());
    let again = w.propose_confirmed(1, remove, Some(ms(5000)));
    w.applied(again);
    assert_eq!(w.core(1).configuration(), (vec![1, 3], vec![]));
}
