//! The dialer that the mesh needs: the gateway's in production, plain streams with made-up identities in tests.

use std::future::Future;
use std::pin::Pin;

use muster_gateway::{BoxStream, DialError, Dialer};
use muster_messages::protocol::Service;
use muster_messages::wire::{MeshHello, Refusal};
use muster_messages::{CertIdentity, NodeId};

/// A stream to a node that welcomed this one, and the certificate that it presented.
pub struct DialedPeer {
    pub stream: BoxStream,
    pub identity: CertIdentity,
    pub remote: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct DialFailure {
    pub text: String,
    /// The address refused the connection immediately: no process listens there.
    pub refused_at_once: bool,
    /// The refusal that the other side answered with.
    pub refusal: Option<Refusal>,
}

pub type Dialing<'a> = Pin<Box<dyn Future<Output = Result<DialedPeer, DialFailure>> + Send + 'a>>;

pub trait Dial: Send + Sync + 'static {
    /// Connects to the mesh service at `addr`, which must be node `expect` if that is given, and sends `hello` to it without waiting
    /// for its greeting.
    fn dial<'a>(&'a self, addr: &'a str, expect: Option<NodeId>, hello: Option<&'a MeshHello>) -> Dialing<'a>;
}

impl Dial for Dialer {
    fn dial<'a>(&'a self, addr: &'a str, expect: Option<NodeId>, hello: Option<&'a MeshHello>) -> Dialing<'a> {
        Box::pin(async move {
            let dialed = Dialer::dial_with(self, addr, Service::Mesh, expect, hello).await?;
            Ok(DialedPeer {
                // Reading stops exactly at the end of the greeting: no byte of the peer's hello is lost.
                stream: dialed.stream.into_inner(),
                identity: dialed.identity,
                remote: dialed.remote.to_string(),
            })
        })
    }
}

impl From<DialError> for DialFailure {
    fn from(why: DialError) -> Self {
        let text = why.full_text();
        Self { text, refused_at_once: why.is_refused(), refusal: why.refusal().cloned() }
    }
}
