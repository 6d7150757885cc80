//! Changes of node records.

use std::collections::BTreeMap;

use muster_messages::{
    CertificateRecord, CertificateState, IDENTITY_LEVEL, Liveness, RaftId, Removal, ReportedNode, fitting_labels,
    labels_fit,
};

use super::*;

pub(super) fn create(tables: &mut Tables, stamp: &Stamp<'_>, record: &NodeRecord) -> Result<(), CommandRefusal> {
    not_blocked(tables, record.id)?;
    absent("node", record.id, tables.nodes.contains_key(&record.id))?;
    name_free(tables, &record.name, None)?;
    insert(tables, stamp, record);
    Ok(())
}

/// Writes a new record. It has no certificate yet: one is signed only for a grant, which happens here.
pub(super) fn insert(tables: &mut Tables, stamp: &Stamp<'_>, record: &NodeRecord) {
    let record = NodeRecord {
        granted: stamp.at,
        generation: Generation(1),
        revision: stamp.at,
        removing: None,
        certificate: None,
        ..record.clone()
    };
    let after = format!("{} {}", record.role, record.name);
    let id = record.id;
    tables.nodes.insert(id, Arc::new(record));
    separate_report(tables, id);
    stamp.log(tables, EventKind::Node, Some(id), None, Some(after));
}

/// The labels of a new record were reported by its node: they are not the operator's.
pub(super) fn separate_report(tables: &mut Tables, id: NodeId) {
    if tables.feature_level() < IDENTITY_LEVEL {
        return;
    }
    if let Some(record) = tables.nodes.get_mut(&id) {
        let record = Arc::make_mut(record);
        let labels = fitting_labels(&std::mem::take(&mut record.labels));
        let reported = ReportedNode { name: record.name.clone(), named_at: record.created_at, labels };
        tables.reported.insert(id, Arc::new(reported));
    }
}

pub(super) fn set_desired_role(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    id: NodeId,
    role: Role,
) -> Result<(), CommandRefusal> {
    let record = node(tables, id)?;
    if role == Role::Manager {
        not_leaving(record)?;
    }
    let old = record.desired_role;
    autopilot::may_request(tables, stamp, id, role)?;
    // Also if the role is that already: a person who requests it once more wants it to stay.
    autopilot::requested(tables, stamp, id, role);
    if old == role {
        return Ok(());
    }
    edit(tables, stamp, id, |r| {
        r.desired_role = role;
        r.generation = r.generation.next();
    });
    let (was, is) = (format!("wanted {old}"), format!("wanted {role}"));
    stamp.log(tables, EventKind::Role, Some(id), Some(was), Some(is));
    Ok(())
}

/// A role that the node already has is not granted again: that would make every certificate for it look old. ROLE-1: a Raft
/// member stays manager until it is removed from the configuration.
pub(super) fn grant(tables: &mut Tables, stamp: &Stamp<'_>, id: NodeId, role: Role) -> Result<(), CommandRefusal> {
    let record = node(tables, id)?;
    if role == Role::Manager {
        not_leaving(record)?;
    }
    let old = record.role;
    if old == role {
        return Ok(());
    }
    if role == Role::Worker {
        not_member(tables, id)?;
    }
    edit(tables, stamp, id, |r| {
        r.role = role;
        r.granted = stamp.at;
    });
    let (was, is) = (Some(old.to_string()), Some(role.to_string()));
    stamp.log(tables, EventKind::Role, Some(id), was, is);
    // A manager that never had a certificate, and hence no keyring.
    autolock::delete_unneeded(tables);
    Ok(())
}

/// The first request stays, unless a later one adds force.
pub(super) fn removing(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    id: NodeId,
    removal: &Removal,
) -> Result<(), CommandRefusal> {
    let text = |r: &Removal| if r.forced { "removing by force" } else { "removing" }.to_owned();
    let old = node(tables, id)?.removing.clone();
    if old.as_ref().is_some_and(|old| old.forced || !removal.forced) {
        return Ok(());
    }
    edit(tables, stamp, id, |r| r.removing = Some(removal.clone()));
    let (was, is) = (old.as_ref().map(text), Some(text(removal)));
    stamp.log(tables, EventKind::Node, Some(id), was, is);
    Ok(())
}

pub(super) fn delete(tables: &mut Tables, stamp: &Stamp<'_>, id: NodeId) -> Result<(), CommandRefusal> {
    if !injected(BugInjection::SkipNodeGuard) {
        not_member(tables, id)?;
    }
    tables.reported.remove(&id);
    tables.certificates.remove(&id);
    tables.authorities.trusted_by.remove(&id);
    if let Some(record) = tables.nodes.remove(&id) {
        let was = Some(format!("{} {}", record.role, record.name));
        stamp.log(tables, EventKind::Node, Some(id), was, None);
    }
    autolock::left(tables, id);
    autopilot::left(tables, id);
    Ok(())
}

