//! Coordination: who should hold one contended lease.
//!
//! Owns        signs of life of the candidates, the last holder, the commands in progress.
//! Inputs      scenes: the current lease and its candidates; results of its commands.
//! Outputs     guarded commands: a holder, a preferred holder, a strategy; pings; deletion of dead candidates.
//! Invariants  ELECT-1  a holder whose time has not run out is never replaced: a better candidate is named as preferred, and
//!                      the holder yields or does not. The [`keeper`](super::keeper) keeps its time.
//!             ELECT-4  everything that failed is tried again, and every wait ends with an event or at a time.
//! and its part of ELECT-2 (see `signs`) and ELECT-3 (see `rules`).
//! Why no plan is stored: each step is derived from the scene and the signs of life. A new leader starts from the store alone;
//! it requests the signs of life that it misses, which takes a round trip.
//! Why it settles first: a cluster's candidates start within a second of each other. Electing the first one that appears leads
//! to its preemption by the next, and an unmodified elector takes ten seconds to let go.

pub mod candidate;
mod decision;
pub mod rules;
pub mod signs;

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_messages::{
    Change, ClientWrite, Command, Guard, Lease, LeaseSpec, MicroTime, Moment, Object, ObjectBody, ObjectKey,
    ObjectKind, ObjectMeta, Principal, RequestId, Revision, Term, Uid, WallTime, millis,
};

use self::candidate::Candidate;
pub use self::decision::ElectionState;
use self::decision::{Decision, Intent};
use self::rules::Conflict;
use self::signs::{Departed, Signs};
use super::board::Scene;
use crate::config::CoordinationConfig;

/// A command in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepId(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Applied(Revision),
    /// Refused, or unknown. The scene shows the outcome.
    Failed,
}

#[derive(Clone, Debug)]
pub enum Input {
    /// A newer scene: a watched value, of which some may be missed.
    Scene(Arc<Scene>),
    Ended {
        step: StepId,
        outcome: Outcome,
    },
    Woke,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Propose { step: StepId, command: Box<Command> },
    ElectionEvent(ElectionEvent),
}

/// Events, for counters and logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElectionEvent {
    /// The lease has a new holder by election.
    Elected { name: String },
    /// A better candidate than the holder was named.
    Preferred { name: String },
    /// Elected or preferred although a newer one is present: that one would have run ahead of the others.
    SkewPrevented { name: String },
    /// A command of this election failed, or the candidates contradict each other.
    Failed { why: String },
    /// A candidate was silent for so long that it was deleted.
    CleanedUp { name: String },
}

/// What outlives a crash of the actor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    signs: Signs,
    holder: Option<String>,
    /// Since when the lease has no holder.
    vacant_since: Option<Moment>,
    departed: Option<Departed>,
    /// The lease was held during this leadership.
    held_before: bool,
    /// The candidate that this election chose last, and the renew time that was written for it.
    elected: Option<(String, MicroTime)>,
    /// Elected, and never took the lease: others take precedence until this time.
    sitting_out: BTreeMap<String, Moment>,
}

#[derive(Clone, Debug, PartialEq)]
struct InProgress {
    what: What,
    /// The revision of its object; `None`: the object did not exist.
    based_on: Option<Revision>,
}

#[derive(Clone, Debug, PartialEq)]
enum What {
    Lease { intent: Intent, skew: bool },
    Ping(String),
    CleanUp(String),
}

