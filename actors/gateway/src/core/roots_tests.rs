//! Tests of admission by the root of a certificate: what a stolen key of an earlier root opens, and what an honest node that was
//! away opens.

use std::sync::Arc;
use std::time::Duration;

use muster_messages::{
    AuthorityOrigin, CertificatePin, ClusterId, ClusterRecord, Incarnation, IssuedCertificate, Name, NodeCertificates,
    NodeId, NodeRecord, RaftId, Replica, Revision, Role, RootId, Secret, User, UserKind, UserPin, WallTime,
};

use super::super::admission::{CONFIRMATION_TIMEOUT, LiveDecision, LocalFacts, admit, evaluate_live};
use super::*;

const NOW: WallTime = WallTime(1_000);
const LATER: WallTime = WallTime(1_000_000);
const OLD: RootId = RootId([1; 8]);
const NEW: RootId = RootId([2; 8]);
const SERVICES: [Service; 4] = [Service::Mesh, Service::Agent, Service::Api, Service::Http];

fn node() -> NodeId {
    NodeId::from_entropy(1)
}
fn cluster() -> ClusterId {
    ClusterId::from_entropy(7)
}
fn here() -> LocalFacts {
    LocalFacts { cluster: cluster(), incarnation: Incarnation(1), manager: true, closed_to_others: false, me: None }
}
fn pin(which: u8) -> CertificatePin {
    CertificatePin { fingerprint: [which; 32], key: [which; 32] }
}
fn root(state: AuthorityState, origin: AuthorityOrigin) -> Authority {
    Authority { created_at: NOW, revision: Revision(1), ..Authority::new("", origin, state) }
}

/// The certificate of node 1, a manager, with this serial and pin, by this root.
fn certificate(serial: &str, pinned: u8, issuer: Option<RootId>) -> CertIdentity {
    CertIdentity {
        cluster: cluster(),
        subject: Subject::Node { node: node(), role: Role::Manager },
        serial: serial.to_owned(),
        granted: Some(Revision(10)),
        incarnation: Incarnation(1),
        not_after: LATER,
        pin: Some(pin(pinned)),
        issuer,
    }
}
/// On record: the newest one of node 1.
fn recorded() -> CertIdentity {
    certificate("aa", 1, Some(OLD))
}
/// Signed with the stolen key of the old root: everything but the key is as in the certificate on record.
fn forged() -> CertIdentity {
    certificate("aa", 66, Some(OLD))
}
fn user(pinned: u8) -> CertIdentity {
    let subject = Subject::User("ann".parse().unwrap());
    CertIdentity { subject, granted: None, ..certificate("bb", pinned, Some(OLD)) }
}

/// A manager's replica in which the old root is in this state, and the new one signs.
fn state(old: AuthorityState, compromised: bool) -> Replica {
    let mut replica = Replica::default();
    let tables = &mut replica.tables;
    tables.revision = Revision(20);
    replica.raft.leader = Some(RaftId(9));
    let new = if old == AuthorityState::Active { AuthorityState::Prepared } else { AuthorityState::Active };
    let old = Authority { compromised, ..root(old, AuthorityOrigin::Founded) };
    tables.authorities.roots.insert(OLD, Arc::new(old));
    tables.authorities.roots.insert(NEW, Arc::new(root(new, AuthorityOrigin::Made)));
    tables.cluster = Some(Arc::new(ClusterRecord {
        id: cluster(),
        name: "default".parse().unwrap(),
        incarnation: Incarnation(1),
        feature_level: 3,
        root_cert_pem: String::new(),
        root_key_pem: Secret::new(""),
        founded_at: NOW,
        revision: Revision(0),
    }));
    let record = NodeRecord {
        granted: Revision(10),
        last_not_after: LATER,
        revision: Revision(10),
        ..NodeRecord::new(node(), Name::sanitized("n1"), Role::Manager, NOW)
    };
    tables.nodes.insert(node(), Arc::new(record));
    let issued = IssuedCertificate {
        serial: "aa".to_owned(),
        role: Role::Manager,
        granted: Some(Revision(10)),
        not_after: LATER,
        pin: Some(pin(1)),
        issuer: Some(OLD),
    };
    let row = NodeCertificates { current: Some(issued), ..NodeCertificates::default() };
    tables.certificates.insert(node(), Arc::new(row));
    let name: Name = "ann".parse().unwrap();
    tables.users.insert(
        name.clone(),
        User {
            name: name.clone(),
            kind: UserKind::User,
            namespaces: Vec::new(),
            serial: "bb".to_owned(),
            created_at: NOW,
            not_after: LATER,
            revision: Revision(1),
        },
    );
    tables.user_pins.insert(name, UserPin { serial: "bb".to_owned(), pin: pin(2), issuer: OLD });
    replica
}

