//! Release-gated reconcilers: what is to be applied, by whom, and who may serve meanwhile.
//!
//! A *reconciler* is a name. Each release has a *definition* under it; one node of the newest release, its *runner*,
//! applies that. The *gate* says which releases may serve with what is applied now or half-way to the next. The members
//! of a *scope* are its *participants*: they serve only once the gates of their scope let them in.
//! Everything here is written by applying commands, which is where the gates' rules are kept: whatever a runner or a
//! participant believes, the log decides in which order they come.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use imbl::OrdMap;
use serde::{Deserialize, Serialize};

use super::{
    Blocker, FencingToken, NodeId, NotAdmitted, ObjectKey, Participant, ParticipantKey, ParticipantPhase, Release,
    Revision, SessionId, Triple, WallTime,
};

/// Leases of participants and candidates: one per incarnation, gone with it.
pub const MEMBERS_NAMESPACE: &str = "muster-members";
/// Leases of runners: one per reconciler. Its fencing token is the runner's term.
pub const RUNNERS_NAMESPACE: &str = "muster-reconcilers";
/// Before the name of a reconciler: the scope of its candidates. No scope of participants has a dot.
pub const CANDIDATES_SCOPE: &str = "candidates.";
/// On every object that a reconciler made: whose it is.
pub const RECONCILER_LABEL: &str = "muster.dev/reconciler";

/// The managers' own scope: each takes part in it as the release `N.0.0`, N the feature level that its build speaks.
pub const MANAGERS_SCOPE: &str = "muster";
/// The built-in reconciler whose gate raises the cluster's feature level.
pub const LEVEL_RECONCILER: &str = "feature-level";

/// A feature level as a release of [`LEVEL_RECONCILER`].
pub fn level_release(level: u32) -> Triple {
    Triple::new(level.into(), 0, 0)
}

/// The lease that the runner of a reconciler holds.
pub fn runner_lease(reconciler: &str) -> ObjectKey {
    ObjectKey::lease(RUNNERS_NAMESPACE, reconciler)
}
/// The scope in which the candidates for running a reconciler are announced.
pub fn candidates_scope(reconciler: &str) -> String {
    format!("{CANDIDATES_SCOPE}{reconciler}")
}

/// Who shall run a reconciler, of the candidates that have its definition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunnerChoice {
    #[default]
    Newest,
    Oldest,
}

/// Whether the last step to the point of no return is an operator's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Finalize {
    #[default]
    Auto,
    /// `muster reconciler finalize` says when.
    Manual,
}

/// What a runner does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Objects in Muster's own store; each write is fenced by the runner's term.
    Objects(Vec<DesiredObject>),
    Command(CommandAction),
    /// Code of a program that embeds the runner.
    Handler,
}

/// An object as a definition wants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredObject {
    pub key: ManagedKey,
    pub labels: BTreeMap<String, String>,
    /// A JSON object as text.
    pub body: String,
    /// Waves are applied in order; one begins when all objects before it are there.
    pub wave: u32,
}

/// A command that a runner executes on its node. It must be idempotent: it can be cut off at any point and started again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandAction {
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
}

/// Stands for arguments that are not shown. No argument of a program can have a zero byte in it, so that this is none.
const HIDDEN: &str = "\0hidden";

impl CommandAction {
    /// The program alone: arguments and environment are for operators and for the node that runs it.
    #[must_use]
    pub fn redacted(&self) -> Self {
        let program = self.argv.first().cloned().unwrap_or_default();
        Self { argv: vec![program, HIDDEN.to_owned()], env: BTreeMap::new() }
    }
    /// Whether something is not shown: it must not be run.
    pub fn is_redacted(&self) -> bool {
        self.argv.iter().any(|argument| argument == HIDDEN)
    }
}

/// What one release wants applied under a reconciler's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    pub reconciler: String,
    pub release: Release,
    pub scope: String,
    /// The lowest release of a participant that can live with the outcome. Never above `release`.
    pub floor: Triple,
    pub action: Action,
    /// Reconcilers whose gate must be done before this one runs.
    pub depends_on: Vec<String>,
    /// Applied again each time this has passed. `None`: once.
    pub every_ms: Option<u64>,
    /// Waited for before a run, so that what a predecessor has sent has landed.
    pub settle_ms: u64,
    pub run_timeout_ms: u64,
    pub finalize: Finalize,
    pub choice: RunnerChoice,
    /// Only this node runs it.
    pub pinned: Option<NodeId>,
    /// Whether it may follow a newer release.
    pub downgrade: bool,
    /// Refuses to follow what is older.
    pub from_at_least: Option<Triple>,
    /// A runner that failed so often in a row makes way for another, if there is one.
    pub resign_after: u32,
    /// SHA-256, in hexadecimal, of all of the above.
    pub digest: String,
    pub applied_at: WallTime,
    pub revision: Revision,
}

