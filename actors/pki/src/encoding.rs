//! PEM, with limits.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The longest PEM text that is parsed. Muster's certificates are under 2 KiB; a chain with long names fits many times.
pub const MAX_PEM: usize = 64 * 1024;

/// The longest certificate or signing request that is parsed.
pub const MAX_DER: usize = 16 * 1024;

/// Why a text is not the expected PEM.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPem {
    #[error("{0} bytes, the limit is {MAX_PEM}")]
    TooLarge(usize),
    #[error("expected exactly one PEM block of type {0}")]
    NotOne(&'static str),
    #[error("expected 1 to {0} certificates in PEM")]
    NotSome(usize),
}

pub(crate) fn certificate(pem: &str) -> Result<CertificateDer<'static>, BadPem> {
    bounded(pem)?;
    let wrong = BadPem::NotOne("CERTIFICATE");
    let mut found = CertificateDer::pem_slice_iter(pem.as_bytes());
    match (found.next(), found.next()) {
        (Some(Ok(der)), None) if der.len() <= MAX_DER => Ok(der),
        _ => Err(wrong),
    }
}

/// One or more certificates, at most `most`.
pub(crate) fn certificates(pem: &str, most: usize) -> Result<Vec<CertificateDer<'static>>, BadPem> {
    bounded(pem)?;
    let wrong = BadPem::NotSome(most);
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).take(most + 1).collect();
    match found {
        Ok(found) if (1..=most).contains(&found.len()) && found.iter().all(|der| der.len() <= MAX_DER) => Ok(found),
        _ => Err(wrong),
    }
}

pub(crate) fn certificate_pem(der: &CertificateDer<'_>) -> String {
    let lines = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new("CERTIFICATE", der.as_ref()), lines)
}

pub(crate) fn private_key(pem: &str) -> Result<PrivateKeyDer<'static>, BadPem> {
    bounded(pem)?;
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| BadPem::NotOne("PRIVATE KEY"))
}

/// Refuses a text that is too long to parse.
pub(crate) fn bounded(pem: &str) -> Result<(), BadPem> {
    if pem.len() > MAX_PEM { Err(BadPem::TooLarge(pem.len())) } else { Ok(()) }
}
