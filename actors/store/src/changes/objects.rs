//! Changes of objects, mainly leases.
//!
//! Invariants  FENCE-1  a lease's token grows with every change of its holder, and no token is ever used again.
//!             FENCE-2  a held lease has a token.
//!             HELD-1   a lease that a native session keeps alive passes to no other holder.
//! Why the token is the revision: revisions only grow, cluster-wide, so nothing has to be stored about deleted leases.

use muster_messages::{
    AccessToken, ClientWrite, FencingToken, GuardMode, GuardScope, Holding, IDENTITY_LEVEL, Lease, LeaseSpec,
    MEMBERS_NAMESPACE, MicroTime, Object, ObjectBody, ObjectKey, ObjectMeta, RUNNERS_NAMESPACE, SessionId, TokenRights,
    Uid, UserKind, in_short,
};

use super::*;
use crate::guards::{MAX_NAME_CHARS, lease_of, object};
use crate::recovery::{UNKNOWN_HOLDER, recovered_at};

pub(super) fn create(tables: &mut Tables, stamp: &Stamp<'_>, object: &Object) -> Result<(), CommandRefusal> {
    let key = object.key();
    absent("object", &key, tables.objects.contains_key(&key))?;
    let mut object = object.clone();
    object.meta = ObjectMeta { created_at: stamp.wall, created: stamp.at, revision: stamp.at, ..object.meta };
    if let ObjectBody::Lease(lease) = &mut object.body {
        lease.holding = Holding::default();
        if lease.spec.held_by().is_some() {
            not_held_before_recovery(tables, stamp, &key, lease.spec.duration_ms)?;
            lease.holding.token = FencingToken(stamp.at.0);
            record_holder_change(tables, stamp, &key, None, lease);
        }
    }
    tables.objects.insert(key, Arc::new(object));
    Ok(())
}

pub(super) fn update(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    new: &Object,
    write: &ClientWrite,
) -> Result<(), CommandRefusal> {
    let key = new.key();
    let old = object(tables, &key)?.clone();
    let mut body = new.body.clone();
    if let (Some(was), ObjectBody::Lease(lease)) = (old.lease(), &mut body) {
        allowed(tables, &key, (&old.meta, was), &lease.spec, write)?;
        if was.spec.held_by().is_none() && lease.spec.held_by().is_some() {
            not_held_before_recovery(tables, stamp, &key, lease.spec.duration_ms)?;
        }
        if was.is_live() && was.holding.session.is_some() {
            // The holder relies on the duration. If it were shortened, another could acquire the lease while the holder continues;
            // without a duration, it would never expire.
            lease.spec.duration_ms = was.spec.duration_ms;
        }
        lease.holding = holding_after(stamp, was, &lease.spec);
    }
    let meta = ObjectMeta {
        labels: new.meta.labels.clone(),
        annotations: new.meta.annotations.clone(),
        owners: new.meta.owners.clone(),
        managers: new.meta.managers.clone(),
        ..old.meta.clone()
    };
    if meta == old.meta && body == old.body {
        return Ok(());
    }
    if let (Some(was), ObjectBody::Lease(lease)) = (old.lease(), &body) {
        record_holder_change(tables, stamp, &key, Some(was), lease);
    }
    let meta = ObjectMeta { revision: stamp.at, ..meta };
    let object = Object { namespace: old.namespace.clone(), name: old.name.clone(), meta, body };
    tables.objects.insert(key, Arc::new(object));
    Ok(())
}

/// The holder's field, as [`FieldManager::fields`](muster_messages::FieldManager) names it.
const HOLDER_FIELD: &str = "spec.holderIdentity";

