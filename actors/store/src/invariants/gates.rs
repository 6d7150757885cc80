//! Invariants of gates and participants.

use imbl::ordmap::DiffItem;
use muster_messages::{
    Action, Definition, DefinitionKey, FencingToken, Gate, GatePath, GateState, MAX_RUN_BYTES, MAX_RUNS, ManagedKey,
    ParticipantPhase, RUNS_LEVEL, ReconcilerRecords, Reconcilers, Tables,
};

use super::{
    CheckResult, RELEASE_1, RELEASE_2, RELEASE_3, RELEASE_4, RELEASE_7, RELEASE_9, RELEASE_10, RELEASE_11, RELEASE_12,
    REVISION_1, holds,
};
use crate::changes::REPAIRED;

pub(super) fn check(tables: &Tables) -> CheckResult {
    let all = &tables.reconcilers;
    for gate in all.gates.values() {
        let (name, now) = (&gate.reconciler, &gate.now);
        let working = now.state == GateState::Working;
        holds(working == now.target.is_some(), RELEASE_3, || format!("{name} is {:?} to {:?}", now.state, now.target))?;
        if let Some(target) = &now.target {
            let between = now.floor >= target.floor && now.reconciled.triple <= target.release.triple;
            holds(between, RELEASE_3, || format!("{name}: {} and {} to {target:?}", now.reconciled, now.floor))?;
        }
        for participant in all.participants_of(&gate.scope) {
            let serves = participant.phase == ParticipantPhase::Serving;
            holds(!serves || participant.release.triple >= now.floor, RELEASE_1, || {
                format!("{} serves {} under {name}, floor {}", participant.key, participant.release, now.floor)
            })?;
        }
    }
    for (key, participant) in &all.participants {
        holds(*key == participant.key, REVISION_1, || format!("{key} is recorded as {}", participant.key))?;
        let Some(token) = participant.token else { continue };
        let lease = tables.objects.get(&key.lease()).and_then(|object| object.lease());
        let held = lease
            .is_some_and(|l| l.is_live() && l.holding.token == token && l.holding.session == Some(key.incarnation));
        holds(held, RELEASE_7, || format!("{key} outlives its lease"))?;
    }
    if tables.feature_level() >= RUNS_LEVEL {
        let defeated = crate::changes::defeated_finalizations(all);
        holds(defeated.is_empty(), RELEASE_9, || format!("finalizations stand against serving members: {defeated:?}"))?;
    }
    check_runs(&tables.records)
}

fn check_runs(records: &ReconcilerRecords) -> CheckResult {
    for (name, runs) in &records.runs {
        let numbers: Vec<u64> = runs.runs.iter().map(|run| run.number).collect();
        let sound = numbers.is_sorted_by(|a, b| a < b) && numbers.last().is_none_or(|last| *last == runs.last);
        holds(sound && numbers.len() <= MAX_RUNS, RELEASE_11, || format!("{name} has the runs {numbers:?}"))?;
    }
    let bytes = records.run_bytes();
    holds(bytes <= MAX_RUN_BYTES, RELEASE_11, || format!("runs take {bytes} bytes"))
}

/// RELEASE-10, over one entry.
fn check_chains(before: &Tables, after: &Tables) -> CheckResult {
    for name in before.records.chains.keys() {
        let there = after.records.chains.contains_key(name) || after.reconcilers.definitions_of(name).next().is_none();
        holds(there, RELEASE_10, || format!("the steps of {name} that have run were forgotten"))?;
    }
    for (name, new) in &after.records.chains {
        let old = before.records.chains.get(name).map(|chain| chain.steps.as_slice()).unwrap_or_default();
        let grown = new.steps.len() <= old.len() + 1 && new.steps.starts_with(old);
        holds(grown, RELEASE_10, || format!("{name}: {:?} after {old:?}", new.steps))?;
    }
    for (name, gate) in &after.reconcilers.gates {
        let was = before.reconcilers.gates.get(name).map(|gate| &gate.now);
        let by_a_runner = was.is_none_or(|was| was.state == GateState::Working && gate.now.term >= was.term);
        if !by_a_runner || gate.now.state != GateState::Done || gate.now.why.starts_with(REPAIRED) {
            continue;
        }
        let definition = after
            .reconcilers
            .definitions
            .get(&DefinitionKey { reconciler: name.clone(), release: gate.now.reconciled.triple });
        let applied = definition.filter(|definition| definition.digest == gate.now.digest);
        if let Some(Action::Chain(steps)) = applied.map(|definition| &definition.action) {
            let done = after.records.steps_done(name);
            holds(done >= steps.len(), RELEASE_10, || format!("{name} is done with {done} of {} steps", steps.len()))?;
        }
    }
    Ok(())
}

