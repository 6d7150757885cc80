//! ROLL-1: whoever is counted has answered a heartbeat that left after the roll was called.

use std::collections::BTreeSet;

use muster_messages::protocol::ProposeError;
use muster_messages::{Moment, RaftId};

use super::world::*;
use crate::core::{Answer, AskId, Input};

type Found = Result<BTreeSet<RaftId>, ProposeError>;

fn seats<const N: usize>(numbers: [u64; N]) -> BTreeSet<RaftId> {
    numbers.map(RaftId).into()
}

/// Calls the roll of three members and waits for `enough` of them, for half a second at most.
fn call(w: &mut World, n: usize, enough: usize) -> (AskId, Moment) {
    call_within(w, n, enough, 500)
}
fn call_within(w: &mut World, n: usize, enough: usize, within_ms: u64) -> (AskId, Moment) {
    let (ask, deadline) = (w.ask(), w.now + ms(within_ms));
    w.tell(n, Input::RollCall { ask, seats: seats([1, 2, 3]), enough, deadline });
    (ask, deadline)
}

fn found(w: &mut World, ask: AskId) -> Found {
    w.until("an answer to the roll call", |w| w.answer(ask).is_some());
    match w.answer(ask) {
        Some(Answer::RollCalled(_, found)) => found.clone(),
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
fn it_ends_as_soon_as_enough_have_answered() {
    for enough in 1..=3 {
        let mut w = three(enough as u64);
        let called_at = w.now;
        let (ask, _) = call(&mut w, 1, enough);
        let found = found(&mut w, ask).unwrap();
        assert!(found.len() >= enough && found.contains(&RaftId(1)), "the leader counts itself: {found:?}");
        // At most two ways of the network and one pass of every core: no tick and no repetition was needed.
        let took = w.now.since(called_at);
        assert!(took <= ms(10), "{took:?}");
    }
}

#[test]
fn one_that_died_or_was_cut_off_a_moment_ago_is_not_counted() {
    for cut in [false, true] {
        let mut w = three(4);
        if cut {
            w.cut.insert((3, 1));
        } else {
            w.crash(3, 0);
        }
        let progress = w.core(1).status(w.now).progress;
        let acked = progress.iter().find(|p| p.raft_id == RaftId(3)).and_then(|p| p.acked_ago);
        assert!(acked.is_some_and(|ago| ago < w.config.election_timeout), "it acknowledged just now: {acked:?}");

        let (ask, _) = call(&mut w, 1, 2);
        assert_eq!(found(&mut w, ask), Ok(seats([1, 2])));
        let (ask, deadline) = call(&mut w, 1, 3);
        assert_eq!(found(&mut w, ask), Ok(seats([1, 2])), "all that have answered, when its time is over");
        assert!(deadline <= w.now && w.now.since(deadline) <= ms(50));
    }
}

/// What is under way when the roll is called says that its sender was there, not that it is.
#[test]
fn answers_that_left_before_the_call_are_not_counted() {
    let mut w = three(5);
    // The heartbeats of another call and of a read reach both, and their answers are on the way, when 3 is lost.
    let (before, (other, _)) = (w.packets, call(&mut w, 1, 3));
    w.read(1);
    w.until("both have been asked", |w| w.packets >= before + 4);
    w.cut.insert((1, 3));
    let (ask, _) = call(&mut w, 1, 3);
    assert_eq!(found(&mut w, ask), Ok(seats([1, 2])));
    assert_eq!(found(&mut w, other), Ok(seats([1, 2, 3])));
}

#[test]
fn heartbeats_that_are_lost_are_repeated() {
    for seed in 0..20 {
        let mut w = three(seed);
        w.loss_percent = 25;
        let (ask, deadline) = call_within(&mut w, 1, 3, 10_000);
        assert_eq!(found(&mut w, ask), Ok(seats([1, 2, 3])), "seed {seed}");
        assert!(w.now < deadline, "seed {seed}");
    }
}

#[test]
fn members_that_nobody_knows_are_absent() {
    let mut w = three(6);
    let (ask, deadline) = (w.ask(), w.now + ms(100));
    w.tell(1, Input::RollCall { ask, seats: seats([2, 77]), enough: 2, deadline });
    assert_eq!(found(&mut w, ask), Ok(seats([2])));
}

#[test]
fn who_does_not_lead_or_loses_leadership_meanwhile_says_so() {
    let mut w = three(7);
    let (ask, _) = call(&mut w, 2, 2);
    assert!(matches!(found(&mut w, ask), Err(ProposeError::NotLeader { .. })));

    w.isolate(1);
    let (ask, deadline) = call_within(&mut w, 1, 2, 60_000);
    let error = found(&mut w, ask).expect_err("it has stepped down");
    assert!(matches!(error, ProposeError::NotLeader { .. } | ProposeError::NoQuorum { .. }), "{error:?}");
    assert!(w.now < deadline);
}

/// raft answers the reads of a leader that votes alone at once, without a heartbeat.
#[test]
fn a_learner_is_asked_by_a_leader_that_votes_alone() {
    let mut w = World::cluster(8, 1);
    w.create(2);
    w.start_empty(2);
    let learner = w.add_learner(2);
    w.run(ms(500));
    for there in [true, false] {
        if !there {
            w.crash(2, 0);
        }
        let (ask, deadline) = (w.ask(), w.now + ms(500));
        w.tell(1, Input::RollCall { ask, seats: seats([1, learner.0]), enough: 2, deadline });
        assert_eq!(found(&mut w, ask).unwrap().contains(&learner), there);
    }
}
