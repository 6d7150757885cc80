//! The root, and the certificates that it signs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use muster_messages::{
    CertificatePin, ClusterId, Incarnation, MANAGER_NAME, MIN_WORKLOAD_TTL, Name, NodeId, Revision, Role, RootId,
    Secret, UserKind, Voucher, WallTime, WorkloadName,
};
use muster_sealing::hex;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType, SerialNumber, SigningKey,
};
use time::OffsetDateTime;

use crate::csr::{CsrKey, PublicKey, key_pair};
use crate::encoding::{self, BadPem};
use crate::grant::{self, Grant};
use crate::identity;
use crate::random::entropy;
use crate::trust;

const DAY: Duration = Duration::from_secs(24 * 3600);
pub const ROOT_LIFETIME: Duration = Duration::from_secs(20 * 365 * DAY.as_secs());
/// The default lifetime of a node's certificate.
pub const NODE_LIFETIME: Duration = Duration::from_secs(90 * DAY.as_secs());
/// The shortest lifetime of a node's certificate: renewal at half of it must survive an ordinary outage.
pub const MIN_NODE_LIFETIME: Duration = Duration::from_secs(3600);
/// The shortest lifetime of a user's certificate.
const MIN_USER_LIFETIME: Duration = Duration::from_secs(60);
/// Certificates begin this long in the past, for clocks that are behind.
const BACK_DATED: Duration = Duration::from_secs(3600);
/// Addresses in one certificate, besides loopback.
const MAX_IPS: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    #[error("the root certificate is not PEM: {0}")]
    RootPem(BadPem),
    #[error("the root certificate is malformed")]
    Root,
    #[error("the name of the root cannot be copied: only one text per part is supported, UTF-8 or printable")]
    RootName,
    #[error("the root key is not an ECDSA P-256 key in PEM")]
    Key,
    #[error("the root key does not belong to the root certificate")]
    KeyMismatch,
    #[error("a lifetime of {} s is too short, the minimum is {} s", .asked.as_secs(), .minimum.as_secs())]
    Lifetime { asked: Duration, minimum: Duration },
    #[error("the root certificate expires at {0}, too soon to sign another certificate")]
    RootExpires(WallTime),
    #[error("the time {0} cannot be represented in a certificate")]
    Time(WallTime),
    #[error("signing failed: {0}")]
    Signer(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    pub cert_pem: String,
    pub key_pem: Secret,
}

impl Root {
    /// Creates a root for a cluster, valid for [`ROOT_LIFETIME`].
    pub fn create(cluster: ClusterId, now: WallTime) -> Result<Self, SignError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(signer)?;
        let mut params = dated(now, now.plus(ROOT_LIFETIME))?;
        params.distinguished_name.push(DnType::CommonName, "muster-ca");
        params.distinguished_name.push(DnType::OrganizationName, cluster.as_str());
        // No path length: the root of a later rotation is signed by this one as an intermediate, and clients that know only
        // this root must accept the chain. Nothing else that it signs is a CA.
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let cert = params.self_signed(&key).map_err(signer)?;
        Ok(Self { cert_pem: cert.pem(), key_pem: Secret::new(key.serialize_pem()) })
    }
}

/// The content of a node's certificate, chosen by the signer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeProfile {
    pub cluster: ClusterId,
    pub node: NodeId,
    pub role: Role,
    /// `None` only in the founder's first certificate.
    pub granted: Option<Revision>,
    pub incarnation: Incarnation,
    /// The node's addresses as the signer saw them. Loopback is added.
    pub ips: Vec<IpAddr>,
    pub lifetime: Duration,
    pub now: WallTime,
}

/// The content of a user's or operator's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserProfile {
    pub cluster: ClusterId,
    pub name: Name,
    pub kind: UserKind,
    pub incarnation: Incarnation,
    pub lifetime: Duration,
    pub now: WallTime,
}

/// The content of a workload's certificate (X.509-SVID).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadProfile {
    pub cluster: ClusterId,
    pub workload: WorkloadName,
    pub dns: Vec<String>,
    pub incarnation: Incarnation,
    pub lifetime: Duration,
    pub now: WallTime,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    pub cert_pem: String,
    /// Lower-case hexadecimal.
    pub serial: String,
    pub not_after: WallTime,
    pub pin: CertificatePin,
    pub issuer: RootId,
}

