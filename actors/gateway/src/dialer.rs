//! The client side: TCP, TLS, the peer's identity, the greeting. Each stage has its own deadline, and the error names the
//! failed stage.
//!
//! Invariants  DIAL-1  a caller gets a stream only from a node of this cluster, of this incarnation or a newer one, and only from
//!                     the expected node. (A newer one is accepted because it may report that ours is the old one.)
//!             DIAL-2  and only from a manager, by its certificate: secrets go there, and its answers are trusted. Other nodes
//!                     are trusted in one respect: that they are not managers, and which nodes may be.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_messages::frames::{BoxStream, FrameError, Framed};
use muster_messages::protocol::{NodeCredentials, Service};
use muster_messages::wire::{Greeting, Refusal};
use muster_messages::{CertIdentity, NodeId, RefusalReason, Role};
use muster_pki::{Bundle, TlsFault};
use rustls::pki_types::ServerName;
use serde::Serialize;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::dial_error_text::ClockFault;
use crate::local_replica::LocalReplica;
use crate::tls::{ClientTls, identity_of, offered, roots_known_by};

/// How long each stage may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DialTimeouts {
    /// Name resolution and TCP. A reachable host answers within a round trip.
    pub connect: Duration,
    /// The handshake; the peer has the same limit.
    pub tls: Duration,
    /// The admission decision: up to 1 s for the peer to catch up, and margin for a busy machine.
    pub greeting: Duration,
}

impl Default for DialTimeouts {
    fn default() -> Self {
        Self { connect: Duration::from_secs(3), tls: Duration::from_secs(5), greeting: Duration::from_secs(5) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Resolve,
    Connect,
    Tls,
    Greeting,
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Stage::Resolve => "name resolution",
            Stage::Connect => "connecting",
            Stage::Tls => "the TLS handshake",
            Stage::Greeting => "waiting for the greeting",
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error("cannot resolve {addr}")]
    Resolve {
        addr: String,
        #[source]
        source: io::Error,
    },
    #[error("cannot connect to {addr}")]
    Connect {
        addr: String,
        #[source]
        source: io::Error,
    },
    /// The handshake failed because of the time: a clock is wrong, or the peer's certificate has expired.
    #[error("{addr} presented a certificate that is not valid now: {fault}")]
    Clock { addr: String, fault: ClockFault },
    /// The handshake failed: another cluster's node, or not a TLS port.
    #[error("TLS handshake with {addr} failed")]
    Tls {
        addr: String,
        #[source]
        source: io::Error,
    },
    /// The handshake succeeded, but with the wrong peer.
    #[error("{addr} is not the expected node: {why}")]
    WrongPeer { addr: String, why: String },
    /// This node's own credentials are unusable.
    #[error("cannot use this node's credentials")]
    Credentials(#[from] TlsFault),
    /// The peer answered with a refusal.
    #[error("{addr} refused: {refusal}")]
    Refused { addr: String, refusal: Refusal },
    /// The connection ended or broke after the handshake, before the greeting. With TLS 1.3 a refused client certificate
    /// looks the same.
    #[error("{addr} closed the connection before its greeting")]
    Greeting {
        addr: String,
        #[source]
        source: FrameError,
    },
    #[error("{addr} did not answer in time: {stage} took more than {}s", .limit.as_secs())]
    Timeout { addr: String, stage: Stage, limit: Duration },
}

impl DialError {
    /// No process listens there: the host answered immediately that the port is closed. The strongest sign that a process is gone.
    pub fn is_refused(&self) -> bool {
        matches!(self, DialError::Connect { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused)
    }
    /// The expected node has proved its identity; the dial failed after that.
    pub fn is_after_identity(&self) -> bool {
        matches!(
            self,
            DialError::Refused { .. } | DialError::Greeting { .. } | DialError::Timeout { stage: Stage::Greeting, .. }
        )
    }
    /// The refusal, if the peer answered with one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            DialError::Refused { refusal, .. } => Some(refusal),
            _ => None,
        }
    }
    /// The reason of the refusal, if the peer answered with one.
    pub fn reason(&self) -> Option<RefusalReason> {
        self.refusal().map(|r| r.reason)
    }
}

/// A connection that the peer has welcomed.
#[derive(Debug)]
pub struct Dialed {
    pub stream: Framed<BoxStream>,
    /// The server's.
    pub identity: CertIdentity,
    /// The node in the greeting, which is the certificate's.
    pub node: NodeId,
    pub remote: SocketAddr,
    pub local: SocketAddr,
}

/// What the dialer trusts and presents.
#[derive(Clone, Debug)]
enum Trust {
    /// This node's certificate, renewals included.
    Credentials { current: watch::Receiver<Arc<NodeCredentials>>, tls: Arc<ClientTls> },
    /// No certificate, and this root: for a joiner that has checked the digest, and for a client with a bearer token.
    Root { root_pem: Arc<str> },
}

/// Dials nodes of one cluster. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Dialer {
    trust: Trust,
    timeouts: DialTimeouts,
    local_replica: Option<LocalReplica>,
}

