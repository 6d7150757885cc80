//! Renewals: what they move, what they wait for, and when they are refused.

use muster_elections::core::keeper::Outcome;
use muster_messages::protocol::Renewal;
use muster_messages::*;

use crate::world::*;

#[test]
fn renewal_extends_the_deadline_from_its_arrival() {
    let mut w = World::new();
    let token = w.acquire("a", "x", ONE, 1000);
    w.pass(ms(600));
    let ask = w.renew("a", ONE, token);
    assert_eq!(w.left("a"), Some(400), "not before a quorum has confirmed this leader");
    w.pass(ms(90));
    w.confirm();
    assert_eq!(w.answers[&ask], renewed(1000));
    assert_eq!(w.left("a"), Some(910), "counted from its arrival, not from its confirmation");
}

#[test]
fn a_renewal_leaves_nothing_in_the_log() {
    let mut w = World::new();
    let token = w.acquire("a", "x", ONE, 1000);
    let before = w.tables.clone();
    for _ in 0..20 {
        w.pass(ms(500));
        assert_eq!(w.renew_now("a", ONE, token), renewed(1000));
    }
    assert!(w.proposed.is_empty());
    assert_eq!(w.tables, before);
}

#[test]
fn renewal_needs_a_read_that_began_after_its_arrival() {
    let mut w = World::new();
    let (a, b) = (w.acquire("a", "x", ONE, 1000), w.acquire("b", "y", TWO, 1000));
    let first = w.renew("a", ONE, a);
    assert_eq!(w.reads.len(), 1, "a single renewal is not delayed");
    let second = w.renew("b", TWO, b);
    w.confirm();
    assert!(w.answers.contains_key(&first) && !w.answers.contains_key(&second));
    w.pass(ms(10));
    w.confirm();
    assert_eq!(w.answers[&second], renewed(1000));
}

#[test]
fn holder_unknown_to_this_replica_is_not_lost() {
    let mut w = World::new();
    let token = w.acquire_unseen("a", "x", ONE, 1000);
    assert_eq!(w.left("a"), None);
    assert_eq!(w.renew_now("a", ONE, token), renewed(1000), "the read's replica has it");
    assert_eq!(w.left("a"), Some(990 + 10), "seen 10 ms after it arrived: a full duration from then");
}

#[test]
fn process_of_the_same_name_takes_the_lease_over() {
    let mut w = World::new();
    let first = w.acquire("a", "x", ONE, 1000);
    let second = w.acquire("a", "x", TWO, 1000);
    assert!(second > first);
    assert!(is_lost(&w.renew_now("a", ONE, first)));
    assert!(is_lost(&w.renew_now("a", ONE, second)), "a token alone is not enough");
    assert!(is_lost(&w.renew_now("a", TWO, first)));
    assert_eq!(w.renew_now("a", TWO, second), renewed(1000));
}

#[test]
fn what_was_released_or_deleted_is_lost_and_has_no_clock() {
    let mut w = World::new();
    let (a, b) = (w.acquire("a", "x", ONE, 1000), w.acquire("b", "x", ONE, 1000));
    w.change(Change::ReleaseLease { key: lease("a"), session: ONE, token: a });
    w.change(Change::DeleteObject { key: lease("b"), force: true });
    w.show();
    assert_eq!((w.left("a"), w.left("b"), w.keeper.timed()), (None, None, 0));
    assert!(is_lost(&w.renew_now("a", ONE, a)));
    assert!(is_lost(&w.renew_now("b", ONE, b)));
    w.pass(ms(5000));
    assert!(w.proposed.is_empty(), "no lease expires");
}

#[test]
fn the_leases_of_one_renewal_are_answered_in_the_order_asked() {
    let mut w = World::new();
    let (a, b) = (w.acquire("a", "x", ONE, 1000), w.acquire("b", "x", ONE, 2000));
    let ask = w.renew_all(ONE, vec![(lease("b"), b), (lease("none"), a), (lease("a"), a)]);
    w.confirm();
    let answer = w.answers[&ask].clone().unwrap();
    assert_eq!(answer[0], Renewal::Renewed { expires_in_ms: 2000 });
    assert!(matches!(answer[1], Renewal::Lost { .. }));
    assert_eq!(answer[2], Renewal::Renewed { expires_in_ms: 1000 });
}

#[test]
fn leader_deposed_before_confirmation_acknowledges_nothing() {
    for frozen in [false, true] {
        for case in 0..4 {
            let mut w = World::new();
            let token = w.acquire("a", "x", ONE, 1000);
            w.pass(ms(600));
            let ask = w.renew("a", ONE, token);
            if frozen {
                w.freeze(ms(30_000));
            }
            let result = match case {
                0 => Err(ErrorBody::new(ErrorCode::NoQuorum, "not confirmed")),
                // The read was confirmed by the leader of another term, which this member follows, or as which it leads.
                1 => Ok(w.replica(Term(6), false)),
                2 => Ok(w.replica(Term(6), true)),
                _ => Ok(w.replica(Term(5), false)),
            };
            w.end_reads(&result);
            let error = w.answers[&ask].clone().unwrap_err();
            assert!(error.retry_after_ms.is_some() || error.code == ErrorCode::NoQuorum, "{error:?}");
            assert_eq!(w.left("a"), Some(400), "the deadline has not moved");
        }
    }
}

