//! Reports of managers' keyrings: each counts for the manager that sent it, and for its present grant.

use std::time::Duration;

use muster_messages::{
    AutolockChange, Change, Command, ErrorBody, ErrorCode, Guard, NodeId, Principal, Role, Seal, Tables, WallTime,
};

/// The command that records a report.
///
/// A manager that is demoted and promoted again deletes its keyring in between. What it reported before must not count for the
/// next keyring (SEAL-11): a report counts once the manager's certificate for its present grant is on record, and only as long as
/// that is the grant.
///
/// # Errors
/// The certificate is not on record. The manager reports again.
pub fn command_of(tables: &Tables, now: WallTime, node: NodeId, seal: Seal) -> Result<Command, ErrorBody> {
    let record = tables.nodes.get(&node);
    let certified = record.filter(|record| {
        let newest = record.certificate.as_ref();
        let of_grant = |granted: Option<_>| granted.is_none_or(|granted| granted == record.granted); // none: the founder's first
        newest.is_some_and(|newest| newest.role == Role::Manager && of_grant(newest.granted))
    });
    let Some(record) = certified else {
        let text = format!("node {node} has no certificate of a manager for its present role yet; it reports again");
        return Err(ErrorBody::new(ErrorCode::Conflict, text).retry_after(Duration::from_secs(1)));
    };
    let change = Change::Autolock(Box::new(AutolockChange::Sealed { node, seal }));
    let guard = Guard::Granted { node, granted: record.granted };
    Ok(Command::idempotent(now, Principal::Cluster, "keyring reported").guard(guard).change(change))
}
