//! Commands: guards and changes, judged together when the entry is applied.
//!
//! Whoever proposes chooses ids, times and expiries and carries them in the command, so that applying is a
//! pure function and every member computes the same state. Guards make a caller's assumptions explicit:
//! callers pipeline without a lock, and a command whose assumptions no longer hold changes nothing.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    AccessToken, Blocked, Blocker, CertificateRecord, ClusterRecord, Definition, DesiredObject, FencingToken, GateStep,
    Generation, GuardMode, GuardScope, Hold, IssuedCertificate, Liveness, ManagedKey, Name, NodeId, NodeRecord,
    NotAdmitted, Object, ObjectKey, Participant, ParticipantKey, Principal, Progress, RaftId, Removal, RequestId,
    Revision, Role, SessionId, Term, Token, Triple, Uid, User, UserPin, WallTime,
};

/// One entry's worth of change.
///
/// Repeated with the same `request`: applied at most once; the retry gets the first outcome, or is refused when that is
/// forgotten. `request` 0 is never remembered: for commands that are idempotent by themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    pub request: RequestId,
    /// The proposer's wall clock.
    pub at: WallTime,
    pub by: Principal,
    /// For the event log; short.
    pub reason: String,
    pub guards: Vec<Guard>,
    pub changes: Vec<Change>,
}

impl Command {
    /// A command that is idempotent by itself and needs no remembered outcome.
    pub fn idempotent(at: WallTime, by: Principal, reason: impl Into<String>) -> Self {
        Self { request: RequestId(0), at, by, reason: reason.into(), guards: Vec::new(), changes: Vec::new() }
    }
    /// Adds a guard.
    #[must_use]
    pub fn guard(mut self, guard: Guard) -> Self {
        self.guards.push(guard);
        self
    }
    /// Adds a change.
    #[must_use]
    pub fn change(mut self, change: Change) -> Self {
        self.changes.push(change);
        self
    }
    /// Makes a retry of this command safe.
    #[must_use]
    pub fn with_request(mut self, request: RequestId) -> Self {
        self.request = request;
        self
    }
}

/// What must hold when the command is applied. All of a command's guards hold, or nothing of it happens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Guard {
    /// No cluster has been written yet (founding).
    NotFounded,
    NodeExists(NodeId),
    NodeAbsent(NodeId),
    /// No other node has this name.
    NameFree {
        name: Name,
        except: Option<NodeId>,
    },
    DesiredRole {
        node: NodeId,
        role: Role,
    },
    Role {
        node: NodeId,
        role: Role,
    },
    /// The role was last written at exactly this revision.
    Granted {
        node: NodeId,
        granted: Revision,
    },
    Generation {
        node: NodeId,
        generation: Generation,
    },
    NodeRevision {
        node: NodeId,
        revision: Revision,
    },
    Removing {
        node: NodeId,
        removing: bool,
    },
    /// The node holds no seat in the Raft configuration.
    NoSeat(NodeId),
    NotBlocked(NodeId),
    /// At least this many other nodes, not being removed, have the desired role manager.
    OtherManagers {
        besides: NodeId,
        at_least: usize,
    },
    /// The token exists, has not expired at the command's time, and has a use left.
    TokenUsable(String),
    TokenExists(String),
    UserAbsent(Name),
    UserExists(Name),
    /// The user's certificate in force is this one.
    UserSerial {
        name: Name,
        serial: String,
    },
    BlockExpired {
        node: NodeId,
        at: WallTime,
    },
    ObjectAbsent(ObjectKey),
    /// The object is as the caller saw it.
    ObjectRevision {
        key: ObjectKey,
        revision: Revision,
    },
    /// The object is the one that the caller means, not another of the same name.
    ObjectUid {
        key: ObjectKey,
        uid: Uid,
    },
    /// The lease is held as the caller saw it, and not given up since.
    LeaseToken {
        key: ObjectKey,
        token: FencingToken,
    },
    /// The entry was proposed in this term: what its leader's clock told it still counts.
    InTerm(Term),
    /// The command's request id was chosen by its caller, `by`, and stands for one request alone, the one with this digest.
    /// Without it the id is one of Muster's own actors, which no caller can take. Judged before anything else, with the
    /// remembered outcomes. Proposed from [`IDENTITY_LEVEL`](super::IDENTITY_LEVEL) on.
    Request {
        digest: u64,
    },
}

