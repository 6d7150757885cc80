//! Requests over HTTP/1.1, pipelined.

use std::ops::Range;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::time::timeout;

use super::{ANSWER_TIMEOUT, Answers, Say};

/// Requests per write.
const REQUESTS_PER_WRITE: usize = 64;

/// Method, path and body.
pub(super) fn question(say: Say, number: usize) -> (&'static str, &'static str, String) {
    match say {
        Say::Reads => ("GET", "/v1/nodes/n1?fresh=true", String::new()),
        Say::Polls => ("GET", "/v1/events?since=9000000000&watch=1", String::new()),
        Say::Writes => ("PATCH", "/v1/nodes/n1", format!(r#"{{"add":{{"rush":"{number}"}}}}"#)),
    }
}

fn written(say: Say, number: usize) -> String {
    let (method, path, body) = question(say, number);
    let length = body.len();
    format!("{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// Sends all of these on one connection, and reads every answer.
pub async fn ask<S>(stream: S, say: Say, numbers: Range<usize>) -> Answers
where
    S: AsyncRead + AsyncWrite + Send + Unpin,
{
    let (reader, mut writer) = tokio::io::split(stream);
    let (mut reader, wanted) = (BufReader::with_capacity(16 * 1024, reader), numbers.len());
    let writing = async {
        let all: Vec<usize> = numbers.collect();
        for some in all.chunks(REQUESTS_PER_WRITE) {
            let text: String = some.iter().map(|number| written(say, *number)).collect();
            if writer.write_all(text.as_bytes()).await.is_err() || writer.flush().await.is_err() {
                return; // the reader notices as well
            }
        }
    };
    let reading = async {
        let mut answers = Answers::default();
        while answers.answered() < wanted {
            let Ok(Some((status, later))) = timeout(ANSWER_TIMEOUT, answer(&mut reader)).await else { break };
            answers.of_status(status, later);
        }
        answers.none = wanted - answers.answered();
        answers
    };
    tokio::pin!(reading);
    tokio::select! {
        answers = &mut reading => answers,
        () = writing => reading.await,
    }
}

/// The next answer's status, and whether it has a retry time.
async fn answer<R: AsyncRead + Unpin>(reader: &mut BufReader<R>) -> Option<(u16, bool)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(reader.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?.to_ascii_lowercase();
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let mut body = vec![0; field("content-length")?.parse().ok()?];
    reader.read_exact(&mut body).await.ok()?;
    let status = head.split_whitespace().nth(1)?.parse().ok()?;
    Some((status, field("retry-after").is_some()))
}
