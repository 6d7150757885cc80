//! From a certificate to its identity.

use muster_messages::{BadId, CertIdentity, CertificatePin, ClusterId, Role, RootId, Subject, WallTime};
use muster_sealing::hex;
use rcgen::{DistinguishedName, DnType, DnValue};
use sha2::{Digest, Sha256};
use x509_parser::asn1_rs::Tag;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::oid_registry::Oid;
use x509_parser::prelude::FromDer;

use crate::encoding::{self, BadPem, MAX_DER};
use crate::grant::{self, Grant};
use crate::trust::MAX_CHAIN;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCertificate {
    #[error("the certificate is not PEM: {0}")]
    Pem(BadPem),
    #[error("the certificate has {0} bytes, the limit is {MAX_DER}")]
    TooLarge(usize),
    #[error("the certificate is malformed")]
    Malformed,
    #[error("the certificate is a certificate authority's, which has no identity")]
    Authority,
    #[error("the certificate has {0} URIs instead of one")]
    Uris(usize),
    #[error("the URI of the certificate is not spiffe://<cluster>/<role>/<id>")]
    Uri,
    #[error("the URI of the certificate contains an invalid name: {0}")]
    Name(#[from] BadId),
    #[error("the certificate has no grant extension")]
    NoGrant,
    #[error("the grant extension of the certificate has an unknown format")]
    BadGrant,
}

/// Reads the identity in the first of the certificates in `pem`; the others lead from it to older roots.
pub fn identity_of_pem(pem: &str) -> Result<CertIdentity, BadCertificate> {
    let chain = encoding::certificates(pem, MAX_CHAIN).map_err(BadCertificate::Pem)?;
    identity_of(chain.first().expect("at least one was read"))
}

/// When a PEM certificate (of a root, for example) expires.
pub fn not_after_of_pem(pem: &str) -> Result<WallTime, BadCertificate> {
    let der = encoding::certificate(pem).map_err(BadCertificate::Pem)?;
    Ok(WallTime::from_unix_secs(parse(&der)?.validity().not_after.timestamp()))
}

/// From when until when the first of the certificates in `pem` is valid; the others lead from it to older roots.
pub fn validity_of_chain(pem: &str) -> Result<(WallTime, WallTime), BadCertificate> {
    let chain = encoding::certificates(pem, MAX_CHAIN).map_err(BadCertificate::Pem)?;
    let first = parse(chain.first().expect("at least one was read"))?;
    let validity = first.validity();
    let [from, until] = [validity.not_before, validity.not_after].map(|at| WallTime::from_unix_secs(at.timestamp()));
    Ok((from, until))
}

pub fn not_before_of_pem(pem: &str) -> Result<WallTime, BadCertificate> {
    let der = encoding::certificate(pem).map_err(BadCertificate::Pem)?;
    Ok(WallTime::from_unix_secs(parse(&der)?.validity().not_before.timestamp()))
}

/// The path length of a root: how many authorities may stand between it and a certificate. `None`: any number. Go programs heed it.
pub fn path_length_of_pem(pem: &str) -> Result<Option<u32>, BadCertificate> {
    let der = encoding::certificate(pem).map_err(BadCertificate::Pem)?;
    let cert = parse(&der)?;
    let constraints = cert.basic_constraints().map_err(|_| BadCertificate::Malformed)?;
    Ok(constraints.and_then(|constraints| constraints.value.path_len_constraint))
}

pub fn root_id_of_pem(pem: &str) -> Result<RootId, BadCertificate> {
    let der = encoding::certificate(pem).map_err(BadCertificate::Pem)?;
    Ok(root_id(parse(&der)?.public_key().raw))
}

/// The cluster that a root's certificate names as its organisation. `None`: it names none, or is not a certificate.
pub fn cluster_of_root_pem(pem: &str) -> Option<ClusterId> {
    let der = encoding::certificate(pem).ok()?;
    let cert = parse(&der).ok()?;
    let organisation = cert.subject().iter_organization().next()?;
    organisation.as_str().ok()?.parse().ok()
}

/// Reads the identity in a certificate. Checks neither the chain nor the validity: TLS did, or the caller must.
pub fn identity_of(der: &[u8]) -> Result<CertIdentity, BadCertificate> {
    let cert = parse(der)?;
    if cert.is_ca() {
        return Err(BadCertificate::Authority);
    }
    let (cluster, subject) = subject_of(only_uri(&cert)?)?;
    let grant = grant_of(&cert)?;
    let serial = cert.raw_serial();
    Ok(CertIdentity {
        cluster,
        subject,
        serial: hex(serial.strip_prefix(&[0]).unwrap_or(serial)),
        granted: grant.granted,
        incarnation: grant.incarnation,
        not_after: WallTime::from_unix_secs(cert.validity().not_after.timestamp()),
        pin: Some(pin(der, cert.public_key().raw)),
        issuer: None,
    })
}

/// The pin of a certificate (DER) with this public key (`SubjectPublicKeyInfo`, DER).
pub(crate) fn pin(der: &[u8], spki: &[u8]) -> CertificatePin {
    CertificatePin { fingerprint: Sha256::digest(der).into(), key: Sha256::digest(spki).into() }
}

/// The id of the root with this public key (`SubjectPublicKeyInfo`, DER).
pub fn root_id(spki: &[u8]) -> RootId {
    let digest: [u8; 32] = Sha256::digest(spki).into();
    let (first, _) = digest.split_first_chunk().expect("32 bytes hold 8");
    RootId(*first)
}

/// Parses one certificate without trailing bytes.
pub(crate) fn parse(der: &[u8]) -> Result<X509Certificate<'_>, BadCertificate> {
    if der.len() > MAX_DER {
        return Err(BadCertificate::TooLarge(der.len()));
    }
    match X509Certificate::from_der(der) {
        Ok(([], cert)) => Ok(cert),
        _ => Err(BadCertificate::Malformed),
    }
}

