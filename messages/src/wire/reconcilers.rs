//! Reconcilers over `muster-api/1`: the requests of operators, participants, candidates and runners. Answers are JSON text as for
//! every request.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::{
    AdmissionReason, Blocker, DEFINITIONS_LEVEL, Definition, DefinitionTiming, FencingToken, GatePath, GateStep,
    HoldView, ManagedKey, NodeId, Participant, ParticipantKey, ParticipantPhase, Progress, RECONCILERS_LEVEL, Release,
    Revision, RunRecord, RunnerChoice, Triple, Word,
};

/// Requests about reconcilers. Reads and writes behave as described at [`super::Request`]. A remembered refusal is repeated under
/// its request id, too: asking again because the state may have changed needs another id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReconcilerRequest {
    /// `{"definitions":[{"name","release","digest","changed"}]}`. The server fills in digests. Operators only; managers
    /// for the built-in reconcilers. Write: by request id, see [`super::Request`]. Repeated under another id: no
    /// change.
    Apply { definitions: Vec<Definition>, replace: bool },
    /// `{"revision","items":[STATUS…]}`. Read: repeat freely.
    List,
    /// STATUS, once its revision is after `seen`, or after `wait_ms`. Read: repeat freely.
    Status { name: String, seen: Revision, wait_ms: u64 },
    /// What a definition would do now: `{"name","release","path","objects":[{"op","key"}…],"blockers":[…],"gate"}`.
    /// `None`: the newest one. Read: repeat freely.
    Plan { name: String, release: Option<Triple> },
    /// `{"name","history":[GATE…]}`, newest last. Read: repeat freely.
    History { name: String },
    /// `{}`. Write: by request id, see [`super::Request`]. Repeated under another id: set again, the last one written
    /// wins.
    Pause { name: String, paused: bool },
    /// `{"name","release","digest"}`. A definition may pass the point of no return: once. `None`: the one that STATUS
    /// shows. Write: by request id, see [`super::Request`]. Repeated under another id: no change before it is used;
    /// afterwards it allows that once more.
    Finalize { name: String, release: Option<Triple> },
    /// `{"name","release","digest"}`. `None`: the definition that STATUS shows. Write: by request id, see
    /// [`super::Request`]. Repeated under another id: one more retry.
    Retry { name: String, release: Option<Triple> },
    /// `{}`. Takes the gate back to what it was at `epoch`. Write: by request id, see [`super::Request`]. Repeated
    /// under another id: the same content as another epoch.
    Repair { name: String, epoch: u64 },
    /// `{"excluded":[member…]}`. With `dry_run` nothing changes. Write: by request id, see [`super::Request`]. Repeated
    /// under another id: the same floor as another epoch.
    ForceFloor { name: String, floor: Triple, dry_run: bool },
    /// `{}`. Write: by request id, see [`super::Request`]. Repeated under another id: `not_found`.
    DeleteGate { name: String },
    /// `{}`. Everything under the name, except what was applied. Write: by request id, see [`super::Request`]. Repeated
    /// under another id: `not_found`.
    Delete { name: String },

    /// `{"revision","items":[MEMBER…]}`. Read: repeat freely.
    MemberList { scope: Option<String> },
    /// For an external member, or one whose lease an operator does not want to wait for: the caller vouches that it has
    /// ended. Write: by request id, see [`super::Request`]. Repeated: `not_found`, since no start of it is left.
    MemberForget { scope: String, member: String },
    /// Asks a member to stop serving. Write: by request id, see [`super::Request`]. Repeated: no change, or
    /// `not_found` once it has left.
    MemberDrain { scope: String, member: String },

    /// `{"revision","items":[OBJECT…]}`. Read: repeat freely.
    ObjectList { kind: Option<String>, namespace: Option<String> },
    /// OBJECT. Read: repeat freely.
    ObjectGet { key: ManagedKey },
    /// OBJECT. By hand; a reconciler that owns the object will repair it. Write: by request id, see [`super::Request`].
    /// Repeated under another id: no change while the object is equal, otherwise written again.
    ObjectPut { key: ManagedKey, labels: BTreeMap<String, String>, body: String },
    /// `{}`. Write: by request id, see [`super::Request`]. Repeated under another id: `not_found`.
    ObjectDelete { key: ManagedKey },

    /// ADMISSION. The lease named by its key must be held by the caller. Write: by request id, see [`super::Request`].
    /// Repeated under another id: no change; `conflict` with another release, lease or needs. Late: refused once that
    /// lease has ended.
    Announce { participant: Participant },
    /// ADMISSION: `phase` is `serving` if every gate admits it. Write: by request id, see [`super::Request`]. Repeated
    /// under another id: no change once it serves, otherwise decided anew.
    Admit { key: ParticipantKey },
    /// ADMISSION once something that concerns it has changed after `seen`, or after `wait_ms`. Read: repeat freely.
    Admission { key: ParticipantKey, seen: Revision, wait_ms: u64 },
    /// `{}`. Gone already: the same. Write: by request id, see [`super::Request`]. Repeated under another id: no
    /// change.
    Leave { key: ParticipantKey },

    /// [`Definitions`]: every reconciler that has a definition of this release, once something has changed after
    /// `seen`, or after `wait_ms`. Read: repeat freely.
    Definitions { release: Triple, seen: Revision, wait_ms: u64 },
    /// [`RunnerView`] once something has changed after `seen`, the runner's term too, or after `wait_ms`. Progress does
    /// not count as a change. Read: repeat freely.
    View { name: String, release: Triple, seen: Revision, wait_ms: u64 },
    /// `{"epoch","revision"}`. A runner's step; `gate_closed` with the blockers in its details where it is refused.
    /// Write: by request id, see [`super::Request`]. Repeated under another id: no change if the gate is where the step
    /// leads in this term. Late: refused once the term is over or the epoch has passed.
    Step { name: String, release: Triple, digest: String, term: FencingToken, epoch: u64, step: GateStep },
    /// `{"created","updated","deleted","unchanged","errors":[{"key","message"}],"waiting"}`. One wave of an object set, unless it waits
    /// for a condition, which `waiting` names: then nothing is written. After the
    /// last one, objects that are no longer wanted are deleted. Each object is a write of its own, so an error can
    /// leave some written. Lost: ask again. Repeated: writes only what differs still. Late: refused once the term is
    /// over or the definition is another one.
    Wave { name: String, release: Triple, digest: String, term: FencingToken, wave: u32 },
    /// `{}`. Written as it comes; the runner spaces its reports by a second. Lost: the next one has all of it.
    /// Repeated: written again. Late: refused once the term is over.
    Progress { progress: Progress },
    /// `{"feature_level"}`. What the runner of [`LEVEL_RECONCILER`](crate::LEVEL_RECONCILER) does. Managers only. Lost:
    /// ask again. Repeated: no change. Late: refused once its term is over.
    RaiseLevel { level: u32, term: FencingToken },
    /// `{"revision"}`. A runner has carried out a step of its chain. Write: by request id, see [`super::Request`]. Lost: ask again,
    /// before the next step begins. Repeated under another id: no change. Late: refused once the term is over or the definition
    /// is another one: `defined` is its revision, which differs if the same content was applied again after a deletion.
    StepDone { name: String, release: Triple, digest: String, defined: Revision, term: FencingToken, step: String },

    /// OBJECTS: what has changed after `seen`, and what was deleted, once there is something, or after `wait_ms`; `expired` if that is
    /// no longer known here. All objects if `seen` is 0. A long answer ends early; its revision is where to go on. Read: repeat freely.
    ObjectChanges { kind: Option<String>, namespace: Option<String>, seen: Revision, wait_ms: u64 },
    /// MEMBER. An external member, for which the caller vouches: announced and admitted at once, or refused and not recorded. Write:
    /// by request id, see [`super::Request`]. Repeated under another id: no change; `conflict` with another release or other needs.
    /// Late: admitted again, if it was forgotten in between.
    MemberAnnounce {
        scope: String,
        member: String,
        release: Triple,
        needs: BTreeMap<String, Triple>,
        /// Also in a scope that no reconciler has, where it blocks nothing.
        allow_undefined_scope: bool,
    },
    /// `{}`. A runner records one of its runs, when it begins and when it ends. Sent only if its view has `records_runs`. Write: by
    /// request id, see [`super::Request`]. Lost: sent again. Repeated under another id: no change. Late: refused once the term is over;
    /// the beginning of a run that has ended is ignored.
    RecordRun { record: Box<RunRecord> },
    /// `{"revision","items":[RUN…]}`, oldest first: the runs on record. Read: repeat freely.
    Runs { name: String },
    /// A part of the output of a run, from the node that ran it, see [`super::ActorsAsk::RunLog`]. `None`: the newest one. The error's
    /// details have its record, if the output cannot be read. Read: repeat freely.
    Log { name: String, run: Option<u64>, offset: u64, wait_ms: u64 },
}

