//! Invariants of gates and their participants, beyond what the store checks of each state: over several
//! entries, and between replicated state and belief.

use muster_messages::{
    Action, Definition, FencingToken, GatePath, GateState, ManagedObject, ParticipantPhase, Reconcilers, Tables,
    runner_lease,
};
use muster_reconciler::core::admission::AdmissionState;
use muster_reconciler::core::run::Work;
use muster_store::invariants::{RELEASE_2, RELEASE_4};

use super::{Fleet, Subject};
use crate::candidates::HOLD_1;
use crate::checks::{CheckResult, violation};
use crate::world::World;

pub const RELEASE_5: &str = "RELEASE-5";
pub const RUN_2: &str = "RUN-2";
pub const RUN_4: &str = "RUN-4";
pub const SERVE_1: &str = "SERVE-1";

/// Checks one entry, or several.
pub fn step(before: &Tables, after: &Tables) -> CheckResult {
    let (was, is) = (&before.reconcilers, &after.reconcilers);
    if (was.changed, was.progressed) == (is.changed, is.progressed) {
        return Ok(());
    }
    let single = after.revision == before.revision.next();
    for (name, gate) in &is.gates {
        let begins = single && !was.gates.contains_key(name);
        if begins && gate.now.state != GateState::Done {
            return Err(violation(RELEASE_5, format!("the gate of {name} starts in state {:?}", gate.now)));
        }
    }
    for (name, progress) in &is.progress {
        let newest = newest_term(was, name);
        if was.progress.get(name) != Some(progress) && progress.term < newest {
            return Err(violation(RELEASE_4, format!("term {} reports on {name} after term {newest}", progress.term)));
        }
    }
    for object in is.objects.values().filter(|object| object.revision > before.revision) {
        let Some(owner) = object.owner.as_deref().filter(|_| object.term != FencingToken(0)) else { continue };
        written(before, after, owner, object, single)?;
    }
    needs(is)
}

/// Checks an object that a runner wrote.
fn written(before: &Tables, after: &Tables, owner: &str, object: &ManagedObject, single: bool) -> CheckResult {
    let (term, newest) = (object.term, newest_term(&before.reconcilers, owner));
    if term < newest {
        return Err(violation(RELEASE_4, format!("term {term} writes {} after term {newest}", object.key)));
    }
    if !single {
        return Ok(());
    }
    let lease = after.objects.get(&runner_lease(owner)).and_then(|object| object.lease());
    if !lease.is_some_and(|lease| lease.is_live() && lease.holding.token == term) {
        return Err(violation(RELEASE_4, format!("term {term} writes {} after its end", object.key)));
    }
    let all = &before.reconcilers;
    let Some(gate) = all.gates.get(owner) else { return Ok(()) };
    let leads = |definition: &Definition| {
        let target = definition.target();
        gate.now.target.as_ref() == Some(&target) || gate.path_to(&target) == GatePath::Reached
    };
    if all.definitions_of(owner).any(|definition| leads(definition)) {
        return Ok(());
    }
    Err(violation(RELEASE_5, format!("{} is written, but no definition matches the gate {:?}", object.key, gate.now)))
}

/// The greatest term that has written anything of a reconciler.
fn newest_term(all: &Reconcilers, name: &str) -> FencingToken {
    let of_gate = all.gates.get(name).map(|gate| gate.now.term);
    let reported = all.progress.get(name).map(|progress| progress.term);
    let of_objects = all.objects.values().filter(|object| object.owner.as_deref() == Some(name)).map(|o| o.term);
    of_objects.chain(of_gate).chain(reported).max().unwrap_or_default()
}

/// RELEASE-2 while a member serves: only an operator removes what it needs, and drains it first.
fn needs(all: &Reconcilers) -> CheckResult {
    for participant in all.participants.values().filter(|p| p.phase == ParticipantPhase::Serving) {
        for (name, needs) in &participant.needs {
            let Some(gate) = all.gates.get(name).filter(|gate| gate.now.reconciled.triple < *needs) else { continue };
            let detail = format!("{} serves and needs {needs} of {name}: {:?}", participant.key, gate.now);
            return Err(violation(RELEASE_2, detail));
        }
    }
    Ok(())
}

impl Fleet {
    /// SERVE-1, seen from outside: a member that believes to serve is recorded as serving.
    pub(crate) fn check_serving(world: &mut World) {
        let (now, timing) = (world.now(), world.fleet.timing);
        let Some(tables) = world.checks.newest() else { return };
        let mut outcome = Ok(());
        for process in &world.fleet.processes {
            let Some(member) = &process.serving else { continue };
            if *member.core.admission_state() != AdmissionState::Serving || !member.keeper.is_good(now, timing) {
                continue;
            }
            let key = &member.participant.key;
            let phase = tables.reconcilers.participants.get(key).map(|record| record.phase);
            if !matches!(phase, Some(ParticipantPhase::Serving | ParticipantPhase::Draining)) {
                outcome = Err(violation(SERVE_1, format!("{key} serves, but is recorded as {phase:?}")));
            }
        }
        world.require(outcome);
    }

