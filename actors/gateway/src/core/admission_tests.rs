//! Tests of admission.

use std::sync::Arc;

use muster_messages::{
    Blocked, CertificatePin, ClusterRecord, IssuedCertificate, Liveness, NodeCertificates, NodeRecord, Principal,
    RaftId, Revision, Secret, UserPin,
};

use super::*;

const NOW: WallTime = WallTime(1_000);
const LATER: WallTime = WallTime(1_000_000);

fn cluster() -> ClusterId {
    ClusterId::from_entropy(7)
}
fn id(n: u128) -> NodeId {
    NodeId::from_entropy(n)
}
fn here() -> LocalFacts {
    LocalFacts { cluster: cluster(), incarnation: Incarnation(1), manager: true, closed_to_others: false, me: None }
}
fn worker_here() -> LocalFacts {
    LocalFacts { manager: false, ..here() }
}
fn cert(n: u128, role: Role, granted: Option<u64>) -> CertIdentity {
    CertIdentity {
        cluster: cluster(),
        subject: Subject::Node { node: id(n), role },
        serial: format!("{n:x}"),
        granted: granted.map(Revision),
        incarnation: Incarnation(1),
        not_after: LATER,
        pin: None,
        issuer: None,
    }
}
/// A made-up pin for this serial.
fn pin(serial: &str) -> CertificatePin {
    let mut digest = [0; 32];
    digest[..serial.len()].copy_from_slice(serial.as_bytes());
    CertificatePin { fingerprint: digest, key: digest }
}
/// The certificate of this serial, with its pin.
fn presented(n: u128, serial: &str) -> CertIdentity {
    CertIdentity { serial: serial.to_owned(), pin: Some(pin(serial)), ..cert(n, Manager, Some(10)) }
}
fn user_cert(name: &str, serial: &str) -> CertIdentity {
    let subject = Subject::User(name.parse().unwrap());
    CertIdentity { subject, serial: serial.to_owned(), granted: None, ..cert(0, Role::Worker, None) }
}

/// A manager's replica.
#[derive(Clone)]
struct LocalState(Replica);

impl LocalState {
    /// Applied up to `revision`, following a leader.
    fn at(revision: u64) -> Self {
        let mut replica = Replica::default();
        replica.tables.revision = Revision(revision);
        replica.raft.leader = Some(RaftId(1));
        Self(replica)
    }
    fn empty() -> Self {
        Self(Replica::default())
    }
    fn leading(mut self) -> Self {
        self.0.raft.leading = true;
        self
    }
    fn leaderless(mut self) -> Self {
        self.0.raft.leader = None;
        self
    }
    fn node(mut self, n: u128, role: Role, granted: u64) -> Self {
        let record = NodeRecord {
            granted: Revision(granted),
            last_not_after: LATER,
            liveness: Liveness::Ready,
            revision: Revision(granted),
            ..NodeRecord::new(id(n), Name::sanitized(&format!("n{n}")), role, NOW)
        };
        self.0.tables.nodes.insert(id(n), Arc::new(record));
        self
    }
    /// From feature level 3 on: the certificates of these serials are on record, newest first.
    fn issued(mut self, n: u128, serials: &[&str]) -> Self {
        let cluster = ClusterRecord {
            id: cluster(),
            name: "default".parse().unwrap(),
            incarnation: Incarnation(1),
            feature_level: 3,
            root_cert_pem: String::new(),
            root_key_pem: Secret::new(""),
            founded_at: NOW,
            revision: Revision(0),
        };
        self.0.tables.cluster = Some(Arc::new(cluster));
        let mut on_record = serials.iter().map(|serial| IssuedCertificate {
            serial: (*serial).to_owned(),
            role: Manager,
            granted: None,
            not_after: LATER,
            pin: Some(pin(serial)),
            issuer: None,
        });
        let (current, previous) = (on_record.next(), on_record.next());
        let row = NodeCertificates { current, previous, ..NodeCertificates::default() };
        self.0.tables.certificates.insert(id(n), Arc::new(row));
        self
    }
    fn block(mut self, n: u128) -> Self {
        let blocked = Blocked { node: id(n), by: Principal::Operator, blocked_at: NOW, expires_at: LATER };
        self.0.tables.blocklist.insert(id(n), blocked);
        self
    }
    fn user(mut self, name: &str, serial: &str) -> Self {
        let name: Name = name.parse().unwrap();
        let user = User {
            name: name.clone(),
            kind: UserKind::User,
            namespaces: Vec::new(),
            serial: serial.to_owned(),
            created_at: NOW,
            not_after: LATER,
            revision: Revision(1),
        };
        self.0.tables.users.insert(name, user);
        self
    }
    fn evaluates(&self, cert: &CertIdentity, service: Service) -> Outcome {
        outcome_of(admit(Some(cert), service, Some(&self.0), &here(), NOW))
    }
    fn still(&self, cert: &CertIdentity, service: Service, by_replica: bool) -> LiveDecision {
        evaluate_live(cert, service, (by_replica, Duration::ZERO), &self.0, &here(), NOW)
    }
}

