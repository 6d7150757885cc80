//! OpenAPI documents of the served kinds: kubectl reads them before it writes, and to explain fields.
//!
//! ```text
//! schemas ─┬─ v3 ──► /openapi/v3, /openapi/v3/api/v1, /openapi/v3/apis/GROUP/VERSION   JSON
//!          └─ v2 ──► /openapi/v2                                                       JSON, or protobuf (kubectl 1.20)
//! ```
//!
//! Built once from tables in code. Tests compare the tables with the served kinds and the fields that are read.

mod binary;
mod paths;
mod schemas;

use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::negotiate;
use crate::resource::SERVED;
use crate::route::Ask;
use crate::status::Status;

/// The only media type that older releases of kubectl accept for `/openapi/v2`, and the type that the answer states.
/// (Go reads no media type with an `@`: clients fail on an answer that repeats the name they asked with.)
const REQUESTED_BINARY: [&str; 2] = ["proto-openapi.spec.v2@v1.0+protobuf", "proto-openapi.spec.v2.v1.0+protobuf"];
const BINARY: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
const JSON: &str = "application/json";

/// A document of one of the two specifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenApi {
    /// `/openapi/v2`, as JSON.
    V2,
    /// `/openapi/v2`, in protobuf.
    V2Binary,
    /// `/openapi/v3`: the list of the documents of all group versions.
    Index,
    /// The document of the group version at this index of [`SERVED`].
    V3(usize),
}

impl OpenApi {
    pub(crate) fn at(parts: &[&str]) -> Option<Self> {
        let of = |group: &str, version: &str| SERVED.iter().position(|r| r.group == group && r.version == version);
        match parts {
            ["openapi", "v2"] => Some(Self::V2),
            ["openapi", "v3"] => Some(Self::Index),
            ["openapi", "v3", "api", version] => of("", version).map(Self::V3),
            ["openapi", "v3", "apis", group, version] if !group.is_empty() => of(group, version).map(Self::V3),
            _ => None,
        }
    }

    /// The form that the client accepts. Only `/openapi/v2` is available in another form than JSON.
    pub(crate) fn accepted(self, accept: Option<&str>) -> Result<Self, Status> {
        match (self, negotiate::format(accept)) {
            (Self::V2, _) if REQUESTED_BINARY.iter().any(|name| accept.is_some_and(|accept| accept.contains(name))) => {
                Ok(Self::V2Binary)
            }
            (_, Err(status)) => Err(status),
            (document, Ok(_)) => Ok(document),
        }
    }
}

/// The requested OpenAPI document, with its content type; `None`: the request is for another document.
pub fn openapi(ask: &Ask) -> Option<(&'static str, &'static [u8])> {
    static DOCUMENTS: LazyLock<Documents> = LazyLock::new(Documents::make);
    let documents = &*DOCUMENTS;
    match ask.openapi()? {
        OpenApi::V2 => Some((JSON, &documents.v2)),
        OpenApi::V2Binary => Some((BINARY, &documents.v2_binary)),
        OpenApi::Index => Some((JSON, &documents.index)),
        OpenApi::V3(number) => documents.v3.get(number).map(|document| (JSON, document.as_slice())),
    }
}

struct Documents {
    v2: Vec<u8>,
    v2_binary: Vec<u8>,
    index: Vec<u8>,
    v3: Vec<Vec<u8>>,
}

impl Documents {
    fn make() -> Self {
        let v2 = v2();
        Self {
            v2_binary: binary::document(&v2),
            v2: v2.to_string().into_bytes(),
            index: index().to_string().into_bytes(),
            v3: (0..SERVED.len()).map(|number| v3(number).to_string().into_bytes()).collect(),
        }
    }
}

fn info() -> Value {
    json!({"title": "Muster", "version": env!("CARGO_PKG_VERSION")})
}

fn v2() -> Value {
    let paths = SERVED.iter().flat_map(|resource| paths::of(*resource, paths::Spec::V2)).collect();
    json!({"swagger": "2.0", "info": info(), "paths": Value::Object(paths), "definitions": schemas::all(paths::Spec::V2)})
}

