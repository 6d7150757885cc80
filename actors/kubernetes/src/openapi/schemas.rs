//! Schemas of the served kinds and of their parts.

use muster_messages::ObjectKind;
use serde_json::{Map, Value, json};

use super::paths::Spec;
use crate::resource::{Resource, SERVED};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const OWNER: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference";
const MANAGED: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ManagedFieldsEntry";
const SUBSET: &str = "io.k8s.api.core.v1.EndpointSubset";
const ADDRESS: &str = "io.k8s.api.core.v1.EndpointAddress";
const PORT: &str = "io.k8s.api.core.v1.EndpointPort";

/// The type of a field.
#[derive(Clone, Copy)]
enum Type {
    Text,
    Int32,
    Int64,
    Flag,
    Time,
    Texts,
    TextMap,
    BytesMap,
    /// Any object.
    Object,
    Of(&'static str),
    /// A list, with the key by which a strategic merge patch finds its items.
    Many(&'static str, Option<&'static str>),
}

use Type::{BytesMap, Flag, Int32, Int64, Many, Object, Of, Text, TextMap, Texts, Time};

type Field = (&'static str, Type, &'static str);

const OBJECT_META: &[Field] = &[
    ("annotations", TextMap, "texts that programs attach; muster.dev/fencing-token is set by the cluster"),
    ("creationTimestamp", Time, "when it was created, by the cluster's clock"),
    ("deletionGracePeriodSeconds", Int64, "accepted and not used"),
    ("deletionTimestamp", Time, "accepted and not used"),
    ("finalizers", Texts, "refused: finalizers are not supported"),
    ("generateName", Text, "the beginning of a name that the cluster completes"),
    ("generation", Int64, "accepted and not used"),
    ("labels", TextMap, "matched by selectors"),
    ("managedFields", Many(MANAGED, None), "the owner of each field; maintained by the cluster"),
    ("name", Text, "unique among the objects of one kind in one namespace"),
    ("namespace", Text, "the scope in which the name is unique"),
    ("ownerReferences", Many(OWNER, Some("uid")), "the objects that own this one; it is not deleted with its owner"),
    ("resourceVersion", Text, "the revision of the cluster that wrote the object; in a write, the one that was read"),
    ("selfLink", Text, "accepted and not used"),
    ("uid", Text, "unique for the life of the object"),
];
const OWNER_REFERENCE: &[Field] = &[
    ("apiVersion", Text, "the owner's API version"),
    ("blockOwnerDeletion", Flag, "kept and not used"),
    ("controller", Flag, "whether the owner manages this object"),
    ("kind", Text, "the owner's kind"),
    ("name", Text, "the owner's name"),
    ("uid", Text, "the owner's uid"),
];
const MANAGED_FIELDS: &[Field] = &[
    ("apiVersion", Text, "the version in which the fields are written"),
    ("fieldsType", Text, "FieldsV1"),
    ("fieldsV1", Object, "the fields"),
    ("manager", Text, "their owner"),
    ("operation", Text, "Apply or Update"),
    ("subresource", Text, "always empty"),
    ("time", Time, "when the manager last changed one of them"),
];
const LEASE: &[Field] = &[
    ("acquireTime", Time, "when the current holder acquired the lease, by its own clock"),
    ("holderIdentity", Text, "the holder of the lease; empty: it is free"),
    ("leaseDurationSeconds", Int32, "how long a renewal is valid"),
    ("leaseTransitions", Int32, "how often the holder changed, as clients count"),
    ("preferredHolder", Text, "the candidate to which the current holder should yield; needs a strategy"),
    ("renewTime", Time, "the last renewal, by the holder's clock; the cluster counts by its own"),
    ("strategy", Text, "how the holder is chosen in a coordinated election"),
];
const CANDIDATE: &[Field] = &[
    ("binaryVersion", Text, "the version of the candidate's binary"),
    ("emulationVersion", Text, "the version that the candidate emulates"),
    ("leaseName", Text, "the lease that it is a candidate for; immutable"),
    ("pingTime", Time, "when the cluster last pinged the candidate"),
    ("renewTime", Time, "the candidate's last renewal"),
    ("strategy", Text, "how the candidate wants the holder to be chosen"),
];
const CONFIG_MAP: &[Field] = &[
    ("binaryData", BytesMap, "bytes by key, in base64"),
    ("data", TextMap, "texts by key"),
    ("immutable", Flag, "whether data may no longer change"),
];
const ENDPOINTS: &[Field] = &[("subsets", Many(SUBSET, None), "kept and not used")];
const SUBSETS: &[Field] = &[
    ("addresses", Many(ADDRESS, None), "addresses that are ready"),
    ("notReadyAddresses", Many(ADDRESS, None), "addresses that are not ready"),
    ("ports", Many(PORT, None), "ports of the addresses"),
];
const ADDRESSES: &[Field] = &[
    ("hostname", Text, "its host name"),
    ("ip", Text, "its address"),
    ("nodeName", Text, "the node that it is on"),
    ("targetRef", Object, "the object that it belongs to"),
];
const PORTS: &[Field] = &[
    ("appProtocol", Text, "the protocol of the application"),
    ("name", Text, "its name"),
    ("port", Int32, "its number"),
    ("protocol", Text, "TCP, UDP or SCTP"),
];

/// The name of a kind's schema: `io.k8s.api.coordination.v1.Lease`.
pub(super) fn name(resource: Resource) -> String {
    let group = if resource.group.is_empty() { "core" } else { "coordination" };
    format!("io.k8s.api.{group}.{}.{}", resource.version, resource.kind_name())
}

/// All schemas, by name.
pub(super) fn all(spec: Spec) -> Value {
    let parts = [
        (META, OBJECT_META),
        (OWNER, OWNER_REFERENCE),
        (MANAGED, MANAGED_FIELDS),
        (SUBSET, SUBSETS),
        (ADDRESS, ADDRESSES),
        (PORT, PORTS),
    ];
    let mut all: Map<String, Value> =
        parts.into_iter().map(|(name, fields)| (name.to_owned(), object(spec, "", fields))).collect();
    for resource in SERVED {
        let name = name(resource);
        let (description, spec_fields, own) = match resource.kind {
            ObjectKind::Lease => ("the current leader and its lease duration", Some(LEASE), &[][..]),
            ObjectKind::LeaseCandidate => ("a candidate of a coordinated election", Some(CANDIDATE), &[][..]),
            ObjectKind::ConfigMap => ("data by key, and the lock of older clients", None, CONFIG_MAP),
            ObjectKind::Endpoints => ("addresses, and the lock of the oldest clients", None, ENDPOINTS),
        };
        let mut schema = object(spec, description, own);
        let properties = &mut schema["properties"];
        properties["apiVersion"] = json!({"type": "string", "description": "the group and version of the kind"});
        properties["kind"] = json!({"type": "string", "description": "the kind"});
        properties["metadata"] = property(spec, Of(META), "name, labels and what the cluster records for every object");
        if let Some(fields) = spec_fields {
            let inner = format!("{name}Spec");
            properties["spec"] = described(spec, spec.reference(&inner), "the object's specification");
            all.insert(inner, object(spec, "", fields));
        }
        let gvk = json!({"group": resource.group, "version": resource.version, "kind": resource.kind_name()});
        schema["x-kubernetes-group-version-kind"] = json!([gvk]);
        all.insert(name, schema);
    }
    Value::Object(all)
}

fn object(spec: Spec, description: &str, fields: &[Field]) -> Value {
    let properties: Map<String, Value> =
        fields.iter().map(|(name, of, doc)| ((*name).to_owned(), property(spec, *of, doc))).collect();
    let mut object = json!({"type": "object", "properties": properties});
    if !description.is_empty() {
        object["description"] = description.into();
    }
    object
}

fn property(spec: Spec, of: Type, doc: &str) -> Value {
    let schema = match of {
        Text => json!({"type": "string"}),
        Int32 => json!({"type": "integer", "format": "int32"}),
        Int64 => json!({"type": "integer", "format": "int64"}),
        Flag => json!({"type": "boolean"}),
        Time => json!({"type": "string", "format": "date-time"}),
        Texts => {
            json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-patch-strategy": "merge"})
        }
        TextMap => json!({"type": "object", "additionalProperties": {"type": "string"}}),
        BytesMap => json!({"type": "object", "additionalProperties": {"type": "string", "format": "byte"}}),
        Object => json!({"type": "object"}),
        Of(name) => spec.reference(name),
        Many(name, key) => {
            let mut list = json!({"type": "array", "items": spec.reference(name)});
            if let Some(key) = key {
                list["x-kubernetes-patch-merge-key"] = key.into();
                list["x-kubernetes-patch-strategy"] = "merge".into();
            }
            list
        }
    };
    described(spec, schema, doc)
}

/// Version 3 allows nothing next to a reference unless the reference is wrapped.
fn described(spec: Spec, schema: Value, doc: &str) -> Value {
    let mut schema = match spec {
        Spec::V3 if schema.get("$ref").is_some() => json!({"allOf": [schema], "default": {}}),
        _ => schema,
    };
    schema["description"] = doc.into();
    schema
}
