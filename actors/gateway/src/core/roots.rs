//! What the root of a certificate allows, in a cluster that has had several.
//!
//! Invariants  ADMIT-9   a certificate of a retired root, or of one whose key others may have and that no longer signs, opens
//!                       what it opened before only if this very certificate is on record. Otherwise it opens nothing, whether
//!                       or not the replica is new: none of such a root is recorded after the activation of the next (ROOT-10).
//!             ADMIT-10  a certificate of a revoked root opens only the agent session of its node, if it is on record: the
//!                       session brings another one. A user's opens nothing.
//!
//! A holder of the root's key can copy everything in a certificate but its key and its signature, so a record helps only if it
//! has the certificate's digest or its key. A certificate that an operator's older build recorded has neither.

use muster_messages::protocol::Service;
use muster_messages::{Authority, AuthorityState, CertIdentity, RefusalReason, Subject, Tables};

use super::admission::Admission;
use crate::bug_injected;
use crate::bugs::BugInjection;

/// What the applied state says about the root of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// There was no rotation, or the root signs, is to sign, or signed before an uncontested rotation that still runs.
    Good,
    /// ADMIT-9.
    OnRecordOnly,
    /// ADMIT-10.
    Revoked,
    /// The state has no such root, but this node trusted it: the replica is behind, or the root was deleted.
    Unknown,
}

/// Whether a certificate of this root is refused unless it is on record.
pub fn is_withdrawn(root: &Authority) -> bool {
    standing_of(root) != Standing::Good
}

fn standing_of(root: &Authority) -> Standing {
    match root.state {
        AuthorityState::Revoked => Standing::Revoked,
        AuthorityState::Retired => Standing::OnRecordOnly,
        _ if root.is_disowned() => Standing::OnRecordOnly,
        AuthorityState::Prepared | AuthorityState::Active | AuthorityState::Retiring => Standing::Good,
    }
}

pub fn standing(identity: &CertIdentity, tables: &Tables) -> Standing {
    let roots = &tables.authorities.roots;
    if roots.is_empty() {
        return Standing::Good;
    }
    match identity.issuer {
        Some(issuer) => roots.get(&issuer).map_or(Standing::Unknown, |root| standing_of(root)),
        // It was presented before the first rotation, when the founding root was the only one; that one may be deleted since.
        None => {
            let founding = tables.authorities.founding();
            founding.map_or(Standing::OnRecordOnly, |(_, root)| standing_of(root))
        }
    }
}

/// Whether this very certificate is on record. An identity without a pin was not read from a certificate, but made by a test:
/// its serial decides.
fn is_recorded(identity: &CertIdentity, tables: &Tables) -> bool {
    if bug_injected(BugInjection::CountUnrecorded) {
        return true;
    }
    match &identity.subject {
        Subject::Node { node, .. } => {
            let found = tables.certificates.get(node).and_then(|row| row.find(identity));
            found.is_some_and(|issued| issued.pin.is_some() || identity.pin.is_none())
        }
        Subject::User(name) | Subject::Admin(name) | Subject::Reader(name) => match identity.pin {
            Some(pin) => tables.user_pins.get(name).is_some_and(|recorded| recorded.pin == pin),
            None => tables.users.get(name).is_some_and(|user| user.serial == identity.serial),
        },
        Subject::Workload(_) => false,
    }
}

/// CERT-6, for a certificate of any root: a row that may lack some of its node's certificates lacks none of a root that is not in
/// good standing.
pub fn counts(identity: &CertIdentity, tables: &Tables) -> bool {
    let Some((node, _)) = identity.node() else { return false };
    let counts = tables.certificate_counts(node, identity);
    // Certificates of roots that a recovery has lost are of its earlier incarnation.
    let is_outlived = || tables.cluster.as_ref().is_some_and(|cluster| identity.incarnation < cluster.incarnation);
    match standing(identity, tables) {
        Standing::Good => counts,
        Standing::Unknown if is_outlived() => counts,
        Standing::OnRecordOnly | Standing::Revoked | Standing::Unknown => counts && is_recorded(identity, tables),
    }
}

/// For a user: whether the record need not have the certificate's digest.
pub(super) fn serial_suffices(identity: &CertIdentity, tables: &Tables) -> bool {
    standing(identity, tables) == Standing::Good || is_recorded(identity, tables)
}

/// Why the root of this certificate lets it not open this service. `None`: it is judged as before any rotation.
pub fn refusal(identity: &CertIdentity, service: Service, tables: &Tables) -> Option<(RefusalReason, String)> {
    let why = match standing(identity, tables) {
        Standing::Good | Standing::Unknown => return None,
        Standing::OnRecordOnly if is_recorded(identity, tables) => return None,
        Standing::OnRecordOnly => "was retired, and the certificate is not on record",
        Standing::Revoked => {
            let of_node = identity.node().is_some() && is_recorded(identity, tables);
            if of_node && service == Service::Agent {
                return None;
            }
            if of_node {
                let text = "the root of this certificate was revoked; only an agent session is possible with it, which brings \
                     another certificate";
                return Some((RefusalReason::Unauthenticated, text.to_owned()));
            }
            "was revoked"
        }
    };
    let help = match identity.node() {
        Some((node, _)) => format!("to readmit node {node}, restart it with --join and a token of its role"),
        None => "ask an operator for a new one".to_owned(),
    };
    Some((RefusalReason::Unauthenticated, format!("the root of this certificate {why}; {help}")))
}

/// `decision`, unless the root forbids it. A refusal stays, but one that invites to another attempt.
pub(super) fn restricted(
    decision: Admission,
    identity: &CertIdentity,
    service: Service,
    tables: Option<&Tables>,
) -> Admission {
    if matches!(&decision, Admission::Refuse(reason, _) if *reason != RefusalReason::NotKnownHereYet) {
        return decision;
    }
    match tables.and_then(|tables| refusal(identity, service, tables)) {
        Some((reason, sentence)) => Admission::Refuse(reason, sentence),
        None => decision,
    }
}

#[cfg(test)]
#[path = "roots_tests.rs"]
mod tests;
