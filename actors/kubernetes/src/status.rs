//! Refusals in Kubernetes' form: the `Status` object, its reasons and causes.
//!
//! Clients branch on the HTTP code, `reason` and the types of causes, never on messages.

use muster_messages::wire::KubeAnswer;
use muster_messages::{ErrorBody, ErrorCode, Revision};
use serde_json::{Map, Value, json};

use crate::resource::Resource;

/// When a client that met no quorum should retry.
const RETRY_AFTER_S: u64 = 1;

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident => $code:literal;)*) => {
        /// Why, in the vocabulary that clients branch on. Each fixes an HTTP status.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Reason { $($(#[$doc])* $variant,)* }
        impl Reason {
            /// The HTTP status.
            pub fn code(self) -> u16 { match self { $(Reason::$variant => $code,)* } }
            /// As it travels.
            pub fn name(self) -> &'static str { match self { $(Reason::$variant => stringify!($variant),)* } }
        }
    };
}

reasons! {
    BadRequest => 400;
    Unauthorized => 401;
    Forbidden => 403;
    NotFound => 404;
    MethodNotAllowed => 405;
    NotAcceptable => 406;
    AlreadyExists => 409;
    Conflict => 409;
    /// A revision older than the history.
    Expired => 410;
    RequestEntityTooLarge => 413;
    UnsupportedMediaType => 415;
    Invalid => 422;
    TooManyRequests => 429;
    InternalError => 500;
    ServiceUnavailable => 503;
    Timeout => 504;
}

/// One cause of a refusal: an error in one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// `FieldValueInvalid`, `FieldManagerConflict` …
    pub kind: &'static str,
    pub message: String,
    pub field: String,
}

impl Cause {
    fn new(kind: &'static str, field: impl Into<String>, message: String) -> Self {
        Self { kind, message, field: field.into() }
    }
    /// The value violates a rule.
    pub(crate) fn invalid(field: impl Into<String>, value: impl Into<Value>, rule: &str) -> Self {
        let value: Value = value.into();
        Self::new("FieldValueInvalid", field, format!("Invalid value: {value}: {rule}"))
    }
    /// The value is missing.
    pub(crate) fn required(field: impl Into<String>, why: &str) -> Self {
        let why = if why.is_empty() { String::new() } else { format!(": {why}") };
        Self::new("FieldValueRequired", field, format!("Required value{why}"))
    }
    /// No value is allowed here.
    pub(crate) fn forbidden(field: impl Into<String>, why: &str) -> Self {
        Self::new("FieldValueForbidden", field, format!("Forbidden: {why}"))
    }
    /// The value is not one of the supported ones.
    pub(crate) fn unsupported(field: impl Into<String>, value: &str, supported: &[&str]) -> Self {
        let supported: Vec<String> = supported.iter().map(|word| format!("{word:?}")).collect();
        let message = format!("Unsupported value: {value:?}: supported values: {}", supported.join(", "));
        Self::new("FieldValueNotSupported", field, message)
    }
    /// Another manager owns the field.
    pub(crate) fn owned(field: impl Into<String>, owner: &str) -> Self {
        Self::new("FieldManagerConflict", field, format!("conflict with {owner}"))
    }
}

/// The object that a refusal concerns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Details {
    name: String,
    group: &'static str,
    /// The plural, or for [`Reason::Invalid`] the kind.
    kind: &'static str,
    causes: Vec<Cause>,
    retry_after_s: Option<u64>,
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub reason: Reason,
    pub message: String,
    details: Option<Box<Details>>,
}

