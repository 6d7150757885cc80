//! Changes of reconcilers, gates and participants.
//!
//! Invariants  RELEASE-1  no participant serves below the floor of a gate of its scope.
//!             RELEASE-2  a participant that begins to serve finds what it needs applied.
//!             RELEASE-3  while a gate is working, its floor is the higher and its release the lower of both ends.
//!             RELEASE-4  epochs grow by one; a runner whose term has ended writes neither gate nor object nor progress.
//!             RELEASE-5  there is no gate before a run has succeeded, and only objects that the gate leads to are written.
//!             RELEASE-6  an unreadable gate admits no participant and no runner.
//!             RELEASE-7  a participant's record is deleted with its lease.
//!             RELEASE-12 an object of a wave, and the deletions after the last one, are written only while the conditions of all
//!                        earlier waves hold.
//! RELEASE-8 and RELEASE-9: see `runs.rs`; RELEASE-10 and RELEASE-11: see `records.rs`.
//! Why all of this is checked here: an admission and a restriction decided at the same time are applied one after the
//! other, and the second one sees the first.

use muster_messages::wire::MAX_BLOCKERS;
use muster_messages::{
    Action, CANDIDATES_SCOPE, Controls, Definition, DefinitionKey, DesiredObject, FencingToken, GATE_FORMAT, Gate,
    GateEntry, GatePath, GateState, GateStep, MEMBERS_NAMESPACE, ManagedKey, ManagedObject, ObjectKey, Participant,
    ParticipantKey, ParticipantPhase, Principal, Progress, RECONCILER_LABEL, RUNNERS_NAMESPACE, ReconcilerChange,
    Triple, Unmet, candidates_scope, runner_lease,
};

use super::*;
use crate::guards::{expected, lease_of, not_found, object};

pub(crate) mod operators;
mod records;
pub(crate) mod runs;

/// Releases of one reconciler whose definitions are kept.
const MAX_RELEASES: usize = 64;

pub(super) fn make(tables: &mut Tables, stamp: &Stamp<'_>, change: &ReconcilerChange) -> Result<(), CommandRefusal> {
    use ReconcilerChange as R;
    let level = tables.cluster.as_ref().map_or(0, |cluster| cluster.feature_level);
    let needs = change.needs_level();
    if level < needs {
        return Err(CommandRefusal::FeatureLevel { needs, level });
    }
    match change {
        R::Define { definition, replace } => define(tables, stamp, definition, *replace),
        R::Forget { reconciler } => forget(tables, stamp, reconciler),
        R::Announce(participant) => announce(tables, stamp, participant),
        R::Admit(key) => admit(tables, stamp, key),
        R::Drain(key) => drain(tables, stamp, key),
        R::Leave(key) => {
            leave(tables, stamp, key);
            Ok(())
        }
        R::Step { reconciler, release, digest, term, epoch, step } => {
            let by = Runner { reconciler, release: *release, digest, term: *term };
            self::step(tables, stamp, &by, *epoch, *step)
        }
        R::Apply { reconciler, release, digest, term, key, object } => {
            let by = Runner { reconciler, release: *release, digest, term: *term };
            apply_object(tables, stamp, &by, key, object.as_deref())
        }
        R::PutObject(object) => {
            put_object(tables, stamp, object, None);
            Ok(())
        }
        R::DeleteObject(key) => match tables.reconcilers.objects.remove(key) {
            None => Err(not_found("object", key)),
            Some(_) => {
                tables.reconcilers.changed = stamp.at;
                Ok(())
            }
        },
        R::Progress(progress) => report(tables, stamp, progress),
        R::Pause { reconciler, paused } => operators::control(tables, stamp, reconciler, |c| c.paused = *paused),
        R::Finalize { reconciler, digest } => runs::finalize(tables, stamp, reconciler, digest),
        R::Retry { reconciler, digest } => operators::control(tables, stamp, reconciler, |c| {
            c.retries += 1;
            c.retried.clone_from(digest);
        }),
        R::Repair { reconciler, epoch } => operators::repair(tables, stamp, reconciler, *epoch),
        R::ForceFloor { reconciler, floor } => operators::force_floor(tables, stamp, reconciler, *floor),
        R::DeleteGate { reconciler } => operators::delete_gate(tables, stamp, reconciler),
        R::StepDone { reconciler, release, digest, defined, term, step } => {
            let by = Runner { reconciler, release: *release, digest, term: *term };
            records::step_done(tables, stamp, &by, *defined, step)
        }
        R::RecordRun(run) => records::record_run(tables, stamp, run),
    }
}