/// A definition's place: one per name and release.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DefinitionKey {
    pub reconciler: String,
    pub release: Triple,
}

impl Definition {
    /// With what is usual where nobody says otherwise: objects and handlers are applied again every 30 s, a command once;
    /// what cannot be fenced waits 5 s for what a predecessor has sent, and does not go back.
    pub fn new(reconciler: &str, release: Release, scope: &str, floor: Triple, action: Action) -> Self {
        let fenced = matches!(action, Action::Objects(_));
        Self {
            reconciler: reconciler.to_owned(),
            release,
            scope: scope.to_owned(),
            floor,
            every_ms: if matches!(action, Action::Command(_)) { None } else { Some(30_000) },
            action,
            depends_on: Vec::new(),
            settle_ms: if fenced { 0 } else { 5_000 },
            run_timeout_ms: 600_000,
            finalize: Finalize::Auto,
            choice: RunnerChoice::Newest,
            pinned: None,
            downgrade: fenced,
            from_at_least: None,
            resign_after: 5,
            digest: String::new(),
            applied_at: WallTime(0),
            revision: Revision(0),
        }
    }
    pub fn key(&self) -> DefinitionKey {
        DefinitionKey { reconciler: self.reconciler.clone(), release: self.release.triple }
    }
    /// What its gate says once it is applied.
    pub fn target(&self) -> GateTarget {
        GateTarget { release: self.release.clone(), digest: self.digest.clone(), floor: self.floor }
    }
}

/// Whether a gate's outcome is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GateState {
    Done,
    /// On the way to its target: whoever serves must live with both ends.
    Working,
}

/// Where a gate is led.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateTarget {
    pub release: Release,
    pub digest: String,
    pub floor: Triple,
}

/// The format of gates that this build reads. One that says a higher number is unreadable: nobody is admitted by it and
/// nobody runs until a build that can read it, or an operator, has repaired it. It decides what applying a command does, so
/// a higher one comes with a feature level of its own.
pub const GATE_FORMAT: u32 = 1;
/// Entries of a gate's history that are kept.
pub const GATE_HISTORY: usize = 16;

/// What may serve, given what has been applied. The safety record of a reconciler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gate {
    pub reconciler: String,
    pub scope: String,
    /// See [`GATE_FORMAT`].
    pub format: u32,
    pub now: GateEntry,
    /// What it said before, oldest first.
    pub history: Vec<GateEntry>,
}

/// What a gate says, or once said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateEntry {
    /// Grows by one with each write, and goes on where a deleted gate's stopped.
    pub epoch: u64,
    pub state: GateState,
    /// What has been applied; while working the lower end of the way.
    pub reconciled: Release,
    pub digest: String,
    /// Nobody below this serves; while working the higher end of the way.
    pub floor: Triple,
    /// Only while working.
    pub target: Option<GateTarget>,
    /// Of the runner that wrote it; that of its predecessor where an operator did.
    pub term: FencingToken,
    /// The writer's clock; nothing is decided by it.
    pub at: WallTime,
    /// Where in the log.
    pub revision: Revision,
    pub why: String,
}

/// How a gate is led to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatePath {
    /// There is no gate: it is made once the first run has succeeded. Nobody below the floor may serve meanwhile.
    First,
    /// It is there.
    Reached,
    /// Whoever is admitted now can live with the outcome: nobody needs to be waited for.
    Open,
    /// Some that may be admitted now could not: they are waited for, then kept out, before anything is applied.
    Restrict,
}

