//! Certificates for workloads: only for entries that apply to the asking node, and without a trace in the log.
use std::collections::BTreeMap;
use std::time::Duration;

use crate::world::{Outcome, *};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use muster_cert_authority::bugs::{self, BugInjection};
use muster_cert_authority::core::*;
use muster_messages::*;
use muster_pki::identity_of_pem;

fn entry(name: &str) -> WorkloadEntry {
    WorkloadEntry::new(name.parse().unwrap(), [WorkloadSelector::UnixUid(1000)])
}

fn in_zone(name: &str, zone: &str) -> WorkloadEntry {
    WorkloadEntry { node_labels: [("zone".to_owned(), zone.to_owned())].into(), ..entry(name) }
}

fn label(world: &mut World, n: u128, zone: &str) {
    let add = [("zone".to_owned(), zone.to_owned())].into();
    world.change(Change::UpdateLabels { node: id(n), add, remove: vec![] });
}

fn world() -> World {
    let mut world = World::new();
    world.add(2, Role::Worker);
    world.set_workload(entry("shop/web"));
    world
}

/// The identity and the end of the certificate in an answer.
fn signed(outcome: &Outcome) -> (CertIdentity, WallTime) {
    match outcome.as_ref().unwrap() {
        Answer::Workload(signed) => (identity_of_pem(&signed.text).unwrap(), signed.not_after),
        other => panic!("no workload in {other:?}"),
    }
}

#[test]
fn workload_certificate_follows_its_entry() {
    let mut world = world();
    let ttl = Duration::from_secs(7200);
    world.set_workload(WorkloadEntry { ttl, ..entry("shop/web") });
    let before = world.log.revision;
    let (identity, not_after) = signed(&world.workload(2, "shop/web"));
    assert_eq!(identity.subject, Subject::Workload("shop/web".parse().unwrap()));
    assert_eq!(not_after, WallTime::from_unix_secs(world.wall.plus(ttl).0 / 1000));
    assert_eq!(world.log.revision, before, "nothing is recorded");
    let holders: Vec<_> = world.core.holders(&"shop/web".parse().unwrap(), world.wall).collect();
    assert_eq!((holders, world.core.workload_certificates()), (vec![(id(2), not_after)], 1));
}

/// SPIFFE-1.
#[test]
fn workloads_are_signed_only_where_they_apply() {
    let mut world = world();
    world.set_workload(in_zone("shop/db", "a"));
    assert_eq!(code(&world.workload(2, "shop/other")), ErrorCode::NotFound);
    assert_eq!(code(&world.workload(2, "shop/db")), ErrorCode::Forbidden);
    // What the node reports about itself gives it nothing.
    let labels: BTreeMap<String, String> = [("zone".to_owned(), "a".to_owned())].into();
    let (addr, release) = ("10.0.0.2:4400".to_owned(), "0.1.0".to_owned());
    let name = world.node(2).name.clone();
    world.change(Change::Report { node: id(2), name, addr, release, labels });
    assert_eq!(code(&world.workload(2, "shop/db")), ErrorCode::Forbidden);
    label(&mut world, 2, "a");
    assert!(world.workload(2, "shop/db").is_ok());
    label(&mut world, 2, "b");
    assert_eq!(code(&world.workload(2, "shop/db")), ErrorCode::Forbidden);
    world.change(Change::Workload(Box::new(WorkloadChange::Remove("shop/web".parse().unwrap()))));
    assert_eq!(code(&world.workload(2, "shop/web")), ErrorCode::NotFound);
    bugs::set(Some(BugInjection::SignAnyWorkload));
    assert!(world.workload(2, "shop/db").is_ok(), "a broken promise is visible");
    bugs::set(None);
}

#[test]
fn only_a_current_node_gets_workload_certificates() {
    let mut world = world();
    let superseded = presented(2, Role::Worker, "first of n2");
    world.issue(2, "second");
    world.issue(2, "third");
    world.issue(2, "fourth");
    assert!(world.workload(2, "shop/web").is_ok());
    assert_eq!(code(&world.workload_as(superseded, "shop/web")), ErrorCode::Unauthenticated);
    let foreign = CertIdentity { cluster: ClusterId::from_entropy(9), ..presented(2, Role::Worker, "fourth") };
    assert_eq!(code(&world.workload_as(foreign, "shop/web")), ErrorCode::Forbidden);
    for subject in [Subject::Admin("ada".parse().unwrap()), Subject::Workload("shop/web".parse().unwrap())] {
        let other = CertIdentity { subject, ..presented(2, Role::Worker, "fourth") };
        assert_eq!(code(&world.workload_as(other, "shop/web")), ErrorCode::Forbidden);
    }
    world.remove(2);
    assert_eq!(code(&world.workload(2, "shop/web")), ErrorCode::Blocked);
    assert_eq!(code(&world.workload(3, "shop/web")), ErrorCode::Removed);
}

