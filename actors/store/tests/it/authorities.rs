//! Roots: which one signs, and when the others lose their keys.

use muster_messages::*;

use crate::certificates::issued;
use crate::world::*;

pub fn root(n: u8) -> RootId {
    RootId([n; 8])
}

/// Root `n` is prepared; root 7 has signed since the founding.
pub fn prepare(signer: u8, n: u8) -> Change {
    prepare_after(signer, false, n)
}

pub fn prepare_after(signer: u8, compromised: bool, n: u8) -> Change {
    Change::Authority(Box::new(AuthorityChange::Prepare {
        signer: root(signer),
        compromised,
        root: root(n),
        cert_pem: format!("root {n}"),
        key_pem: Secret::new(format!("key {n}")),
        origin: AuthorityOrigin::Made,
        automatic: true,
        vouchers: vec![Voucher { by: root(signer), signature: vec![n] }],
        for_others: Vec::new(),
    }))
}

pub fn activate(n: u8) -> Change {
    let crosses = vec![CrossCertificate { by: root(7), cert_pem: format!("cross {n}") }];
    Change::Authority(Box::new(AuthorityChange::Activate { root: root(n), crosses, tokens: Vec::new() }))
}

pub fn retire(n: u8, force: bool) -> Change {
    Change::Authority(Box::new(AuthorityChange::Retire { root: root(n), force }))
}

pub fn revoke(n: u8) -> Change {
    Change::Authority(Box::new(AuthorityChange::Revoke { root: root(n) }))
}

pub fn forget(n: u8) -> Change {
    Change::Authority(Box::new(AuthorityChange::Forget { root: root(n) }))
}

pub fn abort() -> Change {
    Change::Authority(Box::new(AuthorityChange::Abort))
}

/// An authority above is asked to certify root `n`.
pub fn request(n: u8, compromised: bool) -> Change {
    Change::Authority(Box::new(AuthorityChange::Request {
        root: root(n),
        key_pem: Secret::new(format!("key {n}")),
        csr_pem: format!("request {n}"),
        compromised,
    }))
}

pub fn certify(signer: u8, n: u8) -> Change {
    Change::Authority(Box::new(AuthorityChange::Certify {
        signer: root(signer),
        root: root(n),
        cert_pem: format!("root {n}"),
        upstream: vec![format!("above {n}")],
        automatic: true,
        vouchers: vec![Voucher { by: root(signer), signature: vec![n] }],
        for_others: vec![(root(signer), Voucher { by: root(n), signature: vec![signer] })],
    }))
}

fn states(world: &World) -> Vec<(u8, AuthorityState)> {
    world.tables.authorities.roots.iter().map(|(id, root)| (id.0[0], root.state)).collect()
}

pub fn must(world: &mut World, change: Change) {
    world.must(command([change]));
}

