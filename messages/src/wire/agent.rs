//! `muster-agent/1`: length-delimited frames between an agent and the manager that hosts its session.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ManagerReport, MembershipReply, MembershipRequest, SignReply, SignedWorkload, WorkloadRequest};
use crate::model::{ErrorBody, FencingToken, Incarnation, Name, NodeId, OfferedRoot, Revision, Role, WorkloadEntry};

/// From the agent to its host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentFrame {
    /// First. Describes this process beyond its certificate. Lost, or later than 5 s: the host ends the session, and
    /// the agent dials again. Repeated: ends the session as a violation of the protocol.
    Hello(AgentHello),
    /// Every 5 s ± 10 %; any other frame counts as well. Lost or late: three missed make the node down. Repeated: only
    /// answered again.
    Heartbeat { seen: Revision },
    /// A request; answered by a [`HostFrame::Answer`] with the same id. Lost with the connection: ask again on the next
    /// one. Repeated or late: see [`AgentAsk`].
    Ask { id: u64, ask: AgentAsk },
    /// The answer to a [`HostFrame::Ask`]: JSON text or an error. Lost: the question times out at the host. Repeated or
    /// late: ignored, the question with this id is closed.
    Answer { id: u64, result: Result<String, ErrorBody> },
    /// The agent leaves on purpose (shutdown, or a new certificate), and the session ends. Lost: the host notices the
    /// closed connection, and a node that was stopped is down only after its heartbeats were missed. Repeated or late:
    /// ignored.
    Bye { reason: String },
}

/// The version of all types in this file.
pub const AGENT_PROTOCOL: u16 = 1;

/// The reason of a [`AgentFrame::Bye`] whose sender stops: its node is down at once.
pub const BYE_SHUTDOWN: &str = "shutdown";
/// The reason of a [`AgentFrame::Bye`] whose sender returns with a new certificate.
pub const BYE_NEW_CERTIFICATE: &str = "new certificate";

/// The agent's data about its process.
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

/// What an agent may ask its host, which passes it to the leader. Each may be repeated. Late: the leader decides by its
/// own applied state, and the agent ignores an answer to a question that it has given up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentAsk {
    /// A certificate for the granted role. Answered with [`AgentAnswer::Signed`]. Lost, or without an answer for 10 s:
    /// the agent asks again with a new key. Repeated: another certificate; an older request that is pending is refused.
    Sign { csr_pem: String },
    /// A Raft member id. Answered with [`AgentAnswer::Membership`]. Lost: the manager runtime asks again. Repeated: the same
    /// id while the node holds it.
    Membership(MembershipRequest),
    /// Reports whether the manager runtime can run. Answered with [`AgentAnswer::Reported`]. Lost: a failure is reported
    /// again every 5 s. Repeated: replaces the report before.
    ReportManager(ManagerReport),
    /// The node has the roots of this generation on disk. Answered with [`AgentAnswer::Reported`]. Lost: asked again after its
    /// deadline, and on the next session. Repeated: no change.
    TrustRoots { generation: Revision },
    /// A certificate or a JWT for a workload of this node. Answered with [`AgentAnswer::SignedWorkload`]. Lost: asked again. Repeated:
    /// another one, which counts against the limits of the node.
    SignWorkload(WorkloadRequest),
}

/// Answers to [`AgentAsk`]. Lost with the connection: the agent asks again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentAnswer {
    /// Lost: that certificate stays unused. Repeated or late: ignored by its id.
    Signed(SignReply),
    /// Lost: asked again, and answered by the state of that time. Repeated or late: ignored by its id.
    Membership(MembershipReply),
    /// The leader has the report. Lost: reported again. Repeated or late: ignored by its id.
    Reported,
    /// Lost: that certificate or JWT stays unused. Repeated or late: ignored by its id.
    SignedWorkload(SignedWorkload),
}

