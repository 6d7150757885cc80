//! Signing certificates and reading them.
use std::time::Duration;

use crate::fixture::{Cluster, HOUR, ago, key, now};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use muster_messages::{
    CertIdentity, Incarnation, Name, NodeId, Principal, Revision, Role, Secret, Subject, UserKind, WallTime,
    WorkloadName,
};
use muster_pki::*;
use proptest::prelude::*;
use rcgen::{CertificateParams, CustomExtension, DnType, KeyPair, SanType};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::prelude::*;

fn der(pem: &str) -> Vec<u8> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap().to_vec()
}

#[test]
fn a_node_certificate_round_trips() {
    let cluster = Cluster::new(1);
    for (role, granted) in [(Role::Worker, Some(Revision(u64::MAX))), (Role::Manager, None)] {
        let mut profile = cluster.profile(2, role);
        profile.granted = granted;
        profile.incarnation = Incarnation(3);
        let signed = cluster.issuer.sign_node(&profile, &key()).unwrap();
        let read = identity_of_pem(&signed.cert_pem).unwrap();
        assert_eq!(read.cluster, cluster.id);
        assert_eq!(read.subject, Subject::Node { node: profile.node, role });
        assert_eq!((read.granted, read.incarnation), (granted, Incarnation(3)));
        assert_eq!((&read.serial, read.not_after), (&signed.serial, signed.not_after));
    }
}

/// A root with path length 0 could never sign its successor, and cannot be repaired once clients have it.
#[test]
fn a_new_root_has_no_path_length_and_signs_no_authority() {
    let root = Root::create(Cluster::new(1).id, now()).unwrap();
    let constraints = |der: &[u8]| {
        let (_, cert) = X509Certificate::from_der(der).unwrap();
        cert.basic_constraints().unwrap().map(|found| (found.value.ca, found.value.path_len_constraint))
    };
    assert_eq!(constraints(&der(&root.cert_pem)), Some((true, None)));
    assert_eq!(path_length_of_pem(&root.cert_pem), Ok(None));
    // As roots were made before there were rotations.
    let mut earlier = CertificateParams::new(Vec::new()).unwrap();
    earlier.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
    let earlier = earlier.self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
    assert_eq!(path_length_of_pem(&earlier), Ok(Some(0)));
    let cluster = Cluster::new(2);
    let signed = cluster.issuer.sign_node(&cluster.profile(2, Role::Manager), &key()).unwrap();
    assert!(!constraints(&der(&signed.cert_pem)).is_some_and(|(ca, _)| ca));
}

#[test]
fn validity_of_a_chain_is_that_of_its_first_certificate() {
    let (cluster, other) = (Cluster::new(1), Cluster::new(2));
    let mut profile = cluster.profile(2, Role::Manager);
    profile.lifetime = 3 * HOUR;
    let signed = cluster.issuer.sign_node(&profile, &key()).unwrap();
    let longer = other.issuer.sign_node(&other.profile(2, Role::Manager), &key()).unwrap();
    let (from, until) = validity_of_chain(&format!("{}{}", signed.cert_pem, longer.cert_pem)).unwrap();
    assert_eq!(until, not_after_of_pem(&signed.cert_pem).unwrap());
    assert_eq!(from, not_before_of_pem(&signed.cert_pem).unwrap());
    assert!(until < not_after_of_pem(&longer.cert_pem).unwrap());
    assert!(validity_of_chain("nothing").is_err());
}

/// The server name that a foreign client requests.
#[test]
fn only_managers_carry_the_manager_name() {
    let cluster = Cluster::new(1);
    let is_named = |pem: &str| {
        let der = der(pem);
        let (_, cert) = X509Certificate::from_der(&der).unwrap();
        let names = cert.subject_alternative_name().unwrap().unwrap();
        names.value.general_names.iter().any(|name| matches!(name, GeneralName::DNSName(name) if *name == MANAGER_NAME))
    };
    for role in [Role::Manager, Role::Worker] {
        let signed = cluster.issuer.sign_node(&cluster.profile(2, role), &key()).unwrap();
        assert_eq!(is_named(&signed.cert_pem), role == Role::Manager);
    }
}