/// HELD-1, and the guard that the operator chose. Checks that depend on a write's body are made when it is planned: see `plan/guard.rs`
/// of muster-kubernetes.
fn allowed(
    tables: &Tables,
    key: &ObjectKey,
    (meta, was): (&ObjectMeta, &Lease),
    spec: &LeaseSpec,
    write: &ClientWrite,
) -> Result<(), CommandRefusal> {
    if !was.is_live() {
        return Ok(());
    }
    let guard = tables.guard_of(key);
    let guarded = guard == GuardMode::All || guard == GuardMode::Blind && write.blind;
    let refused = if was.spec.held_by() != spec.held_by() {
        // The holder may give up a lease. A Kubernetes client cannot prove to be the holder; a session can.
        was.holding.session.is_some() || guarded && spec.held_by().is_some()
    } else {
        // A renewal by another client keeps a dead holder alive.
        let renews = (spec.renewed, spec.acquired) != (was.spec.renewed, was.spec.acquired);
        // The client that wrote the holder may renew for it, under any name.
        let wrote =
            |manager: &str| meta.managers.iter().any(|m| m.manager == manager && m.fields.contains(HOLDER_FIELD));
        let others =
            write.manager.as_deref().is_some_and(|manager| Some(manager) != was.spec.held_by() && !wrote(manager));
        guarded && write.blind && renews && others
    };
    if refused { Err(held(key, was)) } else { Ok(()) }
}

/// RECOVER-9 for a lease that the recovered state does not show as held: a holder that acquired it after that state was saved may rely on
/// it until its duration has passed since the recovery. That holder's duration is unknown; candidates for one lease use the same one.
/// Decided by the proposer's wall clock, because nothing else is known about the time since the recovery; the recovering manager is the
/// first proposer, and its clock was compared with the saved state's.
fn not_held_before_recovery(
    tables: &Tables,
    stamp: &Stamp<'_>,
    key: &ObjectKey,
    duration_ms: Option<u64>,
) -> Result<(), CommandRefusal> {
    let (Some(cluster), Some(duration_ms)) = (&tables.cluster, duration_ms) else { return Ok(()) };
    if injected(BugInjection::AcquireUnknownLeases) {
        return Ok(());
    }
    // Below that level, builds without this rule may apply the same entry. A participant's lease is always its own.
    if cluster.feature_level < IDENTITY_LEVEL || key.namespace == MEMBERS_NAMESPACE {
        return Ok(());
    }
    match recovered_at(cluster) {
        Some(recovered) if stamp.wall.0 < recovered.0.saturating_add_unsigned(duration_ms) => {
            let (holder, token) = (UNKNOWN_HOLDER.to_owned(), FencingToken(cluster.revision.0));
            Err(CommandRefusal::LeaseHeld { key: key.clone(), holder, token })
        }
        _ => Ok(()),
    }
}

fn held(key: &ObjectKey, lease: &Lease) -> CommandRefusal {
    let holder = in_short(lease.spec.held_by().unwrap_or_default(), MAX_NAME_CHARS);
    CommandRefusal::LeaseHeld { key: key.clone(), holder, token: lease.holding.token }
}

/// FENCE-1: the holding that results from a client's write.
fn holding_after(stamp: &Stamp<'_>, was: &Lease, spec: &LeaseSpec) -> Holding {
    match (was.spec.held_by(), spec.held_by()) {
        (_, None) => Holding { session: None, expired: false, ..was.holding },
        (Some(old), Some(new)) if old == new => {
            // Any write with a later time than the last one is a renewal.
            let renewed = (spec.renewed, spec.acquired) != (was.spec.renewed, was.spec.acquired);
            match was.holding {
                // The session that let it expire has ended: this is another process under its name.
                Holding { expired: true, session: Some(_), .. } if renewed => {
                    Holding { token: FencingToken(stamp.at.0), session: None, expired: false }
                }
                holding => Holding { expired: holding.expired && !renewed, ..holding },
            }
        }
        _ => Holding { token: FencingToken(stamp.at.0), session: None, expired: false },
    }
}

pub(super) fn delete(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    key: &ObjectKey,
    force: bool,
) -> Result<(), CommandRefusal> {
    let old = object(tables, key)?.clone();
    if let Some(lease) = old.lease() {
        if !force && lease.is_live() && lease.holding.session.is_some() {
            return Err(held(key, lease));
        }
        record_holder_change(tables, stamp, key, Some(lease), &Lease::default());
    }
    tables.objects.remove(key);
    Ok(())
}

