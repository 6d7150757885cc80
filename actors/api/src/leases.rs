//! Leases over the native protocol. The leader answers everything, by its clock, except watches, which any manager
//! serves from its own replica.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_kernel::AskError;
use muster_messages::protocol::{ElectionsMsg, Renewal};
use muster_messages::wire::{LeaseRef, LeaseRequest};
use muster_messages::{
    Change, ClientWrite, Command, ErrorBody, ErrorCode, FencingToken, Guard, GuardScope, GuardView, Lease,
    LeaseDeletedView, LeaseSpec, LeaseView, ListView, MicroTime, Object, ObjectBody, ObjectKey, ObjectMeta, Principal,
    Replica, Revision, SessionId, Tables, Uid,
};
use serde_json::{Value, json};

use crate::core::{check_lease_name, may_access, may_write, on_behalf};
use crate::ports::ManagerPorts;
use crate::reads::{not_leading, to_text};
use crate::service::Asked;
use crate::work::Work;

/// The shortest lease: below it, response times decide who holds it.
const MIN_LEASE_MS: u64 = 100;
/// The longest lease: a day without renewal.
const MAX_LEASE_MS: u64 = 24 * 3600 * 1000;
/// Bytes of a holder's name, which travels with every lease that it holds.
const MAX_HOLDER_BYTES: usize = 256;
/// Leases of one renewal: as many as fit in one frame.
const MAX_RENEWED_LEASES: usize = 1024;

fn key(lease: &LeaseRef) -> ObjectKey {
    ObjectKey::lease(lease.namespace.clone(), lease.name.clone())
}

fn check_duration(ms: u64) -> Result<(), ErrorBody> {
    if (MIN_LEASE_MS..=MAX_LEASE_MS).contains(&ms) {
        return Ok(());
    }
    Err(ErrorBody::invalid(format!("a lease duration must be between {MIN_LEASE_MS} ms and a day, not {ms} ms")))
}

fn check_holder(holder: &str) -> Result<(), ErrorBody> {
    if !holder.is_empty() && holder.len() <= MAX_HOLDER_BYTES && !holder.chars().any(char::is_control) {
        return Ok(());
    }
    Err(ErrorBody::invalid(format!("a holder name must have 1 to {MAX_HOLDER_BYTES} printable bytes")))
}

/// Whether the lease may be created, if it does not exist.
fn check_quota(manager: &ManagerPorts, lease: &LeaseRef) -> Result<(), ErrorBody> {
    // Not borrowed: counting takes long, and the Raft member would wait to publish the next replica.
    let replica = manager.replica.borrow().clone();
    if replica.tables.objects.contains_key(&key(lease)) {
        return Ok(());
    }
    // Not permanent: an existing object may be deleted.
    muster_kubernetes::check_object_quota(&replica.tables, &lease.namespace)
        .map_err(|full| ErrorBody::new(ErrorCode::TooManyRequests, full.message).retry_after(Duration::from_secs(5)))
}

fn no_such(lease: &LeaseRef) -> ErrorBody {
    ErrorBody::new(ErrorCode::NotFound, format!("no such lease: {lease}"))
}

fn unreadable(what: &str) -> ErrorBody {
    ErrorBody::new(ErrorCode::Internal, format!("{what} is not a lease"))
}

/// A request about leases.
pub(crate) struct LeaseRequests<'a> {
    pub work: Work<'a>,
    pub request: &'a LeaseRequest,
}

