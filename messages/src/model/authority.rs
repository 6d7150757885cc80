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

use super::word;
use super::{IssuedCertificate, Liveness, NodeId, Revision, RootId, Secret, Tables, Token, WallTime};

/// The most roots on record, in whatever state. A rotation adds one.
pub const MAX_ROOTS: usize = 8;

/// The most certificates between one that the active root signed and an older root.
pub const MAX_CROSSES: usize = 4;

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
#[serde(rename_all = "snake_case")]
pub enum AuthorityOrigin {
    Founded,
    /// Made by a rotation.
    Made,
    /// Given by an operator.
    Imported,
    /// Certified by an authority above the cluster, for a key that the cluster made.
    Upstream,
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

/// A root as it is published to nodes and joining machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedRoot {
    pub cert_pem: String,
    pub vouchers: Vec<Voucher>,
    /// `false`: it is not to be trusted (any more), it only leads to others: the receiver missed the time between.
    pub trusted: bool,
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
    /// By each root whose key was there when this one was prepared, and by later ones that were prepared while its own was.
    pub vouchers: Vec<Voucher>,
    /// By each root whose key was there when this one was activated. An abandoned root has none.
    pub crosses: Vec<CrossCertificate>,
    pub created_at: WallTime,
    pub activated_at: Option<WallTime>,
    pub retired_at: Option<WallTime>,
    /// The certificates between an issuing one and the company's root, the nearest first: for clients that trust that root. No node
    /// trusts them.
    pub upstream: Vec<String>,
    pub revision: Revision,
}

impl Authority {
    /// A root without a key, vouchers or times.
    pub fn new(cert_pem: impl Into<String>, origin: AuthorityOrigin, state: AuthorityState) -> Self {
        Self {
            cert_pem: cert_pem.into(),
            key_pem: None,
            state,
            origin,
            automatic: false,
            compromised: false,
            vouchers: Vec::new(),
            crosses: Vec::new(),
            created_at: WallTime(0),
            activated_at: None,
            retired_at: None,
            upstream: Vec::new(),
            revision: Revision(0),
        }
    }
    /// As it is published.
    pub fn offered(&self) -> OfferedRoot {
        let (cert_pem, vouchers) = (self.cert_pem.clone(), self.vouchers.clone());
        OfferedRoot { cert_pem, vouchers, trusted: self.state.trusted() }
    }
    /// What its key has signed proves something by itself: nodes have it in their bundle, and its key is not known to be with others.
    pub fn is_credible(&self) -> bool {
        self.state.trusted() && !self.is_disowned()
    }
    /// Others may have its key, and it no longer signs: what its key has signed proves nothing by itself.
    pub fn is_disowned(&self) -> bool {
        self.state == AuthorityState::Revoked || self.compromised && self.state != AuthorityState::Active
    }
}

/// A key for which an authority above the cluster was asked for an issuing certificate. Nothing trusts it yet, and it signs nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestedAuthority {
    /// The root that it becomes with the answer.
    pub root: RootId,
    /// Held by every manager and never shown (UP-3).
    pub key_pem: Secret,
    /// The same for each who asks: a second signature of the key would be another text.
    pub csr_pem: String,
    /// Requested because others may have the key of every root that has one.
    pub compromised: bool,
    pub created_at: WallTime,
    pub revision: Revision,
}