/// An admission without its text.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Yes,
    OnCertificate,
    WaitThen(Box<Outcome>),
    No(RefusalReason),
}
fn outcome_of(admission: Admission) -> Outcome {
    match admission {
        Admission::Accept => Outcome::Yes,
        Admission::AcceptOnCertificate => Outcome::OnCertificate,
        Admission::CatchUp { otherwise } => Outcome::WaitThen(Box::new(outcome_of(*otherwise))),
        Admission::Refuse(reason, sentence) => {
            assert!(!sentence.is_empty() && !sentence.ends_with('.'));
            Outcome::No(reason)
        }
    }
}
fn wait_then(then: Outcome) -> Outcome {
    Outcome::WaitThen(Box::new(then))
}
use Outcome::{No, OnCertificate, Yes};
use RefusalReason as R;
use Role::{Manager, Worker};
use Service::{Agent, Api, Http, Join, Mesh};

const EVERY_IDENTIFIED: [Service; 4] = [Mesh, Agent, Api, Http];

#[test]
fn closed_cluster_admits_its_own_manager_only() {
    let state = LocalState::at(20).node(1, Manager, 15).node(2, Worker, 15).user("ann", "5");
    let closed = LocalFacts { closed_to_others: true, me: Some(id(1)), ..here() };
    let evaluate =
        |identity: Option<&CertIdentity>, service| outcome_of(admit(identity, service, Some(&state.0), &closed, NOW));
    for service in Service::ALL {
        assert_eq!(evaluate(Some(&cert(1, Manager, Some(15))), service), Yes, "{service:?}");
        for other in [cert(2, Worker, Some(15)), user_cert("ann", "5")] {
            assert_eq!(evaluate(Some(&other), service), No(R::NotKnownHereYet), "{service:?}");
        }
        assert_eq!(evaluate(None, service), No(R::NotKnownHereYet), "{service:?}");
    }
}

#[test]
fn unexpired_certificate_of_demoted_manager_opens_no_mesh() {
    let state = LocalState::at(20).node(1, Worker, 15);
    let old = cert(1, Manager, Some(10));
    assert_eq!(state.evaluates(&old, Mesh), No(R::Demoted));
    // Its agent session stays: through it the node learns of the demotion and fetches the next certificate.
    assert_eq!(state.evaluates(&old, Agent), Yes);
    assert_eq!(state.evaluates(&old, Api), Yes);
}

#[test]
fn removed_manager_gets_removed_from_every_service() {
    let state = LocalState::at(20);
    for service in EVERY_IDENTIFIED {
        assert_eq!(state.evaluates(&cert(1, Manager, Some(10)), service), No(R::Removed));
        let blocked = state.clone().block(1);
        assert_eq!(blocked.evaluates(&cert(1, Manager, Some(10)), service), No(R::Blocked));
    }
}

#[test]
fn any_replica_with_the_block_refuses_the_node() {
    // This replica has not applied the certificate's grant.
    let state = LocalState::at(5).block(1).leaderless();
    for service in EVERY_IDENTIFIED {
        assert_eq!(state.evaluates(&cert(1, Worker, Some(10)), service), No(R::Blocked));
    }
}