fn define(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    definition: &muster_messages::Definition,
    replace: bool,
) -> Result<(), CommandRefusal> {
    let key = definition.key();
    tables.records.check_chain(definition).map_err(CommandRefusal::Held)?;
    let all = &mut tables.reconcilers;
    let text = |d: &muster_messages::Definition| format!("{} {} ({})", d.reconciler, d.release, short(&d.digest));
    let old = all.definitions.get(&key).cloned();
    match &old {
        Some(old) if old.digest == definition.digest => return Ok(()),
        Some(old) => absent("definition", text(old), !replace)?,
        None => {}
    }
    let scopes = all.definitions_of(&key.reconciler).map(|d| &d.scope);
    let other = scopes.chain(all.gates.get(&key.reconciler).map(|gate| &gate.scope)).find(|s| **s != definition.scope);
    if let Some(other) = other {
        // A gate belongs to one scope.
        return Err(stale(format!("{} belongs to scope {other}, not {}", key.reconciler, definition.scope)));
    }
    let mut new = definition.clone();
    (new.applied_at, new.revision) = (stamp.wall, stamp.at);
    let is = text(&new);
    let name = key.reconciler.clone();
    all.definitions.insert(key, Arc::new(new));
    forget_old(all, &name, definition.release.triple);
    all.changed = stamp.at;
    stamp.log(tables, EventKind::Gate, None, old.map(|d| text(&d)), Some(is));
    Ok(())
}

/// Of many releases the oldest are deleted, except for the new, the applied and the target one.
fn forget_old(all: &mut muster_messages::Reconcilers, reconciler: &str, new: Triple) {
    let gate = all.gates.get(reconciler).map(|gate| &gate.now);
    let target = gate.and_then(|now| now.target.as_ref()).map(|target| target.release.triple);
    let kept = [Some(new), gate.map(|now| now.reconciled.triple), target];
    let keys: Vec<_> = all.definitions_of(reconciler).map(|d| d.key()).collect();
    let too_many = keys.len().saturating_sub(MAX_RELEASES);
    for key in keys.into_iter().filter(|key| !kept.contains(&Some(key.release))).take(too_many) {
        all.definitions.remove(&key);
    }
}

fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

fn forget(tables: &mut Tables, stamp: &Stamp<'_>, reconciler: &str) -> Result<(), CommandRefusal> {
    known(tables, reconciler)?;
    let all = &mut tables.reconcilers;
    let keys: Vec<_> = all.definitions_of(reconciler).map(|d| d.key()).collect();
    for key in &keys {
        all.definitions.remove(key);
    }
    let last_epoch = all.epoch_of(reconciler);
    all.gates.remove(reconciler);
    all.progress.remove(reconciler);
    all.controls.remove(reconciler);
    if last_epoch > 0 {
        // If the name is used again, epochs continue from here.
        all.controls.insert(reconciler.to_owned(), Controls { last_epoch, ..Controls::default() });
    }
    let theirs = |(key, object): (&ManagedKey, &Arc<ManagedObject>)| {
        (object.owner.as_deref() == Some(reconciler)).then(|| key.clone())
    };
    let orphans: Vec<_> = all.objects.iter().filter_map(theirs).collect();
    for key in orphans {
        if let Some(object) = all.objects.get_mut(&key) {
            let mut orphan = ManagedObject { owner: None, revision: stamp.at, ..(**object).clone() };
            orphan.labels.remove(RECONCILER_LABEL);
            *object = Arc::new(orphan);
        }
    }
    all.changed = stamp.at;
    runs::forget(tables, reconciler);
    records::forget(tables, reconciler);
    let was = format!("{reconciler}, {} definitions", keys.len());
    stamp.log(tables, EventKind::Gate, None, Some(was), None);
    Ok(())
}