/// X.509-SVID: one URI, no authority, for both ends of a connection, and no name of a node.
#[test]
fn workload_certificate_has_the_profile_of_spiffe() {
    let cluster = Cluster::new(1);
    let profile = WorkloadProfile {
        cluster: cluster.id,
        workload: "shop/web".parse().unwrap(),
        dns: vec!["web.shop.example".to_owned()],
        incarnation: Incarnation(3),
        lifetime: HOUR,
        now: now(),
    };
    let public = PublicKey::parse(key().spki()).unwrap();
    let signed = cluster.issuer.sign_workload(&profile, &public).unwrap();
    let read = identity_of_pem(&signed.cert_pem).unwrap();
    assert_eq!(read.subject, Subject::Workload(profile.workload.clone()));
    assert_eq!((read.granted, read.incarnation, read.not_after), (None, Incarnation(3), signed.not_after));
    assert_eq!(signed.not_after.0 / 1000, now().plus(HOUR).0 / 1000);
    let der = der(&signed.cert_pem);
    let (_, cert) = X509Certificate::from_der(&der).unwrap();
    let names = cert.subject_alternative_name().unwrap().unwrap();
    let id = format!("spiffe://{}/workload/shop/web", cluster.id);
    assert_eq!(names.value.general_names, [GeneralName::URI(&id), GeneralName::DNSName("web.shop.example")]);
    let usage = cert.key_usage().unwrap().unwrap();
    assert!(usage.critical && usage.value.digital_signature());
    assert!(!usage.value.key_cert_sign() && !usage.value.crl_sign() && !cert.is_ca());
    let extended = cert.extended_key_usage().unwrap().unwrap();
    assert!(extended.value.client_auth && extended.value.server_auth);
    assert!(cert.subject().iter_common_name().next().is_none());
    let begins = WallTime::from_unix_secs(cert.validity().not_before.timestamp());
    assert!(begins.plus(HOUR / 2) < now(), "back-dated");
    let short = WorkloadProfile { lifetime: HOUR / 20, ..profile };
    assert!(matches!(cluster.issuer.sign_workload(&short, &public), Err(SignError::Lifetime { .. })));
}

#[test]
fn workload_keys_are_uncompressed_points_of_p256() {
    let spki = key().spki().to_vec();
    assert_eq!(PublicKey::parse(&spki).unwrap().spki(), spki);
    let other = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    let p384 = rcgen::PublicKeyData::subject_public_key_info(&other);
    let trailing = [&spki[..], &[0]].concat();
    let mut compressed = spki.clone();
    let point = compressed.len() - 65;
    compressed[point] = 2;
    for bad in [&[][..], &spki[..40], &p384, &trailing, &compressed, &[0x30; 100_000]] {
        assert!(PublicKey::parse(bad).is_err(), "{} bytes", bad.len());
    }
}

#[test]
fn workload_uris_have_exactly_two_segments() {
    let cluster = Cluster::new(1);
    let of = |path: &str| {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        let uri = format!("spiffe://{}/{path}", cluster.id);
        params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
        let grant = [0x30, 6, 2, 1, 1, 2, 1, 1].to_vec();
        let oid = [1, 3, 6, 1, 4, 1, 32473, 77, 1];
        params.custom_extensions = vec![CustomExtension::from_oid_content(&oid, grant)];
        identity_of_pem(&params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()).map(|read| read.subject)
    };
    assert_eq!(of("workload/a/b"), Ok(Subject::Workload("a/b".parse().unwrap())));
    for bad in ["workload/a", "workload/a/", "workload/a/b/c", "workload//b", "workload/a/..", "workload/a/b%2f"] {
        assert!(of(bad).is_err(), "{bad}");
    }
}

#[test]
fn recorded_certificate_equals_the_presented_one() {
    let cluster = Cluster::new(1);
    let signed = cluster.issuer.sign_node(&cluster.profile(2, Role::Worker), &key()).unwrap();
    assert_eq!(identity_of_pem(&signed.cert_pem).unwrap().pin, Some(signed.pin));
    assert_eq!(signed.issuer, root_id_of_pem(&cluster.root.cert_pem).unwrap());
    let another = cluster.issuer.sign_node(&cluster.profile(2, Role::Worker), &key()).unwrap();
    assert!(another.pin.fingerprint != signed.pin.fingerprint && another.pin.key != signed.pin.key);
}

