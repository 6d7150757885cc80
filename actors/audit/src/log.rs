//! The handle through which the API and the router write.
//!
//! Invariants  AUDIT-1  with `required`, a change or a secret is answered only if its line was handed to the file; while that
//!                      fails, neither is done. No other request is ever refused for the sake of a line.
//! Why a line is pending from the start: a caller that hangs up, or a handler that panics, must not interrupt the trail.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use muster_kernel::{Clock, Recipient};
use muster_messages::protocol::{AuditFault, AuditMsg};
use muster_messages::{ErrorBody, ErrorCode, NodeId, Principal, RequestId, Revision, Trouble, millis};
use tokio::sync::watch;

use crate::core::{AuditState, Entry, Object, Origin, Outcome, line};

/// How long the file may take before it counts as hung: a refusal is answered within 2 s.
const FILE_ANSWER_TIMEOUT: Duration = Duration::from_millis(1800);

/// How the log treats a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A change: has a line; refused while a required log cannot be written.
    Change,
    /// Answered with a secret: the same.
    Secret,
    /// A change that must not depend on the log (leadership, leases, certificates of nodes): has a line, and is never refused.
    Vital,
    /// Has a line if `reads` is set, or if the caller may not make it.
    Read,
}

pub struct AuditSetup {
    pub node: NodeId,
    /// AUDIT-1.
    pub required: bool,
    /// Write lines for reads as well.
    pub reads: bool,
    pub to: Recipient<AuditMsg>,
    pub state: watch::Receiver<AuditState>,
}

#[derive(Clone, Default)]
pub struct AuditLog(Option<Arc<Inner>>);

struct Inner {
    setup: AuditSetup,
    /// Lines lost because the mailbox was full or the actor gone.
    lost: AtomicU64,
}

/// The part of an entry that is known when a request begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    pub request: Option<RequestId>,
    pub by: Principal,
    pub origin: Origin,
    pub verb: String,
    pub object: Object,
}

impl AuditLog {
    pub fn new(setup: AuditSetup) -> Self {
        Self(Some(Arc::new(Inner { setup, lost: AtomicU64::new(0) })))
    }

    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The state of the log. `None`: it is off.
    pub fn state(&self) -> Option<AuditState> {
        let inner = self.0.as_ref()?;
        let mut state = inner.setup.state.borrow().clone();
        let lost = inner.lost.load(Ordering::Relaxed);
        state.failed += lost;
        state.dropped += lost;
        Some(state)
    }

    /// What `status` shows while lines cannot be written.
    pub fn trouble(&self) -> Option<Trouble> {
        self.0.as_ref()?.setup.state.borrow().failing.clone().map(Trouble::AuditFailing)
    }

    /// Closes the file and reopens its path.
    pub fn reopen(&self) {
        if let Some(inner) = &self.0 {
            let _restarting = inner.setup.to.tell(AuditMsg::Reopen);
        }
    }

    /// A request begins. `None`: the log is off. `make` makes the draft of its line: now if each request of the class has one; otherwise
    /// only when it is refused for lack of rights.
    pub fn begin<D: Fn() -> Draft>(&self, class: Class, make: D) -> Option<Pending<D>> {
        let inner = Arc::clone(self.0.as_ref()?);
        let draft = (class != Class::Read || inner.setup.reads).then(&make);
        Some(Pending { inner, class, begun: Instant::now(), make, draft })
    }
}

/// A request in progress. Dropped before it is closed: its line says that the outcome is unknown.
pub struct Pending<D: Fn() -> Draft> {
    inner: Arc<Inner>,
    class: Class,
    begun: Instant,
    make: D,
    draft: Option<Draft>,
}

impl<D: Fn() -> Draft> Pending<D> {
    fn is_guarded(&self) -> bool {
        self.inner.setup.required && matches!(self.class, Class::Change | Class::Secret)
    }

    /// AUDIT-1. Whether it may be executed.
    pub async fn admit(&self) -> Result<(), ErrorBody> {
        if !self.is_guarded() {
            return Ok(());
        }
        let asked = self.inner.setup.to.ask(FILE_ANSWER_TIMEOUT, |reply| AuditMsg::Check { reply }).await;
        match asked {
            Ok(Ok(())) => Ok(()),
            Ok(Err(AuditFault(why))) => Err(unavailable(&why)),
            Err(error) => Err(unavailable(&format!("the audit log does not answer ({error})"))),
        }
    }

