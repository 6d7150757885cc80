//! What operators see. The names of fields are the contract's.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_messages::wire::CandidateView;
use muster_messages::{
    Action, Applies, Blocker, BlockerView, Definition, DefinitionKey, DefinitionTiming, Gate, GateEntryView,
    GateHistoryView, GatePath, GateState, GateStatusView, HoldReason, HoldView, LastFailure, LastFailureView, ListView,
    ManagedObject, Name, ObjectMetadataView, ObjectView, Participant, ParticipantCounts, ParticipantPhase,
    ParticipantView, PhaseReason, PlanView, PlannedGateView, PlannedObjectView, PlannedSideView, PlannedWaitView,
    Progress, RECONCILER_LABEL, ReconcilerPhase, ReconcilerStatusView, ReconcilerView, Reconcilers,
    ReleaseDefinitionView, RunnerChoice, RunnerStatusView, StepView, Tables, Triple, WallTime, WaveCondition, Word,
    runner_lease,
};

use crate::objects::{Waves, Write};
use crate::view::{best_candidate, candidates, eligible};

fn gate(gate: &Gate) -> GateStatusView {
    if gate.is_readable() {
        GateStatusView::Readable(GateEntryView::from(&gate.now))
    } else {
        GateStatusView::unreadable(gate.now.epoch)
    }
}

/// `None`: no gate exists, and none is remembered.
pub fn history(tables: &Tables, name: &str) -> Option<GateHistoryView> {
    let there = tables.reconcilers.gates.get(name);
    let gate = there.or_else(|| tables.runs.deleted_gates.get(name))?;
    Some(GateHistoryView { name: name.to_owned(), history: gate_history(gate), deleted: there.is_none() })
}

fn gate_history(gate: &Gate) -> Vec<GateEntryView> {
    gate.history.iter().chain([&gate.now]).map(GateEntryView::from).collect()
}

/// The state of a reconciler, for scripts, and as a sentence for people.
struct Phase {
    phase: ReconcilerPhase,
    reason: Word<PhaseReason>,
    message: String,
}

impl Phase {
    fn new(phase: ReconcilerPhase, reason: PhaseReason, message: String) -> Self {
        Self { phase, reason: reason.into(), message }
    }
    /// As its runner says.
    fn reported(phase: ReconcilerPhase, progress: &Progress) -> Self {
        Self { phase, reason: progress.reason.clone(), message: progress.message.clone() }
    }
}

/// Maximum blockers that are listed.
const MAX_LISTED_BLOCKERS: usize = 1_000;

/// STATUS. `None`: no reconciler of this name exists.
pub fn status(tables: &Tables, name: &str) -> Option<ReconcilerStatusView> {
    let all = &tables.reconcilers;
    let (brief, blockers) = brief(tables, name)?;
    let definition = |d: &Arc<Definition>| ReleaseDefinitionView {
        release: d.release.clone(),
        digest: d.digest.clone(),
        floor: d.floor,
        applied_at: d.applied_at,
    };
    Some(ReconcilerStatusView {
        brief,
        blockers: named(tables, blockers),
        output: output(tables, name),
        last_run: crate::runs::run(tables, name, None).map(|run| crate::runs::run_view(tables, run)),
        finalized: finalized(all, name),
        definitions: all.definitions_of(name).map(definition).collect(),
        steps: steps(tables, name),
        history: all.gates.get(name).map(|g| gate_history(g)).unwrap_or_default(),
        revision: tables.revision,
    })
}

/// The steps that have run, then those of the chain that is applied or would be that have not.
fn steps(tables: &Tables, name: &str) -> Vec<StepView> {
    let chain = tables.records.chains.get(name);
    let ran = chain.map(|chain| chain.steps.as_slice()).unwrap_or_default();
    let done = ran.iter().map(|step| StepView {
        name: step.name.clone(),
        digest: step.digest.clone(),
        release: Some(step.release.clone()),
        at: Some(step.at),
        node: step.node.and_then(|node| tables.nodes.get(&node)).map(|node| node.name.clone()),
    });
    let missing = match status_definition(tables, name).map(|definition| &definition.action) {
        Some(Action::Chain(steps)) => steps.get(ran.len()..).unwrap_or_default(),
        _ => &[],
    };
    let missing = missing.iter().map(|step| StepView {
        name: step.name.clone(),
        digest: step.digest.clone(),
        release: None,
        at: None,
        node: None,
    });
    done.chain(missing).collect()
}

