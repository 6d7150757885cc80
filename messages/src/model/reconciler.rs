//! Release-gated reconcilers: what is applied, by which node, and which members may serve meanwhile.
//!
//! A *reconciler* is a name. Each release has a *definition* under it; one node of the newest release, its *runner*,
//! applies that. The *gate* says which releases may serve with what is applied now or half-way to the next. The members
//! of a *scope* are its *participants*: they serve only once the gates of their scope admit them.
//! Everything here is written by applying commands, which enforce the gates' rules: whatever a runner or a participant
//! believes, the log decides the order.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use imbl::OrdMap;
use serde::{Deserialize, Serialize};

use super::{
    Blocker, Definition, DefinitionKey, FencingToken, GatePath, Hold, NotAdmitted, ObjectKey, Participant,
    ParticipantKey, ParticipantPhase, Progress, Release, Revision, SessionId, Triple, WallTime,
};

/// Leases of participants and candidates: one per incarnation, gone with it.
pub const MEMBERS_NAMESPACE: &str = "muster-members";
/// Leases of runners: one per reconciler. Its fencing token is the runner's term.
pub const RUNNERS_NAMESPACE: &str = "muster-reconcilers";
/// Prefix of a reconciler's name: the scope of its candidates. No scope of participants has a dot.
pub const CANDIDATES_SCOPE: &str = "candidates.";
/// On every object that a reconciler made: its owner.
pub const RECONCILER_LABEL: &str = "muster.dev/reconciler";

/// The managers' own scope: each participates as the release `N.0.0`, N the feature level that its build supports.
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

/// Which of the candidates that have its definition runs a reconciler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunnerChoice {
    #[default]
    Newest,
    Oldest,
}

/// Whether an operator must allow the last step to the point of no return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Finalize {
    #[default]
    Auto,
    /// `muster reconciler finalize` allows it.
    Manual,
}

/// Whether a gate's outcome is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GateState {
    Done,
    /// On the way to its target: serving members must be compatible with both ends.
    Working,
}

/// The target of a gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateTarget {
    pub release: Release,
    pub digest: String,
    pub floor: Triple,
}

/// The format of gates that this build reads. A gate with a higher number is unreadable: no member is admitted by it and no runner
/// works until a build that can read it, or an operator, has repaired it. It decides the effect of commands, so a higher format
/// needs its own feature level.
pub const GATE_FORMAT: u32 = 1;
/// Entries of a gate's history that are kept.
pub const GATE_HISTORY: usize = 16;

/// Which releases may serve, given what is applied. The safety record of a reconciler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gate {
    pub reconciler: String,
    pub scope: String,
    /// See [`GATE_FORMAT`].
    pub format: u32,
    pub now: GateEntry,
    /// Earlier entries, oldest first.
    pub history: Vec<GateEntry>,
}

/// The content of a gate, now or earlier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateEntry {
    /// Grows by one with each write, and continues after that of a deleted gate.
    pub epoch: u64,
    pub state: GateState,
    /// The applied release; while working the lower end of the way.
    pub reconciled: Release,
    pub digest: String,
    /// The lowest release that may serve; while working the higher end of the way.
    pub floor: Triple,
    /// Only while working.
    pub target: Option<GateTarget>,
    /// Of the runner that wrote it; its predecessor's if an operator did.
    pub term: FencingToken,
    /// The writer's clock; not used for decisions.
    pub at: WallTime,
    /// Its log index.
    pub revision: Revision,
    pub why: String,
}

