//! Messages to the certificate authority.

use super::{Named, Reply};
use crate::model::{
    CertIdentity, ErrorBody, Name, NodeId, Principal, RequestId, Secret, UserKind, WallTime, WorkloadName,
};
use crate::wire::{JoinReply, JoinRequest, SignReply, SignedWorkload, WorkloadRequest};

/// Messages of the certificate authority. It signs for the role granted in its own applied state, whatever was asked. A
/// request that is not answered within its deadline is answered `timed_out`; its record may still be applied.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum CertAuthorityMsg {
    /// A node asks for a certificate for its granted role. Answered once the record of the certificate is applied.
    /// Lost: ask again. Repeated: another certificate with another serial; an older request of the node that is still
    /// pending is refused. Late: signed for the role granted by then, or refused if the node's certificate counts no
    /// more. From an old leader: no certificate, because none is handed out before its record is applied.
    SignNode {
        identity: Box<CertIdentity>,
        observed_addr: String,
        csr_pem: String,
        reply: Reply<Result<SignReply, ErrorBody>>,
    },
    /// A machine joins with a token, or a node re-keys. Answered once node and certificate are applied. Lost: ask
    /// again. Repeated with the same request id, node and key: the same node, one use of the token, another
    /// certificate. Late: refused once the token was revoked, or the node was removed or blocked. From an old leader: no
    /// node is admitted, because its record is not applied; a refusal may rest on its older state.
    Join { observed_addr: String, request: Box<JoinRequest>, reply: Reply<Result<JoinReply, ErrorBody>> },
    /// Signs a certificate for a person or program. Answered once the user's record is applied. Lost: ask again with
    /// the same request id and key. Repeated so: another certificate in place of the first. Repeated under another id:
    /// `New` is refused as `conflict` while the certificate is valid, `Kept` renews again. Late: decided by the user's
    /// record then. From an old leader: no certificate, because none is handed out before the user's record is applied.
    SignUser {
        name: Name,
        rights: UserRights,
        lifetime_ms: Option<u64>,
        csr_pem: String,
        by: Principal,
        request: RequestId,
        reply: Reply<Result<UserCertificate, ErrorBody>>,
    },
    /// A node asks for the certificate or a JWT of a workload that applies to it. Nothing is recorded. Lost: ask again. Repeated:
    /// another one. Late: refused if the entry is gone, or the node's certificate counts no more. From an old leader: withheld,
    /// because a read confirms the state before anything is handed out.
    SignWorkload {
        identity: Box<CertIdentity>,
        request: WorkloadRequest,
        reply: Reply<Result<SignedWorkload, ErrorBody>>,
    },
    /// The nodes that hold a certificate of a workload, until when, as far as this leader signed it. Read: repeat freely. Lost: ask
    /// again. Repeated or late: answered as of then. From an old leader: those of that leader.
    GetHolders { workload: WorkloadName, reply: Reply<Result<Vec<(NodeId, WallTime)>, ErrorBody>> },
}

/// The rights that a user's certificate carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserRights {
    /// Of a new user.
    New { kind: UserKind, namespaces: Vec<String> },
    /// Those in its record: the certificate replaces a valid one.
    Kept,
}

/// A signed user certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserCertificate {
    pub cert_pem: String,
    pub root_pem: String,
    pub serial: String,
    pub not_after: WallTime,
}

/// Certificate, key and root of this process, as it presents itself in TLS.
#[derive(Clone, Debug)]
pub struct NodeCredentials {
    pub cert_pem: String,
    pub key_pem: Secret,
    pub root_pem: String,
    pub identity: CertIdentity,
}
