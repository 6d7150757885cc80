//! TLS for the gateway and the dialer. `muster-pki` builds the configurations and reads certificates.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use muster_messages::CertIdentity;
use muster_messages::protocol::{NodeCredentials, Service};
use muster_pki::TlsFault;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// A configuration and the credentials that it was built for.
type Built<C> = (Arc<NodeCredentials>, Arc<C>);

/// The accepting side's configuration, built once per certificate.
#[derive(Debug, Default)]
pub(crate) struct ServerTls {
    built: Mutex<Option<Built<ServerConfig>>>,
}

impl ServerTls {
    pub(crate) fn config(&self, credentials: &Arc<NodeCredentials>) -> Result<Arc<ServerConfig>, TlsFault> {
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, config)) = built.as_ref()
            && Arc::ptr_eq(of, credentials)
        {
            return Ok(config.clone());
        }
        let offered: Vec<&[u8]> = Service::ALL.iter().flat_map(|s| s.alpn()).copied().collect();
        let config = muster_pki::server_config(credentials, &offered)?;
        *built = Some((credentials.clone(), config.clone()));
        Ok(config)
    }
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

/// The identity in the first of the presented certificates, if `root_pem` issued it and it is currently valid.
pub(crate) fn verify_server(presented: &[CertificateDer<'static>], root_pem: &str) -> Result<CertIdentity, String> {
    let leaf = presented.first().ok_or("the peer presented no certificate")?;
    let root = CertificateDer::from_pem_slice(root_pem.as_bytes()).map_err(|_| "the root certificate is not PEM")?;
    let mut roots = RootCertStore::empty();
    let checked = roots.add(root).and_then(|()| {
        verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(leaf)?,
            &roots,
            &[],
            UnixTime::now(),
            rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.all,
        )
    });
    checked.map_err(|e| e.to_string())?;
    muster_pki::identity_of(leaf).map_err(|e| e.to_string())
}