impl Gate {
    /// Whether this build can read it.
    pub fn is_readable(&self) -> bool {
        self.format <= GATE_FORMAT
    }
    /// Its entries since it was last done, that one included; newest first.
    fn since_done(&self) -> impl Iterator<Item = &GateEntry> {
        let mut done = false;
        let until_done = move |entry: &&GateEntry| !std::mem::replace(&mut done, entry.state == GateState::Done);
        [&self.now].into_iter().chain(self.history.iter().rev()).take_while(until_done)
    }
    /// The newest release that may be partly applied: applied, or begun since, even if the way leads down.
    pub fn highest(&self) -> &Release {
        let begun = self.since_done().filter_map(|entry| entry.target.as_ref()).map(|target| &target.release);
        let all = begun.chain(self.since_done().map(|entry| &entry.reconciled));
        all.max_by_key(|release| release.triple).unwrap_or(&self.now.reconciled)
    }
    /// Whether this gate admits the participant.
    pub fn admits(&self, participant: &Participant) -> bool {
        let needs = participant.needs.get(&self.reconciler);
        participant.release.triple >= self.now.floor && needs.is_none_or(|needs| *needs <= self.now.reconciled.triple)
    }
    /// The lower bound of every floor: on the way, that of the applied release and of the target.
    pub fn least_floor(&self) -> Triple {
        let Some(target) = &self.now.target else { return Triple::default() };
        let there = self.since_done().find(|entry| entry.state == GateState::Done).map(|entry| entry.floor);
        target.floor.max(there.unwrap_or_default())
    }
    /// The floor that an operator has set since it was last done: higher than its definitions require.
    fn forced_floor(&self) -> Option<Triple> {
        let led = self.since_done().skip(1).filter(|entry| entry.state == GateState::Done).map(|entry| entry.floor);
        let targets = self.since_done().filter_map(|entry| entry.target.as_ref()).map(|target| target.floor);
        let asked = led.chain(targets).max()?;
        (self.now.floor > asked).then_some(self.now.floor)
    }
    /// The floor once its target is applied: the target's, or what an operator has set meanwhile.
    pub fn floor_of_outcome(&self, target: &GateTarget) -> Triple {
        self.forced_floor().map_or(target.floor, |forced| forced.max(target.floor))
    }
    /// Keeps at most [`GATE_HISTORY`] entries. Among them are the last outcome, and since then the newest release of a target and
    /// the highest floor: [`Self::highest`] and [`Self::floor_of_outcome`] are computed from these.
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
    /// See [`GatePath`]. Metropolis' rule: a higher release without a higher floor needs no waiting. A floor that an operator has
    /// raised stays until another definition is applied.
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
    /// The lower release and the higher floor: admits only members compatible with both ends. Of two builds of one release, the
    /// target's.
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
    /// [`GatePath::Open`]: work begins.
    Work,
    /// [`GatePath::Restrict`]: from now on only members compatible with both ends are admitted. Refused while an incompatible one
    /// serves.
    Restrict,
    /// The run has succeeded.
    Complete,
}

/// An operator's settings of a reconciler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Controls {
    pub paused: bool,
    /// The digest that may pass the point of no return.
    pub finalized: Option<String>,
    /// Grows with each `retry`: a runner that gave up starts again, another build of a release is applied.
    pub retries: u64,
    /// The digest for which a `retry` was made.
    pub retried: Option<String>,
    /// The last epoch of a deleted gate.
    pub last_epoch: u64,
}

/// An object's key: definitions name kinds of `muster.dev/v1`.
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
    /// The reconciler that made it; only that one may change or delete it automatically.
    pub owner: Option<String>,
    /// Of the runner that wrote it last. 0: another writer.
    pub term: FencingToken,
    pub created: Revision,
    pub revision: Revision,
}

/// The replicated state of reconcilers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reconcilers {
    pub definitions: OrdMap<DefinitionKey, Arc<Definition>>,
    pub gates: OrdMap<String, Arc<Gate>>,
    pub controls: OrdMap<String, Controls>,
    pub progress: OrdMap<String, Arc<Progress>>,
    pub participants: OrdMap<ParticipantKey, Arc<Participant>>,
    pub objects: OrdMap<ManagedKey, Arc<ManagedObject>>,
    /// The last change of any of them, except progress.
    pub changed: Revision,
    /// The last report of progress.
    pub progressed: Revision,
}

impl Reconcilers {
    /// Definitions under one name, oldest release first.
    pub fn definitions_of<'a>(&'a self, reconciler: &'a str) -> impl Iterator<Item = &'a Arc<Definition>> {
        let from = DefinitionKey { reconciler: reconciler.to_owned(), release: Triple::default() };
        self.definitions.range(from..).map(|(_, d)| d).take_while(move |d| d.reconciler == reconciler)
    }
    /// The definition that nodes of a release apply: the newest one up to that release, if it applies to it.
    pub fn definition_for<'a>(&'a self, reconciler: &'a str, release: Triple) -> Option<&'a Arc<Definition>> {
        let newest = self.definitions_of(reconciler).take_while(|d| d.release.triple <= release).last();
        newest.filter(|definition| definition.applies_to(release))
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

    /// Whether a participant may serve; the floor is checked first.
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
        // What was applied is still there: without its gate it is unknown which members are compatible with it.
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

    /// The epoch of its gate, or the last one of a deleted gate. 0: there never was one.
    pub fn epoch_of(&self, reconciler: &str) -> u64 {
        let deleted = self.controls.get(reconciler).map_or(0, |c| c.last_epoch);
        self.gates.get(reconciler).map_or(deleted, |gate| gate.now.epoch)
    }

    /// Serving members that are incompatible with this release, or, in this scope, with this floor.
    pub fn blockers(&self, reconciler: &str, scope: &str, release: Triple, floor: Triple) -> Vec<Blocker> {
        let blocking = |p: &&Arc<Participant>| p.phase != ParticipantPhase::Announced;
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
        self.participants.values().filter(blocking).filter_map(blocker).collect()
    }

    /// The path of a definition, or what an operator must do first. Serving members are checked elsewhere.
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
        let allowed = controls.is_some_and(|c| c.finalized.as_ref() == Some(&definition.digest));
        if path == GatePath::Restrict && definition.finalize == Finalize::Manual && !allowed {
            return Err(Hold::ReadyToFinalize { reconciler: reconciler() });
        }
        Ok(path)
    }
}
