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

use crate::core::{Kind, kind_of};
use crate::kube::LONG_ANSWER_BYTES;
use crate::service::{Service, waits};
use crate::shares::Share;

/// The caller on a connection. A certificate identifies one principal; an admin socket acts as its node's current role
/// allows.
pub type Caller = Arc<dyn Fn() -> Principal + Send + Sync>;

/// Answers that may fill a frame, in flight on one connection: a client that requests many and reads none costs a few
/// frames rather than one for each request.
const MAX_LONG_ANSWERS_PER_CONNECTION: usize = 8;

/// A connection whose client was told to retry later and retries at once is read no faster than this: a refusal costs
/// time that others wait for.
pub(crate) const REFUSAL_PAUSE: Duration = Duration::from_millis(10);

/// The pause before a write's long answer asks for its share again. Its request is in progress meanwhile.
const SHARE_PAUSE: Duration = Duration::from_millis(50);

/// What a long answer holds until it is written: its permit among those of its connection, and its share among those of its caller.
type Held = (Option<OwnedSemaphorePermit>, Option<Share>);
type Outgoing = (ApiAnswer, Held);

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
                    let _gone = answers.send((ApiAnswer { id: call.id, result: Err(full) }, Held::default())).await;
                    tokio::time::sleep(REFUSAL_PAUSE).await;
                    continue;
                }
            };
            let (service, answers, origin) = (service.clone(), answers.clone(), Arc::clone(&origin));
            let long = may_be_long(&call.request).then(|| Arc::clone(&long));
            // A request that waits for a change needs its permit for the answer, not for the wait.
            let polls = polls(&call.request);
            tasks.spawn(async move {
                let (id, account) = (call.id, caller.clone());
                let is_write = kind_of(&call.request) == Kind::Write;
                let permit = async |long: Option<Arc<Semaphore>>| match long {
                    Some(long) => Some(long.acquire_owned().await.expect("the semaphore is never closed")),
                    None => None,
                };
                let before = if polls { None } else { permit(long.clone()).await };
                // A panic is a bug: the caller gets an error instead of waiting forever.
                let answered =
                    AssertUnwindSafe(service.answer_in(&request_permit, &origin, caller, call)).catch_unwind().await;
                let result = answered.unwrap_or_else(|_| {
                    tracing::error!("a request panicked");
                    Err(ErrorBody::new(ErrorCode::Internal, "the request failed on this node; see the daemon's log"))
                });
                let (result, share) = counted(&service, &account, is_write, result).await;
                drop(request_permit);
                let permit = if polls { permit(long).await } else { before };
                let _gone = answers.send((ApiAnswer { id, result }, (permit, share))).await;
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

/// A long answer counts among its caller's until it is written, whatever connection it is for: one certificate opens hundreds, and need
/// not read from any.
async fn counted(
    service: &Service,
    caller: &Principal,
    is_write: bool,
    result: Result<String, ErrorBody>,
) -> (Result<String, ErrorBody>, Option<Share>) {
    if !result.as_ref().is_ok_and(|text| text.len() > LONG_ANSWER_BYTES) {
        return (result, None);
    }
    loop {
        match service.long_answer(caller) {
            Ok(share) => return (result, Some(share)),
            // What was changed cannot be refused any more.
            Err(_) if is_write => tokio::time::sleep(SHARE_PAUSE).await,
            Err(full) => return (Err(full), None),
        }
    }
}

/// Whether it waits for a change, and may then be answered at length.
fn polls(request: &Request) -> bool {
    use ReconcilerRequest as R;
    matches!(
        request,
        Request::Reconciler(
            R::View { wait_ms: 1.., .. }
                | R::Status { wait_ms: 1.., .. }
                | R::Definitions { wait_ms: 1.., .. }
                | R::Log { wait_ms: 1.., .. }
        )
    )
}

/// Whether the answer grows with the cluster, or has what others have written at length.
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
                    | ReconcilerRequest::Status { .. }
                    | ReconcilerRequest::Plan { .. }
                    | ReconcilerRequest::History { .. }
                    | ReconcilerRequest::Runs { .. }
                    | ReconcilerRequest::Log { .. }
                    | ReconcilerRequest::MemberList { .. }
                    | ReconcilerRequest::ObjectList { .. }
                    | ReconcilerRequest::ObjectGet { .. }
                    | ReconcilerRequest::ObjectPut { .. }
                    | ReconcilerRequest::ObjectChanges { .. }
                    | ReconcilerRequest::Definitions { .. }
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
