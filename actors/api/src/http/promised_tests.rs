use std::path::Path;

use serde_json::{Value, json};

use super::broken;
use crate::tests::description;

/// The description of the last release. Before the first one there is none.
const RELEASED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/openapi/released.json");

/// A14. `RELEASE=1` makes the present description the released one (docs/crates.md, "Making a release"), once nothing is broken.
#[test]
fn nothing_of_the_released_api_is_taken_away() {
    let now = description();
    if Path::new(RELEASED).exists() {
        let released = std::fs::read_to_string(RELEASED).unwrap();
        let broken = broken(&serde_json::from_str(&released).unwrap(), &now);
        assert_eq!(broken, [""; 0], "clients of the last release would break");
    }
    if std::env::var_os("RELEASE").is_some() {
        std::fs::write(RELEASED, serde_json::to_string_pretty(&now).unwrap() + "\n").unwrap();
    }
}

/// What is compared is what is served: each of its operations counts.
#[test]
fn operations_of_the_present_api_are_missed_if_gone() {
    let all = description();
    assert_eq!(broken(&all, &all), [""; 0]);
    for (path, methods) in all["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let mut less = all.clone();
            less["paths"][path].as_object_mut().unwrap().remove(method);
            assert_eq!(broken(&all, &less), [format!("{} {path}: is gone", method.to_uppercase())]);
        }
    }
}

/// A description with an operation of each kind.
fn small() -> Value {
    json!({
        "paths": {
            "/v1/things": {"get": {
                "parameters": [{"name": "limit", "in": "query", "schema": {"type": "integer", "maximum": 9}}],
                "responses": {"200": {
                    "headers": {"Muster-Request-Id": {}},
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Things"}}, "text/event-stream": {}},
                }, "default": {"$ref": "#/components/responses/Error"}},
            }},
            "/v1/things/{name}": {"post": {
                "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Change"}}}},
                "responses": {"200": {"content": {"application/json": {"schema": {"oneOf": [
                    {"$ref": "#/components/schemas/Thing"}, {"$ref": "#/components/schemas/Refused"},
                ]}}}}},
            }},
        },
        "components": {
            "responses": {"Error": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Refused"}}}}},
            "schemas": {
                "Things": {"type": "object", "properties": {
                    "items": {"type": "array", "items": {"$ref": "#/components/schemas/Thing"}},
                }, "required": ["items"]},
                "Thing": {"type": "object", "properties": {
                    "name": {"type": "string"},
                    "parent": {"$ref": "#/components/schemas/Thing"},
                    "size": {"type": ["integer", "null"]},
                    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                }, "required": ["name", "size"]},
                "Refused": {"type": "object", "properties": {"code": {"type": "string", "enum": ["no"]}}, "required": ["code"]},
                "Change": {"type": "object", "properties": {
                    "name": {"type": "string", "maxLength": 9},
                    "mode": {"type": "string", "enum": ["soft", "hard"]},
                    "to": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
                }, "required": ["name"]},
            },
        },
    })
}

/// The description with another value at a place; null: with none.
fn with(place: &str, value: Value) -> Value {
    let mut document = small();
    let (parent, last) = place.rsplit_once('/').unwrap();
    let last = &last.replace("~1", "/");
    let parent = document.pointer_mut(parent).unwrap_or_else(|| panic!("no {parent}"));
    match (parent, value) {
        (Value::Object(members), Value::Null) => drop(members.remove(last).unwrap()),
        (Value::Object(members), value) => drop(members.insert(last.to_owned(), value)),
        (Value::Array(items), value) if last == "-" => items.push(value),
        (parent, _) => panic!("{parent}"),
    }
    document
}

const LIST: &str = "/paths/~1v1~1things/get";
const WRITE: &str = "/paths/~1v1~1things~1{name}/post";
const SCHEMAS: &str = "/components/schemas";

