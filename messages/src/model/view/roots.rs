//! The cluster's roots, and how far a rotation is.

use serde::{Deserialize, Serialize};

use crate::model::{AuthorityOrigin, AuthorityState, Name, NodeId, Revision, RootId, WallTime};

/// The roots on record and the progress of a rotation: `muster ca ls`, `muster ca status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootsView {
    pub items: Vec<RootView>,
    /// The root that signs. `None`: the cluster's first entry has not been applied on the answering node yet.
    pub active: Option<RootId>,
    /// The root to which the rotation in progress leads. `None`: there is none.
    pub target: Option<RootId>,
    pub phase: RotationPhase,
    /// The nodes that trust the present set of roots.
    pub acknowledged: RootsProgressView,
    /// The nodes whose newest certificate is of the active root. While a root is published because others may have the active one's
    /// key, only those whose certificate has its digest on record.
    pub renewed: RootsProgressView,
    /// Users with a certificate of another root than the active one. It stays valid until that root is revoked or forgotten.
    pub users_outdated: usize,
    /// When the last certificate of other roots than the active one expires. `None`: there is none.
    pub last_not_after: Option<WallTime>,
    /// The root for which an authority above has not answered yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<RequestedRootView>,
}

/// A request to an authority above the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestedRootView {
    /// The root that it becomes with the answer.
    pub id: RootId,
    pub created_at: WallTime,
    /// The rotation with its answer is one after a compromise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub compromised: bool,
}

/// One root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootView {
    pub id: RootId,
    pub state: AuthorityState,
    pub origin: AuthorityOrigin,
    /// SHA-256 of the certificate, in base 36, as join tokens contain it.
    pub digest: String,
    pub not_after: WallTime,
    pub created_at: WallTime,
    /// `None`: it never signed.
    pub activated_at: Option<WallTime>,
    /// Of a prepared root: it signs as soon as the nodes trust it. Otherwise an operator activates it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub automatic: bool,
    /// Others may have its key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub compromised: bool,
    /// Nodes and users whose newest certificate is of this root.
    pub issued: usize,
    /// How many of them must renew: all, unless the root is the active one.
    pub outdated: usize,
}

/// What a rotation does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RotationPhase {
    /// A root is prepared: the nodes add it to those that they trust.
    Publishing,
    /// The active root signs; nodes that are ready still have certificates of another one.
    Signing,
    /// A root that no longer signs is still trusted, and its key is kept, for a way back.
    Retiring,
    /// No rotation is in progress.
    Done,
}

/// How many nodes have done their part, and which ones have not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootsProgressView {
    /// All nodes.
    pub of: usize,
    /// Those that have done it.
    pub n: usize,
    /// The others, those that are ready first; at most [`MAX_MISSING`].
    pub missing: Vec<RootsMissingView>,
}

/// The most nodes that a [`RootsProgressView`] names: two lists of them fit in one answer.
pub const MAX_MISSING: usize = 100;

/// A node that has not done its part of a rotation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootsMissingView {
    pub node: NodeId,
    pub name: Name,
    pub reason: RootsWaitReason,
    /// Since when it is down. Absent for other reasons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<WallTime>,
}

/// Why a node has not done its part of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RootsWaitReason {
    /// It is down, or was not heard of yet. It follows when it returns.
    WaitingForNode,
    /// The roots were offered to it, and it has not acknowledged them.
    WaitingForAnswer,
    /// It was asked for a certificate request.
    Renewing,
    /// Its last certificate request failed.
    Failed,
    /// Its turn comes later: not all nodes renew at once.
    Queued,
}

/// A step of a rotation: `muster ca rotate`, `activate`, `abort`, `retire`, `revoke`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootChangeView {
    /// The root that it is about. `None`: there was none to abort.
    pub root: Option<RootId>,
    /// `false`: it was so already.
    pub changed: bool,
    pub revision: Revision,
    /// In the answer to `rotate --csr` only: the request to the authority above, PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csr: Option<String>,
    /// In the answer to `rotate` only.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub status: Option<RootsView>,
}