impl Gate {
    /// Whether this build can judge by it.
    pub fn is_readable(&self) -> bool {
        self.format <= GATE_FORMAT
    }
    /// What it says and has said since it was done last, that entry included; newest first.
    fn since_done(&self) -> impl Iterator<Item = &GateEntry> {
        let mut done = false;
        let until_done = move |entry: &&GateEntry| !std::mem::replace(&mut done, entry.state == GateState::Done);
        [&self.now].into_iter().chain(self.history.iter().rev()).take_while(until_done)
    }
    /// The newest release of which something may be there: applied, or begun since, also where the way leads down.
    pub fn highest(&self) -> &Release {
        let begun = self.since_done().filter_map(|entry| entry.target.as_ref()).map(|target| &target.release);
        let all = begun.chain(self.since_done().map(|entry| &entry.reconciled));
        all.max_by_key(|release| release.triple).unwrap_or(&self.now.reconciled)
    }
    /// Whether this participant may serve, as far as this gate is concerned.
    pub fn admits(&self, participant: &Participant) -> bool {
        let needs = participant.needs.get(&self.reconciler);
        participant.release.triple >= self.now.floor && needs.is_none_or(|needs| *needs <= self.now.reconciled.triple)
    }
    /// What no floor may be below: on the way, what is there already, and where it leads.
    pub fn least_floor(&self) -> Triple {
        let Some(target) = &self.now.target else { return Triple::default() };
        let there = self.since_done().find(|entry| entry.state == GateState::Done).map(|entry| entry.floor);
        target.floor.max(there.unwrap_or_default())
    }
    /// The floor that an operator has set since it was done last: higher than what it was led through asks for.
    fn forced_floor(&self) -> Option<Triple> {
        let led = self.since_done().skip(1).filter(|entry| entry.state == GateState::Done).map(|entry| entry.floor);
        let targets = self.since_done().filter_map(|entry| entry.target.as_ref()).map(|target| target.floor);
        let asked = led.chain(targets).max()?;
        (self.now.floor > asked).then_some(self.now.floor)
    }
    /// What it says once its target is applied: the target's floor, or what an operator has set meanwhile.
    pub fn floor_of_outcome(&self, target: &GateTarget) -> Triple {
        self.forced_floor().map_or(target.floor, |forced| forced.max(target.floor))
    }
    /// Keeps [`GATE_HISTORY`] entries at most. Among them are the last outcome, the newest release that it has been led to since, and
    /// the highest floor: what [`Self::highest`] and [`Self::floor_of_outcome`] are computed from.
    pub fn remember(history: &mut Vec<GateEntry>) {
        while history.len() > GATE_HISTORY {
            let done = history.iter().rposition(|entry| entry.state == GateState::Done);
            let led = || (done.map_or(0, |at| at + 1)..history.len()).filter(|at| history[*at].target.is_some());
            let target = |at: &usize| history[*at].target.as_ref();
            let newest = led().max_by_key(|at| target(at).map(|target| target.release.triple));
            let strictest = led().max_by_key(|at| target(at).map(|target| target.floor));
            let kept = [done, newest, strictest];
            let oldest = (0..history.len()).find(|at| !kept.contains(&Some(*at)));
            history.remove(oldest.unwrap_or_default());
        }
    }
    /// See [`GatePath`]. Metropolis' rule: nobody is waited for when going up in release without raising the floor. A floor
    /// that an operator has set higher stays until another definition is applied.
    pub fn path_to(&self, target: &GateTarget) -> GatePath {
        let now = &self.now;
        let there = now.state == GateState::Done
            && now.reconciled.triple == target.release.triple
            && now.digest == target.digest
            && now.floor >= target.floor;
        if there {
            GatePath::Reached
        } else if target.release.triple >= now.reconciled.triple && now.floor >= target.floor {
            GatePath::Open
        } else {
            GatePath::Restrict
        }
    }
    /// The lower release and the higher floor: what admits only those who can live with both ends. Of two builds of one
    /// release, the target's.
    pub fn restricted_to(&self, target: &GateTarget) -> (Release, Triple) {
        let now = &self.now;
        let lower = if target.release.triple <= now.reconciled.triple { &target.release } else { &now.reconciled };
        (lower.clone(), now.floor.max(target.floor))
    }
}

/// A runner's step of its gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GateStep {
    /// [`GatePath::Open`]: from now on it is worked on.
    Work,
    /// [`GatePath::Restrict`]: from now on only those are admitted who can live with both ends. Refused while somebody
    /// serves who cannot.
    Restrict,
    /// The run has succeeded.
    Complete,
}

/// Why a reconciler's release does not begin, beside those who serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Hold {
    #[error(
        "its gate cannot be read by this release of Muster; `muster reconciler repair {reconciler}` restores an earlier one"
    )]
    GateUnreadable { reconciler: String },
    #[error(
        "{reconciled} has been applied, and {release} does not allow to go back; apply its definition with downgrade = \"allow\""
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
}