/// As on a leader, on a follower of one, and on a follower without one.
fn everywhere(replica: &Replica) -> [(&'static str, Replica); 3] {
    let (mut leading, mut alone) = (replica.clone(), replica.clone());
    leading.raft.leading = true;
    alone.raft.leader = None;
    [("leader", leading), ("follower", replica.clone()), ("follower without a leader", alone)]
}

fn decided(identity: &CertIdentity, service: Service, replica: &Replica) -> Admission {
    let decision = admit(Some(identity), service, Some(replica), &here(), NOW);
    if let Admission::Refuse(_, sentence) = &decision {
        assert!(!sentence.is_empty() && !sentence.ends_with('.'));
    }
    decision
}
fn is_refused(identity: &CertIdentity, service: Service, replica: &Replica) -> bool {
    matches!(decided(identity, service, replica), Admission::Refuse(RefusalReason::Unauthenticated, _))
}
fn live(identity: &CertIdentity, service: Service, replica: &Replica) -> LiveDecision {
    evaluate_live(identity, service, (true, Duration::ZERO), replica, &here(), NOW)
}

use AuthorityState::{Active, Retired, Retiring, Revoked};

#[test]
fn stolen_key_of_a_retired_root_opens_nothing() {
    for (on, replica) in everywhere(&state(Retired, false)) {
        for service in SERVICES {
            for granted in [None, Some(Revision(10)), Some(Revision(1 << 62))] {
                let forged = CertIdentity { granted, ..forged() };
                assert!(is_refused(&forged, service, &replica), "{on} {service:?} {granted:?}");
                let other = Subject::Node { node: NodeId::from_entropy(77), role: Role::Manager };
                let invented = CertIdentity { subject: other, ..forged };
                let decision = decided(&invented, service, &replica);
                assert!(matches!(decision, Admission::Refuse(..)), "{on} {service:?} {granted:?} {decision:?}");
            }
        }
        assert!(is_refused(&user(66), Service::Api, &replica), "{on}");
    }
}

#[test]
fn compromised_key_opens_nothing_from_the_activation_on() {
    for (on, replica) in everywhere(&state(Retiring, true)) {
        for service in SERVICES {
            assert!(is_refused(&forged(), service, &replica), "{on} {service:?}");
        }
    }
    // Before, and in a rotation for another reason, it is as it was: only a manager that knows all certificates refuses it.
    for replica in [state(Active, true), state(Active, false), state(Retiring, false)] {
        let [(_, leader), _, (_, alone)] = everywhere(&replica);
        assert!(is_refused(&forged(), Service::Mesh, &leader));
        assert_eq!(decided(&forged(), Service::Mesh, &alone), Admission::AcceptOnCertificate);
    }
}

#[test]
fn recorded_certificate_of_a_retired_root_opens_everything() {
    for replica in [state(Retired, false), state(Retiring, true), state(Retiring, false)] {
        for (on, replica) in everywhere(&replica) {
            for service in SERVICES {
                assert_eq!(decided(&recorded(), service, &replica), Admission::Accept, "{on} {service:?}");
                assert_eq!(live(&recorded(), service, &replica), LiveDecision::Stays { by_replica: true });
            }
            assert_eq!(decided(&user(2), Service::Api, &replica), Admission::Accept, "{on}");
        }
    }
}

#[test]
fn certificate_of_a_revoked_root_opens_only_its_session() {
    for (on, replica) in everywhere(&state(Revoked, true)) {
        for service in SERVICES {
            let opens = service == Service::Agent;
            assert_eq!(decided(&recorded(), service, &replica) == Admission::Accept, opens, "{on} {service:?}");
            let stays = live(&recorded(), service, &replica) == LiveDecision::Stays { by_replica: true };
            assert_eq!(stays, opens, "{on} {service:?}");
            assert!(is_refused(&forged(), service, &replica), "{on} {service:?}");
            assert_eq!(live(&forged(), service, &replica), LiveDecision::Ends(RefusalReason::Unauthenticated));
        }
        assert!(is_refused(&user(2), Service::Api, &replica), "{on}");
    }
}

/// A build below feature level 3 recorded only serials, or nothing.
#[test]
fn record_without_a_digest_admits_nothing_of_a_retired_root() {
    let mut replica = state(Retired, false);
    let row = replica.tables.certificates.get(&node()).cloned().unwrap();
    let current = row.current.clone().map(|issued| IssuedCertificate { pin: None, issuer: None, ..issued });
    let rows =
        [NodeCertificates { current, ..(*row).clone() }, NodeCertificates { incomplete: true, ..(*row).clone() }];
    for row in rows {
        replica.tables.certificates.insert(node(), Arc::new(row));
        for (on, replica) in everywhere(&replica) {
            assert!(is_refused(&forged(), Service::Mesh, &replica), "{on}");
            assert!(is_refused(&forged(), Service::Agent, &replica), "{on}");
        }
    }
    replica.tables.user_pins.clear();
    assert!(is_refused(&user(2), Service::Api, &replica));
}

#[test]
fn connections_end_when_their_root_is_retired() {
    let before = Replica::default();
    let forged_then = certificate("aa", 66, None);
    let mut alone = before.clone();
    alone.tables.revision = Revision(5);
    assert_eq!(decided(&forged_then, Service::Mesh, &alone), Admission::AcceptOnCertificate, "no rotation yet");
    for (on, replica) in everywhere(&state(Retired, false)) {
        for (confirmed, since) in [(false, Duration::ZERO), (false, CONFIRMATION_TIMEOUT), (true, Duration::ZERO)] {
            for identity in [forged(), forged_then.clone()] {
                let decision = evaluate_live(&identity, Service::Mesh, (confirmed, since), &replica, &here(), NOW);
                assert_eq!(decision, LiveDecision::Ends(RefusalReason::Unauthenticated), "{on}");
            }
        }
        // Opened before the first rotation, by an honest node.
        assert_eq!(
            live(&certificate("aa", 1, None), Service::Mesh, &replica),
            LiveDecision::Stays { by_replica: true }
        );
    }
}

/// The founding root is deleted once its last certificate has expired: none of it can be valid.
#[test]
fn no_root_on_record_counts_as_retired() {
    let mut replica = state(Retired, false);
    replica.tables.authorities.roots.remove(&OLD);
    for (on, replica) in everywhere(&replica) {
        assert!(is_refused(&certificate("aa", 66, None), Service::Mesh, &replica), "{on}");
    }
}

#[test]
fn unknown_root_is_judged_as_an_unknown_grant() {
    // A replica that lacks the newest rotation; this node has its root already.
    let newest = certificate("cc", 3, Some(RootId([3; 8])));
    let mut replica = state(Retired, false);
    let row = replica.tables.certificates.get(&node()).cloned().unwrap();
    replica.tables.certificates.insert(node(), Arc::new(NodeCertificates { incomplete: true, ..(*row).clone() }));
    let [(_, leader), (_, follower), (_, alone)] = everywhere(&replica);
    assert!(is_refused(&newest, Service::Mesh, &leader), "a leader knows all roots");
    assert!(matches!(decided(&newest, Service::Mesh, &follower), Admission::CatchUp { .. }));
    assert_eq!(decided(&newest, Service::Mesh, &alone), Admission::AcceptOnCertificate);
}

#[test]
fn final_refusals_stay_as_they_were() {
    let mut replica = state(Retired, false);
    replica.tables.nodes.remove(&node());
    let removed = decided(&forged(), Service::Agent, &replica);
    assert!(matches!(removed, Admission::Refuse(RefusalReason::Removed, _)), "{removed:?}");
}
