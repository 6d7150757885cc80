//! Patches: from the stored document to the one to store.

mod json_patch;
mod strategic;

use muster_messages::Object;
use serde_json::Value;

use crate::body;
use crate::document::object_json;
use crate::negotiate::PatchKind;
use crate::plan::names_holder;
use crate::resource::Resource;
use crate::status::Status;

/// A parsed patch, not yet applied.
pub(crate) struct Patch {
    change: Change,
    /// The client named a revision, which guards the patch.
    pub names_revision: bool,
}

enum Change {
    Merge(Value),
    Strategic(Value),
    Json(json_patch::Operations),
}

impl Patch {
    /// Reads a patch. (A server-side apply is not one of these: it is a document.)
    pub(crate) fn read(kind: PatchKind, body: &[u8]) -> Result<Self, Status> {
        let json = body::json(body)?;
        if kind == PatchKind::Json {
            let operations = json_patch::Operations::read(json)?;
            return Ok(Self { names_revision: operations.name_revision(), change: Change::Json(operations) });
        }
        if !json.is_object() {
            return Err(Status::bad_request("the patch is not an object"));
        }
        let names_revision = json.pointer("/metadata/resourceVersion").is_some_and(|version| !version.is_null());
        let change = if kind == PatchKind::Strategic { Change::Strategic(json) } else { Change::Merge(json) };
        Ok(Self { change, names_revision })
    }

    /// Whether the patch names the lease's holder, or tests for it before it changes anything.
    pub(crate) fn names_holder(&self, object: &Object) -> bool {
        match &self.change {
            Change::Merge(patch) | Change::Strategic(patch) => names_holder(patch, object),
            Change::Json(operations) => names_holder(&operations.tested(), object),
        }
    }

    /// The document that results from an object.
    pub(crate) fn make(&self, object: &Object, resource: Resource) -> Result<Value, Status> {
        let mut document = object_json(object, resource);
        match &self.change {
            Change::Merge(patch) => ::json_patch::merge(&mut document, patch),
            Change::Strategic(patch) => strategic::merge(&mut document, patch)?,
            Change::Json(operations) => operations.make(&mut document)?,
        }
        Ok(document)
    }
}
