//! Stories about who is current.

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
fn here() -> HereIs {
    HereIs { cluster: cluster(), incarnation: Incarnation(1), manager: true, closed_to_others: false, me: None }
}
fn worker_here() -> HereIs {
    HereIs { manager: false, ..here() }
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
    }
}
/// As if made of the serial.
fn pin(serial: &str) -> CertificatePin {
    let mut digest = [0; 32];
    digest[..serial.len()].copy_from_slice(serial.as_bytes());
    CertificatePin { fingerprint: digest, key: digest }
}
/// The certificate of this serial, with its pin.
fn shown(n: u128, serial: &str) -> CertIdentity {
    CertIdentity { serial: serial.to_owned(), pin: Some(pin(serial)), ..cert(n, Manager, Some(10)) }
}
fn user_cert(name: &str, serial: &str) -> CertIdentity {
    let subject = Subject::User(name.parse().unwrap());
    CertIdentity { subject, serial: serial.to_owned(), granted: None, ..cert(0, Role::Worker, None) }
}

/// A manager's copy of the state.
#[derive(Clone)]
struct Copy(Replica);

impl Copy {
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
    fn judges(&self, cert: &CertIdentity, service: Service) -> Told {
        told(admit(Some(cert), service, Some(&self.0), &here(), NOW))
    }
    fn still(&self, cert: &CertIdentity, service: Service, by_copy: bool) -> Standing {
        standing(cert, service, (by_copy, Duration::ZERO), &self.0, &here(), NOW)
    }
}

/// An admission without its sentence.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Yes,
    OnCertificate,
    WaitThen(Box<Told>),
    No(RefusalReason),
}
fn told(admission: Admission) -> Told {
    match admission {
        Admission::Accept => Told::Yes,
        Admission::AcceptOnCertificate => Told::OnCertificate,
        Admission::CatchUp { otherwise } => Told::WaitThen(Box::new(told(*otherwise))),
        Admission::Refuse(reason, sentence) => {
            assert!(!sentence.is_empty() && !sentence.ends_with('.'));
            Told::No(reason)
        }
    }
}
fn wait_then(then: Told) -> Told {
    Told::WaitThen(Box::new(then))
}
use RefusalReason as R;
use Role::{Manager, Worker};
use Service::{Agent, Api, Http, Join, Mesh};
use Told::{No, OnCertificate, Yes};

const EVERY_IDENTIFIED: [Service; 4] = [Mesh, Agent, Api, Http];

#[test]
fn closed_cluster_admits_its_own_manager_only() {
    let copy = Copy::at(20).node(1, Manager, 15).node(2, Worker, 15).user("ann", "5");
    let closed = HereIs { closed_to_others: true, me: Some(id(1)), ..here() };
    let judge = |identity: Option<&CertIdentity>, service| told(admit(identity, service, Some(&copy.0), &closed, NOW));
    for service in Service::ALL {
        assert_eq!(judge(Some(&cert(1, Manager, Some(15))), service), Yes, "{service:?}");
        for other in [cert(2, Worker, Some(15)), user_cert("ann", "5")] {
            assert_eq!(judge(Some(&other), service), No(R::NotKnownHereYet), "{service:?}");
        }
        assert_eq!(judge(None, service), No(R::NotKnownHereYet), "{service:?}");
    }
}

#[test]
fn a_demoted_managers_unexpired_certificate_opens_no_mesh_session() {
    let copy = Copy::at(20).node(1, Worker, 15);
    let old = cert(1, Manager, Some(10));
    assert_eq!(copy.judges(&old, Mesh), No(R::Demoted));
    // Its agent session stays: that is how it hears of it and fetches the next certificate.
    assert_eq!(copy.judges(&old, Agent), Yes);
    assert_eq!(copy.judges(&old, Api), Yes);
}

#[test]
fn a_removed_manager_is_told_so_everywhere_instead_of_being_left_to_guess() {
    let copy = Copy::at(20);
    for service in EVERY_IDENTIFIED {
        assert_eq!(copy.judges(&cert(1, Manager, Some(10)), service), No(R::Removed));
        let blocked = copy.clone().block(1);
        assert_eq!(blocked.judges(&cert(1, Manager, Some(10)), service), No(R::Blocked));
    }
}

#[test]
fn a_blocked_node_is_refused_by_any_copy_that_holds_the_block() {
    // This copy has not even applied the grant of the certificate.
    let copy = Copy::at(5).block(1).leaderless();
    for service in EVERY_IDENTIFIED {
        assert_eq!(copy.judges(&cert(1, Worker, Some(10)), service), No(R::Blocked));
    }
}

