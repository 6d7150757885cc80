//! The views on which candidates, runners and participants act.

use std::collections::BTreeMap;

use muster_messages::wire::{AdmissionView, CandidateView, Definitions, GateView, MAX_BLOCKERS, RunnerView, Waiting};
use muster_messages::{
    DEFINITIONS_LEVEL, Definition, DefinitionTiming, HoldView, NodeId, NotAdmitted, Participant, ParticipantKey,
    Revision, RunnerChoice, Tables, Triple, Word, candidates_scope,
};

use crate::objects::Waves;

/// The reconcilers that a release defines, or that an earlier one defined for it, too.
pub fn definitions(tables: &Tables, release: Triple) -> Definitions {
    let all = &tables.reconcilers;
    let up_to = all.definitions.values().filter(|d| d.release.triple <= release);
    // The last one of each name is the newest.
    let mut newest: BTreeMap<&str, &Definition> = up_to.map(|d| (d.reconciler.as_str(), d.as_ref())).collect();
    newest.retain(|_, definition| definition.applies_to(release));
    let by_name = |of: fn(&Definition) -> &String| {
        newest.values().map(|definition| (definition.reconciler.clone(), of(definition).clone())).collect()
    };
    Definitions { revision: tables.revision, items: by_name(|d| &d.digest), scopes: by_name(|d| &d.scope) }
}

/// See [`RunnerView`].
pub fn runner_view(tables: &Tables, name: &str, release: Triple) -> RunnerView {
    let all = &tables.reconcilers;
    let definition = all.definition_for(name, release).map(|d| (**d).clone());
    let gate = all.gates.get(name);
    let gate = GateView {
        epoch: all.epoch_of(name),
        readable: gate.is_some_and(|gate| gate.is_readable()),
        reconciled: gate.map(|gate| gate.now.reconciled.clone()),
        term: gate.map(|gate| gate.now.term).unwrap_or_default(),
        at_work: definition.as_ref().is_some_and(|d| gate.is_some_and(|gate| gate.now.target == Some(d.target()))),
    };
    let (choice, pinned, timing) = who_runs(tables, name);
    let way = definition.as_ref().map(|d| tables.way(d));
    let blockers_of = |d: &Definition| all.blockers(name, &d.scope, d.release.triple, d.floor);
    let mut blockers = definition.as_ref().map(blockers_of).unwrap_or_default();
    let blockers_in_all = blockers.len();
    blockers.truncate(MAX_BLOCKERS);
    RunnerView {
        revision: tables.revision,
        gate,
        candidates: candidates(tables, name),
        choice,
        pinned,
        timing,
        hold: way.as_ref().and_then(|way| way.as_ref().err()).map(HoldView::from),
        path: way.and_then(Result::ok).map(Word::from),
        blockers,
        blockers_in_all,
        retries: all.controls.get(name).map_or(0, |c| c.retries),
        waves: definition.as_ref().map_or(0, waves),
        steps_done: tables.records.steps_done(name),
        records_runs: tables.feature_level() >= DEFINITIONS_LEVEL,
        definition,
    }
}

fn waves(definition: &Definition) -> u32 {
    u32::try_from(Waves::of(definition).count()).unwrap_or(u32::MAX)
}

/// Who shall run it: the newest definition's rule, for candidates of every release.
fn who_runs(tables: &Tables, name: &str) -> (RunnerChoice, Option<NodeId>, DefinitionTiming) {
    let newest = tables.reconcilers.definitions_of(name).last();
    newest.map(|d| (d.choice, d.pinned, d.options.timing)).unwrap_or_default()
}

/// The candidate that may run it: the best one, or the one on the pinned node.
pub(crate) fn best_candidate(tables: &Tables, name: &str) -> Option<CandidateView> {
    let (_, pinned, _) = who_runs(tables, name);
    eligible(tables, name).into_iter().find(|candidate| pinned.is_none() || candidate.node == pinned)
}

/// Those whose node has the labels of the node selector.
pub(crate) fn eligible(tables: &Tables, name: &str) -> Vec<CandidateView> {
    candidates(tables, name).into_iter().filter(|candidate| candidate.missing_labels.is_empty()).collect()
}

