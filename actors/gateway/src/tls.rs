//! The one place where this crate meets `muster-pki`.

use std::sync::Arc;

use muster_messages::CertIdentity;
use muster_messages::protocol::{NodeCredentials, Service};
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;

const UNAVAILABLE: &str = "certificates are not wired in yet";

pub(crate) fn client_config(_: &NodeCredentials, _: Service) -> Result<Arc<ClientConfig>, String> {
    Err(UNAVAILABLE.to_owned())
}
pub(crate) fn anonymous_config(_: &str, _: Service) -> Result<Arc<ClientConfig>, String> {
    Err(UNAVAILABLE.to_owned())
}
pub(crate) fn unverified_config(_: Service) -> Result<Arc<ClientConfig>, String> {
    Err(UNAVAILABLE.to_owned())
}
pub(crate) fn verify_server(_: &[CertificateDer<'_>], _: &str) -> Result<CertIdentity, String> {
    Err(UNAVAILABLE.to_owned())
}
pub(crate) fn identity_of(_: &CertificateDer<'_>) -> Result<CertIdentity, String> {
    Err(UNAVAILABLE.to_owned())
}
