//! The served kinds, the versions of their groups, and their Kubernetes names.

use muster_messages::ObjectKind;

/// The group of leases and their candidates.
pub const COORDINATION: &str = "coordination.k8s.io";

/// A kind of objects, as one version of its group serves it. All versions of a kind show the same objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    pub kind: ObjectKind,
    /// Empty for the core group.
    pub group: &'static str,
    pub version: &'static str,
}

/// Everything that is served. Within a group the preferred version of a kind comes first.
pub const SERVED: [Resource; 6] = [
    Resource { kind: ObjectKind::Lease, group: COORDINATION, version: "v1" },
    Resource { kind: ObjectKind::Lease, group: COORDINATION, version: "v1beta1" },
    Resource { kind: ObjectKind::LeaseCandidate, group: COORDINATION, version: "v1beta1" },
    Resource { kind: ObjectKind::LeaseCandidate, group: COORDINATION, version: "v1alpha2" },
    Resource { kind: ObjectKind::ConfigMap, group: "", version: "v1" },
    Resource { kind: ObjectKind::Endpoints, group: "", version: "v1" },
];

impl Resource {
    /// The resource that a path names.
    pub fn named(group: &str, version: &str, plural: &str) -> Option<Self> {
        SERVED.into_iter().find(|r| r.group == group && r.version == version && r.plural() == plural)
    }
    /// As in paths: `leases`.
    pub fn plural(self) -> &'static str {
        match self.kind {
            ObjectKind::Lease => "leases",
            ObjectKind::LeaseCandidate => "leasecandidates",
            ObjectKind::ConfigMap => "configmaps",
            ObjectKind::Endpoints => "endpoints",
        }
    }
    /// As people may type it: `lease`.
    pub fn singular(self) -> &'static str {
        match self.kind {
            ObjectKind::Lease => "lease",
            ObjectKind::LeaseCandidate => "leasecandidate",
            ObjectKind::ConfigMap => "configmap",
            ObjectKind::Endpoints => "endpoints",
        }
    }
    /// Abbreviations for people.
    pub fn short_names(self) -> &'static [&'static str] {
        match self.kind {
            ObjectKind::Lease | ObjectKind::LeaseCandidate => &[],
            ObjectKind::ConfigMap => &["cm"],
            ObjectKind::Endpoints => &["ep"],
        }
    }
    /// The `kind` of objects: `Lease`.
    pub fn kind_name(self) -> &'static str {
        match self.kind {
            ObjectKind::Lease => "Lease",
            ObjectKind::LeaseCandidate => "LeaseCandidate",
            ObjectKind::ConfigMap => "ConfigMap",
            ObjectKind::Endpoints => "Endpoints",
        }
    }
    /// The `apiVersion` of objects.
    pub fn api_version(self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }
    /// `leases.coordination.k8s.io`, as messages name it.
    pub fn qualified(self) -> String {
        qualify(self.plural(), self.group)
    }
    /// `Lease.coordination.k8s.io`, as messages about validity name it.
    pub fn qualified_kind(self) -> String {
        qualify(self.kind_name(), self.group)
    }
    /// Whether a PUT of a missing object creates it.
    pub(crate) fn put_creates(self) -> bool {
        self.kind != ObjectKind::ConfigMap
    }
    /// Whether a PUT may omit the resource version (config maps and endpoints). Not for the kinds used for elections
    /// today.
    pub(crate) fn put_may_be_blind(self) -> bool {
        matches!(self.kind, ObjectKind::ConfigMap | ObjectKind::Endpoints)
    }
}

fn qualify(word: &str, group: &str) -> String {
    if group.is_empty() { word.to_owned() } else { format!("{word}.{group}") }
}
