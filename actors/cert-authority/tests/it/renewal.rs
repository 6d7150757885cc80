//! Certificates for members: for the granted role, recorded before they are handed out, and never for the wrong ones.
use std::time::Duration;

use crate::world::*;
use muster_cert_authority::Config;
use muster_cert_authority::core::*;
use muster_cert_authority::sabotage::{self, Sabotage};
use muster_messages::protocol::ProposeError;
use muster_messages::*;
use muster_pki::root_id_of_pem;

#[test]
fn a_renewal_is_signed_for_the_granted_role_not_for_the_wished_one() {
    let mut world = World::new();
    world.add(2, Role::Worker);
    world.change(Change::SetDesiredRole { node: id(2), role: Role::Manager });
    let granted = world.node(2).granted;
    assert_eq!(grant(&world.renew(2)), (Role::Worker, Some(granted)));
}

#[test]
fn after_a_promotion_the_certificate_says_manager_and_after_a_demotion_worker() {
    let mut world = World::new();
    world.add(2, Role::Worker);
    for role in [Role::Manager, Role::Worker] {
        world.change(Change::GrantRole { node: id(2), role });
        let answer = world.renew(2);
        assert_eq!(grant(&answer), (role, Some(world.node(2).granted)));
        let record = world.node(2).certificate.clone().unwrap();
        assert_eq!((record.role, record.serial), (role, certificate(&answer).serial));
        assert_eq!(world.node(2).certificate_state(), CertificateState::Issued);
    }
}

#[test]
fn a_certificate_goes_out_only_once_its_record_is_applied() {
    let mut world = World::new();
    world.add(2, Role::Worker);
    world.hold = true;
    let wish = world.renewal(2);
    let ask = world.ask(wish);
    assert_eq!(world.core.pending().map(|p| p.phase()).collect::<Vec<_>>(), ["recording"]);
    assert!(world.answer(ask).is_none());
    world.settle();
    assert!(world.answer(ask).unwrap().is_ok());
    assert_eq!(world.core.pending().count(), 0);
}

/// The role that a request is signed for is the one at the moment it is recorded, not the one at the moment it was asked.
#[test]
fn a_grant_that_changes_while_signing_is_signed_again() {
    let mut world = World::new();
    world.add(2, Role::Worker);
    world.hold = true;
    let wish = world.renewal(2);
    let ask = world.ask(wish);
    world.change(Change::GrantRole { node: id(2), role: Role::Manager });
    world.settle();
    let answer = world.answer(ask).unwrap();
    assert_eq!(grant(answer), (Role::Manager, Some(world.node(2).granted)));
    assert_eq!(world.signed.len(), 2, "the first certificate was never handed out");
    assert_eq!(world.node(2).certificate.as_ref().unwrap().serial, certificate(answer).serial);
}

#[test]
fn an_old_copy_is_caught_up_with_before_signing_again() {
    let mut world = World::new();
    world.add(2, Role::Worker);
    world.blind = true;
    world.change(Change::GrantRole { node: id(2), role: Role::Manager });
    let wish = world.renewal(2);
    let ask = world.ask(wish);
    assert!(world.answer(ask).is_none());
    assert_eq!(world.core.pending().map(|p| p.phase()).collect::<Vec<_>>(), ["catching_up"]);
    world.blind = false;
    world.show();
    assert_eq!(grant(world.answer(ask).unwrap()).0, Role::Manager);
}

#[test]
fn a_grant_that_never_rests_ends_in_a_refusal_that_says_when_to_come_back() {
    let mut world = World::new();
    world.add(2, Role::Worker);
    world.hold = true;
    let wish = world.renewal(2);
    let ask = world.ask(wish);
    for round in 0..20 {
        let role = if round % 2 == 0 { Role::Manager } else { Role::Worker };
        world.change(Change::GrantRole { node: id(2), role });
        let Some((step, command)) = world.proposals.pop_front() else { break };
        world.log.revision = world.log.revision.next();
        let at = world.log.revision.next();
        let refusal = muster_store::apply(&mut world.log, at, &command).unwrap_err();
        world.show();
        world.input(Input::Proposed(step, Err(ProposeError::Refused(refusal))));
    }
    let refusal = world.answer(ask).unwrap().as_ref().unwrap_err();
    assert_eq!(refusal.code, ErrorCode::Conflict);
    assert!(refusal.retry_after_ms.unwrap() <= 1000);
    assert!(world.signed.len() <= 8);
}