/// A node's request for `shop/web` whose certificate is signed and not confirmed.
fn withheld(world: &mut World) -> AskId {
    world.hold_reads = true;
    let serial = world.newest(2).unwrap().serial.clone();
    let ask = world.ask(workload_request(presented(2, Role::Worker, &serial), "shop/web"));
    assert_eq!((world.answer(ask), world.reads.len()), (None, 1));
    ask
}

fn holders(world: &World) -> usize {
    world.core.holders(&"shop/web".parse().unwrap(), world.wall).count()
}

/// SPIFFE-1: the state that the read returns is judged, and not the one on which the certificate was signed.
#[test]
fn withheld_certificate_is_neither_counted_nor_listed() {
    let busy = ErrorBody::new(ErrorCode::TooManyRequests, "too many reads in flight");
    let gone = ErrorBody::new(ErrorCode::NotFound, "no such workload: shop/web;");
    for (refusal, removed) in [(busy, false), (gone, true)] {
        let mut world = world();
        let ask = withheld(&mut world);
        let pending: Vec<_> = world.core.pending().map(|p| (p.phase(), p.cert_request.who())).collect();
        assert_eq!(pending, [("confirming", format!("shop/web on {}", id(2)))]);
        assert_eq!((holders(&world), world.core.workload_certificates(), world.core.counts().0), (0, 0, 0));
        world.blind = true;
        if removed {
            world.change(Change::Workload(Box::new(WorkloadChange::Remove("shop/web".parse().unwrap()))));
        }
        world.read(if removed { Ok(()) } else { Err(refusal.clone()) });
        let answer = world.answer(ask).unwrap();
        assert_eq!(code(answer), refusal.code);
        assert!(answer.as_ref().unwrap_err().message.contains(&refusal.message), "its own text");
        assert_eq!((holders(&world), world.core.workload_certificates(), world.core.counts().0), (0, 0, 0));
    }
    let mut world = world();
    let ask = withheld(&mut world);
    world.read(Ok(()));
    assert!(world.answer(ask).unwrap().is_ok());
    assert_eq!((holders(&world), world.core.workload_certificates()), (1, 1));
}

/// Its requester gets the names of now, and a signature of the root of now: the former root may be retired before this certificate ends.
#[test]
fn changed_entry_or_root_is_signed_again_before_the_answer() {
    let mut renamed = world();
    let ask = withheld(&mut renamed);
    renamed.hold_reads = false;
    renamed.blind = true;
    let ttl = Duration::from_secs(600);
    renamed.set_workload(WorkloadEntry { ttl, ..entry("shop/web") });
    renamed.read(Ok(()));
    let (_, not_after) = signed(renamed.answer(ask).unwrap());
    assert_eq!(not_after, WallTime::from_unix_secs(renamed.wall.plus(ttl).0 / 1000));

    let mut rotated = world();
    let ask = withheld(&mut rotated);
    rotated.hold_reads = false;
    rotated.blind = true;
    let (old, new, _) = crate::roots::rotate(&mut rotated, AuthorityState::Retiring, false);
    rotated.read(Ok(()));
    assert!(rotated.answer(ask).unwrap().is_ok());
    assert_eq!(rotated.issuers, [old, new]);
    assert_eq!(holders(&rotated), 1, "counted once");
}

/// A read lasts for seconds when there is no quorum.
#[test]
fn workloads_that_wait_leave_room_for_nodes() {
    let mut world = World::with(muster_cert_authority::Config { max_workloads: 2, ..Default::default() });
    world.add(2, Role::Worker);
    world.set_workload(entry("shop/web"));
    let asked: Vec<AskId> = (0..3)
        .map(|_| {
            world.hold_reads = true;
            world.ask(workload_request(presented(2, Role::Worker, "first of n2"), "shop/web"))
        })
        .collect();
    assert_eq!(world.answer(asked[2]).map(code), Some(ErrorCode::TooManyRequests));
    assert!(world.renew(2).is_ok());
    world.now = world.now + Duration::from_secs(10);
    world.input(Input::Woke);
    assert_eq!(world.answer(asked[0]).map(code), Some(ErrorCode::TimedOut));
}

/// A certificate of a withdrawn root is good for another one, and for nothing else.
#[test]
fn node_of_a_withdrawn_root_renews_before_its_workloads() {
    use AuthorityState as S;
    for (state, compromised, is_signed) in
        [(S::Retiring, false, true), (S::Retiring, true, false), (S::Retired, false, false), (S::Revoked, true, false)]
    {
        let mut world = world();
        let (_, _, leads) = crate::roots::rotate(&mut world, state, compromised);
        let answer = world.workload(2, "shop/web");
        let expected = if is_signed { Ok(()) } else { Err(ErrorCode::Unauthenticated) };
        assert_eq!(answer.as_ref().map(drop).map_err(|e| e.code), expected, "{state:?} {compromised}");
        assert!(world.renew(2).is_ok(), "{state:?} {compromised}");
        match world.workload(2, "shop/web").unwrap() {
            // Others may trust only that root.
            Answer::Workload(signed) => assert!(compromised || signed.text.ends_with(&leads)),
            other => panic!("no workload in {other:?}"),
        }
    }
}

