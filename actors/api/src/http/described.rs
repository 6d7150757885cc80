//! The description of `/v1`, and what it says that a request may contain: a query parameter or a body that it does not describe is
//! refused, because a typo must not be silent. (Fields of a body are refused where the body is parsed.)

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use axum::extract::{MatchedPath, Query, Request};
use axum::http::Uri;
use muster_messages::ErrorBody;
use serde_json::Value;

/// The parts of the description: its head, its paths, and its schemas.
const HEAD: &str = include_str!("../openapi/head.json");
const PATHS: [&str; 10] = [
    include_str!("../openapi/paths/actors.json"),
    include_str!("../openapi/paths/autolock.json"),
    include_str!("../openapi/paths/autopilot.json"),
    include_str!("../openapi/paths/cluster.json"),
    include_str!("../openapi/paths/credentials.json"),
    include_str!("../openapi/paths/leases.json"),
    include_str!("../openapi/paths/nodes.json"),
    include_str!("../openapi/paths/reconcilers.json"),
    include_str!("../openapi/paths/roots.json"),
    include_str!("../openapi/paths/workloads.json"),
];
const SCHEMAS: [&str; 14] = [
    include_str!("../openapi/schemas/actors.json"),
    include_str!("../openapi/schemas/autolock.json"),
    include_str!("../openapi/schemas/autopilot.json"),
    include_str!("../openapi/schemas/cluster.json"),
    include_str!("../openapi/schemas/errors.json"),
    include_str!("../openapi/schemas/events.json"),
    include_str!("../openapi/schemas/leases.json"),
    include_str!("../openapi/schemas/lists.json"),
    include_str!("../openapi/schemas/nodes.json"),
    include_str!("../openapi/schemas/parts.json"),
    include_str!("../openapi/schemas/reconcilers.json"),
    include_str!("../openapi/schemas/roots.json"),
    include_str!("../openapi/schemas/security.json"),
    include_str!("../openapi/schemas/workloads.json"),
];

/// What `GET /v1/openapi.json` answers: the parts as one document.
pub(crate) fn document() -> &'static str {
    static DOCUMENT: OnceLock<String> = OnceLock::new();
    DOCUMENT.get_or_init(|| {
        let parsed =
            |text: &&str| -> Value { serde_json::from_str(text).expect("each part of the description is JSON") };
        let joined = |parts: &[&str]| {
            let members = parts.iter().map(parsed).filter_map(|part| part.as_object().cloned());
            Value::Object(members.flatten().collect())
        };
        let mut document = parsed(&HEAD);
        document["paths"] = joined(&PATHS);
        document["components"]["schemas"] = joined(&SCHEMAS);
        document.to_string()
    })
}

/// One method of one path.
#[derive(Default)]
pub(super) struct Operation {
    query: BTreeSet<String>,
    body: bool,
}

type Paths = BTreeMap<String, BTreeMap<String, Operation>>;

/// The operation that a request is routed to. `None`: it is not described, as for a path that does not exist.
pub(super) fn operation(request: &Request) -> Option<&'static Operation> {
    static PATHS: OnceLock<Paths> = OnceLock::new();
    let path = request.extensions().get::<MatchedPath>()?.as_str().replace("{*", "{");
    let method = if request.method() == "HEAD" { "GET" } else { request.method().as_str() };
    PATHS.get_or_init(paths).get(&path)?.get(method)
}

fn paths() -> Paths {
    let document: Value = serde_json::from_str(document()).expect("the description is JSON");
    let members = |value: &Value| value.as_object().cloned().unwrap_or_default();
    let methods = |methods: &Value| {
        members(methods).iter().map(|(method, operation)| (method.to_uppercase(), Operation::of(operation))).collect()
    };
    members(&document["paths"]).iter().map(|(path, of)| (path.clone(), methods(of))).collect()
}

impl Operation {
    fn of(described: &Value) -> Self {
        let parameters = described["parameters"].as_array().into_iter().flatten();
        let query = parameters.filter(|parameter| parameter["in"] == "query");
        let query = query.filter_map(|parameter| parameter["name"].as_str().map(str::to_owned)).collect();
        Self { query, body: described["requestBody"].is_object() }
    }

    /// Refuses a query with a parameter that is not described.
    pub fn check_query(&self, uri: &Uri) -> Result<(), ErrorBody> {
        let Ok(Query(given)) = Query::<Vec<(String, String)>>::try_from_uri(uri) else {
            return Err(ErrorBody::invalid("the query cannot be parsed"));
        };
        match given.iter().find(|(name, _)| !self.query.contains(name)) {
            None => Ok(()),
            Some((name, _)) => {
                let known: Vec<&str> = self.query.iter().map(String::as_str).collect();
                let known = if known.is_empty() { "no parameter".to_owned() } else { known.join(", ") };
                let name = muster_messages::in_short(name, 64);
                Err(ErrorBody::invalid(format!("unknown query parameter `{name}`: this path takes {known}")))
            }
        }
    }

    /// Refuses a body where none is described. An empty object is none.
    pub fn check_body(&self, bytes: &[u8]) -> Result<(), ErrorBody> {
        if self.body || bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok(());
        }
        match serde_json::from_slice::<Value>(bytes) {
            Ok(Value::Object(fields)) => match fields.keys().next() {
                None => Ok(()),
                Some(name) => {
                    let name = muster_messages::in_short(name, 64);
                    Err(ErrorBody::invalid(format!("unknown field `{name}`: this request takes no body")))
                }
            },
            _ => Err(ErrorBody::invalid("this request takes no body")),
        }
    }
}

#[cfg(test)]
#[path = "described_tests.rs"]
mod tests;
