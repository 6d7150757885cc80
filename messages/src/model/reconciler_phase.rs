//! The state of a reconciler: its phase, the reason, the path of its gate, and what a runner reports.
//!
//! The words are the contract's. They are defined here once, for the library that finds a reconciler's state (`gates`), for
//! the runner that reports it, and for the command line.

use serde::{Deserialize, Serialize};

use super::word::words;
use super::{FencingToken, NodeId, Release, Triple, WallTime, Word};

words! {
    /// The phase of a reconciler.
    ReconcilerPhase {
        /// No live node has a definition of its release.
        NoCandidate => "no-candidate",
        /// No runner has started on the definition yet.
        Electing => "electing",
        /// For a change of the cluster's that comes by itself, or by updating members.
        Waiting => "waiting",
        /// An operator must allow the point of no return.
        ReadyToFinalize => "ready-to-finalize",
        /// A predecessor's last writes may still arrive.
        Settling => "settling",
        Running => "running",
        /// Applied.
        Idle => "idle",
        /// By an operator.
        Paused => "paused",
        /// An operator must resolve something.
        Blocked => "blocked",
        /// Nothing runs it now: permanently, until an operator retries, or until a candidate tries again.
        Failed => "failed",
    }
}

words! {
    /// Why a reconciler is in its phase.
    PhaseReason {
        /// The phase needs no reason.
        Unneeded => "",
        NoDefinition => "no-definition",
        NoCandidate => "no-candidate",
        /// No candidate's node has the labels of the node selector.
        NotSelected => "not-selected",
        /// No candidate has taken the runner's lease yet.
        Electing => "electing",
        /// The runner has not started on this definition yet.
        TakingUp => "taking-up",
        /// Serving members are incompatible.
        Blockers => "blockers",
        /// The runner does not know the path that the cluster names.
        UnknownPath => "unknown-path",
        /// The runner reads the gate.
        Reading => "reading",
        /// The runner advances the gate.
        Restricting => "restricting",
        Settling => "settling",
        Objects => "objects",
        /// The next wave waits for a condition.
        Condition => "condition",
        Action => "action",
        /// The action was cancelled, and has not ended yet.
        Stopping => "stopping",
        /// Applied; the runner completes the gate.
        Completing => "completing",
        Retrying => "retrying",
        /// As the runner reports it.
        Done => "done",
        /// As the runner reports it.
        Permanent => "permanent",
        /// The same, as STATUS shows it.
        PermanentFailure => "permanent-failure",
        /// The last run failed, and no candidate runs it now: those that failed keep out for a while.
        CandidatesFailed => "candidates-failed",
    }
    {
        /// See [`Hold`].
        Held(HoldReason)
    }
}

words! {
    /// A [`Hold`], without the names of what is involved.
    HoldReason {
        GateUnreadable => "gate-unreadable",
        DowngradeDenied => "downgrade-denied",
        SkipsReleases => "skips-releases",
        DigestMismatch => "digest-mismatch",
        Paused => "paused",
        ReadyToFinalize => "ready-to-finalize",
        Dependency => "dependency",
        StepChanged => "step-changed",
        /// Only in a plan: candidates of another release come first.
        NewerReleasePresent => "newer-release-present",
    }
}

impl HoldReason {
    /// The phase of a reconciler that is held for this reason.
    pub fn phase(self) -> ReconcilerPhase {
        match self {
            HoldReason::Paused => ReconcilerPhase::Paused,
            HoldReason::ReadyToFinalize => ReconcilerPhase::ReadyToFinalize,
            HoldReason::Dependency | HoldReason::NewerReleasePresent => ReconcilerPhase::Waiting,
            HoldReason::GateUnreadable
            | HoldReason::DowngradeDenied
            | HoldReason::SkipsReleases
            | HoldReason::DigestMismatch
            | HoldReason::StepChanged => ReconcilerPhase::Blocked,
        }
    }
}

/// Why a reconciler's release does not begin, apart from serving members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Hold {
    #[error(
        "its gate cannot be read by this release of Muster; `muster reconciler repair {reconciler}` restores an earlier one"
    )]
    GateUnreadable { reconciler: String },
    #[error(
        "{reconciled} is applied, and the definition of {release} forbids downgrades; apply its definition with downgrade = \"allow\""
    )]
    DowngradeDenied { release: Release, reconciled: Release },
    #[error(
        "{reconciled} has been applied, and {release} follows {from} at the lowest; run a release in between first"
    )]
    SkipsReleases { release: Release, reconciled: Release, from: Triple },
    #[error(
        "another build of {release} has been applied; `muster reconciler retry {reconciler}` applies this one, so does a new release"
    )]
    DigestMismatch { reconciler: String, release: Release },
    #[error("it is paused; `muster reconciler resume {reconciler}` lets it go on")]
    Paused { reconciler: String },
    #[error("it waits for `muster reconciler finalize {reconciler}`")]
    ReadyToFinalize { reconciler: String },
    #[error("it runs after {dependency}, whose gate is not done")]
    Dependency { dependency: String },
    /// Feature level 5.
    #[error(
        "step {step} ran with the definition of {ran}, but the definition of {release} has {}; a step that has run keeps its content \
         and its place: restore it, and append what is new",
        in_its_place(instead.as_deref())
    )]
    StepChanged {
        step: String,
        ran: Box<Release>,
        release: Box<Release>,
        /// The step that has its place. `None`: it has its place, with other content.
        instead: Option<String>,
    },
}

fn in_its_place(instead: Option<&str>) -> String {
    instead.map_or_else(|| "different content under that name".to_owned(), |other| format!("step {other} in its place"))
}

impl Hold {
    pub fn reason(&self) -> HoldReason {
        match self {
            Hold::GateUnreadable { .. } => HoldReason::GateUnreadable,
            Hold::DowngradeDenied { .. } => HoldReason::DowngradeDenied,
            Hold::SkipsReleases { .. } => HoldReason::SkipsReleases,
            Hold::DigestMismatch { .. } => HoldReason::DigestMismatch,
            Hold::Paused { .. } => HoldReason::Paused,
            Hold::ReadyToFinalize { .. } => HoldReason::ReadyToFinalize,
            Hold::Dependency { .. } => HoldReason::Dependency,
            Hold::StepChanged { .. } => HoldReason::StepChanged,
        }
    }
}

words! {
    /// How a gate reaches a target.
    GatePath {
        /// No gate exists yet: it is created once the first run has succeeded. No member below the floor may serve meanwhile.
        First => "first",
        /// It has reached it.
        Reached => "reached",
        /// All members admitted now are compatible with the outcome: no waiting is needed.
        Open => "open",
        /// Some releases admitted now are not: their members are waited for, then excluded, before anything is applied.
        Restrict => "restrict",
    }
}

/// A runner's progress. Advisory: not used for decisions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    pub reconciler: String,
    pub term: FencingToken,
    pub node: NodeId,
    pub release: Release,
    pub phase: Word<ReconcilerPhase>,
    pub reason: Word<PhaseReason>,
    pub message: String,
    pub since: WallTime,
    pub attempt: u32,
    pub consecutive_failures: u32,
    pub last_error: Option<String>,
    pub next_retry_at: Option<WallTime>,
    /// The current wave and the number of waves.
    pub wave: Option<(u32, u32)>,
    /// The end of the command's output.
    pub output: String,
}
