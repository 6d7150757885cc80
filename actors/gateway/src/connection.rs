//! A connection that was accepted, authenticated and admitted.

use std::fmt;
use std::net::SocketAddr;

use muster_messages::protocol::Service;
use muster_messages::wire::Refusal;
use muster_messages::{CertIdentity, Principal};

use crate::kill::Kill;
use crate::stream::{BoxStream, Killable};

/// What a service receives. For native services the `Welcome` has been written; the next bytes are the service's own.
pub struct Connection {
    /// Ends by itself when `kill` is thrown.
    pub stream: BoxStream,
    pub service: Service,
    /// `None`: no client certificate (join, HTTP).
    pub identity: Option<CertIdentity>,
    pub remote: SocketAddr,
    pub kill: Kill,
    /// Only on [`Service::Http`]: the identity was refused; the service answers every request with it. Then `identity`
    /// still says who that was.
    pub refused: Option<Refusal>,
    /// `h2`, `http/1.1`, …; `None` when the client negotiated nothing.
    pub alpn: Option<Vec<u8>>,
    /// Keep it as long as the connection lives.
    pub permit: ConnectionPermit,
}

impl Connection {
    /// A connection that no gateway counts: an in-memory stream in tests, a local socket.
    pub fn detached(stream: BoxStream, service: Service, identity: Option<CertIdentity>, remote: SocketAddr) -> Self {
        let kill = Kill::new();
        Self {
            stream: Box::pin(Killable::new(stream, &kill)),
            service,
            identity,
            remote,
            kill,
            refused: None,
            alpn: None,
            permit: ConnectionPermit::uncounted(),
        }
    }
    /// Whoever is on the other side, by certificate.
    pub fn principal(&self) -> Principal {
        self.identity.as_ref().map_or(Principal::Anonymous, CertIdentity::principal)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("service", &self.service)
            .field("remote", &self.remote)
            .field("principal", &self.principal())
            .finish_non_exhaustive()
    }
}

/// The place of one connection among the gateway's. Dropped: the slot is free and nobody can cut it any more.
pub struct ConnectionPermit {
    _held: Option<Box<dyn Send + Sync>>,
}

impl ConnectionPermit {
    /// A permit that holds no slot.
    pub fn uncounted() -> Self {
        Self { _held: None }
    }
    pub(crate) fn holding(held: impl Send + Sync + 'static) -> Self {
        Self { _held: Some(Box::new(held)) }
    }
}

impl fmt::Debug for ConnectionPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnectionPermit")
    }
}
