//! Expiries: when they are due, what they race with, and their outcomes.

use std::collections::BTreeMap;

use muster_elections::core::keeper::Outcome;
use muster_messages::*;

use crate::world::*;

#[test]
fn unrenewed_lease_expires_after_its_full_duration() {
    let mut w = World::new();
    let token = w.acquire("a", "x", ONE, 1000);
    w.pass(ms(999));
    assert!(w.proposed.is_empty());
    w.pass(ms(1));
    let command = &w.proposed[0];
    assert_eq!(command.by, Principal::Cluster);
    assert!(command.guards.contains(&Guard::InTerm(Term(5))));
    assert!(command.guards.contains(&Guard::LeaseToken { key: lease("a"), token }));
    w.settle();
    assert!(!w.is_live("a"));
    assert_eq!(w.lease("a").spec.held_by(), Some("x"), "its last holder stays visible");
    assert!(is_lost(&w.renew_now("a", ONE, token)));
    w.pass(ms(10_000));
    assert!(w.proposed.is_empty(), "it expires once");
}

#[test]
fn timely_renewal_delays_the_expiry_until_it_is_confirmed() {
    let mut w = World::new();
    let token = w.acquire("a", "x", ONE, 1000);
    w.pass(ms(950));
    let ask = w.renew("a", ONE, token);
    w.pass(ms(400));
    assert!(w.proposed.is_empty(), "its deadline has passed, its confirmation is in progress");
    w.confirm();
    assert_eq!(w.answers[&ask], renewed(1000));
    assert_eq!(w.left("a"), Some(600));
    w.pass(ms(600));
    assert_eq!(w.proposed.len(), 1);
}

#[test]
fn unconfirmed_renewal_no_longer_delays_the_expiry() {
    let mut w = World::new();
    let token = w.acquire("a", "x", ONE, 1000);
    w.pass(ms(950));
    w.renew("a", ONE, token);
    w.pass(ms(400));
    w.end_reads(&Err(ErrorBody::new(ErrorCode::NoQuorum, "not confirmed")));
    w.pass(ms(1));
    assert_eq!(w.proposed.len(), 1);
}

#[test]
fn renewal_by_another_session_does_not_delay_the_expiry() {
    let mut w = World::new();
    let token = w.acquire("a", "x", ONE, 1000);
    w.pass(ms(950));
    w.renew("a", TWO, token);
    w.renew("a", ONE, FencingToken(1));
    w.pass(ms(100));
    assert_eq!(w.proposed.len(), 1);
}

#[test]
fn renewal_received_before_the_beat_is_in_time() {
    let mut w = World::new();
    let token = w.acquire("a", "x", ONE, 1000);
    w.pass(ms(990));
    // Both wait in the mailbox at the deadline, the renewal first.
    w.freeze(ms(20));
    let ask = w.renew("a", ONE, token);
    w.pass(ms(1));
    assert!(w.proposed.is_empty());
    w.confirm();
    assert_eq!(w.answers[&ask], renewed(1000));
}

#[test]
fn a_renewal_behind_an_expiry_waits_for_its_outcome() {
    let mut w = World::new();
    let token = w.acquire("a", "x", ONE, 1000);
    w.pass(ms(1000));
    let ask = w.renew("a", ONE, token);
    w.confirm();
    w.pass(ms(50));
    w.confirm();
    assert_eq!(w.answers.get(&ask), None, "the expiry may still be applied");
    w.settle();
    w.pass(ms(10));
    w.confirm();
    assert!(is_lost(&w.answers[&ask]));
}

#[test]
fn renewal_behind_a_refused_expiry_is_valid() {
    let mut w = World::new();
    let token = w.acquire("a", "x", ONE, 1000);
    w.pass(ms(1000));
    let ask = w.renew("a", ONE, token);
    w.confirm();
    // The holder acquires again meanwhile; this replica does not know it yet.
    assert_eq!(w.acquire_unseen("a", "x", ONE, 1000), token);
    let command = w.proposed.remove(0);
    assert!(matches!(w.apply(&command), Err(CommandRefusal::Stale { .. })));
    w.end(command.request, Outcome::Refused);
    w.pass(ms(10));
    w.confirm();
    assert_eq!(w.answers[&ask], renewed(1000));
    assert!(w.is_live("a"));
    w.pass(ms(900));
    assert!(w.proposed.is_empty());
}

#[test]
fn unknown_expiry_is_proposed_again_until_its_outcome() {
    let mut w = World::new();
    let token = w.acquire("a", "x", ONE, 1000);
    w.pass(ms(1000));
    let first = w.proposed.remove(0);
    let ask = w.renew("a", ONE, token);
    w.confirm();
    w.end(first.request, Outcome::Unknown);
    w.pass(ms(1000));
    let second = w.proposed.remove(0);
    assert_eq!(
        (second.request, &second.guards),
        (first.request, &first.guards),
        "the same request, so that it happens once"
    );
    // The log was full this time. The first may be in it nevertheless.
    w.end(second.request, Outcome::NotTaken);
    w.pass(ms(100));
    w.confirm();
    assert_eq!(w.answers.get(&ask), None);
    w.pass(ms(100));
    assert_eq!(w.proposed[0].request, first.request);
    assert!(w.apply(&first).is_ok());
    w.settle();
    w.pass(ms(10));
    w.confirm();
    assert!(is_lost(&w.answers[&ask]));
}

