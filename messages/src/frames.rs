//! Length-delimited values over any stream: four bytes of length, big-endian, then a [`wire`] value of at most 1 MiB.
//!
//! Invariants  FRAME-1  a length field alone never makes the receiver allocate more than it has received, rounded up to a
//!                      small step.
//!             FRAME-2  reading never takes bytes beyond the current frame from the stream, so `into_inner` loses nothing
//!                      that the peer sent after it (a mesh stream changes its protocol after the hello).
//!             FRAME-3  a `recv` or `send` that is dropped midway loses nothing: the next call continues where it stopped.

use std::fmt;
use std::io;
use std::pin::Pin;

use bytes::{Buf, Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};

use crate::wire::{self, MAX_FRAME, WireError};

/// Both directions of a connection.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A byte stream of any origin: TLS over TCP in production, in-memory pipes in tests.
pub type BoxStream = Pin<Box<dyn Duplex>>;

impl fmt::Debug for dyn Duplex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stream")
    }
}

/// Why a frame could not be sent or received. The stream is then unusable, except after `Wire` on sending.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The operating system or the other side ended it.
    #[error("the connection broke")]
    Io(#[source] io::Error),
    /// The other side ended it inside a frame.
    #[error("the connection ended inside a frame")]
    Truncated,
    /// The frame is above the limit; it was not read.
    #[error("a frame of {0} bytes is too large")]
    TooLarge(usize),
    /// Its bytes are no value of this type.
    #[error("bad frame: {0}")]
    Wire(WireError),
}

const HEADER: usize = 4;
/// How much is allocated at a time while a frame arrives: a declared megabyte costs 16 KiB until the bytes arrive.
const STEP: usize = 16 * 1024;

/// The frame that is arriving.
#[derive(Debug)]
struct Inbound {
    bytes: BytesMut,
    limit: usize,
}

impl Default for Inbound {
    fn default() -> Self {
        Self { bytes: BytesMut::new(), limit: MAX_FRAME }
    }
}

impl Inbound {
    /// The next frame's body, or `None` at a clean end. Safe to drop and call again.
    async fn next<R: AsyncRead + Unpin>(&mut self, io: &mut R) -> Result<Option<Bytes>, FrameError> {
        loop {
            let wanted = match self.bytes.first_chunk::<HEADER>() {
                None => HEADER,
                Some(header) => {
                    let length = u32::from_be_bytes(*header) as usize;
                    if length > self.limit {
                        return Err(FrameError::TooLarge(length));
                    }
                    HEADER + length
                }
            };
            let missing = wanted - self.bytes.len();
            if missing == 0 && wanted > HEADER {
                let mut frame = self.bytes.split();
                frame.advance(HEADER);
                return Ok(Some(frame.freeze()));
            }
            if missing == 0 {
                self.bytes.clear();
                return Err(FrameError::Wire(WireError::Empty));
            }
            let room = missing.min(STEP);
            self.bytes.reserve(room);
            let read = io.take(room as u64).read_buf(&mut self.bytes).await.map_err(FrameError::Io)?;
            if read == 0 {
                return if self.bytes.is_empty() { Ok(None) } else { Err(FrameError::Truncated) };
            }
        }
    }
}

#[derive(Debug, Default)]
struct Outbound {
    bytes: BytesMut,
}

impl Outbound {
    fn push(&mut self, body: &[u8]) -> Result<(), FrameError> {
        if body.len() > MAX_FRAME {
            return Err(FrameError::TooLarge(body.len()));
        }
        let length = u32::try_from(body.len()).expect("MAX_FRAME fits 32 bits");
        self.bytes.reserve(HEADER + body.len());
        self.bytes.extend_from_slice(&length.to_be_bytes());
        self.bytes.extend_from_slice(body);
        Ok(())
    }
    fn push_value<T: Serialize>(&mut self, value: &T) -> Result<(), FrameError> {
        self.push(&wire::encode(value).map_err(FrameError::Wire)?)
    }
    async fn flush<W: AsyncWrite + Unpin>(&mut self, io: &mut W) -> Result<(), FrameError> {
        while self.bytes.has_remaining() {
            let written = io.write_buf(&mut self.bytes).await.map_err(FrameError::Io)?;
            if written == 0 {
                return Err(FrameError::Io(io::ErrorKind::WriteZero.into()));
            }
        }
        if self.bytes.capacity() > 4 * STEP {
            self.bytes = BytesMut::new(); // an idle connection must not keep the memory of a large frame
        }
        io.flush().await.map_err(FrameError::Io)
    }
}