impl What {
    /// The candidate that it concerns, unless it concerns the lease.
    fn candidate(&self) -> Option<&String> {
        match self {
            What::Lease { .. } => None,
            What::Ping(name) | What::CleanUp(name) => Some(name),
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct ContendedElection {
    config: CoordinationConfig,
    term: Term,
    entropy: u128,
    scene: Arc<Scene>,
    observed: bool,
    memory: Memory,
    in_progress: BTreeMap<StepId, InProgress>,
    next_step: u64,
    /// The lease was written at this revision: wait for its scene, up to the given moment.
    unseen: Option<(Revision, Moment)>,
    /// Pauses after a failed write of the lease or of a ping.
    pauses: BTreeMap<Option<String>, Moment>,
    conflict: Option<Conflict>,
    election_state: ElectionState,
    wake: Option<Moment>,
}

impl ContendedElection {
    /// An election in `term`. `memory`: what the last incarnation left; `entropy` makes uids.
    pub fn new(
        config: CoordinationConfig,
        term: Term,
        entropy: u128,
        scene: Arc<Scene>,
        memory: Option<Memory>,
    ) -> Self {
        Self {
            config,
            term,
            entropy,
            scene,
            observed: false,
            memory: memory.unwrap_or_default(),
            in_progress: BTreeMap::new(),
            next_step: 0,
            unseen: None,
            pauses: BTreeMap::new(),
            conflict: None,
            election_state: ElectionState::default(),
            wake: None,
        }
    }

    /// Handles one input. The effects must be applied after [`ContendedElection::memory`] has been stored.
    pub fn step(&mut self, now: Moment, wall: WallTime, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Scene(scene) => self.observe(now, scene),
            Input::Ended { step, outcome } => self.ended(now, step, outcome, out),
            Input::Woke => {}
        }
        self.advance(now, wall, out);
    }

    /// What the next incarnation starts from.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }
    /// When to wake it, if nothing happens earlier.
    pub fn wake_at(&self) -> Option<Moment> {
        self.wake
    }
    /// What it waits for.
    pub fn election_state(&self) -> &ElectionState {
        &self.election_state
    }
    pub fn scene(&self) -> &Scene {
        &self.scene
    }
    /// Each candidate with its state and its last sign of life.
    pub fn candidates(&self, now: Moment, wall: WallTime) -> Vec<(Candidate, signs::CandidateState, Option<Moment>)> {
        let departed = self.memory.departed.as_ref();
        let signs = &self.memory.signs;
        let row = |c: Candidate| {
            let candidate_state = signs.candidate_state(now, &c.name, departed, &self.config);
            let last = signs.get(&c.name).and_then(|sign| sign.alive_at);
            (c, candidate_state, last)
        };
        self.scene.candidates.values().filter_map(|object| Candidate::of(object, wall)).map(row).collect()
    }

    fn observe(&mut self, now: Moment, scene: Arc<Scene>) {
        let memory = &mut self.memory;
        memory.signs.see(now, &scene.candidates, |object| object.meta.created > scene.since);
        let lease = scene.lease.as_ref().and_then(|object| object.lease());
        let holder = lease.filter(|l| l.is_live()).and_then(|l| l.spec.held_by()).map(str::to_owned);
        if holder.is_some() {
            memory.vacant_since = None;
            memory.departed = None;
            memory.held_before = true;
        } else {
            memory.vacant_since.get_or_insert(now);
            let first_observation = !self.observed && memory.departed.is_none();
            let expired = lease.filter(|l| l.holding.expired).and_then(|l| l.spec.held_by());
            // A new leader finds an expired lease: its last holder let it expire.
            let left = memory.holder.take().or_else(|| expired.filter(|_| first_observation).map(str::to_owned));
            if let Some(name) = left {
                let never_renewed = |(elected, at): &(String, MicroTime)| {
                    *elected == name && lease.is_some_and(|l| l.holding.expired && l.spec.renewed == Some(*at))
                };
                if memory.elected.as_ref().is_some_and(never_renewed) {
                    memory.sitting_out.insert(name.clone(), now + self.config.sit_out);
                }
                memory.departed = Some(Departed { name, at: now });
            }
        }
        memory.holder = holder;
        memory.sitting_out.retain(|name, until| now < *until && scene.candidates.contains_key(name));
        if self.unseen.is_some_and(|(revision, _)| scene.revision >= revision) {
            self.unseen = None;
        }
        let before = std::mem::replace(&mut self.scene, scene);
        let revision = |object: Option<&Arc<Object>>| object.map(|object| object.meta.revision);
        // This change may have removed the reason of a refusal.
        self.pauses.retain(|of, _| match of {
            None => revision(before.lease.as_ref()) == revision(self.scene.lease.as_ref()),
            Some(name) => revision(before.candidates.get(name)) == revision(self.scene.candidates.get(name)),
        });
        self.observed = true;
    }

    fn ended(&mut self, now: Moment, step: StepId, outcome: Outcome, out: &mut Vec<Effect>) {
        let Some(InProgress { what, based_on }) = self.in_progress.remove(&step) else { return };
        match (what, outcome) {
            (What::Lease { intent, skew }, Outcome::Applied(revision)) => {
                if self.scene.revision < revision {
                    self.unseen = Some((revision, now + self.config.requeue));
                }
                self.written(intent, skew, out);
            }
            (What::Ping(name), Outcome::Applied(_)) => self.memory.signs.asked(&name, now),
            (What::CleanUp(name), Outcome::Applied(_)) => {
                out.push(Effect::ElectionEvent(ElectionEvent::CleanedUp { name }))
            }
            (what, Outcome::Failed) => {
                let candidate = what.candidate();
                // A refusal because of a write that has been seen since is retried at once.
                if self.revision_of(candidate) == based_on {
                    self.pauses.insert(candidate.cloned(), now + self.config.retry);
                }
                if let What::Lease { intent, .. } = what {
                    out.push(Effect::ElectionEvent(ElectionEvent::Failed {
                        why: format!("the lease was not written: {intent}"),
                    }));
                }
            }
        }
    }

    /// The revision of the lease, or of a candidate, as last seen.
    fn revision_of(&self, candidate: Option<&String>) -> Option<Revision> {
        let object = match candidate {
            None => self.scene.lease.as_ref(),
            Some(name) => self.scene.candidates.get(name),
        };
        object.map(|object| object.meta.revision)
    }

    fn written(&mut self, intent: Intent, skew: bool, out: &mut Vec<Effect>) {
        let (event, name) = match intent {
            Intent::Elect { name, .. } => (ElectionEvent::Elected { name: name.clone() }, name),
            Intent::Prefer { name: Some(name), .. } => (ElectionEvent::Preferred { name: name.clone() }, name),
            Intent::Prefer { name: None, .. } | Intent::Label { .. } => return,
        };
        out.push(Effect::ElectionEvent(event));
        if skew {
            out.push(Effect::ElectionEvent(ElectionEvent::SkewPrevented { name }));
        }
    }

    /// The only place that starts anything.
    fn advance(&mut self, now: Moment, wall: WallTime, out: &mut Vec<Effect>) {
        self.pauses.retain(|_, until| now < *until);
        self.unseen = self.unseen.filter(|(_, until)| now < *until);
        let decision = self.decide(now, wall);
        if decision.conflict != self.conflict {
            if let Some(Conflict { strategies: [a, b] }) = &decision.conflict {
                let why = format!("the newest candidates want different strategies: {a} and {b}");
                out.push(Effect::ElectionEvent(ElectionEvent::Failed { why }));
            }
            self.conflict = decision.conflict.clone();
        }
        for name in &decision.clean_up {
            self.clean_up(wall, name, out);
        }
        for name in &decision.ping {
            self.ping(wall, name, out);
        }
        let free = self.unseen.is_none() && !self.pauses.contains_key(&None);
        let writing = self.in_progress.values().any(|in_progress| in_progress.what.candidate().is_none());
        if let Some(intent) = decision.intent.clone().filter(|_| free && !writing) {
            self.write(wall, intent, decision.skew, out);
        }
        self.plan_wake(now, &decision);
        self.election_state = decision.election_state;
    }

    fn plan_wake(&mut self, now: Moment, decision: &Decision) {
        let pauses = self.pauses.values().copied();
        let unseen = self.unseen.map(|(_, until)| until);
        let times = decision.wake.iter().copied().chain(pauses).chain(unseen);
        self.wake = times.filter(|at| *at > now).min();
    }

    /// A command about this candidate is in progress or just failed, or too many others are in progress; the end of one
    /// triggers the next.
    fn busy_with(&self, name: &str) -> bool {
        if self.in_progress.len() >= self.config.pings {
            return true;
        }
        let about = |in_progress: &InProgress| in_progress.what.candidate().is_some_and(|n| n == name);
        self.in_progress.values().any(about) || self.pauses.contains_key(&Some(name.to_owned()))
    }

    fn ping(&mut self, wall: WallTime, name: &str, out: &mut Vec<Effect>) {
        let Some(object) = self.scene.candidates.get(name).filter(|_| !self.busy_with(name)) else { return };
        let mut asked = Object::clone(object);
        let ObjectBody::LeaseCandidate(spec) = &mut asked.body else { return };
        // Candidates answer a ping that is later than their last sign. Written just after that sign, it is later by their own
        // clock, however far off, and the answer is later again.
        let last = spec.renewed.max(spec.pinged);
        spec.pinged = Some(last.map_or(wall.into(), |MicroTime(at)| MicroTime(at.saturating_add(1))));
        let change = Change::UpdateObject { object: Box::new(asked), write: ClientWrite::default() };
        let guard = Guard::ObjectRevision { key: object.key(), revision: object.meta.revision };
        self.propose(wall, "election: ping", guard, change, What::Ping(name.to_owned()), out);
    }

    fn clean_up(&mut self, wall: WallTime, name: &str, out: &mut Vec<Effect>) {
        let Some(object) = self.scene.candidates.get(name).filter(|_| !self.busy_with(name)) else { return };
        let key = ObjectKey {
            kind: ObjectKind::LeaseCandidate,
            namespace: object.namespace.clone(),
            name: object.name.clone(),
        };
        let guard = Guard::ObjectRevision { key: key.clone(), revision: object.meta.revision };
        let change = Change::DeleteObject { key, force: false };
        self.propose(wall, "election: candidate deleted", guard, change, What::CleanUp(name.to_owned()), out);
    }

    fn write(&mut self, wall: WallTime, intent: Intent, skew: bool, out: &mut Vec<Effect>) {
        let now = MicroTime::from(wall);
        let key = self.scene.key.clone();
        let old = self.scene.lease.clone();
        let mut spec = old.as_ref().and_then(|object| object.lease()).map(|l| l.spec.clone()).unwrap_or_default();
        // Renew times never repeat: by them the store distinguishes a renewal from any other write.
        let renewed = spec.renewed.map_or(now, |MicroTime(at)| now.max(MicroTime(at.saturating_add(1))));
        match &intent {
            Intent::Elect { name, strategy } => {
                let first = old.is_none();
                let again = spec.held_by() == Some(name);
                let transitions = spec.transitions.unwrap_or(0).saturating_add(i32::from(!first && !again));
                spec = LeaseSpec {
                    holder: Some(name.clone()),
                    duration_ms: Some(millis(self.config.elected_for)),
                    acquired: Some(renewed),
                    renewed: Some(renewed),
                    transitions: Some(transitions),
                    strategy: Some(strategy.clone()),
                    preferred_holder: None,
                };
                self.memory.elected = Some((name.clone(), renewed));
            }
            Intent::Prefer { name, strategy } => {
                spec.preferred_holder = name.clone();
                spec.strategy = strategy.clone().or(spec.strategy);
            }
            Intent::Label { strategy } => {
                spec.strategy = Some(strategy.clone());
                if old.is_none() {
                    spec.transitions = Some(0);
                }
            }
        }
        let lease = |holding| ObjectBody::Lease(Lease { spec, holding });
        let (guard, change) = match &old {
            Some(object) => {
                let holding = object.lease().map(|l| l.holding).unwrap_or_default();
                let new = Object { body: lease(holding), ..Object::clone(object) };
                let guard = Guard::ObjectRevision { key, revision: object.meta.revision };
                (guard, Change::UpdateObject { object: Box::new(new), write: ClientWrite::default() })
            }
            None => {
                self.next_step += 1;
                let uid = Uid::from_entropy(self.entropy.wrapping_add(u128::from(self.next_step)));
                let (namespace, name) = (key.namespace.clone(), key.name.clone());
                let new = Object { namespace, name, meta: ObjectMeta::fresh(uid), body: lease(Default::default()) };
                (Guard::ObjectAbsent(key), Change::CreateObject(Box::new(new)))
            }
        };
        let reason = match &intent {
            Intent::Elect { name, .. } => format!("elected {name}"),
            Intent::Prefer { name: Some(name), .. } => format!("prefers {name}"),
            Intent::Prefer { name: None, .. } => "preference cleared".to_owned(),
            Intent::Label { strategy } => format!("strategy {strategy}"),
        };
        self.propose(wall, &format!("election: {reason}"), guard, change, What::Lease { intent, skew }, out);
    }

    fn propose(
        &mut self,
        wall: WallTime,
        reason: &str,
        guard: Guard,
        change: Change,
        what: What,
        out: &mut Vec<Effect>,
    ) {
        self.next_step += 1;
        let step = StepId(self.next_step);
        let based_on = self.revision_of(what.candidate());
        self.in_progress.insert(step, InProgress { what, based_on });
        // The guards make it happen once: no outcome needs to be stored.
        let command = Command::idempotent(wall, Principal::Cluster, reason).with_request(RequestId(0));
        let command = command.guard(Guard::InTerm(self.term)).guard(guard).change(change);
        out.push(Effect::Propose { step, command: Box::new(command) });
    }
}
