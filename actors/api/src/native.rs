//! `muster-api/1` and the admin socket: framed calls, many in flight on one connection, answers in any order.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use muster_audit::Origin;
use muster_gateway::{FrameError, Framed};
use muster_messages::wire::{ApiAnswer, ApiCall, LeaseRequest, ReconcilerRequest, Request};
use muster_messages::{ErrorBody, ErrorCode, Principal};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::service::{Service, waits};

/// The caller on a connection. A certificate identifies one principal; an admin socket acts as its node's current role
/// allows.
pub type Caller = Arc<dyn Fn() -> Principal + Send + Sync>;

/// Answers that may fill a frame, in flight on one connection: a client that requests many and reads none costs a few
/// frames rather than one for each request.
const MAX_LONG_ANSWERS_PER_CONNECTION: usize = 8;

/// A connection whose client was told to retry later and retries at once is read no faster than this: a refusal costs
/// time that others wait for.
pub(crate) const REFUSAL_PAUSE: Duration = Duration::from_millis(10);

/// An answer, with its permit among the long ones until it is written.
type Outgoing = (ApiAnswer, Option<OwnedSemaphorePermit>);

/// Serves one connection until it ends. Dropping the future drops the requests in flight.
pub async fn serve_native<S>(
    service: Service,
    caller: Caller,
    origin: Origin,
    stream: Framed<S>,
) -> Result<(), FrameError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let in_flight = service.ports.limits.in_flight;
    let (mut reader, mut writer) = stream.split();
    let (answers, mut ready) = mpsc::channel::<Outgoing>(in_flight);
    let long = Arc::new(Semaphore::new(MAX_LONG_ANSWERS_PER_CONNECTION));
    let mut tasks = JoinSet::new();
    let origin = Arc::new(origin);
    let reading = async move {
        while let Some(call) = reader.recv::<ApiCall>().await? {
            while tasks.len() >= in_flight {
                let _ended = tasks.join_next().await;
            }
            while tasks.try_join_next().is_some() {}
            let caller = caller();
            let request_permit = match service.enter(&caller, waits(&call.request)) {
                Ok(request_permit) => request_permit,
                Err(full) => {
                    let _gone = answers.send((ApiAnswer { id: call.id, result: Err(full) }, None)).await;
                    tokio::time::sleep(REFUSAL_PAUSE).await;
                    continue;
                }
            };
            let (service, answers, origin) = (service.clone(), answers.clone(), Arc::clone(&origin));
            let long = may_be_long(&call.request).then(|| Arc::clone(&long));
            // A request that waits for a change needs its permit for the answer, not for the wait.
            let polls = matches!(call.request, Request::Reconciler(ReconcilerRequest::View { wait_ms: 1.., .. }));
            tasks.spawn(async move {
                let id = call.id;
                let permit = async |long: Option<Arc<Semaphore>>| match long {
                    Some(long) => Some(long.acquire_owned().await.expect("the semaphore is never closed")),
                    None => None,
                };
                let before = if polls { None } else { permit(long.clone()).await };
                // A panic is a bug: the caller gets an error instead of waiting forever.
                let answered =
                    AssertUnwindSafe(service.answer_in(&request_permit, &origin, caller, call)).catch_unwind().await;
                drop(request_permit);
                let result = answered.unwrap_or_else(|_| {
                    tracing::error!("a request panicked");
                    Err(ErrorBody::new(ErrorCode::Internal, "the request failed on this node; see the daemon's log"))
                });
                let permit = if polls { permit(long).await } else { before };
                let _gone = answers.send((ApiAnswer { id, result }, permit)).await;
            });
        }
        // The client sends no more requests; the pending ones are still answered.
        drop(answers);
        while tasks.join_next().await.is_some() {}
        Ok(())
    };
    let writing = async move {
        while let Some((answer, permit)) = ready.recv().await {
            feed(&mut writer, answer)?;
            let mut permits = vec![permit];
            // All ready answers leave in one write.
            while writer.queued() < 64 * 1024
                && let Ok((answer, permit)) = ready.try_recv()
            {
                feed(&mut writer, answer)?;
                permits.push(permit);
            }
            writer.flush().await?;
            drop(permits);
        }
        Ok(())
    };
    tokio::try_join!(reading, writing).map(|_| ())
}

/// Whether the answer grows with the cluster.
fn may_be_long(request: &Request) -> bool {
    let other = matches!(
        request,
        Request::RaftStatus { .. }
            | Request::Status { .. }
            | Request::Actors { .. }
            | Request::Events { .. }
            | Request::Lease(LeaseRequest::List { .. } | LeaseRequest::Guards | LeaseRequest::Renew { .. })
            | Request::Reconciler(
                ReconcilerRequest::List
                    | ReconcilerRequest::Plan { .. }
                    | ReconcilerRequest::MemberList { .. }
                    | ReconcilerRequest::ObjectList { .. }
                    | ReconcilerRequest::ObjectChanges { .. }
                    | ReconcilerRequest::View { .. }
            )
            | Request::Kube(_)
    );
    other || request.list().is_some()
}

/// An answer over the frame limit becomes an error: the caller learns of it, and the connection stays open.
fn feed<W: tokio::io::AsyncWrite + Unpin>(
    writer: &mut muster_gateway::FramedWriter<W>,
    answer: ApiAnswer,
) -> Result<(), FrameError> {
    let id = answer.id;
    writer.feed(&answer).or_else(|_| {
        let error =
            ErrorBody::new(ErrorCode::TooLarge, "the answer is larger than one frame (1 MiB); request it in pages");
        writer.feed(&ApiAnswer { id, result: Err(error) })
    })
}
