//! The views on which candidates, runners and participants act.

use muster_messages::wire::{AdmissionView, CandidateView, Definitions, GateView, MAX_BLOCKERS, RunnerView, Waiting};
use muster_messages::{
    Definition, DefinitionKey, HoldView, NodeId, NotAdmitted, Participant, ParticipantKey, RunnerChoice, Tables,
    Triple, Word, candidates_scope,
};

use crate::objects::Waves;

/// The reconcilers that a release defines.
pub fn definitions(tables: &Tables, release: Triple) -> Definitions {
    let all = &tables.reconcilers;
    let of_release = all.definitions.iter().filter(|(key, _)| key.release == release);
    let items = of_release.map(|(key, d)| (key.reconciler.clone(), d.digest.clone())).collect();
    Definitions { revision: tables.revision, items }
}

/// See [`RunnerView`].
pub fn runner_view(tables: &Tables, name: &str, release: Triple) -> RunnerView {
    let all = &tables.reconcilers;
    let key = DefinitionKey { reconciler: name.to_owned(), release };
    let definition = all.definitions.get(&key).map(|d| (**d).clone());
    let gate = all.gates.get(name);
    let gate = GateView {
        epoch: all.epoch_of(name),
        readable: gate.is_some_and(|gate| gate.is_readable()),
        reconciled: gate.map(|gate| gate.now.reconciled.clone()),
        term: gate.map(|gate| gate.now.term).unwrap_or_default(),
        at_work: definition.as_ref().is_some_and(|d| gate.is_some_and(|gate| gate.now.target == Some(d.target()))),
    };
    let (choice, pinned) = who_runs(tables, name);
    let way = definition.as_ref().map(|d| all.way(d));
    let mut blockers = definition.as_ref().map(|d| all.blockers(name, &d.scope, release, d.floor)).unwrap_or_default();
    let blockers_in_all = blockers.len();
    blockers.truncate(MAX_BLOCKERS);
    RunnerView {
        revision: tables.revision,
        gate,
        candidates: candidates(tables, name),
        choice,
        pinned,
        hold: way.as_ref().and_then(|way| way.as_ref().err()).map(HoldView::from),
        path: way.and_then(Result::ok).map(Word::from),
        blockers,
        blockers_in_all,
        retries: all.controls.get(name).map_or(0, |c| c.retries),
        waves: definition.as_ref().map_or(0, waves),
        definition,
    }
}

fn waves(definition: &Definition) -> u32 {
    u32::try_from(Waves::of(definition).count()).unwrap_or(u32::MAX)
}

/// Who shall run it: the newest definition's rule, for candidates of every release.
fn who_runs(tables: &Tables, name: &str) -> (RunnerChoice, Option<NodeId>) {
    let newest = tables.reconcilers.definitions_of(name).last();
    newest.map(|d| (d.choice, d.pinned)).unwrap_or_default()
}

/// The candidate that may run it: the best one, or the one on the pinned node.
pub(crate) fn best_candidate(tables: &Tables, name: &str) -> Option<CandidateView> {
    let (_, pinned) = who_runs(tables, name);
    candidates(tables, name).into_iter().find(|candidate| pinned.is_none() || candidate.node == pinned)
}

/// Best first; among equals the older, by the log. A candidate without a definition does not count.
pub(crate) fn candidates(tables: &Tables, name: &str) -> Vec<CandidateView> {
    let (all, scope) = (&tables.reconcilers, candidates_scope(name));
    let (choice, _) = who_runs(tables, name);
    let key = |p: &Participant| DefinitionKey { reconciler: name.to_owned(), release: p.release.triple };
    let candidates = all.participants_of(&scope).map(AsRef::as_ref);
    let mut found: Vec<&Participant> = candidates.filter(|p| all.definitions.contains_key(&key(p))).collect();
    found.sort_by(|a, b| {
        let by_release = a.release.triple.cmp(&b.release.triple);
        let best_first = match choice {
            RunnerChoice::Newest => by_release.reverse(),
            RunnerChoice::Oldest => by_release,
        };
        best_first.then(a.revision.cmp(&b.revision)).then_with(|| a.key.cmp(&b.key))
    });
    let view = |p: &Participant| CandidateView {
        node: p.node,
        member: p.key.member.clone(),
        release: p.release.clone(),
        revision: p.revision,
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
        waiting: refused.map(|why| Waiting { reason: why.reason().into(), message: with_hint(&why) }),
    }
}

/// Why it waits, and what would help.
fn with_hint(why: &NotAdmitted) -> String {
    match why {
        NotAdmitted::NoGate { reconciler } | NotAdmitted::ReconcilerTooOld { reconciler, .. } => {
            format!("{why}; `muster reconciler status {reconciler}` shows its runner")
        }
        NotAdmitted::GateUnreadable { reconciler } => {
            format!("{why}; `muster reconciler repair {reconciler} --from-history N` restores an earlier one")
        }
        NotAdmitted::BelowFloor { floor, .. } => format!("{why}; start it as {floor} or later"),
    }
}
