//! The steps of chains that have run, and the last runs: from `DEFINITIONS_LEVEL` on.
//!
//! Invariants  RELEASE-10  a step of a chain is recorded once, after all steps before it; a gate is completed by a chain only when
//!                         all of its steps are recorded.
//!             RELEASE-11  a run is recorded only in its own term, and what is on record of one that has ended stays. The bytes of all
//!                         runs stay below their limit.
//! Why a step that has run twice is possible: its runner may die between the end of the command and the record of it.

use muster_messages::{
    Action, Definition, MAX_RUN_BYTES, MAX_RUNS, Principal, ReconcilerRecords, RunOutcome, RunRecord, StepRecord,
};

use super::*;

/// RELEASE-10.
pub(super) fn step_done(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    by: &Runner<'_>,
    defined: Revision,
    step: &str,
) -> Result<(), CommandRefusal> {
    let reconciler = by.reconciler;
    in_force(tables, stamp, reconciler, by.term)?;
    let definition = by.definition(tables)?;
    // The same content applied again after it was deleted: the chain began anew.
    expected(definition.revision == defined, || {
        format!("the definition of {reconciler} {} was applied again since the step ran", definition.release)
    })?;
    tables.records.check_chain(&definition).map_err(CommandRefusal::Held)?;
    expected(leads(tables, &definition.key())?, || {
        format!("the gate of {reconciler} does not lead to {}", definition.release)
    })?;
    let Action::Chain(steps) = &definition.action else {
        return Err(stale(format!("the definition of {reconciler} {} is not a chain", definition.release)));
    };
    let at = steps.iter().position(|there| there.name == step);
    let at = at.ok_or_else(|| not_found("step", step))?;
    let done = tables.records.steps_done(reconciler);
    if at < done {
        return Ok(());
    }
    expected(at == done, || format!("step {step} of {reconciler} is not the next one: {}", steps[done].name))?;
    let record = StepRecord {
        name: step.to_owned(),
        digest: steps[at].digest.clone(),
        release: definition.release.clone(),
        node: if let Principal::Node(node) = stamp.by { Some(*node) } else { None },
        term: by.term,
        at: stamp.wall,
        revision: stamp.at,
    };
    Arc::make_mut(tables.records.chains.entry(reconciler.to_owned()).or_default()).steps.push(record);
    // Wakes the views of runners.
    tables.reconcilers.changed = stamp.at;
    let is = format!("{reconciler}: step {step} has run, {} of {} in {}", at + 1, steps.len(), definition.release);
    stamp.log(tables, EventKind::Gate, None, None, Some(is));
    Ok(())
}

/// RELEASE-10.
pub(super) fn check_complete(tables: &Tables, definition: &Definition) -> Result<(), CommandRefusal> {
    let Action::Chain(steps) = &definition.action else { return Ok(()) };
    if injected(BugInjection::CompleteUnfinishedChains) {
        return Ok(());
    }
    let missing = steps.get(tables.records.steps_done(&definition.reconciler));
    missing.map_or(Ok(()), |step| Err(stale(format!("step {} of {} has not run", step.name, definition.reconciler))))
}

/// RELEASE-11.
pub(super) fn record_run(tables: &mut Tables, stamp: &Stamp<'_>, run: &RunRecord) -> Result<(), CommandRefusal> {
    let reconciler = &run.reconciler;
    known(tables, reconciler)?;
    in_force(tables, stamp, reconciler, run.term)?;
    let records = &mut tables.records;
    let mut theirs = records.runs.get(reconciler).map(|runs| (**runs).clone()).unwrap_or_default();
    let mut new = RunRecord { revision: stamp.at, ..run.clone().truncated() };
    let there = theirs.runs.iter().position(|old| (old.term, old.of_term) == (new.term, new.of_term));
    match there {
        Some(there) => {
            let old = &theirs.runs[there];
            new.number = old.number;
            // Repeated, or a beginning that comes after the end.
            let ended = old.outcome != RunOutcome::Running;
            if ended || **old == (RunRecord { revision: old.revision, ..new.clone() }) {
                return Ok(());
            }
            theirs.runs.set(there, Arc::new(new));
        }
        // It was on record, and is no longer kept: runs of a term are recorded in their order.
        None if theirs.runs.iter().any(|old| old.term == new.term && old.of_term > new.of_term) => return Ok(()),
        None => {
            theirs.last += 1;
            new.number = theirs.last;
            theirs.runs.push_back(Arc::new(new));
            if theirs.runs.len() > MAX_RUNS {
                theirs.runs.pop_front();
            }
        }
    }
    records.runs.insert(reconciler.clone(), Arc::new(theirs));
    let mut bytes = records.run_bytes();
    while bytes > MAX_RUN_BYTES
        && let Some(old) = forget_oldest(records)
    {
        bytes -= old.bytes();
    }
    tables.reconcilers.progressed = stamp.at;
    Ok(())
}

/// Deletes the run whose record was written longest ago, among the first of each reconciler.
fn forget_oldest(records: &mut ReconcilerRecords) -> Option<Arc<RunRecord>> {
    let first = records.runs.iter().filter_map(|(name, runs)| Some((runs.runs.front()?.revision, name.clone())));
    let (_, name) = first.min()?;
    Arc::make_mut(records.runs.get_mut(&name)?).runs.pop_front()
}

/// Forgets everything about a reconciler.
pub(super) fn forget(tables: &mut Tables, reconciler: &str) {
    let records = &mut tables.records;
    records.chains.remove(reconciler);
    records.runs.remove(reconciler);
}
