//! Named objects with Kubernetes' metadata: leases, lease candidates, and the two kinds that old clients use as locks.
//!
//! One table holds all kinds. What clients see as `resourceVersion` is [`ObjectMeta::revision`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{BadId, MicroTime, Revision, WallTime};

/// The kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ObjectKind {
    /// `coordination.k8s.io/v1`.
    Lease,
    /// `coordination.k8s.io/v1beta1` and `v1alpha2`.
    LeaseCandidate,
    /// `v1`; the lock of Python clients up to release 36.
    ConfigMap,
    /// `v1`; the lock of early client-go.
    Endpoints,
}

/// The key of an object. Namespaces are labels on objects, not objects: one exists while it contains an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectKey {
    pub kind: ObjectKind,
    /// A DNS label.
    pub namespace: String,
    /// Mostly a DNS subdomain; each kind has its rule.
    pub name: String,
}

impl ObjectKey {
    /// A lease's key.
    pub fn lease(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { kind: ObjectKind::Lease, namespace: namespace.into(), name: name.into() }
    }
}
impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            ObjectKind::Lease => "lease",
            ObjectKind::LeaseCandidate => "lease candidate",
            ObjectKind::ConfigMap => "config map",
            ObjectKind::Endpoints => "endpoints",
        };
        write!(f, "{kind} {}/{}", self.namespace, self.name)
    }
}

/// Identifies one life of an object: a later object under the same name has another uid. A version 4 UUID as text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Uid(pub u128);

impl Uid {
    /// The uid with these random bits (RFC 9562, section 5.4). The caller supplies the randomness.
    pub fn from_entropy(entropy: u128) -> Self {
        let versioned = entropy & !(0xf << 76) | (4 << 76);
        Self(versioned & !(0b11 << 62) | (0b10 << 62))
    }
}
impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0;
        let part = |shift: u32, bits: u32| n >> shift & ((1 << bits) - 1);
        write!(f, "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}", n >> 96, part(80, 16), part(64, 16), part(48, 16), part(0, 48))
    }
}
impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
impl FromStr for Uid {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = BadId { what: "a uid", rule: "a UUID of 32 hexadecimal digits in five groups" };
        let dashes = [8, 13, 18, 23].iter().all(|at| text.as_bytes().get(*at) == Some(&b'-'));
        if text.len() != 36 || !dashes {
            return Err(bad);
        }
        let digits = text.replace('-', "");
        if digits.len() != 32 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(bad);
        }
        u128::from_str_radix(&digits, 16).map(Self).map_err(|_| bad)
    }
}

/// Metadata common to all objects. `uid`, `created_at`, `created` and `revision` are the server's: a client's values for them are
/// ignored or judged, never stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectMeta {
    /// Chosen by the proposer of the creation.
    pub uid: Uid,
    /// By the clock of that proposer.
    pub created_at: WallTime,
    /// The log index of its creation: decides ties that clocks cannot.
    pub created: Revision,
    /// The last change that clients could see. The expiry of a lease does not count.
    pub revision: Revision,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub owners: Vec<OwnerReference>,
    /// The last writer of each field, for server-side apply; at most one entry per manager and operation.
    pub managers: Vec<FieldManager>,
}

impl ObjectMeta {
    /// Metadata of an object that is about to be created.
    pub fn fresh(uid: Uid) -> Self {
        Self {
            uid,
            created_at: WallTime::default(),
            created: Revision(0),
            revision: Revision(0),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            owners: Vec::new(),
            managers: Vec::new(),
        }
    }
}

/// `metadata.ownerReferences[]`: kept for clients, without effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerReference {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
    pub controller: Option<bool>,
    pub block_owner_deletion: Option<bool>,
}

/// `metadata.managedFields[]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldManager {
    pub manager: String,
    /// By server-side apply; otherwise by another kind of write.
    pub applied: bool,
    pub api_version: String,
    pub at: WallTime,
    /// Paths below the object, such as `spec.holderIdentity` or `metadata.labels["a.b/c"]`.
    pub fields: BTreeSet<String>,
}

/// One process of a native client, for its lifetime: tells two processes with one identity apart. Random.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId(pub u128);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}
impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A number that grows with every change of a lease's holder and is never reused, not even after the lease was deleted: the
/// revision at which the holder acquired the lease. 0: it was never held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FencingToken(pub u64);

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `spec` of a lease. Clients distinguish absent from empty; no decision here does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseSpec {
    pub holder: Option<String>,
    /// In milliseconds: native leases may be shorter than Kubernetes' unit, the second.
    pub duration_ms: Option<u64>,
    /// As the client wrote it. Not used for decisions.
    pub acquired: Option<MicroTime>,
    /// As the client wrote it. Not used for decisions.
    pub renewed: Option<MicroTime>,
    pub transitions: Option<i32>,
    pub strategy: Option<String>,
    pub preferred_holder: Option<String>,
}

