//! What operators see. The names of fields are the contract's.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_messages::{
    Action, Blocker, Definition, DefinitionKey, Gate, GateEntry, GatePath, GateState, Hold, ManagedObject, Participant,
    ParticipantPhase, Progress, RECONCILER_LABEL, Reconcilers, Tables, Triple, WallTime, runner_lease,
};
use serde_json::{Value, json};

use crate::objects::{Waves, Write};
use crate::view::{best_candidate, candidates, path_word};

fn gate_view(entry: &GateEntry) -> Value {
    json!({
        "epoch": entry.epoch, "state": entry.state, "reconciled": entry.reconciled, "floor": entry.floor,
        "target": entry.target.as_ref().map(|t| json!({"release": t.release, "digest": t.digest, "floor": t.floor})),
        "digest": entry.digest, "term": entry.term, "at": entry.at, "why": entry.why,
    })
}

fn gate(gate: &Gate) -> Value {
    if gate.is_readable() { gate_view(&gate.now) } else { json!({"epoch": gate.now.epoch, "state": "unreadable"}) }
}

/// `{"name","history":[GATE…]}`, newest last. `None`: no gate exists.
pub fn history(tables: &Tables, name: &str) -> Option<Value> {
    let gate = tables.reconcilers.gates.get(name)?;
    Some(json!({"name": name, "history": gate_history(gate)}))
}

fn gate_history(gate: &Gate) -> Vec<Value> {
    gate.history.iter().chain([&gate.now]).map(gate_view).collect()
}

/// The state of a reconciler, as a word for scripts and a sentence for people.
struct Phase {
    phase: &'static str,
    reason: String,
    message: String,
}

/// Maximum blockers that are listed.
const MAX_LISTED_BLOCKERS: usize = 1_000;

/// STATUS. `None`: no reconciler of this name exists.
pub fn status(tables: &Tables, name: &str) -> Option<Value> {
    let all = &tables.reconcilers;
    let newest = all.definitions_of(name).last().cloned();
    let gate_now = all.gates.get(name);
    let scope = newest.as_ref().map(|d| d.scope.clone()).or_else(|| gate_now.map(|g| g.scope.clone()))?;
    let progress = current_progress(tables, name);
    let shown = status_definition(tables, name);
    let mut blockers = shown.map(|d| blocking_members(all, d)).unwrap_or_default();
    let blockers_in_all = blockers.len();
    blockers.truncate(MAX_LISTED_BLOCKERS);
    let phase = phase(tables, name, shown.map(AsRef::as_ref), progress, blockers_in_all);
    let count = |wanted| all.participants_of(&scope).filter(|p| p.phase == wanted).count();
    let definitions: Vec<Value> = (all.definitions_of(name))
        .map(|d| json!({"release": d.release, "digest": d.digest, "floor": d.floor, "applied_at": d.applied_at}))
        .collect();
    Some(json!({
        "name": name,
        "scope": scope,
        "gate": gate_now.map(|g| gate(g)),
        "runner": runner(tables, name, progress),
        "phase": phase.phase,
        "reason": phase.reason,
        "message": phase.message,
        "blockers": named(tables, &blockers),
        "blockers_in_all": blockers_in_all,
        "participants": {
            "serving": count(ParticipantPhase::Serving),
            "announced": count(ParticipantPhase::Announced),
            "draining": count(ParticipantPhase::Draining),
        },
        "candidates": candidates(tables, name).len(),
        "attempt": progress.map_or(0, |p| p.attempt),
        "consecutive_failures": progress.map_or(0, |p| p.consecutive_failures),
        "last_error": progress.and_then(|p| p.last_error.clone()),
        "next_retry_at": progress.and_then(|p| p.next_retry_at),
        "wave": progress.and_then(|p| p.wave),
        "output": progress.map_or("", |p| &p.output),
        "definitions": definitions,
        "history": gate_now.map(|g| gate_history(g)).unwrap_or_default(),
    }))
}

/// `{"revision","items":[STATUS…]}`.
pub fn statuses(tables: &Tables) -> Value {
    let all = &tables.reconcilers;
    let mut names: Vec<&String> = all.definitions.keys().map(|key| &key.reconciler).chain(all.gates.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let brief = |name: &String| {
        let mut status = status(tables, name)?;
        // Long, and available one by one.
        let fields = status.as_object_mut()?;
        for long in ["output", "history", "definitions", "blockers"] {
            fields.remove(long);
        }
        Some(status)
    };
    let items: Vec<Value> = names.into_iter().filter_map(brief).collect();
    json!({"revision": tables.revision, "items": items})
}

/// The report of the current runner; that of an earlier one is outdated.
fn current_progress<'a>(tables: &'a Tables, name: &str) -> Option<&'a Progress> {
    let lease = tables.objects.get(&runner_lease(name))?.lease()?;
    let progress = tables.reconcilers.progress.get(name)?;
    (lease.is_live() && lease.holding.token == progress.term).then_some(progress.as_ref())
}

