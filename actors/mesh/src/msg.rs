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

/// A message is lost if the mailbox is full or the actor restarts.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum PeerMsg {
    /// Raft messages. Without a session: dropped, `Unreachable`. Lost: the same, unless the actor had taken them; Raft
    /// sends again. Repeated or late: the other side's Raft ignores them.
    Send(Vec<RaftPacket>),
    /// A snapshot. One `SnapshotSent` follows, unless it is stopped. It replaces another one in transfer. Lost:
    /// `SnapshotSent` says so. Repeated: the transfer continues from the pieces that have arrived. Late: a newer one
    /// follows and replaces it.
    Snapshot { head: SnapshotHead, data: Arc<Vec<u8>>, packet: Box<RaftPacket> },
    /// The snapshot at this index is not needed any more. Lost: it is sent to its end. Repeated or late: no effect.
    StopSnapshot { index: u64 },
    /// A call to a service of the peer. Without a session: `unreachable`. Lost: it was not sent, and the sender knows,
    /// or the reply port closes, and it may have been carried out. Repeated: another call; each is safe to repeat.
    /// Late: its deadline counts from here, and the caller has its own.
    Call { deadline: Duration, call: Box<PeerCall>, reply: Reply<Result<Vec<u8>, ErrorBody>> },
    /// All identity bindings of this manager. Lost on its way to the peer: the session ends. Lost before, or without a
    /// session: the next link brings them. Repeated: no effect. Late: a newer list follows.
    IdentityBindings(Vec<IdentityBinding>),
    /// The current session; `None`: there is none. Lost because the actor is starting: it asks with [`PeerStarted`].
    /// Repeated: open calls still count. Late: the newest follows.
    Link(Option<Box<Link>>),
    /// A call that went through session `number` ended. Lost only with the actor: its successor has no open calls.
    /// Never repeated. Late, after that session: by its number it counts for no other.
    Done { number: SessionNumber, what: CallContent, end: End },
    /// A waiting call may be overdue. Lost only with the actor and its calls. Repeated: no effect. Late: answered late.
    Overdue,
}