/// Whether there is anything under this name.
fn known(tables: &Tables, reconciler: &str) -> Result<(), CommandRefusal> {
    let all = &tables.reconcilers;
    let there = all.gates.contains_key(reconciler) || all.definitions_of(reconciler).next().is_some();
    if there { Ok(()) } else { Err(not_found("reconciler", reconciler)) }
}

fn announce(tables: &mut Tables, stamp: &Stamp<'_>, participant: &Participant) -> Result<(), CommandRefusal> {
    let key = &participant.key;
    expected(key.fault().is_none(), || key.fault().unwrap_or_default().to_owned())?;
    if let Some(there) = tables.reconcilers.participants.get(key) {
        let said = |p: &Participant| (p.release.clone(), p.token, p.needs.clone());
        return expected(said(there) == said(participant), || {
            format!("{key} has announced {} already, with other needs or another lease", there.release)
        });
    }
    if key.scope.starts_with(CANDIDATES_SCOPE) {
        // The runner's lease holds only a member's name: it must identify one node.
        let named = tables.reconcilers.participants_of(&key.scope).find(|p| p.key.member == key.member);
        // Programs that name no node cannot be told apart.
        let there_too = |there: &Arc<Participant>| there.node.is_some() && there.node == participant.node;
        expected(named.is_none_or(there_too), || {
            let (member, scope) = (&key.member, &key.scope);
            format!(
                "member {member} is already registered in scope {scope} by another process; use another name, or wait until \
                 its lease expires"
            )
        })?;
    }
    match participant.token {
        Some(token) => leased(tables, key, token)?,
        None => expected(key.is_external(), || format!("{key} names no lease"))?,
    }
    let mut new = participant.clone();
    (new.phase, new.since, new.revision) = (ParticipantPhase::Announced, stamp.wall, stamp.at);
    put_participant(tables, stamp, new);
    Ok(())
}

/// The participant's own session holds its lease under this token.
fn leased(tables: &Tables, key: &ParticipantKey, token: FencingToken) -> Result<(), CommandRefusal> {
    let lease_key = key.lease();
    let lease = lease_of(object(tables, &lease_key)?, &lease_key)?;
    let own = lease.is_live() && lease.holding.token == token && lease.holding.session == Some(key.incarnation);
    expected(own, || format!("{lease_key} is not held by this incarnation under token {token}"))
}

fn put_participant(tables: &mut Tables, stamp: &Stamp<'_>, new: Participant) {
    let text = |p: &Participant| format!("{} {}, {}", p.key, p.release, phase_text(p.phase));
    let (is, waits) = (Some(text(&new)), new.phase == ParticipantPhase::Announced);
    let all = &mut tables.reconcilers;
    let was = all.participants.insert(new.key.clone(), Arc::new(new));
    all.changed = stamp.at;
    // Waiting is not an event. Serving is one of the frequent class: members start and end as often as they like.
    if !waits {
        stamp.log_frequent(tables, EventKind::Gate, None, was.map(|p| text(&p)), is);
    }
}

fn phase_text(phase: ParticipantPhase) -> &'static str {
    match phase {
        ParticipantPhase::Announced => "announced",
        ParticipantPhase::Serving => "serving",
        ParticipantPhase::Draining => "draining",
    }
}

fn participant<'a>(tables: &'a Tables, key: &ParticipantKey) -> Result<&'a Arc<Participant>, CommandRefusal> {
    tables.reconcilers.participants.get(key).ok_or_else(|| not_found("participant", key))
}