/// What the cluster must know of an update by a Kubernetes client to protect a lease's holder from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientWrite {
    /// The client named no revision: it would overwrite whatever is there.
    pub blind: bool,
    /// `fieldManager`, where the client named one.
    pub manager: Option<String>,
}

/// One change. Those that concern a missing object are refused as `NotFound`, never a silent no-op, unless said otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// The first entry: the cluster, its founder and the founder's seat (raft id 1, voter).
    Found {
        cluster: Box<ClusterRecord>,
        founder: Box<NodeRecord>,
        tokens: Vec<Token>,
    },
    /// Writes a new node. `granted`, `generation` and `revision` are set at apply time; `certificate` and `removing`
    /// start empty. Refused if it exists, is blocked, or its name is taken.
    CreateNode(Box<NodeRecord>),
    /// Spec change: generation grows. A node that is being removed may become worker, not manager.
    SetDesiredRole {
        node: NodeId,
        role: Role,
    },
    /// Status change: `role` and `granted`. Nothing happens to a role that is held already (its certificate stays
    /// good). A node with a seat is not made worker; one that is being removed is not made manager.
    GrantRole {
        node: NodeId,
        role: Role,
    },
    /// Accepts a removal. Repeated: the first stays, unless a later one adds force.
    SetRemoving {
        node: NodeId,
        removal: Removal,
    },
    /// Deletes the record. Absent: nothing happens. Refused while the node has a seat.
    DeleteNode(NodeId),
    /// Writes a block. The expiry is at least the node's `last_not_after` plus an hour, whatever the command says.
    /// Refused unless the node has no record once the whole command is made. A block is lengthened, never shortened.
    Block(Blocked),
    /// Absent: nothing happens.
    Unblock(NodeId),
    /// Spec change: generation grows.
    UpdateLabels {
        node: NodeId,
        add: BTreeMap<String, String>,
        remove: Vec<String>,
    },
    /// What the node reports of itself. From [`IDENTITY_LEVEL`](super::IDENTITY_LEVEL) on name and labels replace those that it
    /// reported before, and the record keeps the operator's. Below: a name that another node holds is not taken over, and
    /// labels are added to those it has.
    Report {
        node: NodeId,
        name: Name,
        addr: String,
        release: String,
        labels: BTreeMap<String, String>,
    },
    SetLiveness {
        node: NodeId,
        liveness: Liveness,
    },
    /// Refused unless it is for the role in force and carries its `granted`.
    RecordCertificate {
        node: NodeId,
        certificate: CertificateRecord,
    },
    /// The cluster asks the node to renew.
    AskRotate(NodeId),
    /// The last attempt to sign for this node failed.
    CertificateFailed(NodeId),
    PutToken(Token),
    /// Takes one use, if the token counts them.
    UseToken(String),
    /// Absent: nothing happens.
    DeleteToken(String),
    PutUser(User),
    /// Absent: nothing happens.
    DeleteUser(Name),
    /// Never falls. Refused as `Stale` unless the gate of [`LEVEL_RECONCILER`](super::LEVEL_RECONCILER) leads there, which
    /// says that no manager of a lower level takes part. The same again: nothing happens.
    SetFeatureLevel(u32),
    /// Writes a new object; `created_at`, `created` and `revision` are set at apply time. A lease with a holder is
    /// acquired by it.
    CreateObject(Box<Object>),
    /// Replaces what clients write of an object: labels, annotations, owners, managers and body. Everything else stays,
    /// and a lease's holding follows from its new holder. Equal to what is there: nothing happens, no new revision.
    /// Refused as `LeaseHeld` where it would take a lease that is protected from it.
    UpdateObject {
        object: Box<Object>,
        write: ClientWrite,
    },
    /// Refused as `LeaseHeld` for a lease that a native session holds alive, unless `force`.
    DeleteObject {
        key: ObjectKey,
        force: bool,
    },
    /// A native session takes a lease: absent, given up, expired, or held under the same name (by the same session: it
    /// is renewed; by another: it passes to this one under a new token). Refused as `LeaseHeld` otherwise.
    AcquireLease {
        key: ObjectKey,
        holder: String,
        session: SessionId,
        duration_ms: u64,
        /// Of the lease, should it be new.
        uid: Uid,
    },
    /// The holder gives it up. Already given up by it: nothing happens. Refused as `Stale` when it is another's.
    ReleaseLease {
        key: ObjectKey,
        session: SessionId,
        token: FencingToken,
    },
    /// The leader's clock ran out. Clients of Kubernetes do not see it: no new revision.
    ExpireLease(ObjectKey),
    /// `None`: the wider setting counts again.
    SetGuard {
        scope: GuardScope,
        mode: Option<GuardMode>,
    },
    PutAccessToken(AccessToken),
    /// Absent: nothing happens.
    DeleteAccessToken(String),
    Reconciler(ReconcilerChange),
    /// For the event log alone: these processes use the identity of one node. None: they do not any more.
    NoteDuplicate {
        node: NodeId,
        processes: Vec<String>,
    },
    /// The operator's name for a node: generation grows. Refused as `NameTaken` where it is another node's, or begins another
    /// node's id. The same again: nothing happens. Of [`IDENTITY_LEVEL`](super::IDENTITY_LEVEL).
    RenameNode {
        node: NodeId,
        name: Name,
    },
    /// Feature level 3. In place of `RecordCertificate`: the node's newest certificate. `held`: the one that the node showed
    /// when it asked, which stays valid beside it; `None`: the newest one before does. Refused like `RecordCertificate`, and
    /// as `Stale` unless `replaces` is the serial of the newest one before. The same serial again completes what is recorded.
    IssueCertificate {
        node: NodeId,
        certificate: Box<IssuedCertificate>,
        held: Option<Box<IssuedCertificate>>,
        replaces: Option<String>,
    },
    /// Feature level 3. The node is asked to renew, and what it holds now stops to count once it is seen with what it gets.
    RevokeCertificates(NodeId),
    /// Feature level 3. The node was seen with the certificate of this serial. It ends a revocation; otherwise, and if that
    /// is not the newest one, nothing happens.
    CertificateSeen {
        node: NodeId,
        serial: String,
    },
    /// Feature level 3. Beside `PutUser`. Refused unless it is the serial of the user's certificate in force.
    PinUser {
        name: Name,
        pin: UserPin,
    },
}