/// Removals first, so that a key in both ends up set.
pub(super) fn label(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    id: NodeId,
    add: &BTreeMap<String, String>,
    remove: &[String],
) -> Result<(), CommandRefusal> {
    let level = tables.feature_level();
    let labels = &node(tables, id)?.labels;
    let sets = add.iter().any(|(k, v)| labels.get(k) != Some(v));
    let unsets = (remove.iter()).any(|k| !add.contains_key(k) && labels.contains_key(k));
    if !sets && !unsets {
        return Ok(());
    }
    let mut labels = labels.clone();
    labels.retain(|k, _| !remove.contains(k));
    labels.extend(add.clone());
    // LABEL-1. A node that already has more labels may still lose some.
    if level >= IDENTITY_LEVEL && sets {
        labels_fit(&labels).map_err(|why| CommandRefusal::TooManyLabels { node: id, why })?;
    }
    edit(tables, stamp, id, |r| {
        r.labels = labels;
        r.generation = r.generation.next();
    });
    Ok(())
}

/// NAME-1. The name must also not be the beginning of another node's id, which a person would take it for.
pub(super) fn rename(tables: &mut Tables, stamp: &Stamp<'_>, id: NodeId, name: &Name) -> Result<(), CommandRefusal> {
    let old = node(tables, id)?.name.clone();
    if old == *name {
        return Ok(());
    }
    if let Some(other) = tables.mistaken_for(name, Some(id)) {
        return Err(CommandRefusal::NameTaken { name: name.clone(), node: other });
    }
    edit(tables, stamp, id, |r| {
        r.name = name.clone();
        r.generation = r.generation.next();
    });
    let text = |name: &Name| Some(format!("{NAMED}{name}"));
    stamp.log(tables, EventKind::Node, Some(id), text(&old), text(name));
    Ok(())
}

/// What a name follows in the event of a renaming.
const NAMED: &str = "named ";

/// The node that the entry at this revision renamed, and its name before. `None`: it renamed no node, or its event was evicted.
pub fn renamed_at(tables: &Tables, revision: Revision) -> Option<(NodeId, Name)> {
    let events = tables.events.iter().rev().take_while(|event| event.revision >= revision);
    let mut renamings = events.filter(|event| event.revision == revision && event.kind == EventKind::Node);
    let event = renamings.next()?;
    Some((event.node?, event.before.as_ref()?.strip_prefix(NAMED)?.parse().ok()?))
}

type Reported<'a> = (&'a Name, &'a str, &'a str, &'a BTreeMap<String, String>);

/// Takes over a node's report. Its name is recorded beside the operator's, and its labels replace the previously reported
/// ones: otherwise a node could take the name of a future machine, or accumulate labels without limit.
pub(super) fn report(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    id: NodeId,
    (name, addr, release, labels): Reported<'_>,
) -> Result<(), CommandRefusal> {
    let old = node(tables, id)?;
    if tables.feature_level() >= IDENTITY_LEVEL {
        let before = tables.reported.get(&id);
        let named_at = before.filter(|before| before.name == *name).map_or(stamp.wall, |before| before.named_at);
        let fitting = if injected(BugInjection::AcceptAnyLabels) { labels.clone() } else { fitting_labels(labels) };
        let reported = ReportedNode { name: name.clone(), named_at, labels: fitting };
        let news = before.is_none_or(|before| **before != reported);
        if news {
            tables.reported.insert(id, Arc::new(reported));
        }
        if injected(BugInjection::AcceptReportedNames) {
            edit(tables, stamp, id, |r| r.name = name.clone());
        }
        return report_address(tables, stamp, id, news, (addr, release));
    }
    let renamed = old.name != *name && name_free(tables, name, Some(id)).is_ok();
    let relabelled = labels.iter().any(|(k, v)| old.labels.get(k) != Some(v));
    if !renamed && !relabelled && old.addr == addr && old.release == release {
        return Ok(());
    }
    let text = |r: &NodeRecord| format!("{} at {}, release {}", r.name, r.addr, r.release);
    let was = text(old);
    edit(tables, stamp, id, |r| {
        if renamed {
            r.name = name.clone();
        }
        r.addr = addr.to_owned();
        r.release = release.to_owned();
        r.labels.extend(labels.clone());
    });
    let is = text(node(tables, id)?);
    if was != is {
        stamp.log_frequent(tables, EventKind::Node, Some(id), Some(was), Some(is));
    }
    Ok(())
}

