//! Checks the assumptions of a command.

use std::sync::Arc;

use muster_messages::{
    CommandRefusal, Guard, Lease, Name, NodeId, NodeRecord, Object, ObjectKey, Role, Tables, Token, User, WallTime,
    in_short,
};

use crate::apply::Stamp;

/// Holds, or why not.
pub(crate) fn check(tables: &Tables, stamp: &Stamp<'_>, guard: &Guard) -> Result<(), CommandRefusal> {
    match guard {
        Guard::NotFounded if tables.cluster.is_some() => Err(CommandRefusal::AlreadyFounded),
        Guard::NotFounded => Ok(()),
        Guard::NodeExists(id) => node(tables, *id).map(drop),
        Guard::NodeAbsent(id) => absent("node", id, tables.nodes.contains_key(id)),
        Guard::NameFree { name, except } => name_free(tables, name, *except),
        Guard::DesiredRole { node: id, role } => same("desired role", *id, role, &node(tables, *id)?.desired_role),
        Guard::Role { node: id, role } => same("role", *id, role, &node(tables, *id)?.role),
        Guard::Granted { node: id, granted } => same("grant", *id, granted, &node(tables, *id)?.granted),
        Guard::Generation { node: id, generation } => {
            same("generation", *id, generation, &node(tables, *id)?.generation)
        }
        Guard::NodeRevision { node: id, revision } => same("revision", *id, revision, &node(tables, *id)?.revision),
        Guard::Removing { node: id, removing } => removing_is(node(tables, *id)?, *removing),
        Guard::NotMember(id) => not_member(tables, *id),
        Guard::NotBlocked(id) => not_blocked(tables, *id),
        Guard::OtherManagers { besides, at_least } => other_managers(tables, *besides, *at_least),
        Guard::TokenUsable(id) => usable(token(tables, id)?, stamp.wall),
        Guard::TokenExists(id) => token(tables, id).map(drop),
        Guard::UserAbsent(name) => absent("user", name, tables.users.contains_key(name)),
        Guard::UserExists(name) => user(tables, name).map(drop),
        Guard::UserSerial { name, serial } if user(tables, name)?.serial != *serial => {
            Err(stale(format!("the certificate of user {name}")))
        }
        Guard::UserSerial { .. } => Ok(()),
        Guard::BlockExpired { node: id, at } => block_expired(tables, *id, *at),
        Guard::ObjectAbsent(key) => absent("object", key, tables.objects.contains_key(key)),
        Guard::ObjectRevision { key, revision } => {
            let actual = object(tables, key)?.meta.revision;
            expected(actual == *revision, || format!("{key} is at revision {actual}, not {revision}"))
        }
        Guard::ObjectUid { key, uid } => {
            let actual = object(tables, key)?.meta.uid;
            expected(actual == *uid, || format!("the uid of {key} is {actual}, not {uid}"))
        }
        Guard::LeaseToken { key, token } => {
            let lease = lease_of(object(tables, key)?, key)?;
            let held = lease.holding.token == *token && lease.is_live();
            expected(held, || format!("{key} is not held under token {token}"))
        }
        // Checked with the remembered outcomes: see `requests`.
        Guard::Request { .. } => Ok(()),
        Guard::InTerm(term) => {
            let actual = stamp.term;
            expected(actual == *term, || format!("this was decided in term {term}, and this is term {actual}"))
        }
    }
}

/// Holds, or the caller's assumption is outdated.
pub(crate) fn expected(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), CommandRefusal> {
    if holds { Ok(()) } else { Err(stale(otherwise())) }
}

/// The object.
pub(crate) fn object<'a>(tables: &'a Tables, key: &ObjectKey) -> Result<&'a Arc<Object>, CommandRefusal> {
    tables.objects.get(key).ok_or_else(|| not_found("object", key))
}

/// The lease under a lease's key.
pub(crate) fn lease_of<'a>(object: &'a Object, key: &ObjectKey) -> Result<&'a Lease, CommandRefusal> {
    object.lease().ok_or_else(|| not_found("lease", key))
}

/// The node's record.
pub(crate) fn node(tables: &Tables, id: NodeId) -> Result<&NodeRecord, CommandRefusal> {
    match tables.nodes.get(&id) {
        Some(record) => Ok(record),
        None => Err(not_found("node", id)),
    }
}

/// The token.
pub(crate) fn token<'a>(tables: &'a Tables, id: &str) -> Result<&'a Token, CommandRefusal> {
    tables.tokens.get(id).ok_or_else(|| not_found("token", id))
}

