//! The agent's inputs and outputs as values.
//!
//! Owns        the last event that was logged.

pub use muster_messages::AskId;
use muster_messages::wire::{AgentAnswer, AgentAsk, AgentFrame, AgentHello, HostFrame, Refusal, RootsOffer, SignReply};
use muster_messages::{
    CertIdentity, ErrorBody, Incarnation, NodeId, RefusalReason, Revision, Role, WallTime, WorkloadEntry,
};

use super::{Because, Stamp};
use crate::status::{ManagerWanted, NodeTrouble};

/// One connection, from the dial on. Later ones have larger numbers; reports of older ones are
/// ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt(pub u64);

/// The facts about the certificate in force that decisions need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    pub role: Role,
    /// `None` only in the founder's first one, which never counts as applied.
    pub granted: Option<Revision>,
    pub incarnation: Incarnation,
    pub serial: String,
    pub issued_at: WallTime,
    pub not_after: WallTime,
}

impl CertificateFacts {
    /// `None` for a certificate that is not a node's.
    pub fn of(identity: &CertIdentity, issued_at: WallTime) -> Option<Self> {
        let (_, role) = identity.node()?;
        Some(Self {
            role,
            granted: identity.granted,
            incarnation: identity.incarnation,
            serial: identity.serial.clone(),
            issued_at,
            not_after: identity.not_after,
        })
    }
}

/// Why a connection ended or failed to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The other side answered with a reason.
    Refused(Refusal),
    /// Resolve, connect, TLS, a broken connection: the text names stage and cause.
    Broken(String),
}

#[derive(Clone, Debug)]
pub enum Input {
    Woke,
    /// The dial succeeded: this host has welcomed the agent.
    Connected {
        attempt: Attempt,
        host: NodeId,
        /// The cluster's, according to the host's certificate.
        incarnation: Incarnation,
    },
    Received {
        attempt: Attempt,
        frame: Box<HostFrame>,
    },
    Lost {
        attempt: Attempt,
        why: Loss,
    },
    /// The manager runtime has a question for the leader.
    AskLeader {
        ask: AskId,
        question: AgentAsk,
    },
    /// Another manager refused the manager runtime.
    RefusedByPeer {
        refusal: Refusal,
        serial: Option<String>,
    },
    /// The new certificate is on disk and published.
    Installed(CertificateFacts),
    InstallFailed(String),
    /// The roots of this generation are on disk and trusted.
    RootsInstalled(Revision),
    /// An offer of roots was not accepted, or could not be written.
    RootsRefused {
        generation: Revision,
        why: String,
    },
    Stop,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Dial {
        attempt: Attempt,
        addr: String,
    },
    Send {
        attempt: Attempt,
        frame: Box<AgentFrame>,
    },
    /// Ends the connection after earlier frames have been sent.
    HangUp {
        attempt: Attempt,
    },
    /// Make a key and a signing request, and send it under `id`.
    AskForCertificate {
        attempt: Attempt,
        id: u64,
        because: Because,
    },
    /// Verify, write and publish the certificate for the key of request `id`.
    Install {
        id: u64,
        reply: SignReply,
    },
    /// Verify, write and publish the roots, beside the certificate in force.
    InstallRoots(RootsOffer),
    /// Of another kind than the question only if the host mixed them up.
    LeaderAnswered {
        ask: AskId,
        result: Result<AgentAnswer, ErrorBody>,
    },
    /// The cluster's managers changed: keep them.
    KeepManagers(Vec<String>),
    /// Keep on disk that this node is permanently out.
    KeepTrouble(NodeTrouble),
    /// Keep for the next incarnation that a peer called the certificate with this serial demoted.
    KeepDemoted(String),
    PublishWanted(ManagerWanted),
    PublishTrouble(Option<NodeTrouble>),
    PublishSession(Option<SessionStatus>),
    /// The workloads that apply to this node, all of them, and how new they are: for the next incarnation.
    PublishWorkloads {
        entries: Vec<WorkloadEntry>,
        stamp: Stamp,
    },
    /// For the log.
    /// `repeated`: the event before it was the same.
    LogEvent {
        event: LogEvent,
        repeated: bool,
    },
}

/// Decisions worth a line in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogEvent {
    SessionOpened { host: NodeId, addr: String },
    SessionLost { addr: String, why: String },
    DialFailed { addr: String, why: String },
    Refused { addr: String, reason: RefusalReason, message: String },
    SignFailed { why: String },
    CertificateInForce { role: Role, serial: String },
    RootsTrusted { generation: Revision },
    RootsRefused { why: String },
}

/// The last event, so that a repeated one is recognised.
#[derive(Clone, Debug, Default)]
pub(super) struct EventLog(Option<LogEvent>);

impl EventLog {
    pub fn add(&mut self, event: LogEvent, out: &mut Vec<Effect>) {
        let repeated = self.0.as_ref() == Some(&event);
        self.0 = Some(event.clone());
        out.push(Effect::LogEvent { event, repeated });
    }
}

/// The session in force, for the `ready` line and for callers that need a manager's address.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct SessionStatus {
    pub host: NodeId,
    pub addr: String,
    pub since: WallTime,
}

/// The last refusal received, for people.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct RefusalSeen {
    pub from: String,
    pub reason: RefusalReason,
    pub message: String,
    pub at: WallTime,
}

/// The initial state of an agent.
#[derive(Clone, Debug)]
pub struct Start {
    pub certificate: CertificateFacts,
    pub hello: AgentHello,
    pub known: Vec<String>,
    pub seeds: Vec<String>,
    pub seed: u64,
    /// A peer called this certificate demoted before this incarnation began.
    pub demotion_reported: bool,
    /// How new the workloads are that an earlier incarnation has published.
    pub workloads: Stamp,
    /// The final refusal of this node, if any.
    pub ended: Option<NodeTrouble>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_event_before_makes_a_repetition() {
        let failed = |addr: &str| LogEvent::DialFailed { addr: addr.into(), why: "refused".into() };
        let (mut log, mut out) = (EventLog::default(), Vec::new());
        for event in [failed("a:1"), failed("a:1"), failed("b:1"), failed("a:1")] {
            log.add(event, &mut out);
        }
        let repeated: Vec<bool> = out
            .iter()
            .filter_map(|e| if let Effect::LogEvent { repeated, .. } = e { Some(*repeated) } else { None })
            .collect();
        assert_eq!(repeated, [false, true, false, false]);
    }
}
