use std::sync::Arc;

use muster_messages::{
    CertificateRecord, ClusterId, Incarnation, IssuedCertificate, Name, NodeCertificates, NodeId, Revision, Role,
    Secret, UserKind, UserPin,
};
use serde_json::json;

use super::*;

/// A cluster with these nodes, at the revision of its last change of roots, and its founding root.
struct World {
    tables: Tables,
    founding: RootId,
}

fn pem(n: u128) -> (RootId, String) {
    let root = muster_pki::Root::create(ClusterId::from_entropy(n), WallTime::from_unix_secs(1_700_000_000)).unwrap();
    (muster_pki::root_id_of_pem(&root.cert_pem).unwrap(), root.cert_pem)
}

impl World {
    fn new(nodes: u128) -> Self {
        let (founding, root_cert_pem) = pem(1);
        let cluster = ClusterRecord {
            id: ClusterId::from_entropy(1),
            name: "c".parse().unwrap(),
            incarnation: Incarnation(1),
            feature_level: muster_messages::IDENTITY_LEVEL,
            root_cert_pem,
            root_key_pem: Secret::new("key"),
            founded_at: WallTime(7),
            revision: Revision(1),
        };
        let mut world = Self { tables: Tables { cluster: Some(Arc::new(cluster)), ..Tables::default() }, founding };
        for n in 1..=nodes {
            let mut node = NodeRecord::new(id(n), Name::sanitized(&format!("n{n}")), Role::Worker, WallTime(0));
            node.liveness = Liveness::Ready;
            world.tables.nodes.insert(node.id, Arc::new(node));
            world.issue(n, Some(founding), 100);
        }
        world
    }

    fn node(&mut self, n: u128, change: impl FnOnce(&mut NodeRecord)) {
        change(Arc::make_mut(self.tables.nodes.get_mut(&id(n)).unwrap()));
    }

    fn issue(&mut self, n: u128, issuer: Option<RootId>, not_after: i64) {
        let (serial, not_after, granted) = (format!("{n}"), WallTime(not_after), Some(Revision(0)));
        let issued =
            IssuedCertificate { serial: serial.clone(), role: Role::Worker, granted, not_after, pin: None, issuer };
        let state = CertificateState::Issued;
        self.node(n, |node| {
            node.certificate = Some(CertificateRecord { role: Role::Worker, serial, granted, not_after, state });
        });
        let row = NodeCertificates { current: Some(issued), ..NodeCertificates::default() };
        self.tables.certificates.insert(id(n), Arc::new(row));
    }

    /// Puts a root on record, as of this generation.
    fn root(&mut self, root: RootId, cert_pem: &str, state: AuthorityState, at: i64) {
        let founded = root == self.founding;
        let origin = if founded { AuthorityOrigin::Founded } else { AuthorityOrigin::Made };
        let authority = Authority {
            automatic: true,
            created_at: WallTime(at),
            activated_at: founded.then_some(WallTime(at)),
            revision: Revision(5),
            ..Authority::new(cert_pem, origin, state)
        };
        self.tables.authorities.roots.insert(root, Arc::new(authority));
        self.tables.authorities.generation = Revision(5);
    }

    fn user(&mut self, name: &str, serial: &str, issuer: Option<RootId>) {
        let name: Name = name.parse().unwrap();
        let user = User {
            name: name.clone(),
            kind: UserKind::User,
            namespaces: vec![],
            serial: serial.to_owned(),
            created_at: WallTime(0),
            not_after: WallTime(900),
            revision: Revision(1),
        };
        self.tables.users.insert(name.clone(), user);
        if let Some(issuer) = issuer {
            let pin = muster_messages::CertificatePin { fingerprint: [1; 32], key: [2; 32] };
            self.tables.user_pins.insert(name, UserPin { serial: serial.to_owned(), pin, issuer });
        }
    }

    fn founding_pem(&self) -> String {
        self.tables.cluster.as_ref().unwrap().root_cert_pem.clone()
    }

    fn seen(&self) -> RootsView {
        roots(&self.tables).unwrap()
    }
}

fn id(n: u128) -> NodeId {
    NodeId::from_entropy(n)
}

