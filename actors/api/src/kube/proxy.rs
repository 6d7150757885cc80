//! A worker's part: forwards requests unchanged to a manager, and the answers back, streams included.
//!
//! The worker uses its own certificate and forwards a bearer token, which the manager judges. It vouches for no other
//! caller: clients with a certificate of their own are sent to a manager.

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

/// The deadline for a manager's response head. It may wait for a quorum; a frozen manager must not use up the client's
/// time.
pub(super) const HEAD_DEADLINE: Duration = Duration::from_secs(10);
/// Managers tried for one request.
const MAX_MANAGERS_TRIED: usize = 5;
/// Requests in flight, watches included: half of the connections that a manager grants one node, so that clients who
/// fill them do not lock out this node's own agent.
pub(crate) const MAX_FORWARDED_REQUESTS: usize = 256;

/// Headers forwarded besides method, path and body.
const FORWARDED_HEADERS: [header::HeaderName; 4] =
    [header::AUTHORIZATION, header::ACCEPT, header::CONTENT_TYPE, header::USER_AGENT];

/// A permit for a request in flight, held until the answer ends.
pub(super) fn permit(service: &Service) -> Result<OwnedSemaphorePermit, ErrorBody> {
    Arc::clone(&service.forwarding).try_acquire_owned().map_err(|_| {
        let text = "this node is forwarding too many requests; retry, or ask a manager";
        ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(Duration::from_secs(1))
    })
}

/// Forwards a request to one of these managers. A request is sent once: what one manager may have carried out is not
/// repeated with another; only unreachable managers are skipped. Without an answer by `deadline`, this node answers
/// itself.
pub(super) async fn forward(
    service: &Service,
    permit: OwnedSemaphorePermit,
    managers: &[String],
    head: &request::Parts,
    body: Bytes,
    deadline: Instant,
) -> Result<Response, ErrorBody> {
    let mut last = ErrorBody::new(ErrorCode::Unreachable, "this node knows no manager yet; is it still joining?");
    for addr in managers.iter().take(MAX_MANAGERS_TRIED) {
        let dialed = match timeout_at(deadline, service.ports.dialer.dial(addr, Port::Http, None)).await {
            Ok(Ok(dialed)) => dialed,
            Ok(Err(error)) => {
                last = dial_error(&error);
                continue;
            }
            Err(_) => break,
        };
        let ended = |why: String| {
            ErrorBody::unknown_outcome(format!("{addr} ended the connection: {why}"))
                .retry_after(Duration::from_secs(1))
        };
        let io = TokioIo::new(dialed.stream.into_inner());
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(io).await.map_err(|e| ended(e.to_string()))?;
        // Ends with the answer's body: dropping that drops the sender's other end.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a relayed request's connection ended");
            }
        });
        let request = forwarded_request(addr, head, body).map_err(|e| ErrorBody::invalid(e.to_string()))?;
        let answer = timeout_at(deadline, sender.send_request(request)).await;
        let answer = answer.map_err(|_| ended("it did not answer in time".to_owned()))?;
        let (mut head, body) = answer.map_err(|e| ended(e.to_string()))?.into_parts();
        // This connection has its own framing of the body.
        for framing in [header::TRANSFER_ENCODING, header::CONNECTION, header::CONTENT_LENGTH] {
            head.headers.remove(framing);
        }
        let body = body.map_frame(move |frame| {
            let _until_it_ends = &permit;
            frame
        });
        return Ok(Response::from_parts(head, Body::new(body)));
    }
    Err(last)
}

fn forwarded_request(
    addr: &str,
    head: &request::Parts,
    body: Bytes,
) -> Result<Request<Full<Bytes>>, axum::http::Error> {
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    let mut request = Request::builder().method(head.method.clone()).uri(target).header(header::HOST, addr);
    for name in FORWARDED_HEADERS {
        if let Some(value) = head.headers.get(&name) {
            request = request.header(name, value.clone());
        }
    }
    request.body(Full::new(body))
}
