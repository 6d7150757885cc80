//! Commands: guards and changes, judged together when the entry is applied.
//!
//! The proposer chooses ids, times and expiries and carries them in the command, so that applying is a pure function and every
//! member computes the same state. Guards make the caller's assumptions explicit: callers pipeline without a lock, and a
//! command whose assumptions no longer hold changes nothing.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    AccessToken, AuthorityChange, AuthorityRefusal, AutolockChange, AutolockRefusal, AutopilotStep, Blocked, Blocker,
    CertificateRecord, ClusterRecord, DEFINITIONS_LEVEL, Definition, DesiredObject, FencingToken, GateStep, Generation,
    GuardMode, GuardScope, Hold, IssuedCertificate, Liveness, ManagedKey, Name, NodeId, NodeRecord, NotAdmitted,
    Object, ObjectKey, Participant, ParticipantKey, Principal, Progress, RECONCILERS_LEVEL, RaftId, Removal, RequestId,
    Revision, Role, RunRecord, SessionId, Term, Token, Triple, Uid, User, UserPin, WallTime, WorkloadChange,
    WorkloadRefusal,
};

/// The changes of one log entry.
///
/// Repeated with the same `request`: applied at most once; the retry gets the first outcome, or is refused if that is
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
    /// Whether each of its changes, of which there is one at least, is of objects: it changes nothing else, except for what every
    /// command changes (revision, outcomes) and events of leases.
    pub fn is_of_objects(&self) -> bool {
        !self.changes.is_empty() && self.changes.iter().all(Change::is_of_objects)
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

/// Conditions for applying a command. If one of a command's guards fails, the command has no effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Guard {
    /// The cluster is not founded yet.
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
    /// The node is not a Raft member.
    NotMember(NodeId),
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
    /// The object is unchanged since the caller read it.
    ObjectRevision {
        key: ObjectKey,
        revision: Revision,
    },
    /// The object is the one that the caller means, not another one with the same name.
    ObjectUid {
        key: ObjectKey,
        uid: Uid,
    },
    /// The lease has the holder that the caller saw, and was not released since.
    LeaseToken {
        key: ObjectKey,
        token: FencingToken,
    },
    /// The entry was proposed in this term: its leader's clock readings are still valid.
    InTerm(Term),
    /// The caller, `by`, chose the command's request id, which stands only for the request with this digest. Without this guard the
    /// id is one of Muster's own actors, which no caller can use. Judged first, with the remembered outcomes. Proposed from
    /// [`IDENTITY_LEVEL`](super::IDENTITY_LEVEL) on.
    Request {
        digest: u64,
    },
}

/// What the cluster must know about a Kubernetes client's update to protect a lease's holder from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientWrite {
    /// The client named no revision: it would overwrite any state.
    pub blind: bool,
    /// `fieldManager`, if the client named one.
    pub manager: Option<String>,
}

