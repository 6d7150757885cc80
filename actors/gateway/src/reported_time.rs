//! The time of a machine that is not trusted yet: only for people to compare.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::dialer::{DialTimeouts, Dialer};

/// For the request and its answer.
const REPORTED_TIME_TIMEOUT: Duration = Duration::from_secs(3);
/// Bytes read of an answer: its header is far smaller.
const MAX_ANSWER_BYTES: u64 = 4096;
/// An HTTP date has 29 characters.
const MAX_DATE_CHARS: usize = 40;

const REQUEST: &[u8] = b"GET /livez HTTP/1.1\r\nHost: muster\r\nConnection: close\r\n\r\n";

impl Dialer {
    /// The date in an answer of a server at `addr`, verbatim; its certificate is not verified.
    pub async fn reported_time(addr: &str, timeouts: DialTimeouts) -> Option<String> {
        let mut stream = Self::dial_anyone(addr, timeouts).await.ok()?;
        let answer = async {
            stream.write_all(REQUEST).await.ok()?;
            let mut answer = Vec::new();
            // An abrupt close after the answer is accepted.
            let _abrupt = stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer).await;
            date_in(&answer)
        };
        timeout(REPORTED_TIME_TIMEOUT, answer).await.ok().flatten()
    }
}

/// The sender is not trusted: only what looks like a date is passed on.
fn date_in(answer: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(answer);
    let header = text.split("\r\n\r\n").next()?;
    let named = |line: &str| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("date").then(|| value.trim().to_owned())
    };
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, ' ' | ',' | ':' | '+' | '-');
    header.lines().find_map(named).filter(|date| date.len() <= MAX_DATE_CHARS && date.chars().all(fits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_date_header_is_read() {
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        let answer = format!("HTTP/1.1 401 Unauthorized\r\nContent-Length: 1\r\nDATE:  {date}\r\n\r\nDate: x");
        assert_eq!(date_in(answer.as_bytes()).as_deref(), Some(date));
        for wrong in ["HTTP/1.1 200 OK\r\n\r\ndate: x", "date: \u{1b}[31mred", "", &format!("date: {}", "1".repeat(99))]
        {
            assert_eq!(date_in(wrong.as_bytes()), None, "{wrong:?}");
        }
    }
}