#[test]
fn a_manager_promoted_a_moment_ago_is_never_told_removed_or_demoted_by_a_lagging_manager() {
    let new = cert(1, Manager, Some(30));
    for lagging in [
        Copy::at(29),                    // has not heard of the node
        Copy::at(29).node(1, Worker, 5), // knows it as a worker
    ] {
        for service in [Mesh, Agent] {
            assert_eq!(lagging.judges(&new, service), wait_then(No(R::NotKnownHereYet)));
            let alone = lagging.clone().leaderless();
            assert_eq!(alone.judges(&new, service), OnCertificate);
        }
        for service in [Api, Http] {
            assert_eq!(lagging.judges(&new, service), wait_then(No(R::NotKnownHereYet)));
        }
    }
    let caught_up = Copy::at(30).node(1, Manager, 30);
    assert_eq!(caught_up.judges(&new, Mesh), Yes);
}

#[test]
fn an_empty_copy_accepts_the_dial_back_at_once() {
    let leader = cert(1, Manager, Some(3));
    assert_eq!(Copy::empty().judges(&leader, Mesh), OnCertificate);
    // The manager half runs, but its copy is not even there yet.
    assert_eq!(told(admit(Some(&leader), Mesh, None, &here(), NOW)), OnCertificate);
}

#[test]
fn a_returning_manager_with_an_old_copy_hears_the_manager_it_has_never_heard_of() {
    // Members {A,B,C}, C off; D promoted, A demoted, B dead; C returns with the copy of then.
    let old_copy = Copy::at(50).node(1, Manager, 1).node(2, Manager, 5).node(3, Manager, 9).leaderless();
    assert_eq!(old_copy.judges(&cert(4, Manager, Some(60)), Mesh), OnCertificate);
}

#[test]
fn the_mesh_needs_both_certificate_and_copy_to_say_manager() {
    let copy = Copy::at(20).node(1, Manager, 15).node(2, Worker, 5);
    assert_eq!(copy.judges(&cert(1, Worker, Some(10)), Mesh), No(R::Forbidden));
    assert_eq!(copy.judges(&cert(2, Worker, Some(5)), Mesh), No(R::Forbidden));
    assert_eq!(copy.judges(&cert(1, Manager, Some(15)), Mesh), Yes);
    // Too old to know makes no manager of a worker's certificate.
    assert_eq!(copy.judges(&cert(3, Worker, Some(99)), Mesh), No(R::Forbidden));
}

#[test]
fn a_certificate_from_before_demotion_and_another_promotion_is_as_good_as_todays() {
    let copy = Copy::at(40).node(1, Manager, 30);
    assert_eq!(copy.judges(&cert(1, Manager, Some(10)), Mesh), Yes);
}

#[test]
fn the_founders_first_certificate_is_good_until_a_copy_knows_the_founder_better() {
    let first = cert(1, Manager, None);
    assert_eq!(Copy::empty().judges(&first, Mesh), OnCertificate);
    assert_eq!(Copy::at(9).judges(&first, Mesh), wait_then(No(R::NotKnownHereYet)));
    assert_eq!(Copy::at(9).leaderless().judges(&first, Mesh), OnCertificate);
    assert_eq!(
        Copy::at(9).leading().judges(&first, Mesh),
        No(R::NotKnownHereYet),
        "it names no grant, and is no founder's"
    );
    assert_eq!(Copy::at(9).node(1, Manager, 1).judges(&first, Mesh), Yes);
    assert_eq!(Copy::at(9).node(1, Worker, 7).judges(&first, Mesh), No(R::Demoted));
    assert_eq!(Copy::at(9).block(1).judges(&first, Mesh), No(R::Blocked));
}

/// A manager of incarnation 2, whose copy is of that incarnation too.
fn recovered(copy: Copy) -> (Copy, HereIs) {
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
    let mut copy = copy;
    copy.0.tables.cluster = Some(Arc::new(cluster));
    (copy, HereIs { incarnation: Incarnation(2), ..here() })
}

#[test]
fn older_incarnations_are_fenced_off_and_newer_ones_sent_elsewhere() {
    let (copy, restored) = recovered(Copy::at(9).node(1, Manager, 5));
    let old = cert(1, Manager, Some(5));
    let told_by = |here: &HereIs, cert: &CertIdentity| told(admit(Some(cert), Mesh, Some(&copy.0), here, NOW));
    assert_eq!(told_by(&restored, &old), No(R::OldIncarnation));
    let new = CertIdentity { incarnation: Incarnation(2), ..old };
    assert_eq!(told_by(&here(), &new), No(R::NotKnownHereYet));
}

