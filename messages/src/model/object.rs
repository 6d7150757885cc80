//! Named objects with Kubernetes' metadata: leases, lease candidates, and the two kinds that old clients lock with.
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
    /// `v1`; what Python clients up to release 36 lock with.
    ConfigMap,
    /// `v1`; what client-go locked with at first.
    Endpoints,
}

/// Which object. Namespaces are labels on objects, not objects: one exists when something is in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectKey {
    pub kind: ObjectKind,
    /// A DNS label.
    pub namespace: String,
    /// A DNS subdomain, mostly; each kind has its rule.
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

/// One life of an object: another one under the same name has another. A version 4 UUID as text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Uid(pub u128);

impl Uid {
    /// The uid that these random bits spell (RFC 9562, section 5.4). The caller owns the randomness.
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

/// What all objects have. `uid`, `created_at`, `created` and `revision` are the server's: what a client sends in their
/// place is ignored or judged, never stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectMeta {
    /// Chosen by whoever proposes the creation.
    pub uid: Uid,
    /// The creating proposer's clock.
    pub created_at: WallTime,
    /// Where in the log it was created: decides ties that clocks cannot.
    pub created: Revision,
    /// When clients could see it change last. That the leader found a lease expired does not count.
    pub revision: Revision,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub owners: Vec<OwnerReference>,
    /// Who last wrote which field, as server-side apply needs it; at most one per manager and operation.
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

/// `metadata.ownerReferences[]`: kept for clients, never acted on.
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
    /// By server-side apply; otherwise by any other write.
    pub applied: bool,
    pub api_version: String,
    pub at: WallTime,
    /// Paths below the object, such as `spec.holderIdentity` or `metadata.labels["a.b/c"]`.
    pub fields: BTreeSet<String>,
}

/// A native client's process, as long as it lives: what tells two processes with one identity apart. Random.
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

/// A number that grows with every change of a lease's holder and is never used again, also not after the lease was
/// deleted: it is the revision at which the holder got the lease. 0: nobody has held it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FencingToken(pub u64);

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `spec` of a lease. Absent and empty are different things to clients, and the same thing to every decision here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseSpec {
    pub holder: Option<String>,
    /// In milliseconds: native leases may be shorter than the second that Kubernetes counts in.
    pub duration_ms: Option<u64>,
    /// As the client wrote it. Nothing is decided by it.
    pub acquired: Option<MicroTime>,
    /// As the client wrote it. Nothing is decided by it.
    pub renewed: Option<MicroTime>,
    pub transitions: Option<i32>,
    pub strategy: Option<String>,
    pub preferred_holder: Option<String>,
}

impl LeaseSpec {
    /// Who holds it; never empty.
    pub fn held_by(&self) -> Option<&str> {
        self.holder.as_deref().filter(|holder| !holder.is_empty())
    }
    /// How long a renewal is good for.
    pub fn duration(&self) -> Option<Duration> {
        self.duration_ms.map(Duration::from_millis)
    }
}

/// What the cluster knows of a lease's holding, beside what clients wrote. Written at apply time only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Of the present holder, or of the last one.
    pub token: FencingToken,
    /// The native session that holds it. Such a lease is renewed without a log entry, hence nobody takes it away
    /// while its holder lives by the leader's clock, whatever client they use.
    pub session: Option<SessionId>,
    /// The leader's clock ran out without a renewal, and the cluster has agreed on it. Ends with the next renewal.
    pub expired: bool,
}

/// A lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub spec: LeaseSpec,
    pub holding: Holding,
}

impl Lease {
    /// Held by somebody whose time has not run out.
    pub fn is_live(&self) -> bool {
        self.spec.held_by().is_some() && !self.holding.expired
    }
}

/// `spec` of a lease candidate (`v1beta1`, `v1alpha2`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CandidateSpec {
    pub lease_name: String,
    /// Later than `renewed` while the coordinator waits for a sign of life; not a time of anybody's clock.
    pub pinged: Option<MicroTime>,
    /// As the candidate wrote it. Nothing is decided by it.
    pub renewed: Option<MicroTime>,
    pub binary_version: String,
    pub emulation_version: String,
    pub strategy: String,
}

/// A config map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigMap {
    pub data: BTreeMap<String, String>,
    /// Base64, as it travels.
    pub binary_data: BTreeMap<String, String>,
    pub immutable: Option<bool>,
}

/// An object's own part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ObjectBody {
    Lease(Lease),
    LeaseCandidate(CandidateSpec),
    ConfigMap(ConfigMap),
    /// `subsets`, as JSON text: nothing here reads it.
    Endpoints(String),
}

impl ObjectBody {
    /// The kind that this is the body of.
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
    /// Where it stands in the table.
    pub fn key(&self) -> ObjectKey {
        ObjectKey { kind: self.body.kind(), namespace: self.namespace.clone(), name: self.name.clone() }
    }
    /// The lease, if it is one.
    pub fn lease(&self) -> Option<&Lease> {
        match &self.body {
            ObjectBody::Lease(lease) => Some(lease),
            _ => None,
        }
    }
    /// The candidate, if it is one.
    pub fn candidate(&self) -> Option<&CandidateSpec> {
        match &self.body {
            ObjectBody::LeaseCandidate(spec) => Some(spec),
            _ => None,
        }
    }
}

/// One object's change by one entry, as watchers follow it. `None`: it did not or does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectChange {
    pub revision: Revision,
    pub key: ObjectKey,
    pub before: Option<Arc<Object>>,
    pub after: Option<Arc<Object>>,
}

/// How much the cluster protects the holder of a lease from Kubernetes clients that take it while it lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GuardMode {
    /// Whatever the preconditions of a write allow.
    Off,
    /// Writes without a precondition on the revision do not take a live holder's lease, nor renew another's.
    #[default]
    Blind,
    /// No write takes a live holder's lease.
    All,
}

/// What a [`GuardMode`] is set for: a namespace, or one lease in it. The narrower setting counts.
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
