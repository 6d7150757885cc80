//! From an address or an accepted connection to a stream whose hello both sides accepted.

use std::sync::Arc;
use std::time::Duration;

use muster_gateway::{BoxStream, Connection, ConnectionPermit, Kill};
use muster_messages::wire::Refusal;
use muster_messages::{CertIdentity, ErrorBody, ErrorCode, NodeId, Replica};
use tokio::sync::watch;

use crate::core::hello::Own;
use crate::dial::{Dial, DialFailure};
use crate::handshake::{Agreed, HELLO_DEADLINE, HelloError, exchange};
use crate::register::Register;

/// A dial, its greeting and its hello; each stage has a shorter limit of its own.
const DIAL_DEADLINE: Duration = Duration::from_secs(20);

/// How a hello ended, on either side.
pub struct Greeted {
    pub who: Who,
    /// The certificate that was shown, so that a refusal of it is not taken for one of its successor.
    pub serial: String,
    pub result: Result<Opened, NotOpened>,
}

/// With whom, by its certificate.
#[derive(Clone, Copy)]
pub enum Who {
    Dialed(NodeId),
    Accepted(NodeId),
}

/// Both sides accepted.
pub struct Opened {
    /// What we said of ourselves.
    pub own: Own,
    pub agreed: Agreed,
    pub stream: BoxStream,
    pub identity: CertIdentity,
    pub remote: String,
    /// Of an accepted connection.
    pub kill: Option<Kill>,
    pub permit: Option<ConnectionPermit>,
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum NotOpened {
    #[error(transparent)]
    Dial(#[from] DialFailure),
    #[error(transparent)]
    Hello(#[from] HelloError),
    #[error("no session in time")]
    TimedOut,
    #[error("it broke the protocol a moment ago")]
    Paused,
}

impl NotOpened {
    pub fn refused_at_once(&self) -> bool {
        matches!(self, NotOpened::Dial(d) if d.refused_at_once)
    }
    /// What the other side said, if it refused.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            NotOpened::Dial(d) => d.refusal.as_ref(),
            NotOpened::Hello(HelloError::RefusedByPeer(refusal)) => Some(refusal),
            _ => None,
        }
    }
    /// As whoever asked for a probe of `addr` reads it.
    pub fn body(&self, addr: &str) -> ErrorBody {
        let code = self.refusal().map_or(ErrorCode::Unreachable, |r| r.reason.code());
        ErrorBody::new(code, format!("{addr}: {self}"))
    }
}

/// What a hello needs.
pub struct Greeter {
    /// What this side says of itself; hellos wait for it.
    pub said: watch::Receiver<Option<Own>>,
    pub replica: watch::Receiver<Arc<Replica>>,
    pub dialer: Arc<dyn Dial>,
    pub register: Register,
}

impl Greeter {
    /// Dials a node, or whoever is there, and exchanges hellos.
    pub async fn dial(self, addr: String, node: Option<NodeId>, probe: bool) -> Result<Opened, NotOpened> {
        let opening = async {
            let dialed = self.dialer.dial(&addr, node).await?;
            let own = current(self.said).await?;
            let replica = Arc::clone(&self.replica.borrow());
            let (identity, remote) = (dialed.identity, dialed.remote);
            let with = (&identity, remote.clone());
            let (agreed, stream) = exchange(dialed.stream, own, with, &replica, probe, &self.register).await?;
            Ok(Opened { own, agreed, stream, identity, remote, kill: None, permit: None })
        };
        tokio::time::timeout(DIAL_DEADLINE, opening).await.unwrap_or(Err(NotOpened::TimedOut))
    }

    /// Exchanges hellos on a connection that the gateway has admitted.
    pub async fn accept(self, connection: Connection) -> Result<Opened, NotOpened> {
        let Connection { stream, identity, remote, kill, permit, .. } = connection;
        let identity = identity.ok_or(HelloError::Closed)?;
        let own = current(self.said).await?;
        let replica = Arc::clone(&self.replica.borrow());
        let remote = remote.to_string();
        let with = (&identity, remote.clone());
        let (agreed, stream) = exchange(stream, own, with, &replica, false, &self.register).await?;
        let (kill, permit) = (Some(kill), Some(permit));
        Ok(Opened { own, agreed, stream, identity, remote, kill, permit })
    }
}

/// What this side says of itself, once its door is open and its seat known.
pub(crate) async fn current(mut said: watch::Receiver<Option<Own>>) -> Result<Own, HelloError> {
    let opening = said.wait_for(Option::is_some);
    let own = tokio::time::timeout(HELLO_DEADLINE, opening).await.ok().and_then(Result::ok);
    own.and_then(|own| *own).ok_or(HelloError::Starting)
}