impl Change {
    /// The object that it is about, if it is about one.
    pub fn object(&self) -> Option<ObjectKey> {
        match self {
            Change::CreateObject(object) | Change::UpdateObject { object, .. } => Some(object.key()),
            Change::DeleteObject { key, .. }
            | Change::AcquireLease { key, .. }
            | Change::ReleaseLease { key, .. }
            | Change::ExpireLease(key) => Some(key.clone()),
            Change::Reconciler(ReconcilerChange::Leave(key) | ReconcilerChange::Drain(key)) => Some(key.lease()),
            _ => None,
        }
    }
}

/// What happens to reconcilers, their gates and the participants of their scopes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReconcilerChange {
    /// One per name and release. Another digest is refused as `Exists`, unless `replace`. The same: nothing happens.
    Define {
        definition: Box<Definition>,
        replace: bool,
    },
    /// Definitions, gate and progress go; what was applied stays, and belongs to nobody.
    Forget {
        reconciler: String,
    },
    /// `since` and `revision` are set at apply time. Refused unless the lease named by its key is held under its token.
    /// Repeated: nothing happens.
    Announce(Box<Participant>),
    /// Announced becomes serving, if every gate lets it in as of this entry. Serving already: nothing happens.
    Admit(ParticipantKey),
    /// Told to stop. Of one that only waits: it is forgotten.
    Drain(ParticipantKey),
    /// It is gone, and so is its lease. Absent: nothing happens.
    Leave(ParticipantKey),
    /// A runner's step, judged by the gate as of this entry. Refused as `Stale` unless `term` is the token under which
    /// the runner's lease is held, the definition is the one of this digest and the gate is at this epoch (of one that is
    /// not there: see [`Reconcilers::epoch_of`](super::Reconcilers::epoch_of)); as `Held` or `InTheWay` where the definition does not lead there now. A
    /// step that is taken already changes nothing.
    Step {
        reconciler: String,
        release: Triple,
        digest: String,
        term: FencingToken,
        epoch: u64,
        step: GateStep,
    },
    /// A runner writes or deletes (`None`) an object of its reconciler. Refused as `Stale` unless `term` is in force
    /// and the gate leads to, or stands at, the definition of this release and digest; as `Exists` where the object is
    /// somebody else's.
    Apply {
        reconciler: String,
        release: Triple,
        digest: String,
        term: FencingToken,
        key: ManagedKey,
        object: Option<Box<DesiredObject>>,
    },
    /// Anybody else's write of such an object. Whose it is stays.
    PutObject(Box<DesiredObject>),
    /// Anybody else's deletion. Absent: `NotFound`.
    DeleteObject(ManagedKey),
    /// Refused as `Stale` unless its term is in force.
    Progress(Box<Progress>),
    Pause {
        reconciler: String,
        paused: bool,
    },
    /// Of one digest: another one asks again.
    Finalize {
        reconciler: String,
        digest: String,
    },
    /// Whoever gave up begins again; this digest may take the place of another build's of its release.
    Retry {
        reconciler: String,
        digest: Option<String>,
    },
    /// An earlier entry of the gate's history is in force again, under a new epoch. Whoever serves and may not with it
    /// is told to stop.
    Repair {
        reconciler: String,
        epoch: u64,
    },
    /// The floor, by hand. Whoever serves below it is told to stop.
    ForceFloor {
        reconciler: String,
        floor: Triple,
    },
    /// As if nothing had ever been applied: nobody is admitted until a run has succeeded. Who serves is not touched.
    DeleteGate {
        reconciler: String,
    },
}

