//! Requests from a worker to a manager, over `muster-api/1`, as this node. Connections are kept while they work.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muster_gateway::{DialError, Dialer, Framed};
use muster_messages::protocol::Service as Port;
use muster_messages::wire::{ApiAnswer, ApiCall, LeaseRequest, ReconcilerRequest, Request};
use muster_messages::{ErrorBody, ErrorCode, detail};
use tokio::sync::Semaphore;

use crate::reads::is_unavailable;
use crate::service::{Asked, refusal_error};

type Stream = Framed<muster_gateway::BoxStream>;

/// Requests in flight: a worker's socket is for a person or a few programs. Further ones wait.
const MAX_RELAYED_REQUESTS: usize = 64;
/// Connections kept for the next request. Each request uses one, so that a slow request (a watch) does not delay
/// others.
const MAX_IDLE_CONNECTIONS: usize = 4;

/// Forwards requests.
#[derive(Clone)]
pub(crate) struct Relay {
    dialer: Dialer,
    idle: Arc<Mutex<Vec<Stream>>>,
    permits: Arc<Semaphore>,
}

impl Relay {
    pub(crate) fn new(dialer: Dialer) -> Self {
        Self { dialer, idle: Arc::default(), permits: Arc::new(Semaphore::new(MAX_RELAYED_REQUESTS)) }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Stream>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A manager that cannot answer is not tried first the next time.
    fn keep_idle(&self, stream: Stream, answer: &Result<String, ErrorBody>) {
        let mut idle = self.idle();
        if idle.len() < MAX_IDLE_CONNECTIONS && !answer.as_ref().is_err_and(|e| is_unavailable(e.code)) {
            idle.push(stream);
        }
    }

    pub(crate) async fn to_any_manager(&self, asked: &Asked, managers: &[String]) -> Result<String, ErrorBody> {
        let attempt = async {
            let _permit = self.permits.acquire().await.expect("the semaphore is never closed");
            // An idle connection may be dead undetected, and its manager may have been demoted.
            let idle = self.idle().pop();
            if let Some(mut stream) = idle
                && let Ok(answer) = exchange(&mut stream, asked).await
                && !is_redirect(&answer)
            {
                self.keep_idle(stream, &answer);
                return answer;
            }
            let mut failures = Failures::new();
            let mut untried: VecDeque<String> = managers.iter().cloned().collect();
            let mut tried = BTreeSet::new();
            while let Some(addr) = untried.pop_front() {
                if !tried.insert(addr.clone()) || tried.len() > MAX_MANAGERS_TRIED {
                    continue;
                }
                let mut stream = match self.dialer.dial(&addr, Port::Api, None).await {
                    Ok(dialed) => dialed.stream,
                    Err(error) => {
                        match error.refusal() {
                            Some(refusal) => failures.refused(refusal_error(refusal)),
                            None => failures.unreachable(dial_error(&error)),
                        }
                        continue;
                    }
                };
                match exchange(&mut stream, asked).await {
                    Ok(answer) if is_redirect(&answer) => {
                        if let Err(error) = answer {
                            untried.extend(named_managers(&error));
                            failures.last = error;
                        }
                    }
                    Ok(answer) => {
                        self.keep_idle(stream, &answer);
                        return answer;
                    }
                    Err(error) => {
                        let text = format!("{addr} ended the connection: {error}");
                        failures.unreachable(ErrorBody::new(ErrorCode::Unreachable, text));
                    }
                }
            }
            Err(failures.error())
        };
        match tokio::time::timeout(asked.left(), attempt).await {
            Ok(result) => result,
            Err(_) => Err(ErrorBody::new(ErrorCode::TimedOut, "no manager answered in time")),
        }
    }
}

/// Why no manager has answered a request.
struct Failures {
    last: ErrorBody,
    /// From a manager that was reached: it counts more than managers that were not.
    refusal: Option<ErrorBody>,
    /// Why managers were not reached, or ended the connection.
    failed: Vec<String>,
}

impl Failures {
    fn new() -> Self {
        let last = ErrorBody::new(ErrorCode::Unreachable, "this node knows no manager yet; is it still joining?");
        Self { last, refusal: None, failed: Vec::new() }
    }

    /// A refusal that a retry can overcome does not replace one that it cannot.
    fn refused(&mut self, error: ErrorBody) {
        let is_lasting = |error: &ErrorBody| error.retry_after_ms.is_none() && !is_unavailable(error.code);
        if !self.refusal.as_ref().is_some_and(is_lasting) {
            self.refusal = Some(error);
        }
    }

    fn unreachable(&mut self, error: ErrorBody) {
        self.failed.push(error.message.clone());
        self.last = error;
    }

