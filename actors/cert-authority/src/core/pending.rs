//! A pending certificate request.

use muster_messages::{CertIdentity, Moment, Name, NodeId, Revision, Role, WallTime};
use muster_pki::Signed;

use super::values::{NodeRequest, StepId, UserRequest, VerifiedJoin, Wanted, WorkloadRequest, WorkloadSigned};

/// The request.
#[derive(Clone, Debug)]
pub enum CertificateRequest {
    Node(NodeRequest),
    Join(Box<VerifiedJoin>),
    User(UserRequest),
    Workload(WorkloadRequest),
}

impl CertificateRequest {
    pub(super) fn is_join(&self) -> bool {
        matches!(self, CertificateRequest::Join(_))
    }
    /// The node whose certificate it concerns.
    pub fn node(&self) -> Option<NodeId> {
        match self {
            CertificateRequest::Node(cert_request) => cert_request.identity.node().map(|(node, _)| node),
            CertificateRequest::Join(cert_request) => Some(cert_request.node),
            CertificateRequest::User(_) | CertificateRequest::Workload(_) => None,
        }
    }
    /// The certificate that the node presented, if it has one.
    pub fn presented(&self) -> Option<&CertIdentity> {
        match self {
            CertificateRequest::Node(cert_request) => Some(&cert_request.identity),
            CertificateRequest::Join(cert_request) => cert_request.rekey.as_deref(),
            CertificateRequest::User(_) | CertificateRequest::Workload(_) => None,
        }
    }
    pub(super) fn is_workload(&self) -> bool {
        matches!(self, CertificateRequest::Workload(_))
    }
    /// Whose certificate it is to be, for people.
    pub fn who(&self) -> String {
        match self {
            CertificateRequest::Node(cert_request) => asking(&cert_request.identity),
            CertificateRequest::Join(cert_request) => cert_request.node.to_string(),
            CertificateRequest::User(cert_request) => cert_request.name.to_string(),
            CertificateRequest::Workload(cert_request) => {
                format!("{} on {}", cert_request.workload, asking(&cert_request.identity))
            }
        }
    }
    /// The kind of request, one word.
    pub fn kind(&self) -> &'static str {
        match self {
            CertificateRequest::Node(_) => "renew",
            CertificateRequest::Join(cert_request) if cert_request.rekey.is_some() => "rekey",
            CertificateRequest::Join(_) => "join",
            CertificateRequest::User(_) => "user",
            CertificateRequest::Workload(WorkloadRequest { wanted: Wanted::Certificate(_), .. }) => "workload",
            CertificateRequest::Workload(WorkloadRequest { wanted: Wanted::Jwt(_), .. }) => "jwt",
        }
    }
}

fn asking(identity: &CertIdentity) -> String {
    identity.node().map_or_else(|| "no node".to_owned(), |(node, _)| node.to_string())
}

/// One request.
#[derive(Clone, Debug)]
pub struct Pending {
    pub cert_request: CertificateRequest,
    pub(super) phase: Phase,
    pub since: WallTime,
    pub(super) until: Moment,
    /// Rounds lost to concurrent changes.
    pub(super) tries: u32,
    /// A join whose node is recorded.
    pub(super) admitted: bool,
}

impl Pending {
    /// The phase, in one word.
    pub fn phase(&self) -> &'static str {
        self.phase.word()
    }
}

/// The phase of a request. `seen` is the revision of the replica on which the step was decided.
#[derive(Clone, Debug)]
pub(super) enum Phase {
    /// Waits for a replica that has applied this revision.
    CatchingUp(Revision),
    /// The entry that admits the node is proposed. A new node's name counts as taken from here on.
    Admitting { step: StepId, seen: Revision, name: Option<Name> },
    /// A node's certificate is for a grant; a user's is for none.
    Signing { step: StepId, seen: Revision, grant: Option<(Role, Revision)> },
    /// The certificate exists but was not handed out.
    Recording { step: StepId, seen: Revision, signed: Signed },
    /// A workload's certificate or JWT exists but was not handed out. `seen`: the state on which it was signed may be outdated.
    Confirming { step: StepId, seen: Revision, signed: WorkloadSigned },
}

impl Phase {
    pub(super) fn word(&self) -> &'static str {
        match self {
            Phase::CatchingUp(_) => "catching_up",
            Phase::Admitting { .. } => "admitting",
            Phase::Signing { .. } => "signing",
            Phase::Recording { .. } => "recording",
            Phase::Confirming { .. } => "confirming",
        }
    }
    pub(super) fn awaited_step(&self) -> Option<StepId> {
        match self {
            Phase::CatchingUp(_) => None,
            Phase::Admitting { step, .. }
            | Phase::Signing { step, .. }
            | Phase::Recording { step, .. }
            | Phase::Confirming { step, .. } => Some(*step),
        }
    }
}