fn reasons(progress: &RootsProgressView) -> Vec<(String, RootsWaitReason)> {
    progress.missing.iter().map(|missing| (missing.name.to_string(), missing.reason)).collect()
}

#[test]
fn cluster_that_never_rotated_has_its_founding_root() {
    let mut world = World::new(2);
    world.user("ann", "a1", None);
    world.user("tok", "", None);
    let seen = world.seen();
    let [root] = &seen.items[..] else { panic!("{seen:?}") };
    assert_eq!((root.id, root.state, root.origin), (world.founding, AuthorityState::Active, AuthorityOrigin::Founded));
    assert_eq!((root.issued, root.outdated), (3, 0), "two nodes, and the user with a certificate");
    assert_eq!(root.digest, muster_pki::digest(&world.founding_pem()).unwrap());
    assert_eq!((seen.active, seen.target, seen.phase), (Some(world.founding), None, RotationPhase::Done));
    assert_eq!((seen.acknowledged.n, seen.renewed.n, seen.users_outdated), (2, 2, 0));
    assert_eq!(seen.last_not_after, None);
    assert_eq!(roots(&Tables::default()).unwrap_err().code, ErrorCode::NoQuorum);
}

#[test]
fn published_root_waits_for_the_nodes_that_have_not_answered() {
    let mut world = World::new(3);
    let ((next, next_pem), founding) = (pem(2), world.founding);
    world.root(founding, &world.founding_pem(), AuthorityState::Active, 1);
    world.root(next, &next_pem, AuthorityState::Prepared, 2);
    world.tables.authorities.trusted_by.insert(id(1), Revision(5));
    world.tables.authorities.trusted_by.insert(id(3), Revision(4));
    world.node(2, |node| (node.liveness, node.liveness_since) = (Liveness::Down, WallTime(44)));
    let seen = world.seen();
    assert_eq!((seen.active, seen.target, seen.phase), (Some(founding), Some(next), RotationPhase::Publishing));
    assert_eq!((seen.acknowledged.of, seen.acknowledged.n), (3, 1));
    let expected =
        [("n3".to_owned(), RootsWaitReason::WaitingForAnswer), ("n2".to_owned(), RootsWaitReason::WaitingForNode)];
    assert_eq!(reasons(&seen.acknowledged), expected, "those that hold the rotation come first");
    assert_eq!(seen.acknowledged.missing[1].since, Some(WallTime(44)));
    assert_eq!(seen.renewed.n, 3, "the founding root still signs");
    assert_eq!(
        seen.items.iter().map(|root| (root.id, root.automatic)).collect::<Vec<_>>(),
        [(founding, false), (next, true)]
    );
}

/// Once the next root signs, certificates of one whose key others may have count by their digest only.
#[test]
fn compromised_rotation_shows_nodes_without_digest() {
    let mut world = World::new(3);
    let ((next, next_pem), founding) = (pem(2), world.founding);
    world.root(founding, &world.founding_pem(), AuthorityState::Active, 1);
    world.root(next, &next_pem, AuthorityState::Prepared, 2);
    let pin = muster_messages::CertificatePin { fingerprint: [1; 32], key: [2; 32] };
    let row = world.tables.certificates.get_mut(&id(1)).unwrap();
    Arc::make_mut(row).current.as_mut().unwrap().pin = Some(pin);
    world.node(3, |node| node.certificate.as_mut().unwrap().state = CertificateState::Rotate);
    assert_eq!(world.seen().renewed.n, 3, "a digest is not needed");
    Arc::make_mut(world.tables.authorities.roots.get_mut(&founding).unwrap()).compromised = true;
    let seen = world.seen();
    let expected = [("n2".to_owned(), RootsWaitReason::Queued), ("n3".to_owned(), RootsWaitReason::Renewing)];
    assert_eq!((seen.phase, reasons(&seen.renewed)), (RotationPhase::Publishing, expected.to_vec()));
    world.root(founding, &world.founding_pem(), AuthorityState::Active, 1);
    world.tables.authorities.roots.remove(&next);
    Arc::make_mut(world.tables.authorities.roots.get_mut(&founding).unwrap()).compromised = true;
    assert_eq!(world.seen().renewed.n, 3, "no root is about to sign");
}

