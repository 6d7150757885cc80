//! The part of the lease guard that is checked when a write is planned. The store checks the rest when the write is
//! applied.
//!
//! Invariants  LEASEGUARD-1  a write that does not state what it saw neither empties nor takes a living holder's lease.
//! These rules need the body of the request, which the log does not carry, so they are checked here. A plan is applied
//! only at the revision that it was made on (PLAN-1), so a decision made here holds for the object that is written. A
//! build that does not know these rules applies the command just the same.

use muster_messages::{FencingToken, GuardMode, Lease, Object, Tables, in_short};
use serde_json::Value;

use crate::resource::Resource;
use crate::status::Status;

/// The holder's field, as field owners name it.
const HOLDER: &str = "spec.holderIdentity";
/// Characters of a holder that a refusal quotes.
const MAX_HOLDER_CHARS: usize = 128;

/// The lease, if its holder is alive by the cluster's clock.
fn live(object: &Object) -> Option<&Lease> {
    object.lease().filter(|lease| lease.is_live())
}

/// Whether a body names the stored holder. Such a client has read the lease, and may write without a revision.
pub(crate) fn names_holder(body: &Value, old: &Object) -> bool {
    let named = body.pointer("/spec/holderIdentity").and_then(Value::as_str);
    named.is_some_and(|named| live(old).and_then(|lease| lease.spec.held_by()) == Some(named))
}

/// Refuses a blind write that empties a living holder's lease, unless its manager is the holder or wrote the holder. An
/// elector whose clock is ahead would empty the lease first and take it with the next write.
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
        "{}; only its holder may release it without a resourceVersion: set one, or test /spec/holderIdentity in a JSON patch",
        held_by(holder, was.holding.token)
    );
    Err(Status::conflict(resource, &old.name, &why))
}

/// Under the guard `all`, deleting a living holder's lease requires its uid or revision.
pub(super) fn may_delete(tables: &Tables, resource: Resource, object: &Object) -> Result<(), Status> {
    match live(object).filter(|_| covers_deletion(tables, object)) {
        None => Ok(()),
        Some(lease) => {
            let holder = lease.spec.held_by().unwrap_or_default();
            let why =
                format!("{}; set its uid or resourceVersion as a precondition", held_by(holder, lease.holding.token));
            Err(Status::conflict(resource, &object.name, &why))
        }
    }
}

/// Whether this object's guard covers deletions.
pub(super) fn covers_deletion(tables: &Tables, object: &Object) -> bool {
    object.lease().is_some() && tables.guard_of(&object.key()) == GuardMode::All
}

/// The refusal of a write that would take a living holder's lease, or renew it for another holder.
pub(super) fn held(resource: Resource, name: &str, holder: &str, token: FencingToken) -> Status {
    Status::conflict(resource, name, &held_by(holder, token))
}

fn held_by(holder: &str, token: FencingToken) -> String {
    let holder = in_short(holder, MAX_HOLDER_CHARS);
    format!("it is held by {holder:?} (fencing token {token}), whose time has not run out")
}