pub fn refusal(world: &mut World, change: Change) -> AuthorityRefusal {
    match world.refused(command([change])) {
        CommandRefusal::Authority(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

/// Node 1 has a certificate of this root.
fn renew(world: &mut World, by: u8, serial: &str, replaces: Option<&str>) -> Result<(), CommandRefusal> {
    let certificate = IssuedCertificate { issuer: Some(root(by)), ..issued(1, world, serial) };
    world.apply(command([Change::IssueCertificate {
        node: id(1),
        certificate: Box::new(certificate),
        held: None,
        replaces: replaces.map(str::to_owned),
    }]))
}

pub fn world() -> World {
    let mut world = World::founded_at(3);
    renew(&mut world, 7, "a", None).unwrap();
    world
}

/// `n` voters, each with a certificate of root 7.
fn with_voters(n: u8) -> World {
    let mut world = world().with((2..=n).map(|n| (n, Role::Manager)));
    for n in 2..=n {
        world.learner(n, u64::from(n)).unwrap();
        world.promote(n, u64::from(n)).unwrap();
        renew_of(&mut world, n, 7, &format!("a{n}"), None);
    }
    world
}

/// A node is issued a certificate of this root.
fn renew_of(world: &mut World, n: u8, by: u8, serial: &str, replaces: Option<&str>) {
    let certificate = Box::new(IssuedCertificate { issuer: Some(root(by)), ..issued(n, world, serial) });
    let replaces = replaces.map(str::to_owned);
    must(world, Change::IssueCertificate { node: id(n), certificate, held: None, replaces });
}

/// It is seen with it.
fn seen(world: &mut World, n: u8, serial: &str) {
    must(world, Change::CertificateSeen { node: id(n), serial: serial.to_owned() });
}

/// The keys in the state, as text.
fn keys(world: &World) -> Vec<String> {
    let roots = world.tables.authorities.roots.values();
    roots.filter_map(|root| root.key_pem.as_ref()).map(|key| key.expose().to_owned()).collect()
}

use AuthorityState::{Active, Prepared, Retired, Retiring, Revoked};

#[test]
fn rotation_leads_from_one_root_to_the_next() {
    let mut world = world();
    must(&mut world, prepare(7, 8));
    assert_eq!(states(&world), [(7, Active), (8, Prepared)]);
    let published = world.tables.authorities.generation;
    assert_eq!(published, world.tables.revision, "nodes have to learn of it");
    assert_eq!(world.tables.cluster.as_ref().unwrap().root_cert_pem, "root", "it does not sign yet");

    must(&mut world, activate(8));
    assert_eq!(states(&world), [(7, Retiring), (8, Active)]);
    let cluster = world.tables.cluster.clone().unwrap();
    assert_eq!((cluster.root_cert_pem.as_str(), cluster.root_key_pem.expose()), ("root 8", "key 8"));
    assert_eq!(world.tables.authorities.generation, published, "the same roots are trusted");
    assert_eq!(world.tables.authorities.roots[&root(8)].crosses.len(), 1);

    let in_use = AuthorityRefusal::RootInUse { root: root(7), node: id(1), in_all: 1 };
    assert_eq!(refusal(&mut world, retire(7, false)), in_use, "the manager has not renewed");
    renew(&mut world, 8, "b", Some("a")).unwrap();
    must(&mut world, retire(7, false));
    assert_eq!((states(&world), keys(&world)), (vec![(7, Retired), (8, Active)], vec!["key 8".to_owned()]));
    assert_eq!(world.tables.authorities.generation, world.tables.revision);
    assert!(!format!("{:?}", world.tables.events).contains("key"), "no event shows a key");
}

/// ROOT-10. Signed before the activation, and applied after it.
#[test]
fn certificate_of_a_former_root_is_not_recorded() {
    let mut world = world();
    world.must(command([Change::PutUser(user("ann", "a1"))]));
    must(&mut world, prepare(7, 8));
    renew(&mut world, 7, "b", Some("a")).unwrap();
    let early = renew(&mut world, 8, "c", Some("b"));
    assert!(matches!(early, Err(CommandRefusal::Stale { .. })), "{early:?}");
    must(&mut world, activate(8));
    let late = renew(&mut world, 7, "c", Some("b"));
    assert!(matches!(late, Err(CommandRefusal::Stale { .. })), "{late:?}");
    let pin = |by| {
        let pin = CertificatePin { fingerprint: [1; 32], key: [2; 32] };
        Change::PinUser { name: name("ann"), pin: UserPin { serial: "a1".to_owned(), pin, issuer: root(by) } }
    };
    world.refused(command([pin(7)]));
    must(&mut world, pin(8));
    renew(&mut world, 8, "c", Some("b")).unwrap();
}

#[test]
fn aborted_rotation_leaves_nothing() {
    let mut world = world();
    must(&mut world, prepare(7, 8));
    must(&mut world, abort());
    assert_eq!((states(&world), keys(&world)), (vec![(7, Active)], vec!["key".to_owned()]));
    assert_eq!(world.tables.authorities.generation, world.tables.revision);
    let revision = world.tables.events.len();
    must(&mut world, abort());
    assert_eq!(world.tables.events.len(), revision, "repeated: no change");
    let refused = world.refused(command([activate(8)]));
    assert!(matches!(refused, CommandRefusal::NotFound { .. }), "{refused:?}");
}

#[test]
fn newest_request_for_a_root_wins() {
    let mut world = world();
    for n in [8, 9, 10] {
        must(&mut world, prepare(7, n));
    }
    assert_eq!(states(&world), [(7, Active), (10, Prepared)]);
    must(&mut world, prepare(7, 10));
    must(&mut world, activate(10));
    let refused = world.refused(command([prepare(7, 11)]));
    assert!(matches!(refused, CommandRefusal::Stale { .. }), "vouched for by a root that no longer signs: {refused:?}");
    must(&mut world, prepare(10, 11));
    must(&mut world, activate(11));
    assert_eq!(states(&world), [(7, Retiring), (10, Retiring), (11, Active)]);
    assert_eq!(refusal(&mut world, prepare(11, 7)), AuthorityRefusal::SameKey(root(7)));
    assert_eq!(refusal(&mut world, prepare(11, 11)), AuthorityRefusal::SameKey(root(11)));
}

#[test]
fn former_root_can_sign_again_while_it_has_its_key() {
    let mut world = world();
    must(&mut world, prepare(7, 8));
    must(&mut world, activate(8));
    must(&mut world, activate(7));
    assert_eq!(states(&world), [(7, Active), (8, Retiring)]);
    assert_eq!(world.tables.cluster.as_ref().unwrap().root_cert_pem, "root");
    must(&mut world, retire(8, false));
    let keyless = AuthorityRefusal::HasNoKey { root: root(8), state: Retired };
    assert_eq!(refusal(&mut world, activate(8)), keyless);
}

/// ROOT-11.
#[test]
fn compromised_root_never_signs_again() {
    let mut world = world();
    must(&mut world, prepare_after(7, true, 8));
    must(&mut world, activate(8));
    assert_eq!(refusal(&mut world, activate(7)), AuthorityRefusal::KnownToOthers(root(7)));
    assert_eq!(refusal(&mut world, retire(8, true)), AuthorityRefusal::NotFormer { root: root(8), state: Active });
    must(&mut world, retire(7, true));
    let keyless = AuthorityRefusal::HasNoKey { root: root(7), state: Retired };
    assert_eq!(refusal(&mut world, activate(7)), keyless);
    must(&mut world, prepare(8, 9));
    must(&mut world, activate(9));
    must(&mut world, activate(8));
}

/// Another rotation before the root is revoked does not forget that it has to be.
#[test]
fn compromised_root_stays_marked_over_later_rotations() {
    let mut world = world();
    let marked = |world: &World| {
        let roots = world.tables.authorities.roots.iter();
        roots.filter(|(_, root)| root.compromised).map(|(id, _)| id.0[0]).collect::<Vec<_>>()
    };
    must(&mut world, prepare_after(7, true, 8));
    assert_eq!(marked(&world), [7]);
    must(&mut world, activate(8));
    must(&mut world, prepare(8, 9));
    must(&mut world, activate(9));
    assert_eq!((states(&world), marked(&world)), (vec![(7, Retiring), (8, Retiring), (9, Active)], vec![7]));
}

#[test]
fn roots_on_record_are_bounded() {
    let mut world = world();
    for n in 8..15 {
        must(&mut world, prepare(n - 1, n));
        must(&mut world, activate(n));
    }
    assert_eq!(world.tables.authorities.roots.len(), MAX_ROOTS);
    assert_eq!(refusal(&mut world, prepare(14, 15)), AuthorityRefusal::TooManyRoots);
}

#[test]
fn root_is_not_revoked_while_the_majority_needs_it() {
    let mut world = with_voters(3);
    let renew = renew_of;
    let signs = world.refused(command([revoke(7)]));
    assert!(matches!(signs, CommandRefusal::NotFound { .. }), "no root is on record yet: {signs:?}");
    must(&mut world, prepare(7, 8));
    let signs = AuthorityRefusal::NotFormer { root: root(7), state: Active };
    assert_eq!(refusal(&mut world, revoke(7)), signs);
    must(&mut world, activate(8));
    renew(&mut world, 1, 8, "b1", Some("a"));
    let lost = "the answer may be lost: it holds the former one";
    assert!(matches!(refusal(&mut world, revoke(7)), AuthorityRefusal::NoMajority { in_all: 3, .. }), "{lost}");
    seen(&mut world, 1, "b1");
    assert!(matches!(refusal(&mut world, revoke(7)), AuthorityRefusal::NoMajority { in_all: 2, .. }));
    assert!(matches!(refusal(&mut world, retire(7, false)), AuthorityRefusal::RootInUse { in_all: 2, .. }));
    renew(&mut world, 2, 8, "b2", Some("a2"));
    assert!(matches!(refusal(&mut world, revoke(7)), AuthorityRefusal::NoMajority { in_all: 2, .. }), "{lost}");
    seen(&mut world, 2, "b2");
    must(&mut world, revoke(7));
    assert_eq!((states(&world), keys(&world).len()), (vec![(7, Revoked), (8, Active)], 1));
    must(&mut world, revoke(7));
    let revoked = AuthorityRefusal::NotFormer { root: root(7), state: Revoked };
    assert_eq!(refusal(&mut world, retire(7, true)), revoked);
}

/// Five voters: one was away when root 7 was revoked, and two have certificates of root 8. Without those, two would be left.
#[test]
fn voters_of_a_root_revoked_before_do_not_count() {
    let mut world = with_voters(5);
    must(&mut world, prepare(7, 8));
    must(&mut world, activate(8));
    for (n, newest, replaces) in [(1, "b1", "a"), (2, "b2", "a2"), (3, "b3", "a3"), (4, "b4", "a4")] {
        renew_of(&mut world, n, 8, newest, Some(replaces));
        seen(&mut world, n, newest);
    }
    must(&mut world, revoke(7));
    must(&mut world, prepare(8, 9));
    must(&mut world, activate(9));
    for (n, newest, replaces) in [(1, "c1", "b1"), (2, "c2", "b2")] {
        renew_of(&mut world, n, 9, newest, Some(replaces));
        seen(&mut world, n, newest);
    }
    assert!(matches!(refusal(&mut world, revoke(8)), AuthorityRefusal::NoMajority { in_all: 2, .. }));
    renew_of(&mut world, 3, 9, "c3", Some("b3"));
    seen(&mut world, 3, "c3");
    must(&mut world, revoke(8));
}

/// Its disk may be lost: with the voter that cannot renew without a leader, too, no majority would be left.
#[test]
fn voters_that_are_down_do_not_count() {
    let mut world = with_voters(3);
    must(&mut world, prepare(7, 8));
    must(&mut world, activate(8));
    for (n, newest, replaces) in [(1, "b1", "a"), (2, "b2", "a2")] {
        renew_of(&mut world, n, 8, newest, Some(replaces));
        seen(&mut world, n, newest);
    }
    let liveness = |liveness| Change::SetLiveness { node: id(2), liveness };
    must(&mut world, liveness(Liveness::Down));
    let in_use = AuthorityRefusal::NoMajority { root: root(7), node: id(3), in_all: 1 };
    assert_eq!(refusal(&mut world, revoke(7)), in_use);
    let mut renewed = world.clone();
    renew_of(&mut renewed, 3, 8, "b3", Some("a3"));
    seen(&mut renewed, 3, "b3");
    must(&mut renewed, revoke(7)); // it takes the certificate of no voter
    must(&mut world, liveness(Liveness::Ready));
    must(&mut world, revoke(7));
}

/// ROOT-7.
#[test]
fn root_is_forgotten_after_its_last_certificate() {
    let mut world = world();
    must(&mut world, prepare(7, 8));
    must(&mut world, activate(8));
    let refused = world.refused(command([forget(7)]));
    assert!(matches!(refused, CommandRefusal::Stale { .. }), "{refused:?}");
    must(&mut world, retire(7, true));
    let until = WallTime(T0.0 + 2 * HOUR);
    assert_eq!(refusal(&mut world, forget(7)), AuthorityRefusal::MayBeValid { root: root(7), until });
    let later = Command { at: until, ..command([forget(7)]) };
    world.must(later.clone());
    assert_eq!(states(&world), [(8, Active)]);
    world.must(later);
}

#[test]
fn roots_need_feature_level_three() {
    let mut world = World::founded();
    let refused = world.refused(command([prepare(7, 8)]));
    assert!(matches!(refused, CommandRefusal::FeatureLevel { needs: 3, level: 1 }), "{refused:?}");
}

#[test]
fn roots_survive_a_snapshot() {
    let mut world = world();
    must(&mut world, prepare(7, 8));
    must(&mut world, activate(8));
    let bytes = muster_store::snapshot::encode(&world.tables);
    assert_eq!(muster_store::snapshot::decode(&bytes).unwrap().authorities, world.tables.authorities);
    must(&mut world, retire(7, true));
    let bytes = muster_store::snapshot::encode(&world.tables);
    assert!(!bytes.windows(4).any(|four| four == b"key\0") && !String::from_utf8_lossy(&bytes).contains("key 7"));
}

#[test]
fn new_root_vouches_for_others_until_it_is_abandoned() {
    let mut world = world();
    let with_voucher = |n: u8, of: u8| {
        let Change::Authority(mut change) = prepare(7, n) else { unreachable!() };
        if let AuthorityChange::Prepare { for_others, .. } = &mut *change {
            let by = |by: u8| (root(of), Voucher { by: root(by), signature: vec![of] });
            for_others.extend([by(n), by(6)]); // the latter is not the new root's
        }
        Change::Authority(change)
    };
    let by = |world: &World| -> Vec<u8> {
        world.tables.authorities.roots[&root(7)].vouchers.iter().map(|voucher| voucher.by.0[0]).collect()
    };
    must(&mut world, with_voucher(8, 7));
    assert_eq!(by(&world), [8]);
    must(&mut world, with_voucher(9, 7));
    assert_eq!(by(&world), [9], "the former one was abandoned");
    must(&mut world, abort());
    assert_eq!(by(&world), [0_u8; 0]);
}

/// A copied disk holds the key of every root that has one.
#[test]
fn every_root_with_a_key_counts_as_compromised() {
    let mut world = world();
    must(&mut world, prepare(7, 8));
    must(&mut world, activate(8));
    must(&mut world, prepare_after(8, true, 9));
    let compromised = |n: u8| world.tables.authorities.roots[&root(n)].compromised;
    assert_eq!([7, 8, 9].map(compromised), [true, true, false]);
}

/// A copied disk holds the tokens beside the key of the root.
#[test]
fn activation_replaces_default_tokens_of_a_compromised_root() {
    let token = |id: &str, role, default| Token { default, ..token(id, role) };
    for compromised in [false, true] {
        let mut world = world();
        for old in world.tables.tokens.keys().cloned().collect::<Vec<_>>() {
            must(&mut world, Change::DeleteToken(old));
        }
        must(&mut world, Change::PutToken(token("old-m", Role::Manager, true)));
        must(&mut world, Change::PutToken(token("other", Role::Worker, false)));
        must(&mut world, prepare_after(7, compromised, 8));
        let tokens = vec![token("new-m", Role::Manager, true), token("new-w", Role::Worker, true)];
        let activate = || {
            let (root, crosses, tokens) = (root(8), Vec::new(), tokens.clone());
            Change::Authority(Box::new(AuthorityChange::Activate { root, crosses, tokens }))
        };
        must(&mut world, activate());
        let ids = |world: &World| world.tables.tokens.keys().cloned().collect::<Vec<_>>();
        let expected = if compromised { ["new-m", "other"] } else { ["old-m", "other"] };
        assert_eq!(ids(&world), expected, "a role without a default token gets none");
        // A leader that had not applied it proposes it again, with other tokens.
        must(&mut world, Change::PutToken(token("later", Role::Manager, true)));
        let before = world.tables.tokens.clone();
        must(&mut world, activate());
        assert_eq!(world.tables.tokens, before);
    }
}

/// ROOT-2, also if a manager comes back while the activation is on its way.
#[test]
fn activation_waits_for_every_ready_member() {
    let mut world = world();
    must(&mut world, prepare(7, 8));
    let node = world.tables.members.values().next().unwrap().node;
    let record = world.tables.nodes.get_mut(&node).unwrap();
    std::sync::Arc::make_mut(record).liveness = Liveness::Ready;
    world.tables.authorities.trusted_by.clear();
    assert!(matches!(world.refused(command([activate(8)])), CommandRefusal::Stale { .. }));
    let generation = world.tables.authorities.generation;
    must(&mut world, Change::Authority(Box::new(AuthorityChange::Trusted { node, generation })));
    must(&mut world, activate(8));
}

/// Also where a proposal was signed on an older state.
#[test]
fn no_voucher_for_a_compromised_root_is_recorded() {
    for compromised in [false, true] {
        let mut world = world();
        let Change::Authority(change) = prepare_after(7, compromised, 8) else { unreachable!() };
        let AuthorityChange::Prepare { signer, root: new, cert_pem, key_pem, origin, automatic, vouchers, .. } =
            *change
        else {
            unreachable!()
        };
        let for_others = vec![(root(7), Voucher { by: new, signature: vec![1] })];
        let change = AuthorityChange::Prepare {
            signer,
            compromised,
            root: new,
            cert_pem,
            key_pem,
            origin,
            automatic,
            vouchers,
            for_others,
        };
        must(&mut world, Change::Authority(Box::new(change)));
        assert_eq!(world.tables.authorities.roots[&root(7)].vouchers.is_empty(), compromised);
    }
}
