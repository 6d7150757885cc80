use std::sync::Arc;

use muster_audit::{Class, Via};
use muster_messages::wire::{self, ActorsAsk, ActorsCall, JoinRequest, Rekey};
use muster_messages::{
    AutoUnlock, CertIdentity, CertificatePin, CertificateRecord, CertificateState, ClusterId, Incarnation, NodeRecord,
    Principal, RequestId, Revision, Seal, Secret, Subject, Tables, WallTime,
};

use super::audit::{Line, of_forwarded_call, of_own_call};
use super::seals::command_of;
use super::*;

const ME: u128 = 1;
/// Another manager.
const OTHER: u128 = 9;
const WORKER: u128 = 5;

fn node(n: u128) -> NodeId {
    NodeId::from_entropy(n)
}
/// A manager since this revision, and the certificate on record: its role, and the grant that it is for.
pub(in crate::router) fn granted_at(granted: u64, certificate: Option<(Role, Option<u64>)>) -> NodeRecord {
    let certificate = certificate.map(|(role, granted)| CertificateRecord {
        role,
        serial: "aa".to_owned(),
        granted: granted.map(Revision),
        not_after: WallTime(9),
        state: CertificateState::Issued,
    });
    let record = NodeRecord::new(node(OTHER), "other".parse().unwrap(), Role::Manager, WallTime(0));
    NodeRecord { granted: Revision(granted), certificate, ..record }
}
fn replica(leading: bool) -> Replica {
    let mut replica = Replica::default();
    replica.raft.leading = leading;
    replica.tables.nodes.insert(node(OTHER), Arc::new(granted_at(5, None)));
    let worker = NodeRecord::new(node(WORKER), "worker".parse().unwrap(), Role::Worker, WallTime(0));
    replica.tables.nodes.insert(node(WORKER), Arc::new(worker));
    replica
}
fn identity(pin: Option<CertificatePin>) -> CertIdentity {
    CertIdentity {
        cluster: ClusterId::from_entropy(1),
        subject: Subject::Node { node: node(7), role: Role::Worker },
        serial: "aa".to_owned(),
        granted: None,
        incarnation: Incarnation(1),
        not_after: WallTime(9),
        pin,
        issuer: None,
    }
}
fn sign(pin: Option<CertificatePin>) -> PeerCall {
    PeerCall::SignNode { identity: identity(pin), observed_addr: "10.0.0.7:1".to_owned(), csr_pem: "CSR".to_owned() }
}
pub(in crate::router) fn join(rekey: Option<Rekey>) -> PeerCall {
    let request = JoinRequest {
        request_id: RequestId(4),
        node: node(7),
        token_secret: Secret::new("s"),
        csr_pem: String::new(),
        name: "n7".parse().unwrap(),
        advertise: String::new(),
        release: String::new(),
        labels: Default::default(),
        rekey,
    };
    PeerCall::Join { observed_addr: "10.0.0.7:1".to_owned(), request }
}

/// FORWARD-1.
#[test]
fn call_is_answered_for_managers_and_where_it_may_be() {
    let actors = PeerCall::Actors(ActorsCall { node: node(ME), ask: ActorsAsk::Tree });
    let code = |leading, forwarder, call: &PeerCall| {
        may_answer(&replica(leading), node(ME), node(forwarder), call).err().map(|refusal| refusal.code)
    };
    for call in [&sign(None), &actors, &PeerCall::Clock] {
        let own_decision = matches!(call, PeerCall::SignNode { .. });
        assert_eq!((code(true, ME, call), code(true, OTHER, call)), (None, None), "{call:?}");
        for sender in [WORKER, 4] {
            assert_eq!(code(true, sender, call), Some(ErrorCode::Forbidden), "{call:?}");
        }
        let by_leader_alone = own_decision.then_some(ErrorCode::Unreachable);
        assert_eq!((code(false, ME, call), code(false, OTHER, call)), (by_leader_alone, by_leader_alone), "{call:?}");
        // An outdated replica may not know a manager yet.
        let unknown = by_leader_alone.or(Some(ErrorCode::NotKnownHereYet));
        assert_eq!(code(false, 4, call), unknown, "{call:?}");
    }
    let follower = may_answer(&replica(false), node(ME), node(OTHER), &sign(None)).unwrap_err();
    assert!(follower.is_marked(ErrorMark::NotLeading) && follower.retry_after_ms.is_some(), "{follower}");
    assert!(asks_again(&follower) && !asks_again(&ErrorBody::new(ErrorCode::Forbidden, "not for you")));
}

