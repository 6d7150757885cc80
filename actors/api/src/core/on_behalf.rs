//! Who may act for whom: participants, candidates and runners belong to their node, and only that node uses their
//! leases.
//!
//! Invariants  API-4  the leases that keep participants and runners alive are changed only by the node that they are on, or by an
//!                    operator; so are their records, and the steps of a run.
//! This file checks the caller. When the change is applied, the store checks whether it is still valid, by tokens that
//! only their holders were given.

use std::sync::Arc;

use muster_messages::wire::{LeaseRef, LeaseRequest, ReconcilerRequest, Request};
use muster_messages::{
    ErrorBody, ErrorCode, FencingToken, MEMBERS_NAMESPACE, NodeId, ObjectKey, Participant, ParticipantKey, Principal,
    RUNNERS_NAMESPACE, Tables, candidates_scope, runner_lease,
};

/// The longest lease of a participant or runner: one that is gone blocks others for that long.
const MAX_PARTICIPANT_LEASE_MS: u64 = 60_000;
/// Reconcilers that one participant may need.
const MAX_NEEDED_RECONCILERS: usize = 32;

/// Whether leases of this namespace belong to participants and runners.
pub fn is_reserved(namespace: &str) -> bool {
    namespace == MEMBERS_NAMESPACE || namespace == RUNNERS_NAMESPACE
}

/// Refuses requests about leases of participants and runners that belong to another caller.
pub fn lease(tables: &Tables, caller: &Principal, request: &LeaseRequest) -> Result<(), ErrorBody> {
    use LeaseRequest as L;
    match request {
        L::Acquire { lease, holder, session, duration_ms } if is_reserved(&lease.namespace) => {
            let node = calling_node(caller, &lease.namespace)?;
            if *duration_ms > MAX_PARTICIPANT_LEASE_MS {
                return Err(ErrorBody::invalid(format!("leases in {} last at most a minute", lease.namespace)));
            }
            match of_member(lease)? {
                Some(key) if key.incarnation != *session => {
                    Err(ErrorBody::invalid(format!("{lease}: the lease name must end with the session that holds it")))
                }
                Some(key) => member(tables, node, &key),
                None => check_candidate(tables, node, &lease.name, holder),
            }
        }
        L::Release { lease, .. } => held(tables, caller, lease),
        L::Renew { held: all, .. } => all.iter().try_for_each(|(lease, _)| held(tables, caller, lease)),
        L::Create { lease, .. } | L::Update { lease, .. } | L::Delete { lease } | L::DeleteHeld { lease }
            if is_reserved(&lease.namespace) =>
        {
            by_hand(caller, &lease.namespace)
        }
        _ => Ok(()),
    }
}

/// Refuses any other write to such a lease, except by an operator.
pub fn by_hand(caller: &Principal, namespace: &str) -> Result<(), ErrorBody> {
    if !is_reserved(namespace) || caller.is_operator() {
        return Ok(());
    }
    Err(ErrorBody::forbidden(format!(
        "{namespace} is managed by Muster; `muster member` and `muster reconciler` show its contents"
    )))
}

/// The calling node, if it is one; an operator may act for all of them.
fn calling_node(caller: &Principal, namespace: &str) -> Result<Option<NodeId>, ErrorBody> {
    match caller {
        Principal::Node(id) => Ok(Some(*id)),
        _ => by_hand(caller, namespace).map(|()| None),
    }
}

/// The member that a lease belongs to, in the members' namespace.
fn of_member(lease: &LeaseRef) -> Result<Option<ParticipantKey>, ErrorBody> {
    if lease.namespace != MEMBERS_NAMESPACE {
        return Ok(None);
    }
    let key = ParticipantKey::of_lease(&ObjectKey::lease(lease.namespace.clone(), lease.name.clone()));
    key.map(Some)
        .ok_or_else(|| ErrorBody::invalid(format!("{lease} is not the lease of a member: SCOPE.MEMBER.SESSION")))
}

fn held(tables: &Tables, caller: &Principal, lease: &LeaseRef) -> Result<(), ErrorBody> {
    if !is_reserved(&lease.namespace) {
        return Ok(());
    }
    let node = calling_node(caller, &lease.namespace)?;
    if let Some(key) = of_member(lease)? {
        return member(tables, node, &key);
    }
    let object = tables.objects.get(&runner_lease(&lease.name));
    let holder = object.and_then(|object| object.lease()?.spec.held_by());
    match holder.and_then(|holder| candidate(tables, &lease.name, holder)) {
        // For the log of the former runner, which was frozen until another candidate had acquired the lease.
        Some(current) if node.is_some() && current.node != node => {
            let (holder, name) = (&current.key.member, &lease.name);
            Err(ErrorBody::forbidden(format!(
                "{holder}, on another node, holds the lease of {name}'s runner now: only that node may renew or release it"
            )))
        }
        // Also if the holder's candidate record is gone: its node still releases the lease, which the store checks by session and token.
        _ => Ok(()),
    }
}

