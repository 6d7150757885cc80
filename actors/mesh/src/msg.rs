//! What the mesh hears: its collaborators, its own tasks and timers.

use muster_gateway::Connection;
use muster_messages::NodeId;
use muster_messages::protocol::{MeshMsg, Named};
use muster_messages::wire::{Claim, StartId};

use crate::core::links::SessionNumber;
use crate::door::DoorNews;
use crate::greeting::{Greeted, NotOpened};
use crate::peer::PeerStarted;
use crate::session_server::SessionEvent;

/// What the mesh hears.
pub enum Msg {
    Protocol(MeshMsg),
    /// The members changed: look into the slot.
    Members,
    /// The replica changed.
    Replica,
    Connection(Box<Connection>),
    Door(DoorNews),
    /// A peer actor is there, for the first time or again.
    PeerStarted(NodeId),
    /// A hello ended.
    Greeted(Box<Greeted>),
    /// A node answered a probe.
    Answered(NodeId),
    /// A hinted address was asked who is there.
    Asked {
        addr: String,
        /// See [`Greeted::serial`].
        serial: String,
        result: Box<Result<NodeId, NotOpened>>,
    },
    Session(SessionEvent),
    /// Whether this process still lives, which another manager has replaced by `because`.
    Lives {
        claim: Box<Claim>,
        because: StartId,
        lives: bool,
    },
    /// It should be ready by now.
    ReadyBy(SessionNumber),
    ServerEnded,
    Woke,
}

impl From<MeshMsg> for Msg {
    fn from(msg: MeshMsg) -> Self {
        Msg::Protocol(msg)
    }
}
impl From<DoorNews> for Msg {
    fn from(news: DoorNews) -> Self {
        Msg::Door(news)
    }
}
impl From<PeerStarted> for Msg {
    fn from(PeerStarted(node): PeerStarted) -> Self {
        Msg::PeerStarted(node)
    }
}
impl Named for Msg {
    fn name(&self) -> &'static str {
        match self {
            Msg::Protocol(msg) => msg.name(),
            Msg::Members => "members",
            Msg::Replica => "replica",
            Msg::Connection(_) => "connection",
            Msg::Door(_) => "door",
            Msg::PeerStarted(_) => "peer_started",
            Msg::Greeted(_) => "greeted",
            Msg::Answered(_) => "answered",
            Msg::Asked { .. } => "asked",
            Msg::Session(SessionEvent::Ready { .. }) => "session_ready",
            Msg::Session(SessionEvent::Ended { .. }) => "session_ended",
            Msg::Lives { .. } => "lives",
            Msg::ReadyBy(_) => "ready_by",
            Msg::ServerEnded => "server_ended",
            Msg::Woke => "woke",
        }
    }
}