/// A node whose role changed must not wait long because the authority was busy for a moment.
#[test]
fn whatever_will_pass_is_worth_a_retry_within_a_second() {
    for failed in [
        ProposeError::NotLeader { leader: None },
        ProposeError::Busy,
        ProposeError::UnknownOutcome,
        ProposeError::NoQuorum { missing: vec![id(9)] },
    ] {
        let mut world = World::new();
        world.add(2, Role::Worker);
        world.hold = true;
        let wish = world.renewal(2);
        let ask = world.ask(wish);
        world.fail(failed);
        let refusal = world.answer(ask).unwrap().as_ref().unwrap_err();
        assert!(refusal.retry_after_ms.unwrap() <= 1000, "{refusal}");
        world.hold = false;
        assert!(world.renew(2).is_ok(), "and the next request is served as if nothing had been");
    }
}

/// What was issued earlier counts although what is issued now expires sooner.
#[test]
fn the_latest_expiry_ever_issued_is_remembered_when_lifetimes_shrink() {
    let mut long = World::new();
    long.add(2, Role::Worker);
    let first = certificate(&long.renew(2)).not_after;
    let mut short = World::with(Config { node_lifetime: HOUR, ..Config::default() });
    short.log = long.log.clone();
    short.show();
    let wish = short.renewal(2);
    short.ask(wish);
    assert_eq!(short.node(2).last_not_after, first);
    assert!(short.node(2).certificate.as_ref().unwrap().not_after < first);
    short.remove(2);
    assert!(short.log.blocklist[&id(2)].expires_at > first);
}

#[test]
fn blocked_removed_and_foreign_nodes_get_nothing() {
    let mut world = World::new();
    world.add(2, Role::Manager);
    world.remove(2);
    assert_eq!(code(&world.renew(2)), ErrorCode::Blocked);
    world.change(Change::Unblock(id(2)));
    assert_eq!(code(&world.renew(2)), ErrorCode::Removed);
    let Wish::Node(mut wish) = world.renewal(1) else { unreachable!() };
    wish.identity.cluster = ClusterId::from_entropy(99);
    let ask = world.ask(Wish::Node(wish.clone()));
    assert_eq!(code(world.answer(ask).unwrap()), ErrorCode::Forbidden);
    wish.identity.subject = Subject::Admin("ada".parse().unwrap());
    let ask = world.ask(Wish::Node(wish));
    assert_eq!(code(world.answer(ask).unwrap()), ErrorCode::Forbidden);
    assert!(world.signed.is_empty());
}

#[test]
fn a_removal_that_overtakes_the_record_wins() {
    for (blocked, wanted) in [(true, ErrorCode::Blocked), (false, ErrorCode::Removed)] {
        let mut world = World::new();
        world.add(2, Role::Worker);
        (world.hold, world.blind) = (true, true);
        let wish = world.renewal(2);
        let ask = world.ask(wish);
        world.remove(2);
        if !blocked {
            world.change(Change::Unblock(id(2)));
        }
        world.settle();
        assert_eq!(code(world.answer(ask).unwrap()), wanted);
    }
}

#[test]
fn requests_in_progress_are_bounded_and_joins_leave_room_for_renewals() {
    let mut world = World::with(Config { max_pending: 4, max_joins: 2, ..Config::default() });
    (2..5).for_each(|n| world.add(n, Role::Worker));
    world.hold = true;
    for n in 10..13 {
        world.ask(Wish::Join(Box::new(joiner(n, WORKER))));
    }
    let refusal = world.answers.values().next().unwrap().as_ref().unwrap_err();
    assert_eq!(refusal.code, ErrorCode::TooManyRequests);
    assert!(refusal.retry_after_ms.is_some());
    assert_eq!(world.core.pending().count(), 2);
    let asks: Vec<AskId> = (2..5)
        .map(|n| {
            let wish = world.renewal(n);
            world.ask(wish)
        })
        .collect();
    assert!(world.answer(asks[1]).is_none());
    assert_eq!(code(world.answer(asks[2]).unwrap()), ErrorCode::TooManyRequests);
    world.settle();
    assert!(world.answer(asks[1]).unwrap().is_ok());
}

