//! The stream wrapper between an authenticated connection and the cluster library, which has neither bounds nor
//! timeouts.
//!
//! Invariants  every inbound frame passes the [`Filter`] whole before a byte of it is passed on (MESH-1);
//!             a switch that is polled first ends both directions at once;
//!             silence longer than the idle limit ends the session, except while this side does not read (the gate);
//!             a write without progress for the same time ends it as well;
//!             time in which this process was suspended does not count ([`Wait`]).
//! Why an idle limit: the library pings every 1 to 5 s and never checks for the answer, and a paused process keeps its
//! TCP connection alive indefinitely.

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
use crate::session::{EndReason, Session};

/// Silence that ends a session: more than two of the slowest pings (5 s), so that one may be late.
pub const IDLE_LIMIT: Duration = Duration::from_secs(13);
/// The equal parts of a limit.
const PARTS: u32 = 4;
/// A part whose end is noticed this late means that this process was suspended meanwhile: the time says nothing of the peer.
const SUSPENDED: Duration = Duration::from_secs(1);
const READ_BUFFER_BYTES: usize = 16 * 1024;

/// A session's stream, ready for the cluster library.
pub struct Guarded {
    stream: BoxStream,
    session: Arc<Session>,
    filter: Filter,
    idle: Duration,
}

impl Guarded {
    pub fn new(stream: BoxStream, session: Arc<Session>, idle: Duration) -> Self {
        let filter =
            Filter::new(session.side, session.node, session.peer_endpoint, session.own_endpoint, session.own_tag);
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
            silence: Wait::new(self.idle),
            buffer: vec![0; READ_BUFFER_BYTES].into_boxed_slice(),
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
    /// The session's number, by which the session server identifies the stream.
    fn peer_label(&self) -> Option<String> {
        Some(self.session.number.to_string())
    }
}

/// How long this process has waited for the peer. It waits for the limit in parts, and one whose end it notices late does not count.
/// Why parts: a suspension that ends shortly after the limit would not be noticed by a single timer.
struct Wait {
    part: Duration,
    timer: Pin<Box<Sleep>>,
    /// The parts that count so far.
    counted: u32,
}

impl Wait {
    fn new(limit: Duration) -> Self {
        let part = limit / PARTS;
        Self { part, timer: Box::pin(sleep_until(Instant::now() + part)), counted: 0 }
    }
    fn begin_again(&mut self) {
        self.counted = 0;
        self.timer.as_mut().reset(Instant::now() + self.part);
    }
    /// Ready once the limit has passed.
    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.counted < PARTS {
            ready!(self.timer.as_mut().poll(cx));
            if self.timer.deadline().elapsed() < SUSPENDED {
                self.counted += 1;
            }
            self.timer.as_mut().reset(Instant::now() + self.part);
        }
        Poll::Ready(())
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
    silence: Wait,
    buffer: Box<[u8]>,
}

impl Reader {
    /// The next admitted frame, if a whole one has arrived.
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
}

impl AsyncRead for Reader {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if this.ended.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(())); // nothing filled: end of stream
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
                this.silence.begin_again();
                return Poll::Pending;
            }
            match this.admit_next() {
                Ok(true) => continue,
                Ok(false) => {}
                Err(violation) => {
                    this.session.end(EndReason::Violation(violation));
                    continue;
                }
            }
            let mut arrived = ReadBuf::new(&mut this.buffer);
            if Pin::new(&mut this.inner).poll_read(cx, &mut arrived)?.is_pending() {
                // The wait begins again when the gate opens: the time without reading does not count as silence.
                ready!(this.silence.poll_over(cx));
                this.session.end(EndReason::Idle);
                continue;
            }
            let arrived = arrived.filled();
            if arrived.is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.session.meter.count_read(arrived.len());
            this.deframer.push(arrived);
            this.silence.begin_again();
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
    stalled: Option<Wait>,
}