    fn error(self) -> ErrorBody {
        let Self { last, refusal, failed } = self;
        refusal.unwrap_or_else(|| none_answers(last, &failed))
    }
}

/// The last failure; if that was only that one manager does not answer, an error that names all of them.
fn none_answers(last: ErrorBody, failed: &[String]) -> ErrorBody {
    if failed.last() != Some(&last.message) {
        return last;
    }
    let more = failed.len().saturating_sub(MAX_NAMED_FAILURES);
    let more = if more == 0 { String::new() } else { format!("; and {more} more") };
    let named = failed.iter().take(MAX_NAMED_FAILURES).cloned().collect::<Vec<_>>().join("; ");
    let text = format!("this node is a worker and reaches no manager: {named}{more}");
    ErrorBody { message: text, ..last }
}

/// Failures that one error names.
const MAX_NAMED_FAILURES: usize = 3;

/// Managers tried for one request, including those that others name.
const MAX_MANAGERS_TRIED: usize = 32;

/// Whether the manager has been demoted and names the current ones.
fn is_redirect(answer: &Result<String, ErrorBody>) -> bool {
    answer.as_ref().is_err_and(|e| e.code == ErrorCode::NotAManager)
}

fn named_managers(error: &ErrorBody) -> Vec<String> {
    error.detail(detail::MANAGERS).unwrap_or_default()
}

async fn exchange(stream: &mut Stream, asked: &Asked) -> Result<Result<String, ErrorBody>, muster_gateway::FrameError> {
    let call =
        ApiCall { id: 1, request_id: asked.request_id, timeout_ms: asked.left_ms(), request: asked.request.clone() };
    let exchanged = async {
        stream.send(&call).await?;
        match stream.recv::<ApiAnswer>().await? {
            Some(answer) => Ok(answer.result),
            None => Err(muster_gateway::FrameError::Truncated),
        }
    };
    tokio::time::timeout(answer_timeout(&asked.request), exchanged)
        .await
        .unwrap_or(Err(muster_gateway::FrameError::Truncated))
}

/// How long one manager may take before another is asked: a frozen one must not use up the caller's time. A manager
/// waits 1.5 s for a quorum before it answers from its replica. Writes carry a request id, so asking twice is harmless.
fn answer_timeout(request: &Request) -> Duration {
    let waits = match request {
        Request::Events { wait_ms, .. } | Request::Lease(LeaseRequest::Watch { wait_ms, .. }) => {
            Duration::from_millis(*wait_ms)
        }
        Request::Reconciler(
            ReconcilerRequest::Status { wait_ms, .. }
            | ReconcilerRequest::Admission { wait_ms, .. }
            | ReconcilerRequest::Definitions { wait_ms, .. }
            | ReconcilerRequest::View { wait_ms, .. }
            | ReconcilerRequest::ObjectChanges { wait_ms, .. }
            | ReconcilerRequest::Log { wait_ms, .. },
        ) => Duration::from_millis(*wait_ms),
        // Thousands of log entries.
        Request::Reconciler(ReconcilerRequest::Wave { .. }) => Duration::from_secs(56),
        Request::Actors { .. } => Duration::from_secs(60),
        _ => Duration::ZERO,
    };
    waits + Duration::from_secs(4)
}

pub(crate) fn dial_error(error: &DialError) -> ErrorBody {
    match error.refusal() {
        Some(refusal) => refusal_error(refusal),
        None => {
            let mut text = error.to_string();
            if let Some(cause) = std::error::Error::source(error) {
                text = format!("{text}: {cause}");
            }
            ErrorBody::new(ErrorCode::Unreachable, text).retry_after(Duration::from_millis(500))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lasting_refusal_counts_more_than_other_failures() {
        let failure = |code, retry_after_ms| ErrorBody { retry_after_ms, ..ErrorBody::new(code, "n1: refused") };
        let silent = (false, failure(ErrorCode::Unreachable, Some(500)));
        let busy = (true, failure(ErrorCode::TooManyRequests, Some(200)));
        let stopping = (true, failure(ErrorCode::Unreachable, None));
        let blocked = (true, failure(ErrorCode::Blocked, None));
        let error = |order: [&(bool, ErrorBody); 2]| {
            let mut failures = Failures::new();
            for (is_refusal, error) in order {
                match is_refusal {
                    true => failures.refused(error.clone()),
                    false => failures.unreachable(error.clone()),
                }
            }
            failures.error()
        };
        // Whichever manager is asked first.
        for (one, other) in [(&busy, &silent), (&blocked, &silent), (&blocked, &busy), (&blocked, &stopping)] {
            for order in [[one, other], [other, one]] {
                assert_eq!(error(order), one.1);
            }
        }
        let unreachable = error([&silent, &silent]);
        let text = "this node is a worker and reaches no manager: n1: refused; n1: refused";
        assert_eq!((unreachable.message.as_str(), unreachable.retry_after_ms), (text, Some(500)));
    }
}