/// An existing record belongs to the node that it names.
fn member(tables: &Tables, node: Option<NodeId>, key: &ParticipantKey) -> Result<(), ErrorBody> {
    let (Some(node), Some(there)) = (node, tables.reconcilers.participants.get(key)) else { return Ok(()) };
    if there.node == Some(node) {
        return Ok(());
    }
    Err(ErrorBody::forbidden(format!("{key} is not on this node; ask from the node it runs on, or as an operator")))
}

/// Whether a node may acquire, or act under, the lease of a reconciler's runner by this name: a candidate of that name
/// must exist on this node. The store ensures that the name is unique.
fn check_candidate(tables: &Tables, node: Option<NodeId>, reconciler: &str, holder: &str) -> Result<(), ErrorBody> {
    let Some(node) = node else { return Ok(()) };
    match candidate(tables, reconciler, holder) {
        Some(there) if there.node == Some(node) => Ok(()),
        Some(_) => Err(ErrorBody::forbidden(format!("{holder} is a candidate for {reconciler} on another node"))),
        // It may have been one, and will be announced again in a moment.
        None => Err(ErrorBody::new(
            ErrorCode::Conflict,
            format!("{holder} is not a candidate for {reconciler}: a runner must first be announced as a candidate"),
        )),
    }
}

fn candidate(tables: &Tables, reconciler: &str, member: &str) -> Option<Arc<Participant>> {
    tables.reconcilers.participants_of(&candidates_scope(reconciler)).find(|p| p.key.member == member).cloned()
}

/// A participant as this caller announces it. A node announces its own participants; an operator any.
pub fn announced(mut participant: Participant, caller: &Principal) -> Result<Participant, ErrorBody> {
    let key = &participant.key;
    if let Some(fault) = key.fault() {
        return Err(ErrorBody::invalid(fault));
    }
    if let Err(why) = participant.release.plain() {
        return Err(ErrorBody::invalid(format!("{key} {}: {why}", participant.release)));
    }
    if participant.needs.len() > MAX_NEEDED_RECONCILERS
        || !participant.needs.keys().all(|name| muster_messages::is_dns_label(name))
    {
        return Err(ErrorBody::invalid(format!(
            "{key}: it may need at most {MAX_NEEDED_RECONCILERS} reconcilers, each named once"
        )));
    }
    let named_like = key.member.parse::<NodeId>().ok();
    match caller {
        Principal::Node(id) if named_like.is_some_and(|like| like != *id) => {
            Err(ErrorBody::forbidden(format!("{key} has another node's id as its name; use another name")))
        }
        Principal::Node(_) if key.is_external() => {
            Err(ErrorBody::forbidden(format!("{key} has no lease: only an operator may announce a member without one")))
        }
        Principal::Node(id) if participant.node.is_none_or(|node| node == *id) => {
            participant.node = Some(*id);
            Ok(participant)
        }
        Principal::Operator | Principal::Admin(_) => Ok(participant),
        _ => Err(ErrorBody::forbidden(format!("{caller} may not act for {key}"))),
    }
}

/// The request as the admin socket of a manager sends it: a program that announces itself there runs on that manager's node.
/// Recorded although the socket acts as operator: once the manager is demoted, its socket acts as the node, and a node acts only
/// for its own participants. `socket`: the manager whose socket it is.
pub fn placed(mut request: Request, caller: &Principal, socket: impl FnOnce() -> NodeId) -> Request {
    if let (Request::Reconciler(ReconcilerRequest::Announce { participant }), Principal::Operator) =
        (&mut request, caller)
        // An external member has no lease that a program on this node keeps.
        && !participant.key.is_external()
    {
        participant.node.get_or_insert_with(socket);
    }
    request
}

/// Whether this caller may act for an existing participant.
pub fn for_participant(tables: &Tables, caller: &Principal, key: &ParticipantKey) -> Result<(), ErrorBody> {
    if let Some(fault) = key.fault() {
        return Err(ErrorBody::invalid(fault));
    }
    match caller {
        Principal::Node(id) => member(tables, Some(*id), key),
        _ => Ok(()), // other callers were checked by the request's right
    }
}

/// Whether this caller may act under the term of a reconciler's runner. If the term is not in force in this replica,
/// the store decides.
pub fn for_runner(tables: &Tables, caller: &Principal, reconciler: &str, term: FencingToken) -> Result<(), ErrorBody> {
    let Principal::Node(id) = caller else { return Ok(()) };
    let object = tables.objects.get(&runner_lease(reconciler));
    let lease = object.and_then(|object| object.lease()).filter(|lease| lease.holding.token == term);
    let holder = lease.and_then(|lease| lease.spec.held_by());
    holder.map_or(Ok(()), |holder| check_candidate(tables, Some(*id), reconciler, holder))
}

/// Whether this caller runs a reconciler, according to this replica, and so may see what its command is given.
/// Operators may too.
pub fn is_runner(tables: &Tables, caller: &Principal, reconciler: &str) -> bool {
    let Principal::Node(id) = caller else { return caller.is_operator() };
    let object = tables.objects.get(&runner_lease(reconciler));
    let holder = object.and_then(|object| object.lease()?.spec.held_by());
    holder.is_some_and(|holder| check_candidate(tables, Some(*id), reconciler, holder).is_ok())
}

#[cfg(test)]
#[path = "on_behalf_tests.rs"]
mod tests;
