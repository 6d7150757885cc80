//! A client with arbitrary ALPN and certificate, or none, from any loopback address.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use muster_client::{Failure, Outcome};
use muster_gateway::{BoxStream, Dialer, Framed};
use muster_messages::protocol::NodeCredentials;
use muster_messages::wire::Greeting;
use muster_messages::{ErrorCode, RefusalReason};
use rustls::pki_types::ServerName;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::cluster::until;

/// Maximum wait of an attacker's connection for the other side.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Source, target and identity of a call.
#[derive(Clone)]
pub struct Caller {
    pub to: SocketAddr,
    pub from: Ipv4Addr,
    tls: Arc<rustls::ClientConfig>,
}

impl Caller {
    /// Without a certificate, and without verification of the server.
    pub fn unauthenticated(to: SocketAddr, alpn: &[&[u8]]) -> Self {
        let tls = muster_pki::unverified_client_config(alpn).expect("a client without certificate");
        Self { to, from: Ipv4Addr::LOCALHOST, tls }
    }

    /// With the certificate of a node or a user.
    pub fn with(to: SocketAddr, alpn: &[&[u8]], credentials: &NodeCredentials) -> Outcome<Self> {
        let tls = muster_pki::client_config(&credentials.root_pem, Some(credentials), alpn);
        let tls = tls.map_err(|e| Failure::new(ErrorCode::Internal, e.to_string()))?;
        Ok(Self { to, from: Ipv4Addr::LOCALHOST, tls })
    }

    #[must_use]
    pub fn from(mut self, from: Ipv4Addr) -> Self {
        self.from = from;
        self
    }

    /// Connects by TCP only. On drop it resets: a flood must not exhaust ports.
    pub async fn tcp(&self) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
        if self.from != Ipv4Addr::LOCALHOST {
            socket.bind(SocketAddr::new(IpAddr::V4(self.from), 0))?;
        }
        let stream = timeout(ANSWER_TIMEOUT, socket.connect(self.to)).await??;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Connects up to the end of the TLS handshake.
    pub async fn tls(&self) -> io::Result<TlsStream<TcpStream>> {
        let tcp = self.tcp().await?;
        let name = ServerName::try_from("localhost").expect("a DNS name");
        timeout(ANSWER_TIMEOUT, TlsConnector::from(self.tls.clone()).connect(name, tcp)).await?
    }

    /// Connects up to the greeting of a native service; returns the frames, or the refusal.
    pub async fn greeted(&self) -> Result<Framed<BoxStream>, HandshakeError> {
        let mut stream: Framed<BoxStream> = Framed::new(Box::pin(self.tls().await.map_err(HandshakeError::Broken)?));
        match timeout(ANSWER_TIMEOUT, stream.recv::<Greeting>()).await {
            Ok(Ok(Some(Greeting::Welcome { .. }))) => Ok(stream),
            Ok(Ok(Some(Greeting::Refused(refusal)))) => Err(HandshakeError::Refused(refusal.reason)),
            Ok(Err(muster_gateway::FrameError::Io(error))) => Err(HandshakeError::Broken(error)),
            Ok(_) => Err(HandshakeError::Broken(io::ErrorKind::UnexpectedEof.into())),
            Err(_) => Err(HandshakeError::Broken(io::ErrorKind::TimedOut.into())),
        }
    }

    /// Connects, one time after the other, until a follower refuses it; returns the reason. Until its replica has what ended the
    /// right of these credentials, a follower welcomes them, or refuses them for one of `meanwhile`. It disconnects without a
    /// greeting a connection that loses its right before: at most one, because the right is lost once.
    pub async fn refused_by_follower(&self, meanwhile: &[RefusalReason]) -> Outcome<RefusalReason> {
        let mut broken = Vec::new();
        until("a follower refuses it", async || match self.greeted().await {
            Ok(_) => Ok(None),
            Err(HandshakeError::Refused(reason)) => Ok(Some(reason).filter(|reason| !meanwhile.contains(reason))),
            Err(HandshakeError::Broken(error)) => {
                broken.push(error);
                assert!(broken.len() < 2, "no greeting: {broken:?}");
                Ok(None)
            }
        })
        .await
    }
}

/// A refusal by a native service.
#[derive(Debug)]
pub enum HandshakeError {
    Refused(RefusalReason),
    /// No greeting, for example because TLS rejected the certificate.
    Broken(io::Error),
}

impl HandshakeError {
    pub fn reason(&self) -> Option<RefusalReason> {
        match self {
            HandshakeError::Refused(reason) => Some(*reason),
            HandshakeError::Broken(_) => None,
        }
    }
}

/// A dialer with these credentials.
pub fn dialer(credentials: &NodeCredentials) -> Dialer {
    Dialer::new(watch::Sender::new(Arc::new(credentials.clone())).subscribe())
}