/// Of the current runner; before it has written anything, of the last failure.
fn output(tables: &Tables, name: &str) -> String {
    let current = current_progress(tables, name).map(|progress| progress.output.clone());
    let failed = || tables.runs.failures.get(name).map(|failure| failure.output.clone());
    current.filter(|output| !output.is_empty()).or_else(failed).unwrap_or_default()
}

fn finalized(all: &Reconcilers, name: &str) -> Option<muster_messages::Release> {
    let digest = all.controls.get(name)?.finalized.as_ref()?;
    let allowed = all.definitions_of(name).find(|definition| definition.digest == *digest)?;
    let target = allowed.target();
    let is_used = all.gates.get(name).is_some_and(|gate| gate.path_to(&target) == GatePath::Reached);
    (!is_used).then(|| allowed.release.clone())
}

/// `muster reconciler list`.
pub fn statuses(tables: &Tables) -> ListView<ReconcilerView> {
    let all = &tables.reconcilers;
    let mut names: Vec<&String> = all.definitions.keys().map(|key| &key.reconciler).chain(all.gates.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let items = names.into_iter().filter_map(|name| Some(brief(tables, name)?.0));
    ListView::at(tables.revision, items)
}

/// The state in short, and the blocking members that are listed.
fn brief(tables: &Tables, name: &str) -> Option<(ReconcilerView, Vec<Blocker>)> {
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
    let failure = tables.runs.failures.get(name);
    let count = |wanted| all.participants_of(&scope).filter(|p| p.phase == wanted).count();
    let participants = ParticipantCounts {
        serving: count(ParticipantPhase::Serving),
        announced: count(ParticipantPhase::Announced),
        draining: count(ParticipantPhase::Draining),
    };
    let view = ReconcilerView {
        name: name.to_owned(),
        scope,
        gate: gate_now.map(|g| gate(g)),
        runner: runner(tables, name, progress),
        phase: phase.phase.into(),
        reason: phase.reason,
        message: phase.message,
        blockers_in_all,
        participants,
        candidates: eligible(tables, name).len(),
        attempt: progress.map_or(0, |p| p.attempt),
        consecutive_failures: failure
            .map_or_else(|| progress.map_or(0, |p| p.consecutive_failures), |failure| failure.failures),
        last_error: progress.and_then(|p| p.last_error.clone()).or_else(|| failure.map(|f| f.error.clone())),
        last_failure: failure.map(|failure| last_failure(tables, failure)),
        next_retry_at: progress.and_then(|p| p.next_retry_at),
        wave: progress.and_then(|p| p.wave),
    };
    Some((view, blockers))
}

fn last_failure(tables: &Tables, failure: &LastFailure) -> LastFailureView {
    let LastFailure { node, release, term, since, at, error, permanent, .. } = failure.clone();
    let name = tables.nodes.get(&node).map(|node| node.name.clone());
    LastFailureView { node, name, release, term, since, at, error, permanent }
}

/// The report of the current runner; that of an earlier one is outdated.
fn current_progress<'a>(tables: &'a Tables, name: &str) -> Option<&'a Progress> {
    let lease = tables.objects.get(&runner_lease(name))?.lease()?;
    let progress = tables.reconcilers.progress.get(name)?;
    (lease.is_live() && lease.holding.token == progress.term).then_some(progress.as_ref())
}

fn runner(tables: &Tables, name: &str, progress: Option<&Progress>) -> Option<RunnerStatusView> {
    let object = tables.objects.get(&runner_lease(name))?;
    let lease = object.lease().filter(|lease| lease.is_live())?;
    Some(RunnerStatusView {
        member: lease.spec.held_by().map(str::to_owned),
        node: progress.and_then(|p| tables.nodes.get(&p.node)).map(|node| node.name.clone()),
        release: progress.map(|p| p.release.clone()),
        term: lease.holding.token,
        since: lease.spec.acquired.map(|at| WallTime(at.0 / 1000)),
    })
}

/// The definition of STATUS, and of an operator's request without a release: that of the best live candidate's release, else
/// the newest.
pub fn status_definition<'a>(tables: &'a Tables, name: &'a str) -> Option<&'a Arc<Definition>> {
    let all = &tables.reconcilers;
    let of_best = best_candidate(tables, name).and_then(|best| all.definition_for(name, best.release.triple));
    of_best.or_else(|| all.definitions_of(name).last())
}

