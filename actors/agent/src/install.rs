//! Requests certificates and puts them and the roots into force: verified and written before they are used.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muster_kernel::Fault;
use muster_messages::protocol::NodeCredentials;
use muster_messages::wire::RootsOffer;
use muster_messages::{Secret, WallTime};
use muster_pki::{Bundle, IdentityFault, IdentityStore};
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

/// Certificate requests, the certificates that answer them, and the roots that hosts offer.
pub(crate) struct Installer {
    /// The key of the latest request.
    key: Option<(u64, Secret)>,
    credentials: Credentials,
}

/// The credentials in force, on disk and published. One change at a time: each starts from the one before. Shared by all
/// incarnations of the agent: a change continues in its thread after the incarnation that began it has failed.
#[derive(Clone)]
pub(crate) struct Credentials {
    store: IdentityStore,
    publish: Arc<watch::Sender<Arc<NodeCredentials>>>,
    changes: Arc<Mutex<Changes>>,
    /// The incarnation that makes changes through this clone.
    incarnation: u64,
}

#[derive(Default)]
struct Changes {
    /// The present incarnation.
    incarnation: u64,
    /// The roots that were last accepted from a host; a former certificate's root, which they may lack, leaves with that certificate.
    accepted: Option<Bundle>,
}

impl Installer {
    /// For another incarnation of the agent. Blocking.
    pub fn new(credentials: &Credentials) -> Result<Self, IdentityFault> {
        Ok(Self { key: None, credentials: credentials.next_incarnation()? })
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
        let credentials = self.credentials.clone();
        async move {
            let Some(key) = key else {
                return Msg::InstallFailed("the key of this certificate request was lost".to_owned());
            };
            match tokio::task::spawn_blocking(move || credentials.install(key, cert_pem)).await {
                Ok(Ok(credentials)) => Msg::Installed(credentials),
                Ok(Err(why)) => Msg::InstallFailed(why),
                Err(why) => Msg::InstallFailed(why.to_string()),
            }
        }
    }

    /// Installs and publishes roots that a host offers (PKI-9, AGENT-13).
    pub fn install_roots(&self, offer: RootsOffer) -> impl Future<Output = Msg> + Send + 'static {
        let credentials = self.credentials.clone();
        async move {
            let generation = offer.generation;
            match tokio::task::spawn_blocking(move || credentials.install_roots(&offer)).await {
                Ok(Ok(())) => Msg::RootsInstalled(generation),
                Ok(Err(why)) => Msg::RootsRefused { generation, why },
                Err(why) => Msg::RootsRefused { generation, why: why.to_string() },
            }
        }
    }
}

impl Credentials {
    pub fn new(store: IdentityStore, publish: Arc<watch::Sender<Arc<NodeCredentials>>>) -> Self {
        Self { store, publish, changes: Arc::default(), incarnation: 0 }
    }

    /// Drops the changes that earlier incarnations have begun: this one does not know them. Publishes what is on disk: an
    /// earlier one may have ended between writing and publishing.
    fn next_incarnation(&self) -> Result<Self, IdentityFault> {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        changes.incarnation += 1;
        if let Some(saved) = self.store.load_credentials()? {
            self.publish.send_if_modified(|current| {
                let differs =
                    (&current.identity.serial, &current.root_pem) != (&saved.identity.serial, &saved.root_pem);
                if differs {
                    *current = Arc::new(saved);
                }
                differs
            });
        }
        Ok(Self { incarnation: changes.incarnation, ..self.clone() })
    }

    fn changes(&self) -> Result<MutexGuard<'_, Changes>, String> {
        let changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if changes.incarnation == self.incarnation { Ok(changes) } else { Err("the agent was restarted".to_owned()) }
    }

    /// Checks that the certificate is for this node, this key and a trusted root, and writes it with its key and its root in one step; other trusted roots
    /// follow. Blocking.
    ///
    /// The roots stay the ones that this node already trusts: an answer cannot add one.
    fn install(&self, key_pem: Secret, cert_pem: String) -> Result<Arc<NodeCredentials>, String> {
        let changes = self.changes()?;
        let current = self.publish.borrow().clone();
        let identity = muster_pki::identity_of_pem(&cert_pem).map_err(|e| e.to_string())?;
        let node = |i: &muster_messages::CertIdentity| i.node().map(|(node, _)| node);
        if node(&identity) != node(&current.identity) || identity.cluster != current.identity.cluster {
            return Err("the received certificate is not for this node".to_owned());
        }
        if identity.incarnation < current.identity.incarnation {
            return Err(format!("the received certificate is of incarnation {}", identity.incarnation));
        }
        let signed = NodeCredentials { cert_pem, key_pem, root_pem: current.root_pem.clone(), identity };
        let credentials = match &changes.accepted {
            Some(bundle) => muster_pki::with_bundle(&signed, bundle),
            None => signed,
        };
        self.put_in_force(credentials)
    }

    /// Blocking.
    fn install_roots(&self, offer: &RootsOffer) -> Result<(), String> {
        let mut changes = self.changes()?;
        let current = self.publish.borrow().clone();
        let trusted = Bundle::from_pem(&current.root_pem).map_err(|e| e.to_string())?;
        let bundle = trusted.accept_proven(current.identity.cluster, &offer.roots).map_err(|e| e.to_string())?;
        let credentials = muster_pki::with_bundle(&current, &bundle);
        if credentials.root_pem != current.root_pem {
            self.put_in_force(credentials)?;
        }
        changes.accepted = Some(bundle);
        Ok(())
    }

    fn put_in_force(&self, credentials: NodeCredentials) -> Result<Arc<NodeCredentials>, String> {
        self.store.save_credentials(&credentials).map_err(|e| crate::line::chain(&e))?;
        let credentials = Arc::new(credentials);
        self.publish.send_replace(Arc::clone(&credentials));
        Ok(credentials)
    }
}

#[cfg(test)]
#[path = "install_tests.rs"]
mod tests;
