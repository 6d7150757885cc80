//! Creations, updates and patches.

use muster_messages::{Change, ClientWrite, FieldManager, Guard, Object, ObjectKey, ObjectMeta, Revision, Tables, Uid};
use serde_json::Value;

use super::{Context, Outcome, Plan, guard};
use crate::body;
use crate::document::{Document, Meta, is_uid, object_json};
use crate::fields::{self, Leaves, Writer};
use crate::negotiate::PatchKind;
use crate::patch::Patch;
use crate::query::{UnknownFields, resource_version};
use crate::resource::Resource;
use crate::route::{Ask, Verb};
use crate::status::{Reason, Status};
use crate::validate::{missing_revision, validate};

/// The largest object, as JSON. Many small patches must not make one that costs every watcher dearly.
const LARGEST: usize = 256 * 1024;
/// Fields that a warning or a refusal names.
const MOST_NAMED: usize = 16;

/// What generated names end in: no vowels, lest they spell something.
const SUFFIX: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LENGTH: usize = 5;
/// So that a generated name is a DNS label, if its beginning is.
const LONGEST_GENERATED: usize = 63;

/// A write on its way to a plan.
struct Write<'a> {
    ask: &'a Ask,
    tables: &'a Tables,
    /// The body, as it came.
    sent: &'a [u8],
    resource: Resource,
    context: Context,
    old: Option<&'a Object>,
    api_version: String,
    warnings: Vec<String>,
    /// What the client said it writes to.
    named: Option<Revision>,
    /// The client named the holder that it saw, in the body or in a test.
    names_holder: bool,
    generated: bool,
}

impl<'a> Write<'a> {
    fn new(
        ask: &'a Ask,
        (resource, sent): (Resource, &'a [u8]),
        tables: &'a Tables,
        context: Context,
        old: Option<&'a Object>,
    ) -> Self {
        let (api_version, warnings) = (resource.api_version(), Vec::new());
        let (named, names_holder, generated) = (None, false, false);
        Self { ask, tables, sent, resource, context, old, api_version, warnings, named, names_holder, generated }
    }

    /// Reads a document and puts it where the path leads.
    fn read(&mut self, json: Value) -> Result<Document, Status> {
        let mut unknown = Vec::new();
        let mut document = Document::read(self.resource, json, &mut unknown)?;
        let twice = match self.ask.write.unknown {
            UnknownFields::Drop => Vec::new(),
            UnknownFields::Warn | UnknownFields::Refuse => body::duplicates(self.ask.encoding, self.sent),
        };
        let named = || {
            let unknown = unknown.iter().map(|field| ("unknown", field));
            let all = unknown.chain(twice.iter().map(|field| ("duplicate", field)));
            all.take(MOST_NAMED).map(|(what, field)| format!("{what} field \"{}\"", legible(field)))
        };
        match self.ask.write.unknown {
            UnknownFields::Drop => {}
            UnknownFields::Warn => self.warnings.extend(named()),
            UnknownFields::Refuse if unknown.is_empty() && twice.is_empty() => {}
            UnknownFields::Refuse => {
                return Err(Status::bad_request(format!(
                    "strict decoding error: {}",
                    named().collect::<Vec<_>>().join(", ")
                )));
            }
        }
        self.place(&mut document.meta)?;
        Ok(document)
    }

    /// Name and namespace follow from the path. A body may leave them out, and may not contradict.
    fn place(&self, meta: &mut Meta) -> Result<(), Status> {
        let places =
            [("namespace", &mut meta.namespace, &self.ask.namespace), ("name", &mut meta.name, &self.ask.name)];
        for (what, given, expected) in places {
            let Some(expected) = expected else { continue };
            if given.is_empty() {
                given.clone_from(expected);
            } else if given != expected {
                let message =
                    format!("the {what} of the object ({given:?}) does not match the one in the path ({expected:?})");
                return Err(Status::bad_request(message));
            }
        }
        Ok(())
    }

    fn writer(&self) -> Writer<'_> {
        Writer { manager: self.ask.manager(), api_version: &self.api_version, now: self.context.now }
    }

    /// The leaves of what is stored.
    fn live(&self) -> Leaves {
        self.old.map(|old| fields::leaves(&object_json(old, self.resource))).unwrap_or_default()
    }

    /// The owners once `document` has replaced what is stored.
    fn managers(&self, document: &Document) -> Vec<FieldManager> {
        let after = fields::leaves(&document.to_json(self.resource));
        let managers = self.old.map_or(&[][..], |old| &old.meta.managers);
        fields::after_update(managers, self.writer(), &self.live(), &after)
    }

