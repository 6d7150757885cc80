//! One native connection: calls and answers in the gateway's frames, matched by id.

use std::path::Path;
use std::time::Duration;

use muster_gateway::{BoxStream, Framed};
use muster_messages::wire::{ApiAnswer, ApiCall, Request};
use muster_messages::{ErrorBody, RequestId, millis};
use muster_pki::private::is_trusted;
use tokio::net::UnixStream;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The server answered with an error.
    #[error("{0}")]
    Refused(ErrorBody),
    /// The outcome of the call is unknown.
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// No answer came in time. The outcome is unknown.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
}

/// How much longer the client waits than the server, to receive the server's own `timed_out`, which has a better reason.
const ANSWER_GRACE: Duration = Duration::from_secs(2);

/// A connection with one call in flight. Several calls in flight need several connections.
pub struct Connection {
    frames: Framed<BoxStream>,
    next_id: u64,
}

impl Connection {
    /// Over frames that carry only calls and answers from now on.
    pub fn over(frames: Framed<BoxStream>) -> Self {
        Self { frames, next_id: 1 }
    }

    /// Connects to an admin socket.
    pub async fn to_socket(path: &Path) -> std::io::Result<Self> {
        let stream = UnixStream::connect(path).await?;
        Ok(Self::over(Framed::new(Box::pin(stream))))
    }

    /// Connects to an admin socket that was discovered, not named by the user: only to a process of the caller or of root.
    pub async fn to_discovered_socket(path: &Path) -> std::io::Result<Self> {
        let stream = UnixStream::connect(path).await?;
        let server = stream.peer_cred()?.uid();
        if !is_trusted(server) {
            let why = format!("{} is served by user {server}", path.display());
            return Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, why));
        }
        Ok(Self::over(Framed::new(Box::pin(stream))))
    }

    /// Sends a call and waits for the answer, a JSON text.
    pub async fn call(
        &mut self,
        request: Request,
        request_id: RequestId,
        timeout: Duration,
    ) -> Result<String, CallError> {
        let id = self.next_id;
        self.next_id += 1;
        let call = ApiCall { id, request_id, timeout_ms: millis(timeout), request };
        let exchange = async {
            self.frames.send(&call).await.map_err(lost)?;
            self.answer_to(id).await
        };
        match tokio::time::timeout(timeout.saturating_add(ANSWER_GRACE), exchange).await {
            Ok(result) => result,
            Err(_) => Err(CallError::TimedOut(timeout)),
        }
    }

    /// Reads until the answer to `id`; skips answers to calls that timed out.
    async fn answer_to(&mut self, id: u64) -> Result<String, CallError> {
        loop {
            let answer: Option<ApiAnswer> = self.frames.recv().await.map_err(lost)?;
            match answer {
                None => return Err(CallError::Lost("closed by the daemon".to_owned())),
                Some(answer) if answer.id == id => return answer.result.map_err(CallError::Refused),
                Some(_) => {}
            }
        }
    }
}

fn lost(error: muster_gateway::FrameError) -> CallError {
    let cause = std::error::Error::source(&error).map(|source| format!(": {source}"));
    CallError::Lost(format!("{error}{}", cause.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_messages::ErrorCode;

    fn over(stream: tokio::io::DuplexStream) -> Connection {
        Connection::over(Framed::new(Box::pin(stream)))
    }

    /// A server that answers each call with `respond`.
    fn served(respond: impl Fn(ApiCall) -> Vec<ApiAnswer> + Send + 'static) -> Connection {
        let (ours, theirs) = tokio::io::duplex(4096);
        tokio::spawn(async move {
            let mut frames = Framed::new(theirs);
            while let Ok(Some(call)) = frames.recv().await {
                for answer in respond(call) {
                    frames.send(&answer).await.unwrap();
                }
            }
        });
        over(ours)
    }

    #[tokio::test]
    async fn answers_are_matched_by_id() {
        let mut connection = served(|call| {
            let stray = ApiAnswer { id: call.id + 100, result: Ok("stray".into()) };
            vec![stray, ApiAnswer { id: call.id, result: Ok(format!("{:?}", call.request)) }]
        });
        for _ in 0..2 {
            let answer = connection.call(Request::CaShow, RequestId(1), Duration::from_secs(5)).await;
            assert_eq!(answer.unwrap(), "CaShow");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn timeouts_and_refusals_are_distinguished() {
        let mut silent = served(|_| Vec::new());
        let answer = silent.call(Request::CaShow, RequestId(1), Duration::from_secs(1)).await;
        assert!(matches!(answer, Err(CallError::TimedOut(_))));
        let mut refusing = served(|call| vec![ApiAnswer { id: call.id, result: Err(ErrorBody::forbidden("no")) }]);
        let answer = refusing.call(Request::CaShow, RequestId(1), Duration::from_secs(1)).await;
        assert!(matches!(answer, Err(CallError::Refused(body)) if body.code == ErrorCode::Forbidden));
    }

    #[tokio::test]
    async fn native_wire_starts_with_a_zero_byte_unlike_http() {
        let (ours, mut theirs) = tokio::io::duplex(4096);
        let mut connection = over(ours);
        let call = connection.call(Request::CaShow, RequestId(1), Duration::from_secs(5));
        let first = async { tokio::io::AsyncReadExt::read_u8(&mut theirs).await };
        tokio::pin!(call);
        tokio::select! {
            byte = first => assert_eq!(byte.unwrap(), 0),
            _ = &mut call => panic!("an answer without a server"),
        }
    }
}