/// Labels of a node selector that a node does not have.
fn missing_labels(tables: &Tables, selector: &BTreeMap<String, String>, node: Option<NodeId>) -> Vec<String> {
    if selector.is_empty() {
        return Vec::new();
    }
    let record = node.and_then(|id| tables.nodes.get(&id));
    let labels = record.map(|record| tables.labels_of(record)).unwrap_or_default();
    let missing = selector.iter().filter(|(key, value)| labels.get(*key) != Some(value));
    missing.map(|(key, value)| format!("{key}={value}")).collect()
}

/// The last change of a node on which a candidate is chosen by labels. 0: none is.
pub fn selection_changed(tables: &Tables, name: &str) -> Revision {
    if tables.reconcilers.definitions_of(name).all(|d| d.options.placement.node_selector.is_empty()) {
        return Revision(0);
    }
    let scope = candidates_scope(name);
    let nodes = tables.reconcilers.participants_of(&scope).filter_map(|p| tables.nodes.get(&p.node?));
    nodes.map(|node| node.revision).max().unwrap_or_default()
}

/// Best first; among equals the older, by the log. A candidate without a definition does not count.
pub(crate) fn candidates(tables: &Tables, name: &str) -> Vec<CandidateView> {
    let (all, scope) = (&tables.reconcilers, candidates_scope(name));
    let (choice, ..) = who_runs(tables, name);
    let mut found: Vec<(&Participant, &Definition)> = all
        .participants_of(&scope)
        .filter_map(|p| Some((p.as_ref(), all.definition_for(name, p.release.triple)?.as_ref())))
        .collect();
    found.sort_by(|(a, _), (b, _)| {
        let by_release = a.release.triple.cmp(&b.release.triple);
        let best_first = match choice {
            RunnerChoice::Newest => by_release.reverse(),
            RunnerChoice::Oldest => by_release,
        };
        best_first.then(a.revision.cmp(&b.revision)).then_with(|| a.key.cmp(&b.key))
    });
    let view = |(p, definition): (&Participant, &Definition)| CandidateView {
        node: p.node,
        member: p.key.member.clone(),
        release: p.release.clone(),
        revision: p.revision,
        missing_labels: missing_labels(tables, &definition.options.placement.node_selector, p.node),
    };
    found.into_iter().map(view).collect()
}

/// See [`AdmissionView`].
pub fn admission(tables: &Tables, key: &ParticipantKey) -> AdmissionView {
    let all = &tables.reconcilers;
    let found = all.participants.get(key);
    let refused = found.and_then(|p| all.admission(p).err());
    AdmissionView {
        revision: tables.revision,
        phase: found.map(|p| p.phase),
        waiting: refused.map(|why| Waiting { reason: why.reason().into(), message: with_hint(tables, &why) }),
    }
}

/// Why it waits, and what would help.
fn with_hint(tables: &Tables, why: &NotAdmitted) -> String {
    match why {
        NotAdmitted::NoGate { reconciler } if tables.runs.deleted_gates.contains_key(reconciler) => format!(
            "the gate of {reconciler} was deleted: no member is admitted until a run has succeeded, or `muster reconciler repair` has \
             restored it; `muster reconciler history {reconciler}` lists its entries"
        ),
        NotAdmitted::NoGate { reconciler } if tables.reconcilers.definitions_of(reconciler).next().is_none() => {
            format!("no reconciler has the name {reconciler} yet; `muster reconciler list` lists those that exist")
        }
        NotAdmitted::NoGate { reconciler } | NotAdmitted::ReconcilerTooOld { reconciler, .. } => {
            format!("{why}; `muster reconciler status {reconciler}` shows its runner")
        }
        NotAdmitted::GateUnreadable { reconciler } => {
            format!("{why}; `muster reconciler repair {reconciler} --from-history N` restores an earlier one")
        }
        NotAdmitted::BelowFloor { floor, .. } => format!("{why}; start it as {floor} or later"),
    }
}