/// A native acquirer.
pub(super) struct Acquirer<'a> {
    pub holder: &'a str,
    pub session: SessionId,
    pub duration_ms: u64,
    pub uid: Uid,
}

pub(super) fn acquire(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    key: &ObjectKey,
    by: &Acquirer<'_>,
) -> Result<(), CommandRefusal> {
    if key.namespace == RUNNERS_NAMESPACE {
        super::reconcilers::check_candidate_node(tables, stamp, &key.name, by.holder)?;
    }
    let now = MicroTime::from(stamp.wall);
    let Some(old) = tables.objects.get(key).cloned() else {
        not_held_before_recovery(tables, stamp, key, Some(by.duration_ms))?;
        let spec = LeaseSpec {
            holder: Some(by.holder.to_owned()),
            duration_ms: Some(by.duration_ms),
            acquired: Some(now),
            renewed: Some(now),
            transitions: Some(0),
            ..LeaseSpec::default()
        };
        let holding = Holding { token: FencingToken(stamp.at.0), session: Some(by.session), expired: false };
        let lease = Lease { spec, holding };
        record_holder_change(tables, stamp, key, None, &lease);
        let meta =
            ObjectMeta { created_at: stamp.wall, created: stamp.at, revision: stamp.at, ..ObjectMeta::fresh(by.uid) };
        put_lease(tables, key, meta, lease);
        return Ok(());
    };
    let was = lease_of(&old, key)?;
    if was.spec.held_by().is_none() {
        not_held_before_recovery(tables, stamp, key, Some(by.duration_ms))?;
    }
    let own = was.spec.held_by() == Some(by.holder);
    let same = own && was.holding.session == Some(by.session);
    // Another process under the same name takes over at once. A runner's work, however, may continue until its lease ends,
    // under any next holder.
    let takes_over = same || own && key.namespace != RUNNERS_NAMESPACE;
    if was.is_live() && !takes_over && !injected(BugInjection::TakeLiveLeases) {
        return Err(held(key, was));
    }
    let mut lease = was.clone();
    lease.spec.holder = Some(by.holder.to_owned());
    lease.spec.duration_ms = Some(by.duration_ms);
    lease.spec.renewed = Some(now);
    lease.holding.session = Some(by.session);
    lease.holding.expired = false;
    if !same {
        lease.spec.acquired = Some(now);
        lease.spec.preferred_holder = None;
        lease.holding.token = FencingToken(stamp.at.0);
    }
    if !own {
        lease.spec.transitions = Some(was.spec.transitions.unwrap_or(0).saturating_add(1));
    }
    record_holder_change(tables, stamp, key, Some(was), &lease);
    put_lease(tables, key, ObjectMeta { revision: stamp.at, ..old.meta.clone() }, lease);
    Ok(())
}

pub(super) fn release(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    key: &ObjectKey,
    session: SessionId,
    token: FencingToken,
) -> Result<(), CommandRefusal> {
    let old = object(tables, key)?.clone();
    let was = lease_of(&old, key)?;
    if was.holding.token == token && was.spec.held_by().is_none() {
        return Ok(());
    }
    if was.holding.token != token || was.holding.session != Some(session) {
        return Err(stale(format!("{key} was taken under token {}, not {token}", was.holding.token)));
    }
    let mut lease = was.clone();
    lease.spec.holder = Some(String::new());
    lease.spec.renewed = Some(MicroTime::from(stamp.wall));
    lease.spec.preferred_holder = None;
    lease.holding = Holding { session: None, expired: false, token };
    record_holder_change(tables, stamp, key, Some(was), &lease);
    put_lease(tables, key, ObjectMeta { revision: stamp.at, ..old.meta.clone() }, lease);
    Ok(())
}