/// One change. If its object is missing, it is refused as `NotFound`, never ignored, unless stated otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// The first entry: the cluster, its founder and the founder's membership (raft id 1, voter).
    Found {
        cluster: Box<ClusterRecord>,
        founder: Box<NodeRecord>,
        tokens: Vec<Token>,
    },
    /// Writes a new node. `granted`, `generation` and `revision` are set at apply time; `certificate` and `removing` start
    /// empty. Refused if the node exists, is blocked, or its name is taken.
    CreateNode(Box<NodeRecord>),
    /// Spec change: generation grows. A node that is being removed may become worker, not manager.
    SetDesiredRole {
        node: NodeId,
        role: Role,
    },
    /// Status change: `role` and `granted`. A role that is already granted stays unchanged (its certificate stays valid). A
    /// Raft member cannot be made worker; a node being removed cannot be made manager.
    GrantRole {
        node: NodeId,
        role: Role,
    },
    /// Accepts a removal. Repeated: the first one stays, unless a later one adds force.
    SetRemoving {
        node: NodeId,
        removal: Removal,
    },
    /// Deletes the record. Absent: no change. Refused while the node is a Raft member.
    DeleteNode(NodeId),
    /// Writes a block. It lasts at least until the node's `last_not_after` plus an hour, whatever the command says. Refused if
    /// the node still has a record after the whole command. A block is lengthened, never shortened.
    Block(Blocked),
    /// Absent: no change.
    Unblock(NodeId),
    /// Spec change: generation grows.
    UpdateLabels {
        node: NodeId,
        add: BTreeMap<String, String>,
        remove: Vec<String>,
    },
    /// A node's report about itself. From [`IDENTITY_LEVEL`](super::IDENTITY_LEVEL) on name and labels replace those of its last
    /// report, and the record keeps the operator's. Below: a name of another node is not adopted, and labels are added to the
    /// existing ones.
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
    /// Refused unless it is for the granted role and carries its `granted`.
    RecordCertificate {
        node: NodeId,
        certificate: CertificateRecord,
    },
    /// Requests a renewal from the node.
    AskRotate(NodeId),
    /// The last attempt to sign for this node failed.
    CertificateFailed(NodeId),
    PutToken(Token),
    /// Takes one use, if uses are limited.
    UseToken(String),
    /// Absent: no change.
    DeleteToken(String),
    PutUser(User),
    /// Absent: no change.
    DeleteUser(Name),
    /// Never falls. Refused as `Stale` unless the gate of [`LEVEL_RECONCILER`](super::LEVEL_RECONCILER) leads to it, which
    /// means that no participating manager has a lower level. Repeated: no change.
    SetFeatureLevel(u32),
    /// Writes a new object; `created_at`, `created` and `revision` are set at apply time. The holder of a new lease acquires
    /// it.
    CreateObject(Box<Object>),
    /// Replaces the part of an object that clients write: labels, annotations, owners, managers and body. A lease's holding
    /// follows from its new holder. Equal to the existing object: no change, no new revision. Refused as `LeaseHeld` if it
    /// would take a lease that is protected from it.
    UpdateObject {
        object: Box<Object>,
        write: ClientWrite,
    },
    /// Refused as `LeaseHeld` for a lease that a native session holds alive, unless `force`.
    DeleteObject {
        key: ObjectKey,
        force: bool,
    },
    /// A native session takes a lease that is absent, released, expired, or held under the same name (by the same session: it
    /// is renewed; by another: it passes to this one under a new token). Refused as `LeaseHeld` otherwise.
    AcquireLease {
        key: ObjectKey,
        holder: String,
        session: SessionId,
        duration_ms: u64,
        /// For a new lease.
        uid: Uid,
    },
    /// The holder releases it. Already released by it: no change. Refused as `Stale` if another holds it.
    ReleaseLease {
        key: ObjectKey,
        session: SessionId,
        token: FencingToken,
    },
    /// The lease ran out by the leader's clock. Kubernetes clients do not see it: no new revision.
    ExpireLease(ObjectKey),
    /// `None`: the wider setting applies again.
    SetGuard {
        scope: GuardScope,
        mode: Option<GuardMode>,
    },
    PutAccessToken(AccessToken),
    /// Absent: no change.
    DeleteAccessToken(String),
    Reconciler(ReconcilerChange),
    /// Only for the event log: these processes use one node's identity. Empty: they no longer do.
    RecordDuplicate {
        node: NodeId,
        processes: Vec<String>,
    },
    /// The operator's name for a node: generation grows. Refused as `NameTaken` if another node has it, or another node's id begins
    /// with it. Repeated: no change. From [`IDENTITY_LEVEL`](super::IDENTITY_LEVEL) on.
    RenameNode {
        node: NodeId,
        name: Name,
    },
    /// Feature level 3. Replaces `RecordCertificate`: the node's newest certificate. `held`: the one that the node presented with
    /// its request, which stays valid beside it; `None`: the previous newest one does. Refused like `RecordCertificate`, and
    /// as `Stale` unless `replaces` is the serial of the previous newest one. The same serial again completes the record.
    IssueCertificate {
        node: NodeId,
        certificate: Box<IssuedCertificate>,
        held: Option<Box<IssuedCertificate>>,
        replaces: Option<String>,
    },
    /// Feature level 3. Requests a renewal; the node's current certificate stops counting once the node is seen with the new one.
    RevokeCertificates(NodeId),
    /// Feature level 3. The node was seen with the certificate of this serial. Ends a revocation; without one, or if the
    /// certificate is not the newest, no change.
    CertificateSeen {
        node: NodeId,
        serial: String,
    },
    /// Feature level 3. Beside `PutUser`. Refused unless it has the serial of the user's valid certificate.
    PinUser {
        name: Name,
        pin: UserPin,
    },
    /// Feature level 3.
    Authority(Box<AuthorityChange>),
    /// Feature level 3.
    Autolock(Box<AutolockChange>),
    /// Feature level 3.
    Workload(Box<WorkloadChange>),
    /// Feature level 5.
    Autopilot(Box<AutopilotStep>),
}