#[test]
fn lagging_manager_never_reports_new_manager_removed() {
    let new = cert(1, Manager, Some(30));
    for lagging in [
        LocalState::at(29),                    // does not know the node
        LocalState::at(29).node(1, Worker, 5), // knows it as a worker
    ] {
        for service in [Mesh, Agent] {
            assert_eq!(lagging.evaluates(&new, service), wait_then(No(R::NotKnownHereYet)));
            let alone = lagging.clone().leaderless();
            assert_eq!(alone.evaluates(&new, service), OnCertificate);
        }
        for service in [Api, Http] {
            assert_eq!(lagging.evaluates(&new, service), wait_then(No(R::NotKnownHereYet)));
        }
    }
    let caught_up = LocalState::at(30).node(1, Manager, 30);
    assert_eq!(caught_up.evaluates(&new, Mesh), Yes);
}

#[test]
fn empty_replica_accepts_dial_back() {
    let leader = cert(1, Manager, Some(3));
    assert_eq!(LocalState::empty().evaluates(&leader, Mesh), OnCertificate);
    // The manager runtime runs, but has no replica yet.
    assert_eq!(outcome_of(admit(Some(&leader), Mesh, None, &here(), NOW)), OnCertificate);
}

#[test]
fn returning_manager_accepts_unknown_newer_manager() {
    // Members {A,B,C}, C off; D promoted, A demoted, B dead; C returns with its old replica.
    let old_replica = LocalState::at(50).node(1, Manager, 1).node(2, Manager, 5).node(3, Manager, 9).leaderless();
    assert_eq!(old_replica.evaluates(&cert(4, Manager, Some(60)), Mesh), OnCertificate);
}

#[test]
fn mesh_requires_manager_in_certificate_and_replica() {
    let state = LocalState::at(20).node(1, Manager, 15).node(2, Worker, 5);
    assert_eq!(state.evaluates(&cert(1, Worker, Some(10)), Mesh), No(R::Forbidden));
    assert_eq!(state.evaluates(&cert(2, Worker, Some(5)), Mesh), No(R::Forbidden));
    assert_eq!(state.evaluates(&cert(1, Manager, Some(15)), Mesh), Yes);
    // An old replica does not make a worker's certificate a manager's.
    assert_eq!(state.evaluates(&cert(3, Worker, Some(99)), Mesh), No(R::Forbidden));
}

#[test]
fn certificate_before_demotion_and_repromotion_is_valid() {
    let state = LocalState::at(40).node(1, Manager, 30);
    assert_eq!(state.evaluates(&cert(1, Manager, Some(10)), Mesh), Yes);
}

#[test]
fn founder_certificate_is_valid_until_record_exists() {
    let first = cert(1, Manager, None);
    assert_eq!(LocalState::empty().evaluates(&first, Mesh), OnCertificate);
    assert_eq!(LocalState::at(9).evaluates(&first, Mesh), wait_then(No(R::NotKnownHereYet)));
    assert_eq!(LocalState::at(9).leaderless().evaluates(&first, Mesh), OnCertificate);
    assert_eq!(
        LocalState::at(9).leading().evaluates(&first, Mesh),
        No(R::NotKnownHereYet),
        "it names no grant, and is not the founder's"
    );
    assert_eq!(LocalState::at(9).node(1, Manager, 1).evaluates(&first, Mesh), Yes);
    assert_eq!(LocalState::at(9).node(1, Worker, 7).evaluates(&first, Mesh), No(R::Demoted));
    assert_eq!(LocalState::at(9).block(1).evaluates(&first, Mesh), No(R::Blocked));
}

/// A manager of incarnation 2 with a replica of that incarnation.
fn recovered(state: LocalState) -> (LocalState, LocalFacts) {
    let cluster = ClusterRecord {
        id: cluster(),
        name: Name::sanitized("default"),
        incarnation: Incarnation(2),
        feature_level: 1,
        root_cert_pem: String::new(),
        root_key_pem: Secret::new(""),
        founded_at: WallTime(0),
        revision: Revision(0),
    };
    let mut state = state;
    state.0.tables.cluster = Some(Arc::new(cluster));
    (state, LocalFacts { incarnation: Incarnation(2), ..here() })
}