/// The roots on record. Empty until the first rotation: until then, the root in the [`ClusterRecord`](super::ClusterRecord) is the
/// only one. It is the active one's copy afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authorities {
    pub roots: OrdMap<RootId, Arc<Authority>>,
    /// When the set of trusted roots last changed: the number that nodes acknowledge.
    pub generation: Revision,
    /// The newest set that each node is known to trust. A node without an entry trusts the root that it joined with.
    pub trusted_by: OrdMap<NodeId, Revision>,
    /// The one request to an authority above that is not answered yet.
    pub requested: Option<Arc<RequestedAuthority>>,
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
    /// Every root on record, as it is published: those that are no longer trusted lead nodes that were away to those that are.
    pub fn offer(&self) -> Vec<OfferedRoot> {
        self.roots.values().map(|root| root.offered()).collect()
    }
    /// The certificates that lead from the active root to others, for those that know only such a one: the nearest roots first, and of
    /// two the one that signed later. A revoked root leads nowhere.
    pub fn crosses(&self) -> Vec<&CrossCertificate> {
        let Some((active, _)) = self.active() else { return Vec::new() };
        let signed = |by: &RootId| {
            let root = self.roots.get(by).filter(|root| root.state != AuthorityState::Revoked);
            root.and_then(|root| root.activated_at)
        };
        let (mut reached, mut crosses) = (vec![active], Vec::new());
        let mut next = 0;
        while let Some(at) = reached.get(next).copied() {
            next += 1;
            let from = self.roots.get(&at).into_iter().flat_map(|root| &root.crosses);
            let mut from: Vec<_> = from.filter_map(|cross| Some((signed(&cross.by)?, cross))).collect();
            from.sort_by_key(|(signed, _)| std::cmp::Reverse(*signed));
            for (_, cross) in from {
                if crosses.len() < MAX_CROSSES && !reached.contains(&cross.by) {
                    reached.push(cross.by);
                    crosses.push(cross);
                }
            }
        }
        crosses
    }
    /// What is presented after a certificate of the active root: the certificates that lead from it to older roots, and, if there is
    /// room for them, those that lead to the root of an authority above.
    pub fn chain(&self) -> Vec<&str> {
        let mut chain: Vec<&str> = self.crosses().into_iter().map(|cross| cross.cert_pem.as_str()).collect();
        let upstream = self.active().filter(|(_, root)| root.origin == AuthorityOrigin::Upstream).map(|(_, root)| root);
        if let Some(root) = upstream.filter(|root| chain.len() + 1 + root.upstream.len() <= MAX_CROSSES) {
            chain.push(&root.cert_pem);
            chain.extend(root.upstream.iter().map(String::as_str));
        }
        chain
    }
    /// Whether a node is known to trust the present set of roots.
    pub fn is_trusted_by(&self, node: NodeId) -> bool {
        self.trusted_by.get(&node) == Some(&self.generation)
    }
    /// The first root of the cluster: certificates from before feature level 3 are its own. `None`: it was never rotated, or is
    /// forgotten.
    pub fn founding(&self) -> Option<(RootId, &Arc<Authority>)> {
        let founded = self.roots.iter().find(|(_, root)| root.origin == AuthorityOrigin::Founded);
        founded.map(|(id, root)| (*id, root))
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
        /// Others may have the key of every root that has one.
        compromised: bool,
        root: RootId,
        cert_pem: String,
        key_pem: Secret,
        origin: AuthorityOrigin,
        automatic: bool,
        vouchers: Vec<Voucher>,
        /// By the new root, for the others whose key is there, and which others do not have: a node that joins with the new root
        /// may trust those, too, and follows a way back.
        for_others: Vec<(RootId, Voucher)>,
    },
    /// Deletes the prepared root, and the request to an authority above. Absent: no change.
    Abort,
    /// A prepared root signs from now on, or a retiring one again; the one that signed before is retiring. If others may have the key
    /// of that one, they have the join tokens of its time: each of `tokens` replaces the default one of its role, if there is one.
    /// Refused for a retiring root whose key others may have; while a Raft member that is ready has not acknowledged a prepared
    /// root; and as `NoMajority` if others may have the key of the one that signed before, a voter's certificate has no digest on
    /// record, and the voters that are up and have one whose root is not revoked are not a majority.
    Activate { root: RootId, crosses: Vec<CrossCertificate>, tokens: Vec<Token> },
    /// Deletes a retiring root's key. Refused as `RootInUse` while a Raft member's newest certificate is of it, and as `Workloads` while
    /// one of a workload may be, unless `force`.
    Retire { root: RootId, force: bool },
    /// Refused as `NoMajority` while a voter may hold a certificate of it, and the voters that are up and hold certificates for certain
    /// that are neither of this root nor of one that was revoked before are not a majority.
    Revoke { root: RootId },
    /// Deletes a retired or revoked root. Absent: no change. Refused until an hour after the last of its certificates has expired.
    Forget { root: RootId },
    /// A node has the set of roots of this generation on disk. An older generation than the recorded one: no change.
    Trusted { node: NodeId, generation: Revision },
    /// Keeps a key for which an authority above is asked for a certificate. While there is one, no change, unless this one is
    /// `compromised` and that one is not: then others may have the earlier key, too, and it is replaced.
    Request { root: RootId, key_pem: Secret, csr_pem: String, compromised: bool },
    /// Publishes the requested root with its issuing certificate, as `Prepare` does: `compromised` is what its request says.
    /// Refused as `NotRequested` if its key is not the requested one.
    Certify {
        signer: RootId,
        root: RootId,
        cert_pem: String,
        upstream: Vec<String>,
        automatic: bool,
        vouchers: Vec<Voucher>,
        for_others: Vec<(RootId, Voucher)>,
    },
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
        "the root {root} is in use by {in_all} of the managers, {node} among them: wait until they have renewed, or remove them"
    )]
    RootInUse { root: RootId, node: NodeId, in_all: usize },
    #[error("a certificate of the root {root} may still be valid until {until}")]
    MayBeValid { root: RootId, until: WallTime },
    #[error(
        "the root {root} is {state}: its key is deleted, so it cannot sign again; `muster ca rotate` makes another one"
    )]
    HasNoKey { root: RootId, state: AuthorityState },
    /// ROOT-11.
    #[error("others may have the key of the root {0}, so it never signs again; `muster ca rotate` makes another one")]
    KnownToOthers(RootId),
    /// A retirement or a revocation of a root that is not in the state for it.
    #[error("the root {root} is {state}: {}", in_place_of_withdrawal(*.state))]
    NotFormer { root: RootId, state: AuthorityState },
    #[error(
        "the root {root} is in use by {in_all} of the managers, {node} among them, and those of the others that are up are not a \
         majority: wait until they have renewed or are up again, or remove them"
    )]
    NoMajority { root: RootId, node: NodeId, in_all: usize },
    /// UP-2.
    #[error(
        "no certificate is requested for the key {0}: its request was answered, aborted or replaced; `muster ca rotate --csr` prints \
         the present one"
    )]
    NotRequested(RootId),
    /// SPIFFE-5.
    #[error("certificates of workloads that the root {root} signed may be valid until {until}")]
    Workloads { root: RootId, until: WallTime },
}

