//! Leases and their guards.

use serde::{Deserialize, Serialize};

use crate::model::{FencingToken, GuardMode, Lease, MicroTime, Object, Revision, WallTime};

/// A lease, as `muster lease get` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseView {
    pub namespace: String,
    pub name: String,
    /// The last one, if it has expired.
    pub holder: Option<String>,
    pub expired: bool,
    pub fencing_token: FencingToken,
    pub transitions: i32,
    pub acquired_at: Option<WallTime>,
    /// The last renewal in the log; native sessions renew without one.
    pub renewed_at: Option<WallTime>,
    pub lease_duration_ms: Option<u64>,
    /// By the leader's clock; absent if it is not held.
    pub expires_in_ms: Option<u64>,
    pub strategy: Option<String>,
    pub preferred_holder: Option<String>,
    pub revision: Revision,
}

impl LeaseView {
    /// The view of a lease; `None` for an object of another kind.
    pub fn of(object: &Object, expires_in_ms: Option<u64>) -> Option<Self> {
        let Lease { spec, holding } = object.lease()?;
        let wall = |at: Option<MicroTime>| at.map(|at| WallTime(at.0.div_euclid(1000)));
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        Some(Self {
            namespace: object.namespace.clone(),
            name: object.name.clone(),
            holder: spec.held_by().map(str::to_owned),
            expired: holding.expired,
            fencing_token: holding.token,
            transitions: spec.transitions.unwrap_or(0),
            acquired_at: wall(spec.acquired),
            renewed_at: wall(spec.renewed),
            lease_duration_ms: spec.duration_ms,
            expires_in_ms: expires_in_ms.filter(|_| spec.held_by().is_some() && !holding.expired),
            strategy: given(&spec.strategy),
            preferred_holder: given(&spec.preferred_holder),
            revision: object.meta.revision,
        })
    }
}

/// An item of `muster lease guard ls`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardView {
    pub namespace: String,
    /// `None`: every lease of the namespace that has no guard of its own.
    pub lease: Option<String>,
    pub mode: GuardMode,
}

/// A deleted lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseDeletedView {
    pub namespace: String,
    pub name: String,
    /// Always true.
    pub deleted: bool,
    /// The holder of the placeholder that keeps candidates out. Absent: there is none, or, in the answer to a repeated
    /// request, none any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<String>,
    /// Milliseconds from the deletion until the name is free at the latest. Absent: without a placeholder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_in_ms: Option<u64>,
}
