//! Reconcilers over the native protocol. Any manager answers reads and long polls from a confirmed replica; the leader
//! proposes changes, and the store judges them when they are applied.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use muster_gates::{MAX_STEP_NAME_BYTES, ObjectFilter, Waves, Write, drift, sealed};
use muster_messages::wire::ReconcilerRequest;
use muster_messages::{
    AppliedDefinitionView, AppliedView, Change, Command, CommandRefusal, Definition, DefinitionKey, DefinitionView,
    DesiredObject, Details, ErrorBody, ErrorCode, FencingToken, ForcedFloorView, Gate, Guard, LEVEL_RECONCILER,
    ListView, Participant, ParticipantKey, ParticipantPhase, PlanView, Principal, Progress, ReconcilerChange,
    Reconcilers, Replica, RequestId, Revision, RunRecord, SessionId, Tables, Triple, detail, is_dns_label,
    runner_lease,
};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::core::{check_definitions, check_scope, on_behalf, reserved};
use crate::reads::to_text;
use crate::work::{Proposed, Work};

mod dependencies;
mod external;
mod objects;

/// The length of a SHA-256 in hexadecimal.
const DIGEST_CHARS: usize = 64;
/// Definitions of one request.
const MAX_DEFINITIONS: usize = 64;
/// Writes of one wave in flight.
const MAX_CONCURRENT_WRITES: usize = 32;
/// Objects named among those that could not be written.
const MAX_NAMED_ERRORS: usize = 32;
/// Changes within this time after a first one are reported with it: a fleet that starts at once wakes its watchers
/// once.
const CHANGE_GATHER_TIME: Duration = Duration::from_millis(50);

pub(crate) fn no_such(name: &str) -> ErrorBody {
    let text = format!("no such reconciler: {name}; `muster reconciler list` lists the existing ones");
    ErrorBody::new(ErrorCode::NotFound, text)
}

/// No definition of that release exists; perhaps no reconciler either.
fn no_definition(all: &Reconcilers, name: &str, release: Option<Triple>) -> ErrorBody {
    let known: Vec<String> = all.definitions_of(name).map(|definition| definition.release.to_string()).collect();
    match release.filter(|_| !known.is_empty()) {
        Some(release) => {
            let text = format!("{name} has no definition of {release}; it has definitions of {}", known.join(", "));
            ErrorBody::new(ErrorCode::NotFound, text)
        }
        None => no_such(name),
    }
}

/// No gate has this name; perhaps no reconciler either.
fn no_gate(all: &Reconcilers, name: &str) -> ErrorBody {
    if all.definitions_of(name).next().is_none() {
        return no_such(name);
    }
    let text =
        format!("{name} has no gate: nothing has been applied yet; `muster reconciler status {name}` shows the reason");
    ErrorBody::new(ErrorCode::NotFound, text)
}

/// Every reader of a plan sees the program of its command. Operators also see its arguments and environment.
fn hide_arguments(plan: &mut PlanView) {
    if let Some(arguments) = plan.command.as_mut().filter(|arguments| arguments.len() > 1) {
        arguments.truncate(1);
        arguments.push("(arguments: shown to operators)".to_owned());
    }
}

fn named(definition: &Definition) -> DefinitionView {
    let Definition { reconciler, release, digest, .. } = definition;
    DefinitionView { name: reconciler.clone(), release: release.clone(), digest: digest.clone() }
}

/// A request about reconcilers.
pub(crate) struct ReconcilerRequests<'a> {
    pub work: Work<'a>,
    pub request: &'a ReconcilerRequest,
}

