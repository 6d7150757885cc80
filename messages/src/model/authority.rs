//! Authorities: the roots of a cluster, and which of them signs.
//!
//! Owns        every root on which some certificate may still depend, with its state. Nothing else of a rotation is stored: what is left
//!             to do follows from these records.
//! Invariants  ROOT-1  exactly one authority is active: it alone signs.
//!             ROOT-4  a retired or revoked authority has no key.

use std::fmt;
use std::sync::Arc;

use imbl::OrdMap;
use serde::{Deserialize, Serialize};

use super::view::word;
use super::{NodeId, Revision, RootId, Secret, Tables, WallTime};

/// The most roots on record, in whatever state. A rotation adds one.
pub const MAX_ROOTS: usize = 8;

/// What a root is used for. A rotation moves the new one from `Prepared` to `Active`, and the former one from `Active` over
/// `Retiring` to `Retired`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthorityState {
    /// Published to the nodes, and not signing yet.
    Prepared,
    /// Signs every new certificate.
    Active,
    /// Trusted until every node has a certificate of the active root. Its key is kept, for a way back.
    Retiring,
    /// Only recorded certificates of it count. Its key is deleted.
    Retired,
    /// Others may have its key: a recorded certificate of it only lets its node ask for another one. Its key is deleted.
    Revoked,
}

impl AuthorityState {
    /// Whether nodes have the root in their bundle.
    pub fn trusted(self) -> bool {
        matches!(self, AuthorityState::Prepared | AuthorityState::Active | AuthorityState::Retiring)
    }
}

/// Where a root comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AuthorityOrigin {
    Founded,
    /// Made by a rotation.
    Made,
    /// Given by an operator.
    Imported,
}

/// A statement of one root about another: members of this cluster may trust it. Nodes demand it before they add a root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Voucher {
    /// The root that signed it.
    pub by: RootId,
    /// ECDSA P-256 over SHA-256, DER.
    pub signature: Vec<u8>,
}

/// A certificate of a root's key and name, signed by another root, for clients that know only that one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrossCertificate {
    /// The root that signed it.
    pub by: RootId,
    pub cert_pem: String,
}

/// One root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authority {
    pub cert_pem: String,
    /// Held by every manager and never shown. `None` once it is retired or revoked.
    pub key_pem: Option<Secret>,
    pub state: AuthorityState,
    pub origin: AuthorityOrigin,
    /// Of a prepared root: it is activated as soon as the nodes trust it. Otherwise an operator activates it.
    pub automatic: bool,
    /// Others may have its key: once it no longer signs, it is revoked as soon as it can be.
    pub compromised: bool,
    /// By each root whose key was there when this one was prepared.
    pub vouchers: Vec<Voucher>,
    /// By each root whose key was there when this one was activated. An abandoned root has none.
    pub crosses: Vec<CrossCertificate>,
    pub created_at: WallTime,
    pub activated_at: Option<WallTime>,
    pub retired_at: Option<WallTime>,
    pub revision: Revision,
}

/// The roots on record. Empty until the first rotation: until then, the root in the [`ClusterRecord`](super::ClusterRecord) is the
/// only one. It is the active one's copy afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authorities {
    pub roots: OrdMap<RootId, Arc<Authority>>,
    /// When the set of trusted roots last changed: the number that nodes acknowledge.
    pub generation: Revision,
}

impl fmt::Display for AuthorityState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&word(self))
    }
}

impl Authorities {
    /// The root that signs. `None`: no root was ever rotated.
    pub fn active(&self) -> Option<(RootId, &Arc<Authority>)> {
        self.in_state(AuthorityState::Active)
    }
    /// The first root in a state.
    pub fn in_state(&self, state: AuthorityState) -> Option<(RootId, &Arc<Authority>)> {
        self.roots.iter().find(|(_, root)| root.state == state).map(|(id, root)| (*id, root))
    }
}

/// A change of the authorities. From [`IDENTITY_LEVEL`](super::IDENTITY_LEVEL) on. Each is refused as `Stale` where the root is not
/// in the state that it starts from; the same change again, where the root is already in the state that it leads to, changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AuthorityChange {
    /// Publishes another root. A root that was prepared before and never signed is deleted.
    Prepare {
        /// The root that signs now. With the first rotation it is recorded, too.
        signer: RootId,
        /// Others may have the signer's key.
        compromised: bool,
        root: RootId,
        cert_pem: String,
        key_pem: Secret,
        origin: AuthorityOrigin,
        automatic: bool,
        vouchers: Vec<Voucher>,
    },
    /// Deletes the prepared root. Absent: no change.
    Abort,
    /// A prepared root signs from now on, or a retiring one again; the one that signed before is retiring.
    Activate { root: RootId, crosses: Vec<CrossCertificate> },
    /// Deletes a retiring root's key. Refused as `RootInUse` while a Raft member's newest certificate is of it, unless `force`.
    Retire { root: RootId, force: bool },
    /// Refused as `RootInUse` while the voters with certificates of other roots are no majority.
    Revoke { root: RootId },
    /// Deletes a retired or revoked root. Refused until an hour after the last of its certificates has expired.
    Forget { root: RootId },
}

/// Why a change of the authorities is refused, besides `Stale`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum AuthorityRefusal {
    #[error("the cluster has a root with this key already: {0}")]
    SameKey(RootId),
    #[error(
        "the cluster has {MAX_ROOTS} roots on record already; each is deleted when its last certificate has expired"
    )]
    TooManyRoots,
    #[error(
        "{in_all} managers have a certificate of the root {root}, {node} among them: wait until they have renewed, or remove them"
    )]
    RootInUse { root: RootId, node: NodeId, in_all: usize },
    #[error("a certificate of the root {root} may still be valid until {until}")]
    MayBeValid { root: RootId, until: WallTime },
}

impl Tables {
    /// Whether a root signs: the one that issued a certificate must still do so when the certificate is recorded.
    pub fn signs(&self, root: Option<RootId>) -> bool {
        self.authorities.active().is_none_or(|(active, _)| root == Some(active))
    }
}