#[test]
fn workload_requests_of_one_node_are_limited() {
    let mut world = world();
    world.add(3, Role::Worker);
    while world.workload(2, "shop/web").is_ok() {}
    assert_eq!(code(&world.workload(2, "shop/web")), ErrorCode::TooManyRequests);
    assert_eq!(world.core.workload_certificates(), 400);
    assert!(world.workload(3, "shop/web").is_ok(), "each node has its own budget");
    assert!(world.renew(2).is_ok(), "the node's own certificate is not affected");
    world.now = world.now + Duration::from_secs(1);
    assert!(world.workload(2, "shop/web").is_ok());
}

fn with_jwt(name: &str) -> WorkloadEntry {
    WorkloadEntry { jwt: true, ..entry(name) }
}

#[test]
fn jwts_are_signed_where_the_entry_allows_them() {
    let mut world = world();
    assert_eq!(code(&world.jwt(2, "shop/web")), ErrorCode::Forbidden);
    world.set_workload(with_jwt("shop/web"));
    world.set_workload(WorkloadEntry { jwt: true, ..in_zone("shop/db", "a") });
    assert_eq!(code(&world.jwt(2, "shop/db")), ErrorCode::Forbidden);
    assert_eq!(code(&world.jwt(2, "shop/other")), ErrorCode::NotFound);
    let before = world.log.revision;
    let answer = world.jwt(2, "shop/web");
    let Ok(Answer::Workload(signed)) = &answer else { panic!("{answer:?}") };
    let [_, claims, _] = signed.text.split('.').collect::<Vec<_>>()[..] else { panic!("{}", signed.text) };
    let claims: serde_json::Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap();
    let subject = format!("spiffe://{}/workload/shop/web", ClusterId::from_entropy(1));
    assert_eq!((&claims["sub"], &claims["aud"]), (&subject.into(), &serde_json::json!(["spiffe://x/db"])));
    assert_eq!(signed.not_after, WallTime::from_unix_secs(world.wall.plus(muster_pki::JWT_LIFETIME).0 / 1000));
    assert_eq!((world.log.revision, holders(&world)), (before, 0), "nothing is recorded, and no certificate held");
    assert!(muster_pki::JWT_LIFETIME <= MIN_WORKLOAD_TTL, "SPIFFE-5 holds for JWTs, too");
    world.remove(2);
    assert_eq!(code(&world.jwt(2, "shop/web")), ErrorCode::Blocked);
}

/// SPIFFE-1: an entry that changes while a JWT is signed, and a root that does.
#[test]
fn withheld_jwt_follows_the_entry_and_the_root_of_now() {
    let withheld = |world: &mut World| {
        world.set_workload(with_jwt("shop/web"));
        world.hold_reads = true;
        let serial = world.newest(2).unwrap().serial.clone();
        let ask = world.ask(jwt_request(presented(2, Role::Worker, &serial), "shop/web"));
        assert_eq!((world.answer(ask), world.reads.len()), (None, 1));
        let phases: Vec<_> = world.core.pending().map(|p| (p.cert_request.kind(), p.phase())).collect();
        assert_eq!(phases, [("jwt", "confirming")]);
        (world.hold_reads, world.blind) = (false, true);
        ask
    };
    let mut forbidden = world();
    let ask = withheld(&mut forbidden);
    forbidden.set_workload(entry("shop/web"));
    forbidden.read(Ok(()));
    assert_eq!(forbidden.answer(ask).map(code), Some(ErrorCode::Forbidden));

    let mut rotated = world();
    let ask = withheld(&mut rotated);
    let (old, new, _) = crate::roots::rotate(&mut rotated, AuthorityState::Retiring, false);
    rotated.read(Ok(()));
    assert!(rotated.answer(ask).unwrap().is_ok());
    assert_eq!(rotated.issuers, [old, new]);
}

#[test]
fn jwts_of_a_node_do_not_hold_back_its_certificates() {
    let mut world = world();
    world.set_workload(with_jwt("shop/web"));
    let burst = JWT_BUDGET.burst as usize;
    assert_eq!((0..=burst).take_while(|_| world.jwt(2, "shop/web").is_ok()).count(), burst);
    assert_eq!(
        (code(&world.jwt(2, "shop/web")), world.core.workload_certificates()),
        (ErrorCode::TooManyRequests, 400)
    );
    assert!(world.workload(2, "shop/web").is_ok());
    world.now = world.now + Duration::from_millis(100);
    assert!(world.jwt(2, "shop/web").is_ok());
}