impl ReconcilerRequests<'_> {
    /// Reads, and polls that wait for a change.
    pub async fn read(&self) -> Result<String, ErrorBody> {
        use ReconcilerRequest as R;
        let caller = &self.work.asked.caller;
        let replica = match self.request {
            R::Definitions { seen, wait_ms, .. } => {
                self.changed(*wait_ms, |tables| tables.reconcilers.changed > *seen).await?
            }
            R::View { name, seen, wait_ms, .. } => {
                // A runner waits for a view that is not older than its term.
                let lease = runner_lease(name);
                let term =
                    |tables: &Tables| tables.objects.get(&lease).map_or(Revision(0), |object| object.meta.revision);
                let newest = |tables: &Tables| {
                    let selection = muster_gates::selection_changed(tables, name);
                    tables.reconcilers.changed.max(term(tables)).max(selection)
                };
                // The lease is an object, which the cluster's replica would show later.
                let replicas = self.work.manager.replica.clone();
                self.changed_in(replicas, *wait_ms, |tables| newest(tables) > *seen).await?
            }
            R::Status { seen, wait_ms, .. } => {
                let newest = |tables: &Tables| tables.reconcilers.changed.max(tables.reconcilers.progressed);
                self.changed(*wait_ms, |tables| newest(tables) > *seen).await?
            }
            R::Admission { key, seen, wait_ms } => {
                self.changed(*wait_ms, |tables| concerns(tables, key, *seen)).await?
            }
            R::ObjectChanges { kind, namespace, seen, wait_ms } => {
                let filter = ObjectFilter { kind: kind.as_deref(), namespace: namespace.as_deref() };
                return self.object_changes(filter, *seen, *wait_ms).await;
            }
            _ => self.work.confirmed().await?,
        };
        let (tables, _turn) = (&replica.tables, self.work.service.builders.turn().await);
        match self.request {
            R::List => to_text(&muster_gates::statuses(tables)),
            R::Status { name, .. } => to_text(&muster_gates::status(tables, name).ok_or_else(|| no_such(name))?),
            R::Plan { name, release } => {
                let mut plan = muster_gates::plan(tables, name, *release)
                    .ok_or_else(|| no_definition(&tables.reconcilers, name, *release))?;
                if !caller.is_operator() {
                    hide_arguments(&mut plan);
                }
                to_text(&plan)
            }
            R::History { name } => {
                to_text(&muster_gates::history(tables, name).ok_or_else(|| no_gate(&tables.reconcilers, name))?)
            }
            R::Runs { name } => to_text(&muster_gates::runs(tables, name).ok_or_else(|| no_such(name))?),
            R::MemberList { scope } => to_text(&muster_gates::members(tables, scope.as_deref())),
            R::ObjectList { kind, namespace } => {
                let wanted = |object: &&Arc<muster_messages::ManagedObject>| {
                    kind.as_ref().is_none_or(|kind| object.key.kind == *kind)
                        && namespace.as_ref().is_none_or(|namespace| object.key.namespace == *namespace)
                };
                let items = tables.reconcilers.objects.values().filter(wanted).map(|o| muster_gates::object(o));
                to_text(&ListView::at(tables.revision, items))
            }
            R::ObjectGet { key } => match tables.reconcilers.objects.get(key) {
                Some(object) => to_text(&muster_gates::object(object)),
                None => Err(ErrorBody::new(ErrorCode::NotFound, format!("no such object: {key}"))),
            },
            R::Admission { key, .. } => to_text(&muster_gates::admission(tables, key)),
            R::Definitions { release, .. } => to_text(&muster_gates::definitions(tables, *release)),
            R::View { name, release, .. } => {
                let mut view = muster_gates::runner_view(tables, name, *release);
                if !on_behalf::is_runner(tables, caller, name)
                    && let Some(definition) = &mut view.definition
                {
                    definition.action.redact();
                }
                to_text(&view)
            }
            other => Err(ErrorBody::new(ErrorCode::Internal, format!("not a read: {other:?}"))),
        }
    }

    /// A confirmed replica in which something has changed, or the newest one at the end of the wait.
    async fn changed(&self, wait_ms: u64, has_news: impl FnMut(&Tables) -> bool) -> Result<Arc<Replica>, ErrorBody> {
        self.changed_in(self.work.manager.cluster_replica.clone(), wait_ms, has_news).await
    }

    async fn changed_in(
        &self,
        mut replicas: watch::Receiver<Arc<Replica>>,
        wait_ms: u64,
        mut has_news: impl FnMut(&Tables) -> bool,
    ) -> Result<Arc<Replica>, ErrorBody> {
        let Work { service, asked, .. } = self.work;
        let limit = Instant::now() + Duration::from_millis(wait_ms).min(asked.left());
        // A waiting request holds a permit for long, so each caller has a limited share of them.
        let _permit = match wait_ms {
            0 => None,
            _ => Some(service.watch_permit(&asked.caller).ok_or_else(|| {
                ErrorBody::new(
                    ErrorCode::TooManyRequests,
                    "per-client limit of concurrent watches reached; retry later",
                )
                .retry_after(CHANGE_GATHER_TIME)
            })?),
        };
        let replica = self.work.confirmed().await?;
        if has_news(&replica.tables) {
            return Ok(replica);
        }
        let something = tokio::time::timeout_at(limit, news_of(&mut replicas, has_news)).await;
        if something.is_ok_and(|found| found) {
            tokio::time::sleep_until(limit.min(Instant::now() + CHANGE_GATHER_TIME)).await;
        }
        let newest = self.work.local();
        Ok(if newest.tables.revision > replica.tables.revision { newest } else { replica })
    }

    /// The leader's part.
    pub async fn lead(&self) -> Result<String, ErrorBody> {
        use ReconcilerRequest as R;
        let (known, caller) = (self.work.local(), &self.work.asked.caller);
        reserved::check(&known.tables, caller, self.request)?;
        let name_of = |name: &String| name.clone();
        let change = match self.request {
            R::Apply { definitions, replace } => return self.define(definitions, *replace).await,
            R::Pause { name, paused } => ReconcilerChange::Pause { reconciler: name_of(name), paused: *paused },
            R::Finalize { name, release } => {
                let referenced_definition = self.referenced_definition(name, *release).await?;
                let (reconciler, digest) = (name_of(name), referenced_definition.digest.clone());
                self.change(ReconcilerChange::Finalize { reconciler, digest })
                    .await
                    .map_err(|error| unfinalized(name, error))?;
                return to_text(&named(&referenced_definition));
            }
            R::Retry { name, release } => {
                let referenced_definition = self.referenced_definition(name, *release).await?;
                let (reconciler, digest) = (name_of(name), Some(referenced_definition.digest.clone()));
                self.change(ReconcilerChange::Retry { reconciler, digest }).await?;
                return to_text(&named(&referenced_definition));
            }
            R::Repair { name, epoch } => ReconcilerChange::Repair { reconciler: name_of(name), epoch: *epoch },
            R::ForceFloor { name, floor, dry_run } => {
                return self.force_floor(name, *floor, *dry_run).await;
            }
            R::DeleteGate { name } => ReconcilerChange::DeleteGate { reconciler: name_of(name) },
            R::Delete { name } => ReconcilerChange::Forget { reconciler: name_of(name) },
            R::MemberAnnounce { scope, member, release, needs, allow_undefined_scope } => {
                let key = ParticipantKey { scope: scope.clone(), member: member.clone(), incarnation: SessionId(0) };
                return self.announce_external(key, *release, needs.clone(), *allow_undefined_scope).await;
            }
            R::MemberForget { scope, member } => return self.members(scope, member, true).await,
            R::MemberDrain { scope, member } => return self.members(scope, member, false).await,
            R::ObjectPut { key, labels, body } => {
                let object = DesiredObject { key: key.clone(), labels: labels.clone(), body: body.clone(), wave: 0 };
                muster_gates::sound_object(&object).map_err(ErrorBody::invalid)?;
                let replica = self.change(ReconcilerChange::PutObject(Box::new(object))).await?;
                let object = replica.tables.reconcilers.objects.get(key);
                return to_text(&object.map(|object| muster_gates::object(object)));
            }
            R::ObjectDelete { key } => ReconcilerChange::DeleteObject(key.clone()),
            R::Announce { participant } => {
                let participant = on_behalf::announced(participant.clone(), caller)?;
                check_scope(&known.tables.reconcilers, &participant)?;
                let key = participant.key.clone();
                let replica = self.change(ReconcilerChange::Announce(Box::new(participant))).await?;
                return to_text(&muster_gates::admission(&replica.tables, &key));
            }
            R::Admit { key } => {
                let tables = &self.work.confirmed().await?.tables;
                on_behalf::for_participant(tables, caller, key)?;
                // What it needs may have been defined, in another scope, since it was announced.
                let announced = tables.reconcilers.participants.get(key);
                announced.map_or(Ok(()), |participant| check_scope(&tables.reconcilers, participant))?;
                return self.admit(key).await;
            }
            R::Leave { key } => {
                on_behalf::for_participant(&self.work.confirmed().await?.tables, caller, key)?;
                ReconcilerChange::Leave(key.clone())
            }
            R::Step { name, release, digest, term, epoch, step } => {
                check_run_name(name, digest)?;
                on_behalf::for_runner(&known.tables, caller, name, *term)?;
                let (reconciler, release, digest) = (name_of(name), *release, digest.clone());
                let (term, epoch, step) = (*term, *epoch, *step);
                let change = ReconcilerChange::Step { reconciler, release, digest, term, epoch, step };
                let replica = self.change(change).await?;
                let (epoch, revision) = (replica.tables.reconcilers.epoch_of(name), replica.tables.revision);
                return Ok(json!({"epoch": epoch, "revision": revision}).to_string());
            }
            R::Wave { name, release, digest, term, wave } => {
                check_run_name(name, digest)?;
                on_behalf::for_runner(&known.tables, caller, name, *term)?;
                let key = DefinitionKey { reconciler: name_of(name), release: *release };
                return self.wave(&key, (digest, *term), *wave).await;
            }
            R::Progress { progress } => {
                on_behalf::for_runner(&known.tables, caller, &progress.reconciler, progress.term)?;
                if let Some(fault) = muster_gates::fault_of_progress(progress) {
                    return Err(ErrorBody::invalid(fault));
                }
                let node = if let Principal::Node(id) = *caller { id } else { progress.node };
                ReconcilerChange::Progress(Box::new(Progress { node, ..progress.clone() }))
            }
            R::StepDone { name, release, digest, defined, term, step } => {
                check_run_name(name, digest)?;
                if step.len() > MAX_STEP_NAME_BYTES {
                    return Err(ErrorBody::invalid(format!(
                        "the name of a step has {MAX_STEP_NAME_BYTES} bytes at most"
                    )));
                }
                on_behalf::for_runner(&known.tables, caller, name, *term)?;
                let (reconciler, release, digest) = (name_of(name), *release, digest.clone());
                let (defined, term, step) = (*defined, *term, step.clone());
                let change = ReconcilerChange::StepDone { reconciler, release, digest, defined, term, step };
                let replica = self.change(change).await?;
                return Ok(json!({"revision": replica.tables.revision}).to_string());
            }
            R::RecordRun { record } => {
                on_behalf::for_runner(&known.tables, caller, &record.reconciler, record.term)?;
                if let Some(fault) = muster_gates::fault_of_run(record) {
                    return Err(ErrorBody::invalid(fault));
                }
                let node = if let Principal::Node(id) = *caller { id } else { record.node };
                ReconcilerChange::RecordRun(Box::new(RunRecord { node, ..(**record).clone() }.truncated()))
            }
            R::RaiseLevel { level, term } => return self.raise_level(*level, *term).await,
            other => return Err(ErrorBody::new(ErrorCode::Internal, format!("not a change: {other:?}"))),
        };
        self.change(change).await?;
        Ok("{}".to_owned())
    }

    /// Proposes one change. The details also state why a gate refuses it.
    async fn change(&self, change: ReconcilerChange) -> Result<Arc<Replica>, ErrorBody> {
        self.propose(self.work.command("reconciler").change(Change::Reconciler(change))).await
    }

    async fn propose(&self, command: Command) -> Result<Arc<Replica>, ErrorBody> {
        match self.work.try_propose(command).await? {
            Proposed::Applied(_, replica) => Ok(replica),
            Proposed::Refused(refusal) => Err(explained(refusal)),
        }
    }

    /// The step of the built-in reconciler. The store judges whether its gate permits it.
    async fn raise_level(&self, level: u32, term: FencingToken) -> Result<String, ErrorBody> {
        let in_force = Guard::LeaseToken { key: runner_lease(LEVEL_RECONCILER), token: term };
        let command = self.work.command("feature level").guard(in_force).change(Change::SetFeatureLevel(level));
        let replica = self.propose(command).await?;
        let level = replica.tables.cluster.as_ref().map(|cluster| cluster.feature_level);
        Ok(json!({"feature_level": level}).to_string())
    }

    async fn define(&self, definitions: &[Definition], replace: bool) -> Result<String, ErrorBody> {
        if definitions.is_empty() || definitions.len() > MAX_DEFINITIONS {
            return Err(ErrorBody::invalid(format!("a request must contain 1 to {MAX_DEFINITIONS} definitions")));
        }
        let sealed: Result<Vec<Definition>, _> = definitions.iter().cloned().map(sealed).collect();
        let sealed = sealed.map_err(|bad| ErrorBody::invalid(bad.to_string()))?;
        let before = self.work.confirmed().await?;
        check_definitions(&before.tables.reconcilers, &sealed)?;
        dependencies::check_dependencies(&before.tables.reconcilers, &sealed)?;
        let define =
            |d: &Definition| Change::Reconciler(ReconcilerChange::Define { definition: Box::new(d.clone()), replace });
        let command = sealed.iter().map(define).fold(self.work.command("defined"), |c, change| c.change(change));
        match self.work.try_propose(command).await? {
            Proposed::Applied(..) => {}
            Proposed::Refused(refusal @ CommandRefusal::Exists { .. }) => return Err(with_replace(refusal)),
            Proposed::Refused(refusal) => return Err(explained(refusal)),
        }
        let shown = |d: &Definition| {
            let same = before.tables.reconcilers.definitions.get(&d.key()).is_some_and(|old| old.digest == d.digest);
            AppliedDefinitionView { definition: named(d), changed: !same }
        };
        to_text(&AppliedView { definitions: sealed.iter().map(shown).collect() })
    }

    /// The definition that an operator refers to.
    async fn referenced_definition(&self, name: &str, release: Option<Triple>) -> Result<Arc<Definition>, ErrorBody> {
        let replica = self.work.confirmed().await?;
        let Some(release) = release else {
            return muster_gates::status_definition(&replica.tables, name).cloned().ok_or_else(|| no_such(name));
        };
        let key = DefinitionKey { reconciler: name.to_owned(), release };
        let all = &replica.tables.reconcilers;
        all.definitions.get(&key).cloned().ok_or_else(|| no_definition(all, name, Some(release)))
    }

    async fn force_floor(&self, name: &str, floor: Triple, dry_run: bool) -> Result<String, ErrorBody> {
        let replica = self.work.confirmed().await?;
        let all = &replica.tables.reconcilers;
        let gate = all.gates.get(name).ok_or_else(|| no_gate(all, name))?;
        let mut floor = floor.max(gate.least_floor());
        let mut then = Gate::clone(gate);
        then.now.floor = floor;
        let out = |p: &&Arc<Participant>| p.phase == ParticipantPhase::Serving && !then.admits(p);
        let excluded: Vec<String> =
            all.participants_of(&gate.scope).filter(out).map(|p| p.key.member.clone()).collect();
        if !dry_run {
            let change = ReconcilerChange::ForceFloor { reconciler: name.to_owned(), floor };
            let replica = self.change(change).await?;
            floor = replica.tables.reconcilers.gates.get(name).map_or(floor, |gate| gate.now.floor);
        }
        to_text(&ForcedFloorView { name: name.to_owned(), floor, excluded, changed: !dry_run })
    }

    /// Forgets all starts of a member, or requests them to stop.
    async fn members(&self, scope: &str, member: &str, forget: bool) -> Result<String, ErrorBody> {
        let replica = self.work.confirmed().await?;
        let all = &replica.tables.reconcilers;
        let keys: Vec<ParticipantKey> =
            all.participants_of(scope).filter(|p| p.key.member == member).map(|p| p.key.clone()).collect();
        // A retry of what was done before gets the first outcome.
        let asked = self.work.asked;
        if keys.is_empty() && replica.tables.outcome_of(&asked.caller, asked.request_id).is_none() {
            let text = format!("no member {member} in scope {scope}; `muster member list` lists the existing ones");
            return Err(ErrorBody::new(ErrorCode::NotFound, text));
        }
        let change = |key: &ParticipantKey| {
            let key = key.clone();
            Change::Reconciler(if forget { ReconcilerChange::Leave(key) } else { ReconcilerChange::Drain(key) })
        };
        let command = keys.iter().map(change).fold(self.work.command("by hand"), |c, change| c.change(change));
        self.propose(command).await?;
        Ok(json!({"scope": scope, "member": member, "starts": keys.len()}).to_string())
    }

    /// A denied admission is an answer rather than an error: the waiting participant gets the reason.
    async fn admit(&self, key: &ParticipantKey) -> Result<String, ErrorBody> {
        let command = self.work.command("admission").change(Change::Reconciler(ReconcilerChange::Admit(key.clone())));
        let replica = match self.work.try_propose(command).await? {
            Proposed::Applied(_, replica) => replica,
            Proposed::Refused(CommandRefusal::NotAdmitted(_)) => self.work.confirmed().await?,
            Proposed::Refused(refusal) => return Err(explained(refusal)),
        };
        to_text(&muster_gates::admission(&replica.tables, key))
    }

    /// One wave: writes what differs, each object by a command of its own, so that one that cannot be written does not
    /// hold up the others.
    async fn wave(
        &self,
        key: &DefinitionKey,
        (digest, term): (&str, FencingToken),
        wave: u32,
    ) -> Result<String, ErrorBody> {
        let replica = self.work.confirmed().await?;
        let all = &replica.tables.reconcilers;
        let definition = all.definitions.get(key).ok_or_else(|| no_such(&key.reconciler))?;
        if definition.digest != digest {
            let text = format!("the definition of {} {} has been replaced", key.reconciler, key.release);
            return Err(ErrorBody::new(ErrorCode::Conflict, text));
        }
        let nth = usize::try_from(wave).unwrap_or(usize::MAX);
        if let Some(unmet) = Waves::of(definition).unmet(all, nth) {
            let answer = json!({
                "created": 0, "updated": 0, "deleted": 0, "unchanged": 0, "errors": [], "errors_in_all": 0,
                "waiting": unmet.to_string(),
            });
            return Ok(answer.to_string());
        }
        let writes = drift(all, definition, nth);
        let unchanged = writes.iter().filter(|write| matches!(write, Write::Keep(_))).count();
        let made = stream::iter(writes.into_iter().filter(|write| !matches!(write, Write::Keep(_))))
            .map(|write| self.make(key, (digest, term), write))
            .buffer_unordered(MAX_CONCURRENT_WRITES);
        let (mut created, mut updated, mut deleted, mut errors) = (0u32, 0u32, 0u32, Vec::new());
        let mut errors_in_all = 0u32;
        let mut made = std::pin::pin!(made);
        while let Some((write, result)) = made.next().await {
            match (result, &write) {
                (Ok(()), Write::Create(_)) => created += 1,
                (Ok(()), Write::Update(_)) => updated += 1,
                (Ok(()), _) => deleted += 1,
                (Err(Failed::Object(message)), _) => {
                    errors_in_all += 1;
                    if errors.len() < MAX_NAMED_ERRORS {
                        errors.push(json!({"key": write.key().to_string(), "message": message}));
                    }
                }
                // Not this object's fault; the other objects would fail alike.
                (Err(Failed::Wave(error)), _) => return Err(error),
            }
        }
        let answer = json!({
            "created": created, "updated": updated, "deleted": deleted, "unchanged": unchanged, "errors": errors,
            "errors_in_all": errors_in_all,
        });
        Ok(answer.to_string())
    }

    async fn make(
        &self,
        key: &DefinitionKey,
        (digest, term): (&str, FencingToken),
        write: Write,
    ) -> (Write, Result<(), Failed>) {
        let object = match &write {
            Write::Create(object) | Write::Update(object) => Some(Box::new(object.clone())),
            Write::Taken(taken) => {
                let text =
                    format!("{taken} exists and does not belong to {}; delete it or rename yours", key.reconciler);
                return (write, Err(Failed::Object(text)));
            }
            Write::Delete(_) | Write::Keep(_) => None,
        };
        let change = ReconcilerChange::Apply {
            reconciler: key.reconciler.clone(),
            release: key.release,
            digest: digest.to_owned(),
            term,
            key: write.key().clone(),
            object,
        };
        // A new request id each time: a repeated wave has other writes at the same positions.
        let request = RequestId::fresh(muster_kernel::Clock.wall(), rand::random());
        let command = self.work.command("applied").with_request(request).change(Change::Reconciler(change));
        let result = match self.work.try_propose(command).await {
            Ok(Proposed::Applied(..)) => Ok(()),
            Ok(Proposed::Refused(refusal @ CommandRefusal::Exists { .. })) => Err(Failed::Object(refusal.to_string())),
            Ok(Proposed::Refused(refusal)) => Err(Failed::Wave(explained(refusal))),
            Err(error) => Err(Failed::Wave(error)),
        };
        (write, result)
    }
}