/// RELEASE-1, RELEASE-2.
fn admit(tables: &mut Tables, stamp: &Stamp<'_>, key: &ParticipantKey) -> Result<(), CommandRefusal> {
    let found = participant(tables, key)?;
    match found.phase {
        ParticipantPhase::Serving => return Ok(()),
        ParticipantPhase::Draining => return Err(stale(format!("{key} is draining"))),
        ParticipantPhase::Announced => {}
    }
    if let Some(token) = found.token {
        leased(tables, key, token)?;
    }
    if !injected(BugInjection::AdmitWithoutCheck) {
        tables.reconcilers.admission(found).map_err(CommandRefusal::NotAdmitted)?;
    }
    let mut new = (**found).clone();
    (new.phase, new.since, new.revision) = (ParticipantPhase::Serving, stamp.wall, stamp.at);
    put_participant(tables, stamp, new);
    runs::withdraw_finalizations(tables, stamp)
}

fn drain(tables: &mut Tables, stamp: &Stamp<'_>, key: &ParticipantKey) -> Result<(), CommandRefusal> {
    let found = participant(tables, key)?;
    match found.phase {
        ParticipantPhase::Draining => {}
        ParticipantPhase::Announced => leave(tables, stamp, key),
        ParticipantPhase::Serving => {
            let mut new = (**found).clone();
            (new.phase, new.since, new.revision) = (ParticipantPhase::Draining, stamp.wall, stamp.at);
            put_participant(tables, stamp, new);
        }
    }
    Ok(())
}

fn leave(tables: &mut Tables, stamp: &Stamp<'_>, key: &ParticipantKey) {
    if tables.reconcilers.participants.contains_key(key) {
        tables.objects.remove(&key.lease());
        remove_participant(tables, stamp, key);
    }
}

fn remove_participant(tables: &mut Tables, stamp: &Stamp<'_>, key: &ParticipantKey) {
    let all = &mut tables.reconcilers;
    if let Some(old) = all.participants.remove(key) {
        all.changed = stamp.at;
        if old.phase != ParticipantPhase::Announced {
            let was = format!("{} {}, {}", old.key, old.release, phase_text(old.phase));
            stamp.log_frequent(tables, EventKind::Gate, None, Some(was), None);
        }
    }
}

/// RELEASE-7. An unheld lease in the members' namespace: its object is deleted, too, so that a fleet that restarts for
/// years leaves nothing behind.
pub(super) fn lease_ended(tables: &mut Tables, stamp: &Stamp<'_>, key: &ObjectKey) {
    if key.namespace == RUNNERS_NAMESPACE {
        // A runner's progress is deleted when its term ends.
        let live = tables.objects.get(key).and_then(|object| object.lease()).filter(|lease| lease.is_live());
        let reported_term = tables.reconcilers.progress.get(&key.name).map(|progress| progress.term);
        if reported_term.is_some() && reported_term != live.map(|lease| lease.holding.token) {
            tables.reconcilers.progress.remove(&key.name);
            tables.reconcilers.changed = stamp.at;
        }
    }
    if key.namespace != MEMBERS_NAMESPACE {
        return;
    }
    let held = tables.objects.get(key).and_then(|object| object.lease()).filter(|lease| lease.is_live());
    let live = held.map(|lease| lease.holding.token);
    let Some(theirs) = ParticipantKey::of_lease(key) else { return };
    let bound = tables.reconcilers.participants.get(&theirs).is_some_and(|p| p.token.is_some() && p.token == live);
    if !bound {
        remove_participant(tables, stamp, &theirs);
    }
    if live.is_none() {
        tables.objects.remove(key);
    }
}

/// The applier of a definition.
struct Runner<'a> {
    reconciler: &'a str,
    release: Triple,
    digest: &'a str,
    term: FencingToken,
}

