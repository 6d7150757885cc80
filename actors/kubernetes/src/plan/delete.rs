//! Deletions of one object, or of all that a selector matches.

use muster_messages::{Change, Guard, Object, ObjectKey, Revision, Tables};
use serde::Deserialize;

use super::{Outcome, Plan, guard};
use crate::body;
use crate::document::is_uid;
use crate::query::{self, resource_version};
use crate::resource::Resource;
use crate::route::Ask;
use crate::status::Status;

/// Objects that one command deletes: some 100 KiB of keys.
const MAX_DELETED_OBJECTS: usize = 500;

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Options {
    preconditions: Option<Preconditions>,
    dry_run: Option<Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Preconditions {
    uid: Option<String>,
    resource_version: Option<String>,
}

/// The body is optional. Its propagation policy and grace period have no effect here.
fn options(ask: &Ask, body: &[u8]) -> Result<(Preconditions, bool), Status> {
    if body.is_empty() {
        return Ok((Preconditions::default(), ask.write.dry_run));
    }
    let json = body::read(ask.encoding, body, "DeleteOptions")?;
    let options: Options = serde_json::from_value(json)
        .map_err(|error| Status::bad_request(format!("invalid deletion options: {error}")))?;
    let mut causes = Vec::new();
    let dry = query::dry_run(options.dry_run.iter().flatten().map(String::as_str), &mut causes);
    if !causes.is_empty() {
        return Err(Status::invalid_options("DeleteOptions", causes));
    }
    Ok((options.preconditions.unwrap_or_default(), dry || ask.write.dry_run))
}

pub(super) fn one(ask: &Ask, resource: Resource, body: &[u8], tables: &Tables) -> Result<Plan, Status> {
    let name = ask.name.clone().unwrap_or_default();
    let key = ask.key().ok_or_else(Status::no_such_path)?;
    let (preconditions, dry_run) = options(ask, body)?;
    let object = tables.objects.get(&key).ok_or_else(|| Status::not_found(resource, &name))?;
    let mut guards = Vec::new();
    if let Some(uid) = preconditions.uid.filter(|uid| !uid.is_empty()) {
        if !is_uid(&uid, object.meta.uid) {
            return Err(Status::other_uid(resource, &name, &uid, &object.meta.uid.to_string()));
        }
        guards.push(Guard::ObjectUid { key: key.clone(), uid: object.meta.uid });
    }
    let version = preconditions.resource_version.unwrap_or_default();
    let named = resource_version(&version)
        .ok_or_else(|| Status::bad_request("preconditions.resourceVersion is not a revision"))?;
    if let Some(revision) = named.map(Revision) {
        if revision != object.meta.revision {
            return Err(Status::modified(resource, &name));
        }
        guards.push(Guard::ObjectRevision { key: key.clone(), revision });
    }
    // If any precondition fails later on, the object has changed.
    let names_revision = !guards.is_empty();
    if !names_revision {
        guard::may_delete(tables, resource, object)?;
        guards.extend(judged_revision(tables, &key, object));
    }
    Ok(Plan {
        names_revision,
        guards,
        changes: vec![Change::DeleteObject { key, force: false }],
        outcome: Outcome::Deleted(object.meta.uid),
        ..Plan::empty(resource, name, dry_run)
    })
}

pub(super) fn many(ask: &Ask, resource: Resource, body: &[u8], tables: &Tables) -> Result<Plan, Status> {
    let (_, dry_run) = options(ask, body)?;
    let selection = ask.selection(resource);
    let mut found = selection.of(&tables.objects, None).filter_map(|(key, _)| tables.objects.get_key_value(key));
    let (mut guards, mut changes, mut objects) = (Vec::new(), Vec::new(), Vec::new());
    for (key, object) in found.by_ref().take(MAX_DELETED_OBJECTS) {
        guard::may_delete(tables, resource, object)?;
        guards.extend(judged_revision(tables, key, object));
        changes.push(Change::DeleteObject { key: key.clone(), force: false });
        objects.push(object.clone());
    }
    let more = !dry_run && found.next().is_some();
    let outcome = Outcome::Cleared(objects);
    Ok(Plan { guards, changes, more, outcome, ..Plan::empty(resource, String::new(), dry_run) })
}

/// If the guard judged the deletion of a lease, it is deleted in exactly that state, or judged again.
fn judged_revision(tables: &Tables, key: &ObjectKey, object: &Object) -> Option<Guard> {
    let revision = object.meta.revision;
    guard::covers_deletion(tables, object).then(|| Guard::ObjectRevision { key: key.clone(), revision })
}