impl LeaseRequests<'_> {
    /// The leader's part.
    pub async fn lead(&self) -> Result<String, ErrorBody> {
        let Work { manager, asked, .. } = self.work;
        match self.permitted(&self.work.local()) {
            // A new leader may not have applied yet what would permit this node's request.
            Err(_) if matches!(asked.caller, Principal::Node(_)) => {
                let replica = self.work.confirmed().await?;
                self.permitted(&replica)?;
            }
            checked => checked?,
        }
        match self.request {
            LeaseRequest::List { namespace } => self.lease_list(namespace.as_deref()).await,
            LeaseRequest::Get { lease } => {
                let replica = self.work.confirmed().await?;
                self.lease_view(&replica, lease).await
            }
            LeaseRequest::Guards => {
                let replica = self.work.confirmed().await?;
                to_text(&guards(&replica.tables, &asked.caller))
            }
            LeaseRequest::SetGuard { scope, mode } => {
                check_guard_scope(scope)?;
                let command = self.work.command("guard set");
                let change = Change::SetGuard { scope: scope.clone(), mode: *mode };
                self.work.propose(command.change(change)).await?;
                Ok("{}".to_owned())
            }
            LeaseRequest::Create { lease, holder, duration_ms } => {
                holder.as_deref().map_or(Ok(()), check_holder)?;
                duration_ms.map_or(Ok(()), check_duration)?;
                check_quota(manager, lease)?;
                let command = self.command(lease, "lease created");
                let change = Change::CreateObject(Box::new(new_lease(asked, lease, holder.clone(), *duration_ms)));
                let replica = self.work.propose(command.change(change)).await?;
                self.lease_view(&replica, lease).await
            }
            LeaseRequest::Delete { lease } => {
                let replica = self.work.confirmed().await?;
                // A retry gets the first outcome, even if a session has acquired the lease since.
                let is_new = self.work.earlier(&replica.tables).is_none();
                if is_new && held_by_session(&replica.tables, &key(lease)).is_some() {
                    let text = format!(
                        "{lease} is held by a running session: end the session first, or delete the lease with --force, which lets \
                         no other holder acquire it before its duration has passed"
                    );
                    return Err(ErrorBody::new(ErrorCode::Conflict, text));
                }
                let command = self.command(lease, "lease deleted");
                let change = Change::DeleteObject { key: key(lease), force: false };
                self.work.propose(command.change(change)).await.map_err(|error| match error.code {
                    ErrorCode::NotFound => no_such(lease),
                    _ => error,
                })?;
                to_text(&deleted(lease))
            }
            LeaseRequest::DeleteHeld { lease } => self.delete_held(lease).await,
            LeaseRequest::Update { lease, revision, holder, duration_ms } => {
                holder.as_deref().map_or(Ok(()), check_holder)?;
                duration_ms.map_or(Ok(()), check_duration)?;
                self.update_lease(lease, *revision, (holder.as_deref(), *duration_ms)).await
            }
            LeaseRequest::Acquire { lease, holder, session, duration_ms } => {
                check_holder(holder)?;
                check_duration(*duration_ms)?;
                check_quota(manager, lease)?;
                let change = Change::AcquireLease {
                    key: key(lease),
                    holder: holder.clone(),
                    session: *session,
                    duration_ms: *duration_ms,
                    uid: Uid::from_entropy(asked.request_id.0),
                };
                let command = self.command(lease, "lease acquired");
                let replica = self.work.propose(command.change(change)).await?;
                let held = replica.tables.objects.get(&key(lease)).and_then(|object| object.lease());
                if held.is_none_or(|l| l.holding.session != Some(*session) || !l.is_live()) {
                    let text = format!("{lease} was acquired but lost before the request was answered");
                    return Err(ErrorBody::new(ErrorCode::Conflict, text));
                }
                self.lease_view(&replica, lease).await
            }
            LeaseRequest::Release { lease, session, token } => {
                let command = self.command(lease, "lease released");
                let change = Change::ReleaseLease { key: key(lease), session: *session, token: *token };
                let replica = self.work.propose(command.change(change)).await?;
                self.lease_view(&replica, lease).await
            }
            LeaseRequest::Renew { session, held } => self.renew(*session, held).await,
            LeaseRequest::Watch { .. } => Err(ErrorBody::new(ErrorCode::Internal, "a watch does not need the leader")),
        }
    }

    /// Refuses requests that this caller may not make, according to this replica.
    fn permitted(&self, replica: &Replica) -> Result<(), ErrorBody> {
        let (tables, caller) = (&replica.tables, &self.work.asked.caller);
        let granted = &self.work.service.ports.limits.node_namespaces;
        let touch = |namespace: &str| may_access(tables, caller, namespace);
        let write = |namespace: &str| may_write(tables, granted, caller, namespace);
        let own = || on_behalf::lease(tables, caller, self.request);
        match self.request {
            LeaseRequest::List { namespace } => namespace.as_deref().map_or(Ok(()), touch),
            LeaseRequest::Get { lease } | LeaseRequest::Watch { lease, .. } => {
                check_lease_name(lease)?;
                touch(&lease.namespace)?;
                own()
            }
            LeaseRequest::Create { lease, .. }
            | LeaseRequest::Delete { lease }
            | LeaseRequest::DeleteHeld { lease }
            | LeaseRequest::Update { lease, .. }
            | LeaseRequest::Acquire { lease, .. }
            | LeaseRequest::Release { lease, .. } => {
                check_lease_name(lease)?;
                touch(&lease.namespace)?;
                write(&lease.namespace)?;
                own()
            }
            LeaseRequest::Renew { held, .. } if held.len() > MAX_RENEWED_LEASES => {
                Err(ErrorBody::invalid(format!("at most {MAX_RENEWED_LEASES} leases may be renewed in one request")))
            }
            LeaseRequest::Renew { held, .. } => {
                held.iter()
                    .try_for_each(|(lease, _)| touch(&lease.namespace).and_then(|()| write(&lease.namespace)))?;
                own()
            }
            LeaseRequest::Guards | LeaseRequest::SetGuard { .. } => Ok(()),
        }
    }

    fn command(&self, lease: &LeaseRef, what: &str) -> Command {
        self.work.command(&format!("{what}: {lease}"))
    }

    /// Deletes a lease that a session may keep alive. The command under the lease learns of it when the session renews,
    /// and has ended by the time the lease would have expired. Until then, a placeholder lease of the same name keeps
    /// every candidate out: it belongs to no session, so nothing renews it, and no candidate has its holder's name.
    async fn delete_held(&self, lease: &LeaseRef) -> Result<String, ErrorBody> {
        let asked = self.work.asked;
        if !asked.caller.is_operator() {
            return Err(ErrorBody::forbidden("only an operator may delete a lease with --force"));
        }
        let (key, replica) = (key(lease), self.work.confirmed().await?);
        let command = self.command(lease, "lease deleted by force");
        let command = command.change(Change::DeleteObject { key: key.clone(), force: true });
        // A retry deletes nothing more: not the lease of a session that acquired the name since either.
        let is_new = self.work.earlier(&replica.tables).is_none();
        let Some((revision, was)) = held_by_session(&replica.tables, &key).filter(|_| is_new) else {
            let replica = self.work.propose(command).await?;
            return to_text(&self.deleted_by_force(&replica.tables, lease));
        };
        let holder = format!("{} (deleted)", was.spec.held_by().unwrap_or_default());
        let duration_ms = was.spec.duration_ms.unwrap_or(MAX_LEASE_MS);
        let barrier = new_lease(asked, lease, Some(holder.clone()), Some(duration_ms));
        // If it passes to another session meanwhile, that session's duration counts.
        let guard = Guard::ObjectRevision { key, revision };
        let command = command.guard(guard).change(Change::CreateObject(Box::new(barrier)));
        self.work.propose(command).await?;
        let (held_by, available_in_ms) = (Some(holder), Some(duration_ms));
        to_text(&LeaseDeletedView { held_by, available_in_ms, ..deleted(lease) })
    }

    /// The answer to a forced deletion that was applied: with the placeholder, as long as the one that this request left stands. As in
    /// the first answer, it is available after its whole duration at the latest.
    fn deleted_by_force(&self, tables: &Tables, lease: &LeaseRef) -> LeaseDeletedView {
        let uid = Uid::from_entropy(self.work.asked.request_id.0);
        // Any write since, by a candidate or by the clock over all leases, ended it.
        let own = |object: &&Arc<Object>| object.meta.uid == uid && object.meta.created == object.meta.revision;
        let placeholder = tables.objects.get(&key(lease)).filter(own).and_then(|object| object.lease());
        let held_by = placeholder.and_then(|placeholder| placeholder.spec.held_by()).map(str::to_owned);
        let available_in_ms = placeholder.and_then(|placeholder| placeholder.spec.duration_ms);
        LeaseDeletedView { held_by, available_in_ms, ..deleted(lease) }
    }

    /// A lease as in this replica, with the remaining time by the leader's clock.
    async fn lease_view(&self, replica: &Replica, lease: &LeaseRef) -> Result<String, ErrorBody> {
        let key = key(lease);
        let object = replica.tables.objects.get(&key).ok_or_else(|| no_such(lease))?;
        let left = self.remaining(vec![key.clone()]).await;
        let view = LeaseView::of(object, left.get(&key).copied());
        to_text(&view.ok_or_else(|| unreadable(&key.to_string()))?)
    }

    async fn lease_list(&self, namespace: Option<&str>) -> Result<String, ErrorBody> {
        let replica = self.work.confirmed().await?;
        let readable = |object: &&Arc<Object>| {
            object.lease().is_some()
                && namespace.is_none_or(|namespace| object.namespace == namespace)
                && may_access(&replica.tables, &self.work.asked.caller, &object.namespace).is_ok()
        };
        let objects: Vec<&Arc<Object>> = replica.tables.objects.values().filter(readable).collect();
        let left = self.remaining(objects.iter().map(|object| object.key()).collect()).await;
        let items = objects.iter().filter_map(|object| LeaseView::of(object, left.get(&object.key()).copied()));
        to_text(&ListView::at(replica.tables.revision, items))
    }

    /// The remaining time by the leader's clock. None while `elections` starts; a lease can be shown without it.
    async fn remaining(&self, leases: Vec<ObjectKey>) -> BTreeMap<ObjectKey, u64> {
        let Work { manager, asked, .. } = self.work;
        let clock_timeout = asked.left().min(Duration::from_millis(500));
        let make = |reply| ElectionsMsg::Remaining { leases, reply };
        manager.leader.elections.ask(clock_timeout, make).await.unwrap_or_default()
    }

    async fn update_lease(
        &self,
        lease: &LeaseRef,
        revision: Revision,
        (holder, duration_ms): (Option<&str>, Option<u64>),
    ) -> Result<String, ErrorBody> {
        let key = key(lease);
        let current = self.work.local().tables.objects.get(&key).cloned();
        let current = match current {
            Some(object) if object.meta.revision >= revision => object,
            // The replica may be older than what the caller saw on another manager.
            _ => self.work.confirmed().await?.tables.objects.get(&key).cloned().ok_or_else(|| no_such(lease))?,
        };
        let mut new = Object::clone(&current);
        let ObjectBody::Lease(body) = &mut new.body else { return Err(unreadable(&key.to_string())) };
        let command = self.command(lease, "lease written");
        body.spec.renewed = Some(MicroTime::from(command.at));
        body.spec.duration_ms = duration_ms.or(body.spec.duration_ms);
        if let Some(holder) = holder
            && body.spec.held_by() != Some(holder)
        {
            body.spec.holder = Some(holder.to_owned());
            body.spec.acquired = body.spec.renewed;
            body.spec.transitions = Some(body.spec.transitions.unwrap_or(0).saturating_add(1));
        }
        let change = Change::UpdateObject { object: Box::new(new), write: ClientWrite::default() };
        let command = command.guard(Guard::ObjectRevision { key: key.clone(), revision }).change(change);
        let replica = self.work.propose(command).await?;
        let object = replica.tables.objects.get(&key).ok_or_else(|| no_such(lease))?;
        to_text(&LeaseView::of(object, None).ok_or_else(|| unreadable(&key.to_string()))?)
    }

    async fn renew(&self, session: SessionId, held: &[(LeaseRef, FencingToken)]) -> Result<String, ErrorBody> {
        let leases: Vec<(ObjectKey, FencingToken)> = held.iter().map(|(lease, token)| (key(lease), *token)).collect();
        let Work { manager, asked, .. } = self.work;
        let deadline_ms = asked.left_ms();
        let make = |reply| ElectionsMsg::Renew { session, held: leases, deadline_ms, reply };
        let renewed = match manager.leader.elections.ask(asked.left(), make).await {
            Ok(answer) => answer?,
            Err(AskError::Down | AskError::Closed) => return Err(not_leading()),
            Err(error) => return Err(error.into()),
        };
        let items: Vec<Value> = held.iter().zip(renewed).map(|((lease, _), outcome)| renewal(lease, outcome)).collect();
        Ok(json!({ "items": items }).to_string())
    }

    /// Waits for a change of one lease, in this member's own replica.
    pub async fn watch(&self, lease: &LeaseRef, seen: Revision, wait: Duration) -> Result<String, ErrorBody> {
        let Work { manager, asked, .. } = self.work;
        self.permitted(&self.work.local())?;
        let key = key(lease);
        let limit = tokio::time::Instant::now() + wait.min(asked.left());
        let mut news = manager.feed.news_of(key.clone());
        // A member that is ahead of this one may have given the caller `seen`.
        let mut replica = self.work.confirmed().await?;
        let lease_in = |replica: &Replica| replica.tables.objects.get(&key).cloned();
        let before = lease_in(&replica);
        // Further back than this member's history: answer with the replica's current state.
        let mut found = manager.feed.touched_since(&key, seen).unwrap_or(true);
        while !found {
            let Ok(through) = tokio::time::timeout_at(limit, news.changed()).await else { break };
            // The feed is written first, the replica published right after.
            let mut replicas = manager.replica.clone();
            let published = tokio::time::timeout_at(limit, replicas.wait_for(|r| r.tables.revision >= through)).await;
            let Ok(Ok(newer)) = published else { break };
            replica = newer.clone();
            found = match (&before, &lease_in(&replica)) {
                (Some(before), Some(after)) => !Arc::ptr_eq(before, after),
                (before, after) => before.is_some() != after.is_some(),
            };
        }
        let (at, object) = (replica.tables.revision, lease_in(&replica));
        let view = object.and_then(|object| LeaseView::of(&object, None));
        Ok(json!({"revision": at, "lease": view}).to_string())
    }
}

