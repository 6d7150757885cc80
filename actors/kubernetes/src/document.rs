//! Objects as JSON: [`Object`] to a document and back.
//!
//! A document holds what a client sees. `null` and absent are equal. Fields that the server owns are written into
//! answers and checked in requests, but never taken from them.

use std::collections::BTreeMap;

use muster_messages::{
    CandidateSpec, ConfigMap, Holding, Lease, LeaseSpec, Object, ObjectBody, ObjectKind, OwnerReference, Revision, Uid,
};
use serde::de::DeserializeOwned;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::fields;
use crate::resource::Resource;
use crate::status::Status;
use crate::time::{Micros, Seconds};

/// Shows a lease's fencing token to clients that cannot learn it otherwise. Added to answers, removed from requests:
/// only the cluster determines the token in force.
pub const FENCING_TOKEN: &str = "muster.dev/fencing-token";

/// `metadata`. Empty texts count as absent: protobuf clients send them often.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Meta {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub generate_name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[serde(skip_serializing)]
    pub self_link: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    #[serde(skip_serializing)]
    pub generation: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<Seconds>,
    #[serde(skip_serializing)]
    pub deletion_timestamp: Option<Seconds>,
    #[serde(skip_serializing)]
    pub deletion_grace_period_seconds: i64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub owner_references: Vec<Owner>,
    #[serde(skip_serializing)]
    pub finalizers: Vec<String>,
    /// Shown but not read: ownership follows only from writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managed_fields: Option<Value>,
}

/// `metadata.ownerReferences[]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Owner {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_owner_deletion: Option<bool>,
}

/// `spec` of a lease.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LeaseFields {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder_identity: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_duration_seconds: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acquire_time: Option<Micros>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renew_time: Option<Micros>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_transitions: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preferred_holder: Option<String>,
}

/// `spec` of a lease candidate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct CandidateFields {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub lease_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ping_time: Option<Micros>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renew_time: Option<Micros>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub binary_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub emulation_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub strategy: String,
}

/// The fields that a config map has instead of a `spec`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ConfigMapFields {
    pub data: BTreeMap<String, String>,
    pub binary_data: BTreeMap<String, String>,
    pub immutable: Option<bool>,
}

/// The part specific to an object's kind.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fields {
    Lease(LeaseFields),
    LeaseCandidate(CandidateFields),
    ConfigMap(ConfigMapFields),
    /// `subsets`, which this crate does not interpret.
    Endpoints(Vec<Value>),
}

/// An object as a client sees or sends it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Document {
    pub meta: Meta,
    pub fields: Fields,
}

impl Document {
    /// Reads what a client sent. Fields unknown to the kind are dropped and named in `unknown`.
    pub(crate) fn read(resource: Resource, json: Value, unknown: &mut Vec<String>) -> Result<Self, Status> {
        let Value::Object(mut top) = json else {
            return Err(Status::bad_request(format!("the body is not a {}: not an object", resource.kind_name())));
        };
        drop_nulls_of(&mut top);
        expect(&mut top, "apiVersion", &resource.api_version())?;
        expect(&mut top, "kind", resource.kind_name())?;
        let meta = take(&mut top, "metadata", unknown)?;
        let fields = match resource.kind {
            ObjectKind::Lease => Fields::Lease(take(&mut top, "spec", unknown)?),
            ObjectKind::LeaseCandidate => Fields::LeaseCandidate(take(&mut top, "spec", unknown)?),
            ObjectKind::ConfigMap => Fields::ConfigMap(ConfigMapFields {
                data: take(&mut top, "data", unknown)?,
                binary_data: take(&mut top, "binaryData", unknown)?,
                immutable: take(&mut top, "immutable", unknown)?,
            }),
            ObjectKind::Endpoints => Fields::Endpoints(take(&mut top, "subsets", unknown)?),
        };
        unknown.extend(top.into_iter().map(|(key, _)| key));
        let mut document = Self { meta, fields };
        document.meta.annotations.remove(FENCING_TOKEN);
        Ok(document)
    }

    /// The object as clients see it.
    pub(crate) fn of(object: &Object) -> Self {
        let mut document = Self::without_managers(object);
        let managers = &object.meta.managers;
        document.meta.managed_fields = (!managers.is_empty()).then(|| fields::to_json(managers));
        document
    }