#[test]
fn older_incarnations_are_fenced_and_newer_redirected() {
    let (state, restored) = recovered(LocalState::at(9).node(1, Manager, 5));
    let old = cert(1, Manager, Some(5));
    let outcome_with =
        |here: &LocalFacts, cert: &CertIdentity| outcome_of(admit(Some(cert), Mesh, Some(&state.0), here, NOW));
    assert_eq!(outcome_with(&restored, &old), No(R::OldIncarnation));
    let new = CertIdentity { incarnation: Incarnation(2), ..old };
    assert_eq!(outcome_with(&here(), &new), No(R::NotKnownHereYet));
}

#[test]
fn node_of_older_incarnation_may_only_fetch_certificate() {
    // Its grant is of a history that this replica does not share: the number is meaningless.
    for granted in [Some(5), Some(99), None] {
        for role in [Worker, Manager] {
            let (state, here) = recovered(LocalState::at(9).node(1, role, 5));
            let old = cert(1, Manager, granted);
            for (service, expected) in [
                (Agent, Yes),
                (Mesh, No(R::OldIncarnation)),
                (Api, No(R::OldIncarnation)),
                (Http, No(R::OldIncarnation)),
            ] {
                assert_eq!(outcome_of(admit(Some(&old), service, Some(&state.0), &here, NOW)), expected, "{service:?}");
            }
        }
    }
}

#[test]
fn node_unknown_to_new_incarnation_is_removed() {
    let (state, here) = recovered(LocalState::at(9).block(2));
    let outcome_as =
        |n, state: &LocalState| outcome_of(admit(Some(&cert(n, Worker, Some(99))), Agent, Some(&state.0), &here, NOW));
    assert_eq!((outcome_as(1, &state), outcome_as(2, &state)), (No(R::Removed), No(R::Blocked)));
    // A manager whose replica is empty or of the old incarnation gives no final refusal.
    for state in [LocalState::empty(), LocalState::at(9)] {
        assert_eq!(outcome_as(1, &state), No(R::OldIncarnation));
    }
}

#[test]
fn expired_and_foreign_certificates_are_refused_after_tls() {
    let state = LocalState::at(9).node(1, Worker, 5);
    let good = cert(1, Worker, Some(5));
    let expired = CertIdentity { not_after: NOW, ..good.clone() };
    let foreign = CertIdentity { cluster: ClusterId::from_entropy(8), ..good };
    assert_eq!(state.evaluates(&expired, Agent), No(R::Unauthenticated));
    assert_eq!(state.evaluates(&foreign, Agent), No(R::Unauthenticated));
}

#[test]
fn worker_redirects_to_managers_and_decides_nothing() {
    for service in [Mesh, Agent, Join] {
        let manager = cert(1, Manager, Some(5));
        assert_eq!(outcome_of(admit(Some(&manager), service, None, &worker_here(), NOW)), No(R::NotAManager));
        assert_eq!(outcome_of(admit(None, service, None, &worker_here(), NOW)), No(R::NotAManager));
    }
    for who in [cert(2, Worker, Some(5)), user_cert("ann", "aa")] {
        for service in [Api, Http] {
            assert_eq!(outcome_of(admit(Some(&who), service, None, &worker_here(), NOW)), OnCertificate);
        }
    }
}

#[test]
fn anonymous_clients_may_only_join_or_use_http() {
    let state = LocalState::at(9);
    let anonymous_client = |service| outcome_of(admit(None, service, Some(&state.0), &here(), NOW));
    assert_eq!([Join, Http].map(anonymous_client), [Yes, Yes]);
    assert_eq!(
        [Mesh, Agent, Api].map(anonymous_client),
        [No(R::Unauthenticated), No(R::Unauthenticated), No(R::Unauthenticated)]
    );
}