    /// Judges what the client says it writes to, against what is stored.
    fn preconditions(&mut self, meta: &Meta) -> Result<(), Status> {
        let (resource, name, revision) = (self.resource, meta.name.as_str(), meta.resource_version.as_str());
        let bad = || Status::bad_request(format!("metadata.resourceVersion: {revision:?} is no revision"));
        self.named = resource_version(revision).ok_or_else(bad)?.filter(|revision| *revision > 0).map(Revision);
        match self.old {
            Some(old) if !meta.uid.is_empty() && !is_uid(&meta.uid, old.meta.uid) => {
                Err(Status::other_uid(resource, name, &meta.uid, &old.meta.uid.to_string()))
            }
            // Whoever knows a uid means an object that is gone: it must not come back to life.
            None if !meta.uid.is_empty() => Err(Status::other_uid(resource, name, &meta.uid, "")),
            Some(old) if self.named.is_some_and(|named| named != old.meta.revision) => {
                Err(Status::modified(resource, name))
            }
            _ => Ok(()),
        }
    }

    /// The plan that writes this document.
    fn plan(mut self, document: Document, managers: Vec<FieldManager>) -> Result<Plan, Status> {
        let (resource, name) = (self.resource, document.meta.name.clone());
        let mut causes = validate(resource, &document, self.old);
        let put = self.ask.verb == Verb::Update;
        if put && self.old.is_some() && self.named.is_none() && !resource.put_may_be_blind() {
            causes.push(missing_revision());
        }
        if !causes.is_empty() {
            return Err(Status::invalid(resource, &name, causes));
        }
        let object = self.object(document, managers);
        let size = object_json(&object, resource).to_string().len();
        if size > LARGEST {
            let message = format!("the object is {size} bytes as JSON, at most {LARGEST} are kept");
            return Err(Status::new(Reason::RequestEntityTooLarge, message));
        }
        let names_revision = self.named.is_some();
        let (guards, change) = match self.old {
            None => (Vec::new(), Change::CreateObject(Box::new(object.clone()))),
            Some(old) => {
                let blind = !names_revision && !self.names_holder;
                let write = ClientWrite { blind, manager: self.ask.write.manager.clone() };
                if blind {
                    guard::may_empty(self.tables, resource, (old, &object), self.ask.manager())?;
                }
                self.warn_of_blindness(old, &object, &write);
                let guard = Guard::ObjectRevision { key: object.key(), revision: old.meta.revision };
                (vec![guard], Change::UpdateObject { object: Box::new(object.clone()), write })
            }
        };
        Ok(Plan {
            guards,
            changes: vec![change],
            creates: self.old.is_none(),
            names_revision,
            generated: self.generated,
            posted: self.ask.verb == Verb::Create,
            warnings: self.warnings,
            outcome: Outcome::Written(Box::new(object)),
            ..Plan::empty(resource, name, self.ask.write.dry_run)
        })
    }

    fn object(&self, document: Document, managers: Vec<FieldManager>) -> Object {
        let owners = document.owners();
        let fresh = || ObjectMeta {
            created_at: self.context.now,
            ..ObjectMeta::fresh(Uid::from_entropy(self.context.entropy))
        };
        let meta = self.old.map_or_else(fresh, |old| old.meta.clone());
        let Document { meta: sent, fields } = document;
        let meta = ObjectMeta { labels: sent.labels, annotations: sent.annotations, owners, managers, ..meta };
        let body = fields.body(self.old.map(|old| &old.body));
        Object { namespace: sent.namespace, name: sent.name, meta, body }
    }

    /// Tells whoever takes a lease without looking that this is what happened.
    fn warn_of_blindness(&mut self, old: &Object, new: &Object, write: &ClientWrite) {
        let holder = |object: &Object| object.lease().and_then(|lease| lease.spec.held_by()).map(str::to_owned);
        if let (true, Some(was), Some(is)) = (write.blind, holder(old), holder(new))
            && was != is
        {
            let was = legible(&was);
            self.warnings.push(format!(
                "this write names no resourceVersion: it takes the lease from '{was}' whatever was written in between"
            ));
        }
    }
}

/// A text from outside, fit for a header.
fn legible(text: &str) -> String {
    let plain = |c: char| if (c.is_ascii_graphic() || c == ' ') && c != '"' && c != '\\' { c } else { '?' };
    text.chars().take(128).map(plain).collect()
}

