//! The fleet's operator: definitions of each release, and interference.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::wire::ReconcilerRequest;
use muster_messages::{
    Action, Applies, ChainStep, CommandAction, Definition, DesiredObject, Finalize, Hold, ManagedKey, ParticipantPhase,
    Release, Triple,
};

use super::{Fleet, LATER_RELEASES, LEVELS, PendingRequest, Process, Question, RELEASES, Requester, SCHEMA, Subject};
use crate::events::Event;
use crate::upgrades::Levels;
use crate::world::World;

pub(super) fn release(text: &str) -> Release {
    text.parse().expect("releases of the simulation are well-formed")
}

fn object(name: &str, is: &str, wave: u32) -> DesiredObject {
    let key = ManagedKey { kind: "thing".to_owned(), namespace: "default".to_owned(), name: name.to_owned() };
    DesiredObject { key, labels: BTreeMap::new(), body: format!("{{\"is\":\"{is}\"}}"), wave }
}

/// Objects of a release: one changes with it, one does not, one belongs to it alone.
fn objects(of: &str) -> Action {
    let own = format!("own-{}", of.replace('.', "-"));
    Action::Objects(vec![object("a", of, 0), object("b", "same", 0), object(&own, "own", 1)])
}

/// What the definitions of a fleet apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ActionKind {
    #[default]
    Objects,
    Command,
    Chain,
}

impl ActionKind {
    fn some(world: &mut World) -> Self {
        match world.rng.below(10) {
            0 | 1 => Self::Command,
            2 | 3 => Self::Chain,
            _ => Self::Objects,
        }
    }

    fn action(self, of: &str) -> Action {
        let command = || CommandAction { argv: vec!["migrate".to_owned()], env: BTreeMap::new() };
        let step = |release: &str| ChainStep {
            name: format!("to-{}", release.replace('.', "-")),
            command: command(),
            digest: String::new(),
        };
        match self {
            Self::Objects => objects(of),
            Self::Command => Action::Command(command()),
            // One more step with each release.
            Self::Chain => {
                let last = RELEASES.iter().position(|release| *release == of).unwrap_or_default();
                Action::Chain(RELEASES[..=last].iter().map(|release| step(release)).collect())
            }
        }
    }
}

/// A definition as the cluster stores it.
pub(super) fn sealed(of: &str, floor: Triple, kind: ActionKind, shape: impl FnOnce(&mut Definition)) -> Definition {
    let action = kind.action(of);
    let mut definition = Definition::new(SCHEMA.reconciler, release(of), SCHEMA.scope, floor, action);
    // Every release may be downgraded. Actions without fencing settle for as long as a simulated minute allows.
    (definition.downgrade, definition.settle_ms) = (true, if kind == ActionKind::Objects { 0 } else { 200 });
    shape(&mut definition);
    muster_gates::sealed(definition).expect("definitions of the simulation are valid")
}

impl Fleet {
    pub(super) fn start(world: &mut World, processes: usize) {
        world.fleet.wild = world.rng.chance(500);
        world.fleet.action_kind = ActionKind::some(world);
        world.fleet.has_later = world.rng.chance(500);
        for of in RELEASES {
            let definition = Self::some_definition(world, of);
            world.fleet.definitions.push(definition);
        }
        for _ in 0..processes {
            let release = Self::next_release(world);
            let number = Process::add(world, release);
            let soon = world.rng.millis(1, 400);
            world.time.after(soon, Event::Process { process: number, life: 0 });
        }
        world.time.after(Duration::from_millis(1), Event::FleetOperator);
    }

    fn some_definition(world: &mut World, of: &str) -> Definition {
        let kind = world.fleet.action_kind;
        let floor = world.rng.pick(&["0.0.0", of, of]).unwrap_or(of);
        let every = world.rng.pick(&[None, Some(1000), Some(3000)]).flatten();
        let manual = world.rng.chance(150);
        let or_later = world.fleet.has_later && world.rng.chance(700);
        sealed(of, release(floor).triple, kind, |definition| {
            definition.every_ms = every;
            if or_later {
                definition.options.applies = Applies::OrLater;
            }
            if manual {
                definition.finalize = Finalize::Manual;
            }
        })
    }

    /// The release of the next start.
    pub(super) fn next_release(world: &mut World) -> Release {
        match &world.fleet.target {
            Some(target) => target.clone(),
            None if world.fleet.has_later && world.rng.chance(400) => {
                release(world.rng.pick(&LATER_RELEASES).unwrap_or(LATER_RELEASES[0]))
            }
            None => release(world.rng.pick(&RELEASES).unwrap_or(RELEASES[0])),
        }
    }

    /// The release of every start from now on: the newest that runs, if a definition applies to it.
    pub(super) fn choose_target(world: &mut World) {
        let live = world.fleet.processes.iter().filter(|process| process.up);
        let newest = live.map(|process| process.release.clone()).max_by_key(|release| release.triple);
        let newest = newest.unwrap_or_else(|| Self::next_release(world));
        let mut definitions: Vec<&Definition> = world.fleet.definitions.iter().collect();
        definitions.sort_by_key(|definition| definition.release.triple);
        let defined = definitions.into_iter().rfind(|definition| definition.release.triple <= newest.triple);
        let target = if defined.is_some_and(|definition| definition.applies_to(newest.triple)) {
            newest
        } else {
            release(RELEASES[RELEASES.len() - 1])
        };
        world.log(format!("every later start is of release {target}"));
        let up = || world.fleet.processes.iter().enumerate().filter(|(_, process)| process.up);
        let restarted =
            up().map(|(number, _)| number).next().filter(|_| up().all(|(_, process)| process.release != target));
        world.fleet.target = Some(target);
        if let Some(number) = restarted {
            Process::stop(world, number);
        }
    }

