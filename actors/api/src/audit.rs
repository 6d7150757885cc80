//! Auditing of requests: around everything answered here, whichever way the request came in.

use std::borrow::Cow;
use std::future::Future;

use axum::http::Method;
use muster_audit::{AuditLog, Class, Draft, Object, Origin, Outcome};
use muster_messages::wire::{KubeAnswer, Request};
use muster_messages::{ErrorBody, ErrorCode, Principal, RequestId, Revision, Tables};
use serde::Deserialize;
use serde_json::Value;

use crate::core::{class_of, described, object_of, outcome_of};
use crate::service::{Asked, Service};

impl Service {
    /// The audit log of this process.
    pub fn audit(&self) -> &AuditLog {
        &self.ports.audit
    }

    /// Runs `work` if the log allows it, writes the line and returns the answer.
    pub(crate) async fn with_audit_line(
        &self,
        origin: &Origin,
        asked: &Asked,
        work: impl Future<Output = Result<String, ErrorBody>>,
    ) -> Result<String, ErrorBody> {
        if !self.ports.audit.is_on() {
            return work.await;
        }
        let class = self.with_tables(|tables| class_of(&asked.request, tables));
        // Who acts is decided now: the node's manager runtime may start or end meanwhile.
        let by = self.effective_caller(&asked.caller);
        let draft = || self.draft((origin, by.as_ref()), asked);
        let Some(mut line) = self.ports.audit.begin(class, draft) else { return work.await };
        let result = match line.admit().await {
            Ok(()) => work.await,
            Err(unavailable) => Err(unavailable),
        };
        let mut done = Ok(Outcome::Done);
        if let Ok(answer) = &result {
            done = outcome_or_refusal(&asked.request, answer);
            if let Some(id) = object_of(&asked.request, answer) {
                line.object_id(&id);
            }
        }
        line.close(result, done, asked.applied()).await
    }

    fn with_tables<T>(&self, read: impl FnOnce(Option<&Tables>) -> T) -> T {
        let manager = self.ports.manager.borrow().clone();
        let replica = manager.map(|manager| manager.replica.borrow().clone());
        read(replica.as_ref().map(|replica| &replica.tables))
    }

    fn draft(&self, (origin, by): (&Origin, &Principal), asked: &Asked) -> Draft {
        let (verb, object) = self.with_tables(|tables| described(&asked.request, tables));
        let request = Some(asked.request_id).filter(|id| *id != RequestId(0));
        Draft { request, by: by.clone(), origin: origin.clone(), verb, object }
    }

    /// The same for an operation that is not a [`Request`] and answers with a secret.
    pub(crate) async fn with_secret_line<T>(
        &self,
        (origin, caller): (&Origin, &Principal),
        verb: &str,
        work: impl Future<Output = Result<T, ErrorBody>>,
    ) -> Result<T, ErrorBody> {
        let draft = || Draft {
            request: None,
            by: self.effective_caller(caller).into_owned(),
            origin: origin.clone(),
            verb: verb.to_owned(),
            object: Object { kind: "cluster", id: None, name: None },
        };
        let Some(line) = self.ports.audit.begin(Class::Secret, draft) else { return work.await };
        let result = match line.admit().await {
            Ok(()) => work.await,
            Err(unavailable) => Err(unavailable),
        };
        line.close(result, Ok(Outcome::Done), None).await
    }

    /// Records a refusal that came before the request was decoded.
    pub(crate) fn audit_refusal(
        &self,
        (origin, caller): (&Origin, &Principal),
        method: &Method,
        path: &str,
        why: &ErrorBody,
    ) {
        let draft = || Draft {
            request: None,
            by: self.effective_caller(caller).into_owned(),
            origin: origin.clone(),
            verb: method.to_string(),
            object: Object::named("http", path),
        };
        if let Some(line) = self.ports.audit.begin(Class::Vital, draft) {
            line.refuse(why);
        }
    }

    /// The socket of a node without a manager runtime acts as that node.
    fn effective_caller<'a>(&self, caller: &'a Principal) -> Cow<'a, Principal> {
        match caller {
            Principal::Operator if self.ports.manager.borrow().is_none() => {
                Cow::Owned(Principal::Node(self.facts().id))
            }
            caller => Cow::Borrowed(caller),
        }
    }
}

impl Asked {
    /// The revision at which this node applied it, if it did.
    fn applied(&self) -> Option<Revision> {
        let revision = self.applied.load(std::sync::atomic::Ordering::Relaxed);
        (revision > 0).then_some(Revision(revision))
    }
}

/// A Kubernetes client's refusal counts as an answer like any other.
fn outcome_or_refusal(request: &Request, answer: &str) -> Result<Outcome, ErrorBody> {
    if !matches!(request, Request::Kube(_)) {
        return Ok(outcome_of(request, answer));
    }
    // Nearly every answer is a success, whose body need not be read. What is not an answer of this protocol has no status.
    let status = serde_json::from_str(answer).map_or(200, |StatusOf { status }| status);
    let code = match status {
        ..400 => return Ok(Outcome::Done),
        401 => ErrorCode::Unauthenticated,
        403 => ErrorCode::Forbidden,
        404 => ErrorCode::NotFound,
        409 => ErrorCode::Conflict,
        429 => ErrorCode::TooManyRequests,
        400..500 => ErrorCode::Invalid,
        500.. => ErrorCode::Internal,
    };
    let body = serde_json::from_str(answer).map_or_else(|_| String::new(), |answer: KubeAnswer| answer.body);
    let body: Value = serde_json::from_str(&body).unwrap_or_default();
    Err(ErrorBody::new(code, body["message"].as_str().unwrap_or_default()))
}

/// The status of a [`KubeAnswer`].
#[derive(Deserialize)]
struct StatusOf {
    status: u16,
}

#[cfg(test)]
#[path = "audit_tests.rs"]
mod tests;