impl Runner<'_> {
    /// The applied definition, if it is still the current one.
    fn definition(&self, tables: &Tables) -> Result<Arc<muster_messages::Definition>, CommandRefusal> {
        let key = DefinitionKey { reconciler: self.reconciler.to_owned(), release: self.release };
        let found = tables.reconcilers.definitions.get(&key).ok_or_else(|| not_found("definition", self.reconciler))?;
        expected(found.digest == self.digest, || {
            format!("the definition of {} {} is another one by now", self.reconciler, self.release)
        })?;
        Ok(Arc::clone(found))
    }
}

/// RELEASE-4: the term is the current one.
fn in_force(tables: &Tables, stamp: &Stamp<'_>, reconciler: &str, term: FencingToken) -> Result<(), CommandRefusal> {
    if injected(BugInjection::WriteAfterTerm) {
        return Ok(());
    }
    let key = runner_lease(reconciler);
    let lease = lease_of(object(tables, &key)?, &key)?;
    let holds = lease.holding.token == term && lease.is_live();
    expected(holds, || format!("term {term} of {reconciler} is over"))?;
    check_candidate_node(tables, stamp, reconciler, lease.spec.held_by().unwrap_or_default())
}

/// A node acts only by the terms of candidates on that node: checked here, because a replica may be older than the term.
pub(super) fn check_candidate_node(
    tables: &Tables,
    stamp: &Stamp<'_>,
    reconciler: &str,
    member: &str,
) -> Result<(), CommandRefusal> {
    let Principal::Node(node) = stamp.by else { return Ok(()) };
    let scope = candidates_scope(reconciler);
    let here = tables.reconcilers.participants_of(&scope).any(|p| p.key.member == member && p.node == Some(*node));
    expected(here, || format!("{member} is not a candidate for {reconciler} on node {node}"))
}

fn step(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    by: &Runner<'_>,
    epoch: u64,
    step: GateStep,
) -> Result<(), CommandRefusal> {
    let (reconciler, term) = (by.reconciler, by.term);
    in_force(tables, stamp, reconciler, term)?;
    let all = &tables.reconcilers;
    let definition = by.definition(tables)?;
    let gate = all.gates.get(reconciler).cloned();
    let actual = all.epoch_of(reconciler);
    let target = definition.target();
    let at_work = gate.as_ref().is_some_and(|g| g.now.target.as_ref() == Some(&target));
    let path = match (step, at_work) {
        // A step in progress is completed even if an operator has paused it since: half of it is worse than all of it.
        (GateStep::Complete, true) => GatePath::Open,
        _ => tables.way(&definition).map_err(CommandRefusal::Held)?,
    };
    let blocked = || {
        let mut blockers = all.blockers(reconciler, &definition.scope, definition.release.triple, definition.floor);
        let in_all = blockers.len();
        if in_all == 0 || injected(BugInjection::RestrictWithoutCheck) {
            Ok(())
        } else {
            blockers.truncate(MAX_BLOCKERS);
            Err(CommandRefusal::BlockedByMembers { blockers, in_all })
        }
    };
    let taken = gate.as_ref().is_some_and(|g| g.now.term == term)
        && match step {
            GateStep::Work | GateStep::Restrict => at_work,
            GateStep::Complete => path == GatePath::Reached,
        };
    if taken {
        return Ok(());
    }
    expected(epoch == actual, || format!("the gate of {reconciler} is at epoch {actual}, not {epoch}"))?;
    if step == GateStep::Complete {
        records::check_complete(tables, &definition)?;
    }
    let done = |why: &str| GateEntry {
        epoch: 0,
        state: GateState::Done,
        reconciled: definition.release.clone(),
        digest: definition.digest.clone(),
        floor: definition.floor,
        target: None,
        term,
        at: stamp.wall,
        revision: stamp.at,
        why: why.to_owned(),
    };
    let entry = match (step, path, gate.as_deref()) {
        (GateStep::Work, GatePath::Open, Some(gate)) => {
            // No incompatible participant is admitted, but one that was asked to stop may still serve.
            blocked()?;
            GateEntry { state: GateState::Working, target: Some(target), ..done("begun").between(&gate.now) }
        }
        (GateStep::Restrict, GatePath::Restrict, Some(gate)) => {
            blocked()?;
            let (reconciled, floor) = gate.restricted_to(&target);
            let working = done("restricted").between(&gate.now);
            GateEntry { state: GateState::Working, target: Some(target), reconciled, floor, ..working }
        }
        (GateStep::Complete, GatePath::First, None) => {
            blocked()?;
            done("applied for the first time")
        }
        (GateStep::Complete, _, Some(gate)) if at_work => {
            GateEntry { floor: gate.floor_of_outcome(&target), ..done("applied") }
        }
        _ => return Err(stale(format!("the gate of {reconciler} is not where {step:?} would lead on from"))),
    };
    write_gate(tables, stamp, reconciler, &definition.scope, entry);
    runs::use_finalization(tables, &definition, step);
    Ok(())
}