/// Why a command changed nothing. Part of the conversation, not a fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum CommandRefusal {
    #[error("no such {what}: {id}")]
    NotFound { what: String, id: String },
    #[error("the {what} {id} exists already")]
    Exists { what: String, id: String },
    #[error("the name {name} is taken by node {node}")]
    NameTaken { name: Name, node: NodeId },
    /// A guard did not hold: what the caller believed is no longer true.
    #[error("changed meanwhile: {what}")]
    Stale { what: String },
    #[error("node {node} holds seat {raft_id} in the raft configuration")]
    HasSeat { node: NodeId, raft_id: RaftId },
    #[error("node {node} is blocked until {until}")]
    Blocked { node: NodeId, until: WallTime },
    #[error("it would leave no manager")]
    LastManager,
    #[error("node {node} is being removed")]
    BeingRemoved { node: NodeId },
    #[error("the token {id} expired at {at}")]
    TokenExpired { id: String, at: WallTime },
    #[error("the token {id} has no use left")]
    TokenUsedUp { id: String },
    #[error("this cluster was founded before")]
    AlreadyFounded,
    /// Held by somebody whose time has not run out by the leader's clock.
    #[error("{key} is held by {holder}, whose time has not run out")]
    LeaseHeld { key: ObjectKey, holder: String, token: FencingToken },
    #[error("this needs feature level {needs}, and the cluster is at {level}: it rises once every manager knows it")]
    FeatureLevel { needs: u32, level: u32 },
    #[error("not admitted: {0}")]
    NotAdmitted(NotAdmitted),
    #[error("{0}")]
    Held(Hold),
    /// Some serve who could not live with it; not all are named.
    #[error("{in_all} serve that could not live with it, {} among them", blockers.first().map_or("", |b| &b.member))]
    InTheWay { blockers: Vec<Blocker>, in_all: usize },
    /// The operator's labels of a node would be more than it may have.
    #[error("node {node} would have {why}")]
    TooManyLabels { node: NodeId, why: String },
    /// The same caller used the id for something else. (Boxed: the alignment of 128 bits would make every refusal larger.)
    #[error("the request id {0} stands for another request of yours already: use a new one for each request")]
    RequestReused(Box<RequestId>),
    /// Its outcome, if it had one, is forgotten.
    #[error(
        "whether request {0} was done before is no longer remembered: look at what it would have changed, then use a new \
         request id (ids begin with the time; a clock that is far behind makes old ones)"
    )]
    OutcomeForgotten(Box<RequestId>),
    /// Ids begin with the time.
    #[error(
        "the request id {id} begins with the time {}, and the leader's clock says {now}: ids begin with 48 bits of \
         milliseconds since 1970 (as a UUID of version 7 does), and at most a day ahead", .id.time()
    )]
    RequestAhead { id: Box<RequestId>, now: WallTime },
}

