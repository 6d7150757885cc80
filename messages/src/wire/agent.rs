//! `muster-agent/1`: length-delimited frames between an agent and the manager that hosts its session.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{SeatReply, SeatRequest, SignReply};
use crate::model::{ErrorBody, Incarnation, Name, NodeId, Revision, Role};

/// From the agent to its host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentFrame {
    /// First. Says who this process is beyond its certificate.
    Hello(AgentHello),
    /// Every 5 s ± 10 %. Lost or late: three missed make the node down.
    Heartbeat { seen: Revision },
    /// A request; answered by a [`HostFrame::Answer`] with the same id. Lost with the connection: ask again on the next one.
    Ask { id: u64, ask: AgentAsk },
    /// The answer to a [`HostFrame::Ask`]: JSON text or an error.
    Answer { id: u64, result: Result<String, ErrorBody> },
    /// The agent is leaving on purpose (shutdown, or a new certificate).
    Bye { reason: String },
}

/// The version of everything in this file.
pub const AGENT_PROTOCOL: u16 = 1;

/// The reason of a [`AgentFrame::Bye`] whose sender stops: its node is down at once.
pub const BYE_SHUTDOWN: &str = "shutdown";
/// The reason of a [`AgentFrame::Bye`] whose sender comes back with a new certificate.
pub const BYE_NEW_CERTIFICATE: &str = "new certificate";

/// What the agent says of its process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentHello {
    pub protocol: u16,
    /// Random per process: tells two processes with one identity apart.
    pub instance: u64,
    pub name: Name,
    pub advertise: String,
    pub release: String,
    pub labels: BTreeMap<String, String>,
}

/// What an agent may ask its host. Each is safe to repeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentAsk {
    /// A certificate for the granted role. Answered with [`AgentAnswer::Signed`].
    Sign { csr_pem: String },
    /// A Raft seat. Answered with [`AgentAnswer::Seat`].
    Seat(SeatRequest),
    /// No seat, because the manager half does not run: this is why. Answered with [`AgentAnswer::Seat`]. A host that is too
    /// old to know it ends the session of a node that has trouble, and of no other.
    Lacking { request: SeatRequest, lacks: String },
}

/// Answers to [`AgentAsk`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentAnswer {
    Signed(SignReply),
    Seat(SeatReply),
}

/// From the host to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostFrame {
    /// The full view, after the hello and whenever it changes. Lost: the next one carries everything again.
    /// Late: ignored by `revision`.
    View(AgentView),
    Answer {
        id: u64,
        result: Result<AgentAnswer, ErrorBody>,
    },
    /// A question to the agent's process; answered by [`AgentFrame::Answer`].
    Ask {
        id: u64,
        ask: ActorsAsk,
    },
    /// Go to another manager: this one has no leader, or is shutting down.
    Move {
        reason: String,
    },
    /// The session ends here, and why.
    Ended(super::Refusal),
    /// Answers a heartbeat: the host is there, and its copy has applied this. Lost: the next one.
    Heard {
        revision: Revision,
    },
}

/// Everything an agent needs to know, always whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentView {
    pub revision: Revision,
    pub incarnation: Incarnation,
    pub node: NodeId,
    pub desired_role: Role,
    /// The granted role: what the certificate should say.
    pub role: Role,
    /// What the certificate's `granted` should say.
    pub granted: Revision,
    /// The cluster asks for a renewal.
    pub rotate: bool,
    /// The certificate that the cluster has recorded for this node last. `rotate` is about this one.
    pub serial: Option<String>,
    /// `host:port` of the managers; an empty list is ignored.
    pub managers: Vec<String>,
    pub root_pem: String,
}

/// Reading or poking one process' actor tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ActorsAsk {
    Tree,
    Inspect { path: String },
    Restart { path: String },
    Crash { path: String, how: crate::model::CrashHow },
}
