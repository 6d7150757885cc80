//! An authority above: what it is asked for, and which answers are refused.

use std::sync::Arc;
use std::time::Duration;

use muster_messages::{ClusterId, Incarnation, NodeId, Revision, Role, Secret, UserKind, WallTime};
use muster_pki::*;
use muster_testkit::company::Company;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, DnValue, ExtendedKeyUsagePurpose as Extended,
};
use rcgen::{GeneralSubtree, IsCa, KeyUsagePurpose, NameConstraints, SanType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use time::OffsetDateTime;

use crate::fixture::{HOUR, key, now};
use crate::handshake::connect;

/// A cluster's request and a company that answers it.
struct Asked {
    cluster: ClusterId,
    key: Secret,
    csr: String,
    company: Company,
}

impl Asked {
    fn new() -> Self {
        let (cluster, key) = (ClusterId::from_entropy(1), new_key());
        let csr = make_authority_csr(&key, cluster).unwrap();
        Self { cluster, key, csr, company: Company::root() }
    }
    fn judged(&self, answer: &str) -> Result<IssuedAuthority, BadIssued> {
        issued_authority(answer, &self.key, self.cluster, now())
    }
    /// The answer of a company that changes what was asked for.
    fn changed(&self, change: impl FnOnce(&mut CertificateParams)) -> Result<IssuedAuthority, BadIssued> {
        self.judged(&self.company.sign_with(&self.csr, change))
    }
    /// A refusal, which no test may get for another reason.
    fn refused(&self, change: impl FnOnce(&mut CertificateParams)) -> BadIssued {
        self.changed(change).unwrap_err()
    }
    fn issuer(&self, answer: &IssuedAuthority) -> Issuer {
        Issuer::from_pem(&answer.cert_pem, &self.key).unwrap()
    }
}

fn at(time: WallTime) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(time.0 / 1000).unwrap()
}

fn blocks(pem: &str) -> Vec<String> {
    let blocks = pem.split_inclusive("-----END CERTIFICATE-----").filter(|block| block.contains("BEGIN"));
    blocks.map(|block| format!("{}\n", block.trim())).collect()
}

fn node(issuer: &Issuer, cluster: ClusterId, root_pem: &str) -> muster_messages::protocol::NodeCredentials {
    let key = new_key();
    let csr = CsrKey::parse(&make_csr(&key).unwrap()).unwrap();
    let profile = NodeProfile {
        cluster,
        node: NodeId::from_entropy(7),
        role: Role::Manager,
        granted: Some(Revision(7)),
        incarnation: Incarnation(1),
        ips: vec![],
        lifetime: NODE_LIFETIME,
        now: now(),
    };
    let signed = issuer.sign_node(&profile, &csr).unwrap();
    credentials(key, signed.cert_pem, root_pem.to_owned()).unwrap()
}

#[test]
fn an_answer_as_requested_is_accepted() {
    let asked = Asked::new();
    let subordinate = asked.company.subordinate("company issuing");
    for (company, above) in [(&asked.company, 0), (&subordinate, 1)] {
        let answer = asked.judged(&company.sign(&asked.csr)).unwrap();
        assert_eq!((Some(answer.root), answer.upstream.len()), (root_id_of_key(&asked.key), above));
        assert_eq!(path_length_of_pem(&answer.cert_pem), Ok(Some(u32::from(MAX_PATH_LENGTH))), "as the request says");
        let first = first_of_answer(&company.sign(&asked.csr)).map(|(root, _)| root);
        assert_eq!(first, Some(answer.root));
    }
    assert!(!asked.csr.contains("PRIVATE"), "UP-3");
    // The topmost certificate may be absent, if another one is above the issuing one.
    let mut pems = blocks(&subordinate.sign(&asked.csr));
    pems.pop();
    assert_eq!(asked.judged(&pems.concat()).unwrap().upstream.len(), 1);
    // What companies add or leave out as they like.
    let usual: [fn(&mut CertificateParams); 5] = [
        |p| p.is_ca = IsCa::Ca(BasicConstraints::Constrained(0)),
        |p| p.key_usages.push(KeyUsagePurpose::DigitalSignature),
        |p| p.extended_key_usages = vec![Extended::ServerAuth, Extended::ClientAuth, Extended::CodeSigning],
        |p| p.subject_alt_names.push(SanType::URI("spiffe://the.company".try_into().unwrap())),
        |p| p.distinguished_name.push(DnType::CountryName, "CH"),
    ];
    for change in usual {
        asked.changed(change).unwrap();
    }
}