#[test]
fn a_node_of_an_older_incarnation_fetches_a_certificate_and_can_do_nothing_else() {
    // Its grant is of a history that this copy does not share: the number says nothing.
    for granted in [Some(5), Some(99), None] {
        for role in [Worker, Manager] {
            let (copy, here) = recovered(Copy::at(9).node(1, role, 5));
            let old = cert(1, Manager, granted);
            for (service, told_so) in [
                (Agent, Yes),
                (Mesh, No(R::OldIncarnation)),
                (Api, No(R::OldIncarnation)),
                (Http, No(R::OldIncarnation)),
            ] {
                assert_eq!(told(admit(Some(&old), service, Some(&copy.0), &here, NOW)), told_so, "{service:?}");
            }
        }
    }
}

#[test]
fn a_node_that_the_new_incarnation_does_not_know_is_told_for_good() {
    let (copy, here) = recovered(Copy::at(9).block(2));
    let told_as = |n, copy: &Copy| told(admit(Some(&cert(n, Worker, Some(99))), Agent, Some(&copy.0), &here, NOW));
    assert_eq!((told_as(1, &copy), told_as(2, &copy)), (No(R::Removed), No(R::Blocked)));
    // A manager whose copy is still empty, or of the old incarnation, says nothing for good.
    for copy in [Copy::empty(), Copy::at(9)] {
        assert_eq!(told_as(1, &copy), No(R::OldIncarnation));
    }
}

#[test]
fn expired_certificates_and_other_clusters_are_refused_though_tls_should_have_seen_it() {
    let copy = Copy::at(9).node(1, Worker, 5);
    let good = cert(1, Worker, Some(5));
    let expired = CertIdentity { not_after: NOW, ..good.clone() };
    let foreign = CertIdentity { cluster: ClusterId::from_entropy(8), ..good };
    assert_eq!(copy.judges(&expired, Agent), No(R::Unauthenticated));
    assert_eq!(copy.judges(&foreign, Agent), No(R::Unauthenticated));
}

#[test]
fn a_worker_sends_those_who_need_a_manager_to_one_and_judges_nobody() {
    for service in [Mesh, Agent, Join] {
        let manager = cert(1, Manager, Some(5));
        assert_eq!(told(admit(Some(&manager), service, None, &worker_here(), NOW)), No(R::NotAManager));
        assert_eq!(told(admit(None, service, None, &worker_here(), NOW)), No(R::NotAManager));
    }
    for who in [cert(2, Worker, Some(5)), user_cert("ann", "aa")] {
        for service in [Api, Http] {
            assert_eq!(told(admit(Some(&who), service, None, &worker_here(), NOW)), OnCertificate);
        }
    }
}

#[test]
fn strangers_may_join_and_ask_over_http_and_nothing_else() {
    let copy = Copy::at(9);
    let stranger = |service| told(admit(None, service, Some(&copy.0), &here(), NOW));
    assert_eq!([Join, Http].map(stranger), [Yes, Yes]);
    assert_eq!(
        [Mesh, Agent, Api].map(stranger),
        [No(R::Unauthenticated), No(R::Unauthenticated), No(R::Unauthenticated)]
    );
}

#[test]
fn a_users_certificate_counts_while_its_serial_is_in_force() {
    let copy = Copy::at(9).user("ann", "aa");
    assert_eq!(copy.judges(&user_cert("ann", "aa"), Api), Yes);
    assert_eq!(copy.judges(&user_cert("ann", "aa"), Agent), No(R::Forbidden));
    // A follower may not have heard of the newest one yet.
    for unknown in [user_cert("ann", "bb"), user_cert("bob", "aa")] {
        assert_eq!(copy.judges(&unknown, Http), wait_then(No(R::Unauthenticated)));
        assert_eq!(copy.clone().leaderless().judges(&unknown, Http), No(R::NotKnownHereYet));
        assert_eq!(copy.clone().leading().judges(&unknown, Http), No(R::Unauthenticated));
    }
    let claims_admin = CertIdentity { subject: Subject::Admin("ann".parse().unwrap()), ..user_cert("ann", "aa") };
    assert_eq!(copy.clone().leading().judges(&claims_admin, Http), No(R::Unauthenticated));
    let claims_reader = CertIdentity { subject: Subject::Reader("ann".parse().unwrap()), ..user_cert("ann", "aa") };
    assert_eq!(copy.clone().leading().judges(&claims_reader, Http), No(R::Unauthenticated));
}