    /// The object as clients see it, but for who owns its fields.
    pub(crate) fn without_managers(object: &Object) -> Self {
        let meta = &object.meta;
        let mut annotations = meta.annotations.clone();
        if let Some(token) = object.lease().map(|lease| lease.holding.token).filter(|token| token.0 > 0) {
            annotations.insert(FENCING_TOKEN.to_owned(), token.to_string());
        }
        // An object that is not in the log yet (created by a dry run) has no revision.
        let revision = if meta.revision == Revision(0) { String::new() } else { meta.revision.to_string() };
        let meta = Meta {
            name: object.name.clone(),
            namespace: object.namespace.clone(),
            uid: meta.uid.to_string(),
            resource_version: revision,
            creation_timestamp: Some(Seconds(meta.created_at)),
            labels: meta.labels.clone(),
            annotations,
            owner_references: meta.owners.iter().map(Owner::of).collect(),
            ..Meta::default()
        };
        Self { meta, fields: Fields::of(&object.body) }
    }

    /// The serialized form.
    pub(crate) fn to_json(&self, resource: Resource) -> Value {
        to_value(self.shown(resource))
    }

    /// The serialized form as text, without a [`Value`] in between: that took a tenth of a leader's time under writes of clients of
    /// Kubernetes.
    pub(crate) fn to_text(&self, resource: Resource) -> String {
        serde_json::to_string(&self.shown(resource)).unwrap_or_default()
    }

    fn shown(&self, resource: Resource) -> Shown<'_> {
        Shown { document: self, resource }
    }

    /// The owners that the document names.
    pub(crate) fn owners(&self) -> Vec<OwnerReference> {
        self.meta.owner_references.iter().cloned().map(Owner::into_reference).collect()
    }
}

/// A document as it is serialized. Leases and candidates have a `spec` even if empty: some clients fail without one.
struct Shown<'a> {
    document: &'a Document,
    resource: Resource,
}

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut top = serializer.serialize_map(None)?;
        top.serialize_entry("apiVersion", &self.resource.api_version())?;
        top.serialize_entry("kind", self.resource.kind_name())?;
        top.serialize_entry("metadata", &self.document.meta)?;
        match &self.document.fields {
            Fields::Lease(spec) => top.serialize_entry("spec", spec)?,
            Fields::LeaseCandidate(spec) => top.serialize_entry("spec", spec)?,
            Fields::ConfigMap(map) => {
                if !map.data.is_empty() {
                    top.serialize_entry("data", &map.data)?;
                }
                if !map.binary_data.is_empty() {
                    top.serialize_entry("binaryData", &map.binary_data)?;
                }
                if let Some(immutable) = map.immutable {
                    top.serialize_entry("immutable", &immutable)?;
                }
            }
            Fields::Endpoints(subsets) if subsets.is_empty() => {}
            Fields::Endpoints(subsets) => top.serialize_entry("subsets", subsets)?,
        }
        top.end()
    }
}

impl Fields {
    fn of(body: &ObjectBody) -> Self {
        match body {
            ObjectBody::Lease(lease) => Self::Lease(LeaseFields::of(&lease.spec)),
            ObjectBody::LeaseCandidate(spec) => Self::LeaseCandidate(CandidateFields {
                lease_name: spec.lease_name.clone(),
                ping_time: spec.pinged.map(Micros),
                renew_time: spec.renewed.map(Micros),
                binary_version: spec.binary_version.clone(),
                emulation_version: spec.emulation_version.clone(),
                strategy: spec.strategy.clone(),
            }),
            ObjectBody::ConfigMap(map) => Self::ConfigMap(ConfigMapFields {
                data: map.data.clone(),
                binary_data: map.binary_data.clone(),
                immutable: map.immutable,
            }),
            // This crate wrote the stored text. If it is unreadable, there are no subsets.
            ObjectBody::Endpoints(subsets) => Self::Endpoints(serde_json::from_str(subsets).unwrap_or_default()),
        }
    }