impl Change {
    fn is_of_objects(&self) -> bool {
        use Change as C;
        matches!(
            self,
            C::CreateObject(_)
                | C::UpdateObject { .. }
                | C::DeleteObject { .. }
                | C::AcquireLease { .. }
                | C::ReleaseLease { .. }
                | C::ExpireLease(_)
        )
    }

    /// The object that it concerns, if any.
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

/// Changes of reconcilers, their gates and the participants of their scopes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReconcilerChange {
    /// One per name and release. Another digest is refused as `Exists`, unless `replace`. The same one: no change.
    Define {
        definition: Box<Definition>,
        replace: bool,
    },
    /// Deletes definitions, gate and progress; applied objects stay, without an owner.
    Forget {
        reconciler: String,
    },
    /// `since` and `revision` are set at apply time. Refused unless the lease named by its key is held under its token.
    /// Repeated: no change.
    Announce(Box<Participant>),
    /// An announced participant starts serving, if every gate admits it as of this entry. Already serving: no change.
    Admit(ParticipantKey),
    /// Asks the participant to stop. One that only waits is deleted.
    Drain(ParticipantKey),
    /// Deletes the participant and its lease. Absent: no change.
    Leave(ParticipantKey),
    /// A runner's step, judged by the gate as of this entry. Refused as `Stale` unless `term` is the token of the runner's
    /// lease, the definition has this digest and the gate has this epoch (of a missing gate: see
    /// [`Reconcilers::epoch_of`](super::Reconcilers::epoch_of)); as `Held` or `BlockedByMembers` if the definition does not lead there now. A
    /// step that was already taken changes nothing.
    Step {
        reconciler: String,
        release: Triple,
        digest: String,
        term: FencingToken,
        epoch: u64,
        step: GateStep,
    },
    /// A runner writes or deletes (`None`) an object of its reconciler. Refused as `Stale` unless `term` is in force and the
    /// gate leads to, or is at, the definition of this release and digest; as `Exists` if the object has another owner.
    Apply {
        reconciler: String,
        release: Triple,
        digest: String,
        term: FencingToken,
        key: ManagedKey,
        object: Option<Box<DesiredObject>>,
    },
    /// A write of such an object by another caller. Its owner stays.
    PutObject(Box<DesiredObject>),
    /// A deletion by another caller. Absent: `NotFound`.
    DeleteObject(ManagedKey),
    /// Refused as `Stale` unless its term is in force.
    Progress(Box<Progress>),
    Pause {
        reconciler: String,
        paused: bool,
    },
    /// For one digest: another digest needs another one.
    Finalize {
        reconciler: String,
        digest: String,
    },
    /// A runner that gave up starts again; this digest may replace another build's of its release.
    Retry {
        reconciler: String,
        digest: Option<String>,
    },
    /// An earlier entry of the gate's history takes effect again, with a new epoch. Serving members that it does not admit are
    /// asked to stop.
    Repair {
        reconciler: String,
        epoch: u64,
    },
    /// Sets the floor by hand. Serving members below it are asked to stop.
    ForceFloor {
        reconciler: String,
        floor: Triple,
    },
    /// Resets the gate: no member is admitted until a run has succeeded. Serving members continue.
    DeleteGate {
        reconciler: String,
    },
    /// Feature level 5. A runner has carried out a step of its chain. Refused as `Stale` unless `term` is in force, the gate leads
    /// to, or is at, the definition of this release and digest, and it is the next step of its chain. On record already: no
    /// change. Refused as `Stale`, too, if the definition was deleted and applied again since: the chain begins anew.
    StepDone {
        reconciler: String,
        release: Triple,
        digest: String,
        /// The revision of the definition by which it ran.
        defined: Revision,
        term: FencingToken,
        step: String,
    },
    /// Feature level 5. A runner records one of its runs, when it begins and when it ends; `number` and `revision` are set at apply
    /// time. Refused as `Stale` unless its term is in force. The same run again: its record is replaced.
    RecordRun(Box<RunRecord>),
}

