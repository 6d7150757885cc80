//! Messages to the actor that rotates the cluster's roots.

use super::{Named, Reply};
use crate::model::{ErrorBody, NodeId, Principal, RequestId, Revision, RootId};

/// Messages of the root rotation (leader).
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum RootRotationMsg {
    /// A node has the roots of this generation on disk. Answered once that is recorded. Lost: the node repeats it. Repeated: no
    /// change. Late: recorded as of that generation. From an old leader: an error unless it was recorded before; the node repeats it.
    TrustRoots { node: NodeId, generation: Revision, reply: Reply<Result<(), ErrorBody>> },
    /// A step of a root rotation, by an operator. Answered once it is applied. Lost: ask again under the same request id.
    /// Repeated so: answered with the first outcome. Repeated under another id: `Rotate` replaces a root that is not active
    /// yet, the others change nothing, except `Issued` for a root that has signed (`same_key`). Late: judged by the state of the roots
    /// then. From an old leader: no step is applied; a refusal may rest on its older state.
    ChangeRoots {
        change: RootsChange,
        by: Principal,
        request: RequestId,
        reply: Reply<Result<RootsChanged, ErrorBody>>,
    },
}

/// What an operator asks of the cluster's roots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootsChange {
    /// Makes another root and publishes it. `automatic`: it is activated as soon as the nodes trust it. `compromised`: others
    /// may have the key of every root that has one.
    Rotate { automatic: bool, compromised: bool },
    /// Makes a key and asks an authority above for its issuing certificate; the request is in the replicated state once this is
    /// applied. While there is one, no change. `compromised`: others may have the key of every root that has one, and that of
    /// an earlier request.
    Request { compromised: bool },
    /// The answer of the authority above: the issuing certificate, and those above it. From there on as `Rotate`.
    Issued { automatic: bool, answer: String },
    /// Deletes the root that is published and not active yet, and the request to an authority above.
    Abort,
    /// This root signs from now on.
    Activate(RootId),
    /// Deletes the key of a root that no longer signs. `force`: although managers still use its certificates.
    Retire { root: RootId, force: bool },
    /// Certificates of this root are no longer accepted, except for a node's request for another one.
    Revoke(RootId),
}

/// An applied step of a root rotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootsChanged {
    /// The root that it is about. `None`: there was none to abort.
    pub root: Option<RootId>,
    pub revision: Revision,
    pub changed: bool,
}