/// An entry that keeps the releases of another one.
trait Between {
    fn between(self, now: &GateEntry) -> Self;
}
impl Between for GateEntry {
    fn between(self, now: &GateEntry) -> Self {
        Self { reconciled: now.reconciled.clone(), digest: now.digest.clone(), floor: now.floor, ..self }
    }
}

fn write_gate(tables: &mut Tables, stamp: &Stamp<'_>, reconciler: &str, scope: &str, mut entry: GateEntry) {
    let remembers = runs::are_recorded(tables);
    let deleted = tables.runs.deleted_gates.remove(reconciler);
    let all = &mut tables.reconcilers;
    let there = all.gates.get(reconciler).cloned();
    entry.epoch = all.epoch_of(reconciler) + 1;
    let was = there.as_ref().map(|g| text(reconciler, &g.now));
    // The history continues after that of a deleted gate.
    let old = there.or(deleted);
    let mut history = old.as_ref().map(|g| g.history.clone()).unwrap_or_default();
    // Runners that replace each other on the same target leave one entry, so that earlier entries stay visible.
    let goes_on = |now: &GateEntry| entry.target.is_some() && now.target == entry.target && now.floor == entry.floor;
    if let Some(now) = old.as_ref().map(|g| &g.now).filter(|now| remembers && goes_on(now) && now.term != entry.term) {
        let (before, term) = (now.epoch, now.term);
        entry.why = format!("{}, after the runner of epoch {before}, term {term}, had not completed it", entry.why);
    }
    history.extend(old.as_ref().map(|g| g.now.clone()).filter(|now| !goes_on(now)));
    Gate::remember(&mut history);
    let is = text(reconciler, &entry);
    let gate =
        Gate { reconciler: reconciler.to_owned(), scope: scope.to_owned(), format: GATE_FORMAT, now: entry, history };
    all.gates.insert(reconciler.to_owned(), Arc::new(gate));
    all.changed = stamp.at;
    stamp.log(tables, EventKind::Gate, None, was, Some(is));
}

fn text(reconciler: &str, entry: &GateEntry) -> String {
    let state = match entry.state {
        GateState::Done => "done",
        GateState::Working => "working",
    };
    let GateEntry { epoch, reconciled, floor, .. } = entry;
    let to = entry.target.as_ref().map(|t| format!(", on the way to {}", t.release)).unwrap_or_default();
    format!("{reconciler}: {state}, {reconciled}, floor {floor}{to}, epoch {epoch}")
}