/// Managers participate under their id: adds the name of the node with this id, if any.
fn named(tables: &Tables, blockers: Vec<Blocker>) -> Vec<BlockerView> {
    let with_name = |blocker: Blocker| BlockerView { name: node_name(tables, &blocker.member), blocker };
    blockers.into_iter().map(with_name).collect()
}

fn node_name(tables: &Tables, member: &str) -> Option<Name> {
    let node = tables.nodes.get(&member.parse().ok()?)?;
    Some(node.name.clone())
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
    let Some(definition) = definition else {
        let message = format!(
            "no release has a definition; `muster reconciler apply` adds one, `delete {name}` removes the reconciler"
        );
        return Phase::new(ReconcilerPhase::Blocked, PhaseReason::NoDefinition, message);
    };
    let way = tables.way(definition);
    if let Err(hold) = &way {
        let reason = hold.reason();
        // Finalization need not be offered while it is blocked.
        if reason != HoldReason::ReadyToFinalize || blockers == 0 {
            return Phase::new(reason.phase(), PhaseReason::Held(reason), hold.to_string());
        }
    }
    if eligible(tables, name).is_empty() {
        if let Some(message) = not_selected(tables, name) {
            return Phase::new(ReconcilerPhase::NoCandidate, PhaseReason::NotSelected, message);
        }
        let later = |d: &Definition| if d.options.applies == Applies::OrLater { " or later" } else { "" };
        let of: Vec<String> = all.definitions_of(name).map(|d| format!("{}{}", d.release, later(d))).collect();
        let message = format!(
            "no live node can run it: it has definitions of {}, and a node runs what `muster release declare {} RELEASE` says there, else \
             its own --release; a command runs only on nodes whose configuration lists its program, its user and its files \
             (`[reconcilers]`)",
            of.join(", "),
            definition.scope
        );
        return Phase::new(ReconcilerPhase::NoCandidate, PhaseReason::NoCandidate, message);
    }
    if blockers > 0 {
        let message = format!(
            "serving members incompatible with {}: {blockers}; update or stop them: `muster reconciler blockers {name}`",
            definition.release
        );
        return Phase::new(ReconcilerPhase::Waiting, PhaseReason::Blockers, message);
    }
    let Some(progress) = progress else { return without_runner(tables, name, definition) };
    use ReconcilerPhase as P;
    match progress.phase.known() {
        // The result of an earlier definition says nothing about this one.
        Some(P::Idle) if matches!(way, Ok(GatePath::Reached)) => {
            Phase::new(P::Idle, PhaseReason::Unneeded, String::new())
        }
        Some(P::Idle | P::Paused | P::Blocked) => {
            let message = "its runner has not started on this definition yet".to_owned();
            Phase::new(P::Electing, PhaseReason::TakingUp, message)
        }
        Some(P::Failed) => Phase::new(P::Failed, PhaseReason::PermanentFailure, progress.message.clone()),
        Some(P::Settling) => Phase::new(P::Settling, PhaseReason::Settling, progress.message.clone()),
        Some(P::Waiting) => Phase::reported(P::Waiting, progress),
        // It has not read yet that it may pass the point of no return, or the phase is a newer release's.
        Some(P::Running | P::NoCandidate | P::Electing | P::ReadyToFinalize) | None => {
            Phase::reported(P::Running, progress)
        }
    }
}

/// Candidates named in a sentence.
const MAX_NAMED_CANDIDATES: usize = 4;