impl Hold {
    /// The word that scripts match.
    pub fn reason(&self) -> &'static str {
        match self {
            Hold::GateUnreadable { .. } => "gate-unreadable",
            Hold::DowngradeDenied { .. } => "downgrade-denied",
            Hold::SkipsReleases { .. } => "skips-releases",
            Hold::DigestMismatch { .. } => "digest-mismatch",
            Hold::Paused { .. } => "paused",
            Hold::ReadyToFinalize { .. } => "ready-to-finalize",
            Hold::Dependency { .. } => "dependency",
        }
    }
}

/// What an operator has said about a reconciler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Controls {
    pub paused: bool,
    /// The digest that may pass the point of no return.
    pub finalized: Option<String>,
    /// Grows with each `retry`: a runner that gave up begins again, another build of a release is applied.
    pub retries: u64,
    /// The digest that a `retry` was said for.
    pub retried: Option<String>,
    /// The last epoch of a gate that was deleted.
    pub last_epoch: u64,
}

/// Where a runner is. Advisory: nothing is decided by it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    pub reconciler: String,
    pub term: FencingToken,
    pub node: NodeId,
    pub release: Release,
    /// As in `status`.
    pub phase: String,
    pub reason: String,
    pub message: String,
    pub since: WallTime,
    pub attempt: u32,
    pub consecutive_failures: u32,
    pub last_error: Option<String>,
    pub next_retry_at: Option<WallTime>,
    /// The wave at work and how many there are.
    pub wave: Option<(u32, u32)>,
    /// The end of what the command wrote.
    pub output: String,
}

/// An object's place: kinds of `muster.dev/v1` are what definitions name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ManagedKey {
    pub kind: String,
    pub namespace: String,
    pub name: String,
}
impl fmt::Display for ManagedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// A free-form object of Muster's own store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagedObject {
    pub key: ManagedKey,
    pub labels: BTreeMap<String, String>,
    /// A JSON object as text.
    pub body: String,
    /// The reconciler that made it, and alone may change or delete it by itself.
    pub owner: Option<String>,
    /// Of the runner that wrote it last. 0: somebody else.
    pub term: FencingToken,
    pub created: Revision,
    pub revision: Revision,
}

/// All that is replicated of reconcilers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reconcilers {
    pub definitions: OrdMap<DefinitionKey, Arc<Definition>>,
    pub gates: OrdMap<String, Arc<Gate>>,
    pub controls: OrdMap<String, Controls>,
    pub progress: OrdMap<String, Arc<Progress>>,
    pub participants: OrdMap<ParticipantKey, Arc<Participant>>,
    pub objects: OrdMap<ManagedKey, Arc<ManagedObject>>,
    /// When any of them changed last, but for progress.
    pub changed: Revision,
    /// When progress was told last.
    pub progressed: Revision,
}

impl Reconcilers {
    /// Definitions under one name, oldest release first.
    pub fn definitions_of<'a>(&'a self, reconciler: &'a str) -> impl Iterator<Item = &'a Arc<Definition>> {
        let from = DefinitionKey { reconciler: reconciler.to_owned(), release: Triple::default() };
        self.definitions.range(from..).map(|(_, d)| d).take_while(move |d| d.reconciler == reconciler)
    }
    /// Members of a scope, by name.
    pub fn participants_of<'a>(&'a self, scope: &'a str) -> impl Iterator<Item = &'a Arc<Participant>> {
        let from = ParticipantKey { scope: scope.to_owned(), member: String::new(), incarnation: SessionId(0) };
        self.participants.range(from..).map(|(_, p)| p).take_while(move |p| p.key.scope == scope)
    }
    /// Gates of the reconcilers of a scope.
    pub fn gates_of<'a>(&'a self, scope: &'a str) -> impl Iterator<Item = &'a Arc<Gate>> {
        self.gates.values().filter(move |gate| gate.scope == scope)
    }