impl Writer {
    fn is_over(&mut self, cx: &mut Context<'_>) -> Option<io::Error> {
        let over = self.ended.as_mut().poll(cx).is_ready();
        over.then(|| io::Error::new(io::ErrorKind::BrokenPipe, "the session ended"))
    }
    /// Bounds how long a write may be pending.
    fn stall(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let wait = self.stalled.get_or_insert_with(|| Wait::new(self.limit));
        ready!(wait.poll_over(cx));
        self.session.end(EndReason::Stalled);
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

#[cfg(test)]
mod tests {
    use muster_messages::{NodeId, wire};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;
    use crate::core::filter::tests::{nested, number};
    use crate::session::{Facts, MAX_UNHANDLED_BYTES};

    const LIMIT: Duration = Duration::from_secs(13);
    const OWN_ENDPOINT: u64 = 7;
    const TAG: u128 = 99;

    fn guard() -> (Arc<Session>, Reader, Writer, DuplexStream) {
        let (near, far) = duplex(1 << 20);
        let session = Session::new(Facts { own_tag: TAG, own_endpoint: OWN_ENDPOINT, ..Facts::of_tests() });
        let (reader, writer) = Guarded::new(Box::pin(near), Arc::clone(&session), LIMIT).halves();
        (session, reader, writer, far)
    }
    fn framed(payload: &[u8]) -> Vec<u8> {
        [&(payload.len() as u64).to_be_bytes()[..], payload].concat()
    }
    /// The two frames of a dialer's handshake.
    fn handshake() -> Vec<u8> {
        let name = nested(1, &nested(1, &nested(1, NodeId::from_entropy(2).as_str().as_bytes())));
        let answer = nested(1, &nested(5, &number(1, 5)));
        [framed(&name), framed(&answer)].concat()
    }
    fn call(bytes: usize) -> Vec<u8> {
        let what = [wire::encode(&TAG).unwrap(), vec![0; bytes]].concat();
        let fields = [number(1, OWN_ENDPOINT), nested(2, &what), number(3, 1), number(4, 5000), nested(5, b"Call")];
        framed(&nested(2, &nested(2, &fields.concat())))
    }

    #[tokio::test]
    async fn permitted_frames_pass_unchanged_in_any_chunks() {
        let sent = [handshake(), call(100), call(0), framed(&nested(3, &nested(9, b"")))].concat();
        for piece in [1, 2, 3, 7, 8, 9, 64, sent.len()] {
            let (_session, mut reader, _writer, mut far) = guard();
            let mut got = vec![0; sent.len()];
            let sending = async {
                for bytes in sent.chunks(piece) {
                    far.write_all(bytes).await.unwrap();
                    tokio::task::yield_now().await;
                }
            };
            let (_, read) = tokio::join!(sending, reader.read_exact(&mut got));
            read.unwrap();
            assert_eq!(got, sent);
        }
    }

    #[tokio::test]
    async fn no_byte_of_a_forbidden_frame_passes() {
        let group = framed(&nested(3, &nested(5, &nested(1, b"managers"))));
        let (session, mut reader, _writer, mut far) = guard();
        far.write_all(&[handshake(), group, call(5)].concat()).await.unwrap();
        let mut got = Vec::new();
        reader.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, handshake());
        assert_eq!(session.end_reason(), EndReason::Violation(Violation::Group));
    }

    #[tokio::test]
    async fn kill_switch_ends_both_directions() {
        let (session, mut reader, mut writer, _far) = guard();
        let end_reason = async { session.end(EndReason::Cut("test".into())) };
        let mut byte = [0];
        let (read, ()) = tokio::join!(reader.read(&mut byte), end_reason);
        assert_eq!(read.unwrap(), 0);
        assert!(writer.write_all(b"x").await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends_the_session_and_any_byte_defers_it() {
        let (session, mut reader, _writer, mut far) = guard();
        let began = Instant::now();
        let sending = async {
            tokio::time::sleep(LIMIT / 2).await;
            far.write_all(&handshake()[..1]).await.unwrap();
            std::future::pending::<()>().await;
        };
        let mut got = Vec::new();
        tokio::select! { () = sending => {}, _end = reader.read_to_end(&mut got) => {} }
        assert_eq!(session.end_reason(), EndReason::Idle);
        assert!(began.elapsed() >= LIMIT * 3 / 2);
    }

    /// B7. Suspended for `suspension` after the two sides have waited for `before`: for how long they wait after it.
    async fn waits_after(before: Duration, suspension: Duration) -> Duration {
        let (session, mut reader, mut writer, _far) = guard();
        let (mut byte, big) = ([0], vec![0; 2 << 20]);
        let mut both = std::pin::pin!(async { tokio::join!(reader.read(&mut byte), writer.write_all(&big)) });
        let waits = tokio::time::timeout(before, &mut both).await;
        assert!(waits.is_err(), "ended: {}", session.end_reason());
        tokio::time::advance(suspension).await;
        let resumed = Instant::now();
        let (read, wrote) = both.await;
        assert_eq!((read.expect("the end of the stream"), wrote.is_err()), (0, true));
        resumed.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn time_of_a_suspension_is_not_silence() {
        let after = waits_after(Duration::from_secs(5), LIMIT).await;
        assert!((LIMIT * 3 / 4..LIMIT).contains(&after), "one part before it counts, and all time after it: {after:?}");
    }

    /// Without the parts, one that ends within a second after the limit would count as silence.
    #[tokio::test(start_paused = true)]
    async fn suspension_never_takes_more_than_half_of_the_limit() {
        for half_seconds in 1..32 {
            for before in [0, 3, 5].map(Duration::from_secs) {
                let suspension = Duration::from_millis(half_seconds * 500);
                let after = waits_after(before, suspension).await;
                assert!(after >= LIMIT / 2, "{after:?} after {before:?} and {suspension:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn gated_reading_does_not_count_as_idle() {
        let (session, mut reader, _writer, mut far) = guard();
        let one = call(512 << 10);
        let sending = async {
            far.write_all(&handshake()).await.unwrap();
            loop {
                far.write_all(&one).await.unwrap();
            }
        };
        let mut buffer = vec![0; 8192];
        let reading = async {
            loop {
                if reader.read(&mut buffer).await.unwrap() == 0 {
                    return;
                }
            }
        };
        tokio::select! {
            () = sending => {},
            () = reading => panic!("ended: {}", session.end_reason()),
            () = tokio::time::sleep(LIMIT * 3) => {}
        }
        assert!(session.meter.gated());
        assert!((MAX_UNHANDLED_BYTES..MAX_UNHANDLED_BYTES + (1 << 20)).contains(&session.meter.unhandled()));
        let handling = async { session.meter.handled(512 << 10) };
        let (read, ()) = tokio::join!(reader.read(&mut buffer), handling);
        assert!(read.unwrap() > 0);
        assert_eq!(session.end_reason(), EndReason::Closed, "the session is still open");
    }

    #[tokio::test(start_paused = true)]
    async fn session_with_peer_that_does_not_read_ends() {
        let (session, _reader, mut writer, _far) = guard();
        let wrote = writer.write_all(&vec![0; 2 << 20]).await;
        assert!(wrote.is_err());
        assert_eq!(session.end_reason(), EndReason::Stalled);
    }

    proptest::proptest! {
        #[test]
        fn random_bytes_never_panic_and_never_pass(bytes in proptest::collection::vec(proptest::num::u8::ANY, 1..600)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let got = runtime.block_on(async {
                let (_session, mut reader, _writer, mut far) = guard();
                far.write_all(&bytes).await.unwrap();
                drop(far);
                let mut got = Vec::new();
                reader.read_to_end(&mut got).await.unwrap();
                got
            });
            proptest::prop_assert!(got.is_empty());
        }
    }
}