/// The lease, with its revision, if a native session keeps it alive.
fn held_by_session<'a>(tables: &'a Tables, key: &ObjectKey) -> Option<(Revision, &'a Lease)> {
    let object = tables.objects.get(key)?;
    let lease = object.lease().filter(|lease| lease.is_live() && lease.holding.session.is_some())?;
    Some((object.meta.revision, lease))
}

fn deleted(lease: &LeaseRef) -> LeaseDeletedView {
    let LeaseRef { namespace, name } = lease.clone();
    LeaseDeletedView { namespace, name, deleted: true, held_by: None, available_in_ms: None }
}

fn new_lease(asked: &Asked, lease: &LeaseRef, holder: Option<String>, duration_ms: Option<u64>) -> Object {
    let now = holder.is_some().then(|| MicroTime::from(muster_kernel::Clock.wall()));
    let spec = LeaseSpec {
        duration_ms: duration_ms.or(holder.is_some().then_some(15_000)),
        acquired: now,
        renewed: now,
        transitions: Some(0),
        holder,
        ..LeaseSpec::default()
    };
    Object {
        namespace: lease.namespace.clone(),
        name: lease.name.clone(),
        meta: ObjectMeta::fresh(Uid::from_entropy(asked.request_id.0)),
        body: ObjectBody::Lease(Lease { spec, ..Lease::default() }),
    }
}