#[test]
fn users_and_operators_are_distinguished() {
    let cluster = Cluster::new(1);
    let name: Name = "ada".parse().unwrap();
    for (kind, wanted) in [
        (UserKind::User, Principal::User(name.clone())),
        (UserKind::Operator, Principal::Admin(name.clone())),
        (UserKind::ReadOnly, Principal::Reader(name.clone())),
    ] {
        let profile = UserProfile {
            cluster: cluster.id,
            name: name.clone(),
            kind,
            incarnation: Incarnation(1),
            lifetime: HOUR,
            now: now(),
        };
        let signed = cluster.issuer.sign_user(&profile, &key()).unwrap();
        assert_eq!(identity_of_pem(&signed.cert_pem).unwrap().principal(), wanted);
    }
}

#[test]
fn nothing_of_a_hostile_request_but_its_key_is_signed() {
    let cluster = Cluster::new(1);
    let hostile = KeyPair::generate().unwrap();
    let mut hostile_params = CertificateParams::new(vec!["evil.example".to_owned()]).unwrap();
    hostile_params.distinguished_name.push(DnType::CommonName, "root");
    hostile_params.distinguished_name.push(DnType::OrganizationalUnitName, "manager");
    hostile_params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    hostile_params.subject_alt_names.push(SanType::URI("spiffe://x/admin/root".try_into().unwrap()));
    let csr = hostile_params.serialize_request(&hostile).unwrap().pem().unwrap();
    let profile = cluster.profile(5, Role::Worker);
    let signed = cluster.issuer.sign_node(&profile, &CsrKey::parse(&csr).unwrap()).unwrap();

    let der = der(&signed.cert_pem);
    let (_, cert) = X509Certificate::from_der(&der).unwrap();
    let text = format!("{cert:?}");
    assert!(!text.contains("evil.example") && !text.contains("admin"));
    assert!(!cert.is_ca());
    assert_eq!(cert.public_key().subject_public_key.data.as_ref(), hostile.public_key_raw());
    assert_eq!(cert.subject().to_string(), format!("CN={}, OU=worker, O={}", profile.node, cluster.id));
}

#[test]
fn certificates_are_back_dated_and_end_with_the_root() {
    let cluster = Cluster::new(1);
    let mut profile = cluster.profile(1, Role::Worker);
    let dates = |pem: &str| {
        let der = der(pem);
        let (_, cert) = X509Certificate::from_der(&der).unwrap();
        let v = cert.validity();
        (v.not_before.timestamp(), v.not_after.timestamp())
    };
    let signed = cluster.issuer.sign_node(&profile, &key()).unwrap();
    let secs = profile.now.0 / 1000;
    assert_eq!(dates(&signed.cert_pem), (secs - 3600, secs + 90 * 24 * 3600));
    assert_eq!(signed.not_after, WallTime::from_unix_secs(secs + 90 * 24 * 3600));

    profile.lifetime = ROOT_LIFETIME * 2;
    let (_, root_ends) = dates(&cluster.root.cert_pem);
    let signed = cluster.issuer.sign_node(&profile, &key()).unwrap();
    assert_eq!(dates(&signed.cert_pem).1, root_ends);

    profile.lifetime = Duration::from_secs(3599);
    assert!(matches!(cluster.issuer.sign_node(&profile, &key()), Err(SignError::Lifetime { .. })));
    profile.lifetime = HOUR;
    profile.now = now().plus(ROOT_LIFETIME);
    assert!(matches!(cluster.issuer.sign_node(&profile, &key()), Err(SignError::RootExpires(_))));
}

#[test]
fn jwts_are_back_dated_and_end_with_the_root() {
    let cluster = Cluster::new(1);
    let workload: WorkloadName = "shop/web".parse().unwrap();
    let mut profile = JwtProfile { cluster: cluster.id, workload, audience: vec!["db".to_owned()], now: now() };
    let claims = |signed: &SignedJwt| -> serde_json::Value {
        let part = signed.token.split('.').nth(1).unwrap();
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
    };
    let signed = cluster.issuer.sign_jwt(&profile).unwrap();
    let secs = profile.now.0 / 1000;
    assert_eq!(signed.not_after, WallTime::from_unix_secs(secs).plus(JWT_LIFETIME));
    assert_eq!((&claims(&signed)["iat"], &claims(&signed)["exp"]), (&(secs - 30).into(), &(secs + 300).into()));

    let root_ends = not_after_of_pem(&cluster.root.cert_pem).unwrap();
    profile.now = WallTime(root_ends.0 - 120_000);
    let signed = cluster.issuer.sign_jwt(&profile).unwrap();
    assert_eq!((signed.not_after, &claims(&signed)["exp"]), (root_ends, &(root_ends.0 / 1000).into()));
    profile.now = WallTime(root_ends.0 - 30_000);
    assert_eq!(cluster.issuer.sign_jwt(&profile), Err(SignError::RootExpires(root_ends)));
}