#[test]
fn what_would_break_a_client_is_named() {
    let cases = [
        ("/paths/~1v1~1things".to_owned(), json!(null), "GET /v1/things: is gone"),
        (format!("{LIST}/parameters/0/name"), json!("most"), "GET /v1/things, parameter limit: is gone"),
        (format!("{LIST}/parameters/0/required"), json!(true), "the parameter limit is required"),
        (format!("{LIST}/parameters/0/schema/maximum"), json!(8), "parameter limit: maximum was 9, and is 8"),
        (format!("{LIST}/parameters/0/schema/type"), json!("string"), "parameter limit: its type was \"integer\""),
        (format!("{LIST}/parameters/-"), json!({"name": "of", "in": "query", "required": true}), "of is required"),
        (format!("{LIST}/responses/200"), json!(null), "answer 200: is gone"),
        (format!("{LIST}/responses/200/headers/Muster-Request-Id"), json!(null), "the header Muster-Request-Id"),
        (format!("{LIST}/responses/200/content/text~1event-stream"), json!(null), "text/event-stream is gone"),
        (format!("{WRITE}/requestBody"), json!(null), "body: application/json is gone"),
        (format!("{WRITE}/requestBody/required"), json!(true), "a body is required"),
        (format!("{SCHEMAS}/Thing/properties/labels"), json!(null), "answer 200.items[].labels: is gone"),
        (format!("{SCHEMAS}/Thing/required"), json!(["name"]), "answer 200.items[].size: may be missing now"),
        (
            format!("{SCHEMAS}/Thing/properties/name/type"),
            json!("integer"),
            "its type was \"string\", and is \"integer\"",
        ),
        (format!("{SCHEMAS}/Thing/properties/name/type"), json!(["string", "null"]), "items[].name: its type was"),
        (
            format!("{SCHEMAS}/Thing/properties/labels/additionalProperties/type"),
            json!("integer"),
            "labels.*: its type",
        ),
        (format!("{SCHEMAS}/Things/properties/items/items"), json!(null), "items[]: its type was"),
        (format!("{SCHEMAS}/Refused/properties/code"), json!(null), "answer default.code: is gone"),
        (
            format!("{WRITE}/responses/200/content/application~1json/schema/oneOf/-"),
            json!({"type": "string"}),
            "answered now",
        ),
        (format!("{SCHEMAS}/Change/required"), json!(["name", "mode"]), "body.mode: is required"),
        (format!("{SCHEMAS}/Change/properties/mode"), json!(null), "body.mode: is gone"),
        (format!("{SCHEMAS}/Change/properties/mode/enum"), json!(["soft"]), "body.mode: \"hard\" is not accepted"),
        (format!("{SCHEMAS}/Change/properties/name/enum"), json!(["a"]), "body.name: only some values are accepted"),
        (format!("{SCHEMAS}/Change/properties/name/maxLength"), json!(8), "maxLength was 9, and is 8"),
        (format!("{SCHEMAS}/Change/properties/name/minLength"), json!(1), "minLength was null, and is 1"),
        (format!("{SCHEMAS}/Change/properties/name/pattern"), json!("^a"), "its pattern is another one"),
        (format!("{SCHEMAS}/Change/properties/to/oneOf"), json!([{"type": "string"}]), "is not accepted any more"),
        (format!("{SCHEMAS}/Change/additionalProperties"), json!(false), "other fields are refused"),
    ];
    for (place, value, said) in cases {
        let found = broken(&small(), &with(&place, value.clone()));
        assert!(found.iter().any(|it| it.contains(said)), "{place} {value}: {said:?} is not in {found:#?}");
    }
}

#[test]
fn what_is_added_breaks_no_client() {
    let cases = [
        ("/paths/~1v1~1other".to_owned(), json!({"get": {}})),
        (format!("{LIST}/parameters/-"), json!({"name": "of", "in": "query"})),
        (format!("{LIST}/parameters/0/schema/maximum"), json!(10)),
        (format!("{LIST}/parameters/0/schema/type"), json!(["integer", "string"])),
        (format!("{LIST}/responses/202"), json!({"content": {}})),
        (format!("{SCHEMAS}/Thing/properties/owner"), json!({"type": "string"})),
        (format!("{SCHEMAS}/Thing/required/-"), json!("labels")),
        (format!("{SCHEMAS}/Thing/properties/size/type"), json!("integer")),
        (format!("{SCHEMAS}/Thing/properties/name/maxLength"), json!(5)),
        (format!("{SCHEMAS}/Refused/properties/code/enum"), json!(["no", "never"])),
        (format!("{SCHEMAS}/Change/properties/size"), json!({"type": "integer"})),
        (format!("{SCHEMAS}/Change/required"), json!([])),
        (format!("{SCHEMAS}/Change/properties/name/maxLength"), json!(null)),
        (format!("{SCHEMAS}/Change/properties/mode/enum/-"), json!("late")),
        (format!("{SCHEMAS}/Change/properties/to/oneOf/-"), json!({"type": "boolean"})),
    ];
    for (place, value) in cases {
        assert_eq!(broken(&small(), &with(&place, value.clone())), [""; 0], "{place} {value}");
    }
}