fn decoded<T: DeserializeOwned>(body: Option<Bytes>) -> Result<Option<T>, FrameError> {
    body.map(|b| wire::decode(&b).map_err(FrameError::Wire)).transpose()
}

/// Both directions of a framed stream.
#[derive(Debug)]
pub struct Framed<S> {
    stream: S,
    inbound: Inbound,
    outbound: Outbound,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Framed<S> {
    /// Frames over this stream, up to the limit of a wire value.
    pub fn new(stream: S) -> Self {
        Self { stream, inbound: Inbound::default(), outbound: Outbound::default() }
    }
    /// With a smaller limit for received frames, for unauthenticated peers.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.inbound.limit = limit.min(MAX_FRAME);
        self
    }
    /// Sends one value and flushes. Dropped midway: the next `send` or `flush` sends the rest.
    pub async fn send<T: Serialize>(&mut self, value: &T) -> Result<(), FrameError> {
        self.outbound.push_value(value)?;
        self.flush().await
    }
    /// Queues one value without I/O, for the next `flush` (batches).
    pub fn feed<T: Serialize>(&mut self, value: &T) -> Result<(), FrameError> {
        self.outbound.push_value(value)
    }
    /// Sends the rest of the frames that were fed.
    pub async fn flush(&mut self) -> Result<(), FrameError> {
        self.outbound.flush(&mut self.stream).await
    }
    /// The next value; `None` when the peer closed cleanly. Safe to drop and call again (`select!`).
    pub async fn recv<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        decoded(self.recv_bytes().await?)
    }
    /// The next frame, undecoded.
    pub async fn recv_bytes(&mut self) -> Result<Option<Bytes>, FrameError> {
        self.inbound.next(&mut self.stream).await
    }
    /// Two halves for two tasks.
    pub fn split(self) -> (FramedReader<ReadHalf<S>>, FramedWriter<WriteHalf<S>>) {
        let (reader, writer) = tokio::io::split(self.stream);
        (
            FramedReader { stream: reader, inbound: self.inbound },
            FramedWriter { stream: writer, outbound: self.outbound },
        )
    }
    /// The stream, after the last completely received frame. Values not flushed are lost.
    pub fn into_inner(self) -> S {
        self.stream
    }
}

/// The receiving half.
#[derive(Debug)]
pub struct FramedReader<R> {
    stream: R,
    inbound: Inbound,
}

impl<R: AsyncRead + Unpin> FramedReader<R> {
    /// Frames from this stream, up to the limit of a wire value.
    pub fn new(stream: R) -> Self {
        Self { stream, inbound: Inbound::default() }
    }
    /// As [`Framed::recv`].
    pub async fn recv<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        decoded(self.recv_bytes().await?)
    }
    /// As [`Framed::recv_bytes`].
    pub async fn recv_bytes(&mut self) -> Result<Option<Bytes>, FrameError> {
        self.inbound.next(&mut self.stream).await
    }
}

/// The sending half.
#[derive(Debug)]
pub struct FramedWriter<W> {
    stream: W,
    outbound: Outbound,
}