#[test]
fn a_request_that_is_not_done_in_time_says_where_it_stood() {
    let mut world = World::new();
    world.add(2, Role::Worker);
    world.hold = true;
    let wish = world.renewal(2);
    let ask = world.ask(wish);
    world.now = world.alarm.unwrap();
    world.input(Input::Woke);
    let refusal = world.answer(ask).unwrap().as_ref().unwrap_err();
    assert_eq!(refusal.code, ErrorCode::TimedOut);
    assert!(refusal.message.contains("recording"), "{refusal}");
    world.settle(); // comes late: nobody waits, nothing is answered twice
    world.alarm = None;
    let wish = world.renewal(2);
    world.ask(wish);
    assert!(world.alarm.is_some(), "the next request is watched again");
}

#[test]
fn a_signer_that_fails_is_shown_once_in_the_node_s_record() {
    let mut world = World::new();
    world.add(2, Role::Worker);
    world.renew(2).unwrap();
    world.signer_fails = true;
    let before = world.log.revision;
    for _ in 0..5 {
        assert_eq!(code(&world.renew(2)), ErrorCode::Internal);
    }
    assert_eq!(world.log.revision, before.next());
    assert_eq!(world.node(2).certificate_state(), CertificateState::Failed);
    world.signer_fails = false;
    world.renew(2).unwrap();
    assert_eq!(world.node(2).certificate_state(), CertificateState::Issued);
}

