//! Who speaks for whom: participants, candidates and runners are where their node is, and their leases are nobody else's.
//!
//! Keeps  API-4  the leases that participants and runners live by are touched by nobody but the node they are on, or an
//!               operator; so are their records, and the steps of a run.
//! What is judged here is who asks. Whether it is so still when it is applied, the store judges, by tokens that only their
//! holders were given.

use std::sync::Arc;

use muster_messages::wire::{LeaseRef, LeaseRequest};
use muster_messages::{
    ErrorBody, ErrorCode, FencingToken, MEMBERS_NAMESPACE, NodeId, ObjectKey, Participant, ParticipantKey, Principal,
    RUNNERS_NAMESPACE, Tables, candidates_scope, runner_lease,
};

/// The longest lease of a participant or runner: whoever is gone is in the way that long.
const LONGEST_MS: u64 = 60_000;
/// Reconcilers that one participant needs.
const MOST_NEEDS: usize = 32;

/// Whether leases of this namespace are participants' and runners'.
pub fn is_reserved(namespace: &str) -> bool {
    namespace == MEMBERS_NAMESPACE || namespace == RUNNERS_NAMESPACE
}

/// Refuses what is not this caller's of the leases that participants and runners live by.
pub fn lease(tables: &Tables, caller: &Principal, request: &LeaseRequest) -> Result<(), ErrorBody> {
    use LeaseRequest as L;
    match request {
        L::Acquire { lease, holder, session, duration_ms } if is_reserved(&lease.namespace) => {
            let node = taking_part(caller, &lease.namespace)?;
            if *duration_ms > LONGEST_MS {
                return Err(ErrorBody::invalid(format!("leases in {} last a minute at most", lease.namespace)));
            }
            match of_member(lease)? {
                Some(key) if key.incarnation != *session => {
                    Err(ErrorBody::invalid(format!("{lease}: its name ends with the session that holds it")))
                }
                Some(key) => member(tables, node, &key),
                None => runs(tables, node, &lease.name, holder),
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

/// Refuses any other write to such a lease, but an operator's.
pub fn by_hand(caller: &Principal, namespace: &str) -> Result<(), ErrorBody> {
    if !is_reserved(namespace) || caller.is_operator() {
        return Ok(());
    }
    Err(ErrorBody::forbidden(format!(
        "{namespace} is kept by Muster; `muster member` and `muster reconciler` show what is there"
    )))
}

/// The node that asks, if it is one; an operator may ask for all of them.
fn taking_part(caller: &Principal, namespace: &str) -> Result<Option<NodeId>, ErrorBody> {
    match caller {
        Principal::Node(id) => Ok(Some(*id)),
        _ => by_hand(caller, namespace).map(|()| None),
    }
}

/// Whose lease it is, in the members' namespace.
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
    let node = taking_part(caller, &lease.namespace)?;
    if let Some(key) = of_member(lease)? {
        return member(tables, node, &key);
    }
    let object = tables.objects.get(&runner_lease(&lease.name));
    let holder = object.and_then(|object| object.lease()?.spec.held_by());
    match holder {
        // Its candidate has gone before it: it still gives the lease back, by its own session.
        Some(holder) if candidate(tables, &lease.name, holder).is_some() => runs(tables, node, &lease.name, holder),
        _ => Ok(()),
    }
}

/// A record that is there belongs to the node it names.
fn member(tables: &Tables, node: Option<NodeId>, key: &ParticipantKey) -> Result<(), ErrorBody> {
    let (Some(node), Some(there)) = (node, tables.reconcilers.participants.get(key)) else { return Ok(()) };
    if there.node == Some(node) {
        return Ok(());
    }
    Err(ErrorBody::forbidden(format!("{key} is not on this node; it is asked for where it runs, or by an operator")))
}

/// Whether a node may take, or act under, the lease of a reconciler's runner by this name: a candidate of that name is there
/// and on this node. That the name is nobody else's, the store sees to.
fn runs(tables: &Tables, node: Option<NodeId>, reconciler: &str, holder: &str) -> Result<(), ErrorBody> {
    let Some(node) = node else { return Ok(()) };
    match candidate(tables, reconciler, holder) {
        Some(there) if there.node == Some(node) => Ok(()),
        Some(_) => Err(ErrorBody::forbidden(format!("{holder} stands for {reconciler} on another node"))),
        // It was, perhaps, and is announced again in a moment.
        None => Err(ErrorBody::new(
            ErrorCode::Conflict,
            format!("{holder} does not stand for {reconciler}: whoever runs it is announced as its candidate first"),
        )),
    }
}

fn candidate(tables: &Tables, reconciler: &str, member: &str) -> Option<Arc<Participant>> {
    tables.reconcilers.participants_of(&candidates_scope(reconciler)).find(|p| p.key.member == member).cloned()
}

/// A participant as this caller announces it. A node announces who runs on it; an operator anybody.
pub fn announced(mut participant: Participant, caller: &Principal) -> Result<Participant, ErrorBody> {
    let key = &participant.key;
    if let Some(fault) = key.fault() {
        return Err(ErrorBody::invalid(fault));
    }
    if participant.needs.len() > MOST_NEEDS || !participant.needs.keys().all(|name| muster_messages::is_dns_label(name))
    {
        return Err(ErrorBody::invalid(format!("{key}: it needs {MOST_NEEDS} reconcilers at most, each by its name")));
    }
    let named_like = key.member.parse::<NodeId>().ok();
    match caller {
        Principal::Node(id) if named_like.is_some_and(|like| like != *id) => {
            Err(ErrorBody::forbidden(format!("{key} is named like another node; a node's id is no other's name")))
        }
        Principal::Node(_) if key.is_external() => {
            Err(ErrorBody::forbidden(format!("{key} has no lease: only an operator vouches for one")))
        }
        Principal::Node(id) if participant.node.is_none_or(|node| node == *id) => {
            participant.node = Some(*id);
            Ok(participant)
        }
        Principal::Operator | Principal::Admin(_) => Ok(participant),
        _ => Err(ErrorBody::forbidden(format!("{caller} does not speak for {key}"))),
    }
}

/// Whether this caller may speak for a participant that is there.
pub fn for_participant(tables: &Tables, caller: &Principal, key: &ParticipantKey) -> Result<(), ErrorBody> {
    if let Some(fault) = key.fault() {
        return Err(ErrorBody::invalid(fault));
    }
    match caller {
        Principal::Node(id) => member(tables, Some(*id), key),
        _ => Ok(()), // others were judged by what they ask
    }
}

/// Whether this caller may act under the term of a reconciler's runner. Of a term that is not in force in this copy the store
/// judges.
pub fn for_runner(tables: &Tables, caller: &Principal, reconciler: &str, term: FencingToken) -> Result<(), ErrorBody> {
    let Principal::Node(id) = caller else { return Ok(()) };
    let object = tables.objects.get(&runner_lease(reconciler));
    let lease = object.and_then(|object| object.lease()).filter(|lease| lease.holding.token == term);
    let holder = lease.and_then(|lease| lease.spec.held_by());
    holder.map_or(Ok(()), |holder| runs(tables, Some(*id), reconciler, holder))
}

/// Whether this caller runs a reconciler, by this copy: it is shown what the command is given. Operators are as well.
pub fn runs_now(tables: &Tables, caller: &Principal, reconciler: &str) -> bool {
    let Principal::Node(id) = caller else { return caller.is_operator() };
    let object = tables.objects.get(&runner_lease(reconciler));
    let holder = object.and_then(|object| object.lease()?.spec.held_by());
    holder.is_some_and(|holder| runs(tables, Some(*id), reconciler, holder).is_ok())
}

#[cfg(test)]
#[path = "speaks_tests.rs"]
mod tests;