/// There are candidates, and their nodes lack labels.
fn not_selected(tables: &Tables, name: &str) -> Option<String> {
    let all = candidates(tables, name);
    let described = |candidate: &CandidateView| {
        let node = candidate.node.and_then(|id| tables.nodes.get(&id));
        let whence = node.map_or_else(|| candidate.member.clone(), |node| node.name.to_string());
        format!("{whence} has no {}", candidate.missing_labels.join(", "))
    };
    let first = all.first()?;
    let named: Vec<String> = all.iter().take(MAX_NAMED_CANDIDATES).map(described).collect();
    let more = all.len().saturating_sub(named.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Some(format!(
        "no node that could run it has the labels of its node selector: {}{more}; `muster node update NODE --label-add {}` takes effect \
         at once",
        named.join("; "),
        first.missing_labels.first().map_or("KEY=VALUE", String::as_str)
    ))
}

/// No candidate has reported as the runner.
fn without_runner(tables: &Tables, name: &str, definition: &Definition) -> Phase {
    let newest = tables.reconcilers.definitions_of(name).last();
    // The newest definition's timing holds for the candidates of all releases.
    let timing = newest.map(|newest| newest.options.timing).unwrap_or_default();
    let hold = timing.hold(DefinitionTiming::DEFAULT_HOLD);
    let pause = timing.resign_pause(DefinitionTiming::DEFAULT_RESIGN_PAUSE);
    let newer = newest
        .filter(|newest| newest.choice == RunnerChoice::Newest && newest.release.triple > definition.release.triple);
    let held = newer.map(|newest| {
        let (newer, ours) = (&newest.release, &definition.release);
        format!(
            "no live node has the newer release {newer}: after the last one has left, those of {ours} wait {hold:?} in case it returns"
        )
    });
    if let Some(failure) = tables.runs.failures.get(name) {
        let LastFailure { node, release, failures, error, .. } = failure.as_ref();
        let whence = tables.nodes.get(node).map_or_else(|| node.to_string(), |node| node.name.to_string());
        // If it is the newer release that has failed, ours waits for its nodes, and a retry shortens no hold.
        let held = held.filter(|_| release.triple > definition.release.triple);
        let next = held.unwrap_or_else(|| {
            format!("each tries again after {pause:?}, `muster reconciler retry {name}` makes them try at once")
        });
        let message = format!(
            "{release} has failed on every candidate that tried, {failures} times in all, last on {whence}: {error}; {next}"
        );
        return Phase::new(ReconcilerPhase::Failed, PhaseReason::CandidatesFailed, message);
    }
    let held = held.map(|held| format!("; {held}")).unwrap_or_default();
    let message = format!("no candidate has taken the runner's lease yet{held}");
    Phase::new(ReconcilerPhase::Electing, PhaseReason::Electing, message)
}

/// Why candidates of another release would run it instead, if so: the plan of this definition would not begin.
fn outranked(tables: &Tables, name: &str, definition: &Definition) -> Option<HoldView> {
    let best = best_candidate(tables, name)?;
    let all = &tables.reconcilers;
    let newest = all.definitions_of(name).last()?;
    if all.definition_for(name, best.release.triple).is_some_and(|theirs| theirs.release == definition.release) {
        return None;
    }
    let hold = newest.options.timing.hold(DefinitionTiming::DEFAULT_HOLD);
    let (theirs, ours) = (&best.release, &definition.release);
    let (comes_first, word) = match newest.choice {
        RunnerChoice::Newest => (theirs.triple > ours.triple, "newest"),
        RunnerChoice::Oldest => (theirs.triple < ours.triple, "oldest"),
    };
    let message = format!(
        "nodes of release {theirs} are candidates, and the {word} release runs it; those of {ours} begin {hold:?} after the last of \
         them has left"
    );
    comes_first.then(|| HoldView { reason: HoldReason::NewerReleasePresent.into(), message })
}

/// Maximum bytes of bodies in one plan; further objects are only named.
const MAX_BODY_BYTES: usize = 256 * 1024;

/// What a definition would do now, and the gate afterwards. `None`: the definition does not exist.
pub fn plan(tables: &Tables, name: &str, release: Option<Triple>) -> Option<PlanView> {
    let all = &tables.reconcilers;
    let definition = match release {
        Some(release) => all.definitions.get(&DefinitionKey { reconciler: name.to_owned(), release })?,
        None => all.definitions_of(name).last()?,
    };
    let way = tables.way(definition);
    let mut blockers = blocking_members(all, definition);
    blockers.truncate(MAX_LISTED_BLOCKERS);
    let waves = Waves::of(definition);
    let numbers = match definition.action {
        Action::Objects(_) => 0..waves.count(),
        Action::Command(_) | Action::Handler | Action::Chain(_) => 0..0,
    };
    let mut bytes_left = MAX_BODY_BYTES;
    let mut objects = Vec::new();
    for write in numbers.flat_map(|nth| waves.drift(all, name, nth)) {
        if !matches!(write, Write::Keep(_)) {
            objects.push(planned(all, &write, &mut bytes_left));
        }
    }
    let next_step = match &definition.action {
        Action::Chain(steps) => steps.get(tables.records.steps_done(name)),
        Action::Command(_) | Action::Objects(_) | Action::Handler => None,
    };
    let command = match &definition.action {
        Action::Command(command) => Some(command.argv.clone()),
        Action::Chain(_) => next_step.map(|step| step.command.argv.clone()),
        Action::Objects(_) | Action::Handler => None,
    };
    let hold = way.as_ref().err().map(HoldView::from).or_else(|| outranked(tables, name, definition));
    let begins = hold.is_none();
    Some(PlanView {
        name: name.to_owned(),
        release: definition.release.clone(),
        path: way.ok().filter(|_| begins).map(Word::from),
        hold,
        objects,
        waits: definition.options.wave_conditions.iter().map(|condition| planned_wait(all, condition)).collect(),
        command,
        step: next_step.map(|step| step.name.clone()),
        candidates: Some(candidates_for(tables, definition)),
        blockers: named(tables, blockers),
        gate: PlannedGateView {
            state: GateState::Done,
            reconciled: definition.release.clone(),
            floor: definition.floor,
            digest: definition.digest.clone(),
        },
    })
}

/// The live candidates that would carry out this definition, if its turn came.
fn candidates_for(tables: &Tables, definition: &Definition) -> usize {
    let (all, name) = (&tables.reconcilers, definition.reconciler.as_str());
    let pinned = all.definitions_of(name).last().and_then(|newest| newest.pinned);
    let is_ours = |candidate: &CandidateView| {
        let theirs = all.definition_for(name, candidate.release.triple);
        theirs.is_some_and(|theirs| theirs.release == definition.release)
            && (pinned.is_none() || candidate.node == pinned)
    };
    eligible(tables, name).iter().filter(|candidate| is_ours(candidate)).count()
}

fn planned_wait(all: &Reconcilers, condition: &WaveCondition) -> PlannedWaitView {
    let WaveCondition { wave, key, path, equals } = condition;
    let unmet = condition.unmet(&all.objects);
    PlannedWaitView {
        wave: *wave,
        kind: key.kind.clone(),
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        path: path.clone(),
        equals: serde_json::from_str(equals).unwrap_or_default(),
        holds: unmet.is_none(),
        message: unmet.map(|unmet| unmet.because.to_string()),
    }
}

/// One write, with the existing object and the resulting one.
fn planned(all: &Reconcilers, write: &Write, bytes_left: &mut usize) -> PlannedObjectView {
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
        let mut labels = labels.clone();
        labels.remove(RECONCILER_LABEL);
        Some(PlannedSideView { body: serde_json::from_str(body).unwrap_or_default(), labels })
    };
    PlannedObjectView {
        op: write.op().to_owned(),
        kind: key.kind.clone(),
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        before: shown(before),
        after: shown(after),
    }
}

