//! Watches: one client's view of a selection, event by event.
//!
//! Owns        what one stream has sent: the objects it began with, the revision up to which it is complete.
//! Inputs      changes of objects, in log order.
//! Outputs     lines of JSON, one event each.
//! Invariants  EVENTS-1  a client that applies all events has the objects of its selection, as of the revision it saw last.
//!             EVENTS-2  the revisions of a stream never go back.
//! The state before a change matters: to a watcher, an object that enters the selection is an addition, and one that
//! leaves it a deletion, whatever happened to the object itself.

use std::sync::Arc;

use imbl::OrdMap;
use muster_messages::{Object, ObjectChange, ObjectKey, Revision, Tables, WallTime};
use serde_json::json;

use crate::document::Document;
use crate::negotiate::Format;
use crate::query::Include;
use crate::resource::Resource;
use crate::route::Ask;
use crate::select::Selection;
use crate::status::Status;
use crate::table::{self, Rows};

/// Tells a client that requested initial events that it has received all of them.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// One watch stream. Drained with [`Watcher::initial`], then fed with the changes after [`Watcher::after`] from the
/// history.
#[derive(Debug)]
pub struct Watcher {
    resource: Resource,
    selection: Selection,
    format: Format,
    include: Include,
    /// The client accepts bookmarks.
    bookmarks: bool,
    beginning: Option<Beginning>,
    after: Revision,
    /// Whether a table's columns have been sent.
    columns: bool,
}

/// The initial objects of a stream.
#[derive(Debug)]
struct Beginning {
    /// As of that moment. Nothing else of the replica is kept alive.
    objects: OrdMap<ObjectKey, Arc<Object>>,
    last_sent: Option<ObjectKey>,
    /// Its end is marked.
    marked: bool,
}

impl Watcher {
    /// Begins a watch on a replica that is as fresh as [`Ask::freshness`] requires.
    pub fn begin(ask: &Ask, tables: &Tables) -> Result<Self, Status> {
        let resource = ask.resource.ok_or_else(Status::no_such_path)?;
        let asked = ask.read.resource_version.filter(|revision| *revision > 0).map(Revision);
        let marked = ask.read.initial_events == Some(true);
        // Without a revision a client wants the current objects first, unless it declines them.
        let begins = marked || ask.read.initial_events.is_none() && asked.is_none();
        let beginning = begins.then(|| Beginning { objects: tables.objects.clone(), last_sent: None, marked });
        Ok(Self {
            resource,
            selection: ask.selection(resource),
            format: ask.format,
            include: ask.read.include,
            bookmarks: ask.read.bookmarks,
            after: if begins { tables.revision } else { asked.unwrap_or(tables.revision) },
            beginning,
            columns: true,
        })
    }

    /// The next initial events, about `max_bytes` bytes of them. `None`: all have been sent.
    pub fn initial(&mut self, max_bytes: usize, now: WallTime) -> Option<String> {
        let beginning = self.beginning.take()?;
        let selection = self.selection.clone();
        let (mut lines, mut last) = (String::new(), None);
        for (key, object) in selection.of(&beginning.objects, beginning.last_sent.as_ref()) {
            lines += &event("ADDED", &self.shaped(object, now));
            self.columns = false;
            if lines.len() >= max_bytes {
                last = Some(key.clone());
                break;
            }
        }
        if last.is_some() {
            self.beginning = Some(Beginning { last_sent: last, ..beginning });
        } else if beginning.marked {
            lines += &self.mark(true);
        }
        (!lines.is_empty()).then_some(lines)
    }

    /// Everything up to this revision has been sent: continue with later changes from the history.
    pub fn after(&self) -> Revision {
        self.after
    }

    /// The events for these changes, given in log order, until they reach about `max_bytes` bytes.
    pub fn changes(&mut self, changes: &[Arc<ObjectChange>], max_bytes: usize, now: WallTime) -> String {
        let mut lines = String::new();
        for change in changes {
            if lines.len() >= max_bytes {
                break;
            }
            lines.extend(self.change(change, now));
        }
        lines
    }

    /// The event that a change is to this client, if any. Changes come in log order.
    pub fn change(&mut self, change: &ObjectChange, now: WallTime) -> Option<String> {
        debug_assert!(change.revision >= self.after, "EVENTS-2: changes must come in log order");
        self.after = change.revision;
        let visible = |object: &Option<std::sync::Arc<Object>>| object.clone().filter(|o| self.selection.includes(o));
        let (kind, object) = match (visible(&change.before), visible(&change.after)) {
            (None, None) => return None,
            (None, Some(after)) => ("ADDED", self.shaped(&after, now)),
            // Invisible to clients: the leader found a lease expired.
            (Some(before), Some(after)) if before.meta.revision == after.meta.revision => return None,
            (Some(_), Some(after)) => ("MODIFIED", self.shaped(&after, now)),
            (Some(before), None) => {
                let mut last = Object::clone(&before);
                last.meta.revision = change.revision;
                ("DELETED", self.shaped(&last, now))
            }
        };
        self.columns = false;
        Some(event(kind, &object))
    }

    /// The history has nothing more up to this revision.
    pub fn caught_up(&mut self, revision: Revision) {
        self.after = self.after.max(revision);
    }

    /// A bookmark, if the client accepts them: where to resume if the stream breaks. Sent about once a minute, and
    /// before the stream ends.
    pub fn bookmark(&self) -> Option<String> {
        (self.bookmarks && self.beginning.is_none()).then(|| self.mark(false))
    }

    /// The last event of a stream that cannot continue.
    pub fn failed(&self, status: &Status) -> String {
        event("ERROR", &status.to_json().to_string())
    }

    fn mark(&self, ends_beginning: bool) -> String {
        let (kind, api_version) = match self.format {
            Format::Object => (self.resource.kind_name(), self.resource.api_version()),
            Format::Metadata => ("PartialObjectMetadata", "meta.k8s.io/v1".to_owned()),
            Format::Table(version) => ("Table", format!("meta.k8s.io/{version}")),
        };
        let mut metadata = json!({"resourceVersion": self.after.to_string()});
        if ends_beginning {
            metadata["annotations"] = json!({INITIAL_EVENTS_END: "true"});
        }
        let object = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata});
        event("BOOKMARK", &object.to_string())
    }

    /// An object in the requested shape, as JSON.
    fn shaped(&self, object: &Object, now: WallTime) -> String {
        match self.format {
            Format::Object => Document::of(object).to_text(self.resource),
            Format::Metadata => table::metadata(object, self.resource, "v1").to_string(),
            Format::Table(version) => {
                let rows = Rows { version, include: self.include, now };
                let revision = object.meta.revision.to_string();
                let table = rows.table(self.resource, vec![rows.row(object, self.resource)], self.columns, &revision);
                table.to_string()
            }
        }
    }
}

/// The line of an event. `object` is JSON.
fn event(kind: &str, object: &str) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}