#[test]
fn a_root_signs_only_with_its_own_key() {
    let (a, b) = (Cluster::new(1), Cluster::new(2));
    assert_eq!(Issuer::from_pem(&a.root.cert_pem, &b.root.key_pem).unwrap_err(), SignError::KeyMismatch);
    let leaf = a.node(1, Role::Manager);
    assert_eq!(Issuer::from_pem(&leaf.cert_pem, &leaf.key_pem).unwrap_err(), SignError::Root);
    assert!(!format!("{:?} {:?}", a.root, a.issuer).contains("PRIVATE"));
}

#[test]
fn requests_without_proof_or_with_another_algorithm_are_refused() {
    assert_eq!(CsrKey::parse(" "), Err(BadCsr::Empty));
    assert!(matches!(CsrKey::parse("hello"), Err(BadCsr::Pem(_))));
    assert!(matches!(CsrKey::parse(&"x".repeat(MAX_PEM + 1)), Err(BadCsr::Pem(BadPem::TooLarge(_)))));
    let p384 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    let csr = CertificateParams::default().serialize_request(&p384).unwrap().pem().unwrap();
    assert_eq!(CsrKey::parse(&csr), Err(BadCsr::Algorithm));

    // The same request with one bit of its signature flipped.
    let key = new_key();
    let good = make_csr(&key).unwrap();
    let mut der = rustls::pki_types::CertificateSigningRequestDer::from_pem_slice(good.as_bytes()).unwrap().to_vec();
    *der.last_mut().unwrap() ^= 1;
    let forged = rcgen_pem("CERTIFICATE REQUEST", &der);
    assert_eq!(CsrKey::parse(&forged), Err(BadCsr::Signature));
}

