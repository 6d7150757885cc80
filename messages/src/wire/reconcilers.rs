//! Reconcilers over `muster-api/1`: what operators, participants, candidates and runners ask. Answers are JSON text as for
//! every request.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::{
    Blocker, Definition, FencingToken, GateStep, ManagedKey, NodeId, Participant, ParticipantKey, ParticipantPhase,
    Progress, Release, Revision, RunnerChoice, Triple,
};

/// What can be asked about reconcilers. A write that is lost is asked again; repeated, it changes nothing more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReconcilerRequest {
    /// `{"definitions":[{"name","release","digest","changed"}]}`. The server fills in digests. Operators only.
    Apply {
        definitions: Vec<Definition>,
        replace: bool,
    },
    /// `{"revision","items":[STATUS…]}`.
    List,
    /// STATUS, once its revision is after `seen`, or after `wait_ms`.
    Status {
        name: String,
        seen: Revision,
        wait_ms: u64,
    },
    /// What a definition would do now: `{"name","release","path","objects":[{"op","key"}…],"blockers":[…],"gate"}`. `None`:
    /// the newest one.
    Plan {
        name: String,
        release: Option<Triple>,
    },
    /// `{"name","history":[GATE…]}`, newest last.
    History {
        name: String,
    },
    Pause {
        name: String,
        paused: bool,
    },
    /// `{"name","release","digest"}`. A definition may pass the point of no return: once. `None`: the one that STATUS shows.
    Finalize {
        name: String,
        release: Option<Triple>,
    },
    /// `{"name","release","digest"}`. `None`: the definition that STATUS shows.
    Retry {
        name: String,
        release: Option<Triple>,
    },
    Repair {
        name: String,
        epoch: u64,
    },
    /// `{"excluded":[member…]}`. With `dry_run` nothing changes.
    ForceFloor {
        name: String,
        floor: Triple,
        dry_run: bool,
    },
    DeleteGate {
        name: String,
    },
    /// Everything under the name, but for what was applied.
    Delete {
        name: String,
    },

    /// `{"revision","items":[MEMBER…]}`.
    MemberList {
        scope: Option<String>,
    },
    /// For an external one, or one whose lease somebody does not want to wait for: whoever says so vouches that it has ended.
    MemberForget {
        scope: String,
        member: String,
    },
    MemberDrain {
        scope: String,
        member: String,
    },

    /// `{"revision","items":[OBJECT…]}`.
    ObjectList {
        kind: Option<String>,
        namespace: Option<String>,
    },
    /// OBJECT.
    ObjectGet {
        key: ManagedKey,
    },
    /// OBJECT. By hand; a reconciler whose object it is will repair it.
    ObjectPut {
        key: ManagedKey,
        labels: BTreeMap<String, String>,
        body: String,
    },
    ObjectDelete {
        key: ManagedKey,
    },

    /// ADMISSION. The lease named by its key must be held by the caller.
    Announce {
        participant: Participant,
    },
    /// ADMISSION: `phase` is `serving` if every gate lets it in.
    Admit {
        key: ParticipantKey,
    },
    /// ADMISSION once something that concerns it has changed after `seen`, or after `wait_ms`.
    Admission {
        key: ParticipantKey,
        seen: Revision,
        wait_ms: u64,
    },
    /// `{}`. Gone already: the same.
    Leave {
        key: ParticipantKey,
    },

    /// [`Definitions`]: every reconciler that has a definition of this release, once something has changed after `seen`, or
    /// after `wait_ms`.
    Definitions {
        release: Triple,
        seen: Revision,
        wait_ms: u64,
    },
    /// [`RunnerView`] once something has changed after `seen`, the runner's term too, or after `wait_ms`. Progress is no change.
    View {
        name: String,
        release: Triple,
        seen: Revision,
        wait_ms: u64,
    },
    /// `{"epoch","revision"}`. A runner's step; `gate_closed` with the blockers in its details where it is refused.
    Step {
        name: String,
        release: Triple,
        digest: String,
        term: FencingToken,
        epoch: u64,
        step: GateStep,
    },
    /// `{"created","updated","deleted","unchanged","errors":[{"key","message"}]}`. One wave of an object set; after the
    /// last one whatever is not wanted any more is deleted.
    Wave {
        name: String,
        release: Triple,
        digest: String,
        term: FencingToken,
        wave: u32,
    },
    /// `{}`. Written as it comes: that reports are a second apart is up to the runner. Lost: the next one has all of it.
    /// Late: of a term that is over, refused.
    Progress {
        progress: Progress,
    },
    /// `{"feature_level"}`. What the runner of [`LEVEL_RECONCILER`](crate::LEVEL_RECONCILER) does. Managers only. Late: refused,
    /// its term is over. Repeated: nothing happens.
    RaiseLevel {
        level: u32,
        term: FencingToken,
    },
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

/// A reason and what it means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// For scripts.
    pub reason: String,
    /// For people, with what would help.
    pub message: String,
}

/// The reconcilers that a release has definitions for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definitions {
    pub revision: Revision,
    /// Name and digest.
    pub items: BTreeMap<String, String>,
}

/// All that a candidate or runner of one reconciler goes by, as of one revision of one copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunnerView {
    pub revision: Revision,
    /// Of the release asked for; `None`: there is none any more.
    pub definition: Option<Definition>,
    pub gate: GateView,
    /// Those who are announced and have a definition of their release, best first by the choice; of equals the older first.
    pub candidates: Vec<CandidateView>,
    /// Who of them runs it: what the newest definition says, for all.
    pub choice: RunnerChoice,
    /// Only this node, where the newest definition says so.
    pub pinned: Option<NodeId>,
    /// What an operator must do first.
    pub hold: Option<Waiting>,
    /// How the definition's gate would be reached: `first`, `reached`, `open`, `restrict`.
    pub path: Option<String>,
    /// At most [`MOST_BLOCKERS`] of them.
    pub blockers: Vec<Blocker>,
    pub blockers_in_all: usize,
    /// Grows when an operator wants a runner that gave up to begin again.
    pub retries: u64,
    /// How many waves an object set has.
    pub waves: u32,
}

/// Blockers that are named.
pub const MOST_BLOCKERS: usize = 32;

/// What a runner goes by of its gate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateView {
    /// See [`Reconcilers::epoch_of`](crate::Reconcilers::epoch_of).
    pub epoch: u64,
    pub readable: bool,
    /// `None`: there is no gate.
    pub reconciled: Option<Release>,
    /// Of the runner that wrote it last.
    pub term: FencingToken,
    /// Whether it is worked on, on the way to this view's definition.
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
}
