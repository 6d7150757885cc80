//! Inputs and effects of the core.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

pub use muster_messages::AskId;
use muster_messages::protocol::{ProposeError, UserCertificate, UserRights};
use muster_messages::wire::{JoinReply, SignReply, SignedWorkload};
use muster_messages::{
    CertIdentity, Command, ErrorBody, Moment, Name, NodeId, Principal, RequestId, Revision, RootId, Secret, Tables,
    WorkloadName,
};
use muster_pki::{
    CsrKey, JwtProfile, NodeProfile, PublicKey, SignError, Signed, SignedJwt, UserProfile, WorkloadProfile,
};
use sha2::{Digest, Sha256};

use super::{CertificateRequest, ClockNews};

/// A signature or a proposal in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepId(pub u64);

/// A node requests a certificate for its granted role.
#[derive(Clone, Debug)]
pub struct NodeRequest {
    /// As authenticated by its TLS connection, perhaps on another manager that vouches for it.
    pub identity: CertIdentity,
    pub observed: Option<SocketAddr>,
    pub key: CsrKey,
}

/// An unauthenticated client with a token wants to become a node, or a node with a token wants a new key.
#[derive(Clone, Debug)]
pub struct VerifiedJoin {
    pub request: RequestId,
    pub node: NodeId,
    pub secret: Secret,
    pub name: Name,
    /// `host:port`; the host is never unspecified if the other side's address was observed.
    pub addr: String,
    pub release: String,
    pub labels: BTreeMap<String, String>,
    pub observed: Option<SocketAddr>,
    pub key: CsrKey,
    /// It has proved that it holds the key of this certificate of `node`, expired or not.
    pub rekey: Option<Box<CertIdentity>>,
}

/// A certificate for a person or a program.
#[derive(Clone, Debug)]
pub struct UserRequest {
    pub name: Name,
    pub rights: UserRights,
    pub lifetime: Option<Duration>,
    pub by: Principal,
    pub request: RequestId,
    pub key: CsrKey,
}

/// A node requests something for a workload that applies to it.
#[derive(Clone, Debug)]
pub struct WorkloadRequest {
    /// As in [`NodeRequest`].
    pub identity: CertIdentity,
    pub workload: WorkloadName,
    pub wanted: Wanted,
}

/// What a workload is to have.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// A certificate for this key.
    Certificate(PublicKey),
    /// A JWT for this audience.
    Jwt(Vec<String>),
}

impl Wanted {
    pub(super) fn is_jwt(&self) -> bool {
        matches!(self, Wanted::Jwt(_))
    }
}

/// What to sign for a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadWork {
    Certificate(WorkloadProfile, PublicKey),
    Jwt(JwtProfile),
}

/// What was signed for a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadSigned {
    Certificate(Signed),
    Jwt(SignedJwt),
}

impl WorkloadSigned {
    pub(super) fn issuer(&self) -> RootId {
        match self {
            WorkloadSigned::Certificate(signed) => signed.issuer,
            WorkloadSigned::Jwt(signed) => signed.issuer,
        }
    }
}

/// Inputs of the core.
#[derive(Debug)]
pub enum Input {
    /// A newer applied state. An older one is ignored.
    Replica(Tables),
    Asked(AskId, CertificateRequest),
    Signed(StepId, Result<Signed, SignError>),
    SignedWorkload(StepId, Result<WorkloadSigned, SignError>),
    /// A proposal ended; the revision at which it was applied.
    Proposed(StepId, Result<Revision, ProposeError>),
    /// A linearizable read ended: an applied state that is not older than the read.
    Confirmed(StepId, Result<Box<Tables>, ErrorBody>),
    /// By how many milliseconds the clocks of the answering managers are ahead of this one.
    Clocks(Vec<i64>),
    Woke,
}

/// What to sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Profile {
    Node(NodeProfile),
    User(UserProfile),
}

/// A completed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Signed(SignReply),
    Joined(JoinReply),
    User(UserCertificate),
    Workload(SignedWorkload),
}

/// Effects of the core.
#[derive(Debug)]
pub enum Effect {
    /// Sign and report as `Signed`.
    Sign {
        step: StepId,
        profile: Profile,
        key: CsrKey,
    },
    /// Sign and report as `SignedWorkload`.
    SignWorkload(StepId, WorkloadWork),
    /// Propose and report as `Proposed`.
    Propose {
        step: StepId,
        command: Command,
    },
    /// Read the applied state linearizably and report as `Confirmed`.
    Confirm(StepId),
    /// Pass the replica in once it has applied this revision.
    CatchUp(Revision),
    Answer(AskId, Result<Answer, ErrorBody>),
    /// Ask the other managers for their time, and report as `Clocks`.
    CompareClocks,
    ClockNews(ClockNews),
    WakeAt(Moment),
}

/// A request id that only these parts together produce; never 0, whose outcomes are not remembered.
pub(super) fn request_id(parts: &[&[u8]]) -> RequestId {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let digest: [u8; 32] = hash.finalize().into();
    let (first, _) = digest.split_first_chunk().expect("32 bytes hold 16");
    RequestId(u128::from_be_bytes(*first).max(1))
}
