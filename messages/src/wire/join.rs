//! `muster-join/1`: becoming a node. The joiner first fetches the root over an unverified handshake, compares its
//! digest with the token's, and only then opens a second, verified connection and sends the secret.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::{ErrorBody, Name, NodeId, OfferedRoot, RequestId, Secret};

/// A frame of the joiner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JoinFrame {
    /// Asks for the root certificate. Read: repeat freely, up to three frames per connection.
    GetRoot,
    /// Asks to become a node; the first frame of its connection, and the last. Lost: ask again on another connection.
    /// Repeated with the same `request_id`, `node` and key (the joiner keeps all three until it has succeeded): the
    /// same node, another certificate; a token use is counted once. Another key with the id of a node that exists is
    /// refused as `conflict`: knowing a node's id must not be enough to become it. Late: refused once the token was
    /// revoked, or the node was removed or blocked.
    Join(JoinRequest),
    /// Asks for all roots, for a token of an earlier root. Answered with [`JoinReply::Roots`]; refused as `NotKnownHereYet` by
    /// a manager that does not know its cluster yet, and as `Invalid` by builds that know no rotation, if it is the first
    /// frame of its connection. Read: repeat freely, up to three frames per connection.
    GetRoots,
}

/// A joiner's data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    pub request_id: RequestId,
    /// The requested id; random, chosen by the joiner once and kept, which makes a retry safe.
    pub node: NodeId,
    /// The secret part of the token.
    pub token_secret: Secret,
    /// Only its public key is used.
    pub csr_pem: String,
    pub name: Name,
    /// `host:port`; for an unspecified host, the address that the other side observed is used with this port.
    pub advertise: String,
    pub release: String,
    pub labels: BTreeMap<String, String>,
    /// Re-keying: `node` exists, and the joiner proves that it is this node.
    pub rekey: Option<Rekey>,
}

/// Proof that the joiner held this identity before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rekey {
    /// The node's old certificate, expired or not.
    pub old_cert_pem: String,
    /// Over the new signing request, by the key of the old certificate (`muster_pki::prove_rekey`).
    pub signature: Vec<u8>,
}

/// The answers on `muster-join/1`, one for each request. Lost or late: the joiner asks again on another connection. Repeated: only
/// as the answer to a repeated request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JoinReply {
    /// The root certificate. Lost: asked again.
    Root { root_pem: String },
    /// The node exists. Lost: a repeated request is answered with another certificate for the same node.
    Joined { node: NodeId, cert_pem: String, root_pem: String, managers: Vec<String> },
    /// Not admitted. Lost: a repeated request is decided anew. Codes that waiting cannot change end the joining, others
    /// are retried.
    Refused(ErrorBody),
    /// The roots on record, with the vouchers that lead from one to another. Empty: there was no rotation. Lost: asked
    /// again.
    Roots(Vec<OfferedRoot>),
}