fn renewal(lease: &LeaseRef, outcome: Renewal) -> Value {
    let (namespace, name) = (&lease.namespace, &lease.name);
    match outcome {
        Renewal::Renewed { expires_in_ms } => {
            json!({"namespace": namespace, "name": name, "renewed": true, "expires_in_ms": expires_in_ms})
        }
        Renewal::Lost { message } => {
            json!({"namespace": namespace, "name": name, "renewed": false, "message": message})
        }
    }
}

/// The guards of the namespaces that the caller may access.
fn guards(tables: &Tables, caller: &Principal) -> ListView<GuardView> {
    let own = |(scope, _): &(&GuardScope, _)| may_access(tables, caller, &scope.namespace).is_ok();
    ListView::of(tables.guards.iter().filter(own).map(|(scope, mode)| {
        let GuardScope { namespace, lease } = scope.clone();
        GuardView { namespace, lease, mode: *mode }
    }))
}

fn check_guard_scope(scope: &GuardScope) -> Result<(), ErrorBody> {
    let name = scope.lease.clone().unwrap_or_else(|| "any".to_owned());
    check_lease_name(&LeaseRef { namespace: scope.namespace.clone(), name })
}

#[cfg(test)]
mod tests {
    use muster_messages::wire::Request;
    use muster_messages::{GuardMode, Holding, Name, User, UserKind, WallTime};