/// Says what would help, if members that serve are the reason.
fn unfinalized(name: &str, mut error: ErrorBody) -> ErrorBody {
    if error.code == ErrorCode::GateClosed {
        error.message += &format!(
            "; update or stop them first: `muster reconciler blockers {name}` lists them. A finalization must not pass the point of no \
             return just because a member ends"
        );
    }
    error
}

/// Another definition of a name and release exists.
fn with_replace(refusal: CommandRefusal) -> ErrorBody {
    let mut error = ErrorBody::from(refusal);
    error.message += "; a changed definition needs --replace (`?replace=true`), and is applied after `muster reconciler retry`, or as \
                      another release";
    error
}

/// Why a write failed.
enum Failed {
    /// The object itself is at fault.
    Object(String),
    Wave(ErrorBody),
}

/// Refusals repeat the names that a runner sends, and are remembered: no more of them than a name and a digest.
fn check_run_name(name: &str, digest: &str) -> Result<(), ErrorBody> {
    if is_dns_label(name) && digest.len() == DIGEST_CHARS && digest.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(());
    }
    Err(ErrorBody::invalid("a run must be named by its reconciler and the SHA-256 of its definition"))
}

/// A refusal, with the details that scripts need.
fn explained(refusal: CommandRefusal) -> ErrorBody {
    use CommandRefusal as C;
    let details = match &refusal {
        C::BlockedByMembers { blockers, in_all } => {
            let details = Details::default().with(detail::BLOCKERS, blockers).with(detail::BLOCKERS_IN_ALL, in_all);
            Some(details.with(detail::GATE_REASON, &detail::GateReason::Blockers.into()))
        }
        C::Held(hold) => Some(Details::default().with(detail::HOLD_REASON, &hold.reason().into())),
        C::NotAdmitted(why) => Some(Details::default().with(detail::ADMISSION_REASON, &why.reason().into())),
        _ => None,
    };
    let error = ErrorBody::from(refusal);
    match details {
        Some(details) => error.with_details(&details),
        None => error,
    }
}

/// Waits for a replica with news. False: there will be none. It looks through a replica of its own: inside of `wait_for`, the raft member
/// would have to wait until this is done before it could publish the next one.
async fn news_of(replicas: &mut watch::Receiver<Arc<Replica>>, mut has_news: impl FnMut(&Tables) -> bool) -> bool {
    loop {
        let replica = Arc::clone(&replicas.borrow_and_update());
        if has_news(&replica.tables) {
            return true;
        }
        drop(replica);
        if replicas.changed().await.is_err() {
            return false;
        }
    }
}

/// Whether something that affects a participant's admission has changed since.
fn concerns(tables: &Tables, key: &ParticipantKey, seen: Revision) -> bool {
    let all = &tables.reconcilers;
    let Some(participant) = all.participants.get(key) else { return true };
    let needed = participant.needs.keys().filter_map(|name| all.gates.get(name));
    participant.revision > seen || all.gates_of(&key.scope).chain(needed).any(|gate| gate.now.revision > seen)
}

#[cfg(test)]
#[path = "reconcilers_tests.rs"]
mod tests;