/// RELEASE-5.
fn apply_object(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    by: &Runner<'_>,
    key: &ManagedKey,
    object: Option<&DesiredObject>,
) -> Result<(), CommandRefusal> {
    in_force(tables, stamp, by.reconciler, by.term)?;
    let found = by.definition(tables)?;
    let definition = found.key();
    expected(leads(tables, &definition)?, || format!("the gate of {} does not lead to {}", by.reconciler, by.release))?;
    if let Some(unmet) = unmet_before(tables, &found, key, object) {
        return Err(stale(unmet.to_string()));
    }
    let there = tables.reconcilers.objects.get(key);
    let others = there.is_some_and(|there| there.owner.as_deref() != Some(by.reconciler));
    match (object, there) {
        (None, None) => {}
        (None, Some(_)) if others => {} // the object has got another owner meanwhile
        (None, Some(_)) => {
            tables.reconcilers.objects.remove(key);
            tables.reconcilers.changed = stamp.at;
        }
        (Some(_), _) if others => absent("object of another owner", key, true)?,
        (Some(object), _) => put_object(tables, stamp, object, Some(by)),
    }
    Ok(())
}

/// RELEASE-12. The condition on which this write waits: the definition says in which wave the object is, whatever was asked for.
fn unmet_before(
    tables: &Tables,
    definition: &Definition,
    key: &ManagedKey,
    object: Option<&DesiredObject>,
) -> Option<Unmet> {
    if definition.options.wave_conditions.is_empty() || injected(BugInjection::IgnoreWaveConditions) {
        return None;
    }
    let Action::Objects(objects) = &definition.action else { return None };
    let listed = objects.iter().find(|listed| listed.key == *key).map(|listed| listed.wave);
    // What the definition does not list is deleted after everything else.
    let wave = object.and(listed).unwrap_or(u32::MAX);
    definition.unmet_before(wave, &tables.reconcilers.objects)
}

/// Whether a definition may be applied now: its gate leads to it, or has reached it; before the first run, no incompatible
/// participant serves.
pub(super) fn leads(tables: &Tables, key: &DefinitionKey) -> Result<bool, CommandRefusal> {
    let all = &tables.reconcilers;
    let definition = all.definitions.get(key).ok_or_else(|| not_found("definition", &key.reconciler))?;
    let target = definition.target();
    Ok(match all.gates.get(&key.reconciler) {
        None => all.blockers(&key.reconciler, &definition.scope, key.release, definition.floor).is_empty(),
        Some(gate) if !gate.is_readable() => false,
        Some(gate) => gate.now.target.as_ref() == Some(&target) || gate.path_to(&target) == GatePath::Reached,
    })
}

/// If it equals the existing object, nothing changes, not even the term, which is that of the last effective write.
fn put_object(tables: &mut Tables, stamp: &Stamp<'_>, desired: &DesiredObject, by: Option<&Runner<'_>>) {
    let all = &mut tables.reconcilers;
    let old = all.objects.get(&desired.key);
    let owner = by.map(|by| by.reconciler.to_owned()).or_else(|| old.and_then(|o| o.owner.clone()));
    let mut labels = desired.labels.clone();
    if let (Some(by), true) = (by, owner.is_some()) {
        labels.insert(RECONCILER_LABEL.to_owned(), by.reconciler.to_owned());
    }
    if old.is_some_and(|old| old.labels == labels && old.body == desired.body && old.owner == owner) {
        return;
    }
    let object = ManagedObject {
        key: desired.key.clone(),
        labels,
        body: desired.body.clone(),
        owner,
        term: by.map_or(FencingToken(0), |by| by.term),
        created: old.map_or(stamp.at, |o| o.created),
        revision: stamp.at,
    };
    all.objects.insert(desired.key.clone(), Arc::new(object));
    all.changed = stamp.at;
}

fn report(tables: &mut Tables, stamp: &Stamp<'_>, progress: &Progress) -> Result<(), CommandRefusal> {
    known(tables, &progress.reconciler)?;
    in_force(tables, stamp, &progress.reconciler, progress.term)?;
    let all = &mut tables.reconcilers;
    all.progress.insert(progress.reconciler.clone(), Arc::new(progress.clone()));
    all.progressed = stamp.at;
    runs::remember(tables, stamp, progress);
    Ok(())
}