fn rcgen_pem(label: &str, der: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in der.chunks(3) {
        let n = chunk.iter().fold(0u32, |n, b| n << 8 | u32::from(*b)) << (8 * (3 - chunk.len()));
        for i in 0..4 {
            let digit = DIGITS[(n >> (18 - 6 * i)) as usize & 63];
            text.push(if i <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    let lines: Vec<&str> = text.as_bytes().chunks(64).map(|l| std::str::from_utf8(l).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// A self-signed certificate with these URIs and extensions.
fn handmade(uris: &[&str], grant: Option<Vec<u8>>) -> Vec<u8> {
    let mut params = CertificateParams::default();
    for uri in uris {
        params.subject_alt_names.push(SanType::URI((*uri).try_into().unwrap()));
    }
    let oid = [1, 3, 6, 1, 4, 1, 32473, 77, 1];
    params.custom_extensions = grant
        .into_iter()
        .map(|content| CustomExtension::from_oid_content(&oid, content))
        .chain([CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 32473, 99], vec![5, 0])])
        .collect();
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
}

#[test]
fn only_one_well_formed_uri_identifies() {
    let id = NodeId::from_entropy(1);
    let grant = || Some(vec![0x30, 6, 2, 1, 1, 2, 1, 1]);
    let good = format!("spiffe://{id}/worker/{id}");
    assert!(identity_of(&handmade(&[&good], grant())).is_ok(), "an unknown extension does not break it");
    assert_eq!(identity_of(&handmade(&[], grant())), Err(BadCertificate::Uris(0)));
    assert_eq!(identity_of(&handmade(&[&good, &good], grant())), Err(BadCertificate::Uris(2)));
    assert_eq!(identity_of(&handmade(&[&good], None)), Err(BadCertificate::NoGrant));
    assert_eq!(identity_of(&handmade(&[&good], Some(vec![5, 0]))), Err(BadCertificate::BadGrant));
    for uri in [
        format!("http://{id}/worker/{id}"),
        format!("spiffe://{id}/worker/{id}/"),
        format!("spiffe://{id}/worker"),
        format!("spiffe://{id}/root/{id}"),
        format!("spiffe://{id}/Worker/{id}"),
    ] {
        assert_eq!(identity_of(&handmade(&[&uri], grant())), Err(BadCertificate::Uri), "{uri}");
    }
    for uri in [
        format!("spiffe://{id}/worker/{id}x"),
        format!("spiffe://cluster/worker/{id}"),
        format!("spiffe://{id}/admin/Root"),
        format!("spiffe://{id}/user/a%20b"),
        format!("spiffe://{id}/user/"),
    ] {
        assert!(matches!(identity_of(&handmade(&[&uri], grant())), Err(BadCertificate::Name(_))), "{uri}");
    }
}

#[test]
fn root_certificate_has_no_identity() {
    let cluster = Cluster::new(1);
    assert_eq!(identity_of_pem(&cluster.root.cert_pem), Err(BadCertificate::Authority));
}

proptest! {
    #[test]
    fn identity_of_never_panics_on_random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = identity_of(&bytes);
    }

    #[test]
    fn identity_of_never_panics_on_a_damaged_certificate(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        truncation: Option<prop::sample::Index>,
    ) {
        static GOOD: std::sync::LazyLock<Vec<u8>> =
            std::sync::LazyLock::new(|| der(&Cluster::new(1).node(2, Role::Worker).cert_pem));
        let mut bytes = GOOD.clone();
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(truncation) = truncation {
            bytes.truncate(truncation.index(bytes.len()));
        }
        let _ = identity_of(&bytes);
    }

    #[test]
    fn requests_never_panic_the_parser(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = CsrKey::parse(&rcgen_pem("CERTIFICATE REQUEST", &bytes));
        let _ = CsrKey::parse(&String::from_utf8_lossy(&bytes));
        let _ = identity_of_pem(&rcgen_pem("CERTIFICATE", &bytes));
        let _ = JoinToken::parse(&String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn expired_node_proves_its_identity_with_old_key() {
    let cluster = Cluster::new(1);
    let mut profile = cluster.profile(9, Role::Manager);
    (profile.now, profile.lifetime) = (ago(HOUR * 24 * 200), HOUR);
    let old = cluster.credentials(&profile);
    let new = key();
    let proof = prove_rekey(&old.key_pem, &new).unwrap();
    let check = |root: &str, cert: &str, proof: &[u8], key: &CsrKey| verify_rekey(root, cert, proof, key);
    let root = cluster.root.cert_pem.as_str();
    let issuer = root_id_of_pem(root).ok();
    let proven = CertIdentity { issuer, ..old.identity.clone() };
    assert_eq!(check(root, &old.cert_pem, &proof, &new).unwrap(), proven);
    // Of the roots that the cluster has had, the one that issued it.
    let roots = format!("{}{root}", Cluster::new(1).root.cert_pem);
    assert_eq!(check(&roots, &old.cert_pem, &proof, &new).unwrap(), proven);

    let other = Cluster::new(2);
    assert_eq!(check(&other.root.cert_pem, &old.cert_pem, &proof, &new), Err(BadRekey::Foreign));
    assert_eq!(check(root, &old.cert_pem, &proof, &key()), Err(BadRekey::Signature));
    assert_eq!(check(root, &old.cert_pem, &[], &new), Err(BadRekey::Signature));
    let thief = prove_rekey(&new_key(), &new).unwrap();
    assert_eq!(check(root, &old.cert_pem, &thief, &new), Err(BadRekey::Signature));
    let user = UserProfile {
        cluster: cluster.id,
        name: "ada".parse().unwrap(),
        kind: UserKind::Operator,
        incarnation: Incarnation(1),
        lifetime: HOUR,
        now: now(),
    };
    let user = cluster.issuer.sign_user(&user, &new).unwrap();
    assert_eq!(check(root, &user.cert_pem, &proof, &new), Err(BadRekey::NotANode));
}

#[test]
fn a_token_is_for_one_root_whatever_its_white_space() {
    let (a, b) = (Cluster::new(1), Cluster::new(1));
    let token = JoinToken::new(&a.root.cert_pem, Secret::new("x".repeat(25))).unwrap();
    assert!(token.is_for(&a.root.cert_pem));
    assert!(token.is_for(&format!("\n{}\n\n", a.root.cert_pem)));
    assert!(!token.is_for(&b.root.cert_pem));
    assert!(!token.is_for("nonsense"));
    let bundle = format!("{}{}", b.root.cert_pem, a.root.cert_pem);
    assert!(!token.is_for(&bundle), "a joining node trusts nothing beside the token's root");
    assert_eq!(new_token_secret().expose().len(), 25);
    assert_eq!(new_token_id().len(), 8);
}
