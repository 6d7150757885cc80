//! What is remembered of runs and gates, from `RUNS_LEVEL` on.
//!
//! Invariants  RELEASE-8  a failure is remembered, whichever node runs the reconciler next, until a run succeeds.
//!             RELEASE-9  a finalization stands only while no serving member is incompatible with what it allows.
//! Why it is not part of a runner's progress: that ends with the term, and a runner that fails gives its term up.

use muster_messages::{Definition, Finalize, Gate, LastFailure, RUNS_LEVEL, ReconcilerPhase, Reconcilers};

use super::*;

/// Whether the state records these.
pub(super) fn are_recorded(tables: &Tables) -> bool {
    tables.feature_level() >= RUNS_LEVEL
}

/// RELEASE-8. An event for each term that fails, for a failure that nothing retries, and for the success after them.
pub(super) fn remember(tables: &mut Tables, stamp: &Stamp<'_>, progress: &Progress) {
    if !are_recorded(tables) {
        return;
    }
    let name = &progress.reconciler;
    let old = tables.runs.failures.get(name).cloned();
    let Some(new) = LastFailure::reported(progress, old.as_deref(), stamp.wall) else {
        if progress.phase == ReconcilerPhase::Idle && old.is_some() {
            let was = old.map(|old| text(tables, name, &old));
            tables.runs.failures.remove(name);
            let is = format!("{name}: {} is applied", progress.release);
            stamp.log_frequent(tables, EventKind::Gate, Some(progress.node), was, Some(is));
        }
        return;
    };
    let is_event = old.as_deref().is_none_or(|old| old.term != new.term || old.permanent != new.permanent);
    let (was, is) = (old.map(|old| text(tables, name, &old)), text(tables, name, &new));
    tables.runs.failures.insert(name.clone(), Arc::new(new));
    if is_event {
        stamp.log_frequent(tables, EventKind::Gate, Some(progress.node), was, Some(is));
    }
}

fn text(tables: &Tables, name: &str, failure: &LastFailure) -> String {
    let LastFailure { node, release, failures, error, permanent, .. } = failure;
    let times = if *failures == 1 { "once".to_owned() } else { format!("{failures} times") };
    let whence = tables.nodes.get(node).map_or_else(|| node.to_string(), |node| node.name.to_string());
    let until = if *permanent { ", until an operator retries" } else { "" };
    let line = failure.last_line().map(|line| format!(" ({line})")).unwrap_or_default();
    format!("{name}: {release} failed {times}{until}, last on {whence}: {error}{line}")
}

/// Serving members that are incompatible with a definition that needs a finalization. Also where its path needs none now: the gate may
/// move before the finalization is used.
fn blockers(all: &Reconcilers, definition: &Definition) -> Vec<muster_messages::Blocker> {
    let Definition { reconciler, scope, release, floor, .. } = definition;
    let needed = definition.finalize == Finalize::Manual;
    if needed { all.blockers(reconciler, scope, release.triple, *floor) } else { Vec::new() }
}

/// RELEASE-9. Refused while an incompatible member serves: otherwise the end of that member would pass the point of no return.
pub(super) fn finalize(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    reconciler: &str,
    digest: &str,
) -> Result<(), CommandRefusal> {
    if are_recorded(tables) {
        let all = &tables.reconcilers;
        let mut blockers = of_digest(all, reconciler, digest).map(|d| blockers(all, d)).unwrap_or_default();
        let in_all = blockers.len();
        if in_all > 0 {
            blockers.truncate(MAX_BLOCKERS);
            return Err(CommandRefusal::BlockedByMembers { blockers, in_all });
        }
    }
    operators::control(tables, stamp, reconciler, |c| c.finalized = Some(digest.to_owned()))
}

fn of_digest<'a>(all: &'a Reconcilers, reconciler: &'a str, digest: &str) -> Option<&'a Arc<Definition>> {
    all.definitions_of(reconciler).find(|definition| definition.digest == digest)
}

/// RELEASE-9, once another member serves, and for the state of a lower level.
pub(crate) fn withdraw_finalizations(tables: &mut Tables, stamp: &Stamp<'_>) -> Result<(), CommandRefusal> {
    if !are_recorded(tables) {
        return Ok(());
    }
    let over = defeated(&tables.reconcilers);
    over.iter().try_for_each(|name| operators::control(tables, stamp, name, |c| c.finalized = None))
}

/// Reconcilers whose finalization stands although an incompatible member serves.
pub(crate) fn defeated(all: &Reconcilers) -> Vec<String> {
    let is_defeated = |(name, controls): (&String, &Controls)| {
        let definition = of_digest(all, name, controls.finalized.as_deref()?)?;
        (!blockers(all, definition).is_empty()).then(|| name.clone())
    };
    all.controls.iter().filter_map(is_defeated).collect()
}

/// A finalization is used by the steps of its definition, whether its path needed one or not.
pub(super) fn use_finalization(tables: &mut Tables, definition: &Definition, step: GateStep) {
    let used = step == GateStep::Restrict || step == GateStep::Complete && are_recorded(tables);
    let controls = tables.reconcilers.controls.get_mut(&definition.reconciler).filter(|_| used);
    if let Some(controls) = controls
        && (step == GateStep::Restrict || controls.finalized.as_ref() == Some(&definition.digest))
    {
        controls.finalized = None;
    }
}

/// Keeps a gate that an operator deletes, with its history.
pub(super) fn keep_deleted(tables: &mut Tables, gate: Arc<Gate>) {
    if are_recorded(tables) {
        tables.runs.deleted_gates.insert(gate.reconciler.clone(), gate);
    }
}

/// Forgets everything about a reconciler.
pub(super) fn forget(tables: &mut Tables, reconciler: &str) {
    tables.runs.failures.remove(reconciler);
    tables.runs.deleted_gates.remove(reconciler);
}
