//! What candidates, runners and participants go by.

use muster_messages::wire::{AdmissionView, CandidateView, Definitions, GateView, MOST_BLOCKERS, RunnerView, Waiting};
use muster_messages::{
    Definition, DefinitionKey, GatePath, Hold, NotAdmitted, Participant, ParticipantKey, RunnerChoice, Tables, Triple,
    candidates_scope,
};

use crate::objects::Waves;

/// The reconcilers that a release has definitions for.
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
    let gate = gate.map_or_else(GateView::default, |gate| GateView {
        epoch: gate.now.epoch,
        readable: gate.is_readable(),
        reconciled: Some(gate.now.reconciled.clone()),
        term: gate.now.term,
    });
    let way = definition.as_ref().map(|d| all.way(d));
    let mut blockers = definition.as_ref().map(|d| all.blockers(name, &d.scope, release, d.floor)).unwrap_or_default();
    let blockers_in_all = blockers.len();
    blockers.truncate(MOST_BLOCKERS);
    RunnerView {
        revision: tables.revision,
        gate,
        candidates: candidates(tables, name, definition.as_ref().map(|d| d.choice).unwrap_or_default()),
        hold: way.as_ref().and_then(|way| way.as_ref().err()).map(waits_for),
        path: way.and_then(Result::ok).map(|path| path_word(path).to_owned()),
        blockers,
        blockers_in_all,
        retries: all.controls.get(name).map_or(0, |c| c.retries),
        waves: definition.as_ref().map_or(0, waves),
        definition,
    }
}

fn waves(definition: &Definition) -> u32 {
    u32::try_from(Waves::of(definition).numbers().len()).unwrap_or(u32::MAX)
}

pub(crate) fn path_word(path: GatePath) -> &'static str {
    match path {
        GatePath::First => "first",
        GatePath::Reached => "reached",
        GatePath::Open => "open",
        GatePath::Restrict => "restrict",
    }
}

pub(crate) fn waits_for(hold: &Hold) -> Waiting {
    Waiting { reason: hold.reason().to_owned(), message: hold.to_string() }
}

/// Best first; of equals the older, by the log.
pub(crate) fn candidates(tables: &Tables, name: &str, choice: RunnerChoice) -> Vec<CandidateView> {
    let scope = candidates_scope(name);
    let mut found: Vec<&Participant> = tables.reconcilers.participants_of(&scope).map(AsRef::as_ref).collect();
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
        waiting: refused.map(|why| Waiting { reason: why.reason().to_owned(), message: helps(&why) }),
    }
}

/// Why it waits, and what would help.
fn helps(why: &NotAdmitted) -> String {
    match why {
        NotAdmitted::NoGate { reconciler } | NotAdmitted::ReconcilerTooOld { reconciler, .. } => {
            format!("{why}; `muster reconciler status {reconciler}` says where its runner is")
        }
        NotAdmitted::GateUnreadable { reconciler } => {
            format!("{why}; `muster reconciler repair {reconciler} --from-history N` restores an earlier one")
        }
        NotAdmitted::BelowFloor { floor, .. } => format!("{why}; start it as {floor} or later"),
    }
}