fn user<'a>(tables: &'a Tables, name: &Name) -> Result<&'a User, CommandRefusal> {
    tables.users.get(name).ok_or_else(|| not_found("user", name))
}

/// Characters of a name in refusals and events: many thousands of them are kept, and a client may write a long name.
pub(crate) const MAX_NAME_CHARS: usize = 128;
/// Characters of a text with several names.
const MAX_TEXT_CHARS: usize = 4 * MAX_NAME_CHARS;

pub(crate) fn not_found(what: &str, id: impl ToString) -> CommandRefusal {
    CommandRefusal::NotFound { what: what.to_owned(), id: in_short(&id.to_string(), MAX_NAME_CHARS) }
}

pub(crate) fn stale(what: impl Into<String>) -> CommandRefusal {
    CommandRefusal::Stale { what: in_short(&what.into(), MAX_TEXT_CHARS) }
}

pub(crate) fn absent(what: &str, id: impl ToString, exists: bool) -> Result<(), CommandRefusal> {
    if !exists {
        return Ok(());
    }
    Err(CommandRefusal::Exists { what: what.to_owned(), id: in_short(&id.to_string(), MAX_NAME_CHARS) })
}

/// NAME-1: no two nodes have the same name. A scan: names change when nodes join, which is rare.
pub(crate) fn name_free(tables: &Tables, name: &Name, except: Option<NodeId>) -> Result<(), CommandRefusal> {
    let holder = (tables.nodes.values()).find(|n| n.name == *name && Some(n.id) != except);
    match holder {
        None => Ok(()),
        Some(holder) => Err(CommandRefusal::NameTaken { name: name.clone(), node: holder.id }),
    }
}

pub(crate) fn not_member(tables: &Tables, id: NodeId) -> Result<(), CommandRefusal> {
    match tables.member_of(id) {
        None => Ok(()),
        Some(member) => Err(CommandRefusal::StillMember { node: id, raft_id: member.raft_id }),
    }
}

pub(crate) fn not_blocked(tables: &Tables, id: NodeId) -> Result<(), CommandRefusal> {
    match tables.blocklist.get(&id) {
        None => Ok(()),
        Some(block) => Err(CommandRefusal::Blocked { node: id, until: block.expires_at }),
    }
}

/// A node that is being removed cannot be granted this role.
pub(crate) fn not_leaving(record: &NodeRecord) -> Result<(), CommandRefusal> {
    match record.removing {
        None => Ok(()),
        Some(_) => Err(CommandRefusal::BeingRemoved { node: record.id }),
    }
}

/// The node's role and desired role.
pub(crate) fn roles_are(record: &NodeRecord, role: Role) -> Result<(), CommandRefusal> {
    same("desired role", record.id, &role, &record.desired_role)?;
    same("role", record.id, &role, &record.role)
}

fn same<T: PartialEq + std::fmt::Display>(
    what: &str,
    id: NodeId,
    expected: &T,
    actual: &T,
) -> Result<(), CommandRefusal> {
    if expected == actual {
        return Ok(());
    }
    Err(stale(format!("the {what} of node {id} is {actual}, not {expected}")))
}

fn removing_is(record: &NodeRecord, removing: bool) -> Result<(), CommandRefusal> {
    match (removing, record.removing.is_some()) {
        (false, true) => not_leaving(record),
        (true, false) => Err(stale(format!("node {} is not being removed", record.id))),
        _ => Ok(()),
    }
}

fn other_managers(tables: &Tables, besides: NodeId, at_least: usize) -> Result<(), CommandRefusal> {
    let others =
        (tables.nodes.values()).filter(|n| n.id != besides && n.desired_role == Role::Manager && n.removing.is_none());
    if others.take(at_least).count() == at_least { Ok(()) } else { Err(CommandRefusal::LastManager) }
}

fn usable(token: &Token, now: WallTime) -> Result<(), CommandRefusal> {
    match (token.expires_at, token.uses_left) {
        (Some(at), _) if at <= now => Err(CommandRefusal::TokenExpired { id: token.id.clone(), at }),
        (_, Some(0)) => Err(CommandRefusal::TokenUsedUp { id: token.id.clone() }),
        _ => Ok(()),
    }
}

/// A block that is already gone needs no guard: one command deletes several expired ones, and must not fail if another was
/// faster.
fn block_expired(tables: &Tables, id: NodeId, at: WallTime) -> Result<(), CommandRefusal> {
    match tables.blocklist.get(&id) {
        Some(block) if block.expires_at > at => not_blocked(tables, id),
        _ => Ok(()),
    }
}
