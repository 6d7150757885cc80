//! Invariants of the unlock key.

use muster_messages::{MAX_FORMER_KEYS, NodeId, Revision, Tables};

use crate::changes::may_be_sealed;

use super::{BOUND_1, CheckResult, SEAL_9, SEAL_10, holds};

pub(super) fn check(tables: &Tables) -> CheckResult {
    let autolock = &tables.autolock;
    let versions: Vec<Revision> =
        autolock.previous.iter().map(|former| former.version).chain([autolock.version]).collect();
    holds(versions.is_sorted_by(|a, b| a < b), SEAL_10, || format!("keys of the versions {versions:?}"))?;
    holds(autolock.version <= tables.revision, SEAL_10, || format!("autolock is of version {}", autolock.version))?;
    let former = autolock.previous.len();
    holds(former <= MAX_FORMER_KEYS, BOUND_1, || format!("{former} former unlock keys"))?;
    for (node, report) in &autolock.seals {
        let version = report.seal.version;
        holds(version <= autolock.version, SEAL_10, || {
            format!("{node} reports version {version}, the newest is {}", autolock.version)
        })?;
        holds(tables.nodes.contains_key(node), SEAL_9, || format!("{node} has a report and no record"))?;
    }
    Ok(())
}

pub(super) fn check_step(before: &Tables, after: &Tables) -> CheckResult {
    let (was, is) = (&before.autolock, &after.autolock);
    holds(is.version >= was.version, SEAL_10, || format!("version {} after {}", is.version, was.version))?;
    let same = is.version != was.version || is.key == was.key;
    holds(same, SEAL_10, || format!("version {} got another key", is.version))?;
    let known = was.previous.iter().map(|former| former.version).chain(was.key.as_ref().map(|_| was.version));
    for version in known {
        match is.key_of(version) {
            Some((key, _)) => {
                let same = was.key_of(version).is_some_and(|(old, _)| old == key);
                holds(same, SEAL_10, || format!("version {version} got another key"))?;
            }
            None => {
                let needed_by = may_be_sealed(before)
                    .find(|(node, oldest)| *oldest <= version && is_unchanged(before, after, *node));
                holds(needed_by.is_none(), SEAL_9, || {
                    format!("the key of version {version} is gone, and {needed_by:?} may need it")
                })?;
            }
        }
    }
    Ok(())
}

/// Whether a node may be sealed as it was before: it has reported nothing since, and got no worker's certificate.
fn is_unchanged(before: &Tables, after: &Tables, node: NodeId) -> bool {
    let of = |tables: &Tables| {
        let record = tables.nodes.get(&node)?;
        Some((tables.autolock.seals.get(&node).copied(), record.role, record.granted, record.certificate.clone()))
    };
    let (was, is) = (of(before), of(after));
    was.is_some() && was == is
}
