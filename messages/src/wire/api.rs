//! `muster-api/1` and the admin socket: typed requests, many in flight on one connection. Answers carry the JSON of
//! the contract as text, the same text that HTTP `/v1` and `-o json` print.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::{
    ErrorBody, Generation, Name, NodeId, RequestId, Revision, Role, RootId, Secret, UserKind, WorkloadEntry,
    WorkloadName,
};

/// A frame of the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiCall {
    /// Chosen by the client; comes back with the answer.
    pub id: u64,
    /// Makes a retry of a write safe: see [`Request`]. 0: the server chooses one, and a repeat is another request.
    pub request_id: RequestId,
    /// How long the caller waits. The server answers `timed_out` or `no_quorum` before it has passed.
    pub timeout_ms: u64,
    pub request: Request,
}

/// A frame of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiAnswer {
    pub id: u64,
    /// JSON text, or the error.
    pub result: Result<String, ErrorBody>,
}

/// A node as a person names it: id, unique id prefix, or unique name.
pub type NodeRef = String;

/// The requests. Reads are linearizable unless stated otherwise.
///
/// *Reads* change nothing. Lost: repeat freely. Late: answered by the state at that time.
///
/// *Writes* count once per request id ([`ApiCall::request_id`]). Accepted means committed and applied. Lost, or
/// answered `unknown_outcome`: ask again under the same id. Repeated under the same id: not applied again, and answered
/// with the first outcome, success or refusal; what the answer shows of the state is as of the repeat. Late: judged by
/// the state when it is applied. Repeated under another id it is another request, and each variant says what that does.
/// From feature level 3 on, ids are kept apart by caller, an id that stands for another request is refused as
/// `conflict`, and one so old that its outcome may be forgotten is refused with a final `unknown_outcome`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The cluster in short. `fresh`: fail instead of answering from the local replica without quorum. Read: repeat
    /// freely.
    Status { fresh: bool },
    /// `fresh` as in `Status`. Read: repeat freely.
    NodeList { fresh: bool },
    /// `fresh` as in `Status`. Read: repeat freely.
    NodeInspect { node: NodeRef, fresh: bool },
    /// Sets the desired role. Already set: `"changed":false`. Waiting is the client's, with `NodeWatch`. Write:
    /// by request id, see [`Request`]. Repeated under another id: set again, the last one written wins.
    SetRole { node: NodeRef, role: Role },
    /// Answered when the removal is complete. Write: by request id, see [`Request`]. Repeated while it is in progress:
    /// waits for the same removal. Repeated under another id afterwards: `not_found`.
    NodeRemove { node: NodeRef, force: bool },
    /// Changes labels. Write: by request id, see [`Request`]. Repeated under another id: no change, or `conflict` where
    /// `generation` is given.
    NodeUpdate { node: NodeRef, add: BTreeMap<String, String>, remove: Vec<String>, generation: Option<Generation> },
    /// Write: by request id, see [`Request`]. Repeated under another id: another token.
    TokenCreate { role: Role, ttl_ms: Option<u64>, uses: Option<u32> },
    /// Read: repeat freely.
    TokenList,
    /// Write: by request id, see [`Request`]. Repeated under another id: `not_found`.
    TokenRevoke { id: String },
    /// Write: by request id, see [`Request`]. Repeated under another id: rotated again.
    TokenRotate { role: Role },
    /// Read: repeat freely.
    TokenShow { role: Role },
    /// Read: repeat freely.
    CertList,
    /// Asks the node to renew. Write: by request id, see [`Request`]. Repeated under another id: no change until it has
    /// renewed.
    CertRotate { node: NodeRef },
    /// Read: repeat freely.
    CaShow,
    /// The key is made by the client and never travels: only its CSR does. Write: by request id, see [`Request`].
    /// Repeated under the same id and with the same key: another certificate in place of the first. Repeated under
    /// another id: `conflict` while the user's certificate is valid.
    UserCreate { name: Name, kind: UserKind, namespaces: Vec<String>, ttl_ms: Option<u64>, csr_pem: String },
    /// Read: repeat freely.
    UserList,
    /// Write: by request id, see [`Request`]. Repeated under another id: `not_found`.
    UserRevoke { name: Name },
    /// A bearer token for a user, who is created if there is none, and may use this namespace from now on. Write: by
    /// request id, see [`Request`]. Repeated once it is applied: `conflict`, because the token's text was lost with the
    /// first answer. Repeated under another id: another token.
    AccessTokenCreate { user: Name, namespace: String, ttl_ms: Option<u64> },
    /// `fresh` as in `Status`. Read: repeat freely.
    BlocklistList { fresh: bool },
    /// `fresh` as in `Status`. Read: repeat freely.
    RaftStatus { fresh: bool },
    /// To a named node, or to the most caught-up voter. Not an entry in the log, so no outcome is remembered. Lost: see
    /// who leads before asking again. Repeated or late: the leader of that time hands over, unless it is the one named.
    TransferLeader { to: Option<NodeRef> },
    /// See [`super::ActorsAsk`].
    Actors { node: ActorsOf, ask: super::ActorsAsk },
    /// Events after `since`, waiting up to `wait_ms` for the first. Read: repeat freely, with the revision of the last
    /// answer.
    Events { since: Revision, wait_ms: u64 },
    /// See [`super::LeaseRequest`].
    Lease(super::LeaseRequest),
    /// A request to the Kubernetes subset, from a node that cannot answer it itself; only writes. Write: by request id,
    /// see [`Request`], but a repeat of one that was applied is answered `unknown_outcome`: read the object. Repeated
    /// under another id: decided by the rules of Kubernetes (resource version, existence).
    Kube(KubeCall),
    /// Managers' addresses and the root: what a client with an identity of its own needs to connect over TLS. Answered
    /// by this process alone. Read: repeat freely.
    Contact,
    /// See [`super::ReconcilerRequest`].
    Reconciler(super::ReconcilerRequest),
    /// One page of a list: what the list's own request answers, with at most so many of its items. `continue` is
    /// present while there are more; an item that is added or removed meanwhile may be missed, the others are listed
    /// once. Read: repeat freely, with the same `after`.
    Page { of: ListOf, page: Page, fresh: bool },
    /// Admits others to a cluster that this node restored from a backup. Answered by this process alone. Already open:
    /// `"changed":false`. Lost: ask again. Repeated: no change.
    OpenAdmission,
    /// The operator's name for a node. Already so: `"changed":false`. Needs feature level 3. Write: by request id, see
    /// [`Request`]. Repeated under another id: no change.
    NodeRename { node: NodeRef, name: Name },
    /// Like `CertRotate`, and the certificate that the node holds now ends once the node is seen with the new one.
    /// Write: by request id, see [`Request`]. Repeated under another id: no change while it is in progress, afterwards
    /// the certificate of that time is revoked.
    CertRevoke { node: NodeRef },
    /// A fresh certificate, for a new key, in place of a user's valid one, which ends. Its rights and its access tokens
    /// stay. Write: by request id, see [`Request`]. Repeated under the same id and with the same key: another
    /// certificate in place of the first. Repeated under another id: renewed again.
    UserRenew { name: Name, ttl_ms: Option<u64>, csr_pem: String },
    /// Like `NodeInspect`, once what the answering process has applied of the node is not what `seen` stands for (0:
    /// nothing), or after `wait_ms`. Answered with a [`NodeWatched`](crate::model::NodeWatched). With a `seen` other than 0, the end
    /// of a role change is answered from the answering process's own replica, marked stale: it counts for a caller whose last
    /// confirmed answer had no later generation. Read: repeat freely, with the `seen` of the last answer; no change between two
    /// requests is missed.
    NodeWatch { node: NodeRef, seen: u64, wait_ms: u64 },
    /// The roots on record, and how far a rotation is. Read: repeat freely.
    RootList,
    /// Makes another root and publishes it to the nodes. `prepare`: an operator activates it, otherwise that follows as soon
    /// as the nodes trust it. `compromised`: others may have the key of every root that has one. Needs feature level 3. Write:
    /// by request id, see [`Request`]. Repeated under another id: the published root is replaced, or another one follows.
    RootRotate { prepare: bool, compromised: bool },
    /// A published root signs from now on, or a retiring one again. Write: by request id, see [`Request`]. Repeated under
    /// another id: no change.
    RootActivate { root: RootId },
    /// Deletes the root that is published and does not sign yet. Write: by request id, see [`Request`]. Repeated under another
    /// id: no change.
    RootAbort,
    /// Deletes the key of a root that no longer signs; nodes stop trusting it. Write: by request id, see [`Request`]. Repeated
    /// under another id: no change.
    RootRetire { root: RootId, force: bool },
    /// Certificates of a root that no longer signs are refused from now on, except where a node asks for another one. Write:
    /// by request id, see [`Request`]. Repeated under another id: no change.
    RootRevoke { root: RootId },
    /// Whether autolock is on, and which managers are sealed under which version. Read: repeat freely.
    AutolockStatus,
    /// Makes an unlock key, with which managers seal their disks. Already on: `"changed":false`, and the key in force. Needs
    /// feature level 3. Write: by request id, see [`Request`]. Repeated under another id: no change.
    AutolockOn,
    /// Managers stop sealing. Write: by request id, see [`Request`]. Repeated under another id: no change.
    AutolockOff,
    /// Makes another unlock key. Off: `not_enabled`. Write: by request id, see [`Request`]. Repeated under another id: rotated
    /// again.
    AutolockRotate,
    /// The unlock key of a version; `None`: the one in force. Read: repeat freely.
    AutolockKey { version: Option<Revision> },
    /// The unlock key, to a locked daemon on its admin socket. `version`: which one it is, if the caller knows. Answered by this
    /// process alone; one that is not locked answers `not_locked`, and a wrong key changes nothing. Lost: ask for the
    /// status. Repeated: `not_locked`.
    Unlock { key: Secret, version: Option<Revision> },
    /// A request to an authority above for an issuing certificate: makes its key, if there is no request yet. `compromised`: others may
    /// have the key of every root that has one, and of a request that was made without it, which is replaced. Needs feature level
    /// 3. Write: by request id, see [`Request`]. Repeated under another id: the same request.
    RootRequest { compromised: bool },
    /// The answer of the authority above, PEM: the issuing certificate and those above it. From there on as `RootRotate`, `compromised`
    /// if its request was. Write: by request id, see [`Request`]. Repeated under another id: no change until it signs.
    RootIssued { prepare: bool, answer: String },
    /// The workloads. Read: repeat freely.
    WorkloadList,
    /// One workload. Read: repeat freely.
    WorkloadShow { name: WorkloadName },
    /// Writes the entry of a workload; who made it and its revision are the cluster's to say. Already so: `"changed":false`. Needs feature level
    /// 3. `root`: the entry may be for processes of the user 0. Write: by request id, see [`Request`]. Repeated under another id: written
    /// again, the last one counts.
    WorkloadSet { entry: Box<WorkloadEntry>, root: bool },
    /// Deletes the entry of a workload: its processes lose their identity at once, and certificates that they have taken out end with
    /// their lifetime. Write: by request id, see [`Request`]. Repeated under another id: `not_found`.
    WorkloadRemove { name: WorkloadName },
    /// Which workloads a process of the answering node is, and why not the others. Answered by this process alone. Read: repeat
    /// freely.
    WorkloadExplain { pid: u32 },
    /// Whether the others keep a quorum while a node is stopped; `quorum_at_risk` if not. Managers are asked now, by the leader. Needs
    /// feature level 3. Read: repeat freely; nothing is reserved, so an answer is as old as it is.
    NodeMayStop { node: NodeRef },
    /// See [`super::AutopilotRequest`].
    Autopilot(super::AutopilotRequest),
}

