//! `muster-api/1` and the admin socket: framed calls, many in flight on one connection, answers in any order.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use muster_gateway::{FrameError, Framed};
use muster_messages::wire::{ApiAnswer, ApiCall};
use muster_messages::{ErrorBody, ErrorCode, Principal};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::service::Service;

/// Who speaks on a connection. A certificate speaks for one principal; an admin socket for what its node is right now.
pub type Caller = Arc<dyn Fn() -> Principal + Send + Sync>;

/// Serves one connection until it ends. Dropping the future drops what is in flight.
pub async fn serve_native<S>(service: Service, caller: Caller, stream: Framed<S>) -> Result<(), FrameError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let in_flight = service.ports.limits.in_flight;
    let (mut reader, mut writer) = stream.split();
    let (answers, mut ready) = mpsc::channel::<ApiAnswer>(in_flight);
    let mut tasks = JoinSet::new();
    let reading = async move {
        while let Some(call) = reader.recv::<ApiCall>().await? {
            while tasks.len() >= in_flight {
                let _ended = tasks.join_next().await;
            }
            while tasks.try_join_next().is_some() {}
            let (service, caller, answers) = (service.clone(), caller(), answers.clone());
            tasks.spawn(async move {
                let id = call.id;
                // A panic is a bug of ours: whoever asked is told so, instead of waiting for an answer for ever.
                let answered = AssertUnwindSafe(service.answer(caller, call)).catch_unwind().await;
                let result = answered.unwrap_or_else(|_| {
                    tracing::error!("a request panicked");
                    Err(ErrorBody::new(ErrorCode::Internal, "the request failed here; the daemon's log says how"))
                });
                let _gone = answers.send(ApiAnswer { id, result }).await;
            });
        }
        // The client has said all it had to say; what it asked is still answered.
        drop(answers);
        while tasks.join_next().await.is_some() {}
        Ok(())
    };
    let writing = async move {
        while let Some(answer) = ready.recv().await {
            feed(&mut writer, answer)?;
            // Whatever is ready leaves in one write.
            while writer.queued() < 64 * 1024
                && let Ok(answer) = ready.try_recv()
            {
                feed(&mut writer, answer)?;
            }
            writer.flush().await?;
        }
        Ok(())
    };
    tokio::try_join!(reading, writing).map(|_| ())
}

/// An answer over the frame limit becomes an error of its own: the caller is told, the connection lives.
fn feed<W: tokio::io::AsyncWrite + Unpin>(
    writer: &mut muster_gateway::FramedWriter<W>,
    answer: ApiAnswer,
) -> Result<(), FrameError> {
    let id = answer.id;
    writer.feed(&answer).or_else(|_| {
        let error = ErrorBody::new(ErrorCode::TooLarge, "the answer is larger than one frame (1 MiB); ask for less");
        writer.feed(&ApiAnswer { id, result: Err(error) })
    })
}
