//! A connection that is read slowly once its client retries at once although it was told to retry later. Its requests
//! are answered at once, so nothing is kept for it; its next requests wait in its own socket.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::native::REFUSAL_PAUSE;

/// When reading resumes. Clones share the pause of one connection.
#[derive(Clone, Default)]
pub(super) struct Pause(Arc<Mutex<Option<Instant>>>);

impl Pause {
    /// Adds the time for which a native connection is not read after each refusal.
    pub fn lengthen(&self) {
        let (mut until, now) = (self.0.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
        *until = Some(until.map_or(now, |until| until.max(now)) + REFUSAL_PAUSE);
    }
    /// `None`: the pause is over.
    fn until(&self) -> Option<Instant> {
        let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        until.filter(|until| *until > Instant::now())
    }
}

/// The read half of a stream, which is not read during its pauses.
pub(super) struct Paced<S> {
    stream: S,
    pause: Pause,
    timer: Pin<Box<Sleep>>,
}

impl<S> Paced<S> {
    pub fn new(stream: S, pause: Pause) -> Self {
        Self { stream, pause, timer: Box::pin(sleep_until(Instant::now())) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while let Some(until) = self.pause.until() {
            self.timer.as_mut().reset(until);
            ready!(self.timer.as_mut().poll(cx));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}