    /// The body to store, already validated. `old` is the stored one.
    pub(crate) fn body(self, old: Option<&ObjectBody>) -> ObjectBody {
        match self {
            Self::Lease(fields) => {
                let old = match old {
                    Some(ObjectBody::Lease(lease)) => Some(lease),
                    _ => None,
                };
                // Fields that depend on the holder are set when the command is applied.
                let holding = old.map_or_else(Holding::default, |lease| lease.holding);
                ObjectBody::Lease(Lease { spec: fields.spec(old.map(|lease| &lease.spec)), holding })
            }
            Self::LeaseCandidate(fields) => ObjectBody::LeaseCandidate(CandidateSpec {
                lease_name: fields.lease_name,
                pinged: fields.ping_time.map(|t| t.0),
                renewed: fields.renew_time.map(|t| t.0),
                binary_version: fields.binary_version,
                emulation_version: fields.emulation_version,
                strategy: fields.strategy,
            }),
            Self::ConfigMap(map) => ObjectBody::ConfigMap(ConfigMap {
                data: map.data,
                binary_data: map.binary_data,
                immutable: map.immutable,
            }),
            Self::Endpoints(subsets) if subsets.is_empty() => ObjectBody::Endpoints(String::new()),
            Self::Endpoints(subsets) => ObjectBody::Endpoints(Value::Array(subsets).to_string()),
        }
    }
}

impl LeaseFields {
    fn of(spec: &LeaseSpec) -> Self {
        Self {
            holder_identity: spec.holder.clone(),
            lease_duration_seconds: spec.duration_ms.map(seconds_rounded_up),
            acquire_time: spec.acquired.map(Micros),
            renew_time: spec.renewed.map(Micros),
            lease_transitions: spec.transitions,
            strategy: spec.strategy.clone(),
            preferred_holder: spec.preferred_holder.clone(),
        }
    }

    fn spec(self, old: Option<&LeaseSpec>) -> LeaseSpec {
        let kept = old.and_then(|spec| spec.duration_ms);
        LeaseSpec {
            holder: self.holder_identity,
            duration_ms: self.lease_duration_seconds.map(|secs| match kept {
                // The client wrote back what it was shown: a native lease keeps its milliseconds.
                Some(ms) if seconds_rounded_up(ms) == secs => ms,
                _ => u64::try_from(secs).unwrap_or(0) * 1000,
            }),
            acquired: self.acquire_time.map(|t| t.0),
            renewed: self.renew_time.map(|t| t.0),
            transitions: self.lease_transitions,
            strategy: self.strategy,
            preferred_holder: self.preferred_holder,
        }
    }
}

/// Rounded up, so that a client never waits too short.
fn seconds_rounded_up(ms: u64) -> i32 {
    i32::try_from(ms.div_ceil(1000)).unwrap_or(i32::MAX)
}

impl Owner {
    fn of(owner: &OwnerReference) -> Self {
        Self {
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
            controller: owner.controller,
            block_owner_deletion: owner.block_owner_deletion,
        }
    }
    fn into_reference(self) -> OwnerReference {
        OwnerReference {
            api_version: self.api_version,
            kind: self.kind,
            name: self.name,
            uid: self.uid,
            controller: self.controller,
            block_owner_deletion: self.block_owner_deletion,
        }
    }
}

/// An object of the table as JSON.
pub(crate) fn object_json(object: &Object, resource: Resource) -> Value {
    Document::of(object).to_json(resource)
}

/// Whether a text from a client is this uid. An invalid uid matches none.
pub(crate) fn is_uid(text: &str, uid: Uid) -> bool {
    text.parse() == Ok(uid)
}

/// `apiVersion` and `kind` follow from the path. A body may omit them but must not contradict it.
fn expect(top: &mut Map<String, Value>, key: &str, expected: &str) -> Result<(), Status> {
    match top.remove(key) {
        None => Ok(()),
        Some(Value::String(text)) if text == expected || text.is_empty() => Ok(()),
        Some(other) => {
            let message = format!("{key} of the body is {other}, but the path requires {expected:?}");
            Err(Status::bad_request(message))
        }
    }
}

fn take<T: DeserializeOwned + Default>(
    top: &mut Map<String, Value>,
    key: &str,
    unknown: &mut Vec<String>,
) -> Result<T, Status> {
    let Some(value) = top.remove(key) else {
        return Ok(T::default());
    };
    serde_ignored::deserialize(value, |path| unknown.push(format!("{key}.{path}")))
        .map_err(|error| Status::bad_request(format!("{key} is invalid: {error}")))
}

/// A document is always valid JSON: keys are texts, and no number is out of range.
pub(crate) fn to_value(part: impl Serialize) -> Value {
    serde_json::to_value(part).unwrap_or_default()
}

/// Removes `null` entries from objects. Arrays keep them: removing one would shift the items after it.
fn drop_nulls_of(map: &mut Map<String, Value>) {
    map.retain(|_, value| !value.is_null());
    map.values_mut().for_each(drop_nulls);
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => drop_nulls_of(map),
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}