impl<W: AsyncWrite + Unpin> FramedWriter<W> {
    /// Frames to this stream.
    pub fn new(stream: W) -> Self {
        Self { stream, outbound: Outbound::default() }
    }
    /// As [`Framed::send`].
    pub async fn send<T: Serialize>(&mut self, value: &T) -> Result<(), FrameError> {
        self.outbound.push_value(value)?;
        self.flush().await
    }
    /// As [`Framed::feed`].
    pub fn feed<T: Serialize>(&mut self, value: &T) -> Result<(), FrameError> {
        self.outbound.push_value(value)
    }
    /// Queues a frame with an encoded body.
    pub fn feed_encoded(&mut self, body: &[u8]) -> Result<(), FrameError> {
        self.outbound.push(body)
    }
    /// Bytes queued and not yet written.
    pub fn queued(&self) -> usize {
        self.outbound.bytes.len()
    }
    /// Sends the rest of the frames that were fed.
    pub async fn flush(&mut self) -> Result<(), FrameError> {
        self.outbound.flush(&mut self.stream).await
    }
    /// Flushes and closes the sending direction.
    pub async fn shutdown(&mut self) -> Result<(), FrameError> {
        self.flush().await?;
        self.stream.shutdown().await.map_err(FrameError::Io)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;

    #[tokio::test]
    async fn value_round_trips_and_end_is_clean() {
        let (a, b) = duplex(7); // smaller than a frame: both sides see partial progress
        let (mut a, mut b) = (Framed::new(a), Framed::new(b));
        let sent = vec!["x".repeat(1000), String::new()];
        let (sending, got) = tokio::join!(a.send(&sent), b.recv::<Vec<String>>());
        sending.unwrap();
        assert_eq!(got.unwrap(), Some(sent));
        drop(a);
        assert_eq!(b.recv::<u8>().await.unwrap(), None);
    }

    #[tokio::test]
    async fn declared_length_over_limit_is_refused_before_its_bytes() {
        let (mut raw, b) = duplex(64);
        raw.write_all(&(MAX_FRAME as u32 + 1).to_be_bytes()).await.unwrap();
        let got = Framed::new(b).recv::<u8>().await;
        assert!(matches!(got, Err(FrameError::TooLarge(n)) if n == MAX_FRAME + 1));
    }

    #[tokio::test]
    async fn declared_length_alone_reserves_no_memory() {
        let (mut raw, b) = duplex(64);
        raw.write_all(&(MAX_FRAME as u32).to_be_bytes()).await.unwrap();
        let mut b = Framed::new(b);
        // Polled once: it has read the length, and waits.
        tokio::select! { biased; got = b.recv::<u8>() => panic!("{got:?}"), () = std::future::ready(()) => {} }
        assert!(b.inbound.bytes.capacity() <= 2 * STEP);
    }

    #[tokio::test]
    async fn an_end_inside_a_frame_is_an_error_and_an_empty_frame_too() {
        let (mut raw, b) = duplex(64);
        raw.write_all(&[0, 0, 0, 9, 1]).await.unwrap();
        drop(raw);
        assert!(matches!(Framed::new(b).recv::<u8>().await, Err(FrameError::Truncated)));
        let (mut raw, b) = duplex(64);
        raw.write_all(&[0, 0, 0, 0]).await.unwrap();
        let got = Framed::new(b).recv::<u8>().await;
        assert!(matches!(got, Err(FrameError::Wire(WireError::Empty))));
    }

    #[tokio::test]
    async fn recv_may_be_dropped_at_any_byte() {
        let (mut raw, b) = duplex(64);
        let mut b = Framed::new(b);
        let body = wire::encode(&"hello".to_owned()).unwrap();
        let mut bytes = (body.len() as u32).to_be_bytes().to_vec();
        bytes.extend(body);
        let mut got = None;
        for byte in bytes {
            raw.write_all(&[byte]).await.unwrap();
            // Polled once, then dropped.
            tokio::select! { biased; r = b.recv::<String>() => got = r.unwrap(), () = std::future::ready(()) => {} }
        }
        assert_eq!(got.as_deref(), Some("hello"));
    }

    #[tokio::test]
    async fn send_may_be_dropped_and_the_rest_follows() {
        let (a, b) = duplex(4);
        let (mut a, mut b) = (Framed::new(a), Framed::new(b));
        let text = "y".repeat(100);
        tokio::select! { biased; _ = a.send(&text) => unreachable!("the pipe holds 4 bytes"), () = std::future::ready(()) => {} }
        let (flushed, got) = tokio::join!(a.flush(), b.recv::<String>());
        flushed.unwrap();
        assert_eq!(got.unwrap(), Some(text));
    }

    #[tokio::test]
    async fn stream_after_frames_loses_no_byte() {
        let (mut raw, b) = duplex(1024);
        let body = wire::encode(&7u64).unwrap();
        raw.write_all(&(body.len() as u32).to_be_bytes()).await.unwrap();
        raw.write_all(&body).await.unwrap();
        raw.write_all(b"another protocol").await.unwrap();
        drop(raw);
        let mut b = Framed::new(b);
        assert_eq!(b.recv::<u64>().await.unwrap(), Some(7));
        let mut rest = String::new();
        b.into_inner().read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "another protocol");
    }
}
