//! TLS configurations: version 1.3 only, one provider, no resumption.
//!
//! TLS checks the chain, the validity and the signature. The caller then reads the peer's identity from its certificate with
//! [`crate::identity_of`] and compares it with the expected one: a DNS name proves nothing here.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use muster_messages::RootId;
use muster_messages::protocol::NodeCredentials;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};

use crate::encoding::{self, BadPem, MAX_DER};
use crate::identity;
use crate::trust::{BadBundle, Bundle, MAX_CHAIN};

/// Why a TLS configuration cannot be built from given credentials.
#[derive(Debug, thiserror::Error)]
pub enum TlsFault {
    #[error("the {what} of this node is not PEM")]
    Pem { what: &'static str, source: BadPem },
    #[error("this node's root certificates cannot be used")]
    Bundle(#[from] BadBundle),
    #[error("cannot use the root certificates as trust anchors")]
    Root(#[source] rustls::Error),
    #[error("TLS does not accept this node's certificate and key")]
    Credentials(#[source] rustls::Error),
    #[error("cannot build a verifier for client certificates")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
}

pub(crate) fn provider() -> &'static Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
}

/// For the accepting side. A client certificate is optional; a presented one must chain to a root that we trust and be currently
/// valid, otherwise the handshake fails.
pub fn server_config(creds: &NodeCredentials, alpn: &[&[u8]]) -> Result<Arc<ServerConfig>, TlsFault> {
    server_config_for(creds, &Bundle::from_pem(&creds.root_pem)?, alpn)
}

/// As [`server_config`], but clients' certificates may chain to any of these roots. The caller must then judge by the root
/// ([`Bundle::issuer_of`]): the handshake admits those of roots that are not trusted.
pub fn server_config_for(
    creds: &NodeCredentials,
    clients: &Bundle,
    alpn: &[&[u8]],
) -> Result<Arc<ServerConfig>, TlsFault> {
    let roots = Arc::new(clients.anchors().map_err(TlsFault::Root)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider().clone())
        .allow_unauthenticated()
        .build()
        .map_err(TlsFault::Verifier)?;
    let (chain, key) = own(creds)?;
    let mut config = ServerConfig::builder_with_provider(provider().clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TlsFault::Credentials)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(TlsFault::Credentials)?;
    config.alpn_protocols = protocols(alpn);
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// For the dialling side. The server's certificate must chain to this root and be currently valid; the caller then compares its
/// identity with the expected one. Without credentials the client is anonymous.
pub fn client_config(
    root_pem: &str,
    creds: Option<&NodeCredentials>,
    alpn: &[&[u8]],
) -> Result<Arc<ClientConfig>, TlsFault> {
    let verifier = Chain { roots: Some(roots(root_pem)?) };
    client(verifier, creds, alpn)
}

/// For fetching the root: any server is accepted (it must still have the key of its certificate, which the connection
/// keeps as `peer_certificates`). No secret may be sent over such a connection.
pub fn unverified_client_config(alpn: &[&[u8]]) -> Result<Arc<ClientConfig>, TlsFault> {
    client(Chain { roots: None }, None, alpn)
}

/// Whether one of the roots issued a node's certificate (the first presented), even if it has expired since.
pub(crate) fn issued_by(root_pem: &str, presented: &[CertificateDer<'_>]) -> bool {
    Bundle::from_pem(root_pem).is_ok_and(|bundle| issuer(&bundle, presented).is_some())
}

/// The root that issued a certificate, even if it has expired since: the chain is checked at the first second at which all of
/// it was valid.
pub(crate) fn issuer(bundle: &Bundle, presented: &[CertificateDer<'_>]) -> Option<RootId> {
    let issued = |chain: &[CertificateDer<'_>]| {
        let begins: Option<Vec<Duration>> = chain.iter().map(valid_from).collect();
        bundle.issuer_of(chain, UnixTime::since_unix_epoch(begins?.into_iter().max()?))
    };
    // Alone first: the certificates that lead from it to older roots may have begun after it ended.
    issued(presented.get(..1)?).or_else(|| issued(presented))
}

fn valid_from(der: &CertificateDer<'_>) -> Option<Duration> {
    let cert = identity::parse(der).ok()?;
    let secs = u64::try_from(cert.validity().not_before.timestamp()).ok()?;
    Some(Duration::from_secs(secs))
}

fn client(verifier: Chain, creds: Option<&NodeCredentials>, alpn: &[&[u8]]) -> Result<Arc<ClientConfig>, TlsFault> {
    let builder = ClientConfig::builder_with_provider(provider().clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TlsFault::Credentials)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match creds {
        None => builder.with_no_client_auth(),
        Some(creds) => {
            let (chain, key) = own(creds)?;
            builder.with_client_auth_cert(chain, key).map_err(TlsFault::Credentials)?
        }
    };
    config.alpn_protocols = protocols(alpn);
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

fn roots(root_pem: &str) -> Result<RootCertStore, TlsFault> {
    Bundle::from_pem(root_pem)?.anchors().map_err(TlsFault::Root)
}

/// The own certificate with those that lead from it to older roots, and the key.
fn own(creds: &NodeCredentials) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsFault> {
    let chain = encoding::certificates(&creds.cert_pem, MAX_CHAIN)
        .map_err(|source| TlsFault::Pem { what: "certificate", source })?;
    let key = encoding::private_key(creds.key_pem.expose())
        .map_err(|source| TlsFault::Pem { what: "private key", source })?;
    Ok((chain, key))
}

fn protocols(alpn: &[&[u8]]) -> Vec<Vec<u8>> {
    alpn.iter().map(|p| p.to_vec()).collect()
}

/// Checks the chain and the validity of a server's certificate, but not its DNS name. Without roots: accepts any.
#[derive(Debug)]
struct Chain {
    roots: Option<RootCertStore>,
}

impl ServerCertVerifier for Chain {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if end_entity.len() > MAX_DER {
            return Err(CertificateError::BadEncoding.into());
        }
        if let Some(roots) = &self.roots {
            verify_server_cert_signed_by_trust_anchor(
                &ParsedCertificate::try_from(end_entity)?,
                roots,
                intermediates,
                now,
                provider().signature_verification_algorithms.all,
            )?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &provider().signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &provider().signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
