//! Paths of the served kinds, with their operations and parameters.

use serde_json::{Map, Value, json};

use super::schemas;
use crate::resource::Resource;

/// The specification of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spec {
    V2,
    V3,
}

impl Spec {
    /// A schema by its name.
    pub(super) fn reference(self, name: &str) -> Value {
        match self {
            Spec::V2 => json!({"$ref": format!("#/definitions/{name}")}),
            Spec::V3 => json!({"$ref": format!("#/components/schemas/{name}")}),
        }
    }
}

const PATCHES: [&str; 4] = [
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];
const BODIES: [&str; 3] = ["application/json", "application/vnd.kubernetes.protobuf", "application/yaml"];

/// Query parameters of writes, with their effects. `force` is only for patches.
const DRY_RUN: (&str, &str) = ("dryRun", "All: the request is validated and answered, but nothing is stored");
const MANAGER: (&str, &str) = ("fieldManager", "the name of the client, recorded as owner of the fields it writes");
const VALIDATION: (&str, &str) = ("fieldValidation", "Ignore, Warn or Strict: how unknown fields are treated");

/// `/apis/coordination.k8s.io/v1`.
pub(super) fn base(resource: Resource) -> String {
    match resource.group {
        "" => format!("/api/{}", resource.version),
        group => format!("/apis/{group}/{}", resource.version),
    }
}

/// The paths of one kind.
pub(super) fn of(resource: Resource, spec: Spec) -> Map<String, Value> {
    let (base, plural) = (base(resource), resource.plural());
    let operation = |action: &str, verb: &str| operation(resource, spec, action, verb);
    let mut many = json!({
        "get": operation("list", "list"),
        "post": operation("post", "create"),
        "delete": operation("deletecollection", "deletecollection"),
    });
    let mut one = json!({
        "get": operation("get", "read"),
        "put": operation("put", "replace"),
        "patch": operation("patch", "patch"),
        "delete": operation("delete", "delete"),
    });
    many["parameters"] = json!([in_path("namespace", spec)]);
    one["parameters"] = json!([in_path("name", spec), in_path("namespace", spec)]);
    let everywhere = json!({"get": operation("list", "list")});
    Map::from_iter([
        (format!("{base}/{plural}"), everywhere),
        (format!("{base}/namespaces/{{namespace}}/{plural}"), many),
        (format!("{base}/namespaces/{{namespace}}/{plural}/{{name}}"), one),
    ])
}

fn operation(resource: Resource, spec: Spec, action: &str, verb: &str) -> Value {
    let mut parameters: Vec<Value> = match action {
        "post" | "put" => vec![query(DRY_RUN, spec), query(MANAGER, spec), query(VALIDATION, spec)],
        "patch" => {
            let force = ("force", "apply: takes over fields that other managers own");
            let mut force = query(force, spec);
            match spec {
                Spec::V2 => force["type"] = "boolean".into(),
                Spec::V3 => force["schema"] = json!({"type": "boolean"}),
            }
            vec![query(DRY_RUN, spec), query(MANAGER, spec), query(VALIDATION, spec), force]
        }
        "delete" | "deletecollection" => vec![query(DRY_RUN, spec)],
        _ => Vec::new(),
    };
    let schema = spec.reference(&schemas::name(resource));
    let (body, types): (Option<Value>, &[&str]) = match action {
        "post" | "put" => (Some(schema.clone()), &BODIES),
        "patch" => (Some(json!({"type": "object"})), &PATCHES),
        _ => (None, &[]),
    };
    // A list's schema is omitted: no client reads it.
    let answer = matches!(action, "get" | "post" | "put" | "patch").then_some(schema);
    let gvk = json!({"group": resource.group, "version": resource.version, "kind": resource.kind_name()});
    let mut operation = json!({
        "description": format!("{verb} {}", resource.plural()),
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": gvk,
    });
    let mut ok = json!({"description": "OK"});
    match spec {
        Spec::V2 => {
            if let Some(answer) = answer {
                ok["schema"] = answer;
            }
            operation["produces"] = json!(["application/json"]);
            operation["consumes"] = if types.is_empty() { json!(["*/*"]) } else { json!(types) };
            parameters
                .extend(body.map(|schema| json!({"name": "body", "in": "body", "required": true, "schema": schema})));
        }
        Spec::V3 => {
            if let Some(answer) = answer {
                ok["content"] = json!({"application/json": {"schema": answer}});
            }
            if let Some(schema) = body {
                let content: Map<_, _> = types.iter().map(|t| ((*t).to_owned(), json!({"schema": schema}))).collect();
                operation["requestBody"] = json!({"required": true, "content": content});
            }
        }
    }
    operation["parameters"] = parameters.into();
    operation["responses"] = json!({"200": ok});
    operation
}

fn query((name, description): (&str, &str), spec: Spec) -> Value {
    let mut parameter = json!({"name": name, "in": "query", "description": description});
    typed(&mut parameter, spec);
    parameter
}

fn in_path(name: &str, spec: Spec) -> Value {
    let mut parameter = json!({"name": name, "in": "path", "required": true});
    typed(&mut parameter, spec);
    parameter
}

fn typed(parameter: &mut Value, spec: Spec) {
    match spec {
        Spec::V2 => parameter["type"] = "string".into(),
        Spec::V3 => parameter["schema"] = json!({"type": "string"}),
    }
}