/// MEMBER: one start of a member.
pub fn member(tables: &Tables, participant: &Participant) -> ParticipantView {
    let key = &participant.key;
    ParticipantView {
        scope: key.scope.clone(),
        member: key.member.clone(),
        incarnation: key.incarnation.to_string(),
        external: key.is_external(),
        node: participant.node,
        release: participant.release.clone(),
        needs: participant.needs.clone(),
        phase: participant.phase,
        since: participant.since,
        name: node_name(tables, &key.member),
    }
}

/// The members of a scope, or of all scopes; without candidates unless their scope is given.
pub fn members(tables: &Tables, scope: Option<&str>) -> ListView<ParticipantView> {
    let wanted = |p: &&Arc<Participant>| match scope {
        Some(scope) => p.key.scope == scope,
        None => !p.key.scope.starts_with(muster_messages::CANDIDATES_SCOPE),
    };
    let wanted = tables.reconcilers.participants.values().filter(wanted);
    ListView::at(tables.revision, wanted.map(|participant| member(tables, participant)))
}

/// OBJECT.
pub fn object(object: &ManagedObject) -> ObjectView {
    let key = &object.key;
    ObjectView {
        api_version: "muster.dev/v1".to_owned(),
        kind: key.kind.clone(),
        metadata: ObjectMetadataView {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            labels: object.labels.clone(),
            revision: object.revision,
            term: object.term,
        },
        body: serde_json::from_str(&object.body).unwrap_or_default(),
    }
}
