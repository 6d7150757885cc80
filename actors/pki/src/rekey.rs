//! Re-keying: a node whose certificate has expired proves its identity with its old key.

use muster_messages::{CertIdentity, Secret};
use rcgen::SigningKey;
use rustls::pki_types::alg_id;

use crate::csr::{CsrKey, key_pair};
use crate::encoding::{self, BadPem};
use crate::identity::{self, BadCertificate, identity_of};
use crate::tls;
use crate::trust::{Bundle, MAX_CHAIN};

/// Prefix of the request, so that a signature for this purpose is invalid for any other.
const CONTEXT: &[u8] = b"muster-rekey/1\0";

/// The longest signature that is checked; ECDSA P-256 in DER has at most 72 bytes.
const MAX_SIGNATURE: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRekey {
    #[error("the old certificate is not PEM: {0}")]
    Pem(BadPem),
    #[error("the old certificate has no valid identity: {0}")]
    Certificate(#[from] BadCertificate),
    #[error("the old certificate was not issued by this cluster")]
    Foreign,
    #[error("the old certificate is not a node's")]
    NotANode,
    #[error("the new request is not signed by the key of the old certificate")]
    Signature,
    #[error("the old key cannot sign")]
    Key,
}

/// Signs a new request with the old key.
pub fn prove_rekey(old_key_pem: &Secret, new_key: &CsrKey) -> Result<Vec<u8>, BadRekey> {
    let key = key_pair(old_key_pem).ok_or(BadRekey::Key)?;
    key.sign(&statement(new_key)).map_err(|_| BadRekey::Key)
}

/// The identity that requests a new key: the old certificate must chain to our root, even if it has expired, and its key must
/// have signed the new request. `root_pem` may hold several roots; the one that issued it is in the identity. The replicated state decides whether that node is still admitted.
pub fn verify_rekey(
    root_pem: &str,
    old_cert_pem: &str,
    signature: &[u8],
    new_key: &CsrKey,
) -> Result<CertIdentity, BadRekey> {
    let presented = encoding::certificates(old_cert_pem, MAX_CHAIN).map_err(BadRekey::Pem)?;
    let old = presented.first().expect("at least one was read");
    let found = identity_of(old)?;
    if found.node().is_none() {
        return Err(BadRekey::NotANode);
    }
    let issuer = Bundle::from_pem(root_pem).ok().and_then(|roots| tls::issuer(&roots, &presented));
    let issuer = Some(issuer.ok_or(BadRekey::Foreign)?);
    if !signed_by(old, &statement(new_key), signature) {
        return Err(BadRekey::Signature);
    }
    Ok(CertIdentity { issuer, ..found })
}

fn statement(new_key: &CsrKey) -> Vec<u8> {
    [CONTEXT, new_key.request()].concat()
}

/// Whether the key of a certificate signed a message.
pub(crate) fn signed_by(cert: &[u8], message: &[u8], signature: &[u8]) -> bool {
    let Ok(cert) = identity::parse(cert) else {
        return false;
    };
    let key = cert.public_key().subject_public_key.data.as_ref();
    signature.len() <= MAX_SIGNATURE
        && tls::provider()
            .signature_verification_algorithms
            .all
            .iter()
            .find(|a| a.public_key_alg_id() == alg_id::ECDSA_P256 && a.signature_alg_id() == alg_id::ECDSA_SHA256)
            .is_some_and(|a| a.verify_signature(key, message, signature).is_ok())
}
