//! Reconcilers, their gates, the members of their scopes, and the objects that they make.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::word::words;
use crate::model::{
    Blocker, FencingToken, GateEntry, GatePath, GateState, GateTarget, Hold, HoldReason, Name, NodeId,
    ParticipantPhase, PhaseReason, ReconcilerPhase, Release, Revision, Triple, WallTime, Word,
};

/// GATE: the content of a gate, now or earlier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateEntryView {
    /// The number of the write.
    pub epoch: u64,
    pub state: GateState,
    /// The applied release; while working the lower end of the way.
    pub reconciled: Release,
    /// The lowest release that may serve.
    pub floor: Triple,
    /// Only while working.
    pub target: Option<GateTarget>,
    pub digest: String,
    /// Of the runner that wrote it; its predecessor's if an operator did.
    pub term: FencingToken,
    pub at: WallTime,
    #[serde(default)]
    pub why: String,
}

impl From<&GateEntry> for GateEntryView {
    fn from(entry: &GateEntry) -> Self {
        Self {
            epoch: entry.epoch,
            state: entry.state,
            reconciled: entry.reconciled.clone(),
            floor: entry.floor,
            target: entry.target.clone(),
            digest: entry.digest.clone(),
            term: entry.term,
            at: entry.at,
            why: entry.why.clone(),
        }
    }
}

/// The gate in STATUS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum GateStatusView {
    Readable(GateEntryView),
    /// Its format is newer than the answering daemon, or its content newer than the reader.
    Unreadable {
        epoch: u64,
        /// `unreadable`.
        state: String,
    },
}

impl GateStatusView {
    /// The gate of this epoch, which the answering daemon cannot read.
    pub fn unreadable(epoch: u64) -> Self {
        Self::Unreadable { epoch, state: "unreadable".to_owned() }
    }
    /// Its content; `None` if it is unreadable.
    pub fn entry(&self) -> Option<&GateEntryView> {
        match self {
            Self::Readable(entry) => Some(entry),
            Self::Unreadable { .. } => None,
        }
    }
    /// The number of its last write.
    pub fn epoch(&self) -> u64 {
        match self {
            Self::Readable(entry) => entry.epoch,
            Self::Unreadable { epoch, .. } => *epoch,
        }
    }
    /// The word for its state: `done`, `working`, `unreadable`.
    pub fn state(&self) -> String {
        match self {
            Self::Readable(entry) => crate::base::word(entry.state),
            Self::Unreadable { state, .. } => state.clone(),
        }
    }
}

/// The runner of a reconciler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunnerStatusView {
    /// The holder of the runner's lease.
    pub member: Option<String>,
    /// The name of its node. `None`: it has not reported yet, as for the release.
    pub node: Option<Name>,
    pub release: Option<Release>,
    pub term: FencingToken,
    /// When it acquired the lease.
    pub since: Option<WallTime>,
}

/// Numbers of a scope's members by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ParticipantCounts {
    pub serving: usize,
    pub announced: usize,
    pub draining: usize,
}

/// A blocking member, with the name of the node whose id is the member's name: managers participate under their id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockerView {
    #[serde(flatten)]
    pub blocker: Blocker,
    pub name: Option<Name>,
}

/// A reconciler in short: an item of `muster reconciler list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReconcilerView {
    pub name: String,
    pub scope: String,
    /// `None`: nothing has been applied yet.
    pub gate: Option<GateStatusView>,
    /// `None`: no candidate holds the runner's lease.
    pub runner: Option<RunnerStatusView>,
    /// For scripts.
    pub phase: Word<ReconcilerPhase>,
    /// Why it is in this phase, for scripts. Empty: no reason is needed.
    pub reason: Word<PhaseReason>,
    /// The same for people.
    pub message: String,
    /// Serving members that are incompatible with the next release.
    #[serde(default)]
    pub blockers_in_all: usize,
    #[serde(default)]
    pub participants: ParticipantCounts,
    /// Live candidates for the runner.
    #[serde(default)]
    pub candidates: usize,
    /// Attempts of the current runner.
    #[serde(default)]
    pub attempt: u32,
    /// Failures since the last success, on whichever node; below feature level 4 those of the current runner.
    #[serde(default)]
    pub consecutive_failures: u32,
    pub last_error: Option<String>,
    /// Where and when it failed last, until a run succeeds.
    #[serde(default)]
    pub last_failure: Option<LastFailureView>,
    pub next_retry_at: Option<WallTime>,
    /// The current wave and the number of waves.
    pub wave: Option<(u32, u32)>,
}