impl Dialer {
    /// Dials with the credentials that are current at each dial.
    pub fn new(credentials: watch::Receiver<Arc<NodeCredentials>>) -> Self {
        Self {
            trust: Trust::Credentials { current: credentials, tls: Arc::default() },
            timeouts: DialTimeouts::default(),
            local_replica: None,
        }
    }
    /// Dials without a certificate, trusting this root.
    pub fn anonymous(root_pem: &str) -> Self {
        Self::trusting(root_pem, DialTimeouts::default())
    }
    fn trusting(root_pem: &str, timeouts: DialTimeouts) -> Self {
        Self { trust: Trust::Root { root_pem: root_pem.into() }, timeouts, local_replica: None }
    }
    /// Once there was a rotation, finds which of the roots in this replica issued the server's certificate. For the mesh, which
    /// judges managers that it dials as the port judges those that dial.
    #[must_use]
    pub fn with_replica(mut self, local_replica: LocalReplica) -> Self {
        self.local_replica = Some(local_replica);
        self
    }
    #[must_use]
    pub fn with_timeouts(mut self, timeouts: DialTimeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// A welcomed connection to a manager at `addr` (`host:port`). On [`Service::Http`] there is no greeting: the stream is
    /// ready.
    pub async fn dial(&self, addr: &str, service: Service, expect: Option<NodeId>) -> Result<Dialed, DialError> {
        self.dial_with::<()>(addr, service, expect, None).await
    }

    /// As [`Dialer::dial`], and sends `first` to a manager that has proved its identity, without waiting for its greeting, which
    /// takes a round trip. A peer that refuses discards it.
    pub async fn dial_with<T: Serialize + Sync>(
        &self,
        addr: &str,
        service: Service,
        expect: Option<NodeId>,
        first: Option<&T>,
    ) -> Result<Dialed, DialError> {
        let (config, ours) = match &self.trust {
            Trust::Credentials { current, tls } => {
                let credentials = current.borrow().clone();
                let config = tls.config(&credentials, service);
                (config, Some(credentials.identity.clone()))
            }
            Trust::Root { root_pem } => {
                let config = muster_pki::client_config(root_pem, None, offered(service));
                (config, None)
            }
        };
        let config = config?;
        let known = self.known_roots()?;
        let tcp = self.connect(addr).await?;
        let (remote, local) = addresses(addr, &tcp)?;
        let tls = self.handshake(addr, tcp, config, muster_pki::MANAGER_NAME).await?;
        let identity = peer_identity(&tls, known.as_ref(), ours.as_ref(), expect).map_err(|why| {
            let addr = addr.to_owned();
            DialError::WrongPeer { addr, why }
        })?;
        let (node, role) = identity.node().expect("peer_identity returns nodes only");
        let mut stream: Framed<BoxStream> = Framed::new(Box::pin(tls));
        if let Some(first) = first.filter(|_| role == Role::Manager) {
            let limit = self.timeouts.greeting;
            match timeout(limit, stream.send(first)).await {
                // A peer that refuses may have closed the connection. Its greeting, which was sent before, says why.
                Ok(Ok(()) | Err(FrameError::Io(_))) => {}
                Ok(Err(source)) => return Err(DialError::Greeting { addr: addr.to_owned(), source }),
                Err(_) => return Err(late(addr, Stage::Greeting, limit)),
            }
        }
        let greeted = match service {
            Service::Http => Ok(()),
            _ => self.greeted(addr, &mut stream, node).await,
        };
        let redirects = greeted.as_ref().is_err_and(|no| no.reason() == Some(RefusalReason::NotAManager)); // DIAL-2
        if role != Role::Manager && !redirects {
            let why =
                format!("node {node} presented the certificate of a {role}, which does not speak for the managers");
            return Err(DialError::WrongPeer { addr: addr.to_owned(), why });
        }
        greeted?;
        Ok(Dialed { stream, identity, node, remote, local })
    }

    /// A join connection to an unverified server at `addr`, for fetching the root. No secret may be sent on it.
    pub async fn dial_unverified(addr: &str, timeouts: DialTimeouts) -> Result<Unverified, DialError> {
        let dialer = Self::trusting("", timeouts);
        let config = muster_pki::unverified_client_config(Service::Join.alpn())?;
        let tcp = dialer.connect(addr).await?;
        let (remote, local) = addresses(addr, &tcp)?;
        let tls = dialer.handshake(addr, tcp, config, ANY_NODE).await?;
        let mut stream: Framed<BoxStream> = Framed::new(Box::pin(tls));
        dialer.greeting(addr, &mut stream).await?;
        Ok(Unverified { stream, remote, local })
    }

    /// A connection to an unverified server at `addr`, without a service and a greeting.
    pub(crate) async fn dial_anyone(addr: &str, timeouts: DialTimeouts) -> Result<BoxStream, DialError> {
        let dialer = Self::trusting("", timeouts);
        let tcp = dialer.connect(addr).await?;
        let config = muster_pki::unverified_client_config(&[])?;
        Ok(Box::pin(dialer.handshake(addr, tcp, config, ANY_NODE).await?))
    }

    fn known_roots(&self) -> Result<Option<Bundle>, TlsFault> {
        let Trust::Credentials { current, .. } = &self.trust else { return Ok(None) };
        let replica = self.local_replica.as_ref().and_then(LocalReplica::get);
        roots_known_by(&current.borrow(), replica.as_ref().map(|replica| &replica.tables))
    }

    async fn connect(&self, addr: &str) -> Result<TcpStream, DialError> {
        let limit = self.timeouts.connect;
        let resolving = timeout(limit, tokio::net::lookup_host(addr)).await;
        let found: Vec<SocketAddr> = resolving
            .map_err(|_| late(addr, Stage::Resolve, limit))?
            .map_err(|source| DialError::Resolve { addr: addr.to_owned(), source })?
            .collect();
        let connected = timeout(limit, TcpStream::connect(found.as_slice())).await;
        let tcp =
            connected.map_err(|_| late(addr, Stage::Connect, limit))?.map_err(|source| connect_error(addr, source))?;
        // Small frames must be sent immediately; otherwise a round trip costs up to 40 ms.
        tcp.set_nodelay(true).map_err(|source| connect_error(addr, source))?;
        Ok(tcp)
    }

    async fn handshake(
        &self,
        addr: &str,
        tcp: TcpStream,
        config: Arc<rustls::ClientConfig>,
        name: &'static str,
    ) -> Result<TlsStream<TcpStream>, DialError> {
        let limit = self.timeouts.tls;
        let name = ServerName::try_from(name).expect("a valid DNS name");
        let connecting = TlsConnector::from(config).connect(name, tcp);
        timeout(limit, connecting).await.map_err(|_| late(addr, Stage::Tls, limit))?.map_err(|source| {
            match ClockFault::of(&source) {
                Some(fault) => DialError::Clock { addr: addr.to_owned(), fault },
                None => DialError::Tls { addr: addr.to_owned(), source },
            }
        })
    }

    async fn greeting(&self, addr: &str, stream: &mut Framed<BoxStream>) -> Result<NodeId, DialError> {
        let limit = self.timeouts.greeting;
        let received = timeout(limit, stream.recv::<Greeting>()).await;
        let greeting = received.map_err(|_| late(addr, Stage::Greeting, limit))?;
        let ended = |source| DialError::Greeting { addr: addr.to_owned(), source };
        match greeting.map_err(ended)?.ok_or_else(|| ended(FrameError::Truncated))? {
            Greeting::Welcome { node } => Ok(node),
            Greeting::Refused(refusal) => Err(DialError::Refused { addr: addr.to_owned(), refusal }),
        }
    }

    async fn greeted(&self, addr: &str, stream: &mut Framed<BoxStream>, node: NodeId) -> Result<(), DialError> {
        let named = self.greeting(addr, stream).await?;
        if named == node {
            return Ok(());
        }
        let why = format!("its certificate names {node}, its greeting {named}");
        let addr = addr.to_owned();
        Err(DialError::WrongPeer { addr, why })
    }
}

/// A connection to a server whose certificate was not verified.
#[derive(Debug)]
pub struct Unverified {
    pub stream: Framed<BoxStream>,
    pub remote: SocketAddr,
    pub local: SocketAddr,
}

/// The server name for any node, in each node's certificate. For managers it is [`muster_pki::MANAGER_NAME`]. The identity is
/// read from the URI SAN in any case: managers' certificates of earlier releases lack that name.
const ANY_NODE: &str = "localhost";

fn peer_identity(
    tls: &TlsStream<TcpStream>,
    known: Option<&Bundle>,
    ours: Option<&CertIdentity>,
    expect: Option<NodeId>,
) -> Result<CertIdentity, String> {
    let presented = tls.get_ref().1.peer_certificates().unwrap_or_default();
    let identity = identity_of(presented, known)?.ok_or("the peer presented no certificate")?;
    let Some((node, _)) = identity.node() else {
        return Err(format!("it is {}, not a node", identity.principal()));
    };
    if let Some(expected) = expect.filter(|e| *e != node) {
        return Err(format!("it is node {node}, not {expected}"));
    }
    if let Some(ours) = ours {
        if identity.cluster != ours.cluster {
            return Err(format!("it belongs to cluster {}", identity.cluster));
        }
        if identity.incarnation < ours.incarnation {
            return Err(format!(
                "it belongs to incarnation {} of the cluster, which is now in {}",
                identity.incarnation, ours.incarnation
            ));
        }
    }
    Ok(identity)
}

fn addresses(addr: &str, tcp: &TcpStream) -> Result<(SocketAddr, SocketAddr), DialError> {
    let both = tcp.peer_addr().and_then(|r| Ok((r, tcp.local_addr()?)));
    both.map_err(|source| connect_error(addr, source))
}

fn connect_error(addr: &str, source: io::Error) -> DialError {
    DialError::Connect { addr: addr.to_owned(), source }
}

fn late(addr: &str, stage: Stage, limit: Duration) -> DialError {
    DialError::Timeout { addr: addr.to_owned(), stage, limit }
}
