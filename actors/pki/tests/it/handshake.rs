//! Real handshakes over an in-memory pipe.
use crate::fixture;
use std::io;
use std::sync::Arc;

use crate::fixture::{Cluster, HOUR, ago};
use muster_messages::Role;
use muster_messages::protocol::NodeCredentials;
use muster_pki::*;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, HandshakeKind, ProtocolVersion, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

const ALPN: &[&[u8]] = &[b"muster-agent/1", b"muster-join/1"];

type Client = client::TlsStream<tokio::io::DuplexStream>;
type Server = server::TlsStream<tokio::io::DuplexStream>;

/// Completes the handshake and sends one byte each way: in TLS 1.3 a client learns only then that it was refused.
pub async fn connect(server: Arc<ServerConfig>, client: Arc<ClientConfig>) -> (io::Result<Client>, io::Result<Server>) {
    let (near, far) = duplex(64 * 1024);
    let name = ServerName::try_from("any.name.will.do").unwrap();
    let dial = async {
        let mut stream = TlsConnector::from(client).connect(name, near).await?;
        stream.write_all(b"?").await?;
        stream.flush().await?;
        stream.read_u8().await?;
        Ok(stream)
    };
    let accept = async {
        let mut stream = TlsAcceptor::from(server).accept(far).await?;
        stream.read_u8().await?;
        stream.write_all(b"!").await?;
        stream.flush().await?;
        Ok(stream)
    };
    tokio::join!(dial, accept)
}

fn serving(creds: &NodeCredentials) -> Arc<ServerConfig> {
    server_config(creds, ALPN).unwrap()
}

fn dialling(cluster: &Cluster, creds: Option<&NodeCredentials>) -> Arc<ClientConfig> {
    client_config(&cluster.root.cert_pem, creds, ALPN).unwrap()
}

#[tokio::test]
async fn both_sides_learn_the_peer_identity() {
    let cluster = Cluster::new(1);
    let (manager, worker) = (cluster.node(1, Role::Manager), cluster.node(2, Role::Worker));
    let (near, far) = connect(serving(&manager), dialling(&cluster, Some(&worker))).await;
    let (near, far) = (near.unwrap(), far.unwrap());
    let seen = |certs: Option<&[rustls::pki_types::CertificateDer<'static>]>| identity_of(&certs.unwrap()[0]).unwrap();
    assert_eq!(seen(near.get_ref().1.peer_certificates()), manager.identity);
    assert_eq!(seen(far.get_ref().1.peer_certificates()), worker.identity);
    assert_eq!(near.get_ref().1.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    assert_eq!(near.get_ref().1.alpn_protocol(), Some(ALPN[0]));
}

#[tokio::test]
async fn a_client_may_stay_anonymous() {
    let cluster = Cluster::new(1);
    let (near, far) = connect(serving(&cluster.node(1, Role::Manager)), dialling(&cluster, None)).await;
    assert!(near.is_ok());
    assert!(far.unwrap().get_ref().1.peer_certificates().is_none());
}

#[tokio::test]
async fn no_session_is_ever_resumed() {
    let cluster = Cluster::new(1);
    let server = serving(&cluster.node(1, Role::Manager));
    let client = dialling(&cluster, Some(&cluster.node(2, Role::Worker)));
    for _ in 0..3 {
        let (near, far) = connect(server.clone(), client.clone()).await;
        let (near, far) = (near.unwrap(), far.unwrap());
        for kind in [near.get_ref().1.handshake_kind(), far.get_ref().1.handshake_kind()] {
            // With or without a second round trip, but always with the certificates.
            assert!(matches!(kind, Some(HandshakeKind::Full | HandshakeKind::FullWithHelloRetryRequest)));
        }
        assert_eq!(near.get_ref().1.tls13_tickets_received(), 0);
    }
}

#[tokio::test]
async fn a_client_of_another_cluster_fails_in_tls() {
    let (ours, theirs) = (Cluster::new(1), Cluster::new(2));
    let foreign = theirs.node(2, Role::Manager);
    let (near, far) = connect(serving(&ours.node(1, Role::Manager)), dialling(&ours, Some(&foreign))).await;
    assert!(near.is_err() && far.is_err());
}

#[tokio::test]
async fn a_server_of_another_cluster_fails_in_tls() {
    let (ours, theirs) = (Cluster::new(1), Cluster::new(2));
    let (near, far) = connect(serving(&theirs.node(1, Role::Manager)), dialling(&ours, None)).await;
    assert!(near.is_err() && far.is_err());
}

#[tokio::test]
async fn expired_certificates_fail_in_tls_on_either_side() {
    let cluster = Cluster::new(1);
    let mut profile = cluster.profile(2, Role::Worker);
    (profile.now, profile.lifetime) = (ago(HOUR * 3), HOUR);
    let expired = cluster.credentials(&profile);
    let manager = cluster.node(1, Role::Manager);
    let (near, far) = connect(serving(&manager), dialling(&cluster, Some(&expired))).await;
    assert!(near.is_err() && far.is_err());
    let (near, far) = connect(serving(&expired), dialling(&cluster, Some(&manager))).await;
    assert!(near.is_err() && far.is_err());
}

#[tokio::test]
async fn a_user_certificate_cannot_serve() {
    let cluster = Cluster::new(1);
    let key = new_key();
    let profile = UserProfile {
        cluster: cluster.id,
        name: "ada".parse().unwrap(),
        kind: muster_messages::UserKind::Operator,
        incarnation: muster_messages::Incarnation(1),
        lifetime: HOUR,
        now: fixture::now(),
    };
    let csr = CsrKey::parse(&make_csr(&key).unwrap()).unwrap();
    let mut creds = cluster.node(1, Role::Manager);
    creds.cert_pem = cluster.issuer.sign_user(&profile, &csr).unwrap().cert_pem;
    creds.key_pem = key;
    let (near, _) = connect(serving(&creds), dialling(&cluster, None)).await;
    assert!(near.is_err());
    let (near, far) = connect(serving(&cluster.node(2, Role::Manager)), dialling(&cluster, Some(&creds))).await;
    assert!(near.is_ok() && far.is_ok(), "but it can call");
}

#[tokio::test]
async fn root_can_be_fetched_from_unverified_server() {
    let cluster = Cluster::new(1);
    let client = unverified_client_config(&[b"muster-join/1"]).unwrap();
    let (near, far) = connect(serving(&cluster.node(1, Role::Manager)), client).await;
    assert!(near.unwrap().get_ref().1.peer_certificates().is_some());
    assert!(far.is_ok());
}

#[tokio::test]
async fn a_service_that_is_not_offered_fails_in_tls() {
    let cluster = Cluster::new(1);
    let client = client_config(&cluster.root.cert_pem, None, &[b"other/1"]).unwrap();
    let (near, far) = connect(serving(&cluster.node(1, Role::Manager)), client).await;
    assert!(near.is_err() && far.is_err());
}
