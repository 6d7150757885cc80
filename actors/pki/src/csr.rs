//! Keys and signing requests.

use muster_messages::Secret;
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::pki_types::CertificateSigningRequestDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::encoding::{BadPem, MAX_DER, bounded};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCsr {
    #[error("the signing request is empty")]
    Empty,
    #[error("the signing request is not PEM: {0}")]
    Pem(BadPem),
    #[error("the signing request is malformed")]
    Malformed,
    #[error("the signing request is not signed by its own key")]
    Signature,
    #[error("the key of the signing request is not ECDSA P-256")]
    Algorithm,
}

/// The public key of a signing request whose sender proved that it has the private key. Nothing else of a request is
/// kept: its names and extensions are unauthenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsrKey {
    /// `SubjectPublicKeyInfo`, DER.
    spki: Vec<u8>,
    /// The whole request, DER, which a re-keying node signs with its old key.
    request: Vec<u8>,
}

impl CsrKey {
    pub fn parse(csr_pem: &str) -> Result<Self, BadCsr> {
        if csr_pem.trim().is_empty() {
            return Err(BadCsr::Empty);
        }
        bounded(csr_pem).map_err(BadCsr::Pem)?;
        let der = CertificateSigningRequestDer::from_pem_slice(csr_pem.as_bytes())
            .map_err(|_| BadCsr::Pem(BadPem::NotOne("CERTIFICATE REQUEST")))?;
        if der.len() > MAX_DER {
            return Err(BadCsr::Pem(BadPem::TooLarge(der.len())));
        }
        let (rest, csr) = X509CertificationRequest::from_der(&der).map_err(|_| BadCsr::Malformed)?;
        if !rest.is_empty() {
            return Err(BadCsr::Malformed);
        }
        let PublicKey { spki } = PublicKey::parse(csr.certification_request_info.subject_pki.raw)?;
        csr.verify_signature().map_err(|_| BadCsr::Signature)?;
        Ok(Self { spki, request: der.to_vec() })
    }
    /// The public key as `SubjectPublicKeyInfo`, DER.
    pub fn spki(&self) -> &[u8] {
        &self.spki
    }
    pub(crate) fn request(&self) -> &[u8] {
        &self.request
    }
}

/// A public key without a proof that its sender has the private one: a certificate for it is of no use without that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    spki: Vec<u8>,
}

/// A point of P-256: a byte for the form, and two coordinates.
const UNCOMPRESSED_POINT: usize = 65;

impl PublicKey {
    /// Reads a `SubjectPublicKeyInfo`, DER: ECDSA P-256.
    pub fn parse(spki: &[u8]) -> Result<Self, BadCsr> {
        if spki.len() > MAX_DER {
            return Err(BadCsr::Malformed);
        }
        let (rest, read) = SubjectPublicKeyInfo::from_der(spki).map_err(|_| BadCsr::Malformed)?;
        let key = rcgen::SubjectPublicKeyInfo::from_der(spki).map_err(|_| BadCsr::Algorithm)?;
        if !rest.is_empty() || !rcgen::PublicKeyData::algorithm(&key).eq(&PKCS_ECDSA_P256_SHA256) {
            return Err(BadCsr::Algorithm);
        }
        // Every verifier reads a point in this form.
        let point = &read.subject_public_key.data;
        if point.len() != UNCOMPRESSED_POINT || point.first() != Some(&4) {
            return Err(BadCsr::Algorithm);
        }
        Ok(Self { spki: spki.to_vec() })
    }
    /// As `SubjectPublicKeyInfo`, DER.
    pub fn spki(&self) -> &[u8] {
        &self.spki
    }
}

/// A new private key, ECDSA P-256, PKCS #8 PEM.
pub fn new_key() -> Secret {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
        .expect("the provider generates P-256 keys whenever it has entropy");
    Secret::new(key.serialize_pem())
}

/// A signing request for a key. It contains no name: the signer chooses all names.
pub fn make_csr(key_pem: &Secret) -> Result<String, BadCsr> {
    let key = key_pair(key_pem).ok_or(BadCsr::Algorithm)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let csr = params.serialize_request(&key).map_err(|_| BadCsr::Malformed)?;
    csr.pem().map_err(|_| BadCsr::Malformed)
}

/// The key pair in a PEM text, if it is ECDSA P-256.
pub(crate) fn key_pair(key_pem: &Secret) -> Option<KeyPair> {
    bounded(key_pem.expose()).ok()?;
    let key = KeyPair::from_pem(key_pem.expose()).ok()?;
    key.is_compatible(&PKCS_ECDSA_P256_SHA256).then_some(key)
}
