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

/// Who speaks on a connection. A certificate speaks for one principal; an admin socket for what its node is right now.
pub type Caller = Arc<dyn Fn() -> Principal + Send + Sync>;

/// Answers that may fill a frame, on their way on one connection at once: a client that asks for many and reads none
/// costs a few frames, not one for each request.
const LONG_ANSWERS: usize = 8;

/// Whoever was told to retry later and goes on at once is heard no faster than this on a connection: to refuse costs time, too,
/// which others wait for.
pub(crate) const PACE: Duration = Duration::from_millis(10);

/// An answer, and its place among the long ones until it is written.
type Outgoing = (ApiAnswer, Option<OwnedSemaphorePermit>);

/// Serves one connection until it ends. Dropping the future drops what is in flight.
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
    let long = Arc::new(Semaphore::new(LONG_ANSWERS));
    let mut tasks = JoinSet::new();
    let origin = Arc::new(origin);
    let reading = async move {
        while let Some(call) = reader.recv::<ApiCall>().await? {
            while tasks.len() >= in_flight {
                let _ended = tasks.join_next().await;
            }
            while tasks.try_join_next().is_some() {}
            let caller = caller();
            let room = match service.enter(&caller, waits(&call.request)) {
                Ok(room) => room,
                Err(full) => {
                    let _gone = answers.send((ApiAnswer { id: call.id, result: Err(full) }, None)).await;
                    tokio::time::sleep(PACE).await;
                    continue;
                }
            };
            let (service, answers, origin) = (service.clone(), answers.clone(), Arc::clone(&origin));
            let long = may_be_long(&call.request).then(|| Arc::clone(&long));
            // What waits for a change has its place for the answer, not for the wait.
            let polls = matches!(call.request, Request::Reconciler(ReconcilerRequest::View { wait_ms: 1.., .. }));
            tasks.spawn(async move {
                let id = call.id;
                let place = async |long: Option<Arc<Semaphore>>| match long {
                    Some(long) => Some(long.acquire_owned().await.expect("the semaphore is never closed")),
                    None => None,
                };
                let before = if polls { None } else { place(long.clone()).await };
                // A panic is a bug of ours: whoever asked is told so, instead of waiting for an answer for ever.
                let answered = AssertUnwindSafe(service.answer_in(&room, &origin, caller, call)).catch_unwind().await;
                drop(room);
                let result = answered.unwrap_or_else(|_| {
                    tracing::error!("a request panicked");
                    Err(ErrorBody::new(ErrorCode::Internal, "the request failed here; the daemon's log says how"))
                });
                let place = if polls { place(long).await } else { before };
                let _gone = answers.send((ApiAnswer { id, result }, place)).await;
            });
        }
        // The client has said all it had to say; what it asked is still answered.
        drop(answers);
        while tasks.join_next().await.is_some() {}
        Ok(())
    };
    let writing = async move {
        while let Some((answer, place)) = ready.recv().await {
            feed(&mut writer, answer)?;
            let mut places = vec![place];
            // Whatever is ready leaves in one write.
            while writer.queued() < 64 * 1024
                && let Ok((answer, place)) = ready.try_recv()
            {
                feed(&mut writer, answer)?;
                places.push(place);
            }
            writer.flush().await?;
            drop(places);
        }
        Ok(())
    };
    tokio::try_join!(reading, writing).map(|_| ())
}

/// Whether the answer grows with the cluster.
fn may_be_long(request: &Request) -> bool {
    matches!(
        request,
        Request::NodeList { .. }
            | Request::Portion { .. }
            | Request::TokenList
            | Request::CertList
            | Request::UserList
            | Request::BlocklistList { .. }
            | Request::RaftStatus { .. }
            | Request::Status { .. }
            | Request::Actors { .. }
            | Request::Events { .. }
            | Request::Lease(LeaseRequest::List { .. } | LeaseRequest::Guards | LeaseRequest::Renew { .. })
            | Request::Reconciler(
                ReconcilerRequest::List
                    | ReconcilerRequest::Plan { .. }
                    | ReconcilerRequest::MemberList { .. }
                    | ReconcilerRequest::ObjectList { .. }
                    | ReconcilerRequest::View { .. }
            )
            | Request::Kube(_)
    )
}

/// An answer over the frame limit becomes an error of its own: the caller is told, the connection lives.
fn feed<W: tokio::io::AsyncWrite + Unpin>(
    writer: &mut muster_gateway::FramedWriter<W>,
    answer: ApiAnswer,
) -> Result<(), FrameError> {
    let id = answer.id;
    writer.feed(&answer).or_else(|_| {
        let error =
            ErrorBody::new(ErrorCode::TooLarge, "the answer is larger than one frame (1 MiB); ask for it in portions");
        writer.feed(&ApiAnswer { id, result: Err(error) })
    })
}
