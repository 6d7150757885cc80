//! A worker's part: it hands requests to a manager, as they are, and its answers back, streams included.
//!
//! The worker speaks with its own certificate and passes a bearer token on, which the manager judges. It vouches for
//! nobody: who comes with a certificate of their own is sent to a manager.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Request, header, request};
use axum::response::Response;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use muster_messages::protocol::Service as Port;
use muster_messages::{ErrorBody, ErrorCode};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use crate::relay::dial_error;
use crate::service::Service;

/// Until a manager has answered with a head, at most. It may wait for a quorum; a frozen one must not use up the client's
/// time.
pub(super) const HEAD_DEADLINE: Duration = Duration::from_secs(10);
/// Managers tried for one request.
const MOST_TRIED: usize = 5;
/// Requests on their way at once, watches included: half of the connections that a manager grants one node, so that
/// whoever fills them does not keep this node's own agent out.
pub(crate) const ON_THEIR_WAY: usize = 256;

/// What travels on, beside method, path and body.
const PASSED_ON: [header::HeaderName; 4] =
    [header::AUTHORIZATION, header::ACCEPT, header::CONTENT_TYPE, header::USER_AGENT];

/// A place among the requests on their way, until the answer's end.
pub(super) fn place(service: &Service) -> Result<OwnedSemaphorePermit, ErrorBody> {
    Arc::clone(&service.passing).try_acquire_owned().map_err(|_| {
        let text = "too many requests are on their way through this node; retry, or ask a manager";
        ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(Duration::from_secs(1))
    })
}

/// Passes a request on to one of these managers. A request is sent once: what a manager may have done is not tried again
/// with another; only managers that cannot be reached are passed over. What has no answer by `deadline` gets ours.
pub(super) async fn pass_on(
    service: &Service,
    place: OwnedSemaphorePermit,
    managers: &[String],
    head: &request::Parts,
    body: Bytes,
    deadline: Instant,
) -> Result<Response, ErrorBody> {
    let mut last = ErrorBody::new(ErrorCode::Unreachable, "this node knows no manager yet; is it still joining?");
    for addr in managers.iter().take(MOST_TRIED) {
        let dialed = match timeout_at(deadline, service.ports.dialer.dial(addr, Port::Http, None)).await {
            Ok(Ok(dialed)) => dialed,
            Ok(Err(error)) => {
                last = dial_error(&error);
                continue;
            }
            Err(_) => break,
        };
        let ended = |why: String| {
            let text = format!("{addr} ended the connection: {why}; look before you retry");
            ErrorBody::new(ErrorCode::UnknownOutcome, text).retry_after(Duration::from_secs(1))
        };
        let io = TokioIo::new(dialed.stream.into_inner());
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(io).await.map_err(|e| ended(e.to_string()))?;
        // Ends with the answer's body: who drops that, drops the sender's other half.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a relayed request's connection ended");
            }
        });
        let request = onward(addr, head, body).map_err(|e| ErrorBody::invalid(e.to_string()))?;
        let answer = timeout_at(deadline, sender.send_request(request)).await;
        let answer = answer.map_err(|_| ended("it did not answer in time".to_owned()))?;
        let (mut head, body) = answer.map_err(|e| ended(e.to_string()))?.into_parts();
        // Ours says how the body travels on this connection.
        for framing in [header::TRANSFER_ENCODING, header::CONNECTION, header::CONTENT_LENGTH] {
            head.headers.remove(framing);
        }
        let body = body.map_frame(move |frame| {
            let _until_it_ends = &place;
            frame
        });
        return Ok(Response::from_parts(head, Body::new(body)));
    }
    Err(last)
}

fn onward(addr: &str, head: &request::Parts, body: Bytes) -> Result<Request<Full<Bytes>>, axum::http::Error> {
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    let mut request = Request::builder().method(head.method.clone()).uri(target).header(header::HOST, addr);
    for name in PASSED_ON {
        if let Some(value) = head.headers.get(&name) {
            request = request.header(name, value.clone());
        }
    }
    request.body(Full::new(body))
}
