//! Manager to manager: the hello before a mesh stream is passed on, and the calls to a manager's RPC endpoint.

use serde::{Deserialize, Serialize};

use super::{RaftPacket, Request, SnapshotHead};
use crate::model::{
    CertIdentity, CertificatePin, ClusterId, ErrorBody, Incarnation, Liveness, NodeId, Principal, RaftId, RequestId,
    Revision, Seal, WallTime,
};

/// The version of all types in this file.
pub const MESH_PROTOCOL: u16 = 1;

/// Exchanged by both ends of a mesh stream before ractor_cluster sees it. The dialer sends its hello behind the handshake, the
/// accepting side a [`super::Greeting`] (its admission decision) and its hello; then both send a [`HelloDecision`]. Lost or
/// late: the hello ends after 5 s, and the dialer dials again. Repeated: ends the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshHello {
    pub protocol: u16,
    pub cluster: ClusterId,
    pub incarnation: Incarnation,
    /// Must be the certificate's.
    pub node: NodeId,
    /// Its Raft member id, if it has one. Must be that node's, if the local replica knows it.
    pub raft_id: Option<RaftId>,
    /// The pid of its RPC endpoint: the only actor that this session may announce.
    pub endpoint_pid: u64,
    /// Random; every message to the RPC endpoint carries it, because ractor_cluster does not identify the sender of a message.
    pub tag: u128,
    /// True if the dialer only wants to know who answers (dial-back): the stream closes after the hellos.
    pub probe: bool,
    /// This process among the starts of its data directory: tells it apart from one on a copy of that directory.
    pub starts: Starts,
    /// The `host:port` at which it wants to be dialled. For people, and for checking there whether it is still alive.
    pub advertise: String,
}

/// The starts of one data directory; the newest is the process that sends this. Each start draws a random number and records it
/// before it sends anything, so that of two copies of a directory each knows only the starts before the copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Starts {
    /// The number of starts before the first of `nonces`.
    pub before: u64,
    /// One for each start, oldest first: at most [`MAX_STARTS`], at least one.
    pub nonces: Vec<u64>,
}

/// Starts of a directory that are remembered. Keeps a hello small; an older start cannot be identified.
pub const MAX_STARTS: usize = 64;

/// One start of a data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StartId {
    /// Its ordinal number.
    pub number: u64,
    pub nonce: u64,
}

impl Starts {
    /// The first start of a new directory.
    pub fn first(nonce: u64) -> Self {
        Self { before: 0, nonces: vec![nonce] }
    }
    /// The next start of the same directory.
    #[must_use]
    pub fn next(mut self, nonce: u64) -> Self {
        self.nonces.push(nonce);
        let over = self.nonces.len().saturating_sub(MAX_STARTS);
        self.nonces.drain(..over);
        self.before = self.before.saturating_add(over as u64);
        self
    }
    /// This process; `None`: it names none, or more than allowed.
    pub fn this(&self) -> Option<StartId> {
        let nonce = *self.nonces.last().filter(|_| self.nonces.len() <= MAX_STARTS)?;
        Some(StartId { number: self.before.checked_add(self.nonces.len() as u64)?, nonce })
    }
    /// Whether the directory had this start, or had so many since that it is unknown.
    pub fn had(&self, start: StartId) -> bool {
        let Some(index) = start.number.checked_sub(self.before.saturating_add(1)) else { return true };
        usize::try_from(index).ok().and_then(|index| self.nonces.get(index)) == Some(&start.nonce)
    }
}

/// The process that a manager accepts for a node's identity; managers exchange their bindings so that all accept the same one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityBinding {
    pub node: NodeId,
    pub starts: Starts,
    /// The Raft member id in its hello.
    pub member_id: Option<RaftId>,
    /// The address at which it wants to be dialled.
    pub addr: String,
    /// The remote address of its connection.
    pub remote: String,
    /// When the first manager accepted it, by that manager's clock: of two bindings the older one counts.
    pub since: WallTime,
    /// Asked because of this other process, it has answered: the other one must give way.
    pub insists: Option<StartId>,
}

/// Bindings in one message: more managers than any cluster has.
pub const MAX_BINDINGS: usize = 128;

/// The last frame of the hello, from each side, and never repeated. Lost or late: the session does not begin, and the dialer dials again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HelloDecision {
    /// The session begins once both sides have sent this. Lost or late: the hello ends after 5 s.
    Accepted,
    /// There is no session, and why. Lost: the other side learns it from the next attempt.
    Refused(super::Refusal),
}

