//! Certificates in a cluster that has had several roots.

use std::sync::Arc;

use muster_cert_authority::core::*;
use muster_messages::wire::SignReply;
use muster_messages::*;
use muster_pki::{Issuer, Root};

use crate::world::*;

const PIN: CertificatePin = CertificatePin { fingerprint: [7; 32], key: [8; 32] };

/// The root that has signed so far leaves for another one. Returns both, and how the new one leads to it.
pub fn rotate(world: &mut World, state: AuthorityState, compromised: bool) -> (RootId, RootId, String) {
    let cluster = world.log.cluster.clone().unwrap();
    let new = Root::create(cluster.id, NOW).unwrap();
    let issuer = Issuer::from_pem(&new.cert_pem, &new.key_pem).unwrap();
    let id_of = |pem: &str| muster_pki::root_id_of_pem(pem).unwrap();
    let (old_id, new_id) = (id_of(&cluster.root_cert_pem), id_of(&new.cert_pem));
    let revision = world.log.revision;
    let root = |cert_pem: &str, key_pem: &Secret, state, origin, crosses| Authority {
        key_pem: Some(key_pem.clone()),
        automatic: true,
        compromised: compromised && state != AuthorityState::Active,
        crosses,
        created_at: NOW,
        activated_at: Some(NOW),
        revision,
        ..Authority::new(cert_pem, origin, state)
    };
    let leads = world.issuer.cross_sign(&new.cert_pem, NOW, NOW.plus(HOUR)).unwrap();
    let crosses = vec![CrossCertificate { by: old_id, cert_pem: leads.clone() }];
    let old = root(&cluster.root_cert_pem, &cluster.root_key_pem, state, AuthorityOrigin::Founded, Vec::new());
    let active = root(&new.cert_pem, &new.key_pem, AuthorityState::Active, AuthorityOrigin::Made, crosses);
    world.log.authorities.roots.insert(old_id, Arc::new(old));
    world.log.authorities.roots.insert(new_id, Arc::new(active));
    let cluster = ClusterRecord { root_cert_pem: new.cert_pem, root_key_pem: new.key_pem, ..(*cluster).clone() };
    world.log.cluster = Some(Arc::new(cluster));
    world.log.revision = world.log.revision.next();
    world.issuer = issuer;
    world.show();
    (old_id, new_id, leads)
}

fn signed(world: &World, ask: AskId) -> SignReply {
    match world.answer(ask).expect("an answer") {
        Ok(Answer::Signed(reply)) => reply.clone(),
        other => panic!("no certificate: {other:?}"),
    }
}

/// ADMIT-9: the holder of the root's key can make a certificate with everything that an old one has, but its digest.
#[test]
fn key_of_a_withdrawn_root_is_rekeyed_only_by_its_digest() {
    use AuthorityState as S;
    let cases = [
        (S::Retiring, false, None, true),
        (S::Retiring, true, None, false),
        (S::Retiring, true, Some(PIN), true),
        (S::Retired, false, None, false),
        (S::Retired, false, Some(PIN), true),
        (S::Revoked, true, None, false),
        (S::Revoked, true, Some(PIN), true),
    ];
    for (state, compromised, pin, is_rekeyed) in cases {
        let mut world = World::new();
        world.add(5, Role::Manager);
        let row = world.log.certificates.get_mut(&id(5)).map(Arc::make_mut).unwrap();
        row.current.as_mut().unwrap().pin = pin;
        let (old, ..) = rotate(&mut world, state, compromised);
        let proven = CertIdentity { issuer: Some(old), pin: Some(PIN), ..presented(5, Role::Manager, "first of n5") };
        let answer = world.join(VerifiedJoin { rekey: Some(Box::new(proven)), ..joiner(5, MANAGER) });
        let expected = if is_rekeyed { Ok(()) } else { Err(ErrorCode::Unauthenticated) };
        assert_eq!(answer.map(drop).map_err(|e| e.code), expected, "{state:?} {compromised} {pin:?}");
    }
}

/// Nodes that were away trust only the former root.
#[test]
fn certificate_comes_with_those_that_lead_to_the_former_root() {
    let mut world = World::new();
    world.add(5, Role::Worker);
    let (_, _, leads) = rotate(&mut world, AuthorityState::Retiring, false);
    let ask = world.ask(world.renewal(5));
    let reply = signed(&world, ask);
    assert!(reply.cert_pem.ends_with(&leads), "{}", reply.cert_pem);
    assert_eq!(reply.root_pem, world.log.cluster.as_ref().unwrap().root_cert_pem);
}

/// The answer to a certificate that was recorded just before the activation: the new root has not signed it.
#[test]
fn certificate_comes_with_the_root_that_signed_it() {
    let mut world = World::new();
    world.add(5, Role::Worker);
    let before = world.log.cluster.as_ref().unwrap().root_cert_pem.clone();
    world.hold = true;
    let ask = world.ask(world.renewal(5));
    let (step, command) = world.proposals.pop_front().unwrap();
    let recorded = world.apply(&command).unwrap();
    rotate(&mut world, AuthorityState::Retiring, false);
    world.input(Input::Proposed(step, Ok(recorded)));
    assert_eq!(signed(&world, ask).root_pem, before);
}

/// CERT-7: a certificate that was recorded below feature level 3 gets its digest with the renewal.
#[test]
fn presented_certificate_is_recorded_with_its_digest() {
    let mut world = World::new();
    world.add(5, Role::Worker);
    let CertificateRequest::Node(mut request) = world.renewal(5) else { unreachable!() };
    request.identity.pin = Some(PIN);
    let ask = world.ask(CertificateRequest::Node(request));
    signed(&world, ask);
    let row = &world.log.certificates[&id(5)];
    assert_eq!(row.previous.as_ref().and_then(|previous| previous.pin), Some(PIN));
}
