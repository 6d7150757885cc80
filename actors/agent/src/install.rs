//! Puts a new certificate into force: verified and written before it is used.

use std::sync::Arc;
use std::time::Duration;

use muster_messages::protocol::NodeCredentials;
use muster_messages::{Secret, WallTime};
use muster_pki::IdentityStore;

/// How far certificates are back-dated, for clocks that are behind.
const BACK_DATING: Duration = Duration::from_secs(3600);

/// When a certificate was issued, by its own dates. `None`: it cannot be read.
pub fn issued_at(cert_pem: &str) -> Option<WallTime> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(cert_pem.as_bytes()).ok()?;
    let cert = pem.parse_x509().ok()?;
    let (from, until) = (cert.validity().not_before.timestamp(), cert.validity().not_after.timestamp());
    let back = i64::try_from(BACK_DATING.as_secs()).unwrap_or(0).min((until - from).max(0) / 2);
    Some(WallTime::from_unix_secs(from + back))
}

/// Checks that the certificate is for this node, this key and this root, and writes all three in one step. Blocking.
///
/// The root stays the one that this node already trusts: an answer cannot replace it.
pub(crate) fn install(
    store: &IdentityStore,
    current: &NodeCredentials,
    key_pem: Secret,
    cert_pem: String,
) -> Result<Arc<NodeCredentials>, String> {
    let identity = muster_pki::identity_of_pem(&cert_pem).map_err(|e| e.to_string())?;
    let node = |i: &muster_messages::CertIdentity| i.node().map(|(node, _)| node);
    if node(&identity) != node(&current.identity) || identity.cluster != current.identity.cluster {
        return Err("the received certificate is not for this node".to_owned());
    }
    if identity.incarnation < current.identity.incarnation {
        return Err(format!("the received certificate is of incarnation {}", identity.incarnation));
    }
    let credentials = NodeCredentials { cert_pem, key_pem, root_pem: current.root_pem.clone(), identity };
    store.save_credentials(&credentials).map_err(|e| crate::line::chain(&e))?;
    Ok(Arc::new(credentials))
}
