//! Requests over HTTP/2, as many in flight as the other side allows.

use std::ops::Range;

use futures_util::stream::{self, StreamExt};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::header::RETRY_AFTER;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::http::question;
use super::{ANSWER_TIMEOUT, Answers, Say};

/// Requests of a connection in flight or queued: more than any server accepts at once.
const MAX_QUEUED_REQUESTS: usize = 256;

/// Sends all of these on one connection, and reads every answer.
pub async fn ask<S>(stream: S, say: Say, numbers: Range<usize>) -> Answers
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut answers = Answers { none: numbers.len(), ..Answers::default() };
    let Ok((client, connection)) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await else { return answers };
    let connection = tokio::spawn(connection);
    let mut asked =
        stream::iter(numbers.map(|number| one(client.clone(), say, number))).buffer_unordered(MAX_QUEUED_REQUESTS);
    while let Some(answer) = asked.next().await {
        if let Some((status, later)) = answer {
            answers.none -= 1;
            answers.of_status(status, later);
        }
    }
    connection.abort();
    answers
}

/// The status, and whether it has a retry time.
async fn one(mut client: SendRequest<Full<Bytes>>, say: Say, number: usize) -> Option<(u16, bool)> {
    let (method, path, body) = question(say, number);
    let request = hyper::Request::builder().method(method).uri(format!("https://x{path}"));
    let request = request.body(Full::new(Bytes::from(body))).expect("a method, a path and a body");
    let answer = async {
        let (head, body) = client.send_request(request).await.ok()?.into_parts();
        body.collect().await.ok()?;
        Some((head.status.as_u16(), head.headers.contains_key(RETRY_AFTER)))
    };
    timeout(ANSWER_TIMEOUT, answer).await.ok()?
}
