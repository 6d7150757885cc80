//! From a worker to some manager, over `muster-api/1`, as this node. One connection, kept while it works.

use std::sync::Arc;
use std::time::Duration;

use muster_gateway::{DialError, Dialer, Framed};
use muster_messages::protocol::Service as Port;
use muster_messages::wire::{ApiAnswer, ApiCall};
use muster_messages::{ErrorBody, ErrorCode};
use tokio::sync::Mutex;

use crate::service::{Asked, refusal_error};

type Stream = Framed<muster_gateway::BoxStream>;

/// Passes requests on, one at a time: a worker's socket is for a person or a few programs.
#[derive(Clone)]
pub(crate) struct Relay {
    dialer: Dialer,
    open: Arc<Mutex<Option<Stream>>>,
}

impl Relay {
    pub(crate) fn new(dialer: Dialer) -> Self {
        Self { dialer, open: Arc::new(Mutex::new(None)) }
    }

    pub(crate) async fn to_some_manager(&self, asked: &Asked, managers: &[String]) -> Result<String, ErrorBody> {
        let attempt = async {
            let mut open = self.open.lock().await;
            let mut last =
                ErrorBody::new(ErrorCode::Unreachable, "this node knows no manager yet; is it still joining?");
            loop {
                // A connection that was idle may be gone without our knowing: then a second one is tried.
                if let Some(stream) = open.as_mut() {
                    match exchange(stream, asked).await {
                        Ok(answer) => return answer,
                        Err(_broken) => *open = None,
                    }
                }
                for addr in managers {
                    match self.dialer.dial(addr, Port::Api, None).await {
                        Ok(dialed) => {
                            *open = Some(dialed.stream);
                            break;
                        }
                        Err(error) => last = dial_error(&error),
                    }
                }
                if open.is_none() {
                    return Err(last);
                }
            }
        };
        match tokio::time::timeout(asked.left(), attempt).await {
            Ok(result) => result,
            Err(_) => Err(ErrorBody::new(ErrorCode::TimedOut, "no manager answered in time")),
        }
    }
}

async fn exchange(stream: &mut Stream, asked: &Asked) -> Result<Result<String, ErrorBody>, muster_gateway::FrameError> {
    let call =
        ApiCall { id: 1, request_id: asked.request_id, timeout_ms: asked.left_ms(), request: asked.request.clone() };
    stream.send(&call).await?;
    match stream.recv::<ApiAnswer>().await? {
        Some(answer) => Ok(answer.result),
        None => Err(muster_gateway::FrameError::Cut),
    }
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