/// The subject of a certificate, to be written again. `None`: it has a part that rcgen cannot write.
pub(crate) fn subject(cert: &X509Certificate<'_>) -> Option<DistinguishedName> {
    let mut name = DistinguishedName::new();
    for part in cert.subject().iter() {
        let mut attributes = part.iter();
        let (Some(attribute), None) = (attributes.next(), attributes.next()) else { return None };
        let oid: Vec<u64> = attribute.attr_type().iter()?.collect();
        let text = attribute.as_str().ok()?;
        let value = match attribute.attr_value().tag() {
            Tag::Utf8String => DnValue::Utf8String(text.to_owned()),
            Tag::PrintableString => DnValue::PrintableString(text.try_into().ok()?),
            _ => return None,
        };
        name.push(DnType::from_oid(&oid), value);
    }
    Some(name)
}

fn only_uri<'a>(cert: &'a X509Certificate<'_>) -> Result<&'a str, BadCertificate> {
    let names = cert
        .subject_alternative_name()
        .map_err(|_| BadCertificate::Malformed)?
        .map_or(&[][..], |ext| ext.value.general_names.as_slice());
    let mut uris = names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    match (uris.next(), uris.count()) {
        (Some(uri), 0) => Ok(uri),
        (first, more) => Err(BadCertificate::Uris(usize::from(first.is_some()) + more)),
    }
}

fn subject_of(uri: &str) -> Result<(ClusterId, Subject), BadCertificate> {
    let path = uri.strip_prefix("spiffe://").ok_or(BadCertificate::Uri)?;
    let mut parts = path.split('/');
    let (Some(cluster), Some(kind), Some(id)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(BadCertificate::Uri);
    };
    if kind == "workload" {
        let (_, name) = path.split_once("/workload/").ok_or(BadCertificate::Uri)?;
        return Ok((cluster.parse()?, Subject::Workload(name.parse()?)));
    }
    if parts.next().is_some() {
        return Err(BadCertificate::Uri);
    }
    let subject = match kind {
        "manager" => Subject::Node { node: id.parse()?, role: Role::Manager },
        "worker" => Subject::Node { node: id.parse()?, role: Role::Worker },
        "user" => Subject::User(id.parse()?),
        "admin" => Subject::Admin(id.parse()?),
        "reader" => Subject::Reader(id.parse()?),
        _ => return Err(BadCertificate::Uri),
    };
    Ok((cluster.parse()?, subject))
}

fn grant_of(cert: &X509Certificate<'_>) -> Result<Grant, BadCertificate> {
    let oid = Oid::from(grant::OID).expect("the extension's OID is well formed");
    let ext = cert.get_extension_unique(&oid).map_err(|_| BadCertificate::Malformed)?.ok_or(BadCertificate::NoGrant)?;
    Grant::from_der(ext.value).ok_or(BadCertificate::BadGrant)
}
