//! Parses a request's head.
//!
//! Before the body is read, this decides whether the path exists, what authorization must know, and whether the media
//! types of body and answer are supported.

use std::fmt;
use std::time::Duration;

use muster_messages::wire::KubeCall;
use muster_messages::{ObjectKey, Revision};
use percent_encoding::percent_decode_str;

use crate::discovery::Document;
use crate::events;
use crate::negotiate::{self, Encoding, Format, PatchKind};
use crate::openapi::OpenApi;
use crate::query::{Params, ReadOptions, WriteOptions};
use crate::resource::Resource;
use crate::select::Selection;
use crate::status::{Reason, Status};

/// The relevant parts of a request's head.
#[derive(Clone, Copy, Debug, Default)]
pub struct Head<'a> {
    pub method: &'a str,
    /// Path and query.
    pub target: &'a str,
    pub content_type: Option<&'a str>,
    pub accept: Option<&'a str>,
    pub user_agent: Option<&'a str>,
}

impl<'a> From<&'a KubeCall> for Head<'a> {
    fn from(call: &'a KubeCall) -> Self {
        Self {
            method: &call.method,
            target: &call.target,
            content_type: call.content_type.as_deref(),
            accept: call.accept.as_deref(),
            user_agent: call.user_agent.as_deref(),
        }
    }
}

/// The operation of a request, for authorization.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// Nothing that needs permission: documents and self reviews.
    None,
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verb::None => "none",
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Watch => "watch",
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Patch => "patch",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
        })
    }
}

/// What the answer requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Nothing: [`crate::document`].
    Document,
    /// The caller's identity: [`crate::self_review`].
    Identity,
    /// The body and an authorization: [`crate::access_review`].
    Authorization,
    /// The same: [`crate::rules_review`].
    Rules,
    /// Permission: [`crate::no_events`].
    NoEvents,
    /// The body and permission: [`crate::event_dropped`].
    Event,
    /// A replica as fresh as [`Ask::freshness`]: [`crate::answer`].
    Read,
    /// The same, and the changes from there on: [`crate::Watcher`].
    Watch,
    /// The body, the leader's replica, and a command: [`crate::plan`].
    Write,
}

/// How fresh the answering replica must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// As of the arrival of the request, confirmed by a quorum.
    Now,
    /// Any.
    Any,
    /// At least this revision. A replica that does not reach it in time answers [`Status::too_new`], never with older
    /// state.
    AtLeast(Revision),
}

/// A request with a parsed head.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    pub verb: Verb,
    pub takes: Takes,
    /// `None` for documents and reviews.
    pub resource: Option<Resource>,
    /// `None`: all namespaces, or none at all.
    pub namespace: Option<String>,
    /// `None`: a collection, or an object whose name is in the body.
    pub name: Option<String>,
    /// The longest time that the client waits, if stated.
    pub timeout: Option<Duration>,
    pub(crate) document: Option<Document>,
    /// The group of the events that it concerns.
    pub(crate) events: Option<&'static str>,
    pub(crate) format: Format,
    pub(crate) encoding: Encoding,
    pub(crate) patch: Option<PatchKind>,
    pub(crate) read: ReadOptions,
    pub(crate) write: WriteOptions,
    /// The client's user agent, up to the first slash: the writer, if the request names no manager.
    pub(crate) agent: String,
}

/// Parses a request's head.
pub fn route(head: Head<'_>) -> Result<Ask, Status> {
    let (path, query) = head.target.split_once('?').unwrap_or((head.target, ""));
    let decoded: Option<Vec<String>> = path
        .strip_prefix('/')
        .map(|path| path.strip_suffix('/').unwrap_or(path))
        .into_iter()
        .flat_map(|path| path.split('/'))
        .map(|part| percent_decode_str(part).decode_utf8().ok().map(std::borrow::Cow::into_owned))
        .collect();
    let parts = decoded.unwrap_or_default();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let place = PathTarget::find(&parts).ok_or_else(Status::no_such_path)?;
    place.ask(head, Params::parse(query))
}

