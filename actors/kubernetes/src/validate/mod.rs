//! Validation of objects. Every violated rule is a cause of its own.

pub(crate) mod names;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use muster_messages::{Object, ObjectBody, ObjectKind};
use semver::Version;
use serde_json::Value;

use crate::document::{CandidateFields, ConfigMapFields, Document, Fields, LeaseFields, Meta};
use crate::resource::Resource;
use crate::status::Cause;

/// The strategy that needs no domain prefix.
const OLDEST_EMULATION_VERSION: &str = "OldestEmulationVersion";

/// The errors in a document that is to replace `old`, or to be new.
pub(crate) fn validate(resource: Resource, document: &Document, old: Option<&Object>) -> Vec<Cause> {
    let mut causes = Vec::new();
    metadata(resource.kind, &document.meta, &mut causes);
    match &document.fields {
        Fields::Lease(spec) => lease(spec, &mut causes),
        Fields::LeaseCandidate(spec) => candidate(spec, old, &mut causes),
        Fields::ConfigMap(map) => config_map(map, old, &mut causes),
        Fields::Endpoints(subsets) => {
            if subsets.iter().any(|subset| !subset.is_object()) {
                causes.push(Cause::invalid("subsets", subsets.clone(), "must be a list of objects"));
            }
        }
    }
    causes
}

fn metadata(kind: ObjectKind, meta: &Meta, causes: &mut Vec<Cause>) {
    let rule = match kind {
        ObjectKind::LeaseCandidate => names::config_key,
        ObjectKind::Lease | ObjectKind::ConfigMap | ObjectKind::Endpoints => names::dns_subdomain,
    };
    if meta.name.is_empty() {
        causes.push(Cause::required("metadata.name", "name or generateName is required"));
    } else if let Some(broken) = rule(&meta.name) {
        causes.push(Cause::invalid("metadata.name", meta.name.as_str(), broken));
    }
    if let Some(broken) = names::dns_label(&meta.namespace) {
        causes.push(Cause::invalid("metadata.namespace", meta.namespace.as_str(), broken));
    }
    for (key, value) in &meta.labels {
        if let Some(broken) = names::qualified(key) {
            causes.push(Cause::invalid("metadata.labels", key.as_str(), broken));
        }
        if let Some(broken) = names::label_value(value) {
            causes.push(Cause::invalid("metadata.labels", value.as_str(), broken));
        }
    }
    for key in meta.annotations.keys() {
        if let Some(broken) = names::qualified(&key.to_ascii_lowercase()) {
            causes.push(Cause::invalid("metadata.annotations", key.as_str(), broken));
        }
    }
    if !meta.finalizers.is_empty() {
        let why =
            "finalizers are not supported on this server: an object no longer exists once its deletion is answered";
        causes.push(Cause::forbidden("metadata.finalizers", why));
    }
    for (at, owner) in meta.owner_references.iter().enumerate() {
        let fields =
            [("apiVersion", &owner.api_version), ("kind", &owner.kind), ("name", &owner.name), ("uid", &owner.uid)];
        for (field, value) in fields {
            if value.is_empty() {
                causes.push(Cause::required(format!("metadata.ownerReferences[{at}].{field}"), "must not be empty"));
            }
        }
    }
}

fn lease(spec: &LeaseFields, causes: &mut Vec<Cause>) {
    if let Some(secs) = spec.lease_duration_seconds.filter(|secs| *secs <= 0) {
        causes.push(Cause::invalid("spec.leaseDurationSeconds", secs, "must be greater than 0"));
    }
    if let Some(count) = spec.lease_transitions.filter(|count| *count < 0) {
        causes.push(Cause::invalid("spec.leaseTransitions", count, "must be greater than or equal to 0"));
    }
    if let Some(name) = &spec.strategy {
        strategy(name, causes);
    }
    let preferred = spec.preferred_holder.as_deref().is_some_and(|holder| !holder.is_empty());
    if preferred && spec.strategy.as_deref().is_none_or(str::is_empty) {
        causes.push(Cause::forbidden("spec.preferredHolder", "may only be specified if `strategy` is"));
    }
}

