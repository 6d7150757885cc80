//! The messages of the sessions' host: from its collaborators, its sessions, its own tasks and its timer.

use muster_gateway::Connection;
use muster_kernel::Arrived;
use muster_messages::NodeId;
use muster_messages::protocol::{Named, SessionsMsg};
use muster_messages::wire::SessionFact;

use crate::core::session::ConnId;

/// Messages of a session are lost if the mailbox is full: then the session fails. All are lost if the host restarts: its sessions end
/// with it, and the agents open new ones.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    #[strum(transparent)]
    Protocol(SessionsMsg),
    /// The gateway accepted an agent's connection. Lost: the connection is closed, and the agent dials again. Never repeated. Late:
    /// admitted by the rate of that time; if the agent has given up, the connection ends in its session.
    Arrived(Box<Arrived<Connection>>),
    /// The replica changed: read it. Lost: the next incarnation reads it. Repeated or late: the newest is found.
    Replica,
    /// What a session knows of its node now; without a `fact`: nothing. Lost: the session's successor reports once the agent is
    /// connected again or the node is down. Repeated: the leader is sent nothing new. Late: those of a session arrive in order, so
    /// the newest counts.
    Reported { node: NodeId, fact: Option<Box<SessionFact>>, connected: bool },
    /// A session that has seen all connections up to this one has nothing to remember. Lost: the session or its successor sends it
    /// again. Repeated: no effect. Late, after a newer connection: ignored by `seen`.
    Forget { node: NodeId, seen: ConnId },
    /// The leader answered a digest, or did not in time. Never repeated. Late, after a change of leader: ignored by `sequence`.
    DigestAnswered { sequence: u64, ok: bool },
    /// The time that the core named has come. Repeated or early: no effect. Late: what was due is done then.
    Wake,
}

impl From<SessionsMsg> for Msg {
    fn from(msg: SessionsMsg) -> Self {
        Msg::Protocol(msg)
    }
}