#[test]
fn addresses_come_from_the_connection() {
    let mut world = World::new();
    world.add(2, Role::Worker);
    world.renew(2).unwrap();
    let Some(Profile::Node(profile)) = world.signed.last() else { unreachable!() };
    assert_eq!(profile.ips, ["10.0.0.7".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(profile.lifetime, Duration::from_secs(90 * 24 * 3600));
}

#[test]
fn before_the_first_copy_nothing_is_decided() {
    let mut core = CertAuthority::new(Config::default());
    let wish = World::new().renewal(1);
    let mut out = Vec::new();
    core.step(Moment(0), NOW, Input::Asked(AskId(1), wish), &mut out);
    let Some(Effect::Answer(_, Err(refusal))) = out.first() else { panic!("{out:?}") };
    assert_eq!(refusal.code, ErrorCode::NotKnownHereYet);
}

#[test]
fn the_switch_that_signs_the_wished_role_is_seen_in_the_certificate() {
    let mut world = World::new();
    world.add(2, Role::Worker);
    world.change(Change::SetDesiredRole { node: id(2), role: Role::Manager });
    sabotage::set(Some(Sabotage::SignDesiredRole));
    let answer = world.renew(2);
    sabotage::set(None);
    assert_ne!(grant(&answer).0, world.node(2).role);
}

fn sign(world: &mut World, n: u128, serial: &str) -> crate::world::Outcome {
    let role = world.node(n).role;
    let Wish::Node(wish) = world.renewal(n) else { unreachable!() };
    let ask = world.ask(Wish::Node(NodeWish { identity: shown(n, role, serial), ..wish }));
    world.answers[&ask].clone()
}

#[test]
fn a_superseded_certificate_gets_no_other() {
    let mut world = World::new();
    world.add(2, Role::Worker);
    world.issue(2, "second");
    world.issue(2, "third");
    let before = world.log.clone();
    for serial in ["first of n2", "forged"] {
        assert_eq!(code(&sign(&mut world, 2, serial)), ErrorCode::Unauthenticated, "{serial}");
    }
    assert_eq!(world.log, before, "nothing was recorded");
    assert!(world.signed.is_empty(), "nothing was signed");
    assert!(sign(&mut world, 2, "second").is_ok());
}

/// CERT-7: each answer is lost, and the node asks again with what it has.
#[test]
fn renewals_that_are_lost_never_lock_a_node_out() {
    let mut world = World::new();
    world.add(2, Role::Worker);
    for round in 0..5 {
        let lost = certificate(&sign(&mut world, 2, "first of n2"));
        let row = world.log.certificates[&id(2)].clone();
        assert!(row.counts(&shown(2, Role::Worker, "first of n2")), "round {round}");
        assert_eq!(row.current.as_ref().map(|c| c.serial.clone()), Some(lost.serial));
    }
    let at_last = certificate(&sign(&mut world, 2, "first of n2"));
    assert!(sign(&mut world, 2, &at_last.serial).is_ok());
    assert_eq!(code(&sign(&mut world, 2, "first of n2")), ErrorCode::Unauthenticated, "it is not in use any more");
}

/// CERT-10: each is an event beside those of roles, of which so many are kept.
#[test]
fn a_node_is_not_signed_for_again_and_again_without_need() {
    let mut world = World::new();
    world.add(2, Role::Worker);
    let mut signed = 0;
    while let Ok(_another) = sign(&mut world, 2, "first of n2") {
        signed += 1;
        assert!(signed < 100, "without end");
    }
    assert!(signed >= 10, "answers may be lost: {signed}");
    let refused = sign(&mut world, 2, "first of n2").unwrap_err();
    assert!(refused.code == ErrorCode::TooManyRequests && refused.retry_after_ms.is_some(), "{refused:?}");
    world.change(Change::GrantRole { node: id(2), role: Role::Manager });
    assert_eq!(grant(&sign(&mut world, 2, "first of n2")).0, Role::Manager, "a role needs its certificate");
    world.change(Change::AskRotate(id(2)));
    assert!(sign(&mut world, 2, "first of n2").is_ok(), "the operator has asked for one");
}

#[test]
fn an_older_request_never_pushes_out_what_a_newer_one_brought() {
    let mut world = World::new();
    world.add(2, Role::Worker);
    let held = || shown(2, Role::Worker, "first of n2");
    world.hold = true;
    let [older, newer] = [0, 1].map(|_| {
        let Wish::Node(wish) = world.renewal(2) else { unreachable!() };
        world.ask(Wish::Node(NodeWish { identity: held(), ..wish }))
    });
    assert_eq!(code(world.answer(older).unwrap()), ErrorCode::TooManyRequests, "the node has given it up");
    world.hold = false;
    world.settle();
    let brought = certificate(world.answer(newer).unwrap());
    assert_eq!(world.newest(2).map(|newest| newest.serial.clone()), Some(brought.serial));
    assert!(world.log.certificates[&id(2)].counts(&held()));
}

#[test]
fn certificates_are_recorded_with_fingerprint_and_issuer() {
    let mut world = World::new();
    world.add(2, Role::Worker);
    let signed = certificate(&world.renew(2));
    let newest = world.newest(2).unwrap();
    assert_eq!((newest.pin, newest.not_after), (signed.pin, signed.not_after));
    assert_eq!(newest.issuer, root_id_of_pem(&world.log.cluster.as_ref().unwrap().root_cert_pem).ok());
    let ada = certificate(&world.user(ada(1)));
    assert_eq!(Some(world.log.user_pins[&"ada".parse().unwrap()].pin), ada.pin);
}

/// A manager of the release before reads the log until the level rises.
#[test]
fn below_feature_level_3_certificates_are_recorded_as_before() {
    let mut world = World::at_level(2);
    world.add(2, Role::Worker);
    assert!(sign(&mut world, 2, "anything").is_ok());
    assert!(world.log.certificates.is_empty() && world.node(2).certificate.is_some());
}

/// CERT-9: a leader whose clock is a day ahead would sign what begins tomorrow.
#[test]
fn nothing_is_signed_by_a_clock_that_the_others_contradict() {
    const DAY_MS: i64 = 24 * 3_600_000;
    let mut world = World::new();
    world.add(2, Role::Worker);
    assert!(world.renew(2).is_ok(), "before the first comparison");
    world.input(Input::Clocks(vec![-DAY_MS, -DAY_MS]));
    assert_eq!(code(&world.renew(2)), ErrorCode::NotKnownHereYet);
    assert_eq!(code(&world.join(joiner(5, WORKER))), ErrorCode::NotKnownHereYet);
    assert!(!world.log.nodes.contains_key(&id(5)), "no token is used up for nothing");
    world.input(Input::Clocks(vec![100, -100]));
    assert!(world.renew(2).is_ok());
    world.wall = world.wall.plus(Duration::from_secs(24 * 3600));
    assert_eq!((code(&world.renew(2)), world.compares), (ErrorCode::NotKnownHereYet, 1), "it was set");
}
