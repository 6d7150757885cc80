//! TLS for the gateway and the dialer. `muster-pki` builds the configurations and reads certificates.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use muster_messages::protocol::{NodeCredentials, Service};
use muster_messages::{Authorities, AuthorityState, CertIdentity, Tables};
use muster_pki::{Bundle, TlsFault};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{ClientConfig, ServerConfig};

use crate::core::roots::is_withdrawn;

/// A configuration and the credentials that it was built for.
type Built<C> = (Arc<NodeCredentials>, Arc<C>);

/// The accepting side's configuration, built once per certificate and set of roots.
#[derive(Debug, Default)]
pub(crate) struct ServerTls {
    built: Mutex<Option<BuiltServer>>,
}

#[derive(Debug)]
struct BuiltServer {
    of: Arc<NodeCredentials>,
    roots: Authorities,
    config: Arc<ServerConfig>,
    known: Option<Arc<Bundle>>,
}

impl ServerTls {
    /// The configuration, and the roots to find the issuer of a client's certificate with. None before the first rotation.
    /// Clients may present certificates of every root on record: nodes that were away have one of a retired root.
    pub(crate) fn config(
        &self,
        credentials: &Arc<NodeCredentials>,
        tables: Option<&Tables>,
    ) -> Result<(Arc<ServerConfig>, Option<Arc<Bundle>>), TlsFault> {
        let none = Authorities::default();
        let roots = tables.map_or(&none, |tables| &tables.authorities);
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(built) = built.as_ref()
            && Arc::ptr_eq(&built.of, credentials)
            && are_same(&built.roots, roots)
        {
            return Ok((built.config.clone(), built.known.clone()));
        }
        let offered: Vec<&[u8]> = Service::ALL.iter().flat_map(|s| s.alpn()).copied().collect();
        let known = known_roots(credentials, roots)?.map(Arc::new);
        let config = match &known {
            Some(known) => muster_pki::server_config_for(credentials, known, &offered)?,
            None => muster_pki::server_config(credentials, &offered)?,
        };
        let of = credentials.clone();
        *built = Some(BuiltServer { of, roots: roots.clone(), config: config.clone(), known: known.clone() });
        Ok((config, known))
    }
}

/// Every change of a root replaces its record.
fn are_same(one: &Authorities, other: &Authorities) -> bool {
    one.roots.len() == other.roots.len()
        && one.roots.values().zip(other.roots.values()).all(|(one, other)| Arc::ptr_eq(one, other))
}

/// The roots that this node knows: those on record, with the withdrawn ones last, and then those that only it trusts. A
/// certificate whose root is not among them counts as the first one's that leads to it. `None`: there was no rotation.
pub(crate) fn known_roots(credentials: &NodeCredentials, on_record: &Authorities) -> Result<Option<Bundle>, TlsFault> {
    if on_record.roots.is_empty() {
        return Ok(None);
    }
    let mut roots: Vec<_> = on_record.roots.values().collect();
    roots.sort_by_key(|root| (is_withdrawn(root), root.state != AuthorityState::Active));
    let own = Bundle::from_pem(&credentials.root_pem)?;
    Ok(Some(own.preceded_by(roots.iter().map(|root| root.cert_pem.as_str()))))
}

/// The identity in the first of these certificates, with its issuer if there was a rotation.
pub(crate) fn identity_of(
    presented: &[CertificateDer<'_>],
    known: Option<&Bundle>,
) -> Result<Option<CertIdentity>, String> {
    let Some(leaf) = presented.first() else { return Ok(None) };
    let identity = muster_pki::identity_of(leaf).map_err(|error| error.to_string())?;
    let Some(known) = known else { return Ok(Some(identity)) };
    // The handshake has verified it, but it may have read more certificates than are allowed.
    let issuer = known.issuer_of(presented, UnixTime::now()).ok_or("no root on record issued the certificate")?;
    Ok(Some(CertIdentity { issuer: Some(issuer), ..identity }))
}

/// The dialling side's configurations, built once per service and certificate.
#[derive(Debug, Default)]
pub(crate) struct ClientTls {
    built: Mutex<BTreeMap<Service, Built<ClientConfig>>>,
}

impl ClientTls {
    pub(crate) fn config(
        &self,
        credentials: &Arc<NodeCredentials>,
        service: Service,
    ) -> Result<Arc<ClientConfig>, TlsFault> {
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, config)) = built.get(&service)
            && Arc::ptr_eq(of, credentials)
        {
            return Ok(config.clone());
        }
        let root = &credentials.root_pem;
        let config = muster_pki::client_config(root, Some(credentials), service.alpn())?;
        built.insert(service, (credentials.clone(), config.clone()));
        Ok(config)
    }
}

/// The service of a negotiated protocol; without one, HTTP.
pub(crate) fn service_of(alpn: Option<&[u8]>) -> Option<Service> {
    match alpn {
        None => Some(Service::Http),
        Some(alpn) => Service::ALL.into_iter().find(|s| s.alpn().contains(&alpn)),
    }
}
