//! TLS for the gateway and the dialer. `muster-pki` builds the configurations and reads certificates.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use muster_messages::protocol::{NodeCredentials, Service};
use muster_pki::TlsFault;
use rustls::{ClientConfig, ServerConfig};

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