/// The target of a path.
enum PathTarget<'a> {
    Document(Document),
    SelfReview,
    AccessReview,
    RulesReview,
    Events {
        group: &'static str,
        namespace: Option<&'a str>,
        name: Option<&'a str>,
    },
    /// `watches`: by the older path of watches, which Ruby's client uses.
    Objects {
        resource: Resource,
        namespace: Option<&'a str>,
        name: Option<&'a str>,
        watches: bool,
    },
}

impl<'a> PathTarget<'a> {
    fn find(parts: &[&'a str]) -> Option<Self> {
        if let Some(document) = Document::at(parts) {
            return Some(PathTarget::Document(document));
        }
        let (group, version, rest) = match parts {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        match (group, version, rest) {
            ("authorization.k8s.io", "v1", ["selfsubjectaccessreviews"]) => return Some(PathTarget::AccessReview),
            ("authorization.k8s.io", "v1", ["selfsubjectrulesreviews"]) => return Some(PathTarget::RulesReview),
            ("authentication.k8s.io", "v1", ["selfsubjectreviews"]) => return Some(PathTarget::SelfReview),
            _ => {}
        }
        let (watches, rest) = match rest {
            ["watch", rest @ ..] => (true, rest),
            _ => (false, rest),
        };
        let (namespace, plural, name) = match rest {
            ["namespaces", namespace, plural] => (Some(*namespace), *plural, None),
            ["namespaces", namespace, plural, name] => (Some(*namespace), *plural, Some(*name)),
            [plural] => (None, *plural, None),
            _ => return None,
        };
        if namespace == Some("") || name == Some("") {
            return None;
        }
        if plural == events::PLURAL && version == "v1" && !watches {
            let group = events::GROUPS.into_iter().find(|known| *known == group)?;
            return Some(PathTarget::Events { group, namespace, name });
        }
        Some(PathTarget::Objects { resource: Resource::named(group, version, plural)?, namespace, name, watches })
    }

    fn ask(self, head: Head<'_>, params: Params) -> Result<Ask, Status> {
        let agent = head.user_agent.unwrap_or_default().split('/').next().unwrap_or_default();
        let agent: String = agent.chars().filter(|c| !c.is_control()).take(128).collect();
        let mut ask = Ask {
            verb: Verb::None,
            takes: Takes::Document,
            resource: None,
            namespace: None,
            name: None,
            timeout: params.timeout()?,
            document: None,
            events: None,
            format: Format::Object,
            encoding: Encoding::Json,
            patch: None,
            read: ReadOptions::default(),
            write: WriteOptions::default(),
            agent: if agent.is_empty() { "unknown".to_owned() } else { agent },
        };
        match self {
            PathTarget::Document(document) => {
                if head.method != "GET" {
                    return Err(not_allowed(head.method));
                }
                ask.document = Some(document.accepted(head.accept)?);
            }
            PathTarget::SelfReview | PathTarget::AccessReview | PathTarget::RulesReview => {
                if head.method != "POST" {
                    return Err(not_allowed(head.method));
                }
                negotiate::format(head.accept)?;
                ask.encoding = negotiate::encoding(head.content_type)?;
                ask.takes = match self {
                    PathTarget::AccessReview => Takes::Authorization,
                    PathTarget::RulesReview => Takes::Rules,
                    _ => Takes::Identity,
                };
            }
            PathTarget::Events { group, namespace, name } => {
                ask.events = Some(group);
                ask.namespace = namespace.map(str::to_owned);
                ask.name = name.map(str::to_owned);
                ask.about_events(head, &params)?;
            }
            PathTarget::Objects { resource, namespace, name, watches } => {
                ask.resource = Some(resource);
                ask.namespace = namespace.map(str::to_owned);
                ask.name = name.map(str::to_owned);
                // A watch of one object is a watch with a selector.
                let params = match name.filter(|_| watches) {
                    Some(name) => params.selecting(&format!("metadata.name={name}")),
                    None => params,
                };
                ask.name = ask.name.filter(|_| !watches);
                ask.objects(head, &params, resource, watches)?;
            }
        }
        Ok(ask)
    }
}

impl Ask {
    fn about_events(&mut self, head: Head<'_>, params: &Params) -> Result<(), Status> {
        let watch = params.flag("watch").unwrap_or(false);
        (self.verb, self.takes) = match (head.method, &self.namespace, &self.name) {
            ("GET", _, Some(_)) => (Verb::Get, Takes::NoEvents),
            ("GET", _, None) if !watch => (Verb::List, Takes::NoEvents),
            ("POST", Some(_), None) => (Verb::Create, Takes::Event),
            ("PUT", Some(_), Some(_)) => (Verb::Update, Takes::Event),
            ("PATCH", Some(_), Some(_)) => (Verb::Patch, Takes::Event),
            (method, _, _) => {
                let what = if watch { "a watch" } else { method };
                let message = format!("{what} is not supported on events: they are not kept here");
                return Err(Status::new(Reason::MethodNotAllowed, message));
            }
        };
        self.format = negotiate::format(head.accept)?;
        match self.verb {
            Verb::Create | Verb::Update => self.encoding = negotiate::encoding(head.content_type)?,
            Verb::Patch => drop(negotiate::patch_kind(head.content_type)?),
            _ => {}
        }
        Ok(())
    }

    fn objects(&mut self, head: Head<'_>, params: &Params, resource: Resource, watches: bool) -> Result<(), Status> {
        let watch = watches || params.flag("watch").unwrap_or(false);
        self.verb = match (head.method, &self.namespace, &self.name) {
            ("GET", _, Some(_)) => Verb::Get,
            ("GET", _, None) if watch => Verb::Watch,
            ("GET", _, None) => Verb::List,
            ("POST", Some(_), None) if !watches => Verb::Create,
            ("DELETE", Some(_), None) if !watches => Verb::DeleteCollection,
            ("PUT", _, Some(_)) => Verb::Update,
            ("PATCH", _, Some(_)) => Verb::Patch,
            ("DELETE", _, Some(_)) => Verb::Delete,
            (method, _, _) => {
                let message = format!("{method} is not supported on resources of kind {:?}", resource.qualified());
                return Err(Status::about(Reason::MethodNotAllowed, resource, "", message));
            }
        };
        self.format = negotiate::format(head.accept)?;
        self.takes = match self.verb {
            Verb::Get | Verb::List => Takes::Read,
            Verb::Watch => Takes::Watch,
            _ => Takes::Write,
        };
        if matches!(self.verb, Verb::Get | Verb::List | Verb::Watch | Verb::DeleteCollection) {
            self.read = ReadOptions::parse(params, resource, watch && self.verb == Verb::Watch)?;
        }
        match self.verb {
            Verb::Create | Verb::Update => {
                self.encoding = negotiate::encoding(head.content_type)?;
                let kind = if self.verb == Verb::Create { "CreateOptions" } else { "UpdateOptions" };
                self.write = WriteOptions::parse(params, kind, false)?;
            }
            Verb::Patch => {
                let patch = negotiate::patch_kind(head.content_type)?;
                self.patch = Some(patch);
                self.write = WriteOptions::parse(params, "PatchOptions", patch == PatchKind::Apply)?;
            }
            Verb::Delete | Verb::DeleteCollection => {
                // Clients name all kinds of types for an empty body: checked only if there is a body.
                self.encoding = negotiate::encoding(head.content_type).unwrap_or_default();
                self.write = WriteOptions::parse(params, "DeleteOptions", false)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// The OpenAPI document that it requests.
    pub(crate) fn openapi(&self) -> Option<OpenApi> {
        match self.document {
            Some(Document::OpenApi(document)) => Some(document),
            _ => None,
        }
    }

    /// Whether it writes an object that may have the largest size: config maps and endpoints.
    pub fn may_be_large(&self) -> bool {
        self.is_write() && self.resource.is_some_and(|resource| resource.put_may_be_blind())
    }

    /// Whether it changes objects.
    pub fn is_write(&self) -> bool {
        self.takes == Takes::Write
    }

    /// Whether it needs no identity.
    pub fn is_public(&self) -> bool {
        self.document.as_ref().is_some_and(Document::is_public)
    }

    /// How fresh a replica must be to answer this.
    pub fn freshness(&self) -> Freshness {
        match (self.takes, self.read.resource_version) {
            (Takes::Read | Takes::Watch, Some(0)) => Freshness::Any,
            (Takes::Read | Takes::Watch, Some(revision)) => Freshness::AtLeast(Revision(revision)),
            (Takes::Read | Takes::Watch | Takes::Write, _) => Freshness::Now,
            _ => Freshness::Any,
        }
    }

    /// The longest duration of a watch, if the client states it.
    pub fn watch_duration(&self) -> Option<Duration> {
        self.read.watch_duration
    }

    /// Whether the watch accepts periodic bookmarks.
    pub fn wants_bookmarks(&self) -> bool {
        self.read.bookmarks
    }

    /// The object that it names.
    pub fn key(&self) -> Option<ObjectKey> {
        let (kind, namespace) = (self.resource?.kind, self.namespace.clone()?);
        Some(ObjectKey { kind, namespace, name: self.name.clone()? })
    }

    /// The refusal for a client without permission. The message names `who`.
    pub fn forbidden(&self, who: &str) -> Status {
        let Some(resource) = self.resource else {
            return Status::new(Reason::Forbidden, format!("user {who:?} may not make this request"));
        };
        let name = self.name.as_deref().unwrap_or_default();
        let place = self
            .namespace
            .as_ref()
            .map_or_else(|| "in all namespaces".to_owned(), |namespace| format!("in the namespace {namespace:?}"));
        let subject = if name.is_empty() { resource.qualified() } else { format!("{} {name:?}", resource.qualified()) };
        let message = format!(
            "{subject} is forbidden: user {who:?} cannot {} resource {:?} in API group {:?} {place}",
            self.verb,
            resource.plural(),
            resource.group,
        );
        Status::about(Reason::Forbidden, resource, name, message)
    }

    pub(crate) fn selection(&self, resource: Resource) -> Selection {
        Selection {
            kind: resource.kind,
            namespace: self.namespace.clone(),
            labels: self.read.labels.clone(),
            fields: self.read.fields.clone(),
        }
    }

    /// The writer, for field ownership.
    pub(crate) fn manager(&self) -> &str {
        self.write.manager.as_deref().unwrap_or(&self.agent)
    }
}

/// As the command log names it: `update leases default/lock by kubectl`.
impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(resource) = self.resource else {
            return f.write_str("a request without objects");
        };
        write!(f, "{} {}", self.verb, resource.plural())?;
        if let Some(namespace) = &self.namespace {
            write!(f, " {namespace}/{}", self.name.as_deref().unwrap_or_default())?;
        }
        if self.is_write() { write!(f, " by {}", self.manager()) } else { Ok(()) }
    }
}

fn not_allowed(method: &str) -> Status {
    Status::new(Reason::MethodNotAllowed, format!("{method} is not supported here"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(method: &str, target: &str) -> Result<Ask, Status> {
        let content_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let user_agent = Some("kubectl/v1.20.2 (linux/amd64)");
        route(Head { method, target, content_type: Some(content_type), user_agent, ..Head::default() })
    }

    #[test]
    fn paths_yield_verb_namespace_and_name() {
        let base = "/apis/coordination.k8s.io/v1";
        for (method, path, verb, namespace, name) in [
            ("GET", "/leases", Verb::List, None, None),
            ("GET", "/leases?watch=1", Verb::Watch, None, None),
            ("GET", "/namespaces/ns/leases", Verb::List, Some("ns"), None),
            ("GET", "/namespaces/ns/leases?&limit=500", Verb::List, Some("ns"), None),
            ("GET", "/namespaces/ns/leases/x?", Verb::Get, Some("ns"), Some("x")),
            ("GET", "/namespaces/ns/leases/x?watch=1", Verb::Get, Some("ns"), Some("x")),
            ("POST", "/namespaces/ns/leases?&pretty=true", Verb::Create, Some("ns"), None),
            ("PUT", "/namespaces/ns/leases/x%2Ey", Verb::Update, Some("ns"), Some("x.y")),
            ("PATCH", "/namespaces/ns/leases/x", Verb::Patch, Some("ns"), Some("x")),
            ("DELETE", "/namespaces/ns/leases/x", Verb::Delete, Some("ns"), Some("x")),
            ("DELETE", "/namespaces/ns/leases", Verb::DeleteCollection, Some("ns"), None),
            ("GET", "/watch/leases", Verb::Watch, None, None),
            ("GET", "/watch/namespaces/ns/leases", Verb::Watch, Some("ns"), None),
            ("GET", "/watch/namespaces/ns/leases/x", Verb::Watch, Some("ns"), None),
        ] {
            let ask = ask(method, &format!("{base}{path}")).unwrap_or_else(|e| panic!("{path}: {}", e.message));
            assert_eq!((ask.verb, ask.namespace.as_deref(), ask.name.as_deref()), (verb, namespace, name), "{path}");
            assert_eq!(ask.is_write(), verb > Verb::Watch, "{path}");
        }
        let ask = ask("PUT", "/api/v1/namespaces/ns/configmaps/x?timeout=5s").unwrap();
        assert_eq!(
            (ask.to_string().as_str(), ask.timeout),
            ("update configmaps ns/x by kubectl", Some(Duration::from_secs(5)))
        );
    }

    #[test]
    fn other_paths_and_methods_are_refused() {
        for path in [
            "",
            "/nothing",
            "/apis/apps/v1/deployments",
            "/apis/coordination.k8s.io/v2/leases",
            "/apis/coordination.k8s.io/v1/leasecandidates",
            "/apis/coordination.k8s.io/v1/namespaces/ns",
            "/apis/coordination.k8s.io/v1/namespaces//leases",
            "/apis/coordination.k8s.io/v1/namespaces/ns/leases/x/status",
            "/apis/coordination.k8s.io/v1/watch/pods",
            "/apis/coordination.k8s.io/v1/namespaces/ns/leases/%FF",
            "/openapi/v4",
            "/api/v1/namespaces/ns/events/x/status",
        ] {
            assert_eq!(ask("GET", path).unwrap_err().reason.code(), 404, "{path}");
        }
        for (method, path) in [
            ("POST", "/apis/coordination.k8s.io/v1/leases"),
            ("DELETE", "/apis/coordination.k8s.io/v1/leases"),
            ("POST", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/x"),
            ("HEAD", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/x"),
            ("POST", "/apis/coordination.k8s.io/v1/watch/namespaces/ns/leases"),
            ("GET", "/api/v1/events?watch=1"),
            ("DELETE", "/api/v1/namespaces/ns/events/x"),
            ("POST", "/version"),
            ("GET", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"),
        ] {
            assert_eq!(ask(method, path).unwrap_err().reason.code(), 405, "{method} {path}");
        }
    }

    #[test]
    fn reads_state_the_required_freshness() {
        let freshness = |query: &str| ask("GET", &format!("/api/v1/configmaps?{query}")).unwrap().freshness();
        assert_eq!(freshness(""), Freshness::Now);
        assert_eq!(freshness("resourceVersion="), Freshness::Now);
        assert_eq!(freshness("resourceVersion=0"), Freshness::Any);
        assert_eq!(freshness("resourceVersion=7"), Freshness::AtLeast(Revision(7)));
        assert_eq!(freshness("watch=1&resourceVersion=7"), Freshness::AtLeast(Revision(7)));
        let initial = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        assert_eq!(freshness(initial), Freshness::Now, "as fresh as the request");
    }

    #[test]
    fn forbidden_message_names_user_verb_and_resource() {
        let refused = ask("GET", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/x").unwrap().forbidden("mallory");
        assert_eq!(refused.reason.code(), 403);
        assert_eq!(
            refused.message,
            "leases.coordination.k8s.io \"x\" is forbidden: user \"mallory\" cannot get resource \"leases\" in API \
             group \"coordination.k8s.io\" in the namespace \"ns\""
        );
    }
}
