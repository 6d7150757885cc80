//! Makes the changes of a command.
//!
//! Invariants  BLOCK-1  a blocked node has no record.
//!             BLOCK-2  a block outlives every certificate ever issued to its node.
//!             NAME-1   no two nodes have the same name.
//!             ROLE-1   a node that is a Raft member has the role manager.
//! and its part of CERT-1: a recorded certificate is for the role that was granted when it was recorded. Each change
//! refuses before it writes anything. A change without effect leaves no event and no new revision, so that a repeated
//! command does not look like a new one. Labels cause no event: a controller that writes them often would evict every
//! role change from the history.

use std::sync::Arc;

use muster_messages::{
    BLOCK_MARGIN, Blocked, Change, CommandRefusal, EventKind, Generation, Name, NodeId, NodeRecord, Revision, Role,
    Tables, Token, User, WallTime,
};

use crate::apply::Stamp;
use crate::bugs::BugInjection;
use crate::guards::{absent, name_free, node, not_blocked, not_leaving, not_member, stale};
use crate::injected;

mod authorities;
mod autolock;
mod autopilot;
mod certificates;
mod cluster;
mod feature_level;
mod nodes;
mod objects;
mod reconcilers;
mod workloads;

pub use self::authorities::{
    forgettable_at, last_certificate_expires_at, may_be_revoked, may_be_revoked_by, root_changed_at, voters_without,
};
pub(crate) use self::autolock::{may_be_sealed, renew as renew_unlock_key};
pub(crate) use self::autopilot::pause_after_recovery;
pub(crate) use self::certificates::allow_unrecorded;
pub use self::nodes::renamed_at;
pub(crate) use self::reconcilers::operators::REPAIRED;
pub(crate) use self::reconcilers::runs::defeated as defeated_finalizations;
pub use self::workloads::workloads_end_after;

/// Makes one change. `before` is the state that the command found, where it may differ from `tables`.
pub(crate) fn make(
    tables: &mut Tables,
    before: Option<&Tables>,
    stamp: &Stamp<'_>,
    change: &Change,
) -> Result<(), CommandRefusal> {
    match change {
        Change::Found { cluster, founder, tokens } => cluster::found(tables, stamp, cluster, founder, tokens),
        Change::CreateNode(record) => nodes::create(tables, stamp, record),
        Change::SetDesiredRole { node, role } => nodes::set_desired_role(tables, stamp, *node, *role),
        Change::GrantRole { node, role } => nodes::grant(tables, stamp, *node, *role),
        Change::SetRemoving { node, removal } => nodes::removing(tables, stamp, *node, removal),
        Change::DeleteNode(id) => nodes::delete(tables, stamp, *id),
        Change::UpdateLabels { node, add, remove } => nodes::label(tables, stamp, *node, add, remove),
        Change::Report { node, name, addr, release, labels } => {
            nodes::report(tables, stamp, *node, (name, addr, release, labels))
        }
        Change::SetLiveness { node, liveness } => nodes::set_liveness(tables, stamp, *node, *liveness),
        Change::RecordCertificate { node, certificate } => nodes::certify(tables, stamp, *node, certificate),
        Change::AskRotate(id) => nodes::rotate(tables, stamp, *id),
        Change::CertificateFailed(id) => nodes::failed(tables, stamp, *id),
        Change::Block(block) => {
            block_node(tables, before, stamp, block);
            Ok(())
        }
        Change::Unblock(id) => {
            unblock(tables, stamp, *id);
            Ok(())
        }
        Change::PutToken(token) => {
            cluster::put_token(tables, stamp, token);
            Ok(())
        }
        Change::UseToken(id) => cluster::use_token(tables, stamp, id),
        Change::DeleteToken(id) => {
            cluster::delete_token(tables, stamp, id);
            Ok(())
        }
        Change::PutUser(user) => {
            cluster::put_user(tables, stamp, user);
            Ok(())
        }
        Change::DeleteUser(name) => {
            cluster::delete_user(tables, stamp, name);
            Ok(())
        }
        Change::SetFeatureLevel(level) => feature_level::raise(tables, stamp, *level),
        Change::CreateObject(object) => objects::create(tables, stamp, object),
        Change::UpdateObject { object, write } => {
            objects::update(tables, stamp, object, write)?;
            reconcilers::lease_ended(tables, stamp, &object.key());
            Ok(())
        }
        Change::DeleteObject { key, force } => {
            objects::delete(tables, stamp, key, *force)?;
            reconcilers::lease_ended(tables, stamp, key);
            Ok(())
        }
        Change::AcquireLease { key, holder, session, duration_ms, uid } => {
            let by = objects::Acquirer { holder, session: *session, duration_ms: *duration_ms, uid: *uid };
            objects::acquire(tables, stamp, key, &by)?;
            reconcilers::lease_ended(tables, stamp, key);
            Ok(())
        }
        Change::ReleaseLease { key, session, token } => {
            objects::release(tables, stamp, key, *session, *token)?;
            reconcilers::lease_ended(tables, stamp, key);
            Ok(())
        }
        Change::ExpireLease(key) => {
            objects::expire(tables, stamp, key)?;
            reconcilers::lease_ended(tables, stamp, key);
            Ok(())
        }
        Change::SetGuard { scope, mode } => {
            objects::guard(tables, stamp, scope, *mode);
            Ok(())
        }
        Change::PutAccessToken(token) => objects::put_access_token(tables, stamp, token),
        Change::DeleteAccessToken(id) => {
            objects::delete_access_token(tables, stamp, id);
            Ok(())
        }
        Change::Reconciler(change) => reconcilers::make(tables, stamp, change),
        Change::RecordDuplicate { node, processes } => nodes::duplicate(tables, stamp, *node, processes),
        Change::RenameNode { node, name } => nodes::rename(tables, stamp, *node, name),
        Change::IssueCertificate { node, certificate, held, replaces } => {
            certificates::issue(tables, stamp, *node, certificate, held.as_deref(), replaces.as_deref())
        }
        Change::RevokeCertificates(node) => certificates::revoke(tables, stamp, *node),
        Change::CertificateSeen { node, serial } => certificates::seen(tables, stamp, *node, serial),
        Change::PinUser { name, pin } => certificates::pin_user(tables, name, pin),
        Change::Authority(change) => authorities::make(tables, stamp, change),
        Change::Autolock(change) => autolock::make(tables, stamp, change),
        Change::Workload(change) => workloads::make(tables, stamp, change),
        Change::Autopilot(step) => autopilot::make(tables, stamp, step),
    }
}

