//! Certificates for members: for the granted role, recorded before they are handed out, and only for the right nodes.
use std::time::Duration;

use crate::world::*;
use muster_cert_authority::Config;
use muster_cert_authority::bugs::{self, BugInjection};
use muster_cert_authority::core::*;
use muster_messages::protocol::ProposeError;
use muster_messages::*;
use muster_pki::root_id_of_pem;

#[test]
fn renewal_is_signed_for_the_granted_not_the_desired_role() {
    let mut world = World::new();
    world.add(2, Role::Worker);
    world.change(Change::SetDesiredRole { node: id(2), role: Role::Manager });
    let granted = world.node(2).granted;
    assert_eq!(grant(&world.renew(2)), (Role::Worker, Some(granted)));
}

#[test]
fn certificate_role_follows_promotion_and_demotion() {
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
fn certificate_is_handed_out_after_its_record_is_applied() {
    let mut world = World::new();
    world.add(2, Role::Worker);
    world.hold = true;
    let cert_request = world.renewal(2);
    let ask = world.ask(cert_request);
    assert_eq!(world.core.pending().map(|p| p.phase()).collect::<Vec<_>>(), ["recording"]);
    assert!(world.answer(ask).is_none());
    world.settle();
    assert!(world.answer(ask).unwrap().is_ok());
    assert_eq!(world.core.pending().count(), 0);
}

/// A request is signed for the role at the time of recording, not at the time of the request.
#[test]
fn a_grant_that_changes_while_signing_is_signed_again() {
    let mut world = World::new();
    world.add(2, Role::Worker);
    world.hold = true;
    let cert_request = world.renewal(2);
    let ask = world.ask(cert_request);
    world.change(Change::GrantRole { node: id(2), role: Role::Manager });
    world.settle();
    let answer = world.answer(ask).unwrap();
    assert_eq!(grant(answer), (Role::Manager, Some(world.node(2).granted)));
    assert_eq!(world.signed.len(), 2, "the first certificate was never handed out");
    assert_eq!(world.node(2).certificate.as_ref().unwrap().serial, certificate(answer).serial);
}

#[test]
fn old_replica_catches_up_before_signing_again() {
    let mut world = World::new();
    world.add(2, Role::Worker);
    world.blind = true;
    world.change(Change::GrantRole { node: id(2), role: Role::Manager });
    let cert_request = world.renewal(2);
    let ask = world.ask(cert_request);
    assert!(world.answer(ask).is_none());
    assert_eq!(world.core.pending().map(|p| p.phase()).collect::<Vec<_>>(), ["catching_up"]);
    world.blind = false;
    world.show();
    assert_eq!(grant(world.answer(ask).unwrap()).0, Role::Manager);
}

#[test]
fn grant_that_keeps_changing_ends_in_a_timed_refusal() {
    let mut world = World::new();
    world.add(2, Role::Worker);
    world.hold = true;
    let cert_request = world.renewal(2);
    let ask = world.ask(cert_request);
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

/// A node whose role changed must not wait long because the authority was briefly busy.
#[test]
fn transient_failures_allow_a_retry_within_a_second() {
    for failed in [
        ProposeError::NotLeader { leader: None },
        ProposeError::Busy,
        ProposeError::UnknownOutcome,
        ProposeError::NoQuorum { missing: vec![id(9)] },
    ] {
        let mut world = World::new();
        world.add(2, Role::Worker);
        world.hold = true;
        let cert_request = world.renewal(2);
        let ask = world.ask(cert_request);
        world.fail(failed);
        let refusal = world.answer(ask).unwrap().as_ref().unwrap_err();
        assert!(refusal.retry_after_ms.unwrap() <= 1000, "{refusal}");
        world.hold = false;
        assert!(world.renew(2).is_ok(), "the next request is served normally");
    }
}

/// An earlier certificate counts although the current one expires sooner.
#[test]
fn latest_issued_expiry_is_kept_when_lifetimes_shrink() {
    let mut long = World::new();
    long.add(2, Role::Worker);
    let first = certificate(&long.renew(2)).not_after;
    let mut short = World::with(Config { node_lifetime: HOUR, ..Config::default() });
    short.log = long.log.clone();
    short.show();
    let cert_request = short.renewal(2);
    short.ask(cert_request);
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
    let CertificateRequest::Node(mut cert_request) = world.renewal(1) else { unreachable!() };
    cert_request.identity.cluster = ClusterId::from_entropy(99);
    let ask = world.ask(CertificateRequest::Node(cert_request.clone()));
    assert_eq!(code(world.answer(ask).unwrap()), ErrorCode::Forbidden);
    cert_request.identity.subject = Subject::Admin("ada".parse().unwrap());
    let ask = world.ask(CertificateRequest::Node(cert_request));
    assert_eq!(code(world.answer(ask).unwrap()), ErrorCode::Forbidden);
    assert!(world.signed.is_empty());
}

#[test]
fn a_removal_that_overtakes_the_record_wins() {
    for (blocked, wanted) in [(true, ErrorCode::Blocked), (false, ErrorCode::Removed)] {
        let mut world = World::new();
        world.add(2, Role::Worker);
        (world.hold, world.blind) = (true, true);
        let cert_request = world.renewal(2);
        let ask = world.ask(cert_request);
        world.remove(2);
        if !blocked {
            world.change(Change::Unblock(id(2)));
        }
        world.settle();
        assert_eq!(code(world.answer(ask).unwrap()), wanted);
    }
}

#[test]
fn bounded_requests_leave_room_for_renewals() {
    let mut world = World::with(Config { max_pending: 4, max_joins: 2, ..Config::default() });
    (2..5).for_each(|n| world.add(n, Role::Worker));
    world.hold = true;
    for n in 10..13 {
        world.ask(CertificateRequest::Join(Box::new(joiner(n, WORKER))));
    }
    let refusal = world.answers.values().next().unwrap().as_ref().unwrap_err();
    assert_eq!(refusal.code, ErrorCode::TooManyRequests);
    assert!(refusal.retry_after_ms.is_some());
    assert_eq!(world.core.pending().count(), 2);
    let asks: Vec<AskId> = (2..5)
        .map(|n| {
            let cert_request = world.renewal(n);
            world.ask(cert_request)
        })
        .collect();
    assert!(world.answer(asks[1]).is_none());
    assert_eq!(code(world.answer(asks[2]).unwrap()), ErrorCode::TooManyRequests);
    world.settle();
    assert!(world.answer(asks[1]).unwrap().is_ok());
}

#[test]
fn timed_out_request_names_its_phase() {
    let mut world = World::new();
    world.add(2, Role::Worker);
    world.hold = true;
    let cert_request = world.renewal(2);
    let ask = world.ask(cert_request);
    world.now = world.alarm.unwrap();
    world.input(Input::Woke);
    let refusal = world.answer(ask).unwrap().as_ref().unwrap_err();
    assert_eq!(refusal.code, ErrorCode::TimedOut);
    assert!(refusal.message.contains("recording"), "{refusal}");
    world.settle(); // too late: no request waits, nothing is answered twice
    world.alarm = None;
    let cert_request = world.renewal(2);
    world.ask(cert_request);
    assert!(world.alarm.is_some(), "the next request is watched again");
}

#[test]
fn signing_failure_is_recorded_once_in_the_node() {
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
fn nothing_is_decided_before_the_first_replica() {
    let mut core = CertAuthority::new(Config::default());
    let cert_request = World::new().renewal(1);
    let mut out = Vec::new();
    core.step(Moment(0), NOW, Input::Asked(AskId(1), cert_request), &mut out);
    let Some(Effect::Answer(_, Err(refusal))) = out.first() else { panic!("{out:?}") };
    assert_eq!(refusal.code, ErrorCode::NotKnownHereYet);
}

#[test]
fn injected_desired_role_bug_shows_in_the_certificate() {
    let mut world = World::new();
    world.add(2, Role::Worker);
    world.change(Change::SetDesiredRole { node: id(2), role: Role::Manager });
    bugs::set(Some(BugInjection::SignDesiredRole));
    let answer = world.renew(2);
    bugs::set(None);
    assert_ne!(grant(&answer).0, world.node(2).role);
}

fn sign(world: &mut World, n: u128, serial: &str) -> crate::world::Outcome {
    let role = world.node(n).role;
    let CertificateRequest::Node(cert_request) = world.renewal(n) else { unreachable!() };
    let ask = world.ask(CertificateRequest::Node(NodeRequest { identity: presented(n, role, serial), ..cert_request }));
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

/// CERT-7: each answer is lost, and the node asks again with the certificate it has.
#[test]
fn renewals_that_are_lost_never_lock_a_node_out() {
    let mut world = World::new();
    world.add(2, Role::Worker);
    for round in 0..5 {
        let lost = certificate(&sign(&mut world, 2, "first of n2"));
        let row = world.log.certificates[&id(2)].clone();
        assert!(row.counts(&presented(2, Role::Worker, "first of n2")), "round {round}");
        assert_eq!(row.current.as_ref().map(|c| c.serial.clone()), Some(lost.serial));
    }
    let at_last = certificate(&sign(&mut world, 2, "first of n2"));
    assert!(sign(&mut world, 2, &at_last.serial).is_ok());
    assert_eq!(code(&sign(&mut world, 2, "first of n2")), ErrorCode::Unauthenticated, "it is no longer in use");
}

/// CERT-10: each is an event, and only so many events are kept, those of roles included.
#[test]
fn needless_renewals_of_a_node_are_limited() {
    let mut world = World::new();
    world.add(2, Role::Worker);
    let mut signed = 0;
    while let Ok(_another) = sign(&mut world, 2, "first of n2") {
        signed += 1;
        assert!(signed < 100, "no limit");
    }
    assert!(signed >= 10, "answers may be lost: {signed}");
    let refused = sign(&mut world, 2, "first of n2").unwrap_err();
    assert!(refused.code == ErrorCode::TooManyRequests && refused.retry_after_ms.is_some(), "{refused:?}");
    world.change(Change::GrantRole { node: id(2), role: Role::Manager });
    assert_eq!(grant(&sign(&mut world, 2, "first of n2")).0, Role::Manager, "a role needs its certificate");
    world.change(Change::AskRotate(id(2)));
    assert!(sign(&mut world, 2, "first of n2").is_ok(), "the operator has requested one");
}

#[test]
fn older_request_never_replaces_a_newer_certificate() {
    let mut world = World::new();
    world.add(2, Role::Worker);
    let held = || presented(2, Role::Worker, "first of n2");
    world.hold = true;
    let [older, newer] = [0, 1].map(|_| {
        let CertificateRequest::Node(cert_request) = world.renewal(2) else { unreachable!() };
        world.ask(CertificateRequest::Node(NodeRequest { identity: held(), ..cert_request }))
    });
    assert_eq!(code(world.answer(older).unwrap()), ErrorCode::TooManyRequests, "the newer request cancels it");
    world.hold = false;
    world.settle();
    let issued = certificate(world.answer(newer).unwrap());
    assert_eq!(world.newest(2).map(|newest| newest.serial.clone()), Some(issued.serial));
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

/// A manager of the previous release reads the log until the level rises.
#[test]
fn below_feature_level_3_certificates_are_recorded_as_before() {
    let mut world = World::at_level(2);
    world.add(2, Role::Worker);
    assert!(sign(&mut world, 2, "anything").is_ok());
    assert!(world.log.certificates.is_empty() && world.node(2).certificate.is_some());
}

/// CERT-9: a leader whose clock is a day ahead would sign certificates that begin tomorrow.
#[test]
fn nothing_is_signed_while_other_clocks_contradict() {
    const DAY_MS: i64 = 24 * 3_600_000;
    let mut world = World::new();
    world.add(2, Role::Worker);
    assert!(world.renew(2).is_ok(), "before the first comparison");
    world.input(Input::Clocks(vec![-DAY_MS, -DAY_MS]));
    assert_eq!(code(&world.renew(2)), ErrorCode::NotKnownHereYet);
    assert_eq!(code(&world.join(joiner(5, WORKER))), ErrorCode::NotKnownHereYet);
    assert!(!world.log.nodes.contains_key(&id(5)), "no use of the token is counted");
    world.input(Input::Clocks(vec![100, -100]));
    assert!(world.renew(2).is_ok());
    world.wall = world.wall.plus(Duration::from_secs(24 * 3600));
    assert_eq!((code(&world.renew(2)), world.compares), (ErrorCode::NotKnownHereYet, 1), "the clock was set");
}