fn runner(tables: &Tables, name: &str, progress: Option<&Progress>) -> Option<Value> {
    let object = tables.objects.get(&runner_lease(name))?;
    let lease = object.lease().filter(|lease| lease.is_live())?;
    let member = lease.spec.held_by();
    let node = progress.and_then(|p| tables.nodes.get(&p.node)).map(|node| node.name.clone());
    Some(json!({
        "member": member,
        "node": node,
        "release": progress.map(|p| &p.release),
        "term": lease.holding.token,
        "since": lease.spec.acquired.map(|at| WallTime(at.0 / 1000)),
    }))
}

/// The definition of STATUS, and of an operator's request without a release: that of the best live candidate's release, else
/// the newest.
pub fn status_definition<'a>(tables: &'a Tables, name: &'a str) -> Option<&'a Arc<Definition>> {
    let all = &tables.reconcilers;
    let of_best = best_candidate(tables, name).and_then(|best| {
        all.definitions.get(&DefinitionKey { reconciler: name.to_owned(), release: best.release.triple })
    });
    of_best.or_else(|| all.definitions_of(name).last())
}

/// Managers participate under their id: adds the name of the node with this id, if any.
fn named(tables: &Tables, blockers: &[Blocker]) -> Vec<Value> {
    let with_name = |blocker: &Blocker| {
        let mut shown = json!(blocker);
        shown["name"] = json!(node_name(tables, &blocker.member));
        shown
    };
    blockers.iter().map(with_name).collect()
}

fn node_name<'a>(tables: &'a Tables, member: &str) -> Option<&'a str> {
    let node = tables.nodes.get(&member.parse().ok()?)?;
    Some(node.name.as_str())
}

/// The serving members that block a definition, unless its path is open.
fn blocking_members(all: &Reconcilers, definition: &Definition) -> Vec<Blocker> {
    let reached = all.gates.get(&definition.reconciler).is_some_and(|gate| {
        // A transition in progress is no longer blocked.
        let target = definition.target();
        gate.now.target.as_ref() == Some(&target) || gate.path_to(&target) == GatePath::Reached
    });
    let release = definition.release.triple;
    if reached { vec![] } else { all.blockers(&definition.reconciler, &definition.scope, release, definition.floor) }
}

fn phase(
    tables: &Tables,
    name: &str,
    definition: Option<&Definition>,
    progress: Option<&Progress>,
    blockers: usize,
) -> Phase {
    let all = &tables.reconcilers;
    let phase_of = |phase, reason: &str, message: String| Phase { phase, reason: reason.to_owned(), message };
    let Some(definition) = definition else {
        let message = format!(
            "no release has a definition; `muster reconciler apply` adds one, `delete {name}` removes the reconciler"
        );
        return phase_of("blocked", "no-definition", message);
    };
    let way = all.way(definition);
    match &way {
        Err(hold @ Hold::Paused { .. }) => return phase_of("paused", hold.reason(), hold.to_string()),
        // Finalization need not be offered while it is blocked.
        Err(hold @ Hold::ReadyToFinalize { .. }) if blockers == 0 => {
            return phase_of("ready-to-finalize", hold.reason(), hold.to_string());
        }
        Err(Hold::ReadyToFinalize { .. }) => {}
        Err(hold @ Hold::Dependency { .. }) => return phase_of("waiting", hold.reason(), hold.to_string()),
        Err(hold) => return phase_of("blocked", hold.reason(), hold.to_string()),
        Ok(_) => {}
    }
    if candidates(tables, name).is_empty() {
        let of: Vec<String> = all.definitions_of(name).map(|d| d.release.to_string()).collect();
        let message = format!(
            "no live node has a release with a definition ({}); start one with --release, or apply a definition for a release that runs",
            of.join(", ")
        );
        return phase_of("no-candidate", "no-candidate", message);
    }
    if blockers > 0 {
        let message = format!(
            "serving members incompatible with {}: {blockers}; update or stop them: `muster reconciler blockers {name}`",
            definition.release
        );
        return phase_of("waiting", "blockers", message);
    }
    let Some(progress) = progress else {
        return phase_of("electing", "electing", "no candidate has taken the runner's lease yet".to_owned());
    };
    match progress.phase.as_str() {
        // The result of an earlier definition says nothing about this one.
        "idle" if matches!(way, Ok(GatePath::Reached)) => phase_of("idle", "", String::new()),
        "idle" | "paused" | "blocked" => {
            phase_of("electing", "taking-up", "its runner has not started on this definition yet".to_owned())
        }
        "failed" => phase_of("failed", "permanent-failure", progress.message.clone()),
        "settling" => phase_of("settling", "settling", progress.message.clone()),
        "waiting" => phase_of("waiting", &progress.reason, progress.message.clone()),
        _ => phase_of("running", &progress.reason, progress.message.clone()),
    }
}

