//! Requests certificates and puts them into force: verified and written before they are used.

use std::sync::Arc;
use std::time::Duration;

use muster_kernel::Fault;
use muster_messages::protocol::NodeCredentials;
use muster_messages::{Secret, WallTime};
use muster_pki::IdentityStore;
use tokio::sync::watch;

use crate::core::CertificateFacts;
use crate::shell::Msg;

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

/// The facts of the certificate in force that the core knows.
pub(crate) fn facts(credentials: &NodeCredentials) -> Result<CertificateFacts, Fault> {
    let issued = issued_at(&credentials.cert_pem).ok_or_else(|| Fault::new("the certificate cannot be read"))?;
    CertificateFacts::of(&credentials.identity, issued)
        .ok_or_else(|| Fault::new("the certificate of this process is not a node's"))
}

/// Certificate requests, and the certificates that answer them.
pub(crate) struct Installer {
    store: IdentityStore,
    publish: Arc<watch::Sender<Arc<NodeCredentials>>>,
    /// The key of the latest request.
    key: Option<(u64, Secret)>,
}

impl Installer {
    pub fn new(store: IdentityStore, publish: Arc<watch::Sender<Arc<NodeCredentials>>>) -> Self {
        Self { store, publish, key: None }
    }

    /// A signing request under a new key.
    pub fn request(&mut self, id: u64) -> Result<String, Fault> {
        let key = muster_pki::new_key();
        let csr_pem = muster_pki::make_csr(&key)?;
        self.key = Some((id, key));
        Ok(csr_pem)
    }

    /// Installs and publishes the answer to request `id`.
    pub fn install(&mut self, id: u64, cert_pem: String) -> impl Future<Output = Msg> + Send + 'static {
        let key = self.key.take_if(|(asked, _)| *asked == id).map(|(_, key)| key);
        let (store, publish) = (self.store.clone(), Arc::clone(&self.publish));
        let current = publish.borrow().clone();
        async move {
            let Some(key) = key else {
                return Msg::InstallFailed("the key of this certificate request was lost".to_owned());
            };
            let install = move || install(&store, &current, key, cert_pem);
            match tokio::task::spawn_blocking(install).await {
                Ok(Ok(credentials)) => {
                    publish.send_replace(Arc::clone(&credentials));
                    Msg::Installed(credentials)
                }
                Ok(Err(why)) => Msg::InstallFailed(why),
                Err(why) => Msg::InstallFailed(why.to_string()),
            }
        }
    }
}

/// Checks that the certificate is for this node, this key and this root, and writes all three in one step. Blocking.
///
/// The root stays the one that this node already trusts: an answer cannot replace it.
fn install(
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