#[test]
fn activated_root_waits_for_renewals_and_not_for_users() {
    let mut world = World::new(5);
    let ((next, next_pem), founding) = (pem(2), world.founding);
    world.root(founding, &world.founding_pem(), AuthorityState::Retiring, 1);
    world.root(next, &next_pem, AuthorityState::Active, 2);
    world.issue(1, Some(next), 500);
    // Recorded below feature level 3: the founding root's.
    world.issue(2, None, 300);
    let state = |state| move |node: &mut NodeRecord| node.certificate.as_mut().unwrap().state = state;
    world.node(3, state(CertificateState::Rotate));
    world.node(4, state(CertificateState::Failed));
    world.node(5, |node| node.liveness = Liveness::Unknown);
    world.user("ann", "a1", Some(founding));
    world.user("bob", "b1", Some(next));
    let seen = world.seen();
    assert_eq!((seen.active, seen.target, seen.phase), (Some(next), Some(next), RotationPhase::Signing));
    let expected = [
        ("n2".to_owned(), RootsWaitReason::Queued),
        ("n3".to_owned(), RootsWaitReason::Renewing),
        ("n4".to_owned(), RootsWaitReason::Failed),
        ("n5".to_owned(), RootsWaitReason::WaitingForNode),
    ];
    assert_eq!((seen.renewed.of, seen.renewed.n, reasons(&seen.renewed)), (5, 1, expected.to_vec()));
    let counts: Vec<_> = seen.items.iter().map(|root| (root.issued, root.outdated)).collect();
    assert_eq!(counts, [(5, 5), (2, 0)], "four nodes and ann; one node and bob");
    assert_eq!((seen.users_outdated, seen.last_not_after), (1, Some(WallTime(900))));
    for n in 2..=4 {
        world.issue(n, Some(next), 500);
    }
    assert_eq!(world.seen().phase, RotationPhase::Retiring, "n5 is down");
    world.root(founding, &world.founding_pem(), AuthorityState::Retired, 1);
    let seen = world.seen();
    assert_eq!((seen.phase, seen.target, seen.renewed.n), (RotationPhase::Done, None, 4));
    let issuers = Issuers::of(&world.tables);
    let users: Vec<_> = world.tables.users.values().map(|user| issuers.user_view(user)).collect();
    assert_eq!(
        users.iter().map(|user| (user.issuer, user.outdated)).collect::<Vec<_>>(),
        [(Some(founding), true), (Some(next), false)]
    );
}

#[test]
fn missing_nodes_are_bounded_and_counted() {
    let mut world = World::new(150);
    let ((next, next_pem), founding) = (pem(2), world.founding);
    world.root(founding, &world.founding_pem(), AuthorityState::Active, 1);
    world.root(next, &next_pem, AuthorityState::Prepared, 2);
    for n in 1..=149 {
        world.node(n, |node| node.liveness = Liveness::Down);
    }
    let seen = world.seen().acknowledged;
    assert_eq!((seen.of, seen.n, seen.missing.len()), (150, 0, MAX_MISSING));
    assert_eq!(seen.missing[0].reason, RootsWaitReason::WaitingForAnswer, "the ready one is never left out");
}

#[test]
fn roots_in_json_are_words_and_hexadecimal_ids() {
    let mut world = World::new(1);
    world.root(world.founding, &world.founding_pem(), AuthorityState::Active, 1);
    let seen = serde_json::to_value(world.seen()).unwrap();
    assert_eq!(
        (&seen["active"], &seen["phase"], &seen["target"]),
        (&json!(world.founding), &json!("done"), &json!(null))
    );
    assert_eq!((&seen["items"][0]["state"], &seen["items"][0]["origin"]), (&json!("active"), &json!("founded")));
    let missing = json!([{"node": id(1), "name": "n1", "reason": "waiting_for_answer"}]);
    assert_eq!(seen["acknowledged"], json!({"of": 1, "n": 0, "missing": missing}));
    assert_eq!(seen["renewed"], json!({"of": 1, "n": 1, "missing": []}));
}
