//! Answers about objects, in the shape that the client asked for.

use muster_messages::wire::KubeAnswer;
use muster_messages::{Object, Revision, Tables, WallTime};
use serde_json::Value;

use crate::document::Document;
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
    text_answer(status, shaped(ask, resource, object, now))
}

/// An object in the requested shape, as JSON.
fn shaped(ask: &Ask, resource: Resource, object: &Object, now: WallTime) -> String {
    match ask.format {
        Format::Object => Document::of(object).to_text(resource),
        Format::Metadata => table::metadata(object, resource, "v1").to_string(),
        Format::Table(version) => {
            let rows = Rows { version, include: ask.read.include, now };
            let table = rows.table(resource, vec![rows.row(object, resource)], true, &object.meta.revision.to_string());
            table.to_string()
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
    let body = match ask.format {
        Format::Table(version) => {
            let rows = Rows { version, include: ask.read.include, now };
            let table =
                rows.table(resource, objects.map(|object| rows.row(object, resource)).collect(), true, &revision);
            table.to_string()
        }
        Format::Metadata => {
            let items = objects.map(|object| table::metadata(object, resource, "v1").to_string());
            list(("PartialObjectMetadataList", "meta.k8s.io/v1"), &revision, items)
        }
        Format::Object => {
            let items = objects.map(|object| Document::of(object).to_text(resource));
            let kind = format!("{}List", resource.kind_name());
            list((&kind, &resource.api_version()), &revision, items)
        }
    };
    text_answer(200, body)
}

/// A list of items that are JSON already. Kinds, versions and revisions have nothing that JSON escapes.
fn list((kind, api_version): (&str, &str), revision: &str, items: impl Iterator<Item = String>) -> String {
    let mut list = format!(
        "{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",\"metadata\":{{\"resourceVersion\":\"{revision}\"}},\"items\":["
    );
    for (n, item) in items.enumerate() {
        if n > 0 {
            list.push(',');
        }
        list.push_str(&item);
    }
    list.push_str("]}");
    list
}

/// An answer without warnings.
pub(crate) fn json_answer(status: u16, body: &Value) -> KubeAnswer {
    text_answer(status, body.to_string())
}

fn text_answer(status: u16, body: String) -> KubeAnswer {
    KubeAnswer { status, retry_after_s: None, warnings: Vec::new(), body }
}

/// The `Content-Type` of an answer: probes get text, everything else is JSON.
pub fn content_type(answer: &KubeAnswer) -> &'static str {
    if answer.body.starts_with('{') { "application/json" } else { "text/plain; charset=utf-8" }
}
