//! A client that says whatever an attacker likes: any ALPN, any certificate or none, from any loopback address.

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

/// No connection of an attacker waits longer for the other side.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Who calls, whom, and as what.
#[derive(Clone)]
pub struct Caller {
    pub to: SocketAddr,
    pub from: Ipv4Addr,
    tls: Arc<rustls::ClientConfig>,
}

impl Caller {
    /// Without a certificate, trusting nobody in particular.
    pub fn stranger(to: SocketAddr, alpn: &[&[u8]]) -> Self {
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

    /// As far as TCP. Dropped, it resets: a flood must not run out of ports.
    pub async fn tcp(&self) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
        if self.from != Ipv4Addr::LOCALHOST {
            socket.bind(SocketAddr::new(IpAddr::V4(self.from), 0))?;
        }
        let stream = timeout(PATIENCE, socket.connect(self.to)).await??;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// As far as the end of the handshake.
    pub async fn tls(&self) -> io::Result<TlsStream<TcpStream>> {
        let tcp = self.tcp().await?;
        let name = ServerName::try_from("localhost").expect("a DNS name");
        timeout(PATIENCE, TlsConnector::from(self.tls.clone()).connect(name, tcp)).await?
    }

    /// As far as the greeting of a native service: the frames, or the word with which it refused.
    pub async fn greeted(&self) -> Result<Framed<BoxStream>, Greeted> {
        let mut stream: Framed<BoxStream> = Framed::new(Box::pin(self.tls().await.map_err(Greeted::Broken)?));
        match timeout(PATIENCE, stream.recv::<Greeting>()).await {
            Ok(Ok(Some(Greeting::Welcome { .. }))) => Ok(stream),
            Ok(Ok(Some(Greeting::Refused(refusal)))) => Err(Greeted::Refused(refusal.reason)),
            Ok(Err(muster_gateway::FrameError::Io(error))) => Err(Greeted::Broken(error)),
            Ok(_) => Err(Greeted::Broken(io::ErrorKind::UnexpectedEof.into())),
            Err(_) => Err(Greeted::Broken(io::ErrorKind::TimedOut.into())),
        }
    }
}

/// How a native service turned a caller away.
#[derive(Debug)]
pub enum Greeted {
    Refused(RefusalReason),
    /// No greeting: a certificate that TLS did not accept, for one.
    Broken(io::Error),
}

impl Greeted {
    pub fn reason(&self) -> Option<RefusalReason> {
        match self {
            Greeted::Refused(reason) => Some(*reason),
            Greeted::Broken(_) => None,
        }
    }
}

/// A dialer that speaks as these credentials for as long as it lives.
pub fn dialer(credentials: &NodeCredentials) -> Dialer {
    Dialer::new(watch::Sender::new(Arc::new(credentials.clone())).subscribe())
}
