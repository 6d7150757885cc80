//! Reconcilers over the native protocol. Reads and long polls are answered by any manager from a confirmed copy; what
//! changes anything is proposed by the leader and judged by the store when it is applied.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use muster_gates::{Write, drift, sealed};
use muster_messages::wire::ReconcilerRequest;
use muster_messages::{
    Change, Definition, DefinitionKey, DesiredObject, ErrorBody, ErrorCode, FencingToken, Guard, LEVEL_RECONCILER,
    Participant, ParticipantKey, ParticipantPhase, Principal, ReconcilerChange, Replica, RequestId, Revision, Tables,
    Triple, runner_lease,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::core::reserved;
use crate::ports::ManagerPorts;
use crate::reads::to_text;
use crate::service::{Asked, Service};
use crate::writes::Proposed;

/// Definitions of one request.
const MOST_DEFINITIONS: usize = 64;
/// Writes of one wave on their way at once.
const AT_ONCE: usize = 32;
/// What follows a change within this time is told with it: a fleet that starts at once wakes its watchers once.
const GATHER: Duration = Duration::from_millis(50);

fn no_such(name: &str) -> ErrorBody {
    let text = format!("no such reconciler: {name}; `muster reconciler list` shows those there are");
    ErrorBody::new(ErrorCode::NotFound, text)
}

fn invalid(text: impl Into<String>) -> ErrorBody {
    ErrorBody::new(ErrorCode::Invalid, text)
}

impl Service {
    /// Reads, and polls that wait for a change.
    pub(crate) async fn read_reconciler(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        request: &ReconcilerRequest,
    ) -> Result<String, ErrorBody> {
        use ReconcilerRequest as R;
        let copy = match request {
            R::Status { seen, wait_ms, .. } | R::Definitions { seen, wait_ms, .. } | R::View { seen, wait_ms, .. } => {
                self.changed(manager, asked, *wait_ms, |tables| tables.reconcilers.changed > *seen).await?
            }
            R::Admission { key, seen, wait_ms } => {
                self.changed(manager, asked, *wait_ms, |tables| concerns(tables, key, *seen)).await?
            }
            _ => self.copy(manager, asked.left()).await?,
        };
        let tables = &copy.tables;
        let answer = match request {
            R::List => muster_gates::statuses(tables),
            R::Status { name, .. } => {
                let mut status = muster_gates::status(tables, name).ok_or_else(|| no_such(name))?;
                status["revision"] = json!(tables.revision);
                status
            }
            R::Plan { name, release } => muster_gates::plan(tables, name, *release).ok_or_else(|| no_such(name))?,
            R::History { name } => muster_gates::history(tables, name).ok_or_else(|| no_such(name))?,
            R::MemberList { scope } => muster_gates::members(tables, scope.as_deref()),
            R::ObjectList { kind, namespace } => {
                let wanted = |object: &&Arc<muster_messages::ManagedObject>| {
                    kind.as_ref().is_none_or(|kind| object.key.kind == *kind)
                        && namespace.as_ref().is_none_or(|namespace| object.key.namespace == *namespace)
                };
                let items: Vec<Value> =
                    tables.reconcilers.objects.values().filter(wanted).map(|o| muster_gates::object(o)).collect();
                json!({"revision": tables.revision, "items": items})
            }
            R::ObjectGet { key } => match tables.reconcilers.objects.get(key) {
                Some(object) => muster_gates::object(object),
                None => return Err(ErrorBody::new(ErrorCode::NotFound, format!("no such object: {key}"))),
            },
            R::Admission { key, .. } => return to_text(&muster_gates::admission(tables, key)),
            R::Definitions { release, .. } => return to_text(&muster_gates::definitions(tables, *release)),
            R::View { name, release, .. } => return to_text(&muster_gates::runner_view(tables, name, *release)),
            other => return Err(ErrorBody::new(ErrorCode::Internal, format!("not a read: {other:?}"))),
        };
        Ok(answer.to_string())
    }

    /// A confirmed copy in which something has changed, or the newest one when the time is over.
    async fn changed(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        wait_ms: u64,
        mut told: impl FnMut(&Tables) -> bool,
    ) -> Result<Arc<Replica>, ErrorBody> {
        let limit = Instant::now() + Duration::from_millis(wait_ms).min(asked.left());
        let copy = self.copy(manager, asked.left()).await?;
        if told(&copy.tables) {
            return Ok(copy);
        }
        let mut copies = manager.replica.clone();
        let waited = tokio::time::timeout_at(limit, copies.wait_for(|copy| told(&copy.tables)));
        let something = waited.await.is_ok_and(|copy| copy.is_ok());
        if something {
            tokio::time::sleep_until(limit.min(Instant::now() + GATHER)).await;
        }
        let newest = manager.replica.borrow().clone();
        Ok(if newest.tables.revision > copy.tables.revision { newest } else { copy })
    }

    /// The leader's part.
    pub(crate) async fn lead_reconciler(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        request: &ReconcilerRequest,
    ) -> Result<String, ErrorBody> {
        use ReconcilerRequest as R;
        reserved::judge(&manager.replica.borrow().tables, &asked.caller, request)?;
        let name_of = |name: &String| name.clone();
        let change = match request {
            R::Apply { definitions, replace } => return self.define(manager, asked, definitions, *replace).await,
            R::Pause { name, paused } => ReconcilerChange::Pause { reconciler: name_of(name), paused: *paused },
            R::Finalize { name } => {
                let digest = self.newest(manager, asked, name).await?.digest.clone();
                ReconcilerChange::Finalize { reconciler: name_of(name), digest }
            }
            R::Retry { name } => {
                let digest = self.newest(manager, asked, name).await?.digest.clone();
                ReconcilerChange::Retry { reconciler: name_of(name), digest: Some(digest) }
            }
            R::Repair { name, epoch } => ReconcilerChange::Repair { reconciler: name_of(name), epoch: *epoch },
            R::ForceFloor { name, floor, dry_run } => {
                return self.force_floor(manager, asked, name, *floor, *dry_run).await;
            }
            R::DeleteGate { name } => ReconcilerChange::DeleteGate { reconciler: name_of(name) },
            R::Delete { name } => ReconcilerChange::Forget { reconciler: name_of(name) },
            R::MemberForget { scope, member } => return self.members(manager, asked, scope, member, true).await,
            R::MemberDrain { scope, member } => return self.members(manager, asked, scope, member, false).await,
            R::ObjectPut { key, labels, body } => {
                let object = DesiredObject { key: key.clone(), labels: labels.clone(), body: body.clone(), wave: 0 };
                muster_gates::sound_object(&object).map_err(invalid)?;
                let copy = self.change(manager, asked, ReconcilerChange::PutObject(Box::new(object))).await?;
                let object = copy.tables.reconcilers.objects.get(key);
                return Ok(object.map_or(Value::Null, |object| muster_gates::object(object)).to_string());
            }
            R::ObjectDelete { key } => ReconcilerChange::DeleteObject(key.clone()),
            R::Announce { participant } => {
                let participant = of_caller(participant, &asked.caller)?;
                let key = participant.key.clone();
                let copy = self.change(manager, asked, ReconcilerChange::Announce(Box::new(participant))).await?;
                return to_text(&muster_gates::admission(&copy.tables, &key));
            }
            R::Admit { key } => return self.admit(manager, asked, key).await,
            R::Leave { key } => {
                let copy = manager.replica.borrow().clone();
                if let Some(participant) = copy.tables.reconcilers.participants.get(key) {
                    of_caller(participant, &asked.caller)?;
                }
                ReconcilerChange::Leave(key.clone())
            }
            R::Step { name, release, term, epoch, step } => {
                let (reconciler, release, term, epoch, step) = (name_of(name), *release, *term, *epoch, *step);
                let change = ReconcilerChange::Step { reconciler, release, term, epoch, step };
                let copy = self.change(manager, asked, change).await?;
                let epoch = copy.tables.reconcilers.gates.get(name).map_or(0, |gate| gate.now.epoch);
                return Ok(json!({"epoch": epoch}).to_string());
            }
            R::Wave { name, release, term, wave } => {
                let key = DefinitionKey { reconciler: name_of(name), release: *release };
                return self.wave(manager, asked, &key, *term, *wave).await;
            }
            R::Progress { progress } => ReconcilerChange::Progress(Box::new(progress.clone())),
            R::RaiseLevel { level, term } => return self.raise_level(manager, asked, *level, *term).await,
            other => return Err(ErrorBody::new(ErrorCode::Internal, format!("not a change: {other:?}"))),
        };
        self.change(manager, asked, change).await?;
        Ok("{}".to_owned())
    }

    /// Proposes one change. Why a gate refuses it is said in the details as well.
    async fn change(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        change: ReconcilerChange,
    ) -> Result<Arc<Replica>, ErrorBody> {
        let command = self.command(asked, "reconciler").change(Change::Reconciler(change));
        match self.try_propose(manager, asked, command).await? {
            Proposed::Applied(_, copy) => Ok(copy),
            Proposed::Refused(refusal) => Err(explained(refusal)),
        }
    }

    /// What the built-in reconciler does. The store judges whether its gate leads there.
    async fn raise_level(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        level: u32,
        term: FencingToken,
    ) -> Result<String, ErrorBody> {
        let in_force = Guard::LeaseToken { key: runner_lease(LEVEL_RECONCILER), token: term };
        let command = self.command(asked, "feature level").guard(in_force).change(Change::SetFeatureLevel(level));
        match self.try_propose(manager, asked, command).await? {
            Proposed::Applied(_, copy) => {
                let level = copy.tables.cluster.as_ref().map(|cluster| cluster.feature_level);
                Ok(json!({"feature_level": level}).to_string())
            }
            Proposed::Refused(refusal) => Err(explained(refusal)),
        }
    }

    async fn define(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        definitions: &[Definition],
        replace: bool,
    ) -> Result<String, ErrorBody> {
        if definitions.is_empty() || definitions.len() > MOST_DEFINITIONS {
            return Err(invalid(format!("1 to {MOST_DEFINITIONS} definitions at once")));
        }
        let sealed: Result<Vec<Definition>, _> = definitions.iter().cloned().map(sealed).collect();
        let sealed = sealed.map_err(|bad| invalid(bad.to_string()))?;
        let before = self.copy(manager, asked.left()).await?;
        let define =
            |d: &Definition| Change::Reconciler(ReconcilerChange::Define { definition: Box::new(d.clone()), replace });
        let command = sealed.iter().map(define).fold(self.command(asked, "defined"), |c, change| c.change(change));
        if let Proposed::Refused(refusal) = self.try_propose(manager, asked, command).await? {
            return Err(explained(refusal));
        }
        let shown: Vec<Value> = (sealed.iter())
            .map(|d| {
                let same =
                    before.tables.reconcilers.definitions.get(&d.key()).is_some_and(|old| old.digest == d.digest);
                json!({"name": d.reconciler, "release": d.release, "digest": d.digest, "changed": !same})
            })
            .collect();
        Ok(json!({"definitions": shown}).to_string())
    }

    async fn newest(&self, manager: &ManagerPorts, asked: &Asked, name: &str) -> Result<Arc<Definition>, ErrorBody> {
        let copy = self.copy(manager, asked.left()).await?;
        let newest = copy.tables.reconcilers.definitions_of(name).last().cloned();
        newest.ok_or_else(|| no_such(name))
    }

    async fn force_floor(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        name: &str,
        floor: Triple,
        dry_run: bool,
    ) -> Result<String, ErrorBody> {
        let copy = self.copy(manager, asked.left()).await?;
        let all = &copy.tables.reconcilers;
        let gate = all.gates.get(name).ok_or_else(|| no_such(name))?;
        let below = |p: &&Arc<Participant>| p.phase == ParticipantPhase::Serving && p.release.triple < floor;
        let excluded: Vec<String> =
            all.participants_of(&gate.scope).filter(below).map(|p| p.key.member.clone()).collect();
        if !dry_run {
            let change = ReconcilerChange::ForceFloor { reconciler: name.to_owned(), floor };
            self.change(manager, asked, change).await?;
        }
        Ok(json!({"name": name, "floor": floor, "excluded": excluded, "changed": !dry_run}).to_string())
    }

    /// All starts of a member: forgotten, or told to stop.
    async fn members(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        scope: &str,
        member: &str,
        forget: bool,
    ) -> Result<String, ErrorBody> {
        let copy = self.copy(manager, asked.left()).await?;
        let all = &copy.tables.reconcilers;
        let keys: Vec<ParticipantKey> =
            all.participants_of(scope).filter(|p| p.key.member == member).map(|p| p.key.clone()).collect();
        if keys.is_empty() {
            let text = format!("no member {member} in scope {scope}; `muster member list` shows those there are");
            return Err(ErrorBody::new(ErrorCode::NotFound, text));
        }
        let change = |key: &ParticipantKey| {
            let key = key.clone();
            Change::Reconciler(if forget { ReconcilerChange::Leave(key) } else { ReconcilerChange::Drain(key) })
        };
        let command = keys.iter().map(change).fold(self.command(asked, "by hand"), |c, change| c.change(change));
        match self.try_propose(manager, asked, command).await? {
            Proposed::Applied(..) => Ok(json!({"scope": scope, "member": member, "starts": keys.len()}).to_string()),
            Proposed::Refused(refusal) => Err(explained(refusal)),
        }
    }

    /// Not admitted is an answer, not an error: whoever waits is told why.
    async fn admit(&self, manager: &ManagerPorts, asked: &Asked, key: &ParticipantKey) -> Result<String, ErrorBody> {
        let command = self.command(asked, "admission").change(Change::Reconciler(ReconcilerChange::Admit(key.clone())));
        let copy = match self.try_propose(manager, asked, command).await? {
            Proposed::Applied(_, copy) => copy,
            Proposed::Refused(muster_messages::CommandRefusal::NotAdmitted(_)) => {
                self.copy(manager, asked.left()).await?
            }
            Proposed::Refused(refusal) => return Err(explained(refusal)),
        };
        to_text(&muster_gates::admission(&copy.tables, key))
    }

    /// One wave: what differs is written, each object by a command of its own, so that one that cannot be written does
    /// not keep the others back.
    async fn wave(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        key: &DefinitionKey,
        term: FencingToken,
        wave: u32,
    ) -> Result<String, ErrorBody> {
        let copy = self.copy(manager, asked.left()).await?;
        let all = &copy.tables.reconcilers;
        let definition = all.definitions.get(key).ok_or_else(|| no_such(&key.reconciler))?;
        let nth = usize::try_from(wave).unwrap_or(usize::MAX);
        let writes = drift(all, definition, nth);
        let unchanged = writes.iter().filter(|write| matches!(write, Write::Keep(_))).count();
        let made = stream::iter(writes.into_iter().enumerate().filter(|(_, write)| !matches!(write, Write::Keep(_))))
            .map(|(at, write)| self.make(manager, asked, key, term, at, write))
            .buffer_unordered(AT_ONCE);
        let (mut created, mut updated, mut deleted, mut errors) = (0u32, 0u32, 0u32, Vec::new());
        let mut made = std::pin::pin!(made);
        while let Some((write, result)) = made.next().await {
            match (result, &write) {
                (Ok(()), Write::Create(_)) => created += 1,
                (Ok(()), Write::Update(_)) => updated += 1,
                (Ok(()), _) => deleted += 1,
                (Err(error), _) if error.code == ErrorCode::Conflict || error.code == ErrorCode::GateClosed => {
                    errors.push(json!({"key": write.key().to_string(), "message": error.message}));
                }
                // Not this object's fault: the whole wave is asked for again.
                (Err(error), _) => return Err(error),
            }
        }
        let answer = json!({
            "created": created, "updated": updated, "deleted": deleted, "unchanged": unchanged, "errors": errors,
        });
        Ok(answer.to_string())
    }

    async fn make(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        key: &DefinitionKey,
        term: FencingToken,
        at: usize,
        write: Write,
    ) -> (Write, Result<(), ErrorBody>) {
        let object = match &write {
            Write::Create(object) | Write::Update(object) => Some(Box::new(object.clone())),
            Write::Taken(taken) => {
                let text = format!("{taken} is there and not of {}; delete it or rename yours", key.reconciler);
                return (write, Err(ErrorBody::new(ErrorCode::Conflict, text)));
            }
            Write::Delete(_) | Write::Keep(_) => None,
        };
        let change = ReconcilerChange::Apply {
            reconciler: key.reconciler.clone(),
            release: key.release,
            term,
            key: write.key().clone(),
            object,
        };
        // Another write is another request.
        let request = RequestId(asked.request_id.0.wrapping_add(1 + at as u128));
        let command = self.command(asked, "applied").with_request(request).change(Change::Reconciler(change));
        let result = match self.try_propose(manager, asked, command).await {
            Ok(Proposed::Applied(..)) => Ok(()),
            Ok(Proposed::Refused(refusal)) => Err(explained(refusal)),
            Err(error) => Err(error),
        };
        (write, result)
    }
}

/// A refusal, with what scripts need of it.
fn explained(refusal: muster_messages::CommandRefusal) -> ErrorBody {
    use muster_messages::CommandRefusal as C;
    let details = match &refusal {
        C::InTheWay { blockers } => Some(json!({"reason": "blockers", "blockers": blockers})),
        C::Held(hold) => Some(json!({"reason": hold.reason()})),
        C::NotAdmitted(why) => Some(json!({"reason": why.reason()})),
        _ => None,
    };
    let error = ErrorBody::from(refusal);
    match details {
        Some(details) => error.with_details(&details),
        None => error,
    }
}

/// A node speaks for those who run on it, an operator for everybody.
fn of_caller(participant: &Participant, caller: &Principal) -> Result<Participant, ErrorBody> {
    let mut participant = participant.clone();
    match caller {
        Principal::Node(id) if participant.node.is_none_or(|node| node == *id) => participant.node = Some(*id),
        Principal::Operator | Principal::Admin(_) => {}
        _ => {
            let text = format!("{caller} does not speak for {}", participant.key);
            return Err(ErrorBody::new(ErrorCode::Forbidden, text));
        }
    }
    Ok(participant)
}

/// Whether something that decides about a participant has changed since.
fn concerns(tables: &Tables, key: &ParticipantKey, seen: Revision) -> bool {
    let all = &tables.reconcilers;
    let Some(participant) = all.participants.get(key) else { return true };
    let needed = participant.needs.keys().filter_map(|name| all.gates.get(name));
    participant.revision > seen || all.gates_of(&key.scope).chain(needed).any(|gate| gate.now.revision > seen)
}
