//! The mesh's messages: from its collaborators, its own tasks and timers.

use muster_gateway::Connection;
use muster_messages::NodeId;
use muster_messages::protocol::{MeshMsg, Named};
use muster_messages::wire::{IdentityBinding, StartId};

use crate::core::links::SessionNumber;
use crate::endpoint::EndpointEvent;
use crate::greeting::{Greeted, NotOpened, Opened};
use crate::peer::PeerStarted;
use crate::session_server::SessionEvent;

#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    #[strum(transparent)]
    Protocol(MeshMsg),
    /// The members changed: read the slot.
    Members,
    Replica,
    Connection(Box<Connection>),
    Endpoint(EndpointEvent),
    PeerStarted(NodeId),
    Greeted(Box<Greeted>),
    /// This node answered a probe.
    Probed {
        node: NodeId,
        opened: Box<Opened>,
    },
    /// The query to a hinted address ended.
    Asked {
        addr: String,
        /// See [`Greeted::serial`].
        serial: String,
        result: Box<Result<NodeId, NotOpened>>,
    },
    Session(SessionEvent),
    /// Whether this process, which another manager has replaced by `because`, is still alive.
    ProcessChecked {
        binding: Box<IdentityBinding>,
        because: StartId,
        alive: bool,
    },
    /// The ready deadline of a session.
    ReadyBy(SessionNumber),
    /// See `non_members`.
    CheckNonMembers,
    ServerEnded,
    Woke,
}

impl From<MeshMsg> for Msg {
    fn from(msg: MeshMsg) -> Self {
        Msg::Protocol(msg)
    }
}
impl From<EndpointEvent> for Msg {
    fn from(news: EndpointEvent) -> Self {
        Msg::Endpoint(news)
    }
}
impl From<PeerStarted> for Msg {
    fn from(PeerStarted(node): PeerStarted) -> Self {
        Msg::PeerStarted(node)
    }
}
