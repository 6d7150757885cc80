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

/// The largest object, as JSON. Many small patches must not build an object that is expensive for every watcher.
const MAX_OBJECT_BYTES: usize = 256 * 1024;
/// Fields that a warning or a refusal names.
const MAX_NAMED_FIELDS: usize = 16;

/// The characters at the end of generated names: no vowels, so that they spell nothing.
const SUFFIX: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LENGTH: usize = 5;
/// Keeps a generated name a DNS label if its prefix is one.
const MAX_GENERATED_NAME_BYTES: usize = 63;

/// A write being planned.
struct Write<'a> {
    ask: &'a Ask,
    tables: &'a Tables,
    /// The body as received.
    sent: &'a [u8],
    resource: Resource,
    context: Context,
    old: Option<&'a Object>,
    api_version: String,
    warnings: Vec<String>,
    /// The revision that the client named.
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

    /// Reads a document and checks it against the path.
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
            all.take(MAX_NAMED_FIELDS).map(|(what, field)| format!("{what} field \"{}\"", header_safe(field)))
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
        self.check_path(&mut document.meta)?;
        Ok(document)
    }

    /// Name and namespace follow from the path. A body may omit them but must not contradict it.
    fn check_path(&self, meta: &mut Meta) -> Result<(), Status> {
        let pairs = [("namespace", &mut meta.namespace, &self.ask.namespace), ("name", &mut meta.name, &self.ask.name)];
        for (what, given, expected) in pairs {
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

    /// The leaves of the stored object.
    fn live(&self) -> Leaves {
        self.old.map(|old| fields::leaves(&Document::without_managers(old))).unwrap_or_default()
    }

    /// The owners once `document` has replaced the stored object.
    fn managers(&self, document: &Document) -> Vec<FieldManager> {
        let after = fields::leaves(document);
        let managers = self.old.map_or(&[][..], |old| &old.meta.managers);
        fields::after_update(managers, self.writer(), &self.live(), &after)
    }

    /// Checks the client's preconditions against the stored object.
    fn preconditions(&mut self, meta: &Meta) -> Result<(), Status> {
        let (resource, name, revision) = (self.resource, meta.name.as_str(), meta.resource_version.as_str());
        let bad = || Status::bad_request(format!("metadata.resourceVersion: {revision:?} is not a revision"));
        self.named = resource_version(revision).ok_or_else(bad)?.filter(|revision| *revision > 0).map(Revision);
        match self.old {
            Some(old) if !meta.uid.is_empty() && !is_uid(&meta.uid, old.meta.uid) => {
                Err(Status::other_uid(resource, name, &meta.uid, &old.meta.uid.to_string()))
            }
            // A client that names a uid means an existing object, now deleted: it must not be recreated.
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
        let size = Document::of(&object).to_text(resource).len();
        if size > MAX_OBJECT_BYTES {
            let message = format!("the object has {size} bytes as JSON; at most {MAX_OBJECT_BYTES} are allowed");
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
                self.warn_blind_write(old, &object, &write);
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

    /// Warns a client that takes a lease without naming what it saw.
    fn warn_blind_write(&mut self, old: &Object, new: &Object, write: &ClientWrite) {
        let holder = |object: &Object| object.lease().and_then(|lease| lease.spec.held_by()).map(str::to_owned);
        if let (true, Some(was), Some(is)) = (write.blind, holder(old), holder(new))
            && was != is
        {
            let was = header_safe(&was);
            self.warnings.push(format!(
                "this write names no resourceVersion: it takes the lease from '{was}' regardless of writes in between"
            ));
        }
    }
}

/// A text from a client, made safe for a header.
fn header_safe(text: &str) -> String {
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

/// A prefix and an unguessable suffix.
fn generated(beginning: &str, entropy: u128) -> String {
    let mut name: String = String::new();
    for c in beginning.chars() {
        if name.len() + c.len_utf8() > MAX_GENERATED_NAME_BYTES - SUFFIX_LENGTH {
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

/// The stored object that the path names.
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
        None => Err(Status::bad_request("this request is not a patch")),
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
    // The document carries the revision that it was made from, which counts as the client's only if the patch names it.
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
    let (live, wanted) = (write.live(), fields::leaves(&applied));
    let managers = write.old.map_or(&[][..], |old| &old.meta.managers);
    let (after, managers) = fields::after_apply(managers, write.writer(), write.ask.write.force, &live, &wanted)
        .map_err(|causes| Status::owned_by_others(resource, &applied.meta.name, causes))?;
    let document = match write.old {
        None => applied,
        Some(old) => {
            let mut json = object_json(old, resource);
            fields::assemble(&mut json, &live, &after);
            let mut document = Document::read(resource, json, &mut Vec::new())?;
            // Not merged but refused.
            document.meta.finalizers = applied.meta.finalizers;
            document
        }
    };
    write.plan(document, managers)
}