/// What the RPC endpoint receives, as bytes, inside a ractor_cluster call. The reply is an encoded [`PeerReply`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerEnvelope {
    /// The tag that the *receiver's* hello named for this session: maps the message to the authenticated peer.
    pub tag: u128,
    pub message: PeerMessage,
}

/// From one manager to another. Each is answered with a [`PeerReply`], which is how the sender notices a loss.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerMessage {
    /// A batch of Raft messages. Lost: Raft sends again. Repeated or late: Raft ignores by term and index.
    /// Acknowledged when handed to the raft member's mailbox, which is the window's flow control.
    Raft(Vec<RaftPacket>),
    /// A piece of a snapshot. `head` names which; pieces come in order. Accepted: kept, and with the last piece the
    /// whole snapshot is handed to the raft member. Lost, repeated or late, and so out of order: the transfer ends, and
    /// Raft begins another.
    SnapshotChunk {
        head: SnapshotHead,
        from: RaftId,
        offset: u64,
        #[serde(with = "super::bytes")]
        data: Vec<u8>,
        last: Option<Box<RaftPacket>>,
    },
    /// A call that the receiver's services answer. Lost, repeated or late: see [`PeerCall`].
    Call(PeerCall),
    /// The sender holds this Raft member id now: checked like the one in a hello, sent before the first Raft message
    /// from it. Lost: those messages are dropped, and the session ends. Repeated: same answer. Late: an id that the
    /// receiver knows as outdated or removed is accepted, and Raft messages from it are dropped.
    Membership(RaftId),
    /// The processes that the sender accepts as its peers, all of them. Lost: the session ends, and the next one begins
    /// with them. Repeated: same answer. Late: the next one names all of them again.
    IdentityBindings(Vec<IdentityBinding>),
}

/// Calls between managers. The leader alone answers, by its own applied state; `Actors` and `Clock` are answered by
/// every manager. Each may be repeated; a call for the leader is, while its receiver is `unreachable` or does not lead.
///
/// Lost, before or after it was carried out: the sender gets `timed_out`, or `unreachable` without `not_sent`. Late:
/// carried out as if it were new, even if its sender has given up. From an old leader: one that has noticed refuses it as
/// `unreachable` and not leading, and the next leader is asked; one that has not answers as the leader's actor does that
/// handles the call: it cannot commit or confirm anything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerCall {
    /// An API request that the forwarder authenticated. Lost or repeated: asked again under the same `request_id`,
    /// which makes a write happen once; see [`Request`].
    Api { caller: Principal, request_id: RequestId, timeout_ms: u64, request: Request },
    /// A node that holds a session on the forwarder asks for a certificate. The forwarder vouches for its identity.
    /// Lost: the node asks again. Repeated: another certificate; an older request of the node that is pending is
    /// refused.
    SignNode { identity: CertIdentity, observed_addr: String, csr_pem: String },
    /// A machine with a token asks to become a node. Lost: it asks again. Repeated: as [`super::JoinFrame::Join`].
    Join { observed_addr: String, request: super::JoinRequest },
    /// A node whose certificate says manager asks for a Raft member id. Lost: the node asks again. Repeated: the same
    /// id while the node holds it.
    Membership { node: NodeId, request: MembershipRequest },
    /// The sessions of one manager, so that the leader knows which nodes are alive: all of them, or those that changed.
    /// Lost: all of them are sent next. Repeated or late: ignored by `sequence`, see [`SessionDigest`].
    Sessions(SessionDigest),
    /// Live actors of the receiving manager, or of a worker in session with it. Lost, repeated or late: see
    /// [`super::ActorsAsk`].
    Actors(ActorsCall),
    /// A node whose certificate says manager reports whether its manager runtime can run. Lost: the node reports a
    /// failure again every 5 s. Repeated or late: the newest report or membership request of the node counts; one of a former
    /// process is shown until the member has taken part for 20 s.
    ReportManager { node: NodeId, report: ManagerReport },
    /// Like `SignNode`, with the pin of the certificate that the node showed. Sent from feature level 3 on, which every
    /// manager then reads. Lost or repeated: as `SignNode`.
    SignPinned { identity: CertIdentity, pin: CertificatePin, observed_addr: String, csr_pem: String },
    /// The receiver's wall time, as an encoded [`WallTime`]. Sent from feature level 3 on. Read: repeat freely. Lost,
    /// or later than 2 s: left out of this comparison of clocks.
    Clock,
    /// A node has the roots of this generation on disk. Sent only after a rotation has begun. Lost: the node
    /// repeats it. Repeated or late: no change.
    TrustRoots { node: NodeId, generation: Revision },
    /// The sender's own keyring is on disk as it says. Sent only once autolock has been on. Lost: the sender repeats it until
    /// it is on record. Repeated or late: no change.
    ReportSeal(Seal),
    /// A node that holds a session on the forwarder asks for the certificate or a JWT of a workload. The forwarder vouches for its
    /// identity, which it admitted. Sent only once a workload was set. Lost: the node asks again. Repeated: another one.
    SignWorkload { identity: CertIdentity, pin: Option<CertificatePin>, request: super::WorkloadRequest },
}

