//! Inputs and effects of the core.

use std::collections::BTreeSet;

pub use muster_messages::AskId;
use muster_messages::protocol::{ProposeError, RootsChange, RootsChanged};
use muster_messages::{
    AuthorityChange, Command, ErrorBody, ErrorCode, Moment, NodeId, Principal, RaftId, RequestId, Revision, RootId,
    Tables,
};
use muster_pki::{BadIssued, SignError};

/// A signature or a proposal in progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepId(pub u64);

/// An operator's step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorStep {
    pub change: RootsChange,
    pub by: Principal,
    pub request: RequestId,
}

/// Inputs of the core.
#[derive(Debug)]
pub enum Input {
    /// A newer applied state. An older one is ignored.
    Replica(Box<Tables>),
    /// A node has the roots of this generation on disk.
    Trusted(AskId, NodeId, Revision),
    Asked(AskId, OperatorStep),
    Signed(StepId, Result<AuthorityChange, NotSigned>),
    /// What the command answered that was asked for this root's certificate.
    Above(RootId, UpstreamEnd),
    /// A proposal ended; the revision at which it was applied.
    Proposed(StepId, Result<Revision, ProposeError>),
    /// The voters that answered. `None`: the Raft member did not ask them.
    ReachabilityChecked(StepId, Option<BTreeSet<RaftId>>),
    Woke,
}

/// Why there is nothing to propose.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSigned {
    #[error(transparent)]
    Sign(#[from] SignError),
    /// UP-2.
    #[error(transparent)]
    Issued(#[from] BadIssued),
    #[error("no issuing certificate is requested: `muster ca rotate --csr` prints a request for the authority above")]
    NotRequested,
}

impl From<NotSigned> for ErrorBody {
    fn from(why: NotSigned) -> Self {
        let code = match &why {
            NotSigned::Issued(_) => ErrorCode::Invalid,
            NotSigned::Sign(_) | NotSigned::NotRequested => ErrorCode::Conflict,
        };
        ErrorBody::new(code, why.to_string())
    }
}

/// What to sign, by the roots of the newest applied state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signing {
    /// A new root, with vouchers of every root whose key is there.
    Root { automatic: bool, compromised: bool },
    /// A key, and the request for its issuing certificate.
    Request { compromised: bool },
    /// Vouchers as for a new root, for the one in this answer of the authority above, if it is as requested.
    Issued { automatic: bool, answer: String },
    /// Certificates that lead from this root to every other one whose key is there.
    Crosses(RootId),
}

/// How a question to the authority above ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamEnd {
    /// What the command wrote. It may be anything (UP-2).
    Answered(String),
    /// Not now: exit status 75.
    Later(String),
    /// The command failed, took too long, or wrote too much.
    Failed(String),
}

/// A completed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Trusted,
    Changed(RootsChanged),
}

/// Effects of the core.
#[derive(Debug)]
pub enum Effect {
    /// Sign and report as `Signed`.
    Sign {
        step: StepId,
        what: Signing,
    },
    /// Propose and report as `Proposed`.
    Propose {
        step: StepId,
        command: Command,
    },
    /// Have the Raft member ask the voters, until so many have answered, and report as `ReachabilityChecked`.
    CheckReachable {
        step: StepId,
        members: BTreeSet<RaftId>,
        needed: usize,
    },
    /// Pass the replica in once it has applied this revision.
    CatchUp(Revision),
    Answer(AskId, Result<Answer, ErrorBody>),
    /// Run the command with this request, and report as `Above`. Never while it runs already.
    AskAbove {
        root: RootId,
        csr_pem: String,
    },
    /// The authority above has not certified the root. For the log; `later`: it asked to wait.
    NotCertified {
        root: RootId,
        why: String,
        later: bool,
    },
    /// A step of a rotation that the leader took by itself was refused, or cannot be signed. For the log.
    StepFailed(String),
    WakeAt(Moment),
}