#[test]
fn an_answer_for_another_key_is_refused() {
    let (asked, other) = (Asked::new(), Asked::new());
    let foreign = asked.company.sign(&other.csr);
    let ids = [&asked, &other].map(|asked| root_id_of_key(&asked.key).unwrap());
    assert_eq!(asked.judged(&foreign), Err(BadIssued::OtherKey { asked: ids[0], found: ids[1] }));
    let turned: String = blocks(&asked.company.sign(&asked.csr)).into_iter().rev().collect();
    assert_eq!(asked.judged(&turned), Err(BadIssued::Order(2)));
    let answer = asked.company.sign(&asked.csr);
    assert_eq!(asked.judged(&(answer.clone() + &asked.company.chain)), Err(BadIssued::SameKey(2, 3)));
    assert_eq!(asked.judged(&(blocks(&answer)[0].clone() + &answer)), Err(BadIssued::SameKey(1, 2)));
    let unreadable = issued_authority(&answer, &Secret::new("none"), asked.cluster, now());
    assert_eq!(unreadable, Err(BadIssued::UnreadableKey));
}

#[test]
fn an_answer_that_is_no_chain_is_refused() {
    let asked = Asked::new();
    let answer = asked.company.sign(&asked.csr);
    assert_eq!(asked.judged(""), Err(BadIssued::Pem(BadPem::NotSome(MAX_ISSUED))));
    assert_eq!(asked.judged(&"x".repeat(MAX_ANSWER + 1)), Err(BadIssued::TooLarge(MAX_ANSWER + 1)));
    let many = answer.clone() + &asked.company.chain.repeat(MAX_ISSUED);
    assert_eq!(asked.judged(&many), Err(BadIssued::Pem(BadPem::NotSome(MAX_ISSUED))));
    let secret = new_key();
    assert_eq!(asked.judged(&(answer.clone() + secret.expose())), Err(BadIssued::PrivateKey));
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert_eq!(asked.judged(broken), Err(BadIssued::Malformed(1)));
    assert_eq!(asked.judged(&(blocks(&answer)[0].clone() + broken)), Err(BadIssued::Malformed(2)));
    assert_eq!(asked.judged(&blocks(&answer)[0]), Err(BadIssued::NothingAbove));
}

#[test]
fn every_certificate_is_signed_by_the_next_one() {
    let asked = Asked::new();
    let issued = blocks(&asked.company.sign(&asked.csr))[0].clone();
    // Of the same name, and of another key.
    let namesake = Company::root();
    assert_eq!(asked.judged(&(issued.clone() + &namesake.chain)), Err(BadIssued::NotSignedBy { at: 2 }));
    let other = asked.company.renamed("another");
    assert_eq!(asked.judged(&(issued + &other)), Err(BadIssued::NotSignedBy { at: 2 }), "of another name");
    let subordinate = asked.company.subordinate("company issuing");
    let answer = blocks(&subordinate.sign(&asked.csr));
    let skipping = [&answer[0], &answer[2]].map(String::as_str).concat();
    assert_eq!(asked.judged(&skipping), Err(BadIssued::NotSignedBy { at: 2 }));
    let end = answer[..2].concat() + &namesake.chain;
    assert_eq!(asked.judged(&end), Err(BadIssued::NotSignedBy { at: 3 }));
}

#[test]
fn authorities_above_must_be_able_to_certify_it() {
    let asked = Asked::new();
    let above = |change: fn(&mut CertificateParams)| {
        asked.judged(&asked.company.subordinate_with("company issuing", change).sign(&asked.csr)).unwrap_err()
    };
    assert_eq!(above(|p| p.is_ca = IsCa::ExplicitNoCa), BadIssued::NotAuthorityAbove(2));
    assert_eq!(above(|p| p.key_usages = vec![KeyUsagePurpose::CrlSign]), BadIssued::NotAuthorityAbove(2));
    let short = |p: &mut CertificateParams| p.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    assert_eq!(above(short), BadIssued::PathLengthAbove { at: 2, length: 0 });
    let ended = above(|p| p.not_after = at(WallTime(now().0 - 1000)));
    assert!(matches!(ended, BadIssued::Expired { at: 2, .. }), "{ended:?}");
}

#[test]
fn an_answer_must_be_able_to_sign() {
    let asked = Asked::new();
    assert_eq!(asked.refused(|p| p.is_ca = IsCa::ExplicitNoCa), BadIssued::NotAuthority);
    assert_eq!(asked.refused(|p| p.is_ca = IsCa::NoCa), BadIssued::NotAuthority);
    assert_eq!(asked.refused(|p| p.key_usages = vec![KeyUsagePurpose::CrlSign]), BadIssued::MayNotSign);
    assert_eq!(asked.refused(|p| p.key_usages = vec![]), BadIssued::MayNotSign);
    for only in [Extended::ServerAuth, Extended::ClientAuth] {
        assert_eq!(asked.refused(|p| p.extended_key_usages = vec![only]), BadIssued::ExtendedKeyUsage);
    }
}

