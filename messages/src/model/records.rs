//! The replicated records other than nodes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ClusterId, Incarnation, Name, NodeId, Principal, RequestId, Revision, Role, Secret, WallTime};

/// The newest encoding of commands and snapshots that this build reads and writes.
pub const FEATURE_LEVEL: u32 = 5;
/// Reconcilers exist from this level on.
pub const RECONCILERS_LEVEL: u32 = 2;
/// From this level on the state records the origin of changes: which certificates a node was issued, whose request had which
/// outcome, which labels a node reported, what a bearer token may do.
pub const IDENTITY_LEVEL: u32 = 3;
/// From this level on the state remembers the failures of reconcilers' runs and the gates that operators deleted, and the log judges a
/// finalization by the members that serve.
pub const RUNS_LEVEL: u32 = 4;
/// From this level on definitions have options and chains, and the state records steps of chains and runs.
pub const DEFINITIONS_LEVEL: u32 = 5;
/// From this level on a number of managers can be declared, and nodes can be drained.
pub const AUTOPILOT_LEVEL: u32 = DEFINITIONS_LEVEL;

/// The incarnation of a cluster that was just founded.
pub const FIRST_INCARNATION: Incarnation = Incarnation(1);

/// The cluster itself, written by its first entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRecord {
    pub id: ClusterId,
    pub name: Name,
    pub incarnation: Incarnation,
    /// The encoding of commands and snapshots that every manager can read.
    pub feature_level: u32,
    pub root_cert_pem: String,
    /// Held by every manager and never shown.
    pub root_key_pem: Secret,
    pub founded_at: WallTime,
    pub revision: Revision,
}

/// A join token. The full text is `MSTR-1-<base36 sha256 of the root>-<secret>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Short public id, `[a-z0-9]`.
    pub id: String,
    pub role: Role,
    pub secret: Secret,
    /// The token that `token show ROLE` prints. Replaced by `token rotate`.
    pub default: bool,
    pub created_at: WallTime,
    pub expires_at: Option<WallTime>,
    pub uses_left: Option<u32>,
    pub revision: Revision,
}

/// The rights of a user.
///
/// Replaces feature level 2's `admin: bool` with the same byte: `false` was 0, `true` was 1. The third kind is written only from
/// [`IDENTITY_LEVEL`] on. Hence the order of the variants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum UserKind {
    /// Leases, locks and config maps of its namespaces.
    #[default]
    User,
    /// Everything.
    Operator,
    /// Reads what an operator reads, except secrets, and changes nothing.
    ReadOnly,
}
impl UserKind {
    pub fn is_operator(self) -> bool {
        self == UserKind::Operator
    }
    pub fn is_read_only(self) -> bool {
        self == UserKind::ReadOnly
    }
    /// Whether it reads in every namespace, whatever namespaces it was given.
    pub fn reads_everything(self) -> bool {
        self != UserKind::User
    }
    /// The principal of a user of this kind.
    pub fn principal(self, name: Name) -> Principal {
        match self {
            UserKind::User => Principal::User(name),
            UserKind::Operator => Principal::Admin(name),
            UserKind::ReadOnly => Principal::Reader(name),
        }
    }
}

/// A credential for a person or a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub name: Name,
    pub kind: UserKind,
    pub namespaces: Vec<String>,
    /// The serial of the valid certificate; any other certificate of this name is refused. Empty: none.
    pub serial: String,
    pub created_at: WallTime,
    pub not_after: WallTime,
    pub revision: Revision,
}

/// A user's bearer token: `muster-<id>-<secret>`, of which the cluster keeps only a digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessToken {
    /// Short public id, `[a-z0-9]`.
    pub id: String,
    pub user: Name,
    /// SHA-256 of the secret, which holds 128 random bits.
    pub digest: [u8; 32],
    pub created_at: WallTime,
    pub expires_at: Option<WallTime>,
}

/// The maximum rights of an access token; its user's current rights bound it too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRights {
    /// Its user's kind when it was made.
    pub kind: UserKind,
    pub namespaces: Vec<String>,
}

/// How long a block, and a root that was replaced, outlive the last certificate that they are about: managers' clocks
/// differ. An hour is far more than clocks that are kept in time differ, and costs nothing.
pub const BLOCK_MARGIN: Duration = Duration::from_secs(3600);

/// A node id with which no manager may communicate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocked {
    pub node: NodeId,
    pub by: Principal,
    pub blocked_at: WallTime,
    /// The expiry of the last certificate ever issued to it, plus [`BLOCK_MARGIN`].
    pub expires_at: WallTime,
}

/// The outcome of a request, kept so that its retry gets the same answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    pub request: RequestId,
    pub revision: Revision,
    /// The refusal, if it was refused. Boxed, because most are not and many thousands of outcomes are kept.
    pub refused: Option<Box<super::CommandRefusal>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{decode_stored, encode_stored};

    /// Logs and snapshots of feature level 2 have a `bool` in its place.
    #[test]
    fn user_kind_has_the_byte_of_the_former_admin_flag() {
        for (admin, kind) in [(false, UserKind::User), (true, UserKind::Operator)] {
            let bytes = encode_stored(&admin).unwrap();
            assert_eq!(encode_stored(&kind).unwrap(), bytes);
            assert_eq!(decode_stored::<UserKind>(&bytes).unwrap(), kind);
        }
        assert!(decode_stored::<bool>(&encode_stored(&UserKind::ReadOnly).unwrap()).is_err());
    }
}