#[test]
fn a_connection_that_was_accepted_on_its_certificate_ends_when_the_copy_knows_better() {
    let old = cert(1, Manager, Some(10));
    assert_eq!(Copy::at(9).still(&old, Mesh, false), Standing::Stays { by_copy: false });
    assert_eq!(Copy::at(20).node(1, Worker, 15).still(&old, Mesh, false), Standing::Ends(R::Demoted));
    assert_eq!(Copy::at(20).node(1, Worker, 15).still(&old, Agent, false), Standing::Stays { by_copy: true });
    assert_eq!(Copy::at(20).still(&old, Agent, true), Standing::Ends(R::Removed));
}

#[test]
fn removal_ends_streams_that_were_opened_before_it() {
    let copy = Copy::at(20).block(1);
    for service in EVERY_IDENTIFIED {
        assert_eq!(copy.still(&cert(1, Manager, Some(10)), service, true), Standing::Ends(R::Blocked));
    }
}

#[test]
fn a_revoked_user_is_cut_by_followers_too_but_one_not_known_yet_is_not() {
    let ann = user_cert("ann", "aa");
    assert_eq!(Copy::at(9).still(&ann, Api, true), Standing::Ends(R::Unauthenticated));
    assert_eq!(Copy::at(9).leaderless().still(&ann, Api, true), Standing::Ends(R::Unauthenticated));
    assert_eq!(Copy::at(9).still(&ann, Api, false), Standing::Stays { by_copy: false });
    assert_eq!(Copy::at(9).user("ann", "aa").still(&ann, Api, false), Standing::Stays { by_copy: true });
}

/// Whoever has read the root key can sign a certificate for any node, with a grant as far ahead as it likes, or with none.
#[test]
fn where_there_is_a_leader_no_unknown_grant_is_believed() {
    for (node, granted) in [(4, Some(1 << 62)), (4, None), (1, Some(1 << 62))] {
        let forged = cert(node, Manager, granted);
        let copy = Copy::at(50).node(1, Manager, 1);
        for service in EVERY_IDENTIFIED {
            assert_eq!(
                copy.judges(&forged, service),
                wait_then(No(R::NotKnownHereYet)),
                "{node} {granted:?} {service:?}"
            );
            assert_eq!(copy.clone().leading().judges(&forged, service), No(R::NotKnownHereYet), "{node} {granted:?}");
        }
        assert_eq!(copy.clone().leaderless().judges(&forged, Mesh), OnCertificate, "nothing that it lacks can arrive");
        let mut by_the_leader = copy;
        by_the_leader.0.raft.leader_node = Some(id(node));
        assert_eq!(by_the_leader.judges(&forged, Mesh), wait_then(OnCertificate));
    }
}

#[test]
fn a_leader_believes_no_grant_that_it_has_not_applied() {
    let forged = cert(4, Manager, Some(1 << 62));
    let copy = Copy::at(50).node(1, Manager, 1);
    let leader = copy.clone().leading();
    for service in EVERY_IDENTIFIED {
        assert_eq!(leader.judges(&forged, service), No(R::NotKnownHereYet), "{service:?}");
        assert_eq!(leader.judges(&cert(4, Manager, Some(50)), service), No(R::Removed), "{service:?}");
    }
    // A session that a follower without a leader has accepted on the certificate ends when it leads, or soon after another does.
    assert_eq!(copy.clone().leaderless().judges(&forged, Mesh), OnCertificate);
    let stands = |copy: &Copy, since| standing(&forged, Mesh, (false, since), &copy.0, &here(), NOW);
    assert_eq!(stands(&copy, Duration::ZERO), Standing::Stays { by_copy: false });
    assert_eq!(stands(&copy, CONFIRMED_WITHIN), Standing::Ends(R::NotKnownHereYet));
    assert_eq!(stands(&leader, Duration::ZERO), Standing::Ends(R::NotKnownHereYet));
}

#[test]
fn of_a_nodes_certificates_the_two_on_record_count() {
    let copy = Copy::at(20).node(1, Manager, 10).issued(1, &["new", "held"]).leading();
    for service in EVERY_IDENTIFIED {
        assert_eq!(copy.judges(&shown(1, "new"), service), Yes, "{service:?}");
        assert_eq!(copy.judges(&shown(1, "held"), service), Yes, "{service:?}");
        assert_eq!(copy.judges(&shown(1, "superseded"), service), No(R::Unauthenticated), "{service:?}");
        // The root key was stolen: the serial is right, the certificate is another.
        let forged = CertIdentity { pin: Some(pin("forged")), ..shown(1, "new") };
        assert_eq!(copy.judges(&forged, service), No(R::Unauthenticated), "{service:?}");
    }
}