pub(super) fn create(
    ask: &Ask,
    resource: Resource,
    body: &[u8],
    tables: &Tables,
    context: Context,
) -> Result<Plan, Status> {
    let mut write = Write::new(ask, (resource, body), tables, context, None);
    let mut document = write.read(body::read(ask.encoding, body, resource.kind_name())?)?;
    let meta = &mut document.meta;
    if !meta.resource_version.is_empty() {
        return Err(Status::bad_request("resourceVersion should not be set on objects to be created"));
    }
    if meta.name.is_empty() && !meta.generate_name.is_empty() {
        meta.name = generated(&meta.generate_name, context.entropy);
        write.generated = true;
    }
    let key = ObjectKey { kind: resource.kind, namespace: meta.namespace.clone(), name: meta.name.clone() };
    let managers = write.managers(&document);
    let name = document.meta.name.clone();
    let plan = write.plan(document, managers)?;
    if tables.objects.contains_key(&key) { Err(Status::exists(resource, &name)) } else { Ok(plan) }
}

/// A beginning, and an end that nobody guesses.
fn generated(beginning: &str, entropy: u128) -> String {
    let mut name: String = String::new();
    for c in beginning.chars() {
        if name.len() + c.len_utf8() > LONGEST_GENERATED - SUFFIX_LENGTH {
            break;
        }
        name.push(c);
    }
    let mut rest = entropy;
    for _ in 0..SUFFIX_LENGTH {
        let count = SUFFIX.len() as u128;
        name.push(char::from(SUFFIX[(rest % count) as usize]));
        rest /= count;
    }
    name
}

/// What the path names, as it is stored.
fn stored<'a>(ask: &Ask, tables: &'a Tables) -> Option<&'a Object> {
    ask.key().and_then(|key| tables.objects.get(&key)).map(AsRef::as_ref)
}

pub(super) fn update(
    ask: &Ask,
    resource: Resource,
    body: &[u8],
    tables: &Tables,
    context: Context,
) -> Result<Plan, Status> {
    let mut write = Write::new(ask, (resource, body), tables, context, stored(ask, tables));
    let document = write.read(body::read(ask.encoding, body, resource.kind_name())?)?;
    if write.old.is_none() && !resource.put_creates() {
        return Err(Status::not_found(resource, &document.meta.name));
    }
    write.preconditions(&document.meta)?;
    let managers = write.managers(&document);
    write.plan(document, managers)
}

pub(super) fn patch(
    ask: &Ask,
    resource: Resource,
    body: &[u8],
    tables: &Tables,
    context: Context,
) -> Result<Plan, Status> {
    let write = Write::new(ask, (resource, body), tables, context, stored(ask, tables));
    match ask.patch {
        None => Err(Status::bad_request("this request patches nothing")),
        Some(PatchKind::Apply) => apply(write, body),
        Some(kind) => patch_stored(write, kind, body),
    }
}

fn patch_stored(mut write: Write<'_>, kind: PatchKind, body: &[u8]) -> Result<Plan, Status> {
    let resource = write.resource;
    let name = write.ask.name.as_deref().unwrap_or_default();
    let old = write.old.ok_or_else(|| Status::not_found(resource, name))?;
    let patch = Patch::read(kind, body)?;
    let document = write.read(patch.make(old, resource)?)?;
    write.preconditions(&document.meta)?;
    // The document carries the revision that it was made from. Only if the patch says so is it the client's.
    write.named = write.named.filter(|_| patch.names_revision);
    write.names_holder = patch.names_holder(old);
    let managers = write.managers(&document);
    write.plan(document, managers)
}

fn apply(mut write: Write<'_>, body: &[u8]) -> Result<Plan, Status> {
    let resource = write.resource;
    let json = body::yaml(body)?;
    if json.pointer("/metadata/managedFields").is_some_and(|fields| fields.as_array().is_none_or(|all| !all.is_empty()))
    {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    write.names_holder = write.old.is_some_and(|old| guard::names_holder(&json, old));
    let applied = write.read(json)?;
    write.preconditions(&applied.meta)?;
    if write.old.is_none() && write.named.is_some() {
        return Err(Status::modified(resource, &applied.meta.name));
    }
    let (live, wanted) = (write.live(), fields::leaves(&applied.to_json(resource)));
    let managers = write.old.map_or(&[][..], |old| &old.meta.managers);
    let (after, managers) = fields::after_apply(managers, write.writer(), write.ask.write.force, &live, &wanted)
        .map_err(|causes| Status::owned_by_others(resource, &applied.meta.name, causes))?;
    let document = match write.old {
        None => applied,
        Some(old) => {
            let mut json = object_json(old, resource);
            fields::assemble(&mut json, &live, &after);
            let mut document = Document::read(resource, json, &mut Vec::new())?;
            // Not ours to merge, but to refuse.
            document.meta.finalizers = applied.meta.finalizers;
            document
        }
    };
    write.plan(document, managers)
}
