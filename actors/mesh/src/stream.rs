//! The stream wrapper between an authenticated connection and the cluster library, which bounds nothing and times
//! nothing out by itself.
//!
//! Keeps  every inbound frame passes the [`Filter`] whole before a byte of it is handed on (MESH-1);
//!        a switch that is polled first ends both directions at once;
//!        silence longer than the idle limit ends the session, except while we ourselves do not read (the gate);
//!        a write that makes no progress for as long ends it too.
//! Why an idle limit: the library pings every 1 to 5 s and never looks for the answer. A paused process keeps its TCP
//! connection alive for ever.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use muster_gateway::BoxStream;
use muster_kernel::Clock;
use ractor_cluster::{BoxRead, BoxWrite, ClusterBidiStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, ReadHalf, WriteHalf};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::core::filter::{Admitted, Filter, Violation};
use crate::core::frames::{Deframer, Departures, HEADER};
use crate::session::{Ending, Session};

/// Silence of a peer that ends its session: more than two of its slowest pings (5 s), so that one may be late.
pub const IDLE: Duration = Duration::from_secs(13);
/// What is read at once.
const READ: usize = 16 * 1024;

/// A session's stream, ready for the cluster library.
pub struct Guarded {
    stream: BoxStream,
    session: Arc<Session>,
    filter: Filter,
    idle: Duration,
}

impl Guarded {
    /// Guards the stream of `session`.
    pub fn new(stream: BoxStream, session: Arc<Session>, idle: Duration) -> Self {
        let filter = Filter::new(session.side, session.node, session.peer_door, session.own_door, session.own_tag);
        Self { stream, session, filter, idle }
    }
    fn halves(self) -> (Reader, Writer) {
        let (read, write) = tokio::io::split(self.stream);
        let reader = Reader {
            inner: read,
            filter: self.filter,
            deframer: Deframer::default(),
            passing: Bytes::new(),
            ended: Box::pin(self.session.ended().clone().cancelled_owned()),
            idle: self.idle,
            timer: Box::pin(sleep_until(Instant::now() + self.idle)),
            buffer: vec![0; READ].into_boxed_slice(),
            session: Arc::clone(&self.session),
        };
        let writer = Writer {
            inner: write,
            departures: Departures::default(),
            ended: Box::pin(self.session.ended().clone().cancelled_owned()),
            limit: self.idle,
            stalled: None,
            session: self.session,
        };
        (reader, writer)
    }
}

impl ClusterBidiStream for Guarded {
    fn split(self: Box<Self>) -> (BoxRead, BoxWrite) {
        let (reader, writer) = self.halves();
        (Box::new(reader), Box::new(writer))
    }
    /// The session's number: how the session server finds the facts of the stream it was given.
    fn peer_label(&self) -> Option<String> {
        Some(self.session.number.to_string())
    }
}

struct Reader {
    inner: ReadHalf<BoxStream>,
    session: Arc<Session>,
    filter: Filter,
    deframer: Deframer,
    /// The rest of a frame that has been admitted.
    passing: Bytes,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
    idle: Duration,
    timer: Pin<Box<Sleep>>,
    buffer: Box<[u8]>,
}

impl Reader {
    /// The next admitted frame, if a whole one is here.
    fn admit_next(&mut self) -> Result<bool, Violation> {
        let frame = match self.deframer.next_frame() {
            Ok(Some(frame)) => frame,
            Ok(None) => return Ok(false),
            Err(_) => return Err(Violation::Oversized),
        };
        let calls = self.session.meter.calls_sent();
        let admitted = self.filter.admit(Clock.now(), calls, &frame[HEADER..])?;
        if let Admitted::Call(bytes) = admitted {
            self.session.meter.passed_on(bytes);
        }
        self.passing = frame;
        Ok(true)
    }
    fn rest(&mut self) {
        self.timer.as_mut().reset(Instant::now() + self.idle);
    }
}

impl AsyncRead for Reader {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if this.ended.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(())); // nothing filled: the end
            }
            if this.passing.has_remaining() {
                let take = this.passing.len().min(out.remaining());
                out.put_slice(&this.passing[..take]);
                this.passing.advance(take);
                if this.passing.is_empty() {
                    this.passing = Bytes::new();
                }
                return Poll::Ready(Ok(()));
            }
            if this.session.meter.is_gated(cx.waker()) {
                this.rest();
                return Poll::Pending;
            }
            match this.admit_next() {
                Ok(true) => continue,
                Ok(false) => {}
                Err(violation) => {
                    this.session.end(Ending::Violation(violation));
                    continue;
                }
            }
            let mut arrived = ReadBuf::new(&mut this.buffer);
            if Pin::new(&mut this.inner).poll_read(cx, &mut arrived)?.is_pending() {
                // The timer is armed after the gate opened: the time while we did not read is not the peer's silence.
                ready!(this.timer.as_mut().poll(cx));
                this.session.end(Ending::Idle);
                continue;
            }
            let arrived = arrived.filled();
            if arrived.is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.session.meter.count_read(arrived.len());
            this.deframer.push(arrived);
            this.rest();
        }
    }
}

struct Writer {
    inner: WriteHalf<BoxStream>,
    session: Arc<Session>,
    departures: Departures,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
    limit: Duration,
    /// Runs while a write makes no progress.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Writer {
    fn is_over(&mut self, cx: &mut Context<'_>) -> Option<io::Error> {
        let over = self.ended.as_mut().poll(cx).is_ready();
        over.then(|| io::Error::new(io::ErrorKind::BrokenPipe, "the session ended"))
    }
    /// A write is pending: how long may it be?
    fn stall(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let deadline = Instant::now() + self.limit;
        let timer = self.stalled.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        ready!(timer.as_mut().poll(cx));
        self.session.end(Ending::Stalled);
        Poll::Ready(io::ErrorKind::TimedOut.into())
    }
}

impl AsyncWrite for Writer {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Some(over) = this.is_over(cx) {
            return Poll::Ready(Err(over));
        }
        match Pin::new(&mut this.inner).poll_write(cx, bytes) {
            Poll::Pending => this.stall(cx).map(Err),
            Poll::Ready(written) => {
                this.stalled = None;
                if let Ok(n) = written {
                    this.session.meter.count_written(n);
                    this.session.meter.departed(this.departures.follow(&bytes[..n]));
                }
                Poll::Ready(written)
            }
        }
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(over) = this.is_over(cx) {
            return Poll::Ready(Err(over));
        }
        match Pin::new(&mut this.inner).poll_flush(cx) {
            Poll::Pending => this.stall(cx).map(Err),
            Poll::Ready(flushed) => {
                this.stalled = None;
                Poll::Ready(flushed)
            }
        }
    }
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}