pub struct Issuer {
    inner: rcgen::Issuer<'static, KeyPair>,
    id: RootId,
    expires: WallTime,
}

impl std::fmt::Debug for Issuer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Issuer(until {})", self.expires)
    }
}

impl Issuer {
    /// Loads the root's certificate and key, which must belong together.
    pub fn from_pem(root_cert_pem: &str, root_key_pem: &Secret) -> Result<Self, SignError> {
        let der = encoding::certificate(root_cert_pem).map_err(SignError::RootPem)?;
        let cert = identity::parse(&der).map_err(|_| SignError::Root)?;
        if !cert.is_ca() {
            return Err(SignError::Root);
        }
        let expires = WallTime::from_unix_secs(cert.validity().not_after.timestamp());
        let key = key_pair(root_key_pem).ok_or(SignError::Key)?;
        if cert.public_key().subject_public_key.data.as_ref() != key.public_key_raw() {
            return Err(SignError::KeyMismatch);
        }
        let id = identity::root_id(cert.public_key().raw);
        let inner = rcgen::Issuer::from_ca_cert_der(&der, key).map_err(signer)?;
        Ok(Self { inner, id, expires })
    }

    pub fn sign_node(&self, profile: &NodeProfile, key: &CsrKey) -> Result<Signed, SignError> {
        let mut params = self.lasting(profile.now, profile.lifetime, MIN_NODE_LIFETIME)?;
        let (cluster, node) = (profile.cluster.as_str(), profile.node.as_str());
        let role = profile.role.to_string();
        params.distinguished_name = name(node, Some(&role), cluster);
        params.subject_alt_names =
            vec![uri(format!("spiffe://{cluster}/{role}/{node}"))?, dns(node)?, dns("localhost")?];
        if profile.role == Role::Manager {
            params.subject_alt_names.push(dns(MANAGER_NAME)?);
        }
        params.subject_alt_names.extend(addresses(&profile.ips).map(SanType::IpAddress));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let grant = Grant { incarnation: profile.incarnation, granted: profile.granted };
        self.sign(params, grant, key.spki())
    }