/// Updates a node's address and release. `news`: the report changed something else, too.
fn report_address(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    id: NodeId,
    news: bool,
    (addr, release): (&str, &str),
) -> Result<(), CommandRefusal> {
    let old = node(tables, id)?;
    let moved = old.addr != addr || old.release != release;
    if !moved && !news {
        return Ok(());
    }
    let text = |r: &NodeRecord| Some(format!("{} at {}, release {}", r.name, r.addr, r.release));
    let was = text(old);
    edit(tables, stamp, id, |r| {
        r.addr = addr.to_owned();
        r.release = release.to_owned();
    });
    if moved {
        let is = text(node(tables, id)?);
        stamp.log_frequent(tables, EventKind::Node, Some(id), was, is);
    }
    Ok(())
}

pub(super) fn set_liveness(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    id: NodeId,
    liveness: Liveness,
) -> Result<(), CommandRefusal> {
    let old = node(tables, id)?.liveness;
    if old == liveness {
        return Ok(());
    }
    edit(tables, stamp, id, |r| {
        r.liveness = liveness;
        r.liveness_since = stamp.wall;
    });
    let text = |l| match l {
        Liveness::Unknown => "unknown",
        Liveness::Ready => "ready",
        Liveness::Down => "down",
    };
    let (was, is) = (Some(text(old).to_owned()), Some(text(liveness).to_owned()));
    stamp.log_frequent(tables, EventKind::Liveness, Some(id), was, is);
    Ok(())
}

/// Nothing to record about a deleted node.
pub(super) fn duplicate(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    id: NodeId,
    processes: &[String],
) -> Result<(), CommandRefusal> {
    node(tables, id)?;
    let after = match processes {
        [] => "one process uses its identity".to_owned(),
        several => several.join(" and "),
    };
    stamp.log_frequent(tables, EventKind::Node, Some(id), None, Some(after));
    Ok(())
}

pub(super) fn certify(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    id: NodeId,
    certificate: &CertificateRecord,
) -> Result<(), CommandRefusal> {
    let record = node(tables, id)?;
    if !injected(BugInjection::RecordAnyCertificate) {
        certificate_is_for_the_grant(tables, record, certificate)?;
    }
    let old = record.certificate.clone();
    if old.as_ref() == Some(certificate) {
        return Ok(());
    }
    certificates::recorded(tables, id, certificate);
    edit(tables, stamp, id, |r| {
        r.last_not_after = r.last_not_after.max(certificate.not_after);
        r.certificate = Some(certificate.clone());
    });
    if certificate.role == Role::Worker {
        autolock::left(tables, id);
    }
    let text = |c: &CertificateRecord| format!("{} {}", c.role, c.serial);
    let (was, is) = (old.as_ref().map(text), Some(text(certificate)));
    stamp.log(tables, EventKind::Certificate, Some(id), was, is);
    Ok(())
}

/// CERT-1. The founder's first certificate was signed before there was a log, hence for no grant. Member 1 is the founder,
/// and its role has not changed since.
fn certificate_is_for_the_grant(
    tables: &Tables,
    record: &NodeRecord,
    certificate: &CertificateRecord,
) -> Result<(), CommandRefusal> {
    let granted = match certificate.granted {
        Some(granted) => granted == record.granted,
        None => tables.members.get(&RaftId(1)).is_some_and(|m| m.node == record.id),
    };
    if granted && certificate.role == record.role {
        return Ok(());
    }
    Err(stale(format!(
        "node {} holds {} as of {}, the certificate is for another grant",
        record.id, record.role, record.granted
    )))
}

/// A node without a certificate must fetch one anyway.
pub(super) fn rotate(tables: &mut Tables, stamp: &Stamp<'_>, id: NodeId) -> Result<(), CommandRefusal> {
    certificate_state(tables, stamp, id, CertificateState::Rotate, "rotate")
}

pub(super) fn failed(tables: &mut Tables, stamp: &Stamp<'_>, id: NodeId) -> Result<(), CommandRefusal> {
    certificate_state(tables, stamp, id, CertificateState::Failed, "failed")
}

fn certificate_state(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    id: NodeId,
    state: CertificateState,
    word: &str,
) -> Result<(), CommandRefusal> {
    let old = node(tables, id)?.certificate.as_ref();
    let Some(old) = old.filter(|c| c.state != state) else {
        return Ok(());
    };
    let was = format!("{} {}", old.role, old.serial);
    let is = format!("{was} {word}");
    edit(tables, stamp, id, |r| {
        if let Some(certificate) = &mut r.certificate {
            certificate.state = state;
        }
    });
    stamp.log(tables, EventKind::Certificate, Some(id), Some(was), Some(is));
    Ok(())
}

/// Edits an existing record.
fn edit(tables: &mut Tables, stamp: &Stamp<'_>, id: NodeId, write: impl FnOnce(&mut NodeRecord)) {
    if let Some(record) = tables.nodes.get_mut(&id) {
        let record = Arc::make_mut(record);
        write(record);
        record.revision = stamp.at;
    }
}