    pub(crate) fn operator_asks(world: &mut World, request: ReconcilerRequest) {
        world.log(format!("operator request: {request:?}"));
        PendingRequest::ask(world, None, Question::Reconciler(Requester::Discarded, request));
    }

    pub(crate) fn operator(world: &mut World) {
        let next = world.rng.millis(200, 900);
        world.time.after(next, Event::FleetOperator);
        if world.fleet.subject == LEVELS {
            return Levels::register_levels(world);
        }
        let all = world.checks.newest().map(|tables| tables.reconcilers.clone()).unwrap_or_default();
        let wanted = world.fleet.definitions.clone();
        let there = |d: &Definition| all.definitions.get(&d.key()).is_some_and(|there| there.digest == d.digest);
        if let Some(missing) = wanted.into_iter().find(|definition| !there(definition)) {
            let definitions = vec![missing];
            return Self::operator_asks(world, ReconcilerRequest::Apply { definitions, replace: true });
        }
        if world.fleet.target.is_some() {
            Self::settle_gates(world);
        } else if world.faults_active {
            Self::disturb_other_processes(world);
        }
    }

    fn disturb_other_processes(world: &mut World) {
        use ReconcilerRequest as R;
        let Subject { reconciler, scope } = world.fleet.subject;
        let name = reconciler.to_owned();
        let tables = world.checks.newest().cloned().unwrap_or_default();
        let all = &tables.reconcilers;
        let gate = all.gates.get(reconciler).cloned();
        let owned: Vec<ManagedKey> = all.objects.keys().cloned().collect();
        let (what, request) = match world.rng.below(16) {
            0 | 1 => ("operator: paused or resumed", R::Pause { name, paused: world.rng.chance(300) }),
            2 => ("operator: finalized", R::Finalize { name, release: None }),
            3 => ("operator: retried", R::Retry { name, release: None }),
            4 | 5 => {
                let serving: Vec<&str> = (all.participants_of(scope))
                    .filter(|p| p.phase == ParticipantPhase::Serving)
                    .map(|p| p.key.member.as_str())
                    .collect();
                let Some(member) = world.rng.pick(&serving) else { return };
                ("operator: drained", R::MemberDrain { scope: scope.to_owned(), member: member.to_owned() })
            }
            6 => {
                let Some(key) = owned.get(world.rng.below(owned.len())).cloned() else { return };
                let body = "{\"is\":\"by hand\"}".to_owned();
                ("operator: changed an object", R::ObjectPut { key, labels: BTreeMap::new(), body })
            }
            7 => {
                let Some(key) = owned.get(world.rng.below(owned.len())).cloned() else { return };
                ("operator: deleted an object", R::ObjectDelete { key })
            }
            8 => {
                let at = world.rng.below(RELEASES.len());
                world.fleet.definitions[at] = Self::some_definition(world, RELEASES[at]);
                return world.totals.count("operator: replaced a definition");
            }
            _ if !world.fleet.wild => return,
            9 => ("operator: deleted a gate", R::DeleteGate { name }),
            10 | 11 => {
                let floor = release(world.rng.pick(&RELEASES).unwrap_or(RELEASES[0])).triple;
                ("operator: forced a floor", R::ForceFloor { name, floor, dry_run: false })
            }
            12 => {
                let epochs: Vec<u64> = gate.iter().flat_map(|gate| &gate.history).map(|entry| entry.epoch).collect();
                let Some(epoch) = world.rng.pick(&epochs) else { return };
                ("operator: repaired a gate", R::Repair { name, epoch })
            }
            // Its definitions are applied again, one by one.
            13 if world.fleet.action_kind == ActionKind::Chain => {
                ("operator: deleted a reconciler", R::Delete { name })
            }
            _ => return,
        };
        world.totals.count(what);
        Self::operator_asks(world, request);
    }

    /// Restores order step by step: resumes, finalizes, retries, deletes orphaned objects, and drains blockers, which
    /// return as the target release.
    fn settle_gates(world: &mut World) {
        use ReconcilerRequest as R;
        let tables = world.checks.newest().cloned().unwrap_or_default();
        let all = &tables.reconcilers;
        let Some(target) = world.fleet.target.clone() else { return };
        let Subject { reconciler, scope } = world.fleet.subject;
        let Some(definition) = all.definition_for(reconciler, target.triple) else { return };
        let (name, release) = (reconciler.to_owned(), Some(definition.release.triple));
        match tables.way(definition) {
            Err(Hold::Paused { .. }) => return Self::operator_asks(world, R::Pause { name, paused: false }),
            Err(Hold::ReadyToFinalize { .. }) => Self::operator_asks(world, R::Finalize { name, release }),
            Err(Hold::DigestMismatch { .. }) => return Self::operator_asks(world, R::Retry { name, release }),
            _ => {}
        }
        if let Some(orphan) = all.objects.values().find(|object| object.owner.is_none()) {
            return Self::operator_asks(world, R::ObjectDelete { key: orphan.key.clone() });
        }
        for blocker in all.blockers(reconciler, scope, definition.release.triple, definition.floor) {
            if blocker.phase == ParticipantPhase::Serving {
                Self::operator_asks(world, R::MemberDrain { scope: scope.to_owned(), member: blocker.member });
            }
        }
    }
}
