//! Questions over HTTP/2, as many at once as the other side takes.

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
use super::{Answers, PATIENCE, Say};

/// Questions of a connection that are asked or wait to be: more than any server takes at once.
const AHEAD: usize = 256;

/// Asks all of these on one connection, and reads every answer.
pub async fn ask<S>(stream: S, say: Say, numbers: Range<usize>) -> Answers
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut answers = Answers { none: numbers.len(), ..Answers::default() };
    let Ok((client, connection)) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await else { return answers };
    let connection = tokio::spawn(connection);
    let mut asked = stream::iter(numbers.map(|number| one(client.clone(), say, number))).buffer_unordered(AHEAD);
    while let Some(answer) = asked.next().await {
        if let Some((status, later)) = answer {
            answers.none -= 1;
            answers.of_status(status, later);
        }
    }
    connection.abort();
    answers
}

/// The status, and whether it says when to retry.
async fn one(mut client: SendRequest<Full<Bytes>>, say: Say, number: usize) -> Option<(u16, bool)> {
    let (method, path, body) = question(say, number);
    let request = hyper::Request::builder().method(method).uri(format!("https://x{path}"));
    let request = request.body(Full::new(Bytes::from(body))).expect("a method, a path and a body");
    let answer = async {
        let (head, body) = client.send_request(request).await.ok()?.into_parts();
        body.collect().await.ok()?;
        Some((head.status.as_u16(), head.headers.contains_key(RETRY_AFTER)))
    };
    timeout(PATIENCE, answer).await.ok()?
}