impl LeaseSpec {
    /// The holder; never empty.
    pub fn held_by(&self) -> Option<&str> {
        self.holder.as_deref().filter(|holder| !holder.is_empty())
    }
    /// How long a renewal is valid.
    pub fn duration(&self) -> Option<Duration> {
        self.duration_ms.map(Duration::from_millis)
    }
}

/// What the cluster records about a lease's holder, beside what clients wrote. Written only at apply time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Of the current holder, or of the last one.
    pub token: FencingToken,
    /// The native session that holds it. Such a lease is renewed without a log entry, so no client can take it while its holder
    /// is alive by the leader's clock.
    pub session: Option<SessionId>,
    /// It ran out by the leader's clock without a renewal, and the cluster has recorded that. Ends with the next renewal.
    pub expired: bool,
}

/// A lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub spec: LeaseSpec,
    pub holding: Holding,
}

impl Lease {
    /// Held, and not expired.
    pub fn is_live(&self) -> bool {
        self.spec.held_by().is_some() && !self.holding.expired
    }
}

/// `spec` of a lease candidate (`v1beta1`, `v1alpha2`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CandidateSpec {
    pub lease_name: String,
    /// Later than `renewed` while the coordinator waits for a sign of life; not a time of any clock.
    pub pinged: Option<MicroTime>,
    /// As the candidate wrote it. Not used for decisions.
    pub renewed: Option<MicroTime>,
    pub binary_version: String,
    pub emulation_version: String,
    pub strategy: String,
}

/// A config map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigMap {
    pub data: BTreeMap<String, String>,
    /// In base64, as transmitted.
    pub binary_data: BTreeMap<String, String>,
    pub immutable: Option<bool>,
}

/// The part of an object that depends on its kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ObjectBody {
    Lease(Lease),
    LeaseCandidate(CandidateSpec),
    ConfigMap(ConfigMap),
    /// `subsets`, as JSON text: not interpreted here.
    Endpoints(String),
}

impl ObjectBody {
    /// The kind of this body.
    pub fn kind(&self) -> ObjectKind {
        match self {
            ObjectBody::Lease(_) => ObjectKind::Lease,
            ObjectBody::LeaseCandidate(_) => ObjectKind::LeaseCandidate,
            ObjectBody::ConfigMap(_) => ObjectKind::ConfigMap,
            ObjectBody::Endpoints(_) => ObjectKind::Endpoints,
        }
    }
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    pub namespace: String,
    pub name: String,
    pub meta: ObjectMeta,
    pub body: ObjectBody,
}

impl Object {
    /// Its key in the table.
    pub fn key(&self) -> ObjectKey {
        ObjectKey { kind: self.body.kind(), namespace: self.namespace.clone(), name: self.name.clone() }
    }
    /// The lease, if the object is one.
    pub fn lease(&self) -> Option<&Lease> {
        match &self.body {
            ObjectBody::Lease(lease) => Some(lease),
            _ => None,
        }
    }
    /// The candidate, if the object is one.
    pub fn candidate(&self) -> Option<&CandidateSpec> {
        match &self.body {
            ObjectBody::LeaseCandidate(spec) => Some(spec),
            _ => None,
        }
    }
}

/// One entry's change of an object, for watchers. `None`: the object did not exist before, or does not afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectChange {
    pub revision: Revision,
    pub key: ObjectKey,
    pub before: Option<Arc<Object>>,
    pub after: Option<Arc<Object>>,
}

/// How the cluster protects the holder of a live lease from Kubernetes clients that would take it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GuardMode {
    /// No protection beyond a write's preconditions.
    Off,
    /// Writes without a precondition on the revision neither take a live holder's lease nor renew another holder's.
    #[default]
    Blind,
    /// No write takes a live holder's lease.
    All,
}

/// Where a [`GuardMode`] applies: a namespace, or one lease in it. The narrower setting wins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GuardScope {
    pub namespace: String,
    pub lease: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_are_version_4_uuids_and_round_trip() {
        let uid = Uid::from_entropy(u128::MAX);
        assert_eq!(uid.to_string(), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(uid.to_string().parse(), Ok(uid));
        for bad in ["", "ffffffff-ffff-4fff-bfff-fffffffffff", "gfffffff-ffff-4fff-bfff-ffffffffffff", &"f".repeat(36)]
        {
            assert!(bad.parse::<Uid>().is_err(), "{bad}");
        }
    }
}