    /// Whether a participant may serve; the floor comes first.
    pub fn admission(&self, participant: &Participant) -> Result<(), NotAdmitted> {
        let release = &participant.release;
        for gate in self.gates_of(&participant.key.scope) {
            let reconciler = || gate.reconciler.clone();
            if !gate.is_readable() {
                return Err(NotAdmitted::GateUnreadable { reconciler: reconciler() });
            }
            let floor = gate.now.floor;
            if release.triple < floor {
                return Err(NotAdmitted::BelowFloor { reconciler: reconciler(), release: release.clone(), floor });
            }
        }
        // What has been applied is there still: without its gate nobody knows who could live with it.
        let deleted = |d: &&Arc<Definition>| {
            d.scope == participant.key.scope
                && !self.gates.contains_key(&d.reconciler)
                && self.controls.get(&d.reconciler).is_some_and(|c| c.last_epoch > 0)
        };
        if let Some(definition) = self.definitions.values().find(deleted) {
            return Err(NotAdmitted::NoGate { reconciler: definition.reconciler.clone() });
        }
        for (reconciler, needs) in &participant.needs {
            let reconciler = || reconciler.clone();
            match self.gates.get(&reconciler()) {
                None => return Err(NotAdmitted::NoGate { reconciler: reconciler() }),
                Some(gate) if !gate.is_readable() => {
                    return Err(NotAdmitted::GateUnreadable { reconciler: reconciler() });
                }
                Some(gate) if gate.now.reconciled.triple < *needs => {
                    let reconciled = gate.now.reconciled.clone();
                    return Err(NotAdmitted::ReconcilerTooOld { reconciler: reconciler(), reconciled, needs: *needs });
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// The epoch of its gate, or where a gate that was deleted has stopped. 0: there has never been one.
    pub fn epoch_of(&self, reconciler: &str) -> u64 {
        let deleted = self.controls.get(reconciler).map_or(0, |c| c.last_epoch);
        self.gates.get(reconciler).map_or(deleted, |gate| gate.now.epoch)
    }

    /// Who serves and could not live with this release, or, in this scope, with this floor.
    pub fn blockers(&self, reconciler: &str, scope: &str, release: Triple, floor: Triple) -> Vec<Blocker> {
        let in_the_way = |p: &&Arc<Participant>| p.phase != ParticipantPhase::Announced;
        let blocker = |p: &Arc<Participant>| {
            let why = match p.needs.get(reconciler) {
                _ if p.key.scope == scope && p.release.triple < floor => {
                    format!("release {} is below {floor}", p.release)
                }
                Some(needs) if *needs > release => format!("it needs {reconciler} of {needs} at least"),
                _ => return None,
            };
            let (member, external) = (p.key.member.clone(), p.key.is_external());
            Some(Blocker { member, release: p.release.clone(), phase: p.phase, external, since: p.since, why })
        };
        // Members of other scopes may need it too.
        self.participants.values().filter(in_the_way).filter_map(blocker).collect()
    }

    /// The way of a definition, or what an operator must do first. Those who serve are another question.
    pub fn way(&self, definition: &Definition) -> Result<GatePath, Hold> {
        let reconciler = || definition.reconciler.clone();
        let controls = self.controls.get(&definition.reconciler);
        let release = || definition.release.clone();
        if controls.is_some_and(|c| c.paused) {
            return Err(Hold::Paused { reconciler: reconciler() });
        }
        let gate = self.gates.get(&definition.reconciler);
        let path = match gate {
            None => GatePath::First,
            Some(gate) if !gate.is_readable() => return Err(Hold::GateUnreadable { reconciler: reconciler() }),
            Some(gate) => {
                let path = gate.path_to(&definition.target());
                let retried = controls.is_some_and(|c| c.retried.as_ref() == Some(&definition.digest));
                if definition.release.triple < gate.highest().triple && !definition.downgrade {
                    return Err(Hold::DowngradeDenied { release: release(), reconciled: gate.highest().clone() });
                }
                if let Some(from) = definition.from_at_least.filter(|from| gate.now.reconciled.triple < *from) {
                    let reconciled = gate.now.reconciled.clone();
                    return Err(Hold::SkipsReleases { release: release(), reconciled, from });
                }
                let other_build = gate.now.state == GateState::Done
                    && gate.now.reconciled.triple == definition.release.triple
                    && gate.now.digest != definition.digest;
                if other_build && !retried {
                    return Err(Hold::DigestMismatch { reconciler: reconciler(), release: release() });
                }
                path
            }
        };
        for dependency in &definition.depends_on {
            let done = self.gates.get(dependency).is_some_and(|g| g.is_readable() && g.now.state == GateState::Done);
            if !done && path != GatePath::Reached {
                return Err(Hold::Dependency { dependency: dependency.clone() });
            }
        }
        let said = controls.is_some_and(|c| c.finalized.as_ref() == Some(&definition.digest));
        if path == GatePath::Restrict && definition.finalize == Finalize::Manual && !said {
            return Err(Hold::ReadyToFinalize { reconciler: reconciler() });
        }
        Ok(path)
    }
}