/// Why a root in this state is neither retired nor revoked.
fn in_place_of_withdrawal(state: AuthorityState) -> &'static str {
    match state {
        AuthorityState::Prepared => "`muster ca abort` deletes it",
        AuthorityState::Active => "let another one sign first (`muster ca rotate`)",
        AuthorityState::Retiring => "it is trusted and has its key",
        AuthorityState::Retired | AuthorityState::Revoked => "its key is deleted already",
    }
}

impl Tables {
    /// The certificates of all trusted roots, one after another. Without a rotation, the one root.
    pub fn bundle_pem(&self) -> String {
        self.roots_pem(|root| root.state.trusted())
    }
    /// The certificates of all roots on record, trusted or not. Without a rotation, the one root.
    pub fn recorded_roots_pem(&self) -> String {
        self.roots_pem(|_| true)
    }
    fn roots_pem(&self, of: impl Fn(&Authority) -> bool) -> String {
        if self.authorities.roots.is_empty() {
            return self.cluster.as_ref().map(|cluster| cluster.root_cert_pem.clone()).unwrap_or_default();
        }
        let roots = self.authorities.roots.values().filter(|root| of(root));
        roots.map(|root| format!("{}\n", root.cert_pem.trim_end())).collect()
    }
    /// Raft members that are ready and not known to trust the present set of roots (ROOT-2).
    pub fn members_without_roots(&self) -> Vec<NodeId> {
        let ready = |node: &NodeId| self.nodes.get(node).is_some_and(|node| node.liveness == Liveness::Ready);
        let members = self.members.values().map(|member| member.node).filter(ready);
        members.filter(|node| !self.authorities.is_trusted_by(*node)).collect()
    }
    /// Whether the digest of a node's newest certificate is on record, and the node can hold no certificate that is not.
    pub fn has_digest(&self, node: NodeId) -> bool {
        let row = self.certificates.get(&node).filter(|row| !row.incomplete);
        row.and_then(|row| row.current.as_ref()).is_some_and(|newest| newest.pin.is_some())
    }
    /// The root that issued the newest certificate of a node. A certificate from before feature level 3 is the founding root's.
    /// `None`: no certificate is on record, or there was no rotation yet.
    pub fn newest_issuer(&self, node: NodeId) -> Option<RootId> {
        self.issuer_of(self.certificates.get(&node)?.current.as_ref()?)
    }
    /// The root that issued a certificate on record.
    pub fn issuer_of(&self, issued: &IssuedCertificate) -> Option<RootId> {
        issued.issuer.or_else(|| self.authorities.founding().map(|(id, _)| id))
    }
    /// Whether a node may still hold a certificate of this root: it is not known to have a later one on disk.
    pub fn may_hold_of(&self, root: RootId, node: NodeId) -> bool {
        let row = self.certificates.get(&node);
        let mut issued = row.into_iter().flat_map(|row| row.current.iter().chain(row.older()));
        issued.any(|issued| self.issuer_of(issued) == Some(root))
    }
    /// Whether a certificate on record is of a root that does not sign any more.
    pub fn is_outdated(&self, issued: &IssuedCertificate) -> bool {
        self.authorities.active().is_some_and(|(active, _)| self.issuer_of(issued) != Some(active))
    }
    /// Whether a root signs: the one that issued a certificate must still do so when the certificate is recorded.
    pub fn signs(&self, root: Option<RootId>) -> bool {
        self.authorities.active().is_none_or(|(active, _)| root == Some(active))
    }
}
