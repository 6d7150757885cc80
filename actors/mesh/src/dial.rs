//! What the mesh needs of a dialer: in use the gateway's, in tests plain streams with made-up identities.

use std::future::Future;
use std::pin::Pin;

use muster_gateway::{BoxStream, DialError, Dialer};
use muster_messages::protocol::Service;
use muster_messages::wire::Refusal;
use muster_messages::{CertIdentity, NodeId};

/// A stream to a node that has welcomed us, and the certificate it showed.
pub struct DialedPeer {
    pub stream: BoxStream,
    pub identity: CertIdentity,
    pub remote: String,
}

/// Why there is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct DialFailure {
    pub text: String,
    /// The address refused the connection at once: no process listens there.
    pub refused_at_once: bool,
    /// The other side answered, and this is why it refuses.
    pub refusal: Option<Refusal>,
}

/// A dial under way.
pub type Dialing<'a> = Pin<Box<dyn Future<Output = Result<DialedPeer, DialFailure>> + Send + 'a>>;

/// Dials managers.
pub trait Dial: Send + Sync + 'static {
    /// Connects to the mesh service at `addr`, which must be `expect` if somebody in particular is wanted.
    fn dial<'a>(&'a self, addr: &'a str, expect: Option<NodeId>) -> Dialing<'a>;
}

impl Dial for Dialer {
    fn dial<'a>(&'a self, addr: &'a str, expect: Option<NodeId>) -> Dialing<'a> {
        Box::pin(async move {
            let dialed = Dialer::dial(self, addr, Service::Mesh, expect).await?;
            Ok(DialedPeer {
                // The greeting was received whole, and frames are read exactly: nothing of the hello is lost.
                stream: dialed.stream.into_inner(),
                identity: dialed.identity,
                remote: dialed.remote.to_string(),
            })
        })
    }
}

impl From<DialError> for DialFailure {
    fn from(why: DialError) -> Self {
        let text = why.in_words();
        Self { text, refused_at_once: why.is_refused(), refusal: why.refusal().cloned() }
    }
}