/// The last failure of a reconciler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastFailureView {
    pub node: NodeId,
    /// The node's name, if it still exists.
    pub name: Option<Name>,
    pub release: Release,
    pub term: FencingToken,
    /// When the first of the failures since the last success was reported.
    pub since: WallTime,
    pub at: WallTime,
    pub error: String,
    /// Whether only an operator's `retry` starts it again.
    pub permanent: bool,
}

/// A definition of one release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseDefinitionView {
    pub release: Release,
    pub digest: String,
    pub floor: Triple,
    pub applied_at: WallTime,
}

/// A step of a chain, in the order of the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepView {
    pub name: String,
    pub digest: String,
    /// The release whose definition ran it. `None` if it has not run; then `at` and `node` are `None`, too.
    pub release: Option<Release>,
    pub at: Option<WallTime>,
    /// The name of the node on which it ran, if it still exists.
    pub node: Option<Name>,
}

/// STATUS: `muster reconciler status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReconcilerStatusView {
    #[serde(flatten)]
    pub brief: ReconcilerView,
    /// The first of the blocking members.
    #[serde(default)]
    pub blockers: Vec<BlockerView>,
    /// The end of the command's output: of the current runner's, or of the last run that failed.
    #[serde(default)]
    pub output: String,
    /// The newest run on record.
    #[serde(default)]
    pub last_run: Option<RunView>,
    /// The release that may pass the point of no return, and has not yet.
    #[serde(default)]
    pub finalized: Option<Release>,
    #[serde(default)]
    pub definitions: Vec<ReleaseDefinitionView>,
    /// The steps that have run, and those of its chain that have not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepView>,
    /// Oldest first; the last is the present one.
    #[serde(default)]
    pub history: Vec<GateEntryView>,
    /// The replicated state from which it was made.
    pub revision: Revision,
}

/// `muster reconciler history`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateHistoryView {
    /// The reconciler.
    pub name: String,
    /// Oldest first; the last is the present one.
    pub history: Vec<GateEntryView>,
    /// The gate was deleted: its last entry is no longer in force, and any of them can be repaired from.
    #[serde(default)]
    pub deleted: bool,
}

words! {
    /// What is known of a run.
    RunState {
        Running => "running",
        Done => "done",
        /// It asked to be tried again later.
        Later => "later",
        Failed => "failed",
        /// Not retried until an operator runs `retry`.
        Permanent => "permanent",
        TimedOut => "timed-out",
        /// Another definition, or another state of the gate, took its place.
        Cancelled => "cancelled",
        /// Its term ended first, and it was stopped.
        TermEnded => "term-ended",
        /// Its end was not recorded, and will not be: the node stopped, or lost its term.
        Unknown => "unknown",
    }
}

/// How a command's process ended: by itself, or by a signal. Neither: it is running, was not started, or is not a command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunExitView {
    pub status: Option<u8>,
    pub signal: Option<u8>,
}

/// RUN: an item of `muster reconciler runs`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunView {
    /// Grows by one with each run of the reconciler.
    pub number: u64,
    /// Counts from 1 for each definition, and for each step of a chain; a new runner counts from 1 again.
    pub attempt: u32,
    /// Where it ran.
    pub node: NodeId,
    /// The node's name, if it still exists.
    pub node_name: Option<Name>,
    /// Of the definition.
    pub release: Release,
    /// The step of a chain.
    #[serde(default)]
    pub step: Option<String>,
    /// The fencing token of its runner.
    pub term: FencingToken,
    /// Its number in that term.
    pub of_term: u64,
    pub began: WallTime,
    /// `None`: it is running, or its end is unknown.
    pub ran_for_ms: Option<u64>,
    pub outcome: Word<RunState>,
    pub exit: RunExitView,
    /// Why it did not succeed.
    pub message: String,
    /// The first and the last KiB of its output.
    pub head: String,
    pub tail: String,
}

/// `muster reconciler logs`: a part of the output of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunLogView {
    /// Where the run was.
    pub node: NodeId,
    /// The node's name, if it still exists.
    pub node_name: Option<Name>,
    pub reconciler: String,
    /// As in `muster reconciler runs`.
    pub number: u64,
    /// The fencing token of its runner.
    pub term: FencingToken,
    /// Its number in that term.
    pub of_term: u64,
    /// Where the part begins in the output, in bytes.
    pub offset: u64,
    /// Bytes before `offset`, from the requested position on, that are missing: dropped from the middle of a long output, or lost.
    pub skipped: u64,
    /// Bytes that are not UTF-8 are replaced.
    pub text: String,
    /// Where the next part begins.
    pub next_offset: u64,
    /// More may follow. Otherwise an empty text is the end.
    pub running: bool,
}

