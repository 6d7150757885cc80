//! Which commands make the state larger, so that the leader can refuse them when there is no room.
//!
//! Why by kind and not by applying them: the leader checks each proposal when the state is full, and applying it to a copy would
//! cost as much as the change itself. A change that only replaces something by no more bytes counts as none.

use muster_messages::wire::encode_stored;
use muster_messages::{
    Change, Command, DesiredObject, ManagedKey, Object, ObjectBody, ReconcilerChange, Tables, User, WorkloadChange,
};
use serde::Serialize;

/// How a command adds to the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Growth {
    /// Not at all, or within a separate bound: deletions, removals, demotions, certificates, renewals, expiry.
    None,
    /// A record that the cluster itself needs: a node, a token, a user.
    Cluster,
    /// Data stored by users.
    Data,
}

/// A renewed lease may have this many bytes, whatever its former size: there are 50,000 objects at most.
const MAX_RENEWED_LEASE_BYTES: usize = 1024;

/// The largest growth by a change of this command.
pub fn growth(tables: &Tables, command: &Command) -> Growth {
    command.changes.iter().map(|change| of(tables, change)).max().unwrap_or(Growth::None)
}

fn of(tables: &Tables, change: &Change) -> Growth {
    match change {
        Change::CreateNode(_) => Growth::Cluster,
        Change::UpdateLabels { add, .. } => unless(add.is_empty(), Growth::Data),
        Change::Report { node, labels, .. } => {
            let record = tables.nodes.get(node).map_or_else(Default::default, |record| record.labels.clone());
            let known = tables.reported.get(node).map_or(record, |reported| reported.labels.clone());
            unless(labels.iter().all(|(key, value)| known.get(key) == Some(value)), Growth::Cluster)
        }
        Change::PutToken(token) => unless(tables.tokens.contains_key(&token.id), Growth::Cluster),
        Change::PutUser(user) => unless(user_fits(tables, user), Growth::Cluster),
        Change::PutAccessToken(_) => Growth::Cluster,
        Change::SetGuard { mode, .. } => unless(mode.is_none(), Growth::Cluster),
        Change::CreateObject(_) => Growth::Data,
        Change::UpdateObject { object, .. } => unless(object_fits(tables, object), Growth::Data),
        Change::AcquireLease { key, .. } => unless(tables.objects.contains_key(key), Growth::Data),
        Change::Reconciler(change) => of_reconciler(tables, change),
        Change::Workload(change) => match change.as_ref() {
            WorkloadChange::Set(new) => {
                let old = tables.workloads.entries.get(&new.name);
                unless(old.is_some_and(|old| bytes(new) <= bytes(old.as_ref())), Growth::Cluster)
            }
            WorkloadChange::Remove(_) => Growth::None,
        },
        Change::Found { .. }
        | Change::SetDesiredRole { .. }
        | Change::GrantRole { .. }
        | Change::SetRemoving { .. }
        | Change::DeleteNode(_)
        | Change::Block(_)
        | Change::Unblock(_)
        | Change::SetLiveness { .. }
        | Change::RecordCertificate { .. }
        | Change::AskRotate(_)
        | Change::CertificateFailed(_)
        | Change::UseToken(_)
        | Change::DeleteToken(_)
        | Change::DeleteUser(_)
        | Change::SetFeatureLevel(_)
        | Change::DeleteObject { .. }
        | Change::ReleaseLease { .. }
        | Change::ExpireLease(_)
        | Change::DeleteAccessToken(_)
        | Change::RecordDuplicate { .. }
        | Change::RenameNode { .. }
        | Change::IssueCertificate { .. }
        | Change::RevokeCertificates(_)
        | Change::CertificateSeen { .. }
        | Change::PinUser { .. }
        | Change::Authority(_)
        | Change::Autolock(_)
        // At most one policy, 16 changes, and two words for each node.
        | Change::Autopilot(_) => Growth::None,
    }
}

fn unless(known: bool, growth: Growth) -> Growth {
    if known { Growth::None } else { growth }
}

fn of_reconciler(tables: &Tables, change: &ReconcilerChange) -> Growth {
    let object = |key: &ManagedKey, new: &DesiredObject| {
        let old = tables.reconcilers.objects.get(key).map(|old| bytes(&(&old.labels, &old.body)));
        unless(old.is_some_and(|old| bytes(&(&new.labels, &new.body)) <= old), Growth::Data)
    };
    match change {
        ReconcilerChange::Define { .. } => Growth::Data,
        // A step of a chain that was accepted.
        ReconcilerChange::Announce(_) | ReconcilerChange::StepDone { .. } => Growth::Cluster,
        ReconcilerChange::Apply { key, object: Some(new), .. } => object(key, new),
        ReconcilerChange::PutObject(new) => object(&new.key, new),
        ReconcilerChange::Apply { object: None, .. }
        | ReconcilerChange::Forget { .. }
        | ReconcilerChange::Admit(_)
        | ReconcilerChange::Drain(_)
        | ReconcilerChange::Leave(_)
        | ReconcilerChange::Step { .. }
        | ReconcilerChange::DeleteObject(_)
        | ReconcilerChange::Progress(_)
        | ReconcilerChange::Pause { .. }
        | ReconcilerChange::Finalize { .. }
        | ReconcilerChange::Retry { .. }
        | ReconcilerChange::Repair { .. }
        | ReconcilerChange::ForceFloor { .. }
        | ReconcilerChange::DeleteGate { .. }
        // Within `MAX_RUN_BYTES`.
        | ReconcilerChange::RecordRun(_) => Growth::None,
    }
}

fn object_fits(tables: &Tables, new: &Object) -> bool {
    let Some(old) = tables.objects.get(&new.key()) else { return false };
    let size = bytes(new);
    size <= bytes(old.as_ref()) || (matches!(new.body, ObjectBody::Lease(_)) && size <= MAX_RENEWED_LEASE_BYTES)
}

/// A renewal replaces the serial and the end of the certificate.
fn user_fits(tables: &Tables, new: &User) -> bool {
    tables.users.get(&new.name).is_some_and(|old| bytes(&new.namespaces) <= bytes(&old.namespaces))
}

fn bytes(record: &impl Serialize) -> usize {
    encode_stored(record).map_or(usize::MAX, |bytes| bytes.len())
}
