//! Answers about objects, in the shape that the client asked for.

use muster_messages::wire::KubeAnswer;
use muster_messages::{Object, Revision, Tables, WallTime};
use serde_json::{Value, json};

use crate::document::object_json;
use crate::negotiate::Format;
use crate::query::Match;
use crate::resource::Resource;
use crate::route::{Ask, Verb};
use crate::status::Status;
use crate::table::{self, Rows};

/// Answers a get or a list from a replica that is as fresh as [`Ask::freshness`] requires.
pub fn answer(ask: &Ask, tables: &Tables, now: WallTime) -> Result<KubeAnswer, Status> {
    let resource = ask.resource.ok_or_else(Status::no_such_path)?;
    if ask.verb == Verb::Get {
        let name = ask.name.as_deref().unwrap_or_default();
        let found = ask.key().and_then(|key| tables.objects.get(&key));
        let object = found.ok_or_else(|| Status::not_found(resource, name))?;
        return Ok(object_answer(ask, resource, object, 200, now));
    }
    let revision = tables.revision;
    if let (Some(Match::Exact), Some(asked)) = (ask.read.matching, ask.read.resource_version) {
        // Old states are not kept: an exact list exists only for this one.
        match asked.cmp(&revision.0) {
            std::cmp::Ordering::Less => return Err(Status::expired(Revision(asked), revision)),
            std::cmp::Ordering::Greater => return Err(Status::too_new(Revision(asked), revision)),
            std::cmp::Ordering::Equal => {}
        }
    }
    let selection = ask.selection(resource);
    Ok(list_answer(ask, resource, selection.of(&tables.objects, None).map(|(_, object)| object), revision, now))
}

/// Answers with one object.
pub(crate) fn object_answer(ask: &Ask, resource: Resource, object: &Object, status: u16, now: WallTime) -> KubeAnswer {
    json_answer(status, &shaped(ask, resource, object, now))
}

/// An object in the requested shape.
fn shaped(ask: &Ask, resource: Resource, object: &Object, now: WallTime) -> Value {
    match ask.format {
        Format::Object => object_json(object, resource),
        Format::Metadata => table::metadata(object, resource, "v1"),
        Format::Table(version) => {
            let rows = Rows { version, include: ask.read.include, now };
            rows.table(resource, vec![rows.row(object, resource)], true, &object.meta.revision.to_string())
        }
    }
}

/// Several objects, as of a revision.
pub(crate) fn list_answer<'a>(
    ask: &Ask,
    resource: Resource,
    objects: impl Iterator<Item = &'a Object>,
    revision: Revision,
    now: WallTime,
) -> KubeAnswer {
    let revision = revision.to_string();
    let list = match ask.format {
        Format::Table(version) => {
            let rows = Rows { version, include: ask.read.include, now };
            rows.table(resource, objects.map(|object| rows.row(object, resource)).collect(), true, &revision)
        }
        Format::Metadata => {
            let items: Vec<Value> = objects.map(|object| table::metadata(object, resource, "v1")).collect();
            list(("PartialObjectMetadataList", "meta.k8s.io/v1"), &revision, items)
        }
        Format::Object => {
            let items: Vec<Value> = objects.map(|object| object_json(object, resource)).collect();
            let kind = format!("{}List", resource.kind_name());
            list((&kind, &resource.api_version()), &revision, items)
        }
    };
    json_answer(200, &list)
}

fn list((kind, api_version): (&str, &str), revision: &str, items: Vec<Value>) -> Value {
    let metadata = json!({"resourceVersion": revision});
    json!({"kind": kind, "apiVersion": api_version, "metadata": metadata, "items": items})
}

/// An answer without warnings.
pub(crate) fn json_answer(status: u16, body: &Value) -> KubeAnswer {
    KubeAnswer { status, retry_after_s: None, warnings: Vec::new(), body: body.to_string() }
}

/// The `Content-Type` of an answer: probes get text, everything else is JSON.
pub fn content_type(answer: &KubeAnswer) -> &'static str {
    if answer.body.starts_with('{') { "application/json" } else { "text/plain; charset=utf-8" }
}
