//! The time for the head of an HTTP/1.1 request, from its first byte, or from the first one after the answer before it; and for the
//! first byte of a connection, for which hyper has no limit.
//!
//! Why not hyper's: its time for a head begins when the last answer ends, and so includes the time in which a client has nothing to
//! ask. A client that asks as often as that time lasts sends each request on a connection that is being closed, and must not
//! repeat a write that it gets no answer to.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// A client that takes longer to send a head is disconnected.
const HEAD_DEADLINE: Duration = Duration::from_secs(10);
/// What an HTTP/2 connection begins with. Its heads are frames, which need no limit: they cost their stream.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What is known of the requests of one connection. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Heads(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The first bytes of the connection, up to the length of the preface.
    first: Vec<u8>,
    /// Requests whose heads have arrived and that have no answer yet. What arrives meanwhile is their bodies.
    unanswered: usize,
    /// When the first byte of an incomplete head arrived.
    began: Option<Instant>,
}

impl Heads {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A head is complete; the value is dropped when its answer begins.
    pub fn complete(&self) -> Unanswered {
        let mut state = self.lock();
        (state.began, state.unanswered) = (None, state.unanswered + 1);
        Unanswered(self.clone())
    }

    fn arrived(&self, bytes: &[u8]) {
        let mut state = self.lock();
        let missing = PREFACE.len() - state.first.len();
        state.first.extend(bytes.iter().take(missing));
        if state.unanswered == 0 && state.began.is_none() {
            state.began = Some(Instant::now());
        }
    }

    /// When the head that is arriving must be complete, or the first byte be there.
    fn deadline(&self, opened: Instant) -> Option<Instant> {
        let state = self.lock();
        if state.first.is_empty() {
            return Some(opened + super::IDLE_DEADLINE);
        }
        state.began.filter(|_| state.first != PREFACE).map(|began| began + HEAD_DEADLINE)
    }
}

/// A request without an answer.
pub(super) struct Unanswered(Heads);

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.0.lock().unanswered -= 1;
    }
}

/// The read half of a connection, which fails when a head takes too long.
pub(super) struct Limited<S> {
    stream: S,
    heads: Heads,
    opened: Instant,
    timer: Pin<Box<Sleep>>,
}

impl<S> Limited<S> {
    pub fn new(stream: S, heads: Heads) -> Self {
        let opened = Instant::now();
        Self { stream, heads, opened, timer: Box::pin(sleep_until(opened)) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Limited<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, buf) {
            if let Some(bytes) = buf.filled().get(before..).filter(|bytes| !bytes.is_empty()) {
                self.heads.arrived(bytes);
            }
            return Poll::Ready(read);
        }
        while let Some(deadline) = self.heads.deadline(self.opened) {
            if deadline <= Instant::now() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            self.timer.as_mut().reset(deadline);
            ready!(self.timer.as_mut().poll(cx));
        }
        Poll::Pending
    }
}
