//! From an address or an accepted connection to a stream whose hello both sides accepted.

use std::sync::Arc;
use std::time::Duration;

use muster_gateway::{BoxStream, Connection, ConnectionPermit, Kill};
use muster_messages::wire::Refusal;
use muster_messages::{CertIdentity, ErrorBody, ErrorCode, NodeId, Replica};
use tokio::sync::watch;

use crate::core::hello::Own;
use crate::dial::{Dial, DialFailure};
use crate::handshake::{Agreed, HELLO_DEADLINE, HelloError, agree, exchange};
use crate::register::Register;

/// For a dial, its greeting and its hello together; each stage has its own shorter limit.
const DIAL_DEADLINE: Duration = Duration::from_secs(20);

pub struct Greeted {
    pub who: GreetedPeer,
    /// The certificate that was presented, so that a refusal of it is not mistaken for one of its successor.
    pub serial: String,
    pub result: Result<Opened, NotOpened>,
}

/// The peer, by its certificate.
#[derive(Clone, Copy)]
pub enum GreetedPeer {
    Dialed(NodeId),
    Accepted(NodeId),
}

/// A hello that both sides accepted.
pub struct Opened {
    pub own: Own,
    pub agreed: Agreed,
    pub stream: BoxStream,
    pub identity: CertIdentity,
    pub remote: String,
    /// For an accepted connection.
    pub kill: Option<Kill>,
    pub permit: Option<ConnectionPermit>,
}

#[derive(Debug, thiserror::Error)]
pub enum NotOpened {
    #[error(transparent)]
    Dial(#[from] DialFailure),
    #[error(transparent)]
    Hello(#[from] HelloError),
    #[error("opening the session timed out")]
    TimedOut,
    #[error("the peer broke the protocol a moment ago; its next session must wait")]
    Paused,
}

impl NotOpened {
    pub fn refused_at_once(&self) -> bool {
        matches!(self, NotOpened::Dial(d) if d.refused_at_once)
    }
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            NotOpened::Dial(d) => d.refusal.as_ref(),
            NotOpened::Hello(HelloError::RefusedByPeer(refusal)) => Some(refusal),
            _ => None,
        }
    }
    /// The error for the requester of a probe of `addr`.
    pub fn body(&self, addr: &str) -> ErrorBody {
        let code = self.refusal().map_or(ErrorCode::Unreachable, |r| r.reason.code());
        ErrorBody::new(code, format!("{addr}: {self}"))
    }
}

/// Opens streams and exchanges hellos.
pub struct Greeter {
    /// This side's hello; exchanges wait for it.
    pub own_hello: watch::Receiver<Option<Own>>,
    pub replica: watch::Receiver<Arc<Replica>>,
    pub dialer: Arc<dyn Dial>,
    pub register: Register,
}

impl Greeter {
    /// Dials `addr`, where `node` (if given) must answer, and exchanges hellos.
    pub async fn dial(self, addr: String, node: Option<NodeId>, probe: bool) -> Result<Opened, NotOpened> {
        let opening = async {
            let Ok(own) = current(self.own_hello).await else {
                // This side cannot open a session yet, but what it learns of a refusal or a closed port is worth knowing.
                self.dialer.dial(&addr, node, None).await?;
                return Err(HelloError::Starting.into());
            };
            let hello = self.register.hello(own, probe);
            let dialed = self.dialer.dial(&addr, node, Some(&hello)).await?;
            let replica = Arc::clone(&self.replica.borrow());
            let (identity, remote) = (dialed.identity, dialed.remote);
            let with = (&identity, remote.clone());
            let (agreed, stream) = agree(dialed.stream, (own, &hello), with, &replica, &self.register).await?;
            Ok(Opened { own, agreed, stream, identity, remote, kill: None, permit: None })
        };
        tokio::time::timeout(DIAL_DEADLINE, opening).await.unwrap_or(Err(NotOpened::TimedOut))
    }

    /// A leader that has moved dials itself back as it does any other node. No node has a session with itself: an answer with
    /// its certificate is enough.
    pub async fn finds_itself(self, addr: &str, own: NodeId) -> Result<(), NotOpened> {
        self.dialer.dial(addr, Some(own), None).await?;
        Ok(())
    }

    /// Exchanges hellos on a connection that the gateway admitted.
    pub async fn accept(self, connection: Connection) -> Result<Opened, NotOpened> {
        let Connection { stream, identity, remote, kill, permit, .. } = connection;
        let identity = identity.ok_or(HelloError::Closed)?;
        let own = current(self.own_hello).await?;
        let replica = Arc::clone(&self.replica.borrow());
        let remote = remote.to_string();
        let with = (&identity, remote.clone());
        let hello = self.register.hello(own, false);
        let (agreed, stream) = exchange(stream, (own, &hello), with, &replica, &self.register).await?;
        let (kill, permit) = (Some(kill), Some(permit));
        Ok(Opened { own, agreed, stream, identity, remote, kill, permit })
    }
}

/// This side's hello, once its RPC endpoint is open and its member id known.
pub(crate) async fn current(mut own_hello: watch::Receiver<Option<Own>>) -> Result<Own, HelloError> {
    let opening = own_hello.wait_for(Option::is_some);
    let own = tokio::time::timeout(HELLO_DEADLINE, opening).await.ok().and_then(Result::ok);
    own.and_then(|own| *own).ok_or(HelloError::Starting)
}
