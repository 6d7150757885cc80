//! `muster-api/1` and the admin socket: typed requests, many in flight on one connection. Answers carry the JSON of
//! the contract as text, the same text that HTTP `/v1` and `-o json` print.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::{ErrorBody, Generation, Name, NodeId, RequestId, Revision, Role, UserKind};

/// A frame of the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiCall {
    /// Chosen by the client; comes back with the answer.
    pub id: u64,
    /// Makes a retry of a write safe.
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

/// What can be asked. Reads are linearizable unless they say otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// `fresh`: fail instead of answering from the local copy without quorum.
    Status {
        fresh: bool,
    },
    NodeList {
        fresh: bool,
    },
    NodeInspect {
        node: NodeRef,
        fresh: bool,
    },
    /// Sets the desired role. Already so: `"changed":false`. Waiting is the client's: it polls `NodeInspect`.
    SetRole {
        node: NodeRef,
        role: Role,
    },
    NodeRemove {
        node: NodeRef,
        force: bool,
    },
    NodeUpdate {
        node: NodeRef,
        add: BTreeMap<String, String>,
        remove: Vec<String>,
        generation: Option<Generation>,
    },
    TokenCreate {
        role: Role,
        ttl_ms: Option<u64>,
        uses: Option<u32>,
    },
    TokenList,
    TokenRevoke {
        id: String,
    },
    TokenRotate {
        role: Role,
    },
    TokenShow {
        role: Role,
    },
    CertList,
    CertRotate {
        node: NodeRef,
    },
    CaShow,
    /// The key is made by the client and never travels: only its CSR does.
    UserCreate {
        name: Name,
        kind: UserKind,
        namespaces: Vec<String>,
        ttl_ms: Option<u64>,
        csr_pem: String,
    },
    UserList,
    UserRevoke {
        name: Name,
    },
    /// A bearer token for a user, who is made if there is none, and may touch this namespace from now on.
    AccessTokenCreate {
        user: Name,
        namespace: String,
        ttl_ms: Option<u64>,
    },
    BlocklistList {
        fresh: bool,
    },
    RaftStatus {
        fresh: bool,
    },
    /// To a named node, or to the most caught-up voter.
    TransferLeader {
        to: Option<NodeRef>,
    },
    Actors {
        node: ActorsOf,
        ask: super::ActorsAsk,
    },
    /// Events after `since`, waiting up to `wait_ms` for the first.
    Events {
        since: Revision,
        wait_ms: u64,
    },
    Lease(super::LeaseRequest),
    /// A request to the Kubernetes subset, from a node that cannot answer it itself.
    Kube(KubeCall),
    /// Managers' addresses and the root: what a client with an identity of its own needs to connect over TLS.
    Contact,
    Reconciler(super::ReconcilerRequest),
    /// A portion of a list: what the list's own request answers, with so many of its items. `continue` is there while there
    /// are more; an item that comes or goes meanwhile may be missed, the others are told once.
    Portion {
        of: ListOf,
        page: Page,
        fresh: bool,
    },
    /// Admits others to a cluster that this node restored from a backup. Answered by this process alone. Open already:
    /// `"changed":false`.
    OpenAdmission,
    /// The operator's name for a node. Already so: `"changed":false`. Needs feature level 3.
    NodeRename {
        node: NodeRef,
        name: Name,
    },
    /// Like `CertRotate`, and what the node holds now stops to count once it is seen with what it gets.
    CertRevoke {
        node: NodeRef,
    },
    /// A fresh certificate, for a new key, in place of a user's valid one, which stops to count. Its rights and its access
    /// tokens stay.
    UserRenew {
        name: Name,
        ttl_ms: Option<u64>,
        csr_pem: String,
    },
}

/// A list that may be too long for one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListOf {
    Nodes,
    Blocklist,
    Certificates,
    Tokens,
    Users,
}

impl ListOf {
    /// The request for all of it.
    pub fn whole(self, fresh: bool) -> Request {
        match self {
            ListOf::Nodes => Request::NodeList { fresh },
            ListOf::Blocklist => Request::BlocklistList { fresh },
            ListOf::Certificates => Request::CertList,
            ListOf::Tokens => Request::TokenList,
            ListOf::Users => Request::UserList,
        }
    }
}

/// Which portion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// Items at most; 0: as many as fit. An answer may always hold fewer.
    pub limit: u32,
    /// `continue` of the portion before. `None`: from the start.
    pub after: Option<String>,
}

/// A request to the Kubernetes subset as it came in over HTTP, without what only its connection needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubeCall {
    pub method: String,
    /// Path and query, as sent.
    pub target: String,
    pub content_type: Option<String>,
    pub accept: Option<String>,
    pub user_agent: Option<String>,
    pub body: Vec<u8>,
}

/// What came out of a [`KubeCall`]; the answer's text is this as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubeAnswer {
    pub status: u16,
    pub retry_after_s: Option<u64>,
    /// `Warning` headers (RFC 9111, section 5.5), without code and agent.
    pub warnings: Vec<String>,
    pub body: String,
}

/// Whose actors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ActorsOf {
    /// The process that answers.
    Here,
    Leader,
    Node(NodeRef),
    Id(NodeId),
    All,
}
