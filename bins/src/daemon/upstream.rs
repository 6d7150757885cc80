//! The command that asks an authority above the cluster: the request on its standard input, the answer on its standard output.
//!
//! Invariants  UP-4  at most one runs in this process, and it and everything that it started ends within [`TIMEOUT`], also when this
//!                   process is killed or stops leading.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::pin::Pin;

use muster_elector::{BootTime, Hold, Timekeeper};
use muster_pki::MAX_ANSWER;
use muster_root_rotation::Upstream;
use muster_root_rotation::core::UpstreamEnd;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Duration;

use crate::guard::{Ended, Exit, Guarded, Launch, Reading, Streams, run_within};

/// How long it may run: one request to a service, with its retries.
const TIMEOUT: Duration = Duration::from_secs(30);
/// It is asked to end this long before it is killed.
const GRACE: Duration = Duration::from_secs(1);
/// The exit status with which it asks to wait: `EX_TEMPFAIL`.
const LATER: u8 = 75;
/// How much of the end of its errors is shown.
const MAX_SHOWN_BYTES: usize = 200;
/// UP-4. A leader that was replaced, or whose actor restarted, may still be ending one.
static ONE_AT_A_TIME: Semaphore = Semaphore::const_new(1);

/// The configured command.
pub(super) struct UpstreamCommand {
    pub argv: Vec<String>,
}

impl Upstream for UpstreamCommand {
    fn ask(&self, csr_pem: String) -> Pin<Box<dyn Future<Output = UpstreamEnd> + Send>> {
        let argv = self.argv.clone();
        let (mut tell, end) = oneshot::channel();
        // In its own task: the caller may stop waiting, but the process must be collected.
        tokio::spawn(async move {
            let Ok(_permit) = ONE_AT_A_TIME.acquire().await else { return };
            if !tell.is_closed() {
                let end = run(argv, &csr_pem, tell.closed()).await;
                let _unwanted = tell.send(end);
            }
        });
        Box::pin(async move { end.await.unwrap_or_else(|_| UpstreamEnd::Failed("this process is ending".to_owned())) })
    }
}

/// From its start until its last process has ended. `unwanted`: the caller stopped waiting.
async fn run(argv: Vec<String>, csr_pem: &str, unwanted: impl Future<Output = ()>) -> UpstreamEnd {
    let launch = Launch::new(argv.into_iter().map(OsString::from).collect(), Vec::new());
    let started = start(&launch, csr_pem);
    let (guarded, written, errors) = match started {
        Ok(started) => started,
        Err(error) => return UpstreamEnd::Failed(format!("it cannot be started: {error}")),
    };
    let (answer, errors) = (Reading::start(first_bytes(written)), Reading::start(last_bytes(errors)));
    let over_at = BootTime.now() + TIMEOUT;
    let ended = run_within(guarded, Hold { step_down_at: over_at - GRACE, over_at }, unwanted).await;
    let (answer, errors) = tokio::join!(answer.end(), errors.end());
    judged(ended, answer.unwrap_or_default(), &errors.unwrap_or_default())
}

fn judged(ended: Ended, answer: Vec<u8>, errors: &[u8]) -> UpstreamEnd {
    let shown = errors.get(errors.len().saturating_sub(MAX_SHOWN_BYTES)..).unwrap_or(errors);
    let shown = String::from_utf8_lossy(shown).trim().to_owned();
    let with_errors = |what: String| if shown.is_empty() { what } else { format!("{what}: {shown}") };
    match ended.exit {
        _ if ended.lapsed => UpstreamEnd::Failed(with_errors(format!("no answer within {} s", TIMEOUT.as_secs()))),
        // It may have been ended by that: its output is closed.
        _ if answer.len() > MAX_ANSWER => UpstreamEnd::Failed(format!("it wrote more than {MAX_ANSWER} bytes")),
        Some(Exit::Code(0)) => match String::from_utf8(answer) {
            Ok(answer) => UpstreamEnd::Answered(answer),
            Err(_) => UpstreamEnd::Failed("its answer is not text".to_owned()),
        },
        Some(Exit::Code(LATER)) => UpstreamEnd::Later(with_errors(format!("status {LATER}"))),
        Some(Exit::Code(code)) => UpstreamEnd::Failed(with_errors(format!("status {code}"))),
        Some(Exit::Signal(number)) => UpstreamEnd::Failed(with_errors(format!("ended by signal {number}"))),
        None => UpstreamEnd::Failed(with_errors("its end was not reported".to_owned())),
    }
}

fn start(launch: &Launch, csr_pem: &str) -> io::Result<(Guarded, pipe::Receiver, pipe::Receiver)> {
    let (input, mut request) = io::pipe()?;
    let (output, written) = io::pipe()?;
    let (errors, reported) = io::pipe()?;
    // Less than an empty pipe holds: it never blocks.
    request.write_all(csr_pem.as_bytes())?;
    drop(request);
    let streams =
        Streams { input: OwnedFd::from(input), output: OwnedFd::from(written), errors: OwnedFd::from(reported) };
    let guarded = Guarded::start_with_keeper(launch, streams)?;
    let receiver = |pipe: io::PipeReader| pipe::Receiver::from_owned_fd(OwnedFd::from(pipe));
    Ok((guarded, receiver(output)?, receiver(errors)?))
}

/// A byte more than an answer may have, at most. A command that writes more finds its output closed.
async fn first_bytes(written: pipe::Receiver) -> Vec<u8> {
    let mut kept = Vec::new();
    let limit = u64::try_from(MAX_ANSWER).unwrap_or(u64::MAX).saturating_add(1);
    let _broken = written.take(limit).read_to_end(&mut kept).await;
    kept
}

async fn last_bytes(mut written: pipe::Receiver) -> Vec<u8> {
    let (mut kept, mut chunk) = (Vec::new(), vec![0; 4 * 1024]);
    while let Ok(read @ 1..) = written.read(&mut chunk).await {
        kept.extend_from_slice(chunk.get(..read).unwrap_or_default());
        kept.drain(..kept.len().saturating_sub(MAX_SHOWN_BYTES));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_success_is_an_answer() {
        let end = |exit, lapsed, answer: &[u8]| judged(Ended { exit, lapsed }, answer.to_vec(), b"try later\n");
        let code = |code| Some(Exit::Code(code));
        assert_eq!(end(code(0), false, b"PEM"), UpstreamEnd::Answered("PEM".to_owned()));
        assert_eq!(end(code(75), false, b"PEM"), UpstreamEnd::Later("status 75: try later".to_owned()));
        for (ended, lapsed, answer, text) in [
            (code(1), false, &b"PEM"[..], "status 1: try later"),
            (Some(Exit::Signal(9)), false, b"PEM", "ended by signal 9: try later"),
            (Some(Exit::Signal(9)), true, b"PEM", "no answer within 30 s: try later"),
            (code(0), true, b"PEM", "no answer within 30 s: try later"),
            (None, false, b"PEM", "its end was not reported: try later"),
            (code(0), false, &[0xff; 9], "its answer is not text"),
            (code(0), false, &[b'x'; MAX_ANSWER + 1], "it wrote more than 16384 bytes"),
            (Some(Exit::Signal(13)), false, &[b'x'; MAX_ANSWER + 1], "it wrote more than 16384 bytes"),
        ] {
            assert_eq!(end(ended, lapsed, answer), UpstreamEnd::Failed(text.to_owned()));
        }
    }
}
