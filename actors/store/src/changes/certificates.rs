//! Recorded certificates, from feature level 3 on.
//!
//! Invariants  CERT-7  a node that never received the newest certificate can still use the one that it holds, however often it asks.

use muster_messages::{
    CertificateRecord, CertificateState, IDENTITY_LEVEL, IssuedCertificate, MAX_UNCLAIMED, NodeCertificates, RootId,
    UserPin,
};

use super::*;
use crate::bugs::is_injected;
use crate::guards::not_found;

/// Starts from what feature level 2 knows: the newest certificate of each node, but not the one that the node holds. Until
/// the next one is recorded, none is refused.
pub(super) fn begin(tables: &mut Tables) {
    let rows = tables.nodes.iter().map(|(id, node)| {
        let current = node.certificate.as_ref().map(unpinned);
        (*id, Arc::new(NodeCertificates { current, incomplete: true, ..NodeCertificates::default() }))
    });
    tables.certificates = rows.collect();
}

/// After a recovery: its state may be older than the certificates that nodes hold.
pub(crate) fn allow_unrecorded(tables: &mut Tables) {
    if !tables.records_identities() {
        return;
    }
    for id in tables.nodes.keys().copied().collect::<Vec<_>>() {
        row_mut(tables, id).incomplete = true;
    }
}

pub(super) fn issue(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    id: NodeId,
    certificate: &IssuedCertificate,
    held: Option<&IssuedCertificate>,
    replaces: Option<&str>,
) -> Result<(), CommandRefusal> {
    at_identity_level(tables)?;
    signs(tables, certificate.issuer)?;
    let row = tables.certificates.get(&id);
    let newest = row.and_then(|row| row.current.as_ref()).map(|current| current.serial.as_str());
    let completes = newest == Some(certificate.serial.as_str());
    if newest != replaces && !completes {
        return Err(stale(format!("node {id} was issued another certificate since")));
    }
    let before = row.cloned();
    nodes::certify(tables, stamp, id, &record(certificate))?;
    let row = row_mut(tables, id);
    if !completes {
        // `certify` has moved the previous newest one there, unless the node presents the one that it holds.
        row.previous = held.cloned().or_else(|| row.previous.take());
        row.unclaimed = before.map_or_else(Vec::new, |before| later_than(held, &before));
    }
    row.current = Some(certificate.clone());
    row.incomplete = false;
    Ok(())
}

/// CERT-7. The certificates issued after the one that the node presents: an answer with one of them may still be in transit.
fn later_than(held: Option<&IssuedCertificate>, row: &NodeCertificates) -> Vec<IssuedCertificate> {
    let issued: Vec<&IssuedCertificate> = row.previous.iter().chain(&row.unclaimed).chain(&row.current).collect();
    let presented = held.and_then(|held| issued.iter().position(|issued| issued.serial == held.serial));
    let later = presented.map_or(&[][..], |presented| &issued[presented + 1..]);
    let kept = later.len().saturating_sub(MAX_UNCLAIMED);
    later[kept..].iter().map(|issued| (*issued).clone()).collect()
}

/// Takes over a certificate recorded by a change of feature level 2.
pub(super) fn recorded(tables: &mut Tables, id: NodeId, certificate: &CertificateRecord) {
    if !tables.records_identities() {
        return;
    }
    let row = row_mut(tables, id);
    if row.current.as_ref().is_some_and(|current| current.serial == certificate.serial) {
        return;
    }
    row.previous = row.current.replace(unpinned(certificate));
}

pub(super) fn revoke(tables: &mut Tables, stamp: &Stamp<'_>, id: NodeId) -> Result<(), CommandRefusal> {
    at_identity_level(tables)?;
    nodes::rotate(tables, stamp, id)?;
    row_mut(tables, id).revoking = true;
    Ok(())
}

pub(super) fn seen(tables: &mut Tables, stamp: &Stamp<'_>, id: NodeId, serial: &str) -> Result<(), CommandRefusal> {
    at_identity_level(tables)?;
    let record = super::node(tables, id)?;
    // Still asked to renew: it presents the revoked certificate.
    let renewed =
        record.certificate.as_ref().is_some_and(|c| c.serial == serial && c.state != CertificateState::Rotate);
    let row = tables.certificates.get(&id);
    let revoking = row.is_some_and(|row| row.revoking);
    // Of a former root: from now on the node is known not to depend on it.
    let outdated = row.is_some_and(|row| row.older().any(|issued| tables.is_outdated(issued)));
    if !renewed || !revoking && !outdated {
        return Ok(());
    }
    let row = row_mut(tables, id);
    row.revoking = false;
    row.unclaimed.clear();
    let gone = row.previous.take().filter(|_| revoking);
    if revoking {
        let text = gone.map(|gone| format!("{} {} revoked", gone.role, gone.serial));
        stamp.log(tables, EventKind::Certificate, Some(id), None, text);
    }
    Ok(())
}

pub(super) fn pin_user(tables: &mut Tables, name: &Name, pin: &UserPin) -> Result<(), CommandRefusal> {
    at_identity_level(tables)?;
    let user = tables.users.get(name).ok_or_else(|| not_found("user", name))?;
    signs(tables, Some(pin.issuer))?;
    if user.serial != pin.serial {
        return Err(stale(format!("user {name} has another certificate")));
    }
    tables.user_pins.insert(name.clone(), pin.clone());
    Ok(())
}

/// ROOT-10.
fn signs(tables: &Tables, issuer: Option<RootId>) -> Result<(), CommandRefusal> {
    if tables.signs(issuer) || is_injected(BugInjection::RecordOfFormerRoot) {
        Ok(())
    } else {
        Err(stale("another root signs since: the certificate must be signed again"))
    }
}

pub(super) fn at_identity_level(tables: &Tables) -> Result<(), CommandRefusal> {
    let level = tables.cluster.as_ref().map_or(0, |cluster| cluster.feature_level);
    if level < IDENTITY_LEVEL {
        return Err(CommandRefusal::FeatureLevel { needs: IDENTITY_LEVEL, level });
    }
    Ok(())
}

fn row_mut(tables: &mut Tables, id: NodeId) -> &mut NodeCertificates {
    Arc::make_mut(tables.certificates.entry(id).or_default())
}

fn record(certificate: &IssuedCertificate) -> CertificateRecord {
    CertificateRecord {
        role: certificate.role,
        serial: certificate.serial.clone(),
        granted: certificate.granted,
        not_after: certificate.not_after,
        state: CertificateState::Issued,
    }
}

fn unpinned(record: &CertificateRecord) -> IssuedCertificate {
    IssuedCertificate {
        serial: record.serial.clone(),
        role: record.role,
        granted: record.granted,
        not_after: record.not_after,
        pin: None,
        issuer: None,
    }
}
