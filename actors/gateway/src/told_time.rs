//! What the clock of a machine says that cannot be trusted yet: for people to compare, and for nothing else.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::dialer::{DialTimeouts, Dialer};

/// For the question and its answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// So much of an answer is read: its header is far smaller.
const HEADER: u64 = 4096;
/// The date of HTTP has 29 characters.
const LONGEST: usize = 40;

const QUESTION: &[u8] = b"GET /livez HTTP/1.1\r\nHost: muster\r\nConnection: close\r\n\r\n";

impl Dialer {
    /// The date that a server at `addr` puts into its answers, as it wrote it; its certificate is not verified.
    pub async fn told_time(addr: &str, timeouts: DialTimeouts) -> Option<String> {
        let mut stream = Self::dial_anyone(addr, timeouts).await.ok()?;
        let answer = async {
            stream.write_all(QUESTION).await.ok()?;
            let mut answer = Vec::new();
            // A server that closes without a farewell has answered all the same.
            let _abrupt = stream.take(HEADER).read_to_end(&mut answer).await;
            date_in(&answer)
        };
        timeout(PATIENCE, answer).await.ok().flatten()
    }
}

/// Whoever wrote this may be anybody: only what looks like a date is passed on.
fn date_in(answer: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(answer);
    let header = text.split("\r\n\r\n").next()?;
    let named = |line: &str| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("date").then(|| value.trim().to_owned())
    };
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, ' ' | ',' | ':' | '+' | '-');
    header.lines().find_map(named).filter(|date| date.len() <= LONGEST && date.chars().all(fits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_read_from_a_header_and_nothing_else_is() {
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        let answer = format!("HTTP/1.1 401 Unauthorized\r\nContent-Length: 1\r\nDATE:  {date}\r\n\r\nDate: x");
        assert_eq!(date_in(answer.as_bytes()).as_deref(), Some(date));
        for wrong in ["HTTP/1.1 200 OK\r\n\r\ndate: x", "date: \u{1b}[31mred", "", &format!("date: {}", "1".repeat(99))]
        {
            assert_eq!(date_in(wrong.as_bytes()), None, "{wrong:?}");
        }
    }
}