impl Request {
    /// The list that it asks for, and which page of it; without a page, the whole list.
    pub fn list(&self) -> Option<(ListOf, Option<&Page>)> {
        let whole = |of| Some((of, None));
        match self {
            Request::Page { of, page, .. } => Some((*of, Some(page))),
            Request::NodeList { .. } => whole(ListOf::Nodes),
            Request::BlocklistList { .. } => whole(ListOf::Blocklist),
            Request::CertList => whole(ListOf::Certificates),
            Request::TokenList => whole(ListOf::Tokens),
            Request::UserList => whole(ListOf::Users),
            Request::WorkloadList => whole(ListOf::Workloads),
            _ => None,
        }
    }
}

/// A list that may be too long for one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListOf {
    Nodes,
    Blocklist,
    Certificates,
    Tokens,
    Users,
    /// From feature level 3 on.
    Workloads,
}

impl ListOf {
    /// The request for the whole list.
    pub fn whole(self, fresh: bool) -> Request {
        match self {
            ListOf::Nodes => Request::NodeList { fresh },
            ListOf::Blocklist => Request::BlocklistList { fresh },
            ListOf::Certificates => Request::CertList,
            ListOf::Tokens => Request::TokenList,
            ListOf::Users => Request::UserList,
            ListOf::Workloads => Request::WorkloadList,
        }
    }
}

