//! The part of the lease guard that is judged when a write is planned. The store judges the rest when the write is applied.
//!
//! Keeps  LEASEGUARD-1  a write that does not say what it saw neither empties nor takes a living holder's lease.
//! Why here: these rules need the body of the request, which the log does not carry. A plan is applied only at the revision
//! that it was made on (PLAN-1), so a decision made here holds for the object that is written. A build that does not know
//! these rules applies the command just the same.

use muster_messages::{FencingToken, GuardMode, Lease, Object, Tables, in_short};
use serde_json::Value;

use crate::resource::Resource;
use crate::status::Status;

/// The holder's field, as owners of fields name it.
const HOLDER: &str = "spec.holderIdentity";
/// Characters of a holder that a refusal names.
const NAMED: usize = 128;

/// The lease, if its holder is alive by the cluster's clock.
fn live(object: &Object) -> Option<&Lease> {
    object.lease().filter(|lease| lease.is_live())
}

/// Whether a body names the holder that is stored. Its client has read the lease, and may write without a revision.
pub(crate) fn names_holder(body: &Value, old: &Object) -> bool {
    let named = body.pointer("/spec/holderIdentity").and_then(Value::as_str);
    named.is_some_and(|named| live(old).and_then(|lease| lease.spec.held_by()) == Some(named))
}

/// Refuses a blind write that empties a living holder's lease, unless its manager is the holder or wrote the holder down.
/// An elector with a clock that is ahead would empty the lease first and take it with the next write.
pub(super) fn may_empty(
    tables: &Tables,
    resource: Resource,
    (old, new): (&Object, &Object),
    manager: &str,
) -> Result<(), Status> {
    let Some(was) = live(old).filter(|_| new.lease().is_some_and(|lease| lease.spec.held_by().is_none())) else {
        return Ok(());
    };
    let holder = was.spec.held_by().unwrap_or_default();
    let owns = |entry: &muster_messages::FieldManager| entry.manager == manager && entry.fields.contains(HOLDER);
    let is_holder = manager == holder || old.meta.managers.iter().any(owns);
    if is_holder || tables.guard_of(&old.key()) == GuardMode::Off {
        return Ok(());
    }
    let why = format!(
        "{}; only its holder may give it up without a resourceVersion: name one, or test /spec/holderIdentity in a JSON patch",
        held_by(holder, was.holding.token)
    );
    Err(Status::conflict(resource, &old.name, &why))
}

/// Under the guard `all` a living holder's lease is deleted only by a client that names its uid or its revision.
pub(super) fn may_delete(tables: &Tables, resource: Resource, object: &Object) -> Result<(), Status> {
    match live(object).filter(|_| covers_deletion(tables, object)) {
        None => Ok(()),
        Some(lease) => {
            let holder = lease.spec.held_by().unwrap_or_default();
            let why =
                format!("{}; name its uid or resourceVersion as a precondition", held_by(holder, lease.holding.token));
            Err(Status::conflict(resource, &object.name, &why))
        }
    }
}

/// Whether the guard of this object judges deletions.
pub(super) fn covers_deletion(tables: &Tables, object: &Object) -> bool {
    object.lease().is_some() && tables.guard_of(&object.key()) == GuardMode::All
}

/// The refusal of a write that would take a living holder's lease or renew it for another.
pub(super) fn held(resource: Resource, name: &str, holder: &str, token: FencingToken) -> Status {
    Status::conflict(resource, name, &held_by(holder, token))
}

fn held_by(holder: &str, token: FencingToken) -> String {
    let holder = in_short(holder, NAMED);
    format!("it is held by {holder:?} (fencing token {token}), whose time has not run out")
}
