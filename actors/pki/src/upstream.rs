//! An authority above the cluster: the request for an issuing certificate, and the judgement of its answer.
//!
//! Invariants  UP-2  nothing that the authority above returns is trusted unless it certifies the key that was asked for, and
//!                   nothing wider than was asked. Nodes trust that certificate itself, never one above it: otherwise every other
//!                   subordinate of the company's root could admit nodes.
//!             UP-3  the authority above never sees a private key.

use std::time::Duration;

use muster_messages::{ClusterId, Incarnation, MAX_CROSSES, Name, RootId, Secret, UserKind, WallTime};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, KeyPair, KeyUsagePurpose, PublicKeyData,
};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, UnixTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, KeyUsage};

use crate::csr::{BadCsr, CsrKey, key_pair, make_csr, new_key};
use crate::encoding::{self, BadPem};
use crate::identity;
use crate::issue::{Issuer, UserProfile};
use crate::trust::Bundle;

/// The most certificates in an answer: the issuing one and those above it, of which companies have two or three.
pub const MAX_ISSUED: usize = 5;

/// The longest answer: three certificates with RSA keys of 4096 bits take half of it. Nodes present what is above the issuing one in
/// every handshake.
pub const MAX_ANSWER: usize = 16 * 1024;

/// The longest path below an issuing certificate that is of use: to each of the roots of later rotations whose certificates lead
/// back to this one.
pub const MAX_PATH_LENGTH: u8 = MAX_CROSSES as u8;

/// An issuing certificate must be valid for at least this long: a rotation may have to wait for managers that are away, and the next
/// answer takes people time.
pub const MIN_ISSUING_LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);

/// Why an answer is refused, with what would help. The certificates are counted from 1, the issuing one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadIssued {
    #[error("the answer is not PEM: {0}; put the issuing certificate first, then the one that signed it, and so on")]
    Pem(BadPem),
    #[error("the answer has {0} bytes, the limit is {MAX_ANSWER}; send only certificates, without comments")]
    TooLarge(usize),
    #[error("the answer contains a private key: send certificates only, and keep that key where it belongs")]
    PrivateKey,
    #[error("certificate {0} of the answer is malformed")]
    Malformed(usize),
    #[error("the key of the request cannot be read: `muster ca abort`, then request another certificate")]
    UnreadableKey,
    #[error(
        "the first certificate is of the key {found}, not of {asked}, for which one was requested; `muster ca rotate --csr` prints \
         the request"
    )]
    OtherKey { asked: RootId, found: RootId },
    #[error(
        "the requested certificate is number {0} of the answer: it comes first, then the one that signed it, and so on"
    )]
    Order(usize),
    #[error("certificates {0} and {1} of the answer are of the same key")]
    SameKey(usize, usize),
    #[error("the certificate is not a certificate authority's; sign it with basic constraints CA:TRUE, critical")]
    NotAuthority,
    #[error(
        "the certificate has {}; 0 to {MAX_PATH_LENGTH} are accepted: 0 suffices, except for Go programs at the next rotation",
        .0.map_or_else(|| "no path length".to_owned(), |length| format!("path length {length}"))
    )]
    PathLength(Option<u32>),
    #[error("the certificate must not sign certificates; sign it with the key usages keyCertSign and cRLSign")]
    MayNotSign,
    #[error("the certificate has the key usage {0}, which was not requested; sign it with keyCertSign and cRLSign")]
    KeyUsage(String),
    #[error(
        "the extended key usages of the certificate allow no TLS servers and clients; omit them, or add serverAuth and clientAuth"
    )]
    ExtendedKeyUsage,
    #[error(
        "the certificate has name constraints; omit them: certificates of nodes name ids and addresses, not domains"
    )]
    NameConstraints,
    #[error("the certificate has the name {0}, which was not requested: an identity of a node or a user; omit it")]
    Identity(String),
    #[error("clients may not support the critical extension {0} of the certificate; omit it, or make it not critical")]
    Critical(String),
    #[error("nodes do not accept the certificate: {0}")]
    Unsupported(String),
    #[error(
        "the subject of the certificate must keep O={0} from the request, with which machines that join recognise the cluster"
    )]
    Organisation(ClusterId),
    #[error(
        "the subject of the certificate cannot be written into others; each of its parts must be one UTF-8 or printable text, and \
         none may occur twice"
    )]
    Subject,
    #[error(
        "certificate {at} of the answer is not valid before {from}; check the clocks of the managers and of the authority above"
    )]
    NotYet { at: usize, from: WallTime },
    #[error("certificate {at} of the answer expired at {until}")]
    Expired { at: usize, until: WallTime },
    #[error("the certificate expires at {until}, in less than {} days; sign it for longer", MIN_ISSUING_LIFETIME.as_secs() / 86_400)]
    TooShort { until: WallTime },
    #[error("the certificate has the same name as the authority that signed it; keep the subject of the request")]
    OwnName,
    #[error("the answer ends with the issuing certificate; append the certificate that signed it, and those above")]
    NothingAbove,
    #[error("certificate {at} of the answer did not sign certificate {}; each one is followed by the one that signed it", at - 1)]
    NotSignedBy { at: usize },
    #[error("certificate {0} of the answer is not a certificate authority's, or must not sign certificates")]
    NotAuthorityAbove(usize),
    #[error("certificate {at} of the answer has path length {length}, too short for the authorities below it")]
    PathLengthAbove { at: usize, length: u32 },
}