/// A request for Raft membership, made by the manager runtime once it listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembershipRequest {
    /// The address that the others should dial; the leader dials it back.
    pub advertise: String,
    /// The member id whose data this node still has on disk; `None`: it has none.
    pub held: Option<RaftId>,
    /// It was a member and lost or rejected its data: the old member is removed first.
    pub data_lost: Option<DataLoss>,
    /// The newest encoding of commands and snapshots that its build reads. Below the cluster's: refused.
    pub feature_level: u32,
}

/// What a node reports of its manager runtime. It is shown as what the change waits for; the node's membership and data
/// stay as they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagerReport {
    /// As in [`MembershipRequest`]. Below the cluster's: shown as the reason.
    pub feature_level: u32,
    /// Why the manager runtime does not run; `None`: a failure reported before is over.
    pub failure: Option<String>,
}

/// The loss of a manager's Raft data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataLoss {
    pub damaged: bool,
    pub file: String,
}

/// A host manager's report about its sessions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionDigest {
    /// Grows with each digest of this host process; an older one is ignored.
    pub sequence: u64,
    /// True: these are all; a node not named here has no session on this host. False: changes only.
    pub full: bool,
    pub sessions: Vec<SessionFact>,
}

/// One node's session as its host sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionFact {
    pub node: NodeId,
    /// `Unknown`: its connection is gone, and it is not down yet. Sent from feature level 3 on; below, such a node is `Ready`.
    pub liveness: Liveness,
    pub since: WallTime,
    pub addr: String,
    pub name: crate::model::Name,
    pub release: String,
    pub labels: std::collections::BTreeMap<String, String>,
    /// The serial of the certificate the session is authenticated with.
    pub serial: String,
    /// Random per process of the agent: two of them for one node are two processes with one identity.
    pub instance: u64,
    /// Where the connection comes from.
    pub remote: String,
    /// The processes that alternate on this host, this one among them; empty: there is only one.
    pub turns: Vec<crate::model::NodeProcess>,
}

/// Reading or changing the actor tree of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActorsCall {
    pub node: NodeId,
    pub ask: super::ActorsAsk,
}

/// The answer to a [`PeerMessage`]: one for each, so a repeated message is answered again. Lost or late: the sender gives up after
/// the deadline of its message; see there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerReply {
    /// Handed on within the receiver. Lost: the message counts as not delivered.
    Taken,
    /// Not handed on: the receiver's mailbox is full, the tag is unknown, or the message is malformed or not allowed.
    /// Lost: the message counts as not delivered, too.
    Refused { reason: String },
    /// The answer of a call. `body` depends on the call: JSON text for `Api` and `Actors`, an encoded
    /// [`super::SignReply`] for `SignNode` and `SignPinned`, a [`super::SignedWorkload`] for `SignWorkload`,
    /// [`super::JoinReply`] for `Join`, [`super::MembershipReply`] for `Membership`, an encoded [`WallTime`] for `Clock`, empty for
    /// the others. Lost: see [`PeerCall`].
    Answer(Result<Vec<u8>, ErrorBody>),
}

/// The answer to `SignNode`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignReply {
    /// The node's certificate, PEM.
    pub cert_pem: String,
    /// The root, PEM.
    pub root_pem: String,
}

/// The answer to `Membership`. Lost: the node asks again, and a repeated request is answered by the state of that time.
/// Late: a node that has given up waiting ignores it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MembershipReply {
    /// The Raft member id that was allocated or is already held; the leader will dial in. Lost: the leader dials in all
    /// the same, and a repeated request gets the same id.
    IsMember { raft_id: RaftId },
    /// Not now; ask again after the pause. `reason` is a word of the contract. Lost: the node asks again by itself.
    Wait { reason: crate::model::WaitReason, message: String, retry_after_ms: u64 },
    /// This node is not wanted as a manager. Lost: its agent learns the same from its host's view.
    NotWanted { message: String },
}