/// From the host to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostFrame {
    /// The full view, after the hello and whenever it changes. Lost: the next one carries everything again. Repeated:
    /// no further effect. Late: ignored by `incarnation` and `revision`, until all views have been older for a minute.
    View(AgentView),
    /// The answer to an [`AgentFrame::Ask`]. Lost with the connection: ask again. Repeated or late: ignored, the
    /// question with this id is closed.
    Answer { id: u64, result: Result<AgentAnswer, ErrorBody> },
    /// A question to the agent's process; answered by [`AgentFrame::Answer`]. Lost: it times out at the host. Repeated
    /// or late: see [`ActorsAsk`].
    Ask { id: u64, ask: ActorsAsk },
    /// Go to another manager: this one has no leader, or is shutting down. The connection ends. Lost: the agent sees
    /// that and dials again, too. Repeated or late: ignored on a connection that has ended.
    Move { reason: String },
    /// The session ends here, and why. Lost: the agent sees the connection end and dials again; a refusal that still
    /// holds is repeated then. Late: ignored on a connection that has ended.
    Ended(super::Refusal),
    /// Answers a heartbeat: the host is alive, and what it has sent before holds as of this revision. Lost: the next one counts;
    /// three periods without any frame end the session. Repeated or late: one more heartbeat answer; a revision that is not above the
    /// one before says nothing about what was sent.
    HeartbeatAck { revision: Revision },
    /// The cluster's roots, after the first view and whenever they change, once there was a rotation. Acknowledged by
    /// [`AgentAsk::TrustRoots`]. Lost: sent again with the next session. Repeated: acknowledged again if the cluster has
    /// not recorded it. Late: replaced by the next one; only roots for which a trusted one vouches are added.
    Roots(RootsOffer),
    /// The workloads that apply to this node, after the first view and whenever they change, once there was any in the cluster.
    /// Lost: sent again with the next session. Repeated: no further effect. Late: ignored by `incarnation` and `revision`.
    Workloads(WorkloadsPage),
}

/// A part of the workloads of one node, so that no frame is too large. Pages of one revision follow one another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadsPage {
    pub incarnation: Incarnation,
    /// The state as of which these are all.
    pub revision: Revision,
    /// The position of this page, from 0. Page 0: whatever was sent of another list is forgotten. Out of order: so are the pages before,
    /// and the next complete list counts.
    pub page: u32,
    /// With it the list is complete.
    pub last: bool,
    pub entries: Vec<WorkloadEntry>,
}

/// The roots of the cluster as of one generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootsOffer {
    pub generation: Revision,
    /// The cluster has recorded that this node trusts them.
    pub recorded: bool,
    pub roots: Vec<OfferedRoot>,
}

/// Everything an agent needs to know, always complete.
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
    /// The last certificate that the cluster has recorded for this node. `rotate` refers to this one.
    pub serial: Option<String>,
    /// `host:port` of the managers; an empty list is ignored.
    pub managers: Vec<String>,
    pub root_pem: String,
}

/// Reads one process' actor tree or the log of a run, or restarts or crashes one of its actors. Late: applies to the actor of that time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ActorsAsk {
    /// All actors. Read: repeat freely.
    Tree,
    /// One actor with its own view. Read: repeat freely.
    Inspect { path: String },
    /// Accepted: its supervisor is asked to restart it; the answer does not wait for that. Lost: look at the tree
    /// before asking again. Repeated: restarts it again.
    Restart { path: String },
    /// Accepted: it will crash; the answer does not wait for that. Refused unless the daemon allows it. Lost: look at
    /// the tree before asking again. Repeated: crashes it again.
    Crash { path: String, how: crate::model::CrashHow },
    /// A part of the output of a reconciler's run on this node. Sent only to a node that has reported a run. A node that was rolled
    /// back to feature level 4 since cannot decode it, and ends the session. Read: repeat freely.
    RunLog(RunLogAsk),
}

/// One execution of a reconciler's action.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RunKey {
    pub reconciler: String,
    /// The runner's.
    pub term: FencingToken,
    /// Its number in that term, as the runner counts: later ones have greater numbers.
    pub of_term: u64,
}

/// Which part of a run's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunLogAsk {
    pub run: RunKey,
    /// Of the output, in bytes.
    pub offset: u64,
    /// While it is running and nothing follows, how long to wait for more; the node waits 2 s at most.
    pub wait_ms: u64,
}

/// The answer, as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunLogPart {
    /// False: this node has no log of the run. (An error would say that it cannot be asked.)
    pub kept: bool,
    /// Where the part begins, after what is missing.
    pub offset: u64,
    /// Bytes from the requested offset on that are missing.
    pub skipped: u64,
    /// Bytes that are not UTF-8 are replaced.
    pub text: String,
    /// Where the next part begins.
    pub next_offset: u64,
    /// More may follow. Otherwise an empty text is the end.
    pub running: bool,
}