#[test]
fn frozen_leader_cannot_expire_a_lease_under_the_next_one() {
    let mut w = World::new();
    let token = w.acquire("a", "x", ONE, 1000);
    w.pass(ms(900));
    w.renew("a", ONE, token);
    w.freeze(ms(20_000));
    w.end_reads(&Err(ErrorBody::new(ErrorCode::NoQuorum, "not confirmed")));
    w.pass(ms(2000));
    assert_eq!(w.proposed.len(), 1, "it still considers itself the leader");
    // Another manager leads by now: any entry that this one still gets into a log is of a later term.
    w.term = Term(6);
    w.settle();
    assert!(w.is_live("a"));
}

#[test]
fn a_new_leader_starts_every_lease_in_full() {
    let mut w = World::new();
    w.acquire("a", "x", ONE, 1000);
    w.pass(ms(900));
    let mut next = World::new();
    next.tables = w.tables.clone();
    next.now = w.now;
    next.freeze(ms(200));
    next.show();
    assert_eq!(next.left("a"), Some(1000));
    next.pass(ms(999));
    assert!(next.proposed.is_empty());
    next.pass(ms(1));
    assert_eq!(next.proposed.len(), 1);
}

#[test]
fn only_writes_of_the_holder_restart_the_clock() {
    let mut w = World::new();
    let spec = |at: i64| {
        move |s: &mut LeaseSpec| {
            s.holder = Some("k8s".to_owned());
            s.duration_ms = Some(1000);
            s.renewed = Some(MicroTime(at));
        }
    };
    w.put("a", spec(1));
    w.pass(ms(700));
    // However wrong the client's clock is: only the change counts.
    w.put("a", spec(-5));
    assert_eq!(w.left("a"), Some(1000));
    w.pass(ms(300));
    w.put("a", |s| s.preferred_holder = Some("better".to_owned()));
    assert_eq!(w.left("a"), Some(700), "a coordinator's preference is not a renewal");
    w.pass(ms(700));
    w.settle();
    assert!(!w.is_live("a"));
    w.put("a", spec(9));
    assert!(w.is_live("a"));
    assert_eq!(w.left("a"), Some(1000), "renewed again by the same holder");
}

#[test]
fn acquiring_again_in_one_millisecond_restarts_the_clock() {
    let mut w = World::new();
    let at = WallTime(77);
    let acquire = |w: &mut World| {
        let holder = "x".to_owned();
        let change = Change::AcquireLease { key: lease("a"), holder, session: ONE, duration_ms: 1000, uid: Uid(1) };
        w.apply(&Command::idempotent(at, Principal::Operator, "test").change(change)).unwrap();
        w.show();
    };
    acquire(&mut w);
    w.pass(ms(900));
    acquire(&mut w);
    assert_eq!(w.left("a"), Some(1000));
}

#[test]
fn shorter_duration_does_not_shorten_a_promised_time() {
    let mut w = World::new();
    let token = w.acquire("a", "x", ONE, 10_000);
    assert_eq!(w.renew_now("a", ONE, token), renewed(10_000));
    assert_eq!(w.acquire("a", "x", ONE, 1000), token, "its holder acquires it again");
    assert!(w.left("a").unwrap() > 9000);
    assert_eq!(w.renew_now("a", ONE, token), renewed(1000), "from now on");
}

#[test]
fn a_lease_without_a_duration_has_no_clock() {
    let mut w = World::new();
    w.put("a", |s| (s.holder, s.duration_ms) = (Some("x".to_owned()), None));
    assert_eq!(w.left("a"), None);
    w.pass(ms(3_600_000));
    assert!(w.proposed.is_empty());
}

#[test]
fn excess_renewal_is_refused_with_a_retry_time() {
    let mut w = World::new();
    let token = w.acquire("a", "x", ONE, 1000);
    let many = vec![(lease("a"), token); w.config.max_waiting];
    let first = w.renew_all(ONE, many);
    let second = w.renew("a", ONE, token);
    let error = w.answers[&second].clone().unwrap_err();
    assert_eq!(error.code, ErrorCode::TooManyRequests);
    assert!(error.retry_after_ms.is_some());
    w.confirm();
    assert!(w.answers[&first].is_ok());
    assert_eq!(w.keeper.waiting(), 0);
    assert_eq!(w.renew_now("a", ONE, token), renewed(1000), "there is capacity again");
}

#[test]
fn unconfirmed_renewal_ends_with_the_callers_timeout() {
    let mut w = World::new();
    let token = w.acquire("a", "x", ONE, 60_000);
    w.renew("a", ONE, token);
    w.pass(ms(10));
    w.renew("a", ONE, token);
    let third = w.renew("a", ONE, token);
    assert_eq!(w.reads.len(), 2, "the bound of reads in progress");
    w.pass(ms(5100));
    assert_eq!(w.answers[&third].clone().unwrap_err().code, ErrorCode::TimedOut);
}

#[test]
fn remaining_time_is_known_for_leases_with_a_clock() {
    let mut w = World::new();
    w.acquire("a", "x", ONE, 1000);
    w.acquire("b", "x", ONE, 500);
    w.pass(ms(100));
    let asked = vec![lease("a"), lease("b"), lease("none")];
    let left: Vec<_> = w.keeper.remaining(w.now, asked).into_values().collect();
    assert_eq!(left, [900, 400]);
    let soonest: Vec<_> = w.keeper.soonest(w.now, 1).into_iter().map(|(key, _)| key).collect();
    assert_eq!(soonest, [lease("b")]);
    w.pass(ms(500));
    assert_eq!(w.left("b"), Some(0), "its expiry is in progress");
    w.end(w.proposed[0].request, Outcome::Applied);
    assert_eq!(w.left("b"), None);
}