#[test]
fn an_answer_wider_than_requested_is_refused() {
    let asked = Asked::new();
    assert_eq!(asked.refused(|p| p.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)), BadIssued::PathLength(None));
    let longer = MAX_PATH_LENGTH + 1;
    let wide = asked.refused(|p| p.is_ca = IsCa::Ca(BasicConstraints::Constrained(longer)));
    assert_eq!(wide, BadIssued::PathLength(Some(u32::from(longer))));
    for usage in [KeyUsagePurpose::KeyEncipherment, KeyUsagePurpose::ContentCommitment, KeyUsagePurpose::KeyAgreement] {
        assert!(matches!(asked.refused(|p| p.key_usages.push(usage)), BadIssued::KeyUsage(_)));
    }
    let uri = format!("spiffe://{}/manager/{}", asked.cluster, NodeId::from_entropy(7));
    let named = asked.refused(|p| p.subject_alt_names.push(SanType::URI(uri.as_str().try_into().unwrap())));
    assert_eq!(named, BadIssued::Identity(uri));
}

#[test]
fn an_answer_that_nodes_cannot_use_is_refused() {
    let asked = Asked::new();
    let constraints = NameConstraints {
        permitted_subtrees: vec![GeneralSubtree::DnsName("the.company".to_owned())],
        excluded_subtrees: vec![],
    };
    assert_eq!(asked.refused(|p| p.name_constraints = Some(constraints)), BadIssued::NameConstraints);
    let unknown = asked.refused(|p| {
        let mut extension = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 5], vec![5, 0]);
        extension.set_criticality(true);
        p.custom_extensions.push(extension);
    });
    assert_eq!(unknown, BadIssued::Critical("1.3.6.1.4.1.5".to_owned()));
}

#[test]
fn the_subject_must_name_the_cluster() {
    let asked = Asked::new();
    let organisation = |name: &str| name.to_owned();
    let other = asked.refused(|p| p.distinguished_name.push(DnType::OrganizationName, organisation("The Company")));
    assert_eq!(other, BadIssued::Organisation(asked.cluster));
    let none = asked.refused(|p| _ = p.distinguished_name.remove(DnType::OrganizationName));
    assert_eq!(none, BadIssued::Organisation(asked.cluster));
    let strange = asked.refused(|p| {
        let text = rcgen::string::BmpString::try_from("ö").unwrap();
        p.distinguished_name.push(DnType::LocalityName, DnValue::BmpString(text));
    });
    assert_eq!(strange, BadIssued::Subject);
    // An authority of the same name as its subordinate.
    let mut name = None;
    asked.company.sign_with(&asked.csr, |p| name = Some(p.distinguished_name.clone()));
    let namesake = asked.company.subordinate_with("any", |p| p.distinguished_name = name.unwrap());
    assert_eq!(asked.judged(&namesake.sign(&asked.csr)), Err(BadIssued::OwnName));
}

#[test]
fn an_answer_must_be_valid_and_last() {
    let asked = Asked::new();
    let from = asked.refused(|p| p.not_before = at(now().plus(HOUR)));
    assert!(matches!(from, BadIssued::NotYet { at: 1, .. }), "{from:?}");
    let ended = asked.refused(|p| p.not_after = at(WallTime(now().0 - 1000)));
    assert!(matches!(ended, BadIssued::Expired { at: 1, .. }), "{ended:?}");
    let soon = now().plus(MIN_ISSUING_LIFETIME);
    let short = asked.refused(|p| p.not_after = at(WallTime(soon.0 - 60_000)));
    assert!(matches!(short, BadIssued::TooShort { .. }), "{short:?}");
    asked.changed(|p| p.not_after = at(soon.plus(HOUR))).unwrap();
}