/// The doubled path is Kubernetes' own, and clients may search for it.
fn strategy(name: &str, causes: &mut Vec<Cause>) {
    let field = "spec.strategy.strategy";
    if !name.contains('/') {
        if name != OLDEST_EMULATION_VERSION {
            causes.push(Cause::unsupported(field, name, &[OLDEST_EMULATION_VERSION]));
        }
    } else if let Some(broken) = names::qualified(name) {
        causes.push(Cause::invalid(field, name, broken));
    }
}

fn candidate(spec: &CandidateFields, old: Option<&Object>, causes: &mut Vec<Cause>) {
    if spec.lease_name.is_empty() {
        causes.push(Cause::required("spec.leaseName", ""));
    } else if let Some(broken) = names::dns_subdomain(&spec.lease_name) {
        // The lease is created under this name when a candidate is elected, and its holder must be able to write it.
        causes.push(Cause::invalid("spec.leaseName", spec.lease_name.as_str(), broken));
    }
    let zero = Version::new(0, 0, 0);
    let mut version = |field: &str, text: &str| {
        let parsed = Version::parse(text);
        if parsed.is_err() && !text.is_empty() {
            causes.push(Cause::invalid(field, text, "must be a valid semantic version"));
        }
        parsed.unwrap_or(Version::new(0, 0, 0))
    };
    let emulation = version("spec.emulationVersion", &spec.emulation_version);
    let binary = version("spec.binaryVersion", &spec.binary_version);
    if spec.binary_version.is_empty() {
        causes.push(Cause::required("spec.binaryVersion", ""));
    } else if !spec.emulation_version.is_empty() && binary.cmp_precedence(&emulation).is_lt() {
        let rule = "must be greater than or equal to `emulationVersion`";
        causes.push(Cause::invalid("spec.binaryVersion", spec.binary_version.as_str(), rule));
    }
    if spec.strategy.is_empty() {
        causes.push(Cause::required("spec.strategy", ""));
    } else {
        if spec.strategy == OLDEST_EMULATION_VERSION && emulation.cmp_precedence(&zero).is_eq() {
            let why = "must be specified when `strategy` is 'OldestEmulationVersion'";
            causes.push(Cause::required("spec.emulationVersion", why));
        }
        strategy(&spec.strategy, causes);
    }
    if let Some(old) = old.and_then(Object::candidate)
        && old.lease_name != spec.lease_name
    {
        causes.push(Cause::invalid("spec.leaseName", spec.lease_name.as_str(), "the field is immutable"));
    }
}

fn config_map(map: &ConfigMapFields, old: Option<&Object>, causes: &mut Vec<Cause>) {
    let sets = [("data", &map.data), ("binaryData", &map.binary_data)];
    for (set, entries) in sets {
        for key in entries.keys() {
            let field = || format!("{set}[{key}]");
            if let Some(broken) = names::config_key(key) {
                causes.push(Cause::invalid(field(), key.as_str(), broken));
            }
            if set == "binaryData" && map.data.contains_key(key) {
                causes.push(Cause::invalid(field(), key.as_str(), "the key already exists in data"));
            }
        }
    }
    for (key, value) in &map.binary_data {
        if STANDARD.decode(value).is_err() {
            causes.push(Cause::invalid(format!("binaryData[{key}]"), value.as_str(), "must be base64"));
        }
    }
    if let Some(ObjectBody::ConfigMap(old)) = old.map(|object| &object.body)
        && old.immutable == Some(true)
    {
        let why = "the field may not change while `immutable` is set";
        if map.immutable != Some(true) {
            causes.push(Cause::forbidden("immutable", why));
        }
        for (set, same) in [("data", map.data == old.data), ("binaryData", map.binary_data == old.binary_data)] {
            if !same {
                causes.push(Cause::forbidden(set, why));
            }
        }
    }
}