/// The page's position.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// Maximum number of items; 0: as many as fit. An answer may always hold fewer.
    pub limit: u32,
    /// `continue` of the previous page. `None`: from the start.
    pub after: Option<String>,
}

/// A request to the Kubernetes subset as received over HTTP, without what only its connection needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubeCall {
    pub method: String,
    /// Path and query, as sent.
    pub target: String,
    pub content_type: Option<String>,
    pub accept: Option<String>,
    pub user_agent: Option<String>,
    #[serde(with = "super::bytes")]
    pub body: Vec<u8>,
}

/// The answer to a [`KubeCall`], sent as JSON text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubeAnswer {
    pub status: u16,
    pub retry_after_s: Option<u64>,
    /// `Warning` headers (RFC 9111, section 5.5), without code and agent.
    pub warnings: Vec<String>,
    pub body: String,
}

/// Whose actors are meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ActorsOf {
    /// The answering process.
    Here,
    Leader,
    Node(NodeRef),
    Id(NodeId),
    All,
}

impl ActorsOf {
    /// As a person asks: for all nodes, for a node, for the `leader`, or by default for the answering process.
    pub fn asked(node: Option<String>, all: bool) -> Self {
        match node {
            _ if all => ActorsOf::All,
            None => ActorsOf::Here,
            Some(node) if node == "leader" => ActorsOf::Leader,
            Some(node) => ActorsOf::Node(node),
        }
    }
}