/// RELEASE-12, over one entry, for the object that a runner wrote by it. Deletions are not checked: an operator's looks the same.
fn check_waits(before: &Tables, after: &Tables) -> CheckResult {
    let was = &before.reconcilers;
    let mut written = was.objects.diff(&after.reconcilers.objects);
    // Of several changes in one entry, an earlier one may have made the condition hold.
    let (Some(change), None) = (written.next(), written.next()) else { return Ok(()) };
    let (DiffItem::Add(key, object) | DiffItem::Update { new: (key, object), .. }) = change else { return Ok(()) };
    let Some(owner) = object.owner.as_deref().filter(|_| object.term != FencingToken(0)) else { return Ok(()) };
    let applied = |definition: &&Definition| {
        let target = definition.target();
        was.gates
            .get(owner)
            .is_none_or(|gate| gate.now.target.as_ref() == Some(&target) || gate.path_to(&target) == GatePath::Reached)
    };
    // Before the first run, the gate does not say by which of them it was written.
    let mut unmet = was.definitions_of(owner).map(AsRef::as_ref).filter(applied).map(|definition| {
        let wave = wave_of(definition, key);
        definition.unmet_before(wave, &was.objects).map(|unmet| (wave, unmet))
    });
    let Some(first) = unmet.next() else { return Ok(()) };
    holds(first.is_none() || unmet.any(|unmet| unmet.is_none()), RELEASE_12, || {
        let (wave, unmet) = first.map_or((0, String::new()), |(wave, unmet)| (wave, unmet.to_string()));
        format!("{key} of wave {wave} was written, and {unmet}")
    })
}

/// What the definition does not list comes after everything else.
fn wave_of(definition: &Definition, key: &ManagedKey) -> u32 {
    let Action::Objects(objects) = &definition.action else { return 0 };
    objects.iter().find(|listed| listed.key == *key).map_or(u32::MAX, |listed| listed.wave)
}

/// Over one entry, or several.
pub(super) fn check_step(before: &Tables, after: &Tables) -> CheckResult {
    let single = after.revision == before.revision.next();
    let (was, is) = (&before.reconcilers, &after.reconcilers);
    for (name, gate) in &is.gates {
        let Some(old) = was.gates.get(name) else { continue };
        let grows = gate.now.epoch > old.now.epoch || gate.now == old.now;
        holds(grows, RELEASE_4, || format!("{name}: epoch {} after {}", gate.now.epoch, old.now.epoch))?;
        holds(gate.now.term >= old.now.term, RELEASE_4, || {
            format!("{name}: term {} after {}", gate.now.term, old.now.term)
        })?;
        if single && gate.now.epoch != old.now.epoch && gate.now.term != old.now.term {
            by_a_runner(name, old, gate)?;
        }
    }
    for name in was.gates.keys().chain(was.controls.keys()) {
        let (old, new) = (was.epoch_of(name), is.epoch_of(name));
        holds(new >= old, RELEASE_4, || format!("{name}: epoch {new} after {old}: it was forgotten"))?;
    }
    if single {
        check_chains(before, after)?;
        check_waits(before, after)?;
        admissions(was, is)?;
    }
    Ok(())
}

fn by_a_runner(name: &str, old: &Gate, new: &Gate) -> CheckResult {
    let Some(target) = &new.now.target else { return Ok(()) };
    let (reconciled, floor) = old.restricted_to(target);
    let between = new.now.floor == floor && new.now.reconciled.triple == reconciled.triple;
    holds(between, RELEASE_3, || format!("{name}: {} and {} for {target:?}", new.now.reconciled, new.now.floor))
}

fn admissions(was: &Reconcilers, is: &Reconcilers) -> CheckResult {
    for (key, participant) in &is.participants {
        let serves = participant.phase == ParticipantPhase::Serving;
        let served = was.participants.get(key).is_some_and(|p| p.phase == ParticipantPhase::Serving);
        if serves && !served {
            let may = is.admission(participant);
            holds(may.is_ok(), RELEASE_2, || {
                format!("{key} serves, and {}", may.as_ref().err().map_or(String::new(), ToString::to_string))
            })?;
        }
    }
    Ok(())
}