/// One side of a planned write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedSideView {
    // In the order of the keys' names: plans are shown as a diff of this text.
    pub body: Value,
    /// Without the owner's label.
    pub labels: BTreeMap<String, String>,
}

/// One write of a plan. A side is `None` if the object does not exist there, or if it is too large to be shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedObjectView {
    /// `create`, `update`, `delete`, or `taken`.
    pub op: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub before: Option<PlannedSideView>,
    pub after: Option<PlannedSideView>,
}

/// Why a release does not begin, apart from serving members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldView {
    /// For scripts.
    pub reason: Word<HoldReason>,
    /// For people, with what would help.
    pub message: String,
}

impl From<&Hold> for HoldView {
    fn from(hold: &Hold) -> Self {
        Self { reason: hold.reason().into(), message: hold.to_string() }
    }
}

/// The gate once a definition is applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedGateView {
    pub state: GateState,
    pub reconciled: Release,
    pub floor: Triple,
    pub digest: String,
}

/// `muster reconciler plan`: what a definition would do now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanView {
    /// The reconciler.
    pub name: String,
    pub release: Release,
    /// `None`: it would not begin.
    pub path: Option<Word<GatePath>>,
    /// Why it would not begin. `None`: it would.
    pub hold: Option<HoldView>,
    pub objects: Vec<PlannedObjectView>,
    /// Conditions between its waves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<PlannedWaitView>,
    /// The command to run, if it is one.
    pub command: Option<Vec<String>>,
    /// The step of a chain whose command that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// How many candidates could run it now. `None`: an older manager does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidates: Option<usize>,
    pub blockers: Vec<BlockerView>,
    pub gate: PlannedGateView,
}

/// A condition between two waves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedWaitView {
    /// What follows this wave waits.
    pub wave: u32,
    pub kind: String,
    pub namespace: String,
    pub name: String,
    /// A JSON pointer into the body.
    pub path: String,
    pub equals: Value,
    pub holds: bool,
    /// What was found instead.
    pub message: Option<String>,
}

/// A definition to which a request referred.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefinitionView {
    /// The reconciler.
    pub name: String,
    pub release: Release,
    pub digest: String,
}

/// A definition that was submitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedDefinitionView {
    #[serde(flatten)]
    pub definition: DefinitionView,
    /// False: it existed already.
    pub changed: bool,
}

/// `muster reconciler apply`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedView {
    pub definitions: Vec<AppliedDefinitionView>,
}

/// `muster reconciler force-floor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForcedFloorView {
    /// The reconciler.
    pub name: String,
    pub floor: Triple,
    /// Serving members below the floor: they are asked to stop.
    pub excluded: Vec<String>,
    /// False: it was only tried.
    pub changed: bool,
}

/// MEMBER: one start of a member of a scope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParticipantView {
    pub scope: String,
    pub member: String,
    /// Random per start, in hexadecimal; zero for an external member.
    pub incarnation: String,
    /// Whether an operator vouches for it instead of a lease.
    pub external: bool,
    /// Its node, if it runs on one.
    pub node: Option<NodeId>,
    pub release: Release,
    /// The lowest release of each reconciler's outcome that it needs to serve.
    pub needs: BTreeMap<String, Triple>,
    pub phase: ParticipantPhase,
    /// When the phase began.
    pub since: WallTime,
    /// The name of the node whose id is the member's name.
    pub name: Option<Name>,
}

/// The metadata of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectMetadataView {
    pub namespace: String,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub revision: Revision,
    /// Of the runner that wrote it last. 0: another writer.
    pub term: FencingToken,
}

/// OBJECTS: what has changed after a revision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectChangesView {
    /// Everything up to it is here: ask for what comes after it.
    pub revision: Revision,
    /// As they are now, in the order of their last change.
    pub items: Vec<ObjectView>,
    pub deleted: Vec<DeletedObjectView>,
}

/// An object that exists no longer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeletedObjectView {
    pub kind: String,
    pub namespace: String,
    pub name: String,
    /// It does not exist at this revision.
    pub revision: Revision,
}

/// OBJECT: an object of Muster's own store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectView {
    /// `muster.dev/v1`.
    pub api_version: String,
    pub kind: String,
    pub metadata: ObjectMetadataView,
    /// Free-form.
    pub body: Value,
}
