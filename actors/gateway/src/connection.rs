//! A connection that was accepted, authenticated and admitted.

use std::fmt;
use std::net::SocketAddr;

use muster_messages::frames::BoxStream;
use muster_messages::protocol::Service;
use muster_messages::wire::Refusal;
use muster_messages::{CertIdentity, Principal};

use crate::kill::Kill;
use crate::stream::Killable;

/// What a service receives. For native services the `Welcome` has been written; the following bytes belong to the service.
pub struct Connection {
    /// Ends by itself when `kill` is triggered.
    pub stream: BoxStream,
    pub service: Service,
    /// `None`: no client certificate (join, HTTP).
    pub identity: Option<CertIdentity>,
    pub remote: SocketAddr,
    pub kill: Kill,
    /// Only on [`Service::Http`]: the refusal of the identity, which the service answers every request with. `identity` is
    /// then still set.
    pub refused: Option<Refusal>,
    /// `h2`, `http/1.1`, …; `None` when the client negotiated nothing.
    pub alpn: Option<Vec<u8>>,
    /// Must be kept as long as the connection.
    pub permit: ConnectionPermit,
}

impl Connection {
    /// A connection outside the gateway's limits: an in-memory stream in tests, a local socket.
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
    /// The principal in the peer's certificate.
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

/// A connection's permit in the gateway's table. Dropping it frees the slot, and the gateway can no longer disconnect it.
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
