//! Expiries: when they are due, what they race with, and what is owed to them.

use std::collections::BTreeMap;

use muster_elections::core::keeper::Outcome;
use muster_messages::*;

use crate::world::*;

#[test]
fn a_lease_that_nobody_renews_expires_after_its_full_duration_and_not_before() {
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
fn a_renewal_that_came_in_time_holds_up_the_expiry_until_it_is_confirmed() {
    let mut w = World::new();
    let token = w.acquire("a", "x", ONE, 1000);
    w.pass(ms(950));
    let ask = w.renew("a", ONE, token);
    w.pass(ms(400));
    assert!(w.proposed.is_empty(), "its deadline has passed, its confirmation is under way");
    w.confirm();
    assert_eq!(w.answers[&ask], renewed(1000));
    assert_eq!(w.left("a"), Some(600));
    w.pass(ms(600));
    assert_eq!(w.proposed.len(), 1);
}

#[test]
fn a_renewal_that_is_not_confirmed_holds_nothing_up_any_more() {
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
fn a_renewal_of_somebody_else_holds_nothing_up() {
    let mut w = World::new();
    let token = w.acquire("a", "x", ONE, 1000);
    w.pass(ms(950));
    w.renew("a", TWO, token);
    w.renew("a", ONE, FencingToken(1));
    w.pass(ms(100));
    assert_eq!(w.proposed.len(), 1);
}

#[test]
fn a_renewal_that_was_heard_before_the_beat_is_in_time() {
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
fn a_renewal_behind_an_expiry_that_was_refused_is_good() {
    let mut w = World::new();
    let token = w.acquire("a", "x", ONE, 1000);
    w.pass(ms(1000));
    let ask = w.renew("a", ONE, token);
    w.confirm();
    // The holder acquires again meanwhile; this copy does not know it yet.
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
fn an_expiry_of_unknown_outcome_is_asked_about_until_the_log_has_said() {
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
    // The log was full this time. The first may lie in it all the same.
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
fn an_expiry_that_never_reached_the_log_gives_the_renewal_its_chance() {
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
fn what_failed_is_tried_again_while_it_is_due() {
    let mut w = World::new();
    w.acquire("a", "x", ONE, 1000);
    w.pass(ms(1000));
    let command = w.proposed.remove(0);
    w.end(command.request, Outcome::NotTaken);
    w.pass(ms(199));
    assert!(w.proposed.is_empty(), "not at once: whatever refused it is still busy");
    w.pass(ms(1));
    w.settle();
    assert!(!w.is_live("a"));
}

#[test]
fn the_next_incarnation_owes_the_expiries_of_the_last() {
    let mut w = World::new();
    let token = w.acquire("a", "x", ONE, 1000);
    w.pass(ms(1000));
    let lost = w.proposed.remove(0);
    w.restart(8 << 100);
    assert_eq!(w.proposed[0].request, lost.request);
    // What the last incarnation proposed may come through at any time: no renewal is answered before that is known.
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
fn an_expiry_that_is_over_does_not_come_back_with_the_next_incarnation() {
    let mut w = World::new();
    let token = w.acquire("a", "x", ONE, 1000);
    w.pass(ms(1000));
    let late = w.proposed.remove(0);
    // The log was full; the holder was late, and has been told since that it holds on.
    w.end(late.request, Outcome::NotTaken);
    assert_eq!(w.renew_now("a", ONE, token), renewed(1000));
    w.restart(8 << 100);
    w.pass(ms(900));
    assert_eq!(w.proposed, []);
    assert_eq!(w.renew_now("a", ONE, token), renewed(1000));
}

#[test]
fn a_process_that_stood_still_gives_holders_that_time_back() {
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
fn holders_that_die_together_are_expired_a_bounded_number_at_a_time() {
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
fn one_that_is_renewed_while_others_are_expired_is_looked_at_again() {
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