impl ReconcilerRequest {
    /// The feature level from which on every manager can read it.
    pub fn needs_level(&self) -> u32 {
        match self {
            Self::Apply { definitions, .. } => {
                definitions.iter().map(Definition::needs_level).max().unwrap_or(RECONCILERS_LEVEL)
            }
            Self::StepDone { .. }
            | Self::ObjectChanges { .. }
            | Self::MemberAnnounce { .. }
            | Self::RecordRun { .. } => DEFINITIONS_LEVEL,
            _ => RECONCILERS_LEVEL,
        }
    }
}

/// ADMISSION.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmissionView {
    pub revision: Revision,
    /// `None`: there is no such participant (any more).
    pub phase: Option<ParticipantPhase>,
    /// Why it is not admitted, while it is announced.
    pub waiting: Option<Waiting>,
}

/// Why a participant is not admitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// For scripts.
    pub reason: Word<AdmissionReason>,
    /// For people, with what would help.
    pub message: String,
}

/// The reconcilers for which a release has definitions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definitions {
    pub revision: Revision,
    /// Name and digest.
    pub items: BTreeMap<String, String>,
    /// Name and scope. A name that is missing here: the answering manager runs an older build.
    #[serde(default)]
    pub scopes: BTreeMap<String, String>,
}

/// Everything that a candidate or runner of one reconciler decides by, as of one revision of one replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunnerView {
    pub revision: Revision,
    /// Of the requested release, or of the newest earlier one, if that applies to later ones; `None`: there is none any more.
    pub definition: Option<Definition>,
    pub gate: GateView,
    /// Announced participants that have a definition of their release, best first by the choice; of equals the older first.
    pub candidates: Vec<CandidateView>,
    /// Which of them runs it: the newest definition decides, for all.
    pub choice: RunnerChoice,
    /// Only this node, if the newest definition says so.
    pub pinned: Option<NodeId>,
    /// Of the newest definition, for all: candidates for one lease use one duration.
    #[serde(default)]
    pub timing: DefinitionTiming,
    /// What an operator must do first.
    pub hold: Option<HoldView>,
    /// How the definition's gate would be reached.
    pub path: Option<Word<GatePath>>,
    /// At most [`MAX_BLOCKERS`] of them.
    pub blockers: Vec<Blocker>,
    pub blockers_in_all: usize,
    /// Grows when an operator asks a runner that gave up to start again.
    pub retries: u64,
    /// The number of waves of an object set.
    pub waves: u32,
    /// How many steps of its chain have run.
    #[serde(default)]
    pub steps_done: usize,
    /// Whether the cluster's feature level has records of runs.
    #[serde(default)]
    pub records_runs: bool,
}

/// Blockers that are named.
pub const MAX_BLOCKERS: usize = 32;

/// The part of the gate by which a runner decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateView {
    /// See [`Reconcilers::epoch_of`](crate::Reconcilers::epoch_of).
    pub epoch: u64,
    pub readable: bool,
    /// `None`: there is no gate.
    pub reconciled: Option<Release>,
    /// Of the runner that wrote it last.
    pub term: FencingToken,
    /// Whether work is in progress towards this view's definition.
    #[serde(default)]
    pub at_work: bool,
}

/// A candidate as others see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CandidateView {
    pub node: Option<NodeId>,
    pub member: String,
    pub release: Release,
    pub revision: Revision,
    /// Labels of its definition's node selector that its node does not have: it does not campaign.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_labels: Vec<String>,
}
