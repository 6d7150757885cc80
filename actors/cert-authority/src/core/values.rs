//! What the core hears and says.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use muster_messages::protocol::{ProposeError, UserCertificate, UserRights};
use muster_messages::wire::{JoinReply, SignReply};
use muster_messages::{
    CertIdentity, Command, ErrorBody, Moment, Name, NodeId, Principal, RequestId, Revision, Secret, Tables,
};
use muster_pki::{CsrKey, NodeProfile, SignError, Signed, UserProfile};
use sha2::{Digest, Sha256};

use super::Wish;

/// A question whose port the shell keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AskId(pub u64);

/// A signature or a proposal under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepId(pub u64);

/// A node wants a certificate for whatever role it holds.
#[derive(Clone, Debug)]
pub struct NodeWish {
    /// As authenticated by its TLS connection, perhaps on another manager that vouches for it.
    pub identity: CertIdentity,
    pub observed: Option<SocketAddr>,
    pub key: CsrKey,
}

/// A stranger with a token wants to become a node, or a node with a token wants a new key.
#[derive(Clone, Debug)]
pub struct JoinWish {
    pub request: RequestId,
    pub node: NodeId,
    pub secret: Secret,
    pub name: Name,
    /// `host:port`, the host never unspecified if the other side was seen.
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
pub struct UserWish {
    pub name: Name,
    pub rights: UserRights,
    pub lifetime: Option<Duration>,
    pub by: Principal,
    pub request: RequestId,
    pub key: CsrKey,
}

/// What the core hears.
#[derive(Debug)]
pub enum Input {
    /// A newer applied copy. An older one is ignored.
    Copy(Tables),
    Asked(AskId, Wish),
    Signed(StepId, Result<Signed, SignError>),
    /// A proposal ended; the revision it was applied at.
    Proposed(StepId, Result<Revision, ProposeError>),
    /// How many milliseconds the clocks of the managers that answered are ahead of this one.
    Clocks(Vec<i64>),
    Woke,
}

/// What to sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Profile {
    Node(NodeProfile),
    User(UserProfile),
}

/// A request done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Signed(SignReply),
    Joined(JoinReply),
    User(UserCertificate),
}

/// What the core says.
#[derive(Debug)]
pub enum Effect {
    /// Sign and report as `Signed`.
    Sign {
        step: StepId,
        profile: Profile,
        key: CsrKey,
    },
    /// Propose and report as `Proposed`.
    Propose {
        step: StepId,
        command: Command,
    },
    /// Hand in a copy once one has applied this revision.
    CatchUp(Revision),
    Answer(AskId, Result<Answer, ErrorBody>),
    /// Ask the other managers for their time, and report as `Clocks`.
    CompareClocks,
    WakeAt(Moment),
}

/// A request id that only these parts together spell; never 0, which nobody remembers.
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