    /// Signs the certificate of a workload. It has no common name: some clients take that for a host's.
    pub fn sign_workload(&self, profile: &WorkloadProfile, key: &PublicKey) -> Result<Signed, SignError> {
        let mut params = self.lasting(profile.now, profile.lifetime, MIN_WORKLOAD_TTL)?;
        params.distinguished_name.push(DnType::OrganizationalUnitName, "workload");
        params.distinguished_name.push(DnType::OrganizationName, profile.cluster.as_str());
        params.subject_alt_names = vec![uri(profile.workload.spiffe_id(profile.cluster))?];
        for name in &profile.dns {
            params.subject_alt_names.push(dns(name)?);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let grant = Grant { incarnation: profile.incarnation, granted: None };
        self.sign(params, grant, key.spki())
    }

    /// Signs the certificate of a person or a program.
    pub fn sign_user(&self, profile: &UserProfile, key: &CsrKey) -> Result<Signed, SignError> {
        let mut params = self.lasting(profile.now, profile.lifetime, MIN_USER_LIFETIME)?;
        let (cluster, who) = (profile.cluster.as_str(), profile.name.as_str());
        // The group is for people and Kubernetes clients; a user's rights are in its record.
        let (kind, group) = match profile.kind {
            UserKind::User => ("user", "muster:users"),
            UserKind::Operator => ("admin", "muster:admins"),
            UserKind::ReadOnly => ("reader", "muster:readers"),
        };
        params.distinguished_name = name(who, None, group);
        params.subject_alt_names = vec![uri(format!("spiffe://{cluster}/{kind}/{who}"))?];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let grant = Grant { incarnation: profile.incarnation, granted: None };
        self.sign(params, grant, key.spki())
    }

    /// Vouches for another root, whose certificate this is: members of the cluster that trust this root may add it.
    pub fn vouch(&self, cluster: ClusterId, root_pem: &str) -> Result<Voucher, SignError> {
        let der = encoding::certificate(root_pem).map_err(SignError::RootPem)?;
        let signature = self.inner.key().sign(&trust::statement(cluster, &der)).map_err(signer)?;
        Ok(Voucher { by: self.id, signature })
    }

    /// A certificate of another root's key and name, signed by this root, for those that trust only this one: presented after
    /// a certificate that the other root signed. It ends with the earlier of both roots, at `until` at the latest.
    pub fn cross_sign(&self, root_pem: &str, now: WallTime, until: WallTime) -> Result<String, SignError> {
        let der = encoding::certificate(root_pem).map_err(SignError::RootPem)?;
        let root = identity::parse(&der).map_err(|_| SignError::Root)?;
        if !root.is_ca() {
            return Err(SignError::Root);
        }
        let ends = WallTime::from_unix_secs(root.validity().not_after.timestamp());
        let mut params = dated(now, until.min(ends).min(self.expires))?;
        params.distinguished_name = identity::subject(&root).ok_or(SignError::RootName)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.serial_number = Some(SerialNumber::from_slice(&new_serial()));
        let public = rcgen::SubjectPublicKeyInfo::from_der(root.public_key().raw).map_err(signer)?;
        let cross = params.signed_by(&public, &self.inner).map_err(signer)?;
        // A verifier compares the bytes of this name with those in the certificates that the other root signed.
        let same_name =
            identity::parse(cross.der()).is_ok_and(|cross| cross.subject().as_raw() == root.subject().as_raw());
        if same_name { Ok(cross.pem()) } else { Err(SignError::RootName) }
    }

    /// The root of this key.
    pub(crate) fn id(&self) -> RootId {
        self.id
    }
    pub(crate) fn expires(&self) -> WallTime {
        self.expires
    }
    /// PKCS #8, DER.
    pub(crate) fn key_der(&self) -> &[u8] {
        self.inner.key().serialized_der()
    }

    fn lasting(&self, now: WallTime, asked: Duration, minimum: Duration) -> Result<CertificateParams, SignError> {
        if asked < minimum {
            return Err(SignError::Lifetime { asked, minimum });
        }
        if now.plus(minimum) > self.expires {
            return Err(SignError::RootExpires(self.expires));
        }
        dated(now, now.plus(asked).min(self.expires))
    }

    fn sign(&self, mut params: CertificateParams, grant: Grant, spki: &[u8]) -> Result<Signed, SignError> {
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.custom_extensions = vec![CustomExtension::from_oid_content(grant::OID, grant.to_der())];
        let serial = new_serial();
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        let not_after = WallTime::from_unix_secs(params.not_after.unix_timestamp());
        let public = rcgen::SubjectPublicKeyInfo::from_der(spki).map_err(signer)?;
        let cert = params.signed_by(&public, &self.inner).map_err(signer)?;
        let pin = identity::pin(cert.der(), spki);
        Ok(Signed { cert_pem: cert.pem(), serial: hex(&serial), not_after, pin, issuer: self.id })
    }
}

/// A random serial number. Its first byte is neither 0 nor negative, so that its text always has 32 digits.
fn new_serial() -> [u8; 16] {
    let mut serial = entropy().to_be_bytes();
    serial[0] = serial[0] & 0x7f | 0x40;
    serial
}

fn dated(now: WallTime, until: WallTime) -> Result<CertificateParams, SignError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let back = i64::try_from(BACK_DATED.as_millis()).expect("an hour");
    params.not_before = date(WallTime(now.0.saturating_sub(back)))?;
    params.not_after = date(until)?;
    Ok(params)
}

fn date(at: WallTime) -> Result<OffsetDateTime, SignError> {
    OffsetDateTime::from_unix_timestamp(at.0.div_euclid(1000)).map_err(|_| SignError::Time(at))
}

fn name(common: &str, unit: Option<&str>, organisation: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common);
    if let Some(unit) = unit {
        name.push(DnType::OrganizationalUnitName, unit);
    }
    name.push(DnType::OrganizationName, organisation);
    name
}

fn uri(text: String) -> Result<SanType, SignError> {
    Ok(SanType::URI(text.try_into().map_err(signer)?))
}

fn dns(text: &str) -> Result<SanType, SignError> {
    Ok(SanType::DnsName(text.try_into().map_err(signer)?))
}

fn addresses(given: &[IpAddr]) -> impl Iterator<Item = IpAddr> {
    let mut all = vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    for ip in given.iter().take(MAX_IPS) {
        if !ip.is_unspecified() && !all.contains(ip) {
            all.push(*ip);
        }
    }
    all.into_iter()
}

fn signer(e: rcgen::Error) -> SignError {
    SignError::Signer(e.to_string())
}