/// An issuing certificate that was found to be as requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedAuthority {
    pub root: RootId,
    pub cert_pem: String,
    /// The certificates between it and the root above, the nearest first. No node trusts them.
    pub upstream: Vec<String>,
}

/// The id of the root that this private key would be.
pub fn root_id_of_key(key_pem: &Secret) -> Option<RootId> {
    key_pair(key_pem).map(|key| root_id(&key))
}

fn root_id(key: &KeyPair) -> RootId {
    identity::root_id(&key.subject_public_key_info())
}

/// A signing request for an issuing certificate.
pub fn make_authority_csr(key_pem: &Secret, cluster: ClusterId) -> Result<String, BadCsr> {
    let key = key_pair(key_pem).ok_or(BadCsr::Algorithm)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "muster-ca");
    params.distinguished_name.push(DnType::OrganizationName, cluster.as_str());
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(MAX_PATH_LENGTH));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let csr = params.serialize_request(&key).map_err(|_| BadCsr::Malformed)?;
    csr.pem().map_err(|_| BadCsr::Malformed)
}

/// The first certificate of an answer, and the root that it would be.
pub fn first_of_answer(answer: &str) -> Option<(RootId, String)> {
    let first = encoding::certificates(answer, MAX_ISSUED).ok()?.into_iter().next()?;
    let root = identity::root_id(identity::parse(&first).ok()?.public_key().raw);
    Some((root, encoding::certificate_pem(&first)))
}

/// UP-2. Judges the answer of an authority above: the issuing certificate, then the one that signed it, and so on. The topmost, which
/// signed itself, may be absent.
pub fn issued_authority(
    answer: &str,
    key_pem: &Secret,
    cluster: ClusterId,
    now: WallTime,
) -> Result<IssuedAuthority, BadIssued> {
    if answer.contains("PRIVATE KEY") {
        return Err(BadIssued::PrivateKey);
    }
    if answer.len() > MAX_ANSWER {
        return Err(BadIssued::TooLarge(answer.len()));
    }
    let ders = encoding::certificates(answer, MAX_ISSUED).map_err(BadIssued::Pem)?;
    let mut certs: Vec<X509Certificate<'_>> = Vec::new();
    for (at, der) in ders.iter().enumerate() {
        certs.push(identity::parse(der).map_err(|_| BadIssued::Malformed(at + 1))?);
    }
    let asked = root_id_of_key(key_pem).ok_or(BadIssued::UnreadableKey)?;
    certifies_key(&certs, asked)?;
    let (Some(cert), Some(der)) = (certs.first(), ders.first()) else {
        return Err(BadIssued::Pem(BadPem::NotSome(MAX_ISSUED)));
    };
    is_as_requested(cert, cluster)?;
    lasts(cert, now)?;
    leads_upwards(&certs, now)?;
    is_usable(cert, der, key_pem, cluster, now)?;
    // Who trusts the root above has it.
    let between = certs.iter().zip(&ders).skip(1).filter(|(cert, _)| cert.verify_signature(None).is_err());
    let upstream = between.map(|(_, der)| encoding::certificate_pem(der)).collect();
    Ok(IssuedAuthority { root: asked, cert_pem: encoding::certificate_pem(der), upstream })
}