#[test]
fn user_certificate_is_valid_while_its_serial_is_current() {
    let state = LocalState::at(9).user("ann", "aa");
    assert_eq!(state.evaluates(&user_cert("ann", "aa"), Api), Yes);
    assert_eq!(state.evaluates(&user_cert("ann", "aa"), Agent), No(R::Forbidden));
    // A follower may not know the newest one yet.
    for unknown in [user_cert("ann", "bb"), user_cert("bob", "aa")] {
        assert_eq!(state.evaluates(&unknown, Http), wait_then(No(R::Unauthenticated)));
        assert_eq!(state.clone().leaderless().evaluates(&unknown, Http), No(R::NotKnownHereYet));
        assert_eq!(state.clone().leading().evaluates(&unknown, Http), No(R::Unauthenticated));
    }
    let claims_admin = CertIdentity { subject: Subject::Admin("ann".parse().unwrap()), ..user_cert("ann", "aa") };
    assert_eq!(state.clone().leading().evaluates(&claims_admin, Http), No(R::Unauthenticated));
    let claims_reader = CertIdentity { subject: Subject::Reader("ann".parse().unwrap()), ..user_cert("ann", "aa") };
    assert_eq!(state.clone().leading().evaluates(&claims_reader, Http), No(R::Unauthenticated));
}

#[test]
fn connection_on_certificate_ends_when_replica_overrules() {
    let old = cert(1, Manager, Some(10));
    assert_eq!(LocalState::at(9).still(&old, Mesh, false), LiveDecision::Stays { by_replica: false });
    assert_eq!(LocalState::at(20).node(1, Worker, 15).still(&old, Mesh, false), LiveDecision::Ends(R::Demoted));
    assert_eq!(
        LocalState::at(20).node(1, Worker, 15).still(&old, Agent, false),
        LiveDecision::Stays { by_replica: true }
    );
    assert_eq!(LocalState::at(20).still(&old, Agent, true), LiveDecision::Ends(R::Removed));
}

#[test]
fn removal_ends_earlier_connections() {
    let state = LocalState::at(20).block(1);
    for service in EVERY_IDENTIFIED {
        assert_eq!(state.still(&cert(1, Manager, Some(10)), service, true), LiveDecision::Ends(R::Blocked));
    }
}

#[test]
fn followers_disconnect_revoked_but_not_unknown_users() {
    let ann = user_cert("ann", "aa");
    assert_eq!(LocalState::at(9).still(&ann, Api, true), LiveDecision::Ends(R::Unauthenticated));
    assert_eq!(LocalState::at(9).leaderless().still(&ann, Api, true), LiveDecision::Ends(R::Unauthenticated));
    assert_eq!(LocalState::at(9).still(&ann, Api, false), LiveDecision::Stays { by_replica: false });
    assert_eq!(LocalState::at(9).user("ann", "aa").still(&ann, Api, false), LiveDecision::Stays { by_replica: true });
}

/// A holder of the root key can sign a certificate for any node, with any future grant or none.
#[test]
fn with_a_leader_no_unknown_grant_is_accepted() {
    for (node, granted) in [(4, Some(1 << 62)), (4, None), (1, Some(1 << 62))] {
        let forged = cert(node, Manager, granted);
        let state = LocalState::at(50).node(1, Manager, 1);
        for service in EVERY_IDENTIFIED {
            assert_eq!(
                state.evaluates(&forged, service),
                wait_then(No(R::NotKnownHereYet)),
                "{node} {granted:?} {service:?}"
            );
            assert_eq!(
                state.clone().leading().evaluates(&forged, service),
                No(R::NotKnownHereYet),
                "{node} {granted:?}"
            );
        }
        assert_eq!(state.clone().leaderless().evaluates(&forged, Mesh), OnCertificate, "no missing entry can arrive");
        let mut by_the_leader = state;
        by_the_leader.0.raft.leader_node = Some(id(node));
        assert_eq!(by_the_leader.evaluates(&forged, Mesh), wait_then(OnCertificate));
    }
}