    use super::*;

    #[test]
    fn user_sees_guards_of_its_own_namespaces_only() {
        let mut tables = Tables::default();
        for (namespace, lease) in [("own", None), ("own", Some("l")), ("other", None)] {
            let scope = GuardScope { namespace: namespace.to_owned(), lease: lease.map(str::to_owned) };
            tables.guards.insert(scope, GuardMode::All);
        }
        let name: Name = "ann".parse().unwrap();
        let user = User {
            name: name.clone(),
            kind: UserKind::User,
            namespaces: vec!["own".to_owned()],
            serial: String::new(),
            created_at: WallTime(0),
            not_after: WallTime(0),
            revision: Revision(1),
        };
        tables.users.insert(name.clone(), user);
        let found = |caller: Principal| {
            guards(&tables, &caller).items.into_iter().map(|guard| guard.namespace).collect::<Vec<_>>()
        };
        assert_eq!(found(Principal::User(name)), ["own", "own"]);
        assert_eq!(found(Principal::Operator).len(), 3);
    }

    /// A lease of a session, and what was proposed for a request about it.
    async fn request_on_held_lease(caller: &Principal, request: LeaseRequest) -> (u16, Value, Vec<Change>) {
        let mut tables = crate::tests::tables();
        let object = session_lease("l", 7, Revision(3));
        tables.objects.insert(object.key(), Arc::new(object));
        let world = crate::tests::World::with(tables, |_, _| Some(Ok(())));
        let (status, answer, proposed) = world.native(caller, Request::Lease(request)).await;
        (status.as_u16(), answer, proposed.into_iter().flat_map(|(_, _, changes)| changes).collect())
    }

