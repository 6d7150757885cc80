//! What the certificate authority hears.

use super::{Named, Reply};
use crate::model::{CertIdentity, ErrorBody, Name, Principal, RequestId, Secret, UserKind, WallTime};
use crate::wire::{JoinReply, JoinRequest, SignReply};

/// Messages of the certificate authority. It signs for the granted role in its own applied copy, whatever was asked.
pub enum CertAuthorityMsg {
    /// A node asks for a certificate for its granted role. Answered once the record of the certificate is written.
    /// Lost: ask again. Repeated: another certificate with another serial; the last one recorded counts.
    SignNode {
        identity: Box<CertIdentity>,
        observed_addr: String,
        csr_pem: String,
        reply: Reply<Result<SignReply, ErrorBody>>,
    },
    /// A stranger with a token, or a node that re-keys. Repeated with the same request id: the same node, one use counted.
    Join { observed_addr: String, request: Box<JoinRequest>, reply: Reply<Result<JoinReply, ErrorBody>> },
    /// A certificate for a person or program.
    SignUser {
        name: Name,
        rights: UserRights,
        lifetime_ms: Option<u64>,
        csr_pem: String,
        by: Principal,
        request: RequestId,
        reply: Reply<Result<UserCertificate, ErrorBody>>,
    },
}

/// What a user's certificate is to stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserRights {
    /// Of a new user.
    New { kind: UserKind, namespaces: Vec<String> },
    /// As its record has them: the certificate takes the place of one that is valid.
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

impl Named for CertAuthorityMsg {
    fn name(&self) -> &'static str {
        match self {
            Self::SignNode { .. } => "sign_node",
            Self::Join { .. } => "join",
            Self::SignUser { .. } => "sign_user",
        }
    }
}

/// Certificate, key and root of this process, as it presents itself in TLS.
#[derive(Clone, Debug)]
pub struct NodeCredentials {
    pub cert_pem: String,
    pub key_pem: Secret,
    pub root_pem: String,
    pub identity: CertIdentity,
}