#[test]
fn a_node_without_recorded_certificate_has_none_that_counts() {
    let copy = Copy::at(20).node(1, Manager, 10).node(2, Manager, 10).issued(1, &["new"]).leading();
    assert_eq!(copy.judges(&shown(2, "forged"), Mesh), No(R::Unauthenticated));
}

/// Its certificate expired, and it signed another for the same key: nobody else could sign.
#[test]
fn a_manager_that_signed_for_its_recorded_key_is_heard() {
    let copy = Copy::at(20).node(1, Manager, 10).issued(1, &["new"]).leading();
    let CertificatePin { key, .. } = pin("new");
    let pin = Some(CertificatePin { key, ..pin("by itself") });
    let by_itself = CertIdentity { pin, granted: None, ..shown(1, "by itself") };
    assert_eq!(copy.judges(&by_itself, Mesh), Yes);
}

/// The newest certificate may be on its way to this follower. Without a leader nothing is, and a quorum may hang on it.
#[test]
fn a_follower_waits_for_an_unknown_certificate() {
    let copy = Copy::at(20).node(1, Manager, 10).issued(1, &["new"]);
    let newer = shown(1, "newer");
    for service in EVERY_IDENTIFIED {
        assert_eq!(copy.judges(&newer, service), wait_then(No(R::NotKnownHereYet)), "{service:?}");
    }
    let alone = copy.clone().leaderless();
    assert_eq!(alone.judges(&newer, Mesh), OnCertificate);
    assert_eq!(alone.judges(&newer, Agent), OnCertificate);
    assert_eq!(alone.judges(&newer, Api), No(R::NotKnownHereYet));
    let mut by_the_leader = copy;
    by_the_leader.0.raft.leader_node = Some(id(1));
    assert_eq!(
        by_the_leader.judges(&newer, Mesh),
        wait_then(OnCertificate),
        "who else would bring the copy up to date?"
    );
}

#[test]
fn live_connections_end_once_superseded() {
    let copy = Copy::at(20).node(1, Manager, 10).issued(1, &["new", "held"]);
    assert_eq!(copy.still(&shown(1, "held"), Mesh, true), Standing::Stays { by_copy: true });
    for copy in [copy.clone(), copy.clone().leading(), copy.clone().leaderless()] {
        assert_eq!(copy.still(&shown(1, "superseded"), Mesh, true), Standing::Ends(R::Unauthenticated));
    }
    // Never confirmed: it may be newer than the copy, for a while.
    let newer = shown(1, "newer");
    assert_eq!(copy.still(&newer, Mesh, false), Standing::Stays { by_copy: false });
    let late = |copy: &Copy| standing(&newer, Mesh, (false, CONFIRMED_WITHIN), &copy.0, &here(), NOW);
    assert_eq!(late(&copy), Standing::Ends(R::NotKnownHereYet));
    assert_eq!(late(&copy.leaderless()), Standing::Stays { by_copy: false });
}

#[test]
fn superseded_certificates_do_not_survive_a_recovery() {
    let mut copy = Copy::at(20).node(1, Worker, 10).issued(1, &["new", "held"]).leading();
    let tables = &mut copy.0.tables;
    let newer = ClusterRecord { incarnation: Incarnation(2), ..(**tables.cluster.as_ref().unwrap()).clone() };
    tables.cluster = Some(Arc::new(newer));
    let here = HereIs { incarnation: Incarnation(2), ..here() };
    let judges = |copy: &Copy, serial| told(admit(Some(&shown(1, serial)), Agent, Some(&copy.0), &here, NOW));
    assert_eq!(judges(&copy, "held"), Yes);
    assert_eq!(judges(&copy, "superseded"), No(R::Unauthenticated));
    // Until the node has fetched one of the new incarnation, it may hold one that the recovered copy does not know.
    let row = copy.0.tables.certificates.get(&id(1)).cloned().unwrap();
    copy.0.tables.certificates.insert(id(1), Arc::new(NodeCertificates { incomplete: true, ..(*row).clone() }));
    assert_eq!(judges(&copy, "superseded"), Yes);
}

#[test]
fn a_forged_certificate_with_a_users_serial_is_refused() {
    let mut copy = Copy::at(20).user("ann", "aa").leading();
    let pinned = UserPin { serial: "aa".to_owned(), pin: pin("aa"), issuer: muster_messages::RootId([0; 8]) };
    copy.0.tables.user_pins.insert("ann".parse().unwrap(), pinned);
    let real = CertIdentity { pin: Some(pin("aa")), ..user_cert("ann", "aa") };
    assert_eq!(copy.judges(&real, Api), Yes);
    let forged = CertIdentity { pin: Some(pin("forged")), ..real };
    assert_eq!(copy.judges(&forged, Api), No(R::Unauthenticated));
}