fn certifies_key(certs: &[X509Certificate<'_>], asked: RootId) -> Result<(), BadIssued> {
    let ids: Vec<RootId> = certs.iter().map(|cert| identity::root_id(cert.public_key().raw)).collect();
    match ids.iter().position(|id| *id == asked) {
        Some(0) => {}
        Some(at) => return Err(BadIssued::Order(at + 1)),
        None => return Err(BadIssued::OtherKey { asked, found: ids[0] }),
    }
    for (at, id) in ids.iter().enumerate() {
        if let Some(earlier) = ids[..at].iter().position(|other| other == id) {
            return Err(BadIssued::SameKey(earlier + 1, at + 1));
        }
    }
    Ok(())
}

/// Extensions that every verifier evaluates: basic constraints, key usages, names.
const KNOWN_EXTENSIONS: [&str; 4] = ["2.5.29.19", "2.5.29.15", "2.5.29.37", "2.5.29.17"];

/// Nothing wider than was asked, and nothing that would keep nodes from using it.
fn is_as_requested(cert: &X509Certificate<'_>, cluster: ClusterId) -> Result<(), BadIssued> {
    let malformed = |_| BadIssued::Malformed(1);
    let constraints = cert.basic_constraints().map_err(malformed)?.map(|found| found.value);
    let Some(constraints) = constraints.filter(|found| found.ca) else { return Err(BadIssued::NotAuthority) };
    if constraints.path_len_constraint.is_none_or(|length| length > u32::from(MAX_PATH_LENGTH)) {
        return Err(BadIssued::PathLength(constraints.path_len_constraint));
    }
    let usage = cert.key_usage().map_err(malformed)?.map(|found| found.value);
    let Some(usage) = usage.filter(|usage| usage.key_cert_sign()) else { return Err(BadIssued::MayNotSign) };
    if let Some(wider) = wider_usage(usage) {
        return Err(BadIssued::KeyUsage(wider));
    }
    if let Some(extended) = cert.extended_key_usage().map_err(malformed)?.map(|found| found.value)
        && !(extended.any || extended.server_auth && extended.client_auth)
    {
        return Err(BadIssued::ExtendedKeyUsage);
    }
    if cert.name_constraints().map_err(malformed)?.is_some() {
        return Err(BadIssued::NameConstraints);
    }
    let names = cert.subject_alternative_name().map_err(malformed)?;
    for name in names.iter().flat_map(|found| &found.value.general_names) {
        // The name of a trust domain alone names no member of it.
        if let GeneralName::URI(uri) = name
            && uri.strip_prefix("spiffe://").is_some_and(|rest| rest.contains('/'))
        {
            return Err(BadIssued::Identity((*uri).to_owned()));
        }
    }
    // webpki ignores those of an anchor. Clients that verify by other programs do not.
    let critical = cert.extensions().iter().filter(|found| found.critical).map(|found| found.oid.to_id_string());
    if let Some(unknown) = critical.into_iter().find(|oid| !KNOWN_EXTENSIONS.contains(&oid.as_str())) {
        return Err(BadIssued::Critical(unknown));
    }
    let mut organisations = cert.subject().iter_organization();
    let kept = organisations.next().and_then(|found| found.as_str().ok()) == Some(cluster.as_str());
    if !kept {
        return Err(BadIssued::Organisation(cluster));
    }
    if identity::subject(cert).is_none() {
        return Err(BadIssued::Subject);
    }
    if cert.subject().as_raw() == cert.issuer().as_raw() {
        return Err(BadIssued::OwnName);
    }
    Ok(())
}

/// Signatures of data under this key mean nothing here, and authorities above often add that usage.
fn wider_usage(usage: &KeyUsage) -> Option<String> {
    let others = [
        (usage.non_repudiation(), "nonRepudiation"),
        (usage.key_encipherment(), "keyEncipherment"),
        (usage.data_encipherment(), "dataEncipherment"),
        (usage.key_agreement(), "keyAgreement"),
        (usage.encipher_only(), "encipherOnly"),
        (usage.decipher_only(), "decipherOnly"),
    ];
    others.iter().find(|(set, _)| *set).map(|(_, name)| (*name).to_owned())
}

fn is_valid(cert: &X509Certificate<'_>, at: usize, now: WallTime) -> Result<(), BadIssued> {
    let from = WallTime::from_unix_secs(cert.validity().not_before.timestamp());
    let until = not_after(cert);
    if now < from {
        return Err(BadIssued::NotYet { at, from });
    }
    if until <= now { Err(BadIssued::Expired { at, until }) } else { Ok(()) }
}

fn lasts(cert: &X509Certificate<'_>, now: WallTime) -> Result<(), BadIssued> {
    is_valid(cert, 1, now)?;
    let until = not_after(cert);
    if until < now.plus(MIN_ISSUING_LIFETIME) { Err(BadIssued::TooShort { until }) } else { Ok(()) }
}

fn not_after(cert: &X509Certificate<'_>) -> WallTime {
    WallTime::from_unix_secs(cert.validity().not_after.timestamp())
}

/// Each certificate was signed by the next one.
fn leads_upwards(certs: &[X509Certificate<'_>], now: WallTime) -> Result<(), BadIssued> {
    if certs.len() < 2 {
        return Err(BadIssued::NothingAbove);
    }
    for (below, pair) in certs.windows(2).enumerate() {
        let [lower, upper] = pair else { continue };
        let at = below + 2;
        let signed = lower.issuer().as_raw() == upper.subject().as_raw()
            && lower.verify_signature(Some(upper.public_key())).is_ok();
        if !signed {
            return Err(BadIssued::NotSignedBy { at });
        }
        let constraints = upper.basic_constraints().map_err(|_| BadIssued::Malformed(at))?.map(|found| found.value);
        let usage = upper.key_usage().map_err(|_| BadIssued::Malformed(at))?;
        let Some(constraints) = constraints.filter(|found| found.ca) else {
            return Err(BadIssued::NotAuthorityAbove(at));
        };
        if usage.is_some_and(|usage| !usage.value.key_cert_sign()) {
            return Err(BadIssued::NotAuthorityAbove(at));
        }
        let authorities_below = u32::try_from(at - 1).unwrap_or(u32::MAX);
        if let Some(length) = constraints.path_len_constraint.filter(|length| *length < authorities_below) {
            return Err(BadIssued::PathLengthAbove { at, length });
        }
        is_valid(upper, at, now)?;
    }
    Ok(())
}

/// Nodes accept it as an anchor, and a certificate that it signs is one of it.
fn is_usable(
    cert: &X509Certificate<'_>,
    der: &CertificateDer<'_>,
    key_pem: &Secret,
    cluster: ClusterId,
    now: WallTime,
) -> Result<(), BadIssued> {
    let unusable = |why: String| BadIssued::Unsupported(why);
    RootCertStore::empty().add(der.clone().into_owned()).map_err(|why| unusable(why.to_string()))?;
    let pem = encoding::certificate_pem(der);
    let issuer = Issuer::from_pem(&pem, key_pem).map_err(|why| unusable(why.to_string()))?;
    let probe = make_csr(&new_key()).and_then(|csr| CsrKey::parse(&csr)).map_err(|why| unusable(why.to_string()))?;
    let signed = issuer.sign_user(&probed(cluster, now)?, &probe).map_err(|why| unusable(why.to_string()))?;
    let leaf = encoding::certificate(&signed.cert_pem).map_err(|why| unusable(why.to_string()))?;
    let same_name = identity::parse(&leaf).is_ok_and(|leaf| leaf.issuer().as_raw() == cert.subject().as_raw());
    if !same_name {
        return Err(BadIssued::Subject);
    }
    let seconds = u64::try_from(now.0.div_euclid(1000)).unwrap_or_default();
    let at = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    let bundle = Bundle::from_pem(&pem).map_err(|why| unusable(why.to_string()))?;
    match bundle.issuer_of(&[leaf], at) {
        Some(_) => Ok(()),
        None => Err(unusable("a certificate that it signs is not verified by it".to_owned())),
    }
}

/// A certificate that is signed only to be verified: its key is forgotten.
fn probed(cluster: ClusterId, now: WallTime) -> Result<UserProfile, BadIssued> {
    let name: Name = "probe".parse().map_err(|why| BadIssued::Unsupported(format!("{why}")))?;
    let lifetime = Duration::from_secs(60);
    Ok(UserProfile { cluster, name, kind: UserKind::ReadOnly, incarnation: Incarnation(0), lifetime, now })
}