#[test]
fn expiry_that_missed_the_log_lets_the_renewal_succeed() {
    let mut w = World::new();
    let token = w.acquire("a", "x", ONE, 1000);
    w.pass(ms(1000));
    let command = w.proposed.remove(0);
    let ask = w.renew("a", ONE, token);
    w.confirm();
    w.end(command.request, Outcome::NotTaken);
    w.pass(ms(10));
    w.confirm();
    assert_eq!(w.answers[&ask], renewed(1000));
    w.pass(ms(900));
    assert!(w.proposed.is_empty());
}

#[test]
fn failed_expiry_is_retried_while_it_is_due() {
    let mut w = World::new();
    w.acquire("a", "x", ONE, 1000);
    w.pass(ms(1000));
    let command = w.proposed.remove(0);
    w.end(command.request, Outcome::NotTaken);
    w.pass(ms(199));
    assert!(w.proposed.is_empty(), "not at once: the cause of the refusal may still exist");
    w.pass(ms(1));
    w.settle();
    assert!(!w.is_live("a"));
}

#[test]
fn next_incarnation_finishes_the_expiries_of_the_last() {
    let mut w = World::new();
    let token = w.acquire("a", "x", ONE, 1000);
    w.pass(ms(1000));
    let lost = w.proposed.remove(0);
    w.restart(8 << 100);
    assert_eq!(w.proposed[0].request, lost.request);
    // The last incarnation's proposal may be applied at any time: no renewal is answered before its outcome is known.
    let ask = w.renew("a", ONE, token);
    w.confirm();
    assert_eq!(w.answers.get(&ask), None);
    assert!(w.apply(&lost).is_ok());
    w.settle();
    w.pass(ms(10));
    w.confirm();
    assert!(is_lost(&w.answers[&ask]));
}

#[test]
fn finished_expiry_does_not_return_after_a_restart() {
    let mut w = World::new();
    let token = w.acquire("a", "x", ONE, 1000);
    w.pass(ms(1000));
    let late = w.proposed.remove(0);
    // The log was full; the holder was late, and has been renewed since.
    w.end(late.request, Outcome::NotTaken);
    assert_eq!(w.renew_now("a", ONE, token), renewed(1000));
    w.restart(8 << 100);
    w.pass(ms(900));
    assert_eq!(w.proposed, []);
    assert_eq!(w.renew_now("a", ONE, token), renewed(1000));
}

#[test]
fn suspended_process_gives_holders_that_time_back() {
    let mut w = World::new();
    let token = w.acquire("a", "x", ONE, 1000);
    w.pass(ms(500));
    w.freeze(ms(5000));
    w.pass(ms(0));
    w.show();
    assert!((500..=600).contains(&w.left("a").unwrap()), "the pause since its last beat, and not more");
    // The renewal that waited in a socket meanwhile is read now.
    assert_eq!(w.renew_now("a", ONE, token), renewed(1000));
    assert_eq!(w.keeper.tally().pauses, 1);
}

#[test]
fn a_machine_that_is_merely_busy_gives_nothing_back() {
    let mut w = World::new();
    w.acquire("a", "x", ONE, 1000);
    for _ in 0..4 {
        w.freeze(ms(240));
        w.show();
    }
    assert_eq!((w.left("a"), w.keeper.tally().pauses), (Some(40), 0));
}

#[test]
fn simultaneous_expiries_are_bounded() {
    let mut w = World::new();
    for n in 0..500 {
        w.acquire(&format!("l{n}"), "x", SessionId(n), 1000);
    }
    w.pass(ms(1000));
    assert_eq!(w.proposed.len(), w.config.expiring);
    let mut rounds = 0;
    while !w.proposed.is_empty() {
        assert!(w.proposed.len() <= w.config.expiring);
        w.settle();
        rounds += 1;
    }
    assert!((0..500).all(|n| !w.is_live(&format!("l{n}"))), "in {rounds} rounds, without another beat");
}

#[test]
fn lease_renewed_during_other_expiries_is_checked_again() {
    let mut w = World::new();
    let mut tokens = BTreeMap::new();
    for n in 0..100 {
        tokens.insert(n, w.acquire(&format!("l{n:03}"), "x", ONE, 1000));
    }
    w.pass(ms(1000));
    assert_eq!(w.proposed.len(), 64);
    // Found due with the rest, not proposed yet, and renewed now.
    assert_eq!(w.renew_now("l099", ONE, tokens[&99]), renewed(1000));
    w.settle();
    w.settle();
    assert!(w.is_live("l099") && !w.is_live("l098"));
    w.pass(ms(1000));
    w.settle();
    assert!(!w.is_live("l099"));
}
