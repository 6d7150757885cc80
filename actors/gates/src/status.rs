//! What operators are shown. The names of fields are the contract's.

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

/// `{"name","history":[GATE…]}`, newest last. `None`: there is no gate.
pub fn history(tables: &Tables, name: &str) -> Option<Value> {
    let gate = tables.reconcilers.gates.get(name)?;
    Some(json!({"name": name, "history": told(gate)}))
}

fn told(gate: &Gate) -> Vec<Value> {
    gate.history.iter().chain([&gate.now]).map(gate_view).collect()
}

/// Where a reconciler is, in a word for scripts and a sentence for people.
struct Phase {
    phase: &'static str,
    reason: String,
    message: String,
}

/// Blockers that are named at once.
const MOST_LISTED: usize = 1_000;

/// STATUS. `None`: there is no reconciler of this name.
pub fn status(tables: &Tables, name: &str) -> Option<Value> {
    let all = &tables.reconcilers;
    let newest = all.definitions_of(name).last().cloned();
    let gate_now = all.gates.get(name);
    let scope = newest.as_ref().map(|d| d.scope.clone()).or_else(|| gate_now.map(|g| g.scope.clone()))?;
    let progress = current_progress(tables, name);
    let shown = shown_definition(tables, name);
    let mut blockers = shown.map(|d| in_the_way(all, d)).unwrap_or_default();
    let blockers_in_all = blockers.len();
    blockers.truncate(MOST_LISTED);
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
        "history": gate_now.map(|g| told(g)).unwrap_or_default(),
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
        // Long, and to be had one by one.
        let fields = status.as_object_mut()?;
        for long in ["output", "history", "definitions", "blockers"] {
            fields.remove(long);
        }
        Some(status)
    };
    let items: Vec<Value> = names.into_iter().filter_map(brief).collect();
    json!({"revision": tables.revision, "items": items})
}

/// What the present runner has told of itself; what an earlier one told is no news.
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

/// The definition that STATUS is about, and that an operator means who names none: of the best live candidate's release, or
/// the newest where there is no candidate.
pub fn shown_definition<'a>(tables: &'a Tables, name: &'a str) -> Option<&'a Arc<Definition>> {
    let all = &tables.reconcilers;
    let of_best = best_candidate(tables, name).and_then(|best| {
        all.definitions.get(&DefinitionKey { reconciler: name.to_owned(), release: best.release.triple })
    });
    of_best.or_else(|| all.definitions_of(name).last())
}

/// Managers take part under their id: with the name of the node, where there is one of this id.
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

/// Who serves and is in the way of a definition, as far as its way is not open to them.
fn in_the_way(all: &Reconcilers, definition: &Definition) -> Vec<Blocker> {
    let reached = all.gates.get(&definition.reconciler).is_some_and(|gate| {
        // What is begun has nobody in its way any more.
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
    let say = |phase, reason: &str, message: String| Phase { phase, reason: reason.to_owned(), message };
    let Some(definition) = definition else {
        let message =
            format!("no release has a definition; `muster reconciler apply` brings one, `delete {name}` forgets it");
        return say("blocked", "no-definition", message);
    };
    let way = all.way(definition);
    match &way {
        Err(hold @ Hold::Paused { .. }) => return say("paused", hold.reason(), hold.to_string()),
        // The point of no return is not worth asking about while somebody is in the way of it.
        Err(hold @ Hold::ReadyToFinalize { .. }) if blockers == 0 => {
            return say("ready-to-finalize", hold.reason(), hold.to_string());
        }
        Err(Hold::ReadyToFinalize { .. }) => {}
        Err(hold @ Hold::Dependency { .. }) => return say("waiting", hold.reason(), hold.to_string()),
        Err(hold) => return say("blocked", hold.reason(), hold.to_string()),
        Ok(_) => {}
    }
    if candidates(tables, name).is_empty() {
        let of: Vec<String> = all.definitions_of(name).map(|d| d.release.to_string()).collect();
        let message = format!(
            "no live node has a release with a definition ({}); start one with --release, or apply a definition for a release that runs",
            of.join(", ")
        );
        return say("no-candidate", "no-candidate", message);
    }
    if blockers > 0 {
        let message = format!(
            "{blockers} serve that could not live with {}; update or stop them: `muster reconciler blockers {name}`",
            definition.release
        );
        return say("waiting", "blockers", message);
    }
    let Some(progress) = progress else {
        return say("electing", "electing", "no candidate has taken the runner's lease yet".to_owned());
    };
    match progress.phase.as_str() {
        // What an earlier definition has come to is no news of this one.
        "idle" if matches!(way, Ok(GatePath::Reached)) => say("idle", "", String::new()),
        "idle" | "paused" | "blocked" => {
            say("electing", "taking-up", "its runner has not taken this definition up yet".to_owned())
        }
        "failed" => say("failed", "permanent-failure", progress.message.clone()),
        "settling" => say("settling", "settling", progress.message.clone()),
        "waiting" => say("waiting", &progress.reason, progress.message.clone()),
        _ => say("running", &progress.reason, progress.message.clone()),
    }
}

/// Bytes of bodies in one plan; what goes beyond is only named.
const MOST_BODIES: usize = 256 * 1024;

/// `{"name","release","path","hold","objects":[{"op","kind","namespace","name","before","after"}…],"command","blockers",
/// "gate"}`: what a definition would do now, and the gate it would leave. `None`: there is no such definition.
pub fn plan(tables: &Tables, name: &str, release: Option<Triple>) -> Option<Value> {
    let all = &tables.reconcilers;
    let definition = match release {
        Some(release) => all.definitions.get(&DefinitionKey { reconciler: name.to_owned(), release })?,
        None => all.definitions_of(name).last()?,
    };
    let way = all.way(definition);
    let mut blockers = in_the_way(all, definition);
    blockers.truncate(MOST_LISTED);
    let waves = Waves::of(definition);
    let numbers = match definition.action {
        Action::Objects(_) => 0..waves.count(),
        Action::Command(_) | Action::Handler => 0..0,
    };
    let mut room = MOST_BODIES;
    let mut objects = Vec::new();
    for write in numbers.flat_map(|nth| waves.drift(all, name, nth)) {
        if !matches!(write, Write::Keep(_)) {
            objects.push(planned(all, &write, &mut room));
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

/// One write, with what is there and what would be.
fn planned(all: &Reconcilers, write: &Write, room: &mut usize) -> Value {
    let key = write.key();
    let before = all.objects.get(key).map(|object| (&object.labels, &object.body));
    let after = match write {
        Write::Create(object) | Write::Update(object) => Some((&object.labels, &object.body)),
        Write::Delete(_) | Write::Taken(_) | Write::Keep(_) => None,
    };
    let bytes = [before, after].into_iter().flatten().map(|(_, body)| body.len()).sum();
    let left = room.checked_sub(bytes);
    *room = left.unwrap_or(0);
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

/// `{"revision","items":[MEMBER…]}`, candidates left out.
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
