//! From a worker to some manager, over `muster-api/1`, as this node. Connections are kept while they work.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muster_gateway::{DialError, Dialer, Framed};
use muster_messages::protocol::Service as Port;
use muster_messages::wire::{ApiAnswer, ApiCall, LeaseRequest, ReconcilerRequest, Request};
use muster_messages::{ErrorBody, ErrorCode};
use tokio::sync::Semaphore;

use crate::reads::is_unavailable;
use crate::service::{Asked, refusal_error};

type Stream = Framed<muster_gateway::BoxStream>;

/// Requests on their way at once: a worker's socket is for a person or a few programs. Further ones wait their turn.
const ON_THEIR_WAY: usize = 64;
/// Connections kept for the next request. One request uses one, so that a slow one (a watch) holds up nobody else.
const KEPT: usize = 4;

/// Passes requests on.
#[derive(Clone)]
pub(crate) struct Relay {
    dialer: Dialer,
    idle: Arc<Mutex<Vec<Stream>>>,
    room: Arc<Semaphore>,
}

impl Relay {
    pub(crate) fn new(dialer: Dialer) -> Self {
        Self { dialer, idle: Arc::default(), room: Arc::new(Semaphore::new(ON_THEIR_WAY)) }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Stream>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A manager that cannot answer is not asked first the next time.
    fn keep(&self, stream: Stream, answer: &Result<String, ErrorBody>) {
        let mut idle = self.idle();
        if idle.len() < KEPT && !answer.as_ref().is_err_and(|e| is_unavailable(e.code)) {
            idle.push(stream);
        }
    }

    pub(crate) async fn to_some_manager(&self, asked: &Asked, managers: &[String]) -> Result<String, ErrorBody> {
        let attempt = async {
            let _place = self.room.acquire().await.expect("the semaphore is never closed");
            // A connection that was idle may be gone without our knowing; its manager may be one no more.
            let idle = self.idle().pop();
            if let Some(mut stream) = idle
                && let Ok(answer) = exchange(&mut stream, asked).await
                && !sent_on(&answer)
            {
                self.keep(stream, &answer);
                return answer;
            }
            let mut last =
                ErrorBody::new(ErrorCode::Unreachable, "this node knows no manager yet; is it still joining?");
            let mut failed: Vec<String> = Vec::new();
            let mut untried: VecDeque<String> = managers.iter().cloned().collect();
            let mut tried = BTreeSet::new();
            while let Some(addr) = untried.pop_front() {
                if !tried.insert(addr.clone()) || tried.len() > MOST_TRIED {
                    continue;
                }
                let mut stream = match self.dialer.dial(&addr, Port::Api, None).await {
                    Ok(dialed) => dialed.stream,
                    Err(error) => {
                        last = dial_error(&error);
                        failed.push(last.message.clone());
                        continue;
                    }
                };
                match exchange(&mut stream, asked).await {
                    Ok(answer) if sent_on(&answer) => {
                        if let Err(error) = answer {
                            untried.extend(named_managers(&error));
                            last = error;
                        }
                    }
                    Ok(answer) => {
                        self.keep(stream, &answer);
                        return answer;
                    }
                    Err(error) => {
                        last = ErrorBody::new(ErrorCode::Unreachable, format!("{addr} ended the connection: {error}"));
                        failed.push(last.message.clone());
                    }
                }
            }
            Err(none_answers(last, &failed))
        };
        match tokio::time::timeout(asked.left(), attempt).await {
            Ok(result) => result,
            Err(_) => Err(ErrorBody::new(ErrorCode::TimedOut, "no manager answered in time")),
        }
    }
}

/// The last failure, unless it was only that this manager does not answer: then that none does.
fn none_answers(last: ErrorBody, failed: &[String]) -> ErrorBody {
    if failed.last() != Some(&last.message) {
        return last;
    }
    let more = failed.len().saturating_sub(MOST_NAMED);
    let more = if more == 0 { String::new() } else { format!("; and {more} more") };
    let named = failed.iter().take(MOST_NAMED).cloned().collect::<Vec<_>>().join("; ");
    let text = format!("this node is a worker and reaches no manager: {named}{more}");
    ErrorBody { message: text, ..last }
}

/// Failures that one error names.
const MOST_NAMED: usize = 3;

/// Managers tried for one request, those that others name included.
const MOST_TRIED: usize = 32;

/// It is a manager no more and says who is.
fn sent_on(answer: &Result<String, ErrorBody>) -> bool {
    answer.as_ref().is_err_and(|e| e.code == ErrorCode::NotAManager)
}

fn named_managers(error: &ErrorBody) -> Vec<String> {
    let details: serde_json::Value = serde_json::from_str(&error.details).unwrap_or_default();
    serde_json::from_value(details["managers"].clone()).unwrap_or_default()
}

async fn exchange(stream: &mut Stream, asked: &Asked) -> Result<Result<String, ErrorBody>, muster_gateway::FrameError> {
    let call =
        ApiCall { id: 1, request_id: asked.request_id, timeout_ms: asked.left_ms(), request: asked.request.clone() };
    let exchanged = async {
        stream.send(&call).await?;
        match stream.recv::<ApiAnswer>().await? {
            Some(answer) => Ok(answer.result),
            None => Err(muster_gateway::FrameError::Cut),
        }
    };
    tokio::time::timeout(patience(&asked.request), exchanged).await.unwrap_or(Err(muster_gateway::FrameError::Cut))
}

/// How long one manager may take before another is asked: a frozen one must not use up the caller's time. A manager
/// waits 1.5 s for a quorum before it answers from its copy. Writes carry a request id, so asking twice is harmless.
fn patience(request: &Request) -> Duration {
    let waits = match request {
        Request::Events { wait_ms, .. } | Request::Lease(LeaseRequest::Watch { wait_ms, .. }) => {
            Duration::from_millis(*wait_ms)
        }
        Request::Reconciler(
            ReconcilerRequest::Status { wait_ms, .. }
            | ReconcilerRequest::Admission { wait_ms, .. }
            | ReconcilerRequest::Definitions { wait_ms, .. }
            | ReconcilerRequest::View { wait_ms, .. },
        ) => Duration::from_millis(*wait_ms),
        // Thousands of entries of the log.
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
