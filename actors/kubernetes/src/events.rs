//! Events of clients: recorders write them, `kubectl describe` reads them, and none are kept.
//!
//! They are accepted because otherwise every client-go elector with a recorder logs an error at each change of leader,
//! and `kubectl describe` fails. `muster events` shows what the cluster itself records about leases.

use muster_messages::wire::KubeAnswer;
use serde_json::{Value, json};

use crate::answer::json_answer;
use crate::body;
use crate::negotiate::Format;
use crate::route::{Ask, Verb};
use crate::status::{Reason, Status};

/// The groups that have events, each in version `v1`.
pub(crate) const GROUPS: [&str; 2] = ["", "events.k8s.io"];
pub(crate) const PLURAL: &str = "events";
pub(crate) const VERBS: [&str; 5] = ["create", "get", "list", "patch", "update"];

fn api_version(group: &str) -> String {
    if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") }
}

/// Answers a read of events with an empty result.
pub fn no_events(ask: &Ask) -> Result<KubeAnswer, Status> {
    let group = ask.events.ok_or_else(Status::no_such_path)?;
    if let Some(name) = &ask.name {
        return Err(Status::new(Reason::NotFound, format!("events {name:?} not found: events are not kept here")));
    }
    let metadata = json!({"resourceVersion": "1"});
    let list = match ask.format {
        Format::Table(version) => {
            let name = json!({"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0});
            json!({"kind": "Table", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": metadata,
                   "columnDefinitions": [name], "rows": []})
        }
        Format::Metadata => json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                                   "metadata": metadata, "items": []}),
        Format::Object => {
            json!({"kind": "EventList", "apiVersion": api_version(group), "metadata": metadata, "items": []})
        }
    };
    Ok(json_answer(200, &list))
}

/// Answers a written event as if it were kept. A recorder reads its name and version.
pub fn event_dropped(ask: &Ask, body: &[u8]) -> Result<KubeAnswer, Status> {
    let group = ask.events.ok_or_else(Status::no_such_path)?;
    let sent = if ask.verb == Verb::Patch { body::json(body)? } else { body::read(ask.encoding, body, "Event")? };
    let Value::Object(mut event) = sent else {
        return Err(Status::bad_request("the body is not an Event: it is not an object"));
    };
    let of = |key: &str| event.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned);
    let (kind, version) = (of("kind"), of("apiVersion"));
    if kind.is_some_and(|kind| kind != "Event") || version.is_some_and(|version| version != api_version(group)) {
        return Err(Status::bad_request(format!("the path requires an Event of {}", api_version(group))));
    }
    event.insert("kind".to_owned(), "Event".into());
    event.insert("apiVersion".to_owned(), api_version(group).into());
    let metadata = event.entry("metadata").or_insert_with(|| json!({}));
    if !metadata.is_object() {
        return Err(Status::bad_request("metadata is not an object"));
    }
    for (key, value) in [("namespace", &ask.namespace), ("name", &ask.name)] {
        if let Some(value) = value {
            metadata[key] = value.as_str().into();
        }
    }
    metadata["resourceVersion"] = "1".into();
    Ok(json_answer(if ask.verb == Verb::Create { 201 } else { 200 }, &Value::Object(event)))
}