    /// RUN-2, as far as it is observable: one runner at a time acts, it holds the lease, its definition applies to its release, the gate
    /// leads to that definition, and no incompatible member serves.
    pub(super) fn check_action(world: &mut World, number: usize, term: FencingToken, definition: &Definition) {
        let (now, timing) = (world.now(), world.fleet.timing);
        let others = world.fleet.processes.iter().enumerate().filter(|(other, _)| *other != number);
        let acts = others.filter_map(|(_, process)| Some((process, process.candidacy.as_ref()?))).find(|(_, other)| {
            other.acting.is_some() && other.runner.as_ref().is_some_and(|keeper| keeper.is_good(now, timing))
        });
        if let Some((other, _)) = acts {
            let detail = format!("{} and {} act at the same time", world.fleet.processes[number].name, other.name);
            return world.require(Err(violation(HOLD_1, detail)));
        }
        let own = world.fleet.processes[number].release.triple;
        if !definition.applies_to(own) {
            let detail = format!("a runner of {own} acts for the definition of {}", definition.release);
            return world.require(Err(violation(RUN_2, detail)));
        }
        if own != definition.release.triple {
            world.totals.count("actions of a later release");
        }
        let Some(tables) = world.checks.newest() else { return };
        let all = &tables.reconcilers;
        let Subject { reconciler, scope } = world.fleet.subject;
        let lease = tables.objects.get(&runner_lease(reconciler)).and_then(|object| object.lease());
        // A late request of its own earlier start takes the lease under its own name: no other holder, and
        // noticed with the next renewal.
        let name = world.fleet.processes[number].name.as_str();
        let lease = lease.filter(|lease| lease.is_live());
        let in_force = lease.is_some_and(|l| l.holding.token == term || l.spec.held_by() == Some(name));
        // An operator may have moved the gate since the runner read it.
        let gate = all.gates.get(reconciler).filter(|_| !world.fleet.wild);
        let target = definition.target();
        let leads = gate
            .is_none_or(|gate| gate.now.target.as_ref() == Some(&target) || gate.path_to(&target) == GatePath::Reached);
        let blockers = gate.map(|_| all.blockers(reconciler, scope, target.release.triple, target.floor));
        let detail = match blockers.filter(|blockers| !blockers.is_empty()) {
            _ if !in_force => format!("term {term} acts after its end"),
            _ if !leads => format!("term {term} acts for {target:?}: {gate:?}"),
            Some(blockers) => format!("term {term} acts despite blockers {blockers:?}"),
            None => return,
        };
        world.require(Err(violation(RUN_2, detail)));
    }

    /// RUN-2: the view on which a step of a chain begins has the records of those before it, and so whatever an operator had
    /// decided by then. RUN-4: a step on record does not run again.
    pub(super) fn check_step(world: &mut World, number: usize, work: &Work) {
        let (Action::Chain(steps), Some(step)) = (&work.definition.action, &work.step) else { return };
        let before = steps.iter().position(|there| there.name == step.name).unwrap_or_default();
        let candidacy = world.fleet.processes[number].candidacy.as_ref();
        let seen = candidacy.and_then(|candidacy| candidacy.view.as_ref()).map_or(0, |view| view.steps_done);
        let records = world.checks.newest().map_or(0, |tables| tables.records.steps_done(&work.definition.reconciler));
        let name = &step.name;
        let outcome = if seen < before {
            Err(violation(RUN_2, format!("step {name} begins by a view with {seen} steps on record")))
        } else if records > before && !world.fleet.wild {
            Err(violation(RUN_4, format!("step {name} is on record, and runs again")))
        } else {
            Ok(())
        };
        world.require(outcome);
    }

    /// Why the fleet has not reached its newest candidate's release; `None` if it has.
    pub(super) fn unsettled(world: &World) -> Option<String> {
        let (Some(tables), Some(target)) = (world.checks.newest(), &world.fleet.target) else {
            return Some("no applied state, or no target release".to_owned());
        };
        let (all, reconciler) = (&tables.reconcilers, world.fleet.subject.reconciler);
        let Some(definition) = all.definition_for(reconciler, target.triple) else {
            return Some(format!("no definition of {target}"));
        };
        let Some(gate) = all.gates.get(reconciler) else { return Some("no gate".to_owned()) };
        if gate.path_to(&definition.target()) != GatePath::Reached {
            return Some(format!("the gate is {:?}, not done for {target}", gate.now));
        }
        let lease = tables.objects.get(&runner_lease(reconciler)).and_then(|object| object.lease());
        let runner = lease.filter(|lease| lease.is_live()).and_then(|lease| lease.spec.held_by());
        let runs = world.fleet.processes.iter().find(|process| Some(process.name.as_str()) == runner);
        if runs.is_none_or(|process| process.release != *target) {
            return Some(format!(
                "{runner:?} holds the runner lease, release {:?}",
                runs.map(|process| &process.release)
            ));
        }
        for process in &world.fleet.processes {
            let Some(member) = &process.serving else { return Some(format!("{} does not run", process.name)) };
            let serves = *member.core.admission_state() == AdmissionState::Serving;
            if !serves && all.admission(&member.participant).is_ok() {
                return Some(format!("{} could serve, but is {:?}", process.name, member.core.admission_state()));
            }
        }
        let writes = (0..2).flat_map(|wave| muster_gates::drift(all, definition, wave));
        let drift = writes.into_iter().find(|write| !matches!(write, muster_gates::Write::Keep(_)));
        // An object set applied once is not repaired.
        drift.filter(|_| definition.every_ms.is_some()).map(|write| format!("{write:?} is due"))
    }
}