#[test]
fn leader_refuses_grants_it_has_not_applied() {
    let forged = cert(4, Manager, Some(1 << 62));
    let state = LocalState::at(50).node(1, Manager, 1);
    let leader = state.clone().leading();
    for service in EVERY_IDENTIFIED {
        assert_eq!(leader.evaluates(&forged, service), No(R::NotKnownHereYet), "{service:?}");
        assert_eq!(leader.evaluates(&cert(4, Manager, Some(50)), service), No(R::Removed), "{service:?}");
    }
    // A session that a follower without a leader accepted on the certificate ends when it leads, or soon after another does.
    assert_eq!(state.clone().leaderless().evaluates(&forged, Mesh), OnCertificate);
    let live_decision =
        |state: &LocalState, since| evaluate_live(&forged, Mesh, (false, since), &state.0, &here(), NOW);
    assert_eq!(live_decision(&state, Duration::ZERO), LiveDecision::Stays { by_replica: false });
    assert_eq!(live_decision(&state, CONFIRMATION_TIMEOUT), LiveDecision::Ends(R::NotKnownHereYet));
    assert_eq!(live_decision(&leader, Duration::ZERO), LiveDecision::Ends(R::NotKnownHereYet));
}

#[test]
fn only_the_two_certificates_on_record_are_valid() {
    let state = LocalState::at(20).node(1, Manager, 10).issued(1, &["new", "held"]).leading();
    for service in EVERY_IDENTIFIED {
        assert_eq!(state.evaluates(&presented(1, "new"), service), Yes, "{service:?}");
        assert_eq!(state.evaluates(&presented(1, "held"), service), Yes, "{service:?}");
        assert_eq!(state.evaluates(&presented(1, "superseded"), service), No(R::Unauthenticated), "{service:?}");
        // Signed with a stolen root key: the same serial, another certificate.
        let forged = CertIdentity { pin: Some(pin("forged")), ..presented(1, "new") };
        assert_eq!(state.evaluates(&forged, service), No(R::Unauthenticated), "{service:?}");
    }
}

#[test]
fn node_without_recorded_certificate_has_no_valid_one() {
    let state = LocalState::at(20).node(1, Manager, 10).node(2, Manager, 10).issued(1, &["new"]).leading();
    assert_eq!(state.evaluates(&presented(2, "forged"), Mesh), No(R::Unauthenticated));
}

/// Its certificate expired and it signed another one for the same key, because no other manager could.
#[test]
fn manager_that_signed_for_its_recorded_key_is_accepted() {
    let state = LocalState::at(20).node(1, Manager, 10).issued(1, &["new"]).leading();
    let CertificatePin { key, .. } = pin("new");
    let pin = Some(CertificatePin { key, ..pin("by itself") });
    let by_itself = CertIdentity { pin, granted: None, ..presented(1, "by itself") };
    assert_eq!(state.evaluates(&by_itself, Mesh), Yes);
}

/// The newest certificate may be in transit to this follower. Without a leader it is not, and the quorum may depend on it.
#[test]
fn a_follower_waits_for_an_unknown_certificate() {
    let state = LocalState::at(20).node(1, Manager, 10).issued(1, &["new"]);
    let newer = presented(1, "newer");
    for service in EVERY_IDENTIFIED {
        assert_eq!(state.evaluates(&newer, service), wait_then(No(R::NotKnownHereYet)), "{service:?}");
    }
    let alone = state.clone().leaderless();
    assert_eq!(alone.evaluates(&newer, Mesh), OnCertificate);
    assert_eq!(alone.evaluates(&newer, Agent), OnCertificate);
    assert_eq!(alone.evaluates(&newer, Api), No(R::NotKnownHereYet));
    let mut by_the_leader = state;
    by_the_leader.0.raft.leader_node = Some(id(1));
    assert_eq!(
        by_the_leader.evaluates(&newer, Mesh),
        wait_then(OnCertificate),
        "only the leader can update the replica"
    );
}