/// Adds a node without the checks of a join: for a recovery, which is not a command.
pub(crate) fn create(tables: &mut Tables, stamp: &Stamp<'_>, record: &NodeRecord) {
    nodes::insert(tables, stamp, record);
}

/// Checks the result of a command's changes, whatever their order.
pub(crate) fn check_result(tables: &Tables, changes: &[Change]) -> Result<(), CommandRefusal> {
    for change in changes {
        if let Change::Block(block) = change
            && tables.nodes.contains_key(&block.node)
        {
            return Err(stale(format!("node {} still has a record", block.node)));
        }
    }
    Ok(())
}

/// Writes or extends a block. The same command may have deleted the record with the latest `not_after`, or the block
/// that this one may not shorten.
fn block_node(tables: &mut Tables, before: Option<&Tables>, stamp: &Stamp<'_>, block: &Blocked) {
    let id = block.node;
    let record = (tables.nodes.get(&id)).or_else(|| before.and_then(|b| b.nodes.get(&id)));
    let certificates = record.map_or(WallTime(i64::MIN), |r| r.last_not_after.plus(BLOCK_MARGIN));
    let now = tables.blocklist.get(&id);
    let first = now.or_else(|| before.and_then(|b| b.blocklist.get(&id))).unwrap_or(block);
    let expires_at = block.expires_at.max(certificates).max(first.expires_at);
    let was = now.map(|b| b.expires_at);
    if was == Some(expires_at) {
        return;
    }
    let new = Blocked { expires_at, ..first.clone() };
    tables.blocklist.insert(id, new);
    stamp.log(tables, EventKind::Node, Some(id), was.map(blocked_until), Some(blocked_until(expires_at)));
}

fn unblock(tables: &mut Tables, stamp: &Stamp<'_>, id: NodeId) {
    if let Some(old) = tables.blocklist.remove(&id) {
        stamp.log(tables, EventKind::Node, Some(id), Some(blocked_until(old.expires_at)), None);
    }
}

fn blocked_until(expires_at: WallTime) -> String {
    format!("blocked until {}", expires_at.without_trailing_zeros())
}
