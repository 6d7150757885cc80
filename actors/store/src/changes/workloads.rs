//! The workloads, from feature level 3 on.
//!
//! Invariants  SPIFFE-5  a certificate of a workload that may be valid ends at the latest at [`workloads_end_after`], also that of an
//!                       entry which was deleted or given a shorter lifetime since.
//!             SPIFFE-6  an entry names itself, is bounded, and is as old as the state at most.

use muster_messages::{
    AuthorityRefusal, MAX_WORKLOAD_TTL, MAX_WORKLOADS, RootId, WorkloadChange, WorkloadEntry, WorkloadName,
    WorkloadRefusal,
};

use super::*;

pub(super) fn make(tables: &mut Tables, stamp: &Stamp<'_>, change: &WorkloadChange) -> Result<(), CommandRefusal> {
    certificates::at_identity_level(tables)?;
    match change {
        WorkloadChange::Set(entry) => set(tables, stamp, entry),
        WorkloadChange::Remove(name) => remove(tables, stamp, name),
    }
}

fn set(tables: &mut Tables, stamp: &Stamp<'_>, entry: &WorkloadEntry) -> Result<(), CommandRefusal> {
    entry.check().map_err(|why| CommandRefusal::Workload(WorkloadRefusal::Malformed(why)))?;
    let old = tables.workloads.entries.get(&entry.name).cloned();
    match &old {
        Some(old) if old.same_content(entry) => return Ok(()),
        None if tables.workloads.entries.len() >= MAX_WORKLOADS => {
            return Err(CommandRefusal::Workload(WorkloadRefusal::TooMany));
        }
        _ => {}
    }
    let created_by = old.as_ref().map_or_else(|| stamp.by.to_string(), |old| old.created_by.clone());
    let new = WorkloadEntry { created_by, revision: stamp.at, ..entry.clone() };
    if let Some(old) = old.as_ref().filter(|old| old.ttl > new.ttl) {
        outlive(tables, stamp, old);
    }
    let (before, after) = (old.as_deref().map(text), text(&new));
    tables.workloads.entries.insert(new.name.clone(), Arc::new(new));
    tables.workloads.changed = stamp.at;
    stamp.log(tables, EventKind::Workload, None, before, Some(after));
    Ok(())
}

fn remove(tables: &mut Tables, stamp: &Stamp<'_>, name: &WorkloadName) -> Result<(), CommandRefusal> {
    let old = tables.workloads.entries.remove(name).ok_or_else(|| crate::guards::not_found("workload", name))?;
    outlive(tables, stamp, &old);
    tables.workloads.changed = stamp.at;
    stamp.log(tables, EventKind::Workload, None, Some(text(&old)), None);
    Ok(())
}

/// SPIFFE-5. The last certificate of the entry as it was may have been signed a moment ago.
fn outlive(tables: &mut Tables, stamp: &Stamp<'_>, entry: &WorkloadEntry) {
    let former = &mut tables.workloads.former_until;
    *former = stamp.wall.plus(entry.ttl).max(*former);
}

fn text(entry: &WorkloadEntry) -> String {
    let selectors: Vec<String> = entry.selectors.iter().map(ToString::to_string).collect();
    let labels: Vec<String> = entry.node_labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let nodes = if labels.is_empty() { String::new() } else { format!(", on {}", labels.join(",")) };
    // Names before what may be long: clients verify servers by them.
    let dns = if entry.dns.is_empty() { String::new() } else { format!(", dns {}", entry.dns.join(",")) };
    format!("workload {}: {} s{dns}{nodes}, {}", entry.name, entry.ttl.as_secs(), selectors.join(" "))
}

/// When the last certificate of a workload that was signed up to `at` has ended. `None`: there was never a workload.
pub fn workloads_end_after(tables: &Tables, at: WallTime) -> Option<WallTime> {
    let workloads = &tables.workloads;
    let longest = workloads.entries.values().map(|entry| at.plus(entry.ttl)).max();
    // An entry that was removed after `at` had signed nothing up to then that lasts longer than this.
    let former = workloads.former_until.min(at.plus(MAX_WORKLOAD_TTL));
    longest.max((former > WallTime(0)).then_some(former))
}

/// Refuses to retire a root while workloads may hold certificates of it: they are not on record, so every one would be refused by the
/// other workloads from then on.
pub(super) fn may_retire(tables: &Tables, stamp: &Stamp<'_>, root: RootId) -> Result<(), CommandRefusal> {
    let activated_at = tables.authorities.active().and_then(|(_, active)| active.activated_at);
    match workloads_end_after(tables, activated_at.unwrap_or(stamp.wall)).filter(|until| stamp.wall < *until) {
        Some(until) => Err(CommandRefusal::Authority(AuthorityRefusal::Workloads { root, until })),
        None => Ok(()),
    }
}