/// Maximum bytes of bodies in one plan; further objects are only named.
const MAX_BODY_BYTES: usize = 256 * 1024;

/// `{"name","release","path","hold","objects":[{"op","kind","namespace","name","before","after"}…],"command","blockers",
/// "gate"}`: what a definition would do now, and the gate afterwards. `None`: the definition does not exist.
pub fn plan(tables: &Tables, name: &str, release: Option<Triple>) -> Option<Value> {
    let all = &tables.reconcilers;
    let definition = match release {
        Some(release) => all.definitions.get(&DefinitionKey { reconciler: name.to_owned(), release })?,
        None => all.definitions_of(name).last()?,
    };
    let way = all.way(definition);
    let mut blockers = blocking_members(all, definition);
    blockers.truncate(MAX_LISTED_BLOCKERS);
    let waves = Waves::of(definition);
    let numbers = match definition.action {
        Action::Objects(_) => 0..waves.count(),
        Action::Command(_) | Action::Handler => 0..0,
    };
    let mut bytes_left = MAX_BODY_BYTES;
    let mut objects = Vec::new();
    for write in numbers.flat_map(|nth| waves.drift(all, name, nth)) {
        if !matches!(write, Write::Keep(_)) {
            objects.push(planned(all, &write, &mut bytes_left));
        }
    }
    let command = match &definition.action {
        Action::Command(command) => Some(&command.argv),
        Action::Objects(_) | Action::Handler => None,
    };
    Some(json!({
        "name": name,
        "release": definition.release,
        "path": way.as_ref().ok().map(|path| path_word(*path)),
        "hold": way.as_ref().err().map(|hold| json!({"reason": hold.reason(), "message": hold.to_string()})),
        "objects": objects,
        "command": command,
        "blockers": named(tables, &blockers),
        "gate": {"state": GateState::Done, "reconciled": definition.release, "floor": definition.floor, "digest": definition.digest},
    }))
}

/// One write, with the existing object and the resulting one.
fn planned(all: &Reconcilers, write: &Write, bytes_left: &mut usize) -> Value {
    let key = write.key();
    let before = all.objects.get(key).map(|object| (&object.labels, &object.body));
    let after = match write {
        Write::Create(object) | Write::Update(object) => Some((&object.labels, &object.body)),
        Write::Delete(_) | Write::Taken(_) | Write::Keep(_) => None,
    };
    let bytes = [before, after].into_iter().flatten().map(|(_, body)| body.len()).sum();
    let left = bytes_left.checked_sub(bytes);
    *bytes_left = left.unwrap_or(0);
    let shown = |side: Option<(&BTreeMap<String, String>, &String)>| {
        let (labels, body) = side.filter(|_| left.is_some())?;
        let labels: BTreeMap<_, _> = labels.iter().filter(|(label, _)| *label != RECONCILER_LABEL).collect();
        Some(json!({"labels": labels, "body": serde_json::from_str::<Value>(body).unwrap_or_default()}))
    };
    json!({
        "op": write.op(), "kind": key.kind, "namespace": key.namespace, "name": key.name,
        "before": shown(before), "after": shown(after),
    })
}

/// MEMBER: one start of a member.
pub fn member(participant: &Participant) -> Value {
    let key = &participant.key;
    json!({
        "scope": key.scope, "member": key.member, "incarnation": key.incarnation.to_string(),
        "external": key.is_external(), "node": participant.node, "release": participant.release,
        "needs": participant.needs, "phase": participant.phase, "since": participant.since,
    })
}

/// `{"revision","items":[MEMBER…]}`, without candidates.
pub fn members(tables: &Tables, scope: Option<&str>) -> Value {
    let all = &tables.reconcilers;
    let wanted = |p: &&std::sync::Arc<Participant>| match scope {
        Some(scope) => p.key.scope == scope,
        None => !p.key.scope.starts_with(muster_messages::CANDIDATES_SCOPE),
    };
    let shown = |p: &std::sync::Arc<Participant>| {
        let mut shown = member(p);
        shown["name"] = json!(node_name(tables, &p.key.member));
        shown
    };
    let items: Vec<Value> = all.participants.values().filter(wanted).map(shown).collect();
    json!({"revision": tables.revision, "items": items})
}

/// OBJECT.
pub fn object(object: &ManagedObject) -> Value {
    let key = &object.key;
    let labels: BTreeMap<&str, &str> = object.labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    json!({
        "apiVersion": "muster.dev/v1", "kind": key.kind,
        "metadata": {"namespace": key.namespace, "name": key.name, "labels": labels, "revision": object.revision, "term": object.term},
        "body": serde_json::from_str::<Value>(&object.body).unwrap_or_default(),
    })
}