#[test]
fn live_connections_end_once_superseded() {
    let state = LocalState::at(20).node(1, Manager, 10).issued(1, &["new", "held"]);
    assert_eq!(state.still(&presented(1, "held"), Mesh, true), LiveDecision::Stays { by_replica: true });
    for state in [state.clone(), state.clone().leading(), state.clone().leaderless()] {
        assert_eq!(state.still(&presented(1, "superseded"), Mesh, true), LiveDecision::Ends(R::Unauthenticated));
    }
    // Never confirmed: for a while it may be newer than the replica.
    let newer = presented(1, "newer");
    assert_eq!(state.still(&newer, Mesh, false), LiveDecision::Stays { by_replica: false });
    let late = |state: &LocalState| evaluate_live(&newer, Mesh, (false, CONFIRMATION_TIMEOUT), &state.0, &here(), NOW);
    assert_eq!(late(&state), LiveDecision::Ends(R::NotKnownHereYet));
    assert_eq!(late(&state.leaderless()), LiveDecision::Stays { by_replica: false });
}

#[test]
fn superseded_certificates_do_not_survive_a_recovery() {
    let mut state = LocalState::at(20).node(1, Worker, 10).issued(1, &["new", "held"]).leading();
    let tables = &mut state.0.tables;
    let newer = ClusterRecord { incarnation: Incarnation(2), ..(**tables.cluster.as_ref().unwrap()).clone() };
    tables.cluster = Some(Arc::new(newer));
    let here = LocalFacts { incarnation: Incarnation(2), ..here() };
    let evaluates =
        |state: &LocalState, serial| outcome_of(admit(Some(&presented(1, serial)), Agent, Some(&state.0), &here, NOW));
    assert_eq!(evaluates(&state, "held"), Yes);
    assert_eq!(evaluates(&state, "superseded"), No(R::Unauthenticated));
    // Until the node has fetched one of the new incarnation, it may hold one that the recovered replica does not know.
    let row = state.0.tables.certificates.get(&id(1)).cloned().unwrap();
    state.0.tables.certificates.insert(id(1), Arc::new(NodeCertificates { incomplete: true, ..(*row).clone() }));
    assert_eq!(evaluates(&state, "superseded"), Yes);
}

#[test]
fn a_forged_certificate_with_a_users_serial_is_refused() {
    let mut state = LocalState::at(20).user("ann", "aa").leading();
    let pinned = UserPin { serial: "aa".to_owned(), pin: pin("aa"), issuer: muster_messages::RootId([0; 8]) };
    state.0.tables.user_pins.insert("ann".parse().unwrap(), pinned);
    let real = CertIdentity { pin: Some(pin("aa")), ..user_cert("ann", "aa") };
    assert_eq!(state.evaluates(&real, Api), Yes);
    let forged = CertIdentity { pin: Some(pin("forged")), ..real };
    assert_eq!(state.evaluates(&forged, Api), No(R::Unauthenticated));
}

/// SPIFFE-3.
#[test]
fn workload_certificate_opens_no_service() {
    let subject = Subject::Workload("shop/web".parse().unwrap());
    let workload = CertIdentity { subject, granted: None, ..cert(0, Role::Worker, None) };
    let leader = LocalState::at(20).leading().node(1, Role::Manager, 10);
    let replicas = [None, Some(&leader.0), Some(&LocalState::empty().0)].map(|replica| replica.cloned());
    for replica in &replicas {
        for service in Service::ALL {
            for here in [here(), worker_here()] {
                let decision = admit(Some(&workload), service, replica.as_ref(), &here, NOW);
                let for_managers = matches!(service, Service::Mesh | Service::Agent | Service::Join);
                let expected =
                    if for_managers && !here.manager { RefusalReason::NotAManager } else { RefusalReason::Forbidden };
                assert!(matches!(&decision, Admission::Refuse(reason, _) if *reason == expected), "{decision:?}");
            }
        }
    }
    // Of whatever incarnation, cluster or age: it is refused.
    for other in [
        CertIdentity { incarnation: Incarnation(0), ..workload.clone() },
        CertIdentity { cluster: ClusterId::from_entropy(8), ..workload.clone() },
        CertIdentity { not_after: NOW, ..workload.clone() },
    ] {
        let decision = admit(Some(&other), Service::Http, Some(&leader.0), &here(), NOW);
        assert!(matches!(decision, Admission::Refuse(..)), "{decision:?}");
    }
}
