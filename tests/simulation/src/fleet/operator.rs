//! The fleet's operator: definitions of each release, and interference.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::wire::ReconcilerRequest;
use muster_messages::{
    Action, CommandAction, Definition, DefinitionKey, DesiredObject, Finalize, Hold, ManagedKey, ParticipantPhase,
    Release, Triple,
};

use super::{Fleet, LEVELS, PendingRequest, Process, Question, RELEASES, Requester, SCHEMA, Subject};
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

/// A definition as the cluster stores it.
pub(super) fn sealed(of: &str, floor: Triple, commands: bool, shape: impl FnOnce(&mut Definition)) -> Definition {
    let command = || Action::Command(CommandAction { argv: vec!["migrate".to_owned()], env: BTreeMap::new() });
    let action = if commands { command() } else { objects(of) };
    let mut definition = Definition::new(SCHEMA.reconciler, release(of), SCHEMA.scope, floor, action);
    // Every release may be downgraded. Actions without fencing settle for as long as a simulated minute allows.
    (definition.downgrade, definition.settle_ms) = (true, if commands { 200 } else { 0 });
    shape(&mut definition);
    muster_gates::sealed(definition).expect("definitions of the simulation are valid")
}

impl Fleet {
    pub(super) fn start(world: &mut World, processes: usize) {
        world.fleet.wild = world.rng.chance(500);
        let commands = world.rng.chance(400);
        for of in RELEASES {
            let definition = Self::some_definition(world, of, commands);
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

    fn some_definition(world: &mut World, of: &str, commands: bool) -> Definition {
        let floor = world.rng.pick(&["0.0.0", of, of]).unwrap_or(of);
        let every = world.rng.pick(&[None, Some(1000), Some(3000)]).flatten();
        let manual = world.rng.chance(150);
        sealed(of, release(floor).triple, commands, |definition| {
            definition.every_ms = every;
            if manual {
                definition.finalize = Finalize::Manual;
            }
        })
    }

    /// The release of the next start.
    pub(super) fn next_release(world: &mut World) -> Release {
        match &world.fleet.target {
            Some(target) => target.clone(),
            None => release(world.rng.pick(&RELEASES).unwrap_or(RELEASES[0])),
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
                let commands = matches!(world.fleet.definitions[at].action, Action::Command(_));
                world.fleet.definitions[at] = Self::some_definition(world, RELEASES[at], commands);
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
        let key = DefinitionKey { reconciler: reconciler.to_owned(), release: target.triple };
        let Some(definition) = all.definitions.get(&key) else { return };
        let (name, release) = (reconciler.to_owned(), Some(target.triple));
        match tables.way(definition) {
            Err(Hold::Paused { .. }) => return Self::operator_asks(world, R::Pause { name, paused: false }),
            Err(Hold::ReadyToFinalize { .. }) => Self::operator_asks(world, R::Finalize { name, release }),
            Err(Hold::DigestMismatch { .. }) => return Self::operator_asks(world, R::Retry { name, release }),
            _ => {}
        }
        if let Some(orphan) = all.objects.values().find(|object| object.owner.is_none()) {
            return Self::operator_asks(world, R::ObjectDelete { key: orphan.key.clone() });
        }
        for blocker in all.blockers(reconciler, scope, target.triple, definition.floor) {
            if blocker.phase == ParticipantPhase::Serving {
                Self::operator_asks(world, R::MemberDrain { scope: scope.to_owned(), member: blocker.member });
            }
        }
    }
}