impl Status {
    /// A refusal without details.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), details: None }
    }
    /// The request is malformed.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(Reason::BadRequest, message)
    }
    /// No identity, or an invalid one.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(Reason::Unauthorized, message)
    }
    pub(crate) fn about(reason: Reason, resource: Resource, name: &str, message: String) -> Self {
        let details =
            Details { name: name.to_owned(), group: resource.group, kind: resource.plural(), ..Details::default() };
        Self { reason, message, details: Some(Box::new(details)) }
    }
    /// The object does not exist. Only for an up-to-date replica: clients respond by creating the object.
    pub(crate) fn not_found(resource: Resource, name: &str) -> Self {
        let message = format!("{} {name:?} not found", resource.qualified());
        Self::about(Reason::NotFound, resource, name, message)
    }
    pub(crate) fn no_such_path() -> Self {
        Self::new(Reason::NotFound, "no resource is served under this path")
    }
    pub(crate) fn exists(resource: Resource, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", resource.qualified());
        Self::about(Reason::AlreadyExists, resource, name, message)
    }
    pub(crate) fn conflict(resource: Resource, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", resource.qualified());
        Self::about(Reason::Conflict, resource, name, message)
    }
    /// The object is not at the revision that the client read.
    pub(crate) fn modified(resource: Resource, name: &str) -> Self {
        Self::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }
    /// Another object has the same name.
    pub(crate) fn other_uid(resource: Resource, name: &str, asked: &str, found: &str) -> Self {
        let why = format!("UID in precondition: {asked}, UID in object meta: {found}");
        Self::conflict(resource, name, &why)
    }
    /// Fields belong to other managers.
    pub(crate) fn owned_by_others(resource: Resource, name: &str, causes: Vec<Cause>) -> Self {
        let lines: Vec<String> = causes.iter().map(|c| format!("{}: {}", c.message, c.field)).collect();
        let plural = if causes.len() == 1 { "" } else { "s" };
        let message = format!("apply failed with {} conflict{plural}: {}", causes.len(), lines.join("; "));
        Self::about(Reason::Conflict, resource, name, message).with_causes(causes)
    }
    /// The object violates rules of its kind.
    pub(crate) fn invalid(resource: Resource, name: &str, causes: Vec<Cause>) -> Self {
        let mut status = Self::about(Reason::Invalid, resource, name, String::new());
        if let Some(details) = &mut status.details {
            details.kind = resource.kind_name();
        }
        status.message = invalid_message(&resource.qualified_kind(), name, &causes);
        status.with_causes(causes)
    }
    /// The request is valid but cannot be carried out because of this field. (Also stated as a cause: kubectl prints
    /// causes, and older releases print nothing else.)
    pub(crate) fn unprocessable(field: &str, why: String) -> Self {
        let message = format!("{field}: {why}");
        Self::new(Reason::Invalid, message).with_causes(vec![Cause::new("FieldValueInvalid", field, why)])
    }
    /// The request's parameters violate rules. `kind` as Kubernetes names the parameters: `ListOptions`.
    pub(crate) fn invalid_options(kind: &'static str, causes: Vec<Cause>) -> Self {
        let message = invalid_message(&format!("{kind}.meta.k8s.io"), "", &causes);
        let details = Details { group: "meta.k8s.io", kind, ..Details::default() };
        Self { reason: Reason::Invalid, message, details: Some(Box::new(details)) }.with_causes(causes)
    }
    /// The history begins after what the watcher has seen: it must list again.
    pub fn expired(asked: Revision, oldest: Revision) -> Self {
        Self::new(Reason::Expired, format!("too old resource version: {asked} ({oldest})"))
    }
    /// This replica is older than the requested revision, and did not catch up in time.
    pub fn too_new(asked: Revision, current: Revision) -> Self {
        let message = format!("timeout: too large resource version: {asked}, current: {current}");
        let cause = Cause::new("ResourceVersionTooLarge", "", "Too large resource version".to_owned());
        Self::new(Reason::Timeout, message).with_causes(vec![cause]).retry_after(RETRY_AFTER_S)
    }

    fn with_causes(mut self, causes: Vec<Cause>) -> Self {
        self.details.get_or_insert_default().causes = causes;
        self
    }
    pub(crate) fn retry_after(mut self, secs: u64) -> Self {
        self.details.get_or_insert_default().retry_after_s = Some(secs);
        self
    }
    /// The errors by field, if those are the reason.
    pub fn causes(&self) -> &[Cause] {
        self.details.as_ref().map_or(&[], |details| &details.causes)
    }

    /// The `Status` object.
    pub fn to_json(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason.name(), "code": self.reason.code(),
        });
        if let Some(details) = &self.details {
            status["details"] = details.to_json();
        }
        status
    }
}

fn invalid_message(kind: &str, name: &str, causes: &[Cause]) -> String {
    let lines: Vec<String> = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
    match lines.as_slice() {
        [only] => format!("{kind} {name:?} is invalid: {only}"),
        lines => format!("{kind} {name:?} is invalid: [{}]", lines.join(", ")),
    }
}

impl Details {
    fn to_json(&self) -> Value {
        let mut json = Map::new();
        for (key, text) in [("name", self.name.as_str()), ("group", self.group), ("kind", self.kind)] {
            if !text.is_empty() {
                json.insert(key.to_owned(), text.into());
            }
        }
        if !self.causes.is_empty() {
            json.insert("causes".to_owned(), self.causes.iter().map(Cause::to_json).collect());
        }
        if let Some(secs) = self.retry_after_s {
            json.insert("retryAfterSeconds".to_owned(), secs.into());
        }
        Value::Object(json)
    }
}

impl Cause {
    fn to_json(&self) -> Value {
        let mut json = json!({"reason": self.kind, "message": self.message});
        if !self.field.is_empty() {
            json["field"] = self.field.as_str().into();
        }
        json
    }
}