impl From<CommandRefusal> for super::ErrorBody {
    fn from(refusal: CommandRefusal) -> Self {
        use super::ErrorCode;
        let code = match &refusal {
            CommandRefusal::NotFound { .. } => ErrorCode::NotFound,
            CommandRefusal::Exists { .. }
            | CommandRefusal::NameTaken { .. }
            | CommandRefusal::Stale { .. }
            | CommandRefusal::BeingRemoved { .. }
            | CommandRefusal::AlreadyFounded
            | CommandRefusal::LeaseHeld { .. } => ErrorCode::Conflict,
            CommandRefusal::FeatureLevel { .. }
            | CommandRefusal::NotAdmitted(_)
            | CommandRefusal::Held(_)
            | CommandRefusal::InTheWay { .. } => ErrorCode::GateClosed,
            CommandRefusal::HasSeat { .. } => ErrorCode::DemoteFirst,
            CommandRefusal::Blocked { .. } => ErrorCode::Blocked,
            CommandRefusal::LastManager => ErrorCode::LastManager,
            CommandRefusal::TokenExpired { .. } => ErrorCode::TokenExpired,
            CommandRefusal::TokenUsedUp { .. } => ErrorCode::TokenUsedUp,
            CommandRefusal::TooManyLabels { .. } => ErrorCode::TooLarge,
            CommandRefusal::RequestReused(_) => ErrorCode::Conflict,
            CommandRefusal::OutcomeForgotten(_) => ErrorCode::UnknownOutcome,
            CommandRefusal::RequestAhead { .. } => ErrorCode::Invalid,
        };
        let error = super::ErrorBody::new(code, refusal.to_string());
        // No leader will ever know more.
        if matches!(refusal, CommandRefusal::OutcomeForgotten(_)) { error.finally() } else { error }
    }
}

/// A change of the Raft configuration, carried in the context of the configuration entry and judged at apply
/// time by every member alike. A refused one is applied as nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeatChange {
    pub at: WallTime,
    pub by: Principal,
    pub kind: SeatChangeKind,
}

/// The kinds of [`SeatChange`]. Raft ids come from the replicated counter: `AddLearner` names the value it expects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SeatChangeKind {
    /// Guard: the node exists, its role and desired role are manager, it is not being removed nor blocked, holds no
    /// seat, and `raft_id` is the counter's next value.
    AddLearner { node: NodeId, raft_id: RaftId, addr: String },
    /// Guard: the node exists, wants manager, is not being removed, and holds this learner seat.
    PromoteLearner { node: NodeId, raft_id: RaftId },
    /// Guard: the seat exists and is not the last voter. The raft id is written to the removed ones.
    Remove { raft_id: RaftId },
    /// The member's address changed (it restarted on another port). Guard: the seat exists.
    SetAddress { raft_id: RaftId, addr: String },
}
