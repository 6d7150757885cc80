use muster_messages::Principal;
use serde_json::json;

use crate::tests::{World, description, tables};

#[tokio::test]
async fn unknown_query_parameters_are_named() {
    let world = World::applying(tables());
    for (method, path, ..) in operations() {
        let target = format!("{}?frsh=1", filled(&path));
        let (status, answer) = world.http(&Principal::Operator, &method, &target, "").await;
        assert_eq!(status, 400, "{method} {target}: {answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("`frsh`"), "{method} {target}: {answer}");
    }
    for (target, word) in
        [("/v1/status?fresh=maybe", "fresh"), ("/v1/events?since=x", "since"), ("/v1/nodes?limit=-1", "limit")]
    {
        let (status, answer) = world.http(&Principal::Operator, "GET", target, "").await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("invalid")), "{target}: {answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(word), "{target}: {answer}");
    }
    assert!(world.proposed().is_empty());
    for target in ["/v1/status?fresh=true", "/v1/nodes?limit=1", "/v1/events?since=3&watch=0"] {
        assert_eq!(world.http(&Principal::Operator, "GET", target, "").await.0, 200, "{target}");
    }
}

#[tokio::test]
async fn unknown_fields_of_every_body_are_named() {
    let world = World::applying(tables());
    for (method, path, ..) in operations().into_iter().filter(|(method, ..)| method != "GET") {
        let (status, answer) = world.http(&Principal::Operator, &method, &filled(&path), r#"{"typo_":1}"#).await;
        assert_eq!(status, 400, "{method} {path}: {answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("`typo_`"), "{method} {path}: {answer}");
    }
    assert!(world.proposed().is_empty());
    let (status, answer) = world.http(&Principal::Operator, "POST", "/v1/nodes/n2/promote", "[]").await;
    assert_eq!(status, 400, "{answer}");
}

/// What is refused as unknown must not be what a client may send: every described parameter is taken.
#[tokio::test(start_paused = true)]
async fn described_query_parameters_are_taken() {
    let world = World::with(tables(), |_, _| Some(Ok(())));
    for (method, path, operation) in operations() {
        let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
        for name in parameters.iter().filter(|p| p["in"] == "query").map(|p| p["name"].as_str().unwrap()) {
            let target = format!("{}?{name}=1", filled(&path));
            let (_, answer) = world.http(&Principal::Operator, &method, &target, "").await;
            let text = answer["error"]["message"].as_str().unwrap_or_default();
            let is_unknown = ["unknown query parameter", "unknown field"].iter().any(|refusal| text.contains(refusal));
            assert!(!is_unknown, "{method} {target}: {text}");
        }
    }
}

/// Each described path is routed, and each reference leads somewhere.
#[tokio::test(start_paused = true)]
async fn description_is_complete() {
    let world = World::with(tables(), |_, _| Some(Ok(())));
    for (method, path, operation) in operations() {
        let (status, answer) = world.http(&Principal::Anonymous, &method, &filled(&path), "").await;
        assert_eq!(status, 401, "{method} {path}: {answer}");
        let text = world.http(&Principal::Operator, &method, &filled(&path), "").await.1.to_string();
        assert!(!text.contains("no such path") && !text.contains("this path does not take"), "{method} {path}: {text}");
        let schema = &operation["responses"]["200"]["content"];
        assert!(schema.as_object().is_some_and(|types| !types.is_empty()), "{method} {path}");
        assert_ne!(schema["application/json"]["schema"], json!({"type": "object"}), "{method} {path}");
    }
    let described = description();
    let mut references = Vec::new();
    collect(&described, &mut references);
    assert!(references.len() > 150, "{}", references.len());
    for reference in references {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(described.pointer(pointer).is_some(), "{reference}");
    }
}

fn collect(value: &serde_json::Value, into: &mut Vec<String>) {
    if let Some(reference) = value["$ref"].as_str() {
        into.push(reference.to_owned());
    }
    value.as_object().into_iter().flatten().for_each(|(_, value)| collect(value, into));
    value.as_array().into_iter().flatten().for_each(|value| collect(value, into));
}

fn operations() -> Vec<(String, String, serde_json::Value)> {
    let described = description();
    let paths = described["paths"].as_object().unwrap();
    let methods = |(path, methods): (&String, &serde_json::Value)| {
        let methods = methods.as_object().unwrap().clone().into_iter();
        methods.map(|(method, of)| (method.to_uppercase(), path.clone(), of)).collect::<Vec<_>>()
    };
    paths.iter().flat_map(methods).collect()
}

fn filled(path: &str) -> String {
    let path = path.replace("{root}", "0123456789abcdef");
    path.replace("{node}", "n2").replace(['{', '}'], "")
}