    #[tokio::test]
    async fn session_lease_is_deleted_only_by_force_and_stays_held() {
        let lease = LeaseRef { namespace: "default".to_owned(), name: "l".to_owned() };
        let (operator, delete) = (Principal::Operator, LeaseRequest::Delete { lease: lease.clone() });
        let (status, answer, proposed) = request_on_held_lease(&operator, delete).await;
        assert_eq!((status, proposed), (409, vec![]), "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("--force"), "{answer}");

        let node = Principal::Node(muster_messages::NodeId::from_entropy(1));
        let (status, _, proposed) =
            request_on_held_lease(&node, LeaseRequest::DeleteHeld { lease: lease.clone() }).await;
        assert_eq!((status, proposed), (403, vec![]), "operators alone");

        let (status, answer, proposed) = request_on_held_lease(&operator, LeaseRequest::DeleteHeld { lease }).await;
        assert_eq!(
            (status, &answer["held_by"], &answer["available_in_ms"]),
            (200, &"h (deleted)".into(), &4_000.into())
        );
        let [Change::DeleteObject { force: true, .. }, Change::CreateObject(barrier)] = proposed.as_slice() else {
            panic!("{proposed:?}");
        };
        let spec = &barrier.lease().expect("a lease").spec;
        assert_eq!(
            (spec.held_by(), spec.duration_ms),
            (Some("h (deleted)"), Some(4_000)),
            "no candidate has this name"
        );
    }

    fn session_lease(name: &str, session: u128, revision: Revision) -> Object {
        let spec = LeaseSpec { holder: Some("h".to_owned()), duration_ms: Some(4_000), ..LeaseSpec::default() };
        let holding = Holding { token: FencingToken(revision.0), session: Some(SessionId(session)), expired: false };
        let meta = ObjectMeta { revision, ..ObjectMeta::fresh(Uid(session)) };
        let body = ObjectBody::Lease(Lease { spec, holding });
        Object { namespace: "default".to_owned(), name: name.to_owned(), meta, body }
    }

    /// Deletes a held lease, lets `since` happen, and repeats the request: both answers, and the lease afterwards.
    async fn deleted_twice(
        request: fn(LeaseRef) -> LeaseRequest,
        since: impl FnOnce(&mut Tables),
    ) -> (Value, Value, Option<Object>) {
        let lease = LeaseRef { namespace: "default".to_owned(), name: "l".to_owned() };
        let mut tables = crate::tests::tables();
        let mut object = session_lease("l", 7, Revision(3));
        if request(lease.clone()) == (LeaseRequest::Delete { lease: lease.clone() }) {
            let ObjectBody::Lease(body) = &mut object.body else { panic!("{object:?}") };
            body.holding.session = None;
        }
        tables.objects.insert(object.key(), Arc::new(object));
        let world = crate::tests::World::with(tables, |tables, command| {
            let at = tables.revision.next();
            Some(muster_store::apply(tables, at, command))
        });
        let ask = || world.native(&Principal::Operator, Request::Lease(request(lease.clone())));
        let (status, first, _) = ask().await;
        assert_eq!(status, 200, "{first}");
        let mut tables = world.published.borrow().tables.clone();
        since(&mut tables);
        world.published.send_replace(crate::tests::leading(tables));
        let (status, again, _) = ask().await;
        assert_eq!(status, 200, "{again}");
        let left = world.published.borrow().tables.objects.get(&key(&lease)).map(|object| Object::clone(object));
        (first, again, left)
    }

    #[tokio::test]
    async fn retried_forced_deletion_names_the_same_holder() {
        let (first, again, _) = deleted_twice(|lease| LeaseRequest::DeleteHeld { lease }, |_| {}).await;
        assert_eq!(first["held_by"], "h (deleted)");
        assert_eq!(again, first);
    }

    #[tokio::test]
    async fn retried_deletion_spares_the_next_holder() {
        for request in [|lease| LeaseRequest::DeleteHeld { lease }, |lease| LeaseRequest::Delete { lease }] {
            let acquired = |tables: &mut Tables| {
                let object = session_lease("l", 8, tables.revision.next());
                tables.revision = tables.revision.next();
                tables.objects.insert(object.key(), Arc::new(object));
            };
            let (_, again, left) = deleted_twice(request, acquired).await;
            assert_eq!((&again["deleted"], again.get("held_by")), (&true.into(), None), "the placeholder is gone");
            assert_eq!(left.expect("the next lease").meta.uid, Uid(8));
        }
    }
}