impl From<Status> for KubeAnswer {
    fn from(status: Status) -> Self {
        let retry_after_s = status.details.as_ref().and_then(|details| details.retry_after_s);
        let body = status.to_json().to_string();
        KubeAnswer { status: status.reason.code(), retry_after_s, warnings: Vec::new(), body }
    }
}

impl From<ErrorBody> for Status {
    fn from(error: ErrorBody) -> Self {
        Self::from(&error)
    }
}

/// Errors that can block any request: no quorum, no time, too many requests. Never "not found" for lack of a quorum:
/// clients would respond by creating what already exists.
impl From<&ErrorBody> for Status {
    fn from(error: &ErrorBody) -> Self {
        let (reason, retry) = match error.code {
            ErrorCode::Invalid => (Reason::BadRequest, false),
            ErrorCode::Unauthenticated => (Reason::Unauthorized, false),
            ErrorCode::Forbidden | ErrorCode::StateFull => (Reason::Forbidden, false),
            ErrorCode::NotFound => (Reason::NotFound, false),
            ErrorCode::TooLarge => (Reason::RequestEntityTooLarge, false),
            ErrorCode::TooManyRequests => (Reason::TooManyRequests, true),
            ErrorCode::NoQuorum
            | ErrorCode::Unreachable
            | ErrorCode::NotKnownHereYet
            | ErrorCode::NotAManager
            | ErrorCode::AuditUnavailable
            | ErrorCode::Locked
            | ErrorCode::UnknownOutcome => (Reason::ServiceUnavailable, true),
            ErrorCode::TimedOut => (Reason::Timeout, true),
            ErrorCode::Internal => (Reason::InternalError, false),
            ErrorCode::Expired => (Reason::Expired, false),
            ErrorCode::Conflict
            | ErrorCode::LastManager
            | ErrorCode::QuorumAtRisk
            | ErrorCode::DemoteFirst
            | ErrorCode::NodeNotDown
            | ErrorCode::Blocked
            | ErrorCode::Demoted
            | ErrorCode::Removed
            | ErrorCode::BadToken
            | ErrorCode::TokenExpired
            | ErrorCode::TokenUsedUp
            | ErrorCode::GateClosed
            | ErrorCode::SameKey
            | ErrorCode::TooManyRoots
            | ErrorCode::RootInUse
            | ErrorCode::NotEnabled
            | ErrorCode::TooManyKeys
            | ErrorCode::BadUnlockKey
            | ErrorCode::OldKeyNeeded
            | ErrorCode::NotLocked
            | ErrorCode::DigestMismatch => (Reason::Conflict, false),
        };
        let status = Self::new(reason, error.message.clone());
        let secs = error.retry_after_ms.map_or(RETRY_AFTER_S, |ms| ms.div_ceil(1000).max(1));
        if retry { status.retry_after(secs) } else { status }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::SERVED;

    #[test]
    fn status_details_name_the_object() {
        let status = Status::not_found(SERVED[0], "x").to_json();
        let details = json!({"name": "x", "group": "coordination.k8s.io", "kind": "leases"});
        assert_eq!(
            status,
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound",
                   "code": 404, "message": "leases.coordination.k8s.io \"x\" not found", "details": details})
        );
        assert_eq!(Status::not_found(SERVED[4], "x").message, "configmaps \"x\" not found");
    }

    #[test]
    fn invalid_objects_are_named_by_their_kind() {
        let causes = vec![Cause::invalid("spec.a", 0, "must be greater than 0"), Cause::required("spec.b", "")];
        let status = Status::invalid(SERVED[0], "x", causes);
        assert_eq!(
            status.message,
            "Lease.coordination.k8s.io \"x\" is invalid: [spec.a: Invalid value: 0: must be greater than 0, \
             spec.b: Required value]"
        );
        let json = status.to_json();
        assert_eq!(json["details"]["kind"], "Lease");
        assert_eq!(json["details"]["causes"][0]["reason"], "FieldValueInvalid");
        assert_eq!(json["details"]["causes"][0]["field"], "spec.a");
    }

    #[test]
    fn lack_of_quorum_states_retry_after() {
        for code in [ErrorCode::NoQuorum, ErrorCode::UnknownOutcome, ErrorCode::Unreachable] {
            let answer = KubeAnswer::from(Status::from(&ErrorBody::new(code, "no quorum")));
            assert_eq!((answer.status, answer.retry_after_s), (503, Some(1)));
            assert!(answer.body.contains("\"retryAfterSeconds\":1"), "{}", answer.body);
        }
        let busy =
            ErrorBody::new(ErrorCode::TooManyRequests, "busy").retry_after(std::time::Duration::from_millis(1500));
        assert_eq!(KubeAnswer::from(Status::from(&busy)).retry_after_s, Some(2));
    }
}
