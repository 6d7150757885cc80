//! The fleet's operator: definitions of each release, and interference.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::wire::ReconcilerRequest;
use muster_messages::{
    Action, CommandAction, Definition, DefinitionKey, DesiredObject, Finalize, Hold, ManagedKey, ParticipantPhase,
    Release, Triple,
};

use super::{LEVELS, Question, RELEASES, Requester, SCHEMA, Subject};
use crate::simulation::{Event, Simulation};

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

impl Simulation {
    pub(super) fn start_fleet(&mut self, processes: usize) {
        self.fleet.wild = self.rng.chance(500);
        let commands = self.rng.chance(400);
        for of in RELEASES {
            let definition = self.some_definition(of, commands);
            self.fleet.definitions.push(definition);
        }
        for _ in 0..processes {
            let release = self.next_release();
            let number = self.new_process(release);
            let soon = self.rng.millis(1, 400);
            self.time.after(soon, Event::Process { process: number, life: 0 });
        }
        self.time.after(Duration::from_millis(1), Event::FleetOperator);
    }

    fn some_definition(&mut self, of: &str, commands: bool) -> Definition {
        let floor = self.rng.pick(&["0.0.0", of, of]).unwrap_or(of);
        let every = self.rng.pick(&[None, Some(1000), Some(3000)]).flatten();
        let manual = self.rng.chance(150);
        sealed(of, release(floor).triple, commands, |definition| {
            definition.every_ms = every;
            if manual {
                definition.finalize = Finalize::Manual;
            }
        })
    }

    /// The release of the next start.
    pub(super) fn next_release(&mut self) -> Release {
        match &self.fleet.target {
            Some(target) => target.clone(),
            None => release(self.rng.pick(&RELEASES).unwrap_or(RELEASES[0])),
        }
    }

    pub(crate) fn operator_asks(&mut self, request: ReconcilerRequest) {
        self.log(format!("operator request: {request:?}"));
        self.fleet_asks(None, Question::Reconciler(Requester::Discarded, request));
    }

    pub(crate) fn fleet_operator(&mut self) {
        let next = self.rng.millis(200, 900);
        self.time.after(next, Event::FleetOperator);
        if self.fleet.subject == LEVELS {
            return self.register_levels();
        }
        let all = self.checks.newest().map(|tables| tables.reconcilers.clone()).unwrap_or_default();
        let wanted = self.fleet.definitions.clone();
        let there = |d: &Definition| all.definitions.get(&d.key()).is_some_and(|there| there.digest == d.digest);
        if let Some(missing) = wanted.into_iter().find(|definition| !there(definition)) {
            let definitions = vec![missing];
            return self.operator_asks(ReconcilerRequest::Apply { definitions, replace: true });
        }
        if self.fleet.target.is_some() {
            self.settle_gates();
        } else if self.faults.active {
            self.disturb_other_processes();
        }
    }

    fn disturb_other_processes(&mut self) {
        use ReconcilerRequest as R;
        let Subject { reconciler, scope } = self.fleet.subject;
        let name = reconciler.to_owned();
        let tables = self.checks.newest().cloned().unwrap_or_default();
        let all = &tables.reconcilers;
        let gate = all.gates.get(reconciler).cloned();
        let owned: Vec<ManagedKey> = all.objects.keys().cloned().collect();
        let (what, request) = match self.rng.below(16) {
            0 | 1 => ("operator: paused or resumed", R::Pause { name, paused: self.rng.chance(300) }),
            2 => ("operator: finalized", R::Finalize { name, release: None }),
            3 => ("operator: retried", R::Retry { name, release: None }),
            4 | 5 => {
                let serving: Vec<&str> = (all.participants_of(scope))
                    .filter(|p| p.phase == ParticipantPhase::Serving)
                    .map(|p| p.key.member.as_str())
                    .collect();
                let Some(member) = self.rng.pick(&serving) else { return };
                ("operator: drained", R::MemberDrain { scope: scope.to_owned(), member: member.to_owned() })
            }
            6 => {
                let Some(key) = owned.get(self.rng.below(owned.len())).cloned() else { return };
                let body = "{\"is\":\"by hand\"}".to_owned();
                ("operator: changed an object", R::ObjectPut { key, labels: BTreeMap::new(), body })
            }
            7 => {
                let Some(key) = owned.get(self.rng.below(owned.len())).cloned() else { return };
                ("operator: deleted an object", R::ObjectDelete { key })
            }
            8 => {
                let at = self.rng.below(RELEASES.len());
                let commands = matches!(self.fleet.definitions[at].action, Action::Command(_));
                self.fleet.definitions[at] = self.some_definition(RELEASES[at], commands);
                return self.totals.count("operator: replaced a definition");
            }
            _ if !self.fleet.wild => return,
            9 => ("operator: deleted a gate", R::DeleteGate { name }),
            10 | 11 => {
                let floor = release(self.rng.pick(&RELEASES).unwrap_or(RELEASES[0])).triple;
                ("operator: forced a floor", R::ForceFloor { name, floor, dry_run: false })
            }
            12 => {
                let epochs: Vec<u64> = gate.iter().flat_map(|gate| &gate.history).map(|entry| entry.epoch).collect();
                let Some(epoch) = self.rng.pick(&epochs) else { return };
                ("operator: repaired a gate", R::Repair { name, epoch })
            }
            _ => return,
        };
        self.totals.count(what);
        self.operator_asks(request);
    }

    /// Restores order step by step: resumes, finalizes, retries, deletes orphaned objects, and drains blockers, which
    /// return as the target release.
    fn settle_gates(&mut self) {
        use ReconcilerRequest as R;
        let tables = self.checks.newest().cloned().unwrap_or_default();
        let all = &tables.reconcilers;
        let Some(target) = self.fleet.target.clone() else { return };
        let Subject { reconciler, scope } = self.fleet.subject;
        let key = DefinitionKey { reconciler: reconciler.to_owned(), release: target.triple };
        let Some(definition) = all.definitions.get(&key) else { return };
        let (name, release) = (reconciler.to_owned(), Some(target.triple));
        match all.way(definition) {
            Err(Hold::Paused { .. }) => return self.operator_asks(R::Pause { name, paused: false }),
            Err(Hold::ReadyToFinalize { .. }) => self.operator_asks(R::Finalize { name, release }),
            Err(Hold::DigestMismatch { .. }) => return self.operator_asks(R::Retry { name, release }),
            _ => {}
        }
        if let Some(orphan) = all.objects.values().find(|object| object.owner.is_none()) {
            return self.operator_asks(R::ObjectDelete { key: orphan.key.clone() });
        }
        for blocker in all.blockers(reconciler, scope, target.triple, definition.floor) {
            if blocker.phase == ParticipantPhase::Serving {
                self.operator_asks(R::MemberDrain { scope: scope.to_owned(), member: blocker.member });
            }
        }
    }
}