#[test]
fn pin_has_a_field_of_its_own_where_it_is_read() {
    let pin = CertificatePin { fingerprint: [3; 32], key: [4; 32] };
    let (observed_addr, csr_pem) = ("10.0.0.7:1".to_owned(), "CSR".to_owned());
    let pinned = PeerCall::SignPinned { identity: identity(Some(pin)), pin, observed_addr, csr_pem };
    assert_eq!(with_pin(sign(Some(pin)), true), pinned);
    assert_eq!(with_pin(sign(Some(pin)), false), sign(Some(pin)), "a build of feature level 2");
    assert_eq!(with_pin(sign(None), true), sign(None));
    assert_eq!(with_pin(PeerCall::Clock, true), PeerCall::Clock);
}

#[test]
fn lines_say_who_asked_for_what_from_where() {
    let shown = |line: Option<Line>| {
        let Line { class, draft } = line.expect("it has a line");
        (class, draft.verb, draft.by, draft.origin.via, draft.origin.serial, draft.origin.forwarder)
    };
    let rekey = Rekey { old_cert_pem: String::new(), signature: Vec::new() };
    let addr = || Via::Addr("10.0.0.7:1".to_owned());
    let (anonymous, asker, serial) = (Principal::Anonymous, Principal::Node(node(7)), Some("aa".to_owned()));
    let joined = (Class::Change, "node.join".to_owned(), anonymous.clone(), addr(), None, None);
    assert_eq!(shown(of_own_call(&join(None))), joined);
    let rekeyed = (Class::Vital, "node.rekey".to_owned(), anonymous, addr(), None, None);
    assert_eq!(shown(of_own_call(&join(Some(rekey)))), rekeyed, "it is carried out whatever happens to the log");
    let verb = "certificate.sign".to_owned();
    let signed = (Class::Vital, verb.clone(), asker.clone(), addr(), serial.clone(), None);
    assert_eq!(shown(of_own_call(&sign(None))), signed);
    let forwarded = (Class::Vital, verb, asker.clone(), Via::Internal, serial.clone(), Some(node(OTHER)));
    assert_eq!(shown(of_forwarded_call(true, node(OTHER), &sign(None))), forwarded);
    let request = wire::WorkloadRequest::certificate("shop/web".parse().unwrap(), vec![0x30]);
    let workload = PeerCall::SignWorkload { identity: identity(None), pin: None, request };
    let signed = (Class::Vital, "workload.sign".to_owned(), asker, Via::Internal, serial, None);
    assert_eq!(shown(of_own_call(&workload)), signed, "its host does not say from where it asks");
}

#[test]
fn only_the_leader_writes_a_second_line() {
    for call in [join(None), sign(None)] {
        assert_eq!(of_forwarded_call(false, node(OTHER), &call), None);
        assert!(of_forwarded_call(true, node(OTHER), &call).is_some());
    }
    assert_eq!((of_own_call(&PeerCall::Clock), of_forwarded_call(true, node(OTHER), &PeerCall::Clock)), (None, None));
}

/// SEAL-11: what a manager reported before it was demoted says nothing about the keyring that it has after its next promotion.
#[test]
fn report_counts_only_with_the_certificate_of_its_grant() {
    let seal = Seal { version: Revision(7), sealed: true, files_sealed: true, unlock: AutoUnlock::None };
    let recorded = |certificate: Option<(Role, Option<u64>)>| {
        let mut tables = Tables::default();
        tables.nodes.insert(node(OTHER), Arc::new(granted_at(5, certificate)));
        command_of(&tables, WallTime(0), node(OTHER), seal)
    };
    for certificate in [Some((Role::Manager, Some(5))), Some((Role::Manager, None))] {
        assert!(recorded(certificate).is_ok(), "{certificate:?}");
    }
    for certificate in [None, Some((Role::Worker, Some(4))), Some((Role::Manager, Some(3)))] {
        let refused = recorded(certificate).unwrap_err();
        assert!(refused.retry_after_ms.is_some(), "{refused}");
    }
    assert!(command_of(&Tables::default(), WallTime(0), node(OTHER), seal).is_err(), "no such node");
}
