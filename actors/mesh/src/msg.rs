//! The messages of the mesh and its peer actors: from their collaborators, their own tasks and timers.

use std::sync::Arc;
use std::time::Duration;

use muster_gateway::Connection;
use muster_kernel::Arrived;
use muster_messages::protocol::{MeshMsg, Named, Reply};
use muster_messages::wire::{IdentityBinding, PeerCall, RaftPacket, SnapshotHead, StartId};
use muster_messages::{ErrorBody, NodeId};

use crate::core::call_end::End;
use crate::core::links::SessionNumber;
use crate::endpoint::EndpointEvent;
use crate::greeting::{Greeted, NotOpened, Opened};
use crate::peer_call::{CallContent, Link};
use crate::session_server::SessionEvent;

#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    #[strum(transparent)]
    Protocol(MeshMsg),
    /// The members changed: read the slot.
    Members,
    Replica,
    Connection(Box<Arrived<Connection>>),
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

/// A peer actor has just started and has no link yet.
pub struct PeerStarted(pub NodeId);

#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum PeerMsg {
    /// Raft messages. Without a session: dropped, `Unreachable`.
    Send(Vec<RaftPacket>),
    /// A snapshot. One `SnapshotSent` follows, unless it is stopped. It replaces another one in transfer; the same one continues
    /// from the pieces that have arrived.
    Snapshot {
        head: SnapshotHead,
        data: Arc<Vec<u8>>,
        packet: Box<RaftPacket>,
    },
    /// The snapshot at this index is not needed any more. Repeated or late: no effect.
    StopSnapshot {
        index: u64,
    },
    Call {
        deadline: Duration,
        call: Box<PeerCall>,
        reply: Reply<Result<Vec<u8>, ErrorBody>>,
    },
    /// All identity bindings of this manager. Lost: the session ends.
    IdentityBindings(Vec<IdentityBinding>),
    Link(Option<Box<Link>>),
    /// A call that went through session `number` ended.
    Done {
        number: SessionNumber,
        what: CallContent,
        end: End,
    },
    /// A waiting call may be overdue.
    Overdue,
}
