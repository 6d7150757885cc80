//! Participants of a scope: members, and candidates for running a reconciler.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::dns::{label_rule, subdomain_rule};
use super::word::words;
use super::{
    CANDIDATES_SCOPE, FencingToken, MEMBERS_NAMESPACE, NodeId, ObjectKey, Release, Revision, SessionId, Triple,
    WallTime, is_dns_label, is_dns_subdomain,
};

/// One start of one member of a scope. A restarted member is another participant until the first has gone: both count, so that a
/// process whose end was not observed still blocks outcomes that it is incompatible with.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ParticipantKey {
    pub scope: String,
    pub member: String,
    /// Random; also the session that holds its lease. 0 for an external one.
    pub incarnation: SessionId,
}

impl ParticipantKey {
    /// The lease on which its life depends, unless it is external. No two valid keys have the same one.
    pub fn lease(&self) -> ObjectKey {
        let Self { scope, member, incarnation } = self;
        ObjectKey::lease(MEMBERS_NAMESPACE, format!("{scope}.{member}.{incarnation}"))
    }
    /// The participant whose life depends on this lease.
    pub fn of_lease(lease: &ObjectKey) -> Option<Self> {
        let (rest, incarnation) = lease.name.rsplit_once('.')?;
        let candidates = rest.strip_prefix(CANDIDATES_SCOPE).map_or(0, |_| CANDIDATES_SCOPE.len());
        let dot = rest.get(candidates..)?.find('.')? + candidates;
        let (scope, member) = (rest.get(..dot)?.to_owned(), rest.get(dot + 1..)?.to_owned());
        let incarnation = SessionId(u128::from_str_radix(incarnation, 16).ok()?);
        let key = Self { scope, member, incarnation };
        // Only the canonical text of a number is accepted.
        (key.fault().is_none() && key.lease() == *lease).then_some(key)
    }
    /// What is wrong with it, if anything: scopes and members are parts of a lease's name.
    pub fn fault(&self) -> Option<&'static str> {
        let scope = self.scope.strip_prefix(CANDIDATES_SCOPE).unwrap_or(&self.scope);
        if !is_dns_label(scope) {
            return Some(concat!("a scope is ", label_rule!()));
        }
        let short = self.member.len() <= MAX_MEMBER_BYTES;
        (!short || !is_dns_subdomain(&self.member))
            .then_some(concat!("a member's name is up to 140 of ", subdomain_rule!()))
    }
    /// Whether an operator vouches for it instead of a lease.
    pub fn is_external(&self) -> bool {
        self.incarnation == SessionId(0)
    }
}
impl fmt::Display for ParticipantKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.member, self.scope)
    }
}

/// Bytes of a member's name: with its scope and its incarnation it forms the name of a lease.
const MAX_MEMBER_BYTES: usize = 140;

/// The phase of a participant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ParticipantPhase {
    /// It has reported its release, and waits. Blocks no restriction.
    Announced,
    /// It may serve.
    Serving,
    /// It was asked to stop, and may still serve.
    Draining,
}

/// A member of a scope, or a candidate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Participant {
    pub key: ParticipantKey,
    /// Its node, if it runs on one.
    pub node: Option<NodeId>,
    pub release: Release,
    /// The minimum release of each reconciler's outcome that it needs to serve.
    pub needs: BTreeMap<String, Triple>,
    pub phase: ParticipantPhase,
    /// Of its lease. `None`: external.
    pub token: Option<FencingToken>,
    /// When the phase began.
    pub since: WallTime,
    pub revision: Revision,
}

/// Why a participant waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NotAdmitted {
    #[error("{reconciler} has no gate yet")]
    NoGate { reconciler: String },
    #[error("the gate of {reconciler} cannot be read by this release of Muster")]
    GateUnreadable { reconciler: String },
    #[error("release {release} is below {floor}, the lowest that may serve with what {reconciler} applies")]
    BelowFloor { reconciler: String, release: Release, floor: Triple },
    #[error("it needs {reconciler} of {needs} at least, and {reconciled} is what has been applied")]
    ReconcilerTooOld { reconciler: String, reconciled: Release, needs: Triple },
}

impl NotAdmitted {
    pub fn reason(&self) -> AdmissionReason {
        match self {
            NotAdmitted::NoGate { .. } => AdmissionReason::NoGate,
            NotAdmitted::GateUnreadable { .. } => AdmissionReason::GateUnreadable,
            NotAdmitted::BelowFloor { .. } => AdmissionReason::BelowFloor,
            NotAdmitted::ReconcilerTooOld { .. } => AdmissionReason::ReconcilerTooOld,
        }
    }
}

words! {
    /// Why a participant does not serve yet.
    AdmissionReason {
        NoGate => "no-gate",
        GateUnreadable => "gate-unreadable",
        BelowFloor => "below-floor",
        ReconcilerTooOld => "reconciler-too-old",
        /// The cluster refused to admit it; the sentence says why.
        GateClosed => "gate-closed",
        /// Nothing is known to block it: it asks to be admitted.
        Admitting => "admitting",
        /// It only wants to be announced.
        Announced => "announced",
    }
}

/// A serving member that blocks a restriction, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocker {
    pub member: String,
    pub release: Release,
    pub phase: ParticipantPhase,
    pub external: bool,
    pub since: WallTime,
    pub why: String,
}