pub(super) fn expire(tables: &mut Tables, stamp: &Stamp<'_>, key: &ObjectKey) -> Result<(), CommandRefusal> {
    let old = object(tables, key)?.clone();
    let was = lease_of(&old, key)?;
    if !was.is_live() {
        return Ok(());
    }
    let mut lease = was.clone();
    lease.holding.expired = true;
    record_holder_change(tables, stamp, key, Some(was), &lease);
    put_lease(tables, key, old.meta.clone(), lease);
    Ok(())
}

fn put_lease(tables: &mut Tables, key: &ObjectKey, meta: ObjectMeta, lease: Lease) {
    let object =
        Object { namespace: key.namespace.clone(), name: key.name.clone(), meta, body: ObjectBody::Lease(lease) };
    tables.objects.insert(key.clone(), Arc::new(object));
}

/// Records a change of holder as an event; renewals are not events.
fn record_holder_change(tables: &mut Tables, stamp: &Stamp<'_>, key: &ObjectKey, was: Option<&Lease>, is: &Lease) {
    let text = |lease: &Lease| {
        let holder = in_short(lease.spec.held_by()?, MAX_NAME_CHARS);
        let expired = if lease.holding.expired { ", expired" } else { "" };
        Some(format!("{}/{} held by {holder}, token {}{expired}", key.namespace, key.name, lease.holding.token))
    };
    let (was, is) = (was.and_then(text), text(is));
    if was != is {
        stamp.log_frequent(tables, EventKind::Lease, None, was, is);
    }
}

pub(super) fn guard(tables: &mut Tables, stamp: &Stamp<'_>, scope: &GuardScope, mode: Option<GuardMode>) {
    let old = match mode {
        Some(mode) => tables.guards.insert(scope.clone(), mode),
        None => tables.guards.remove(scope),
    };
    if old != mode {
        let scope_text =
            scope.lease.as_deref().map_or_else(|| scope.namespace.clone(), |l| format!("{}/{l}", scope.namespace));
        let text = |mode: GuardMode| {
            let word = match mode {
                GuardMode::Off => "off",
                GuardMode::Blind => "blind",
                GuardMode::All => "all",
            };
            format!("guard of {scope_text}: {word}")
        };
        stamp.log(tables, EventKind::Lease, None, old.map(text), mode.map(text));
    }
}

pub(super) fn put_access_token(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    token: &AccessToken,
) -> Result<(), CommandRefusal> {
    if !tables.users.contains_key(&token.user) {
        return Err(crate::guards::not_found("user", &token.user));
    }
    let old = tables.access_tokens.insert(token.id.clone(), token.clone());
    if tables.remembers_callers() {
        give_rights(tables, token);
    }
    stamp.log(tables, EventKind::User, None, old.as_ref().map(token_text), Some(token_text(token)));
    Ok(())
}

pub(super) fn delete_access_token(tables: &mut Tables, stamp: &Stamp<'_>, id: &str) {
    tables.token_rights.remove(id);
    if let Some(old) = tables.access_tokens.remove(id) {
        stamp.log(tables, EventKind::User, None, Some(token_text(&old)), None);
    }
}

/// RIGHTS-1. The token never allows more than its user may do now.
pub(super) fn give_rights(tables: &mut Tables, token: &AccessToken) {
    if let Some(user) = tables.users.get(&token.user) {
        let rights = TokenRights { kind: user.kind, namespaces: user.namespaces.clone() };
        tables.token_rights.insert(token.id.clone(), rights);
    }
}

/// RIGHTS-1, for a token of feature level 2, when the level rises. A token older than its user's record was made for an earlier user of
/// that name, whose rights are unknown: it gets no rights. Otherwise its user had the current kind; which namespaces were added later is
/// unknown.
pub(super) fn keep_rights(tables: &mut Tables, token: &AccessToken) {
    let is_older = tables.users.get(&token.user).is_some_and(|user| token.created_at < user.created_at);
    if is_older {
        tables.token_rights.insert(token.id.clone(), TokenRights { kind: UserKind::User, namespaces: Vec::new() });
    } else {
        give_rights(tables, token);
    }
}

/// Neither the secret nor its digest.
fn token_text(token: &AccessToken) -> String {
    format!("access token {} of {}", token.id, token.user)
}