/// A PUT must state the revision that it replaces.
pub(crate) fn missing_revision() -> Cause {
    Cause::invalid("metadata.resourceVersion", Value::from(0), "must be specified for an update")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::SERVED;
    use muster_messages::{ConfigMap, ObjectMeta, Uid};
    use serde_json::json;

    /// The causes, as `kind field`.
    fn causes_of(served: usize, body: Value, old: Option<&Object>) -> Vec<String> {
        let resource = SERVED[served];
        let mut body = body;
        if body.get("metadata").is_none() {
            body["metadata"] = json!({"name": "x", "namespace": "ns"});
        }
        let document = Document::read(resource, body, &mut Vec::new()).unwrap();
        let causes = validate(resource, &document, old);
        causes.iter().map(|c| format!("{} {}", c.kind.trim_start_matches("FieldValue"), c.field)).collect()
    }

    fn lease(spec: Value) -> Vec<String> {
        causes_of(0, json!({"spec": spec}), None)
    }

    fn candidate(changed: Value) -> Vec<String> {
        let mut spec = json!({"leaseName": "l", "binaryVersion": "1.30.0", "emulationVersion": "1.29.0",
                              "strategy": "OldestEmulationVersion"});
        spec.as_object_mut().unwrap().extend(changed.as_object().unwrap().clone());
        causes_of(2, json!({"spec": spec}), None)
    }

    #[test]
    fn case_93_name_and_namespace_are_two_errors() {
        let meta = json!({"name": "invalidName++", "namespace": "##&*(&invalidNamespace"});
        assert_eq!(
            causes_of(0, json!({"metadata": meta}), None),
            ["Invalid metadata.name", "Invalid metadata.namespace"]
        );
    }

    #[test]
    fn case_94_good_leases_pass() {
        assert_eq!(lease(json!({})), [""; 0]);
        assert_eq!(lease(json!({"holderIdentity": "x", "leaseDurationSeconds": 10, "leaseTransitions": 0})), [""; 0]);
        let spec = json!({"strategy": "OldestEmulationVersion", "preferredHolder": "x", "holderIdentity": ""});
        assert_eq!(lease(spec), [""; 0]);
    }

    #[test]
    fn case_95_duration_and_transitions_are_two_errors() {
        let spec = json!({"leaseDurationSeconds": 0, "leaseTransitions": -1});
        assert_eq!(lease(spec), ["Invalid spec.leaseDurationSeconds", "Invalid spec.leaseTransitions"]);
    }

    #[test]
    fn case_96_a_preferred_holder_needs_a_strategy() {
        assert_eq!(lease(json!({"preferredHolder": "x"})), ["Forbidden spec.preferredHolder"]);
        assert_eq!(lease(json!({"preferredHolder": ""})), [""; 0]);
    }

    #[test]
    fn case_97_durations_and_transitions() {
        for (spec, bad) in [
            (json!({"leaseDurationSeconds": null}), false),
            (json!({"leaseDurationSeconds": 0}), true),
            (json!({"leaseDurationSeconds": -1}), true),
            (json!({"leaseDurationSeconds": 60}), false),
            (json!({"leaseTransitions": null}), false),
            (json!({"leaseTransitions": 0}), false),
            (json!({"leaseTransitions": 5}), false),
            (json!({"leaseTransitions": -1}), true),
        ] {
            assert_eq!(!lease(spec.clone()).is_empty(), bad, "{spec}");
        }
    }

    #[test]
    fn case_98_candidate_fields_are_required() {
        assert_eq!(candidate(json!({})), [""; 0]);
        assert_eq!(candidate(json!({"leaseName": null})), ["Required spec.leaseName"]);
        // The holder could not write a lease of this name.
        assert_eq!(candidate(json!({"leaseName": "my_lock"})), ["Invalid spec.leaseName"]);
        assert_eq!(
            candidate(json!({"binaryVersion": "1.30.0.0"})),
            ["Invalid spec.binaryVersion", "Invalid spec.binaryVersion"]
        );
        assert_eq!(candidate(json!({"binaryVersion": "1.28.0"})), ["Invalid spec.binaryVersion"]);
        assert_eq!(candidate(json!({"binaryVersion": "v1.30.0"}))[0], "Invalid spec.binaryVersion");
        assert_eq!(candidate(json!({"binaryVersion": null})), ["Required spec.binaryVersion"]);
        assert_eq!(candidate(json!({"strategy": "foo"})), ["NotSupported spec.strategy.strategy"]);
        assert_eq!(candidate(json!({"strategy": null})), ["Required spec.strategy"]);
        assert_eq!(candidate(json!({"emulationVersion": null})), ["Required spec.emulationVersion"]);
        assert_eq!(candidate(json!({"emulationVersion": "0.0.0"})), ["Required spec.emulationVersion"]);
        assert_eq!(candidate(json!({"emulationVersion": null, "strategy": "example.com/mine"})), [""; 0]);
    }

    #[test]
    fn case_99_a_candidates_lease_does_not_change() {
        let spec = muster_messages::CandidateSpec { lease_name: "old".into(), ..Default::default() };
        let meta = ObjectMeta::fresh(Uid(0));
        let old = Object { namespace: "ns".into(), name: "x".into(), meta, body: ObjectBody::LeaseCandidate(spec) };
        let spec = json!({"leaseName": "new", "binaryVersion": "1.0.0", "strategy": "a.b/c"});
        assert_eq!(causes_of(2, json!({"spec": spec}), Some(&old)), ["Invalid spec.leaseName"]);
    }

    #[test]
    fn case_100_strategies() {
        for (strategy, bad) in [
            ("foobar", "NotSupported spec.strategy.strategy"),
            ("", "NotSupported spec.strategy.strategy"),
            ("a/b/c", "Invalid spec.strategy.strategy"),
            ("OldestEmulationVersion", ""),
            ("example.com/x", ""),
        ] {
            let causes = lease(json!({"strategy": strategy}));
            assert_eq!(causes.first().map_or("", String::as_str), bad, "{strategy}");
        }
    }

    #[test]
    fn metadata_is_validated() {
        let meta = json!({
            "namespace": "ns", "labels": {"a b": "c", "d": "-"}, "annotations": {"Example.com/Ok": "", "/bad": ""},
            "finalizers": ["x"], "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p"}],
        });
        assert_eq!(
            causes_of(0, json!({"metadata": meta}), None),
            [
                "Required metadata.name",
                "Invalid metadata.labels",
                "Invalid metadata.labels",
                "Invalid metadata.annotations",
                "Forbidden metadata.finalizers",
                "Required metadata.ownerReferences[0].uid",
            ]
        );
    }

    #[test]
    fn config_maps_are_validated() {
        let map = json!({"data": {"a": "1", "b/c": "2"}, "binaryData": {"a": "AA==", "d": "!"}});
        assert_eq!(causes_of(4, map, None), ["Invalid data[b/c]", "Invalid binaryData[a]", "Invalid binaryData[d]"]);
        let body = ObjectBody::ConfigMap(ConfigMap { immutable: Some(true), ..ConfigMap::default() });
        let old = Object { namespace: "ns".into(), name: "x".into(), meta: ObjectMeta::fresh(Uid(0)), body };
        assert_eq!(causes_of(4, json!({"immutable": true}), Some(&old)), [""; 0]);
        assert_eq!(causes_of(4, json!({"data": {"a": "1"}}), Some(&old)), ["Forbidden immutable", "Forbidden data"]);
    }
}