    /// Sets the id of the request's object once it is known.
    pub fn object_id(&mut self, id: &str) {
        if let Some(draft) = &mut self.draft {
            draft.object.id = Some(id.to_owned());
        }
    }

    /// Writes the line, and returns the answer if it may be given. `done`: the outcome of an answer that is not an error here; in
    /// another protocol it may be one.
    pub async fn close<T>(
        mut self,
        result: Result<T, ErrorBody>,
        done: Result<Outcome, ErrorBody>,
        revision: Option<Revision>,
    ) -> Result<T, ErrorBody> {
        let (outcome, error) = match result.as_ref().map(|_| &done) {
            Ok(Ok(done)) => (*done, None),
            Ok(Err(error)) | Err(error) => (Outcome::of(error.code), Some(error)),
        };
        let denied = error.is_some_and(|e| matches!(e.code, ErrorCode::Forbidden | ErrorCode::Unauthenticated));
        let Some(draft) = self.draft.take().or_else(|| denied.then(&self.make)) else { return result };
        let line = self.line(draft, outcome, error, revision);
        // A refusal had no effect, and may be answered without its line.
        if error.is_some() || !self.is_guarded() {
            self.inner.tell(AuditMsg::Record { line, reply: None });
            return result;
        }
        let make = |reply| AuditMsg::Record { line, reply: Some(reply) };
        let why = match self.inner.setup.to.ask(FILE_ANSWER_TIMEOUT, make).await {
            Ok(Ok(())) => return result,
            Ok(Err(AuditFault(why))) => why,
            Err(error) => {
                if !matches!(error, muster_kernel::AskError::TimedOut) {
                    self.inner.lost.fetch_add(1, Ordering::Relaxed);
                }
                format!("the audit log does not answer ({error})")
            }
        };
        if self.class == Class::Secret {
            return Err(unavailable(&why));
        }
        let text = format!(
            "the request was carried out, but its line is not in the audit log: {why}; check before you repeat it"
        );
        // Final: a manager that forwarded it must not retry, and receive a refusal.
        Err(ErrorBody::new(ErrorCode::UnknownOutcome, text).finally())
    }

    /// Writes the line of a request that was refused before execution.
    pub fn refuse(mut self, why: &ErrorBody) {
        let Some(draft) = self.draft.take() else { return };
        let unauthenticated = draft.by == Principal::Anonymous;
        let line = self.line(draft, Outcome::of(why.code), Some(why), None);
        self.inner.tell(match unauthenticated {
            true => AuditMsg::RecordUnauthenticated { line },
            false => AuditMsg::Record { line, reply: None },
        });
    }

    fn line(&self, draft: Draft, outcome: Outcome, error: Option<&ErrorBody>, revision: Option<Revision>) -> String {
        let Draft { request, by, origin, verb, object } = draft;
        line(&Entry {
            at: Clock.wall(),
            request,
            node: self.inner.setup.node,
            by,
            origin,
            verb,
            object,
            outcome,
            code: error.map(|e| e.code),
            reason: error.map(|e| e.message.clone()),
            revision,
            took_ms: millis(self.begun.elapsed()),
        })
    }
}

impl<D: Fn() -> Draft> Drop for Pending<D> {
    fn drop(&mut self) {
        let Some(draft) = self.draft.take() else { return };
        let why = ErrorBody::new(ErrorCode::UnknownOutcome, "the caller disconnected before the answer");
        let line = self.line(draft, Outcome::UnknownOutcome, Some(&why), None);
        self.inner.tell(AuditMsg::Record { line, reply: None });
    }
}

impl Inner {
    fn tell(&self, msg: AuditMsg) {
        if self.setup.to.tell(msg).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn unavailable(why: &str) -> ErrorBody {
    let text = format!(
        "the audit log of this node is required and cannot be written: {why}; the request was refused before it was carried out"
    );
    ErrorBody::new(ErrorCode::AuditUnavailable, text).retry_after(Duration::from_secs(1))
}