impl ReconcilerChange {
    /// The feature level from which on every build can read it.
    pub fn needs_level(&self) -> u32 {
        match self {
            Self::Define { definition, .. } => definition.needs_level(),
            Self::StepDone { .. } | Self::RecordRun(_) => DEFINITIONS_LEVEL,
            _ => RECONCILERS_LEVEL,
        }
    }
}

/// Why a command changed nothing: an answer, not a fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum CommandRefusal {
    #[error("no such {what}: {id}")]
    NotFound { what: String, id: String },
    #[error("the {what} {id} already exists")]
    Exists { what: String, id: String },
    #[error("the name {name} is taken by node {node}")]
    NameTaken { name: Name, node: NodeId },
    /// A guard failed: the caller's assumption no longer holds.
    #[error("changed meanwhile: {what}")]
    Stale { what: String },
    #[error("node {node} is Raft member {raft_id}")]
    StillMember { node: NodeId, raft_id: RaftId },
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
    #[error("this cluster is already founded")]
    AlreadyFounded,
    /// The holder's time has not run out by the leader's clock.
    #[error("{key} is held by {holder}, whose time has not run out")]
    LeaseHeld { key: ObjectKey, holder: String, token: FencingToken },
    #[error("this needs feature level {needs}, and the cluster is at {level}: it rises once every manager supports it")]
    FeatureLevel { needs: u32, level: u32 },
    #[error("not admitted: {0}")]
    NotAdmitted(NotAdmitted),
    #[error("{0}")]
    Held(Hold),
    /// Some serving members are incompatible with it; not all are named.
    #[error("serving members incompatible with it: {in_all}, {} among them", blockers.first().map_or("", |b| &b.member))]
    BlockedByMembers { blockers: Vec<Blocker>, in_all: usize },
    /// The operator's labels of a node would exceed the limit.
    #[error("node {node} would have {why}")]
    TooManyLabels { node: NodeId, why: String },
    /// The same caller used the id for another request. (Boxed: the alignment of 128 bits would make every refusal larger.)
    #[error("request id {0} was already used for a different request: use a new id for each request")]
    RequestReused(Box<RequestId>),
    /// Its outcome, if any, is forgotten.
    #[error(
        "the outcome of request {0} is no longer remembered: check what it would have changed, then use a new \
         request id (ids begin with the time; a clock that is far behind makes old ones)"
    )]
    OutcomeForgotten(Box<RequestId>),
    /// Ids begin with the time.
    #[error(
        "the request id {id} begins with the time {}, and the leader's clock says {now}: ids begin with 48 bits of \
         milliseconds since 1970 (as a UUID of version 7 does), and at most a day ahead", .id.time()
    )]
    RequestAhead { id: Box<RequestId>, now: WallTime },
    #[error("{0}")]
    Authority(AuthorityRefusal),
    #[error("{0}")]
    Autolock(AutolockRefusal),
    #[error("{0}")]
    Workload(WorkloadRefusal),
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
            | CommandRefusal::BlockedByMembers { .. } => ErrorCode::GateClosed,
            CommandRefusal::StillMember { .. } => ErrorCode::DemoteFirst,
            CommandRefusal::Blocked { .. } => ErrorCode::Blocked,
            CommandRefusal::LastManager => ErrorCode::LastManager,
            CommandRefusal::TokenExpired { .. } => ErrorCode::TokenExpired,
            CommandRefusal::TokenUsedUp { .. } => ErrorCode::TokenUsedUp,
            CommandRefusal::TooManyLabels { .. } => ErrorCode::TooLarge,
            CommandRefusal::RequestReused(_) => ErrorCode::Conflict,
            CommandRefusal::OutcomeForgotten(_) => ErrorCode::UnknownOutcome,
            CommandRefusal::RequestAhead { .. } => ErrorCode::Invalid,
            CommandRefusal::Authority(
                AuthorityRefusal::HasNoKey { .. }
                | AuthorityRefusal::KnownToOthers(_)
                | AuthorityRefusal::NotFormer { .. }
                | AuthorityRefusal::NotRequested(_),
            ) => ErrorCode::Conflict,
            CommandRefusal::Authority(AuthorityRefusal::SameKey(_)) => ErrorCode::SameKey,
            CommandRefusal::Authority(AuthorityRefusal::TooManyRoots) => ErrorCode::TooManyRoots,
            CommandRefusal::Authority(
                AuthorityRefusal::RootInUse { .. }
                | AuthorityRefusal::Workloads { .. }
                | AuthorityRefusal::NoMajority { .. }
                | AuthorityRefusal::MayBeValid { .. },
            ) => ErrorCode::RootInUse,
            CommandRefusal::Autolock(AutolockRefusal::NotEnabled) => ErrorCode::NotEnabled,
            CommandRefusal::Autolock(AutolockRefusal::TooManyKeys { .. }) => ErrorCode::TooManyKeys,
            CommandRefusal::Workload(WorkloadRefusal::TooMany) => ErrorCode::StateFull,
            CommandRefusal::Workload(WorkloadRefusal::Malformed(_)) => ErrorCode::Invalid,
        };
        let error = super::ErrorBody::new(code, refusal.to_string());
        // No leader will ever know more.
        if matches!(refusal, CommandRefusal::OutcomeForgotten(_)) { error.finally() } else { error }
    }
}

/// A change of the Raft configuration, carried in the context of the configuration entry and judged at apply time by every
/// member alike. A refused change has no effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembershipChange {
    pub at: WallTime,
    pub by: Principal,
    pub kind: MembershipChangeKind,
}

/// The kinds of [`MembershipChange`]. Raft ids come from the replicated counter: `AddLearner` names the value it expects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MembershipChangeKind {
    /// Guard: the node exists, its role and desired role are manager, it is neither being removed nor blocked, is not a member,
    /// and `raft_id` is the counter's next value.
    AddLearner { node: NodeId, raft_id: RaftId, addr: String },
    /// Guard: the node exists, its desired role is manager, it is not being removed, and it is this learner.
    PromoteLearner { node: NodeId, raft_id: RaftId },
    /// Guard: the member exists and is not the last voter. The raft id is added to the removed ones.
    Remove { raft_id: RaftId },
    /// The member's address changed (it restarted on another port). Guard: the member exists.
    SetAddress { raft_id: RaftId, addr: String },
}
