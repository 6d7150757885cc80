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
    /// On record; none while the local replica does not know its cluster.
    roots: Option<Authorities>,
    config: Arc<ServerConfig>,
    known: Option<Arc<Bundle>>,
}

impl ServerTls {
    /// The configuration, and the roots to find the issuer of a client's certificate with: see [`known_roots`].
    /// Clients may present certificates of every root on record: nodes that were away have one of a retired root.
    pub(crate) fn config(
        &self,
        credentials: &Arc<NodeCredentials>,
        tables: Option<&Tables>,
    ) -> Result<(Arc<ServerConfig>, Option<Arc<Bundle>>), TlsFault> {
        let roots = on_record(tables);
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(built) = built.as_ref()
            && Arc::ptr_eq(&built.of, credentials)
            && are_same(built.roots.as_ref(), roots)
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
        *built = Some(BuiltServer { of, roots: roots.cloned(), config: config.clone(), known: known.clone() });
        Ok((config, known))
    }
}

/// The roots on record. `None`: there is no local replica, or it does not know its cluster.
fn on_record(tables: Option<&Tables>) -> Option<&Authorities> {
    tables.filter(|tables| tables.cluster.is_some()).map(|tables| &tables.authorities)
}

/// Every change of a root replaces its record.
fn are_same(one: Option<&Authorities>, other: Option<&Authorities>) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return one.is_none() && other.is_none() };
    one.roots.len() == other.roots.len()
        && one.roots.values().zip(other.roots.values()).all(|(one, other)| Arc::ptr_eq(one, other))
}

/// The roots that this node knows: those on record, with the withdrawn ones last, and then those that only it trusts. A
/// certificate whose root is not among them counts as the first one's that leads to it. A node without a record knows its own:
/// a connection that it accepts now is judged by the record that it has later. `None`: there was no rotation.
fn known_roots(credentials: &NodeCredentials, on_record: Option<&Authorities>) -> Result<Option<Bundle>, TlsFault> {
    if on_record.is_some_and(|on_record| on_record.roots.is_empty()) {
        return Ok(None);
    }
    let own = Bundle::from_pem(&credentials.root_pem)?;
    let Some(on_record) = on_record else { return Ok(Some(own)) };
    let mut roots: Vec<_> = on_record.roots.values().collect();
    roots.sort_by_key(|root| (is_withdrawn(root), root.state != AuthorityState::Active));
    Ok(Some(own.preceded_by(roots.iter().map(|root| root.cert_pem.as_str()))))
}

/// The identity in the first of these certificates, with its issuer if roots are known: see [`known_roots`].
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

/// The roots to find the issuer of a manager's certificate with.
pub(crate) fn roots_known_by(
    credentials: &NodeCredentials,
    tables: Option<&Tables>,
) -> Result<Option<Bundle>, TlsFault> {
    known_roots(credentials, on_record(tables))
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
        let config = muster_pki::client_config(root, Some(credentials), offered(service))?;
        built.insert(service, (credentials.clone(), config.clone()));
        Ok(config)
    }
}

/// What a dialer offers. Callers of [`Service::Http`] speak HTTP/1.1 over what was dialed.
pub(crate) fn offered(service: Service) -> &'static [&'static [u8]] {
    match service {
        Service::Http => &[b"http/1.1"],
        _ => service.alpn(),
    }
}

/// The service of a negotiated protocol; without one, HTTP.
pub(crate) fn service_of(alpn: Option<&[u8]>) -> Option<Service> {
    match alpn {
        None => Some(Service::Http),
        Some(alpn) => Service::ALL.into_iter().find(|s| s.alpn().contains(&alpn)),
    }
}