/// The company's root certifies others, too. Their certificates, whatever they say, open nothing: no node trusts that root.
#[tokio::test]
async fn a_sibling_subordinate_opens_nothing() {
    const ALPN: &[&[u8]] = &[b"muster-agent/1"];
    let (asked, sibling_key) = (Asked::new(), new_key());
    let answer = asked.judged(&asked.company.sign(&asked.csr)).unwrap();
    // Another cluster's authority, or a department's: with the names and the usages of ours.
    let csr = make_authority_csr(&sibling_key, asked.cluster).unwrap();
    let sibling = issued_authority(&asked.company.sign(&csr), &sibling_key, asked.cluster, now()).unwrap();
    let sibling_issuer = Issuer::from_pem(&sibling.cert_pem, &sibling_key).unwrap();
    let bundle = Bundle::from_pem(&answer.cert_pem).unwrap();
    assert_eq!(bundle.ids().collect::<Vec<_>>(), [answer.root], "of a certificate that did not sign itself");

    let own = node(&asked.issuer(&answer), asked.cluster, &answer.cert_pem);
    let foreign = node(&sibling_issuer, asked.cluster, &sibling.cert_pem);
    let presented = |pem: &str| -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_slice_iter(pem.as_bytes()).map(Result::unwrap).collect()
    };
    let issuer = |chain: String| bundle.issuer_of(&presented(&chain), UnixTime::now());
    assert_eq!(issuer(own.cert_pem.clone()), Some(answer.root));
    assert_eq!(
        issuer(own.cert_pem.clone() + &answer.cert_pem + &asked.company.chain),
        Some(answer.root),
        "whatever is beside it"
    );
    // Alone; with its own authority; with all that leads to the company's root; with ours as an intermediate.
    let above = &asked.company.chain;
    for others in [vec![], vec![&sibling.cert_pem], vec![&sibling.cert_pem, above], vec![&answer.cert_pem, above]] {
        let chain = foreign.cert_pem.clone() + &others.into_iter().cloned().collect::<String>();
        assert_eq!(issuer(chain), None);
    }

    let serving = |creds| server_config(creds, ALPN).unwrap();
    let dialling = |creds| client_config(&answer.cert_pem, Some(creds), ALPN).unwrap();
    let (near, far) = connect(serving(&own), dialling(&own)).await;
    assert!(near.is_ok() && far.is_ok());
    let mut posing = foreign.clone();
    posing.cert_pem += &sibling.cert_pem;
    for posing in [&foreign, &posing] {
        let client: Arc<rustls::ClientConfig> = dialling(posing);
        let (_, far) = connect(serving(&own), client).await;
        assert!(far.is_err(), "a manager refuses it");
        let (near, _) = connect(serving(posing), dialling(&own)).await;
        assert!(near.is_err(), "a node refuses it as its manager");
    }
}

/// The company's certificate of the cluster's authority ends sooner than a root of the cluster's own.
#[test]
fn certificates_never_outlive_their_issuer() {
    let asked = Asked::new();
    let ends = WallTime::from_unix_secs(at(now().plus(MIN_ISSUING_LIFETIME + HOUR)).unix_timestamp());
    let answer = asked.changed(|p| p.not_after = at(ends)).unwrap();
    let issuer = asked.issuer(&answer);
    let signed = |before: Duration| {
        let now = WallTime(ends.0 - i64::try_from(before.as_millis()).unwrap());
        let (cluster, incarnation, lifetime) = (asked.cluster, Incarnation(1), NODE_LIFETIME);
        let (node, granted) = (NodeId::from_entropy(7), Some(Revision(7)));
        let of_node =
            NodeProfile { cluster, node, role: Role::Worker, granted, incarnation, ips: vec![], lifetime, now };
        let name = "ann".parse().unwrap();
        let of_user = UserProfile { cluster, name, kind: UserKind::User, incarnation, lifetime, now };
        let of_node = issuer.sign_node(&of_node, &key()).map(|signed| signed.not_after);
        (of_node, issuer.sign_user(&of_user, &key()).map(|signed| signed.not_after))
    };
    for days in [30, 7, 1] {
        assert_eq!(signed(HOUR * 24 * days), (Ok(ends), Ok(ends)), "{days} days before");
    }
    let (of_node, of_user) = signed(HOUR / 2);
    assert_eq!((of_node, of_user), (Err(SignError::RootExpires(ends)), Ok(ends)), "too short to renew in time");
    let (of_node, of_user) = signed(Duration::ZERO);
    assert!(of_node.is_err() && of_user.is_err());
    // Nor does one that leads to it.
    let next = Root::create(asked.cluster, now()).unwrap();
    let cross = issuer.cross_sign(&next.cert_pem, now(), now().plus(HOUR * 24 * 400)).unwrap();
    assert_eq!(not_after_of_pem(&cross), Ok(ends));
}

/// Where a company has renewed the key of its root under the same name, the link between the two is not self-signed: clients that trust
/// only the older root need it.
#[test]
fn link_between_roots_of_one_name_is_kept() {
    let asked = Asked::new();
    let older = Company::root();
    let newer = older.subordinate("company root");
    let answer = issued_authority(&newer.sign(&asked.csr), &asked.key, asked.cluster, now()).unwrap();
    assert_eq!(answer.upstream, [blocks(&newer.chain)[0].clone()], "the older root itself is left out");
}