fn v3(number: usize) -> Value {
    let of = SERVED[number];
    let same = SERVED.iter().filter(|other| (other.group, other.version) == (of.group, of.version));
    let paths = same.flat_map(|resource| paths::of(*resource, paths::Spec::V3)).collect();
    let schemas = schemas::all(paths::Spec::V3);
    json!({"openapi": "3.0.0", "info": info(), "paths": Value::Object(paths), "components": {"schemas": schemas}})
}

fn index() -> Value {
    let entry = |resource: &crate::resource::Resource| {
        let path = paths::base(*resource);
        let url = format!("/openapi/v3{path}");
        (path.trim_start_matches('/').to_owned(), json!({"serverRelativeURL": url}))
    };
    json!({"paths": SERVED.iter().map(entry).collect::<serde_json::Map<_, _>>()})
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use muster_messages::{ObjectKind, WallTime};

    use super::*;
    use crate::document::{CandidateFields, Document, LeaseFields, Meta, Owner};
    use crate::route::{Head, route};
    use crate::time::{Micros, Seconds};

    fn get(target: &str, accept: &str) -> Result<(&'static str, &'static [u8]), u16> {
        let ask = route(Head { method: "GET", target, accept: Some(accept), ..Head::default() });
        ask.map(|ask| openapi(&ask).expect("a document")).map_err(|status| status.reason.code())
    }

    fn parsed(target: &str) -> Value {
        serde_json::from_slice(get(target, JSON).unwrap().1).unwrap()
    }

    #[test]
    fn every_kind_served_has_a_path_and_a_schema() {
        let index = parsed("/openapi/v3");
        for resource in SERVED {
            let key = paths::base(resource);
            let url = index["paths"][key.trim_start_matches('/')]["serverRelativeURL"].as_str().unwrap().to_owned();
            let (v3, v2) = (parsed(&url), parsed("/openapi/v2"));
            let path = format!("{key}/namespaces/{{namespace}}/{}/{{name}}", resource.plural());
            let gvk = json!({"group": resource.group, "version": resource.version, "kind": resource.kind_name()});
            for (document, schemas) in [(&v3, &v3["components"]["schemas"]), (&v2, &v2["definitions"])] {
                let patch = &document["paths"][&path]["patch"];
                assert_eq!(patch["x-kubernetes-group-version-kind"], gvk, "{path}");
                let parameters = patch["parameters"].as_array().unwrap();
                for name in ["dryRun", "fieldValidation", "fieldManager"] {
                    assert!(parameters.iter().any(|p| p["name"] == name && p["in"] == "query"), "{path} {name}");
                }
                let of = |schema: &&Value| schema["x-kubernetes-group-version-kind"] == json!([gvk]);
                assert_eq!(schemas.as_object().unwrap().values().filter(of).count(), 1, "{gvk}");
            }
        }
    }

    #[test]
    fn openapi_references_resolve_to_schemas() {
        fn references(value: &Value, found: &mut BTreeSet<String>) {
            match value {
                Value::Object(map) => {
                    found.extend(map.get("$ref").and_then(Value::as_str).map(str::to_owned));
                    map.values().for_each(|value| references(value, found));
                }
                Value::Array(items) => items.iter().for_each(|value| references(value, found)),
                _ => {}
            }
        }
        for target in ["/openapi/v2", "/openapi/v3/api/v1", "/openapi/v3/apis/coordination.k8s.io/v1"] {
            let (document, mut found) = (parsed(target), BTreeSet::new());
            references(&document, &mut found);
            assert!(!found.is_empty(), "{target}");
            for reference in found {
                let pointer = reference.strip_prefix('#').unwrap();
                assert!(document.pointer(pointer).is_some(), "{target}: {reference}");
            }
        }
    }

    /// Compares the keys of an object that has every field with the properties of its schema.
    fn assert_same_fields(what: &str, object: &Value, schema: &str) {
        let keys: BTreeSet<&String> = object.as_object().unwrap().keys().collect();
        let schemas = schemas::all(paths::Spec::V3);
        let properties: BTreeSet<&String> = schemas[schema]["properties"].as_object().unwrap().keys().collect();
        assert!(keys.is_subset(&properties), "{what}: {keys:?} {properties:?}");
    }

    #[test]
    fn fields_that_are_written_are_described() {
        let (time, text) = (Some(Micros::from_parts(0, 0).unwrap()), || Some("x".to_owned()));
        let lease = LeaseFields {
            holder_identity: text(),
            lease_duration_seconds: Some(1),
            acquire_time: time,
            renew_time: time,
            lease_transitions: Some(1),
            strategy: text(),
            preferred_holder: text(),
        };
        assert_same_fields("lease", &serde_json::to_value(lease).unwrap(), "io.k8s.api.coordination.v1.LeaseSpec");
        let candidate = CandidateFields {
            lease_name: "l".into(),
            ping_time: time,
            renew_time: time,
            binary_version: "1".into(),
            emulation_version: "1".into(),
            strategy: "s".into(),
        };
        let candidate = serde_json::to_value(candidate).unwrap();
        assert_same_fields("candidate", &candidate, "io.k8s.api.coordination.v1beta1.LeaseCandidateSpec");
        let meta = Meta {
            name: "n".into(),
            generate_name: "n".into(),
            namespace: "n".into(),
            uid: "u".into(),
            resource_version: "1".into(),
            creation_timestamp: Some(Seconds(WallTime(0))),
            labels: [("a".to_owned(), "b".to_owned())].into(),
            annotations: [("a".to_owned(), "b".to_owned())].into(),
            owner_references: vec![Owner::default()],
            managed_fields: Some(json!([])),
            ..Meta::default()
        };
        assert_same_fields(
            "metadata",
            &serde_json::to_value(meta).unwrap(),
            "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
        );
    }

    /// A value of a property's type, as a client would send it.
    fn sample(schema: &Value, schemas: &Value) -> Value {
        let reference = schema["$ref"].as_str().or_else(|| schema["allOf"][0]["$ref"].as_str());
        if let Some(name) = reference.and_then(|reference| reference.rsplit('/').next()) {
            return sample(&schemas[name], schemas);
        }
        match (schema["type"].as_str().unwrap(), schema["format"].as_str()) {
            ("string", Some("date-time")) => "2026-11-21T05:37:55.525623Z".into(),
            ("string", Some("byte")) => "AQL/".into(),
            ("string", _) => "x".into(),
            ("integer", _) => 1.into(),
            ("boolean", _) => true.into(),
            ("array", _) => json!([sample(&schema["items"], schemas)]),
            ("object", _) => match schema["properties"].as_object() {
                Some(properties) => properties.iter().map(|(key, of)| (key.clone(), sample(of, schemas))).collect(),
                None => json!({}),
            },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn fields_that_are_described_are_read() {
        let schemas = schemas::all(paths::Spec::V3);
        for resource in SERVED {
            let mut body = sample(&schemas[&schemas::name(resource)], &schemas);
            body["apiVersion"] = resource.api_version().into();
            body["kind"] = resource.kind_name().into();
            let mut unknown = Vec::new();
            let read = Document::read(resource, body, &mut unknown);
            assert!(read.is_ok() && unknown.is_empty(), "{resource:?}: {read:?} {unknown:?}");
        }
        assert_eq!(SERVED.iter().filter(|r| r.kind == ObjectKind::Lease).count(), 2);
    }

    #[test]
    fn openapi_v2_is_protobuf_on_request() {
        let asked = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
        let (content_type, body) = get("/openapi/v2", asked).unwrap();
        assert!(!content_type.contains('@'), "Go's clients cannot read it");
        // Field 1 is the version of the specification, three letters long.
        assert_eq!((content_type, &body[..5]), (BINARY, b"\x0a\x032.0".as_slice()));
        assert_eq!(get("/openapi/v2", BINARY).unwrap().0, BINARY);
        assert_eq!(get("/openapi/v2", "application/json").unwrap().0, JSON);
        assert_eq!(get("/openapi/v3", BINARY), Err(406));
        assert_eq!(get("/openapi/v3/apis/apps/v1", JSON), Err(404));
    }

    #[test]
    fn documents_stay_small() {
        for target in ["/openapi/v2", "/openapi/v3/api/v1", "/openapi/v3/apis/coordination.k8s.io/v1"] {
            let size = get(target, JSON).unwrap().1.len();
            assert!(size < 64 * 1024, "{target}: {size}");
        }
    }
}
